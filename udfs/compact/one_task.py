"""The whole compaction of one partition in one task: scan, decide, rewrite, read back.

Steps, in the order that a crash allows: read and check everything that will be used; decide; write new segments with
their side files into a folder that nobody knows; flush; read back. The driver makes it visible (`jobs.store.tables`).
Each input byte is read twice (headers and checksums; records) and decompressed once; each output byte is written once
and read once.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import ChunkBuffer
from udfs.attempt import attempt
from udfs.compact.analyse import Analysis, analyse, result_of
from udfs.compact.clean_batches import MarkLast, Tally
from udfs.compact.clean_segment import clean_backwards
from udfs.compact.decide_kernels import COUNTER_NAMES, NULL_KEYS
from udfs.compact.expire_records import expire_records, with_what_is_old
from udfs.compact.generation import remove_folder, write_generation, write_group
from udfs.compact.key_table import KeyTable, TooManyKeys
from udfs.compact.piece_stack import Group, PieceStack
from udfs.compact.plan import NotDue, PartitionPlan, PartitionResult
from udfs.compact.scan_partition import check_something_expires, scan_all, scan_identity
from udfs.compact.scan_segment import chunk_buffer
from udfs.compact.winners import find_winners
from udfs.problem import Problem, SetAside
from udfs.segments import OutputSegment


class Clock:
    """Seconds by phase; a phase inside another one is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0  # of phases within the current one

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
    """Compact one partition, or say why not: whatever stops it becomes a result. Only a full disk raises OSError."""
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
    """Set the partition aside where it holds records without key and nobody said what to do with them."""
    found = int(tally.counters[NULL_KEYS])
    if found and plan.settings.null_keys == "fail":
        raise SetAside(
            Problem(
                "null_key",
                f"{plan.topic}-{plan.partition}",
                0,
                "a key in every record",
                f"{found} records without",
                hint="compaction would drop them: --null-keys keep or drop, or leave this topic out",
            )
        )


def clean_groups(
    plan: PartitionPlan, analysis: Analysis, tally: Tally, buffer: ChunkBuffer, clock: Clock
) -> list[OutputSegment]:
    """Clean the groups from the last to the first, and write each as soon as its base is certain: a group of which
    nothing survives gives its base to the one after it. Returns the segments in order.
    """
    rules, sources = analysis.rules, analysis.sources
    loader = BodyLoader(max_batch_bytes=plan.settings.max_decompressed_batch_bytes, secret=plan.secret)
    if plan.settings.by_offset:
        table = KeyTable(plan.limits.task_memory_bytes // 2)
        mark_last: MarkLast = partial(_mark_last, table, analysis.cleanable.first_dirty_offset)
    else:
        mark_last = find_winners(plan, analysis, buffer).mark
    out: list[OutputSegment] = []
    held: Group | None = None
    fails = plan.settings.null_keys == "fail"
    for numbers in reversed(analysis.groups):
        stack = PieceStack(plan.limits.task_memory_bytes // 4)
        for number in reversed(numbers):
            clean_backwards(number, sources, stack, rules, loader, mark_last, tally, buffer)
        group = analysis.group(numbers, stack)
        if fails and tally.counters[NULL_KEYS]:
            continue  # nothing of this partition will be committed; go on only to count
        if held is not None and not len(stack) and held.can_begin_at(group.base_offset):
            held.take_base_of(group)
            continue
        if held is not None:
            with clock.phase("write"):
                out.append(write_group(plan, analysis, held, buffer))
        held = group
    if held is not None and not (fails and tally.counters[NULL_KEYS]):
        with clock.phase("write"):
            out.append(write_group(plan, analysis, held, buffer))
    return out[::-1]


def _mark_last(table: KeyTable, first_dirty_offset: int, run: Run, is_last: np.ndarray) -> None:
    if table.mark(run.batches, run.bodies, run.wanted, run.spans, first_dirty_offset, is_last, len(run.spans)):
        raise TooManyKeys
