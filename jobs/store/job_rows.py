"""Rows of `cleaner_runs` about whole runs: one for each run of a job that changes stores or its tables of audits.

They are history for people and monitoring, and the trend that `audit delivery` shows; no job depends on them.
`jobs.recorded` appends a run's row when the run ends. A run that is killed writes none. Its lease stays
(`jobs.store.leases`), and the `compact` that takes over the expired lease writes a row without exit code.
"""

from __future__ import annotations

import pyarrow.compute as pc

from lastkey.jobs.store import rows
from lastkey.jobs.store.leases import Lease
from lastkey.jobs.store.paths import RUNS
from lastkey.jobs.store.rows import JobRow
from lastkey.jobs.store.tables import State


def job_rows(state: State) -> list[JobRow]:
    """Return the runs of a store, the oldest first. A run's own row replaces one that was written for a killed run."""
    table = state.rows(RUNS, rows.run_schema())
    by_run_id: dict[str, JobRow] = {}
    for row in rows.from_arrow(JobRow, table.filter(pc.is_null(table["topic"]))):
        if row.run_id not in by_run_id or by_run_id[row.run_id].exit_code is None:
            by_run_id[row.run_id] = row
    return sorted(by_run_id.values(), key=lambda row: (row.started_ms, row.run_id))


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
