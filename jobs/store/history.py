"""Table `cleaner_runs`: rows about whole runs, and the rows that are still needed, which bounds the history of a store.

A run of a job that changes stores or its tables of audits has one row beside those of its partitions. They are history
for people and monitoring, and the trend that `audit delivery` shows; no job depends on them. `jobs.recorded` appends
the row when the run ends. A run that is killed writes none. Its lease stays (`jobs.store.leases`), and the `compact`
that takes over the expired lease writes a row without exit code.

The newest KEEP_GENERATIONS of each partition stay, and those younger than KEEP_DAYS. A generation that is older in both
senses stays if its folder is there, for it can be restored, or if its run erased records. Rows of runs that died go. If
the row of a parent is missing, `rows.histories` continues with the next older row. Rows about whole runs:
`_newest_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lastkey.jobs.errors import DONE
from lastkey.jobs.store import rows
from lastkey.jobs.store.leases import Lease
from lastkey.jobs.store.paths import RUNS
from lastkey.jobs.store.rows import Checkpoint, JobRow, RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key

KEEP_GENERATIONS: Final = 10  # for readers of a partition that is seldom compacted
KEEP_JOBS: Final = 1000  # nearly three years of daily runs
KEEP_DAYS: Final = 30  # for readers of past runs; Delta's own default for its log


def needed(
    table: pa.Table,
    checkpoints: Mapping[Key, Checkpoint],
    folders: Callable[[str, int], Collection[tuple[str, tuple[int, str]]]],
    now_ms: int,
) -> pa.Table:
    """Return the rows that stay. folders: `list_run_folders` for a topic and partition."""
    young_ms = now_ms - KEEP_DAYS * 86_400_000
    list_folders = cache(lambda topic, partition: {path for path, _ in folders(topic, partition)})
    is_job = pc.is_null(table["topic"])
    runs = table.filter(pc.invert(is_job))
    run_rows = rows.runs_in(runs)
    chains = rows.histories(checkpoints, run_rows)
    committed = {(*key, run.generation_after, run.run_id) for key, chain in chains.items() for run in chain}

    def stays(run: RunRow) -> bool:
        key = run.topic, run.partition
        if not chains.get(key) or run.generation_after > checkpoints[key].generation - KEEP_GENERATIONS:
            return True
        if (*key, run.generation_after, run.run_id) not in committed:
            return False
        return run.started_ms >= young_ms or run.dropped_erased > 0 or run.folder in list_folders(*key)

    return pa.concat_tables(
        [runs.filter(pa.array(map(stays, run_rows), pa.bool_())), _newest_jobs(table.filter(is_job))]
    )


def _newest_jobs(table: pa.Table) -> pa.Table:
    """Return the newest KEEP_JOBS rows about whole runs, the newest success of each job, for monitoring, and every
    erasure and check, for auditors.
    """
    ordered = table.sort_by([("ended_ms", "descending"), ("run_id", "ascending")])
    done: dict[str, int] = {}
    kept = set(range(min(KEEP_JOBS, len(ordered))))
    for number, row in enumerate(ordered.select(["job", "exit_code"]).to_pylist()):
        if row["exit_code"] == DONE:
            done.setdefault(row["job"], number)
        if row["job"].startswith("erase"):
            kept.add(number)
    kept |= set(done.values())
    return ordered.take(pa.array(sorted(kept), pa.int64()))


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
        host=lease.host,
        pid=lease.pid,
    )
