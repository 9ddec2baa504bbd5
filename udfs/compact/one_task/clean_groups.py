"""The cleaning of segment groups in one task, from the last to the first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.compact.clean.clean_batches import MarkLast, Tally
from lastkey.udfs.compact.clean.clean_segment import clean_backwards
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.generation import write_group
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.output.place_segments import begin_at, can_begin_at
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis, Group
from lastkey.udfs.compact.scan.scan_segment import chunk_buffer
from lastkey.udfs.compact.verdicts import NULL_KEYS
from lastkey.udfs.segments import OutputSegment


class Clock:
    """Seconds by phase. The time of a nested phase does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0  # seconds of phases within the current one

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        start, outer = time.perf_counter(), self._inside
        self._inside = 0.0
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inside
            self._inside = outer + spent


def clean_groups(
    plan: PartitionPlan,
    analysis: Analysis,
    groups: Sequence[range],
    rules_of: Callable[[int], Rules],
    mark_last: MarkLast,
    tally: Tally,
    buffer: ChunkBuffer,
    clock: Clock,
) -> list[OutputSegment]:
    """Clean groups from last to first, and write each as soon as its base is certain: when the group before it has a
    survivor, since one without passes its base to the group after it. Returns the segments in order.

    groups: numbers of sources; rules_of: is asked for the rules of a source, just before it is cleaned.
    """
    loader = BodyLoader(max_batch_bytes=plan.policy.settings.max_decompressed_batch_bytes, secret=plan.run.secret)
    out: list[OutputSegment] = []
    held: tuple[Group, PieceStack] | None = None
    fails = plan.policy.settings.null_keys == "fail"
    meanwhile = chunk_buffer(plan)  # while `buffer` holds the chunk that is cleaned

    def write_held(back: ChunkBuffer) -> None:
        nonlocal held
        if held is not None:
            with clock.phase("write"):
                out.extend(reversed(write_group(plan, analysis, *held, back)))
        held = None

    for numbers in reversed(groups):
        stack = PieceStack(plan.run.limits.task_memory_bytes // 4)
        for number in reversed(numbers):
            rules = rules_of(number)
            for piece, chunk in clean_backwards(
                analysis.sources[number], rules, loader, mark_last, tally, buffer, stack.room
            ):
                write_held(meanwhile)  # its memory serves this group
                stack.push(number, piece, chunk)
        group = analysis.group(numbers)
        if fails and tally.counters[NULL_KEYS]:
            continue  # this partition will not be committed; go on only to count
        follows = held is not None and held[0].base_offset == group.next_offset
        if held is not None and follows and not len(stack):
            last_offset = held[1].last_offset(plan.run.max_log_bytes)
            if can_begin_at(last_offset, group.base_offset):
                held = begin_at(held[0], group), held[1]
                continue
        write_held(buffer)
        held = group, stack
    if not (fails and tally.counters[NULL_KEYS]):
        write_held(buffer)
    return out[::-1]
