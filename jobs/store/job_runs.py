"""Table `job_runs` of a store: a row for each run of a job that changes stores, whatever came of it.

It is history for people and monitoring; no job depends on it. `jobs.recorded` writes a run's row in one append, when it
ends. A run that is killed writes none. Its lease stays (`jobs.store.leases`), and the `compact` that takes over the
expired lease writes a row without exit code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs.errors import CONFLICT, DONE, PARTIAL, PROBLEMS
from lastkey.jobs.store import rows, table
from lastkey.jobs.store.leases import Lease
from lastkey.jobs.store.paths import JOB_RUNS
from lastkey.jobs.store.table import FILE, Change, Version
from lastkey.jobs.store.tables import State

KEEP: Final = 1000  # rows that stay: nearly three years of nights
_MOST_FILES: Final = 64  # more are joined, and old rows go
_INTERRUPTED: Final = (130, 143)
_OUTCOMES: Final = {DONE: "done", PROBLEMS: "problems", CONFLICT: "conflict", PARTIAL: "partial"} | dict.fromkeys(
    _INTERRUPTED, "interrupted"
)


@dataclass(frozen=True)
class JobRow:
    """Row of `job_runs`: a run of a job, after its end."""

    run_id: str
    job: str  # compact, rollback, vacuum
    started_ms: int  # by the host's clock
    ended_ms: int
    exit_code: int | None  # None: killed
    user: str
    host: str
    pid: int
    application: str  # Spark's; "": no Spark
    version: str  # of Lastkey
    error: str  # one line; "": it ended with a report
    figures: str  # JSON: amounts by name, and counts by state or kind

    @property
    def told(self) -> dict[str, Any]:
        """Figures of the run."""
        found: dict[str, Any] = json.loads(self.figures)
        return found

    @property
    def outcome(self) -> str:
        """Word or two for what came of the run."""
        if self.exit_code is None:
            return "killed"
        if self.exit_code == DONE and self.told.get("committed_partitions") == 0:
            return "nothing to do"
        return _OUTCOMES.get(self.exit_code, "failed")


def job_rows(state: State) -> list[JobRow]:
    """Return the runs of a store, the oldest first. A run's own row wins over one that took it for dead."""
    found: dict[str, JobRow] = {}
    for row in rows.from_arrow(JobRow, state.rows(JOB_RUNS, rows.arrow_schema(JobRow))):
        if row.run_id not in found or found[row.run_id].exit_code is None:
            found[row.run_id] = row
    return sorted(found.values(), key=lambda row: (row.started_ms, row.run_id))


def append(state: State, new: Sequence[JobRow]) -> None:
    """Append rows. Once the table has many files, join them and drop old rows."""
    added = rows.to_arrow(JobRow, new)

    def plan(version: Version) -> Change:
        files = version.files()
        if len(files) < _MOST_FILES:
            return Change(added=[added])
        found = table.rows(version, added.schema).drop_columns([FILE])
        return Change(added=table.in_files(_newest(pa.concat_tables([found, added]))), removed=files)

    # Not State.swap, whose probe of the place costs more than the row: a lost one would be no harm
    table.swap(state.root, JOB_RUNS, added.schema, plan)


def killed_row(lease: Lease) -> JobRow:
    """Return the row of a killed run, from its lease."""
    return JobRow(
        run_id=lease.run_id,
        job="compact",
        started_ms=lease.since_ms,
        ended_ms=lease.mtime_ns // 1_000_000,  # last renewal
        exit_code=None,
        user="",
        host=lease.host,
        pid=lease.pid,
        application="",
        version="",
        error="",
        figures="{}",
    )


def _newest(found: pa.Table) -> pa.Table:
    """Return the newest KEEP rows, and the newest success of each job, whose age monitoring tells."""
    ordered = found.sort_by([("ended_ms", "descending"), ("run_id", "ascending")])
    done: dict[str, int] = {}
    for number, row in enumerate(ordered.select(["job", "exit_code"]).to_pylist()):
        if row["exit_code"] == DONE:
            done.setdefault(row["job"], number)
    return ordered.take(sorted({*range(min(KEEP, len(ordered))), *done.values()}))
