"""Choice between one task and several for each partition of a wave, by what gets the wave done first.

One task for each partition is the cheapest way, but a large partition among few leaves cores idle. So the cost of both
ways is counted, in bytes of log that one task works through: several tasks share a partition among all cores, at
`_MORE` times the work and the fixed cost of the stages. The largest partitions are shared while that shortens the wave.
A partition whose keys do not fit one task is known too late for this choice: several tasks then take it over.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lastkey.jobs.spark.workers import Workers
from lastkey.udfs.compact.plan import PartitionPlan

# Measured by the clock on 2 cores, in threads: 1 GB takes 0.87 times as long as in one task, 4 GB 0.8 times
_MORE: Final = 1.5  # work of several tasks, relative to one
_WORTH: Final = 0.9  # sharing must save at least a tenth of the time
_COUNTED: Final = 8  # partitions a core that are placed in order; smaller ones fill the gaps

CORES_IDLE: Final = "cores would be idle"
KEYS: Final = "keys beyond the memory of a task"
ASKED: Final = "as the setting split.by says"


@dataclass(frozen=True)
class Choice:
    """Partitions of a wave by the way they are taken, the largest first."""

    one_task: tuple[PartitionPlan, ...]
    several: tuple[PartitionPlan, ...]
    because: str = CORES_IDLE


def choose(plans: Sequence[PartitionPlan], workers: Workers) -> Choice:
    """Choose how each partition is taken. The plans are of one run: the setting and dry run are the same for all."""
    by_size = tuple(sorted(plans, key=_bytes)[::-1])
    split = by_size[0].run.limits.split_by
    if split == "none" or by_size[0].run.dry_run:  # several tasks would meet in the store, and a dry run may not
        return Choice(by_size, ())
    # few bytes are read, or no keys held
    alone = [plan.policy.partial or plan.policy.erasing is not None for plan in by_size]
    partial = tuple(plan for plan, is_alone in zip(by_size, alone, strict=True) if is_alone)
    rest = tuple(plan for plan, is_alone in zip(by_size, alone, strict=True) if not is_alone)
    if split != "auto":
        return Choice(partial, rest, ASKED)
    n = several_of([plan.log_bytes for plan in rest], workers.cores, workers.stages_bytes)
    return Choice((*rest[n:], *partial), rest[:n])


def several_of(sizes: Sequence[int], cores: int, stages_bytes: int) -> int:
    """Return how many of the largest partitions (bytes, descending) are taken in several tasks."""
    best, n_best = _time(sizes, 0, cores, stages_bytes), 0
    for n in range(1, min(len(sizes), cores) + 1):
        time = _time(sizes, n, cores, stages_bytes)
        if time < _WORTH * best:
            best, n_best = time, n
    return n_best


def _time(sizes: Sequence[int], n: int, cores: int, stages_bytes: int) -> float:
    """Estimate a wave's time in bytes of log a core: `n` partitions are shared, the rest fill cores, longest first."""
    several, rest = _MORE * sum(sizes[:n]), sizes[n:]
    busy = [0.0] * cores
    for size in rest[: _COUNTED * cores]:
        heapq.heapreplace(busy, busy[0] + size)
    return max(*busy, (several + sum(rest)) / cores + (stages_bytes if n else 0))


def _bytes(plan: PartitionPlan) -> int:
    return plan.log_bytes
