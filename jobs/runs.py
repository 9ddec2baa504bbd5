"""`runs --store STORE`: the history of a store's compactions, run by run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from lastkey.jobs.command.options import RunsOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import TO_THE_MINUTE, JobReport, count, counted, labelled, moment, size, table
from lastkey.jobs.store.generations import lost_runs, open_store
from lastkey.jobs.store.rows import RunRow
from lastkey.logformat.names import partition_folder


@dataclass(frozen=True)
class JobRun:
    """Run of the job, with its rows of `cleaner_runs`, by topic and partition."""

    run_id: str
    now_ms: int
    rows: tuple[RunRow, ...]

    def total(self, column: str) -> int:
        """Return the sum of a column over all partitions."""
        return sum(getattr(row, column) for row in self.rows)


def by_run(rows: Iterable[RunRow]) -> list[JobRun]:
    """Return committed rows of runs, grouped by run, oldest first."""
    of_run: dict[str, list[RunRow]] = {}
    for row in rows:
        of_run.setdefault(row.run_id, []).append(row)
    runs = [
        JobRun(run_id, of[0].now_ms, tuple(sorted(of, key=lambda r: (r.topic, r.partition))))
        for run_id, of in of_run.items()
    ]
    return sorted(runs, key=lambda run: (run.now_ms, run.run_id))


@dataclass
class RunsReport(JobReport):
    """Report of `runs`: those that committed, oldest first."""

    store: str
    runs: list[JobRun] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with each run's work on each partition."""
        return self.json_of("runs", store=self.store, runs=[_run(run) for run in self.runs])

    def to_text(self) -> str:
        """Return the report for people: a row for each run."""
        header = ("run (UTC)", "id", "partitions", "records", "", "", "bytes", "", "", "saved", "note")
        rows = [
            (
                moment(run.now_ms, TO_THE_MINUTE),
                run.run_id[:8],
                count(len(run.rows)),
                count(run.total("records_read")),
                "->",
                count(run.total("records_left")),
                size(run.total("bytes_before")),
                "->",
                size(run.total("bytes_after")),
                f"{100 * (1 - run.total('bytes_after') / max(run.total('bytes_before'), 1)):.1f} %",
                "; ".join(filter(None, map(_note, run.rows))),
            )
            for run in self.runs
        ]
        out = [table(header, rows, left=(0, 1, 10))] if rows else []
        out += labelled("note", self.notes)
        out.append(f"{counted(len(rows), 'run')} in {self.store}" if rows else f"{self.store}: no run committed yet")
        return "\n".join(out)


def run(options: RunsOptions, progress: Progress) -> RunsReport:
    """Read the table of runs. A run counts for the partitions whose current generation goes back to it."""
    began = time.monotonic()
    state = open_store(options.store)
    store = state.root
    current = state.checkpoints()
    topics = {topic for topic, _ in current}
    check_topics(options.topics, topics, store.uri)
    report = RunsReport(store.uri)
    wanted = {topic for topic in topics if options.topics.takes(topic)}
    chains = state.histories(wanted) if topics else {}
    chosen = {key: row for key, row in current.items() if key[0] in wanted}
    report.notes += [*state.notes, *(error.line() for error in lost_runs(chosen, chains).values())]
    report.runs = by_run(row for chain in chains.values() for row in chain)
    report.seconds["total"] = time.monotonic() - began
    return report


def _note(row: RunRow) -> str:
    name, gone = partition_folder(row.topic, row.partition), sum(one.segments for one in row.went)
    said = [f"{name} started over"] if row.anew else []
    said += [f"{name} went back to generation {row.back_to}"] if row.back_to else []
    return "; ".join([*said, *([f"{name}: {counted(gone, 'segment')} expired"] if gone else [])])


def _run(run: JobRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "now_ms": run.now_ms,
        "started_ms": min(row.started_ms for row in run.rows),
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "generation_before": row.generation_before,
                "generation": row.generation_after,
                "anew": row.anew,
                "back_to": row.back_to or None,
                "records_read": row.records_read,
                "records_kept": row.records_left,
                "expired": [asdict(one) for one in row.went],
                "bytes_before": row.bytes_before,
                "bytes_after": row.bytes_after,
                "seconds": json.loads(row.seconds or "{}"),
            }
            for row in run.rows
        ],
    }
