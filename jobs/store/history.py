"""Rows of `cleaner_runs` that are still needed: this bounds the history of a store.

The newest KEEP_GENERATIONS of each partition stay, and those younger than KEEP_DAYS. A generation that is older in both
senses stays if its folder is there, for it can be restored, or if its run erased records. Rows of runs that died go. If
the row of a parent is gone, `rows.histories` continues with the next older one. Rows about whole runs: `_newest_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lastkey.jobs.errors import DONE
from lastkey.jobs.store import rows
from lastkey.jobs.store.rows import Checkpoint, RunRow
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
