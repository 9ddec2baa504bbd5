"""Which partitions of a wave are taken in several tasks: what gets the wave done first.

One task a partition is the cheapest way, but a large one among few leaves cores idle. So the cost of both is counted,
in bytes of log that one task works through: several tasks share a partition among all cores, at `_MORE` times the work
and what the stages take beside it. The largest ones are taken so as far as the wave is done sooner by it. That the
keys of a partition do not fit one task is known too late for this: it is sent the other way when that is met.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jobs.spark.workers import Workers
from udfs.compact.plan import PartitionPlan

# Measured by the clock on 2 cores, in threads: 1 GB takes 0.87 times as long as in one task, 4 GB 0.8 times
_MORE: Final = 1.5  # work of several tasks, against one
_WORTH: Final = 0.9  # a tenth of the time must be won by it
_COUNTED: Final = 8  # partitions a core whose order is looked at; what is smaller fills the gaps

CORES_IDLE: Final = "cores would be idle"
KEYS: Final = "keys beyond the memory of a task"
ASKED: Final = "as the setting engine says"


@dataclass(frozen=True)
class Choice:
    """Partitions of a wave, largest first."""

    one_task: tuple[PartitionPlan, ...]
    several: tuple[PartitionPlan, ...]
    because: str = CORES_IDLE


def choose(plans: Sequence[PartitionPlan], workers: Workers) -> Choice:
    """How each partition is taken. The plans are of one run: engine and dry run are the same for all."""
    by_size = tuple(sorted(plans, key=_size)[::-1])
    engine = by_size[0].limits.engine
    if engine == "window":
        return Choice((), by_size, ASKED)
    if engine == "task" or (
        engine == "auto" and by_size[0].dry_run
    ):  # which writes nothing, and would have to take Spark's window
        return Choice(by_size, ())
    by_offset = tuple(plan for plan in by_size if plan.settings.by_offset)  # in several tasks others take the window
    sizes = [_size(plan) for plan in by_offset]
    n = len(sizes) if engine == "blocks" else several_of(sizes, workers.cores, workers.stages_bytes)
    several = by_offset[:n]
    others = [plan for plan in by_size if not plan.settings.by_offset]
    one_task = tuple(sorted([*others, *by_offset[n:]], key=_size)[::-1])
    return Choice(one_task, several, ASKED if engine == "blocks" else CORES_IDLE)


def several_of(sizes: Sequence[int], cores: int, stages_bytes: int) -> int:
    """How many of the largest partitions (bytes, descending) are taken in several tasks."""
    best, n_best = _time(sizes, 0, cores, stages_bytes), 0
    for n in range(1, min(len(sizes), cores) + 1):
        time = _time(sizes, n, cores, stages_bytes)
        if time < _WORTH * best:
            best, n_best = time, n
    return n_best


def _time(sizes: Sequence[int], n: int, cores: int, stages_bytes: int) -> float:
    """Until the wave is done: the rest each in one task, longest first; the splits of the large fill the gaps."""
    several, rest = _MORE * sum(sizes[:n]), sizes[n:]
    busy = [0.0] * cores
    for size in rest[: _COUNTED * cores]:
        heapq.heapreplace(busy, busy[0] + size)
    return max(*busy, (several + sum(rest)) / cores + (stages_bytes if n else 0))


def _size(plan: PartitionPlan) -> int:
    return sum(segment.listed.size for segment in plan.segments)
