"""`runs --store STORE`: the history of a store: the commits of each run, and the outcomes of all others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from lastkey.jobs.command.ending import RunMetrics, openmetrics
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, counted
from lastkey.jobs.command.store_options import RunsOptions
from lastkey.jobs.errors import DONE
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.history import job_rows, killed_row
from lastkey.jobs.store.leases import list_leases
from lastkey.jobs.store.paths import RUNS
from lastkey.jobs.store.rows import JobRow, RunRow
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.logformat.names import partition_folder


@dataclass(frozen=True)
class RunPartition:
    """Work on one partition. expired: segments that retention deleted, by rule."""

    facts: ClassVar[str] = (
        "topic=row.topic partition=row.partition generation_before=row.generation_before "
        "generation=row.generation_after reset=row.reset records_read=row.records_read records_kept=row.records_left "
        "expired=row.went bytes_before=row.bytes_before bytes_after=row.bytes_after back_to seconds"
    )
    row: RunRow

    @property
    def back_to(self) -> int | None:
        """Generation whose files a rollback uses."""
        return self.row.back_to or None

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        seconds: dict[str, float] = json.loads(self.row.seconds or "{}")
        return seconds


@dataclass(frozen=True)
class JobRun:
    """Run of a job: its rows of `cleaner_runs` by topic and partition, and its row about the whole run.

    A run without a commit has no rows; one of an older version has no `job_row`.
    """

    facts: ClassVar[str] = (
        "run_id now_ms started_ms ended_ms outcome job=job_row.job exit_code=job_row.exit_code user=job_row.user "
        "host=job_row.host pid=job_row.pid application=job_row.application version=job_row.version "
        "error=job_row.error figures=job_row.amounts partitions"
    )
    run_id: str
    now_ms: int
    rows: tuple[RunRow, ...]
    job_row: JobRow | None = None
    at_work: bool = False

    def total(self, column: str) -> int:
        """Return the sum of a column over all partitions."""
        return sum(getattr(row, column) for row in self.rows)

    @property
    def started_ms(self) -> int:
        """Start of the run, by its host's clock; for older versions that of its first partition."""
        return self.job_row.started_ms if self.job_row is not None else min(row.started_ms for row in self.rows)

    @property
    def outcome(self) -> str | None:
        """Outcome of the run in one or two words; None if no row states it."""
        if self.at_work:
            return "at work"
        return self.job_row.outcome if self.job_row is not None else None

    @property
    def ended_ms(self) -> int | None:
        """End of the run; None: it is at work, or no row has it."""
        return None if self.at_work or self.job_row is None else self.job_row.ended_ms

    @property
    def partitions(self) -> list[RunPartition]:
        """Work on each partition, for programs."""
        return list(map(RunPartition, self.rows))


def by_run(rows: Iterable[RunRow]) -> list[JobRun]:
    """Return committed rows of runs, grouped by run, oldest first."""
    of_run: dict[str, list[RunRow]] = {}
    for row in rows:
        of_run.setdefault(row.run_id.partition(".")[0], []).append(row)  # without the task's attempt
    runs = [
        JobRun(run_id, of[0].now_ms, tuple(sorted(of, key=lambda r: (r.topic, r.partition))))
        for run_id, of in of_run.items()
    ]
    return sorted(runs, key=lambda run: (run.now_ms, run.run_id))


_TOTALS: Final = ("records_read", "records_left", "bytes_before", "bytes_after")


def _total(run: JobRun, name: str) -> object:
    return run.total(name) if run.rows else ""


def _error(run: JobRun) -> Iterable[str]:
    return [run.job_row.error] if run.job_row else []


