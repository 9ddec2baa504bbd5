"""The whole compaction of one partition in one task: scan, decide, rewrite, read back.

The steps run in an order that survives a crash: read and check all input; decide; write new segments with their side
files into a folder that nobody knows; flush; read back. The driver makes the folder visible (`jobs.store.tables`). The
task reads each input byte twice (headers and checksums; records) and decompresses it once; it writes each output byte
once and reads it once.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.attempt import attempt
from lastkey.udfs.compact.clean.clean_batches import MarkLast, Tally
from lastkey.udfs.compact.clean.clean_segment import clean_backwards
from lastkey.udfs.compact.clean.key_table import KeyTable, TooManyKeys
from lastkey.udfs.compact.clean.winners import find_winners
from lastkey.udfs.compact.expire_records import expire_records, with_what_is_old
from lastkey.udfs.compact.output.generation import remove_folder, write_generation, write_group
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.output.place_segments import begin_at, can_begin_at
from lastkey.udfs.compact.output.result import result_of
from lastkey.udfs.compact.plan import NotDue, PartitionPlan, PartitionResult
from lastkey.udfs.compact.scan.analyse import Analysis, Group, analyse
from lastkey.udfs.compact.scan.scan_partition import check_something_expires, scan_all, scan_identity
from lastkey.udfs.compact.scan.scan_segment import chunk_buffer
from lastkey.udfs.compact.verdicts import COUNTER_NAMES, NULL_KEYS
from lastkey.udfs.problem import Problem, SetAside
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


def compact_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact one partition, or say why not: every error becomes a result, except OSError for a full disk."""
    clock = Clock()
    done = attempt(f"{plan.topic}-{plan.partition}", lambda: _compact_if_due(plan, clock))
    if isinstance(done, Problem):
        result = PartitionResult(plan.topic, plan.partition, "set_aside", problem=done)
    else:
        result = done
    if result.status in ("set_aside", "too_large"):
        remove_folder(plan)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return replace(result, seconds=clock.seconds, peak_memory_bytes=peak)


def _compact_if_due(plan: PartitionPlan, clock: Clock) -> PartitionResult:
    try:
        return _compact(plan, clock)
    except NotDue as reason:
        return reason.result
    except TooManyKeys:
        return PartitionResult(plan.topic, plan.partition, "too_large")


def _compact(plan: PartitionPlan, clock: Clock) -> PartitionResult:
    buffer = chunk_buffer(plan)
    with clock.phase("scan"):
        check_something_expires(plan, buffer)
        scans, identity = scan_all(plan, buffer), scan_identity(plan, buffer)
        analysis = with_what_is_old(plan, analyse(plan, scans, identity), scans, identity, buffer)
    tally = Tally()
    with clock.phase("clean"):
        if analysis.aging:
            analysis, groups = expire_records(plan, analysis, tally, buffer)
        else:
            groups = clean_groups(plan, analysis, tally, buffer, clock)
    check_null_keys(plan, tally)
    with clock.phase("write"):
        generation = write_generation(plan, analysis, groups)
    counters = dict(zip(COUNTER_NAMES, tally.counters.tolist(), strict=True))
    return result_of(plan, analysis, generation, counters, tally.recompressed_bytes)


def check_null_keys(plan: PartitionPlan, tally: Tally) -> None:
    """Raise SetAside if the partition holds records without key and the setting null_keys is "fail"."""
    found = int(tally.counters[NULL_KEYS])
    if found and plan.settings.null_keys == "fail":
        raise SetAside(
            Problem(
                "null_key",
                f"{plan.topic}-{plan.partition}",
                NO_POSITION,
                "a key in every record",
                f"{found} records without one",
                hint="compaction would drop them: --null-keys keep or drop, or leave this topic out",
            )
        )


def clean_groups(
    plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer, clock: Clock
) -> list[OutputSegment]:
    """Clean the groups from last to first, and write each as soon as its base is certain: a group without survivors
    passes its base to the group after it. Returns the segments in order.
    """
    rules, sources = analysis.rules, analysis.sources
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
    if plan.settings.by_offset:
        table = KeyTable(plan.limits.task_memory_bytes // 2)
        mark_last: MarkLast = partial(_mark_last, table, analysis.cleanable.first_dirty_offset)
    else:
        mark_last = find_winners(plan, analysis, buffer).mark
    out: list[OutputSegment] = []
    held: tuple[Group, PieceStack] | None = None
    fails = plan.settings.null_keys == "fail"
    for numbers in reversed(analysis.groups):
        stack = PieceStack(plan.limits.task_memory_bytes // 4)
        for number in reversed(numbers):
            for piece, chunk in clean_backwards(sources[number], rules, loader, mark_last, tally, buffer):
                stack.push(number, piece, chunk)
        group = analysis.group(numbers)
        if fails and tally.counters[NULL_KEYS]:
            continue  # this partition will not be committed; go on only to count
        if held is not None and not len(stack) and can_begin_at(held[1].last_offset, group.base_offset):
            held = begin_at(held[0], group), held[1]
            continue
        if held is not None:
            with clock.phase("write"):
                out.append(write_group(plan, analysis, *held, buffer))
        held = group, stack
    if held is not None and not (fails and tally.counters[NULL_KEYS]):
        with clock.phase("write"):
            out.append(write_group(plan, analysis, *held, buffer))
    return out[::-1]


def _mark_last(table: KeyTable, first_dirty_offset: int, run: Run, is_last: np.ndarray) -> None:
    if table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, len(run.spans)):
        raise TooManyKeys
