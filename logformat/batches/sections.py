"""Bodies of magic 3 as records in the magic 2 encoding, so that one decoder serves all (FORMAT.md, "Magic 3").

`locate` finds the stored sections of a run's batches, `unpack` decompresses those of one batch, and `write_records`
writes the records of all. If only keys are wanted, the payloads are not touched: values are empty, or null.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches import section_kernels as kernels
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.section_kernels import SECTIONS
from lastkey.logformat.errors import batch_error
from lastkey.logformat.primitives.codec import BatchPlace, Scratch, decompress_into

# Sections of a batch: are headers and payloads compressed? Start and end of the headers, and of the payloads.
Places: TypeAlias = tuple[bool, bool, int, int, int, int]
_PLACES: Final = (
    "headers_packed", "payloads_packed", "headers_start", "headers_end", "payloads_start", "payloads_end",
)  # fmt: skip

# status -> kind, expected, found
_PROBLEMS: Final = {
    kernels.BAD_VARINT: ("varint", "varints of at most 5 (varlong: 10) bytes in the headers section", "one too long"),
    kernels.BAD_RECORD: ("record", "fields that fit the sections, and offsets that rise", "a field that does not"),
    kernels.BAD_COUNT: ("count", "records that fill the sections", "more or fewer bytes"),
}


class Unpacked(NamedTuple):
    """Sections of batches; `unpack` has decompressed the compressed ones."""

    scratch: Scratch  # holds these below byte `at`
    at: int
    places: NDArray[np.void]  # SECTIONS[m]


def locate(chunk: Chunk, rows: NDArray[np.int64], *, keys_only: bool) -> NDArray[np.void]:
    """Return SECTIONS[m] of a chunk's batches of magic 3, which are those in `rows`: int64[m]."""
    sections = np.zeros(len(rows), SECTIONS)
    kernels.locate_sections(chunk.raw, chunk.position, chunk.batches, rows, sections)
    if keys_only:
        sections["payloads_start"], sections["payloads_packed"] = -1, False
    return sections


def stored(sections: NDArray[np.void]) -> list[Places]:
    """Return the places of SECTIONS[m], for `unpack`."""
    return list(zip(*(sections[name].tolist() for name in _PLACES), strict=True))


def set_places(sections: NDArray[np.void], places: list[Places]) -> None:
    """Enter the places, which `unpack` has changed, in SECTIONS[m]."""
    if places:
        for name, column in zip(_PLACES[2:], zip(*(place[2:] for place in places), strict=True), strict=True):
            sections[name] = column


def unpack(
    view: memoryview, codec: int, places: Places, out: Scratch, at: int, limit: int, batch: BatchPlace
) -> tuple[int, Places]:
    """Decompress the packed sections of a batch into `out` from byte `at` on; return the position after them, and
    their new places.

    view: the bytes that contain the stored sections; limit: most bytes of both. Raises the errors of decompress_into.
    """
    headers_packed, payloads_packed, start, end, payloads_start, payloads_end = places
    if headers_packed:
        n = decompress_into(codec, view[start:end], out, at, limit, batch)
        start, end, at, limit = at, at + n, at + n, limit - n
    if payloads_packed:
        n = decompress_into(codec, view[payloads_start:payloads_end], out, at, limit, batch)
        payloads_start, payloads_end, at = at, at + n, at + n
    return at, (headers_packed, payloads_packed, start, end, payloads_start, payloads_end)


def write_records(chunk: Chunk, unpacked: Unpacked, out: Scratch, at: int, limit: int) -> NDArray[np.int64]:
    """Write the records of m batches of magic 3, all of `chunk`, into `out` from byte `at` on; return int64[m], where
    each body ends.

    limit: most bytes of a body. Raises LogFormatError of the kinds in _PROBLEMS, and "bomb".
    """
    raw, (scratch, held, sections) = chunk.raw, unpacked
    headers, payloads = (sections[f"{name}_end"] - sections[f"{name}_start"] for name in ("headers", "payloads"))
    copied = np.where(sections["payloads_packed"] & ~sections["headers_packed"], headers, 0)
    there = sections["payloads_start"] >= 0
    copied += np.where(sections["headers_packed"] & ~sections["payloads_packed"] & there, payloads, 0)
    scratch.reserve(held + int(copied.sum()))
    kernels.copy_plain(raw, sections, scratch.array, held)
    status, row = kernels.measure_bodies(raw, scratch.array, sections, limit)
    if row >= 0:
        kind, expected, found = _PROBLEMS.get(
            status, ("bomb", f"at most {limit} bytes of records (max.decompressed.batch.bytes)", "more")
        )
        raise batch_error(kind, chunk.path, chunk.batches[row], expected, found)
    out.reserve(at + int(sections["body_bytes"].sum()))
    ends = np.empty(len(sections), np.int64)
    kernels.write_bodies(raw, scratch.array, sections, out.array, at, ends)
    return ends