@dataclass
class RunsReport(JobReport):
    """Report of `runs`: what was done to a store, oldest first."""

    job = "runs"
    done = "{runs:run} in {store}"
    facts = "store runs"
    text_tables = (
        TextTable(
            "runs",
            "now_ms:run_(UTC) id job outcome n:partitions records_read:records records_left:left bytes_before:bytes "
            "bytes_after:left by note",
            {
                "id": lambda run: run.run_id[:8],
                "job": lambda run: run.job_row.job if run.job_row else "",
                "outcome": lambda run: run.outcome or "",
                "n": lambda run: len(run.rows) or "",
                **{name: partial(_total, name=name) for name in _TOTALS},
                "by": lambda run: _by(run.job_row),
                "note": lambda run: "; ".join(filter(None, (*map(_note, run.rows), *_error(run)))),
            },
        ),
    )

    store: str
    runs: list[JobRun] = field(default_factory=list)
    metrics: str | None = None  # in place of the text

    @property
    def raw(self) -> str | None:
        """Text for Prometheus, if it was asked for."""
        return self.metrics and self.metrics.removesuffix("\n")


def run(options: RunsOptions, progress: Progress) -> RunsReport:
    """Read the tables of runs. A run counts for the partitions whose current generation goes back to it."""
    state = open_store(options.store)
    store = state.root
    current = state.checkpoints()
    topics = {topic for topic, _ in current}
    check_topics(options.topics, topics, store.uri)
    report = RunsReport(store.uri)
    wanted = {topic for topic in topics if options.topics.takes(topic)}
    chains = state.histories(wanted) if topics else {}
    committed = {run.run_id: run for run in by_run(row for chain in chains.values() for row in chain)}
    rows = {row.run_id: row for row in job_rows(state)}
    if options.format == "openmetrics":
        changes = (row for row in rows.values() if not row.job.startswith("audit "))
        report.metrics = openmetrics(_collect_metrics(changes, options.store))
    leases = list_leases(state.root, report.notes)
    at_work = {lease.run_id for lease in leases if lease.is_valid(time.time_ns())} - rows.keys()
    rows = {lease.run_id: killed_row(lease) for lease in leases} | rows
    runs = [replace(run, job_row=rows.pop(run.run_id, None)) for run in committed.values()]
    if options.topics == EVERY_TOPIC:  # the topics of the other rows are unknown
        runs += [JobRun(row.run_id, row.started_ms, (), row, row.run_id in at_work) for row in rows.values()]
    since = options.since_ms if options.since_ms is not None else 0
    report.runs = sorted(
        (run for run in runs if run.started_ms >= since), key=lambda run: (run.started_ms, run.now_ms, run.run_id)
    )
    unknown = (partition_folder(*key) for key, row in sorted(current.items()) if key[0] in wanted and not chains[key])
    report.notes += [f"{name}: its runs are not in the table {RUNS}" for name in unknown]
    return report


def _collect_metrics(rows: Iterable[JobRow], store: str) -> Iterator[RunMetrics]:
    """Yield the metrics of the newest run of each job. rows: the oldest first."""
    newest: dict[str, JobRow] = {}
    success: dict[str, float] = {}
    for row in rows:
        newest[row.job] = row
        if row.exit_code == DONE:
            success[row.job] = max(success.get(row.job, 0.0), row.ended_ms / 1000)
    for job, row in sorted(newest.items()):
        code = -1 if row.exit_code is None else row.exit_code
        labels = {"command": job, "store": store}
        yield RunMetrics(labels, row.started_ms, row.ended_ms, code, success.get(job), row.amounts)


def _by(row: JobRow | None) -> str:
    """Return user and host of a run, as far as they are known."""
    if row is None:
        return ""
    by = f"{row.user}@{row.host}" if row.user else row.host
    return f"{by}, {row.application}" if row.application else f"{by}, pid {row.pid}"


def _note(row: RunRow) -> str:
    name, n_expired = partition_folder(row.topic, row.partition), sum(one.segments for one in row.went)
    parts = [f"{name} started over"] if row.reset else []
    parts += [f"{name} went back to generation {row.back_to}"] if row.back_to else []
    return "; ".join([*parts, *([f"{name}: {counted(n_expired, 'segment')} expired"] if n_expired else [])])
