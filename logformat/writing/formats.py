"""Batches of magic 2 as magic 3, and back (FORMAT.md, "Magic 3").

    converter = Converter(3)
    for chunk in reader.chunks(log):
        for converted in converter.convert(chunk): ...

No information is lost: each batch of magic 3 is read again. Its header's fields and its records in the magic 2 encoding
must equal the originals, byte for byte. Batches that magic 3 would not reproduce stay as they are, so a file may hold
both formats: magic 0 and 1; control batches, which a walk over headers must read and check whole; bodies that cannot be
read; and those with a varint longer than needed. On the way back no batch of magic 3 stays, because a broker would not
read it: one that cannot change is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.bodies import BadBatch
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END, Chunk
from lastkey.logformat.batches.header_kernels import ATTRIBUTES_OFFSET
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, BATCH_OVERHEAD, CODEC_MASK, CONTROL_MASK, IGNORE_ATTRIBUTES_MASK
from lastkey.logformat.primitives.codec import Scratch, compress, pack_bodies
from lastkey.logformat.writing import section_kernels as kernels
from lastkey.logformat.writing.encode_kernels import copy_around, sizes_v3, write_batches, write_batches_v3
from lastkey.logformat.writing.section_kernels import MEASURED

Magic = Literal[2, 3]
# Fields of a row that must be the same after a round trip
_SAME: Final = tuple(name for name in BATCH.names or () if name not in ("position", "size", "crc", "magic"))
_MOST_BYTES: Final = 2**31 - 1 - 128  # limit for a batch of magic 2


@dataclass(frozen=True)
class Converted:
    """Consecutive batches in another format."""

    data: NDArray[np.uint8]  # all batches, copied ones too
    sizes: NDArray[np.int64]  # int64[n], of each
    changed: NDArray[np.bool_]  # bool[n], which have another format now
    first: int  # row of the first one among the caller's batches


class Converter:
    """Converter to one format; for one thread."""

    def __init__(self, magic: Magic, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        """max_batch_bytes: batches of magic 2 that decompress to more stay as they are."""
        self.magic = magic
        self.max_batch_bytes = max_batch_bytes
        self._reader, self._again = (LogReader(max_batch_bytes=max_batch_bytes) for _ in range(2))

    def convert(self, chunk: Chunk) -> Iterator[Converted]:
        """Yield all batches of a chunk, checked before, in the other format where that is possible, in runs that fit
        memory.

        Raises LogFormatError for a batch of magic 3 that cannot become one of magic 2.
        """
        batches = chunk.batches
        wanted = batches["magic"] == 3 if self.magic == 2 else may_be_v3(chunk.raw, chunk.position, batches)
        for run in self._reader.runs_around_damage(chunk, wanted):
            if not isinstance(run, BadBatch):
                yield self._convert(run, chunk.position, chunk.path)
            elif self.magic == 2:
                raise run.error

    def _convert(self, run: Run, raw_position: int, path: str) -> Converted:
        which = run.wanted.copy()
        if self.magic == 2:
            replaced, sizes = to_v2(run, which, path)
        else:
            replaced, sizes = to_v3(run, which, self.max_batch_bytes)
            self._read_again(run, replaced, which, path)
        sizes = np.where(which, sizes, run.batches["size"])
        out = np.empty(int(sizes.sum()), np.uint8)
        copy_around(run, raw_position, which, replaced, sizes, out)
        return Converted(out, sizes, which, run.first)

    def _read_again(self, run: Run, data: NDArray[np.uint8], which: NDArray[np.bool_], path: str) -> None:
        """Raise LogFormatError kind "readback" unless the written batches of `which` are equal to the originals."""
        before = run.batches[which]
        rows = np.empty(len(before), BATCH)
        walk.walk_batches(data, len(data), 0, -1, NO_END, walk.CHECK_ALL, rows)
        same = np.logical_and.reduce([rows[name] == before[name] for name in _SAME])
        bodies = run.bodies[which]
        for again in self._again.runs(Chunk(0, data, rows, path=path)):
            part = slice(again.first, again.first + len(again.batches))
            kernels.bodies_equal(run, bodies[part], again, same[part])
        if not same.all():
            position = int(before["position"][same.argmin()])
            raise LogFormatError("readback", path, position, "the same records in magic 3", "others")


def may_be_v3(raw: NDArray[np.uint8], raw_position: int, batches: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return bool[n]: whether each of BATCH[n] can have magic 3, by its header. raw begins at raw_position."""
    at = batches["position"] - raw_position + ATTRIBUTES_OFFSET
    others = batches["attributes"] & (CONTROL_MASK | IGNORE_ATTRIBUTES_MASK) != 0
    return np.asarray((batches["magic"] == 2) & ~others & (raw[at] == 0))


