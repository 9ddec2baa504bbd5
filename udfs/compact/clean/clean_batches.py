"""Cleaning of the batches of a segment, from its end or from its start.

For a run of batches: retention of the batches (`cleaner.batch_retention`), the records that a decider marks, the
decision (`decide_kernels.decide`), and the new bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK
from lastkey.logformat.primitives.codec import Scratch, compress, pack_bodies
from lastkey.udfs.compact.clean.decide_kernels import BatchDecisions, RecordRules, decide
from lastkey.udfs.compact.clean.rebuild_kernels import CLEANED, assemble_batches, describe_survivors, encode_bodies
from lastkey.udfs.compact.cleaner import Rules, batch_retention, begin_at
from lastkey.udfs.compact.scan.scan_segment import chunks_again
from lastkey.udfs.compact.verdicts import (
    COUNTER_NAMES,
    DROPPED,
    N_COUNTERS,
    NO_TIMESTAMP,
    REBUILT,
    RETAIN_EMPTY,
    UNKNOWN,
)
from lastkey.udfs.segments import SegmentScan

_REENCODED_MORE = 20  # extra bytes that new varints of a record may need over the old ones
# A dry run recompresses this much of each run (32 MiB decompressed): bytes, or batches if those are large. Tuned: sizes
# of 40 to 70 MB of each codec are right to 0.03 %. They take a tenth (gzip, zstd, snappy) to two thirds (lz4) more time
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLE_BATCHES: Final = 8

# A batch of the output.
OUT_BATCH = np.dtype(
    [
        ("size", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("max_timestamp", "i8"),
        ("min_timestamp", "i8"),  # as in CLEANED
        ("n_records", "i4"),
        ("tombstones", "i4"),
        ("codec", "i1"),
        ("magic", "i1"),
        ("rebuilt", "?"),
    ],
    align=True,
)


def least_timestamp(rows: np.ndarray) -> int:
    """Return the smallest timestamp in OUT_BATCH[n]: ms, NO_TIMESTAMP, or UNKNOWN_TIMESTAMP if one is unknown."""
    return int(rows["min_timestamp"].min()) if len(rows) else NO_TIMESTAMP


@dataclass(frozen=True)
class CleanedRun:
    """Surviving batches of one run: their bytes, or their place in the source if all were copied."""

    rows: np.ndarray  # OUT_BATCH[m]
    data: np.ndarray | None  # uint8; None: the bytes [position, position + size) of the source, unchanged
    position: int
    size: int
    digest: int = 0  # digest of the rebuilt batches' records (`rebuild_kernels.digest_records`)
    estimated: bool = False  # the size of recompressed batches is an estimate (dry run)


@dataclass
class Tally:
    """Counters of `decide_kernels`, and recompressed bytes."""

    counters: np.ndarray = field(default_factory=lambda: np.zeros(N_COUNTERS, np.int64))
    recompressed_bytes: int = 0
    erased: np.ndarray | None = None  # int64[n, 2]: ranges of offsets that an erasure removed, first and last

    def __getitem__(self, name: str) -> int:
        """Return a counter by its name in COUNTER_NAMES."""
        return int(self.counters[COUNTER_NAMES.index(name)])

    def by_name(self) -> dict[str, int]:
        """Return all counters."""
        return dict(zip(COUNTER_NAMES, self.counters.tolist(), strict=True))


Decider = Callable[[Run, np.ndarray], None]  # a decider: fills bool[len(run.spans)], whether a record may stay
# (BATCH[n] of a chunk, bool[n]: records that go or stay in any case, bool[n]: rewritten if all records stay)
# -> int8[n], a verdict on each batch (`verdicts`)
VerdictsOf = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Room = Callable[[int], np.ndarray]  # uint8[n] for the bytes of a piece
# called with a run, what its decider marked and what stays, both bool[len(run.spans)], and CLEANED[n]
See = Callable[[Run, np.ndarray, np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class Pass:
    """One pass over source segments: its decider, the memory that it reads through, and its counters."""

    decider: Decider
    loader: BodyLoader
    buffer: ChunkBuffer
    tally: Tally
    verdicts_of: VerdictsOf | None = None  # a batch with a verdict is not read
    see: See | None = None


def clean_chunk(
    of: Pass, chunk: Chunk, rules: Rules, keep_legacy_tombstones: bool, *, backwards: bool, room: Room | None = None
) -> Iterator[CleanedRun]:
    """Clean the batches of a chunk; yield pieces in the order of the walk, last first if `backwards`. room: gives the
    memory of a piece, if not each has its own.
    """
    decided = _decide_batches(of, chunk.batches, rules)
    wanted = ~decided.drop_records & (decided.verdicts == UNKNOWN)
    of_records = RecordRules(
        rules.now_ms, rules.new_horizon_ms, rules.oldest_ms, rules.by_key, rules.tombstones_from,
        keep_legacy_tombstones, rules.keep_null_keys, rules.keeps_end, rules.compression.codec,
        rules.compression.every_batch,
    )  # fmt: skip
    for run in of.loader.runs(chunk, wanted, backwards=backwards):
        here = BatchDecisions(*(column[run.first : run.first + len(run.batches)] for column in decided))
        kept, cleaned = np.empty(len(run.spans), np.bool_), np.zeros(len(run.batches), CLEANED)
        if here.undecided.any():
            of.decider(run._replace(wanted=run.wanted & ~here.undecided), kept)
            kept[np.repeat(here.undecided, run.bodies["n_records"])] = True
        else:
            of.decider(run, kept)
        may_stay = kept if of.see is None else kept.copy()
        decide(run, kept, here, of_records, cleaned, of.tally.counters)
        if of.see is not None:
            of.see(run, may_stay, kept, cleaned)
        if (cleaned["outcome"] != DROPPED).any():
            yield _write(run, chunk.position, kept, cleaned, of.tally, rules, room)


def _decide_batches(of: Pass, batches: np.ndarray, rules: Rules) -> BatchDecisions:
    """Return the decisions about BATCH[n] before their records are read, by `batch_retention` and the rules."""
    discardable = rules.discardable(batches)
    retention, drop = batch_retention(
        batches, discardable, rules.producers, rules.first_uncleanable_offset, rules.now_ms
    )
    undecided = begin_at(batches, rules.undecided)
    retention[begin_at(batches, rules.witnesses)] = RETAIN_EMPTY
    if rules.keep_batches:
        retention[:] = RETAIN_EMPTY
    verdicts = np.zeros(len(batches), np.int8)
    if of.verdicts_of:
        verdicts = of.verdicts_of(batches, drop | undecided, rules.compression.changes_codec(batches))
    return BatchDecisions(discardable, retention, drop, undecided, verdicts)


def _write(
    run: Run, raw_position: int, kept: np.ndarray, cleaned: np.ndarray, tally: Tally, rules: Rules, room: Room | None
) -> CleanedRun:
    rebuilt = cleaned["outcome"] == REBUILT
    payload, ends = np.empty(0, np.uint8), np.zeros(len(cleaned), np.int64)
    estimated, digest = False, 0
    if rebuilt.any():
        plain, ends, digest = _encoded(run, kept, cleaned, rebuilt)
        payload, ends, estimated = _packed(run, plain, ends, cleaned, tally, rules)
    rows = np.empty(len(cleaned), OUT_BATCH)
    n, n_copied, total = describe_survivors(run.batches, cleaned, ends, rows)
    rows = rows[:n].copy()  # pieces wait in memory
    if n_copied == len(cleaned):
        return CleanedRun(rows, None, int(run.batches["position"][0]), total)
    if rules.dry_run:
        return CleanedRun(rows, None, -1, total, estimated=estimated)
    data = np.empty(total, np.uint8) if room is None else room(total)
    assemble_batches(run, raw_position, cleaned, payload, ends, data)
    return CleanedRun(rows, data, -1, total, digest=digest)


def _encoded(
    run: Run, kept: np.ndarray, cleaned: np.ndarray, rebuilt: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the bodies of the batches in `rebuilt`, uncompressed: (bytes, int64[n] end of each batch's body, digest of
    their records).
    """
    old = run.bodies["end"] - run.bodies["start"]
    room = int(old[rebuilt].sum() + _REENCODED_MORE * cleaned["n_kept"][rebuilt].sum(dtype=np.int64))
    plain = np.empty(room, np.uint8)
    rows, ends = np.empty(len(run.spans), np.int32), np.empty(len(cleaned), np.int64)
    digest = encode_bodies(run, cleaned, kept, rows, plain, ends)
    return plain, ends, int(digest)


