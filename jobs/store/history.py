"""Which rows of `cleaner_runs` and `log_segments` are needed: what bounds the history of a store.

Of each partition the newest KEEP_GENERATIONS stay, and what is younger than KEEP_DAYS. Of what is older in both senses
stays what a command can still use: a generation whose folder is there, for it can be restored, and a --reset whose
generation before is there, for vacuum knows by it that this may be the only copy. Both only on the chain of parents;
rows of runs that died go. Where the chain is cut by that, `rows.histories` goes on with the next older row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from jobs.store.rows import Checkpoint, RunRow
from jobs.topics import Key

KEEP_GENERATIONS: Final = 10  # for who looks at a partition that is seldom compacted
KEEP_DAYS: Final = 30  # for who looks back at what ran; Delta's own default for its log
Made = tuple[str, int, int, str]  # topic, partition, generation, run id


def needed(
    checkpoints: Mapping[Key, Checkpoint],
    chains: Mapping[Key, Sequence[RunRow]],
    folders: Callable[[str, int], Collection[tuple[str, tuple[int, str]]]],
    now_ms: int,
) -> set[Made]:
    """Of the generations up to each partition's horizon those that stay.

    chains: of committed runs, newest first; folders: `folders.folders_of` a topic and partition.
    """
    young_ms = now_ms - KEEP_DAYS * 86_400_000
    stay = set()
    for key, chain in chains.items():
        old = [run for run in chain if run.generation_after <= horizon(checkpoints[key])]
        if not any(run.started_ms < young_ms for run in old):
            stay |= {_made(run) for run in old}
            continue
        there = {made for _, made in folders(*key)}
        numbers = {number for number, _ in there}
        for run in old:
            before = (run.generation_before, run.parent_run_id)
            only_copy = run.began_anew and (before in there or (before[1] is None and before[0] in numbers))
            if run.started_ms >= young_ms or (run.generation_after, run.run_id) in there or only_copy:
                stay.add(_made(run))
    return stay


def horizon(current: Checkpoint) -> int:
    """The newest generation of which rows may go."""
    return current.generation - KEEP_GENERATIONS


def _made(run: RunRow) -> Made:
    return run.topic, run.partition, run.generation_after, run.run_id
