"""The task that makes new segments of a split's survivors, and pieces of segments that other splits share.

A group that lies in one split becomes segments at once. For any other group, each split writes a piece, with the rows
of its batches beside it; `join_pieces` makes the segments of these. The last split is cleaned in its walk, as one task
cleans a partition: what leaves it stays, for none comes later. So its records are read and decompressed once; its
entries go to the tasks that settle, as those of other walks do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.clean_batches import (
    OUT_BATCH,
    ChunksOf,
    Pass,
    Tally,
    clean_backwards,
    clean_forwards,
)
from lastkey.udfs.compact.clean.deciders import KeyTable, last_offset_decider
from lastkey.udfs.compact.cleaner import Rules
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.output.segment_output import GroupOutput, extended
from lastkey.udfs.compact.plan import PartitionPlan, chunk_buffer
from lastkey.udfs.compact.split.settle import SettledBuckets, Survivors
from lastkey.udfs.compact.split.splits import Part, Split
from lastkey.udfs.compact.split.walk_split import (
    WALKED_CHUNK,
    Collected,
    KeyFile,
    Slice,
    WalkedSplit,
    check,
    chunks_or_thinned,
    in_own_folder,
    read_slice,
)
from lastkey.udfs.segments import SegmentScan
from lastkey.udfs.steps import step
from lastkey.udfs.storage import flush_whole, open_root, opened

_COPY_BYTES = 8 << 20


@dataclass
class GroupSurvivors:
    """Survivors of a group in the order of the log: OUT_BATCH rows and uint8[], as of `PieceStack.drain`."""

    pieces: Iterator[tuple[np.ndarray, np.ndarray]]
    digest: int = 0  # of the rebuilt records, valid after the last piece


@dataclass(frozen=True)
class GroupPiece:
    """Survivors of a group in one split, waiting in key files to be joined."""

    group: int
    data: Slice
    rows: Slice  # OUT_BATCH[n]
    digest: int


@dataclass(frozen=True)
class RewrittenSplit:
    """Result for one split. An empty segment has no file: the driver joins it to the next one."""

    segments: dict[int, list[Segment]]  # by group
    pieces: tuple[GroupPiece, ...]
    counters: np.ndarray
    recompressed_bytes: int
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class JoinedGroup:
    """Segments made of pieces."""

    group: int
    segments: list[Segment]
    peak_memory_bytes: int = 0


def rewrite_split(
    plan: PartitionPlan,
    split: Split,
    groups: Mapping[int, Segment],
    shared: frozenset[int],
    sources: Sequence[SegmentScan],
    rules: Rules,
    kept_aborts: np.ndarray,
    walked: WalkedSplit,
    settled: Sequence[SettledBuckets],
    name: str,
) -> RewrittenSplit:
    """Write the survivors of a split, or of a piece of it.

    groups: those that have a part in it; shared: those of them that other splits have a part of too; sources: of its
    parts; name: of the pieces' file, for this try alone.
    """
    buffer = chunk_buffer(plan)
    root = open_root(plan.run.store_uri)
    survivors = Survivors(root, walked, settled, plan.name, split.chunks)
    tally, output = Tally(), SplitOutput(plan, groups, shared, kept_aborts, name)
    thinned = iter(walked.thinned[split.chunks])
    of_part = {part: list(itertools.islice(thinned, part.stop - part.first)) for part in split.parts}

    def again(part: Part, source: SegmentScan) -> ChunksOf:
        chunks = source.chunks[part.first : part.stop]
        return lambda log: chunks_or_thinned(log, source.path, chunks, buffer, keys, of_part[part])

    of = Pass(survivors.mark, plan.loader(None), buffer, tally, survivors.batch_verdicts)

    def cleaned(parts: Sequence[tuple[Part, SegmentScan]]) -> GroupSurvivors:
        def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for part, source in parts:
                for piece, data in clean_forwards(of, source, rules, chunks_of=again(part, source)):
                    out.digest = (out.digest + piece.digest) & (2**64 - 1)
                    yield piece.rows, data

        out = GroupSurvivors(pieces())
        return out

    with opened(root, walked.leaves.path) as keys:
        for number, parts in itertools.groupby(zip(split.parts, sources, strict=True), lambda pair: pair[0].group):
            output.write(number, cleaned(list(parts)))
    survivors.check_end()
    return output.result(tally)


class SplitOutput:
    """Writer of a split's survivors: segments of each group that no other split has a part of, a piece of each other.

    Arguments as of `rewrite_split`.
    """

    def __init__(
        self,
        plan: PartitionPlan,
        groups: Mapping[int, Segment],
        shared: frozenset[int],
        kept_aborts: np.ndarray,
        name: str,
    ) -> None:
        self._plan, self._groups, self._shared, self._kept_aborts, self._name = plan, groups, shared, kept_aborts, name
        self._segments: dict[int, list[Segment]] = {}
        self._pieces: list[GroupPiece] = []

    def write(self, number: int, cleaned: GroupSurvivors) -> None:
        """Write what the split has of a group."""
        if number in self._shared:
            self._pieces.append(_write_piece(self._plan, number, cleaned, f"{self._name}-{number}"))
        else:
            self._segments[number] = _write_segments(self._plan, self._groups[number], cleaned, self._kept_aborts)

    def result(self, tally: Tally) -> RewrittenSplit:
        """Return what was written."""
        return RewrittenSplit(self._segments, tuple(self._pieces), tally.counters, tally.recompressed_bytes)


def _write_segments(
    plan: PartitionPlan, group: Segment, cleaned: GroupSurvivors, kept_aborts: np.ndarray
) -> list[Segment]:
    """Write a group's segments in a folder of their own."""
    own = in_own_folder(plan)
    output = GroupOutput(own, group, kept_aborts)
    for rows, data in cleaned.pieces:
        output.append(rows, data)
    return _finished(own, output, cleaned.digest)


