"""Rows of `cleaner_runs` and `log_segments` that are still needed: this bounds the history of a store.

The newest KEEP_GENERATIONS of each partition stay, and those younger than KEEP_DAYS. A generation that is older in both
senses stays if its folder is there, for it can be restored. Rows of runs that died go. If the row of a parent is gone,
`rows.histories` continues with the next older one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from lastkey.jobs.store.rows import Checkpoint, RunRow
from lastkey.jobs.topics import Key

KEEP_GENERATIONS: Final = 10  # for readers of a partition that is seldom compacted
KEEP_DAYS: Final = 30  # for readers of past runs; Delta's own default for its log
Made = tuple[str, int, int, str]  # topic, partition, generation, run id


def needed(
    checkpoints: Mapping[Key, Checkpoint],
    chains: Mapping[Key, Sequence[RunRow]],
    folders: Callable[[str, int], Collection[tuple[str, tuple[int, str]]]],
    now_ms: int,
) -> set[Made]:
    """Return the generations up to each partition's horizon that stay.

    chains: committed runs, newest first; folders: `folders.folders_of` for a topic and partition.
    """
    young_ms = now_ms - KEEP_DAYS * 86_400_000
    stay = set()
    for key, chain in chains.items():
        old = [run for run in chain if run.generation_after <= horizon(checkpoints[key])]
        if not any(run.started_ms < young_ms for run in old):
            stay |= {_made(run) for run in old}
            continue
        there = {path for path, _ in folders(*key)}
        stay |= {_made(run) for run in old if run.started_ms >= young_ms or run.folder in there}
    return stay


def horizon(current: Checkpoint) -> int:
    """Return the newest generation whose rows may go."""
    return current.generation - KEEP_GENERATIONS


def _made(run: RunRow) -> Made:
    return run.topic, run.partition, run.generation_after, run.run_id