def to_v3(run: Run, which: NDArray[np.bool_], max_batch_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the batches of `which` (bool[n]) in magic 3, one after the other, and int64[n], the size of each.

    Clears `which` for batches that are copied: those with a varint longer than necessary, and those too large for a
    reader with this limit.
    """
    batches = run.batches
    kernels.comes_back(run, which)
    measured = np.zeros(len(which), MEASURED)
    kernels.measure_sections(run, which, measured)
    plain = np.empty(int(measured["headers"].sum() + measured["payloads"].sum()), np.uint8)
    kernels.write_sections(run, which, measured, plain)
    first_sections = measured["headers"].copy()
    stored = measured["headers"] + measured["payloads"]
    codecs = batches["attributes"] & CODEC_MASK
    data = plain
    if (codecs[which] != 0).any():
        data = _compressed(plain, codecs, which, measured, first_sections, stored)
    sizes = np.where(which, stored, 0)
    sizes_v3(batches, which, first_sections, sizes)
    out = np.empty(int(sizes.sum()), np.uint8)
    write_batches_v3(batches, measured["attributes"], first_sections, sizes, data, out)
    fits = sizes <= max_batch_bytes + BATCH_OVERHEAD
    if not fits.all():
        out = out[np.repeat(fits, sizes)]
        which &= fits
    return out, sizes


def _compressed(
    plain: NDArray[np.uint8],
    codecs: NDArray[np.int16],
    which: NDArray[np.bool_],
    measured: NDArray[np.void],
    first_sections: NDArray[np.int64],
    stored: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Return the sections as stored, and enter their sizes. A first section that its codec does not make smaller stays
    plain. This is a Python loop over batches, because the codec libraries take one stream a call.
    """
    parts: list[Any] = []
    at = 0
    rows = np.flatnonzero(which)
    for i, codec, head, tail in zip(
        rows.tolist(), codecs[rows].tolist(), measured["headers"][rows].tolist(), measured["payloads"][rows].tolist(),
        strict=True,
    ):  # fmt: skip
        headers, payloads = plain[at : at + head], plain[at + head : at + head + tail]
        at += head + tail
        first: Any = headers
        if codec and head:
            packed = compress(codec, headers)
            first, first_sections[i] = (packed, len(packed)) if len(packed) < head else (headers, ~head)
        second = compress(codec, payloads) if codec and tail else payloads
        parts += (first, second)
        stored[i] = len(first) + len(second)
    return np.frombuffer(b"".join(parts), np.uint8)


def to_v2(run: Run, which: NDArray[np.bool_], path: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the batches of `which` (bool[n]), those of magic 3, in magic 2, as `to_v3` does. Raises LogFormatError for
    one with too many bytes.
    """
    rows = run.batches[which]
    bodies = (run.bodies["end"] - run.bodies["start"])[which]
    if (bodies > _MOST_BYTES).any():
        i = int((bodies > _MOST_BYTES).argmax())
        position, expected = int(rows["position"][i]), f"at most {_MOST_BYTES} bytes of records"
        raise LogFormatError("length", path, position, expected, str(int(bodies[i])))
    packed, sizes = Scratch(1), np.zeros(len(which), np.int64)
    codecs = np.where(bodies > 0, rows["attributes"] & CODEC_MASK, 0)
    borders = np.append(run.bodies["start"][which][:1], run.bodies["end"][which])  # one after the other
    ends = pack_bodies(codecs, run.scratch, borders, packed, 0)
    out = np.empty(int(ends[-1:].sum()) + BATCH_OVERHEAD * len(rows), np.uint8)
    write_batches(rows, packed.array, ends, out)
    sizes[which] = BATCH_OVERHEAD + np.diff(ends, prepend=0)
    return out, sizes
