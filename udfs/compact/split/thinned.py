"""Thinned chunks: the walk of a split keeps what leaves it, and the rewrite neither reads nor decompresses it again.

The walk's file then has the headers of the chunk's batches, and the records that leave, uncompressed. It has them where
these are at most half of the decompressed records and no more than the chunk's bytes, and the rewrite can ask for
nothing else of the chunk: its batches have magic 2, each loses a record, so that none is copied as it is, and no record
lacks a key or is undecided. Any other chunk is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.bodies import Run
from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, read_exactly
from lastkey.logformat.batches.span_kernels import BODY
from lastkey.logformat.layout import BATCH, CONTROL_MASK
from lastkey.logformat.primitives.codec import Scratch
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.read_ahead import will_read
from lastkey.udfs.compact.cleaner import Rules, begin_at
from lastkey.udfs.compact.scan.read_again import chunks_again
from lastkey.udfs.compact.scan.scan_segment import ScannedChunk
from lastkey.udfs.compact.split.block_kernels import thin_bodies
from lastkey.udfs.compact.split.key_files import KeyFile, Slice, check

_HEADS: Final = BATCH.itemsize + BODY.itemsize  # bytes of a batch beside its records


@dataclass(frozen=True)
class ThinnedRun:
    """Consecutive batches in a walk's file: their records, BATCH[n] and BODY[n], whose places are within the records.

    The checksum is that of the records where they were copied from.
    """

    n_batches: int
    data: Slice


class Thinner:
    """Writer of what a walk keeps of each chunk."""

    def __init__(self, rules: Rules, key_file: KeyFile) -> None:
        self._key_file, self._possible = key_file, not rules.dry_run
        self._undecided = rules.undecided
        self._keeps, self._room = False, 0
        self._kept: list[tuple[np.ndarray, np.ndarray, int]] = []  # records, heads, checksum

    def begin(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        batches = chunk.batches
        others = (batches["magic"] != 2) | (batches["attributes"] & CONTROL_MASK != 0)
        others |= begin_at(batches, self._undecided)
        self._kept.clear()
        self._room = len(chunk.raw) - _HEADS * len(batches)
        self._keeps = self._possible and self._room >= 0 and not others.any()

    def add(self, run: Run, leaves: np.ndarray) -> None:
        """Keep the records of a run that leave: bool[len(run.spans)], in the order of the walk. The last run of a chunk
        comes first.
        """
        if not self._keeps:
            return
        full = int((run.bodies["end"] - run.bodies["start"])[run.wanted].sum())
        records, bodies = np.empty(min(self._room, full // 2), np.uint8), np.zeros(len(run.bodies), BODY)
        size, checksum = thin_bodies(run.raw, run.scratch, run.bodies, run.wanted, run.spans, leaves, records, bodies)
        self._keeps = size >= 0
        if self._keeps:
            self._room -= size
            heads = np.concatenate([run.batches.view(np.uint8), bodies.view(np.uint8)])
            self._kept.append((records[:size], heads, crc32c_extend(checksum, heads)))

    def end(self) -> tuple[ThinnedRun, ...]:
        """Write what is kept of the chunk; return it in the order of the log. Empty: the chunk is to be read again."""
        return tuple(self._write(*kept) for kept in reversed(self._kept)) if self._keeps else ()

    def _write(self, records: np.ndarray, heads: np.ndarray, checksum: int) -> ThinnedRun:
        start = self._key_file.size
        self._key_file.append(records)
        self._key_file.append(heads)
        data = Slice(self._key_file.path, start, self._key_file.size - start, checksum)
        return ThinnedRun(len(heads) // _HEADS, data)


def chunks_or_thinned(
    log: Any,
    path: str,
    chunks: Sequence[ScannedChunk],
    buffer: ChunkBuffer,
    walked: Any,
    thinned: Sequence[tuple[ThinnedRun, ...]],
) -> Iterator[Chunk]:
    """Yield scanned chunks in the order of the log: what their walk has kept of them, or as `chunks_again` does.

    walked: the walk's file, open; thinned: of each chunk. Raises LogFormatError kind "readback" if kept bytes are not
    the written ones.
    """
    again = chunks_again(log, path, [one for one, runs in zip(chunks, thinned, strict=True) if not runs], buffer)
    memory, parts = Scratch(), [run.data for runs in thinned for run in runs]
    done = 0
    for scanned, runs in zip(chunks, thinned, strict=True):
        if not runs:
            yield next(again)
            continue
        memory.reserve(sum(run.data.size for run in runs))
        rows, bodies, at = [], [], 0
        for run in runs:
            raw = memory.array[at : at + run.data.size]
            read_exactly(walked, run.data.path, run.data.position, raw)
            done += 1
            will_read(walked, ((parts[k].position, parts[k].size) for k in range(done, len(parts))))
            check(run.data, crc32c_extend(0, raw))
            of_bodies = len(raw) - run.n_batches * BODY.itemsize
            rows.append(raw[of_bodies - run.n_batches * BATCH.itemsize : of_bodies].view(BATCH))
            bodies.append(raw[of_bodies:].copy().view(BODY))
            for place in ("start", "end"):
                bodies[-1][place] += at
            at += len(raw)
        yield Chunk(scanned.position, memory.array[:at], np.concatenate(rows), -1, np.concatenate(bodies))