def _packed(
    run: Run, plain: np.ndarray, ends: np.ndarray, cleaned: np.ndarray, tally: Tally, rules: Rules
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the final bodies of the rebuilt batches, from `_encoded` ones: (bytes, int64[n] end of each batch's body,
    whether the sizes are estimates).
    """
    rebuilt, levels = cleaned["outcome"] == REBUILT, rules.compression.levels
    codecs = np.where(rebuilt, cleaned["attributes"] & CODEC_MASK, 0)
    if not codecs.any():
        return plain, ends, False
    if rules.dry_run:
        lengths = np.diff(ends, prepend=0)
        old = run.bodies["end"] - run.bodies["start"]
        guessed = np.minimum((run.batches["size"] - BATCH_OVERHEAD) / np.maximum(old, 1), 1) * lengths

        def compressed_size(i: int) -> int:
            return len(compress(int(codecs[i]), plain[int(ends[i] - lengths[i]) : int(ends[i])], levels))

        lengths = np.where(codecs != 0, _by_sample(np.flatnonzero(codecs), lengths, guessed, compressed_size), lengths)
        tally.recompressed_bytes += int(lengths[codecs != 0].sum())
        return plain, np.cumsum(lengths), True
    rows, packed = np.flatnonzero(rebuilt), Scratch(1)
    borders = np.concatenate([[0], ends[rows]])
    borders[1:] = pack_bodies(codecs[rows], plain, borders, packed, 0, levels)
    tally.recompressed_bytes += int(np.diff(borders)[codecs[rows] != 0].sum())
    return packed.array, borders[np.cumsum(rebuilt)], False


def _by_sample(
    rows: np.ndarray, lengths: np.ndarray, guessed: np.ndarray, compressed_size: Callable[[int], int]
) -> np.ndarray:
    """Return the compressed sizes of batches (int64[n]; only those of `rows` are valid): compress an evenly spread
    sample, and scale `guessed` by the ratio that the sample shows.

    guessed: float64[n], sizes if the remaining records compressed as well as the whole batch did. They never do: the
    codec saw fewer similar records before each one. The difference depends on codec and records, so a sample
    measures it; the guess only scales it to batches of other sizes.
    """
    step = max(min(int(lengths[rows].sum()) // _SAMPLE_BYTES, len(rows) // _SAMPLE_BATCHES), 1)
    sample = rows[step // 2 :: step]
    found = np.array([compressed_size(int(i)) for i in sample])
    sizes: np.ndarray = np.rint(guessed * (found.sum() / max(guessed[sample].sum(), 1))).astype(np.int64)
    sizes[sample] = found
    return sizes


def clean_backwards(of: Pass, source: SegmentScan, rules: Rules, room: Room) -> Iterator[tuple[CleanedRun, Chunk]]:
    """Clean one source segment from its end; yield (piece, in memory of `room`; its chunk), last first."""
    with source.open_log() as file:
        for chunk in chunks_again(file, source.path, source.chunks[::-1], of.buffer):
            for piece in clean_chunk(of, chunk, rules, _keeps_legacy(source, rules), backwards=True, room=room):
                yield piece, chunk


def clean_forwards(of: Pass, source: SegmentScan, rules: Rules) -> Iterator[tuple[CleanedRun, np.ndarray]]:
    """Clean one source segment from its start; yield (piece, its bytes: uint8[], valid until the next; no bytes in a
    dry run if a batch changed).
    """
    memory = Scratch()

    def room(size: int) -> np.ndarray:
        memory.reserve(size)
        return memory.array[:size]

    with source.open_log() as file:
        for chunk in chunks_again(file, source.path, source.chunks, of.buffer):
            for piece in clean_chunk(of, chunk, rules, _keeps_legacy(source, rules), backwards=False, room=room):
                if piece.data is not None:
                    yield piece, piece.data
                elif piece.position >= 0:
                    start = piece.position - chunk.position
                    yield piece, chunk.raw[start : start + piece.size]
                else:
                    yield piece, np.empty(0, np.uint8)


def _keeps_legacy(source: SegmentScan, rules: Rules) -> bool:
    """Return whether a segment keeps its tombstones of magic 0 and 1. These have no delete horizon, so the rule
    compares the segment's mtime.
    """
    return source.mtime_ms > rules.legacy_horizon_ms