def _finished(own: PartitionPlan, output: GroupOutput, digest: int) -> list[Segment]:
    segments = output.finish(digest, chunk_buffer(own))
    if segments[0].path:
        flush_whole(open_root(own.run.store_uri), own.run.folder)  # here: the driver may be elsewhere
    return segments


def _write_piece(plan: PartitionPlan, number: int, cleaned: GroupSurvivors, name: str) -> GroupPiece:
    """Write what one split has of a group. name: of the file, for this try alone."""
    written, checksum = [np.empty(0, OUT_BATCH)], 0
    with KeyFile(plan, name) as file:
        for rows, data in cleaned.pieces:
            written.append(rows)
            if not plan.run.dry_run:
                file.append(data)
                checksum = extended(checksum, rows, data)
        whole = Slice(file.path, 0, file.size, checksum)
        return GroupPiece(number, whole, file.write(np.concatenate(written)), cleaned.digest)


def join_pieces(
    plan: PartitionPlan, number: int, group: Segment, pieces: Sequence[GroupPiece], kept_aborts: np.ndarray
) -> JoinedGroup:
    """Make segments of a group's pieces, which come in the order of the log."""
    root, own = open_root(plan.run.store_uri), in_own_folder(plan)
    output, copied = GroupOutput(own, group, kept_aborts), np.empty(_COPY_BYTES, np.uint8)
    for piece in pieces:
        rows = read_slice(root, piece.rows).view(OUT_BATCH)
        if len(rows):
            output.append(rows, np.empty(0, np.uint8))
        checksum = 0
        with opened(root, piece.data.path) as file:
            for start in range(0, piece.data.size, _COPY_BYTES):
                part = copied[: piece.data.size - start]
                read_exactly(file, piece.data.path, start, part)
                checksum = crc32c_extend(checksum, part)
                output.append(rows[:0], part)
        check(piece.data, checksum)
    return JoinedGroup(number, _finished(own, output, sum(piece.digest for piece in pieces) & (2**64 - 1)))


@dataclass(frozen=True)
class CleanedSplit:
    """Result of the last split; `walked` has its entries alone, for no task rewrites it."""

    walked: WalkedSplit
    rewritten: RewrittenSplit
    peak_memory_bytes: int = 0


def clean_last_split(
    plan: PartitionPlan,
    split: Split,
    groups: Mapping[int, Segment],
    shared: frozenset[int],
    sources: Sequence[SegmentScan],
    rules: Rules,
    first_dirty_offset: int,
    kept_aborts: np.ndarray,
    n_buckets: int,
    name: str,
) -> CleanedSplit:
    """Clean the last split of a partition without `compaction.strategy`. Arguments as of `rewrite_split`.

    name: of the files, for this try alone. Raises TooManyKeys if the keys do not fit the task's memory.
    """
    buffer, tally = chunk_buffer(plan), Tally()
    output = SplitOutput(plan, groups, shared, kept_aborts, name)
    mark = last_offset_decider(KeyTable(plan.run.limits.task_memory_bytes // 2), first_dirty_offset)
    with KeyFile(plan, name) as key_file:
        out = Collected(key_file, first_dirty_offset, rules.oldest_ms, n_buckets)

        def mark_and_collect(run: Run, is_last: np.ndarray) -> None:
            mark(run, is_last)
            with_keys = run.wanted & (run.batches["attributes"] & CONTROL_MASK == 0)
            out.collect(run, with_keys, is_last)

        of = Pass(mark_and_collect, plan.loader(plan.run.secret), buffer, tally)
        last_first = reversed(list(enumerate(split.parts)))
        for number, parts in itertools.groupby(last_first, lambda pair: pair[1].group):
            stack = PieceStack(plan.run.limits.task_memory_bytes // 4)
            for i, part in parts:
                chunks = sources[i].chunks[part.first : part.stop]
                for piece, chunk in clean_backwards(of, sources[i], rules, stack.room, chunks=chunks):
                    stack.push(i, piece, chunk)
            output.write(number, GroupSurvivors(stack.drain(sources, dry_run=plan.run.dry_run), stack.digest))
        blocks = out.finish()
    none = Slice(key_file.path, 0, 0, 0)
    walked = WalkedSplit(split.number, blocks, none, none, none, np.empty(0, WALKED_CHUNK))
    step("last split cleaned")
    return CleanedSplit(walked, output.result(tally))
