"""Batches in, surviving batches out: the step that both ways of finding the last offsets share.

For a run of batches: which may keep records (`cleaner.batch_retention`), which records are the last of their key (told
by the caller), the decision (`decide_kernels.decide`), and the new bytes. Nothing here knows of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import Chunk
from logformat.layout import BATCH_OVERHEAD, CODEC_MASK
from logformat.primitives.codec import compress
from udfs.compact.block_kernels import UNKNOWN
from udfs.compact.cleaner import Rules, batch_retention
from udfs.compact.decide_kernels import N_COUNTERS, decide
from udfs.compact.rebuild_kernels import (
    CLEANED,
    COPIED,
    DROPPED,
    EMPTIED,
    REBUILT,
    assemble_batches,
    digest_records,
    encode_bodies,
)

_REENCODED_MORE = 20  # bytes that new varints of a record may need beyond the old ones

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
        ("rebuilt", "?"),
    ],
    align=True,
)


@dataclass(frozen=True)
class Piece:
    """Surviving batches of one run: their bytes, or where those lie in the source if all were copied."""

    rows: np.ndarray  # OUT_BATCH[m]
    data: np.ndarray | None  # uint8; None: the bytes [position, position + size) of the source, unchanged
    position: int
    size: int
    digest: int = 0  # of the records of the rebuilt batches (`rebuild_kernels.digest_records`)
    estimated: bool = False  # the size of recompressed batches is an estimate (dry run)


@dataclass
class Tally:
    """Counters of `decide_kernels`, and bytes that were recompressed."""

    counters: np.ndarray = field(default_factory=lambda: np.zeros(N_COUNTERS, np.int64))
    recompressed_bytes: int = 0


MarkLast = Callable[[Run, np.ndarray], None]  # fills bool[len(run.spans)]
# (BATCH[n] of a chunk, bool[n] whose records are dropped anyway) -> int8[n], what is known of them (`block_kernels`)
FatesOf = Callable[[np.ndarray, np.ndarray], np.ndarray]
# told of a run what was decided: kept bool[len(run.spans)], CLEANED[n]
See = Callable[[Run, np.ndarray, np.ndarray], None]


def clean_chunk(
    chunk: Chunk,
    path: str,
    loader: BodyLoader,
    rules: Rules,
    keep_legacy_tombstones: bool,
    mark_last: MarkLast,
    tally: Tally,
    *,
    backwards: bool,
    see: See | None = None,
    fates_of: FatesOf | None = None,
) -> Iterator[Piece]:
    """Clean the batches of a chunk; pieces come in the order of the walk, last first where `backwards`. What `fates_of`
    knows of a batch stands for its body, which is not read then.
    """
    batches = chunk.batches
    discardable = rules.discardable(batches)
    retention, drop = batch_retention(
        batches, discardable, rules.producers, rules.first_uncleanable_offset, rules.now_ms
    )
    fates = fates_of(batches, drop) if fates_of is not None else np.zeros(len(batches), np.int8)
    wanted = ~drop & (fates == UNKNOWN)
    for run in loader.runs(chunk.raw, chunk.position, batches, wanted, path, backwards=backwards, before=chunk.before):
        part = slice(run.first, run.first + len(run.batches))
        is_last = np.empty(len(run.spans), np.bool_)
        mark_last(run, is_last)
        kept = np.empty(len(run.spans), np.bool_)
        cleaned = np.zeros(len(run.batches), CLEANED)
        decide(
            run.batches,
            run.bodies,
            run.spans,
            is_last,
            retention[part],
            drop[part],
            discardable[part],
            fates[part],
            rules.now_ms,
            rules.new_horizon_ms,
            rules.oldest_ms,
            rules.compacts,
            keep_legacy_tombstones,
            rules.keep_null_keys,
            rules.keeps_end,
            kept,
            cleaned,
            tally.counters,
        )
        if see is not None:
            see(run, kept, cleaned)
        if (cleaned["outcome"] != DROPPED).any():
            yield _write(run, chunk.position, kept, cleaned, tally, rules.dry_run)


def _write(run: Run, raw_position: int, kept: np.ndarray, cleaned: np.ndarray, tally: Tally, dry_run: bool) -> Piece:
    outcome = cleaned["outcome"]
    sizes = np.where(outcome == COPIED, run.batches["size"], np.where(outcome == DROPPED, 0, BATCH_OVERHEAD))
    rebuilt = outcome == REBUILT
    payload, ends = np.empty(0, np.uint8), np.zeros(len(cleaned), np.int64)
    estimated = False
    if rebuilt.any():
        payload, ends, estimated = _payload(run, kept, cleaned, tally, dry_run)
        sizes = sizes + np.where(rebuilt, np.diff(ends, prepend=0), 0)
    stays = outcome != DROPPED
    rows = np.empty(int(stays.sum()), OUT_BATCH)
    rows["size"] = sizes[stays]
    for name in ("base_offset", "last_offset", "max_timestamp", "min_timestamp", "tombstones"):
        rows[name] = cleaned[name][stays]
    rows["n_records"] = cleaned["n_kept"][stays]
    rows["rebuilt"] = rebuilt[stays]
    rows["codec"] = np.where(outcome == EMPTIED, 0, run.batches["attributes"] & CODEC_MASK)[stays]
    total = int(sizes.sum())
    if (outcome == COPIED).all():
        return Piece(rows, None, int(run.batches["position"][0]), total)
    if dry_run:
        return Piece(rows, None, -1, total, estimated=estimated)
    data = np.empty(total, np.uint8)
    assemble_batches(run.raw, raw_position, run.batches, cleaned, payload, ends, data)
    digest = digest_records(run.raw, run.scratch, run.batches, run.bodies, run.spans, kept, rebuilt)
    return Piece(rows, data, -1, total, digest=int(digest))


def _payload(
    run: Run, kept: np.ndarray, cleaned: np.ndarray, tally: Tally, dry_run: bool
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Final bodies of the rebuilt batches: (bytes, end of each, whether the sizes are estimates)."""
    rebuilt = cleaned["outcome"] == REBUILT
    old = run.bodies["end"] - run.bodies["start"]
    room = int(old[rebuilt].sum() + _REENCODED_MORE * cleaned["n_kept"][rebuilt].sum(dtype=np.int64))
    plain = np.empty(room, np.uint8)
    ends = np.empty(len(cleaned), np.int64)
    encode_bodies(run.raw, run.scratch, run.batches, run.bodies, cleaned, run.spans, kept, plain, ends)
    codecs = np.where(rebuilt, run.batches["attributes"] & CODEC_MASK, 0)
    if not codecs.any():
        return plain, ends, False
    lengths = np.diff(ends, prepend=0)
    if dry_run:
        share = (run.batches["size"] - BATCH_OVERHEAD) / np.maximum(old, 1)
        lengths = np.where(codecs != 0, np.maximum((lengths * np.minimum(share, 1)).astype(np.int64), 1), lengths)
        return plain, np.cumsum(lengths), True
    parts: list[bytes | memoryview] = []
    new_ends = np.zeros(len(cleaned), np.int64)
    end = 0
    for i in np.flatnonzero(rebuilt):
        body = plain[int(ends[i] - lengths[i]) : int(ends[i])]
        part = body.data if codecs[i] == 0 else compress(int(codecs[i]), body)
        parts.append(part)
        end += len(part)
        new_ends[i] = end
        if codecs[i]:
            tally.recompressed_bytes += len(part)
    np.maximum.accumulate(new_ends, out=new_ends)
    return np.frombuffer(b"".join(parts), np.uint8), new_ends, False
