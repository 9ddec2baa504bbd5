"""Kernels from the sections of magic 3 batches to records in the magic 2 encoding (FORMAT.md, "Magic 3").

A body of magic 3 is two sections. The headers section has a column for each field of the records' headers, one after
the other, and then their keys; the payloads section has their values and headers. `sections` brings the sections of all
batches of a run into one array.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.header_kernels import ATTRIBUTES_OFFSET, read_trail
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CODEC_MASK, IGNORE_ATTRIBUTES_MASK, V3_FIXED
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import read_varint, read_varlong, size_of_varlong, write_varlong

# The place of a batch's sections, and of the columns in the first one.
SECTIONS = np.dtype(
    [
        ("headers_start", "i8"),
        ("headers_end", "i8"),
        ("payloads_start", "i8"),  # -1: not there, only keys are wanted
        ("payloads_end", "i8"),
        ("timestamps", "i8"),  # columns: first byte of each, written by `measure_bodies`
        ("offsets", "i8"),
        ("key_lengths", "i8"),
        ("value_lengths", "i8"),
        ("header_sizes", "i8"),
        ("keys", "i8"),
        ("body_bytes", "i8"),  # size of the records in the magic 2 encoding; written by `measure_bodies`
        ("n_records", "i4"),
        ("headers_packed", "?"),  # compressed
        ("payloads_packed", "?"),
        ("attributes", "?"),  # the records have some
    ],
    align=True,
)

# status of measure_bodies
OK: Final = 0
BAD_VARINT: Final = 1
BAD_RECORD: Final = 2
BAD_COUNT: Final = 3


@kernel
def locate_sections(
    raw: np.ndarray, raw_position: int, batches: np.ndarray, rows: np.ndarray, sections: np.ndarray
) -> None:
    """Find the stored sections of batches of magic 3 whose headers have been checked.

    raw: uint8, bytes of the file from raw_position on; batches: BATCH[n]; rows: int64[m], those to look at; sections:
    SECTIONS[m], written.
    """
    for j in range(rows.shape[0]):
        batch = batches[rows[j]]
        section = sections[j]
        start = batch.position - raw_position
        end = start + batch.size
        _, _, _, first_section, after = read_trail(raw, start + V3_FIXED, end)
        section.headers_start = after
        section.headers_end = after + (first_section if first_section >= 0 else ~first_section)
        section.payloads_start = section.headers_end
        section.payloads_end = end
        section.n_records = batch.records_count
        packed = batch.attributes & CODEC_MASK != 0
        section.headers_packed = packed and first_section > 0
        section.payloads_packed = packed and section.payloads_end > section.payloads_start
        section.attributes = raw[start + ATTRIBUTES_OFFSET + 1] & IGNORE_ATTRIBUTES_MASK == 0


@inline
def _in_file(section: Any) -> bool:
    """Return whether both sections are uncompressed and can be read in place."""
    return not section.headers_packed and not section.payloads_packed


@kernel
def copy_plain(raw: np.ndarray, sections: np.ndarray, out: np.ndarray, at: int) -> int:
    """Copy the plain sections of batches that have a compressed one too to out[at:] (uint8), and enter their new places
    in SECTIONS[m]. Returns the position after them.
    """
    for j in range(sections.shape[0]):
        section = sections[j]
        if _in_file(section):
            continue
        if not section.headers_packed:
            size = section.headers_end - section.headers_start
            copy_bytes(out, at, raw, section.headers_start, size)
            section.headers_start = at
            at += size
            section.headers_end = at
        if not section.payloads_packed and section.payloads_start >= 0:
            size = section.payloads_end - section.payloads_start
            copy_bytes(out, at, raw, section.payloads_start, size)
            section.payloads_start = at
            at += size
            section.payloads_end = at
    return at


@kernel
def measure_bodies(raw: np.ndarray, buf: np.ndarray, sections: np.ndarray, limit: int) -> tuple[int, int]:
    """Find the columns of SECTIONS[m], check that all fields fit, and measure the bodies in the magic 2 encoding.

    raw, buf: uint8[], which contain the sections: raw those of batches that have no compressed one. Returns (status,
    row) of the first bad body; (OK, row): of one above `limit` bytes; (OK, -1).
    """
    for j in range(sections.shape[0]):
        section = sections[j]
        status = _measure(raw, section) if _in_file(section) else _measure(buf, section)
        if status != OK or section.body_bytes > limit:
            return status, j
    return OK, -1


@inline
def _skip(buf: np.ndarray, at: int, end: int, n: int) -> int:
    """Return the position after n varints, or `end` + 1."""
    for _ in range(n):
        while at < end and buf[at] >= 0x80:
            at += 1
        at += 1
        if at > end:
            return end + 1
    return at


@inline
def _measure(buf: np.ndarray, section: Any) -> int:
    n: int = section.n_records
    end = section.headers_end
    at = section.headers_start
    if at == end and n == 0:
        section.body_bytes = 0
        return OK if section.payloads_start < 0 or section.payloads_start == section.payloads_end else BAD_COUNT
    if n > end - at:
        return BAD_COUNT
    timestamps = at + n if section.attributes else at
    offsets = _skip(buf, timestamps, end, n)
    key_lengths = _skip(buf, offsets, end, n)
    value_lengths = _skip(buf, key_lengths, end, n)
    header_sizes = _skip(buf, value_lengths, end, n)
    keys = _skip(buf, header_sizes, end, n)
    if keys > end:
        return BAD_COUNT
    section.timestamps = timestamps
    section.offsets = offsets
    section.key_lengths = key_lengths
    section.value_lengths = value_lengths
    section.header_sizes = header_sizes
    section.keys = keys
    only_keys = section.payloads_start < 0
    room = section.payloads_end - section.payloads_start
    total = timestamp = 0
    offset = -1
    for _ in range(n):
        step, timestamps = read_varlong(buf, timestamps, end)
        gap, offsets = read_varint(buf, offsets, end)
        key_length, key_lengths = read_varint(buf, key_lengths, end)
        value_length, value_lengths = read_varint(buf, value_lengths, end)
        header_size, header_sizes = read_varint(buf, header_sizes, end)
        if timestamps < 0 or offsets < 0 or key_lengths < 0 or value_lengths < 0 or header_sizes < 0:
            return BAD_VARINT
        if key_length < -1 or value_length < -1 or header_size < 0:
            return BAD_RECORD
        timestamp += step
        offset += gap + 1
        if gap < 0 or offset > 0x7FFFFFFF:
            return BAD_RECORD
        length = 1 + size_of_varlong(timestamp) + size_of_varlong(offset) + size_of_varlong(key_length)
        if key_length > 0:
            keys += key_length
            length += key_length
            if keys > end:
                return BAD_RECORD
        stored = max(value_length, 0) + header_size
        if only_keys:
            length += 2  # an empty value or none, no headers
        else:
            room -= stored
            if room < 0:
                return BAD_RECORD
            length += size_of_varlong(value_length) + stored + (1 if header_size == 0 else 0)
        total += size_of_varlong(length) + length
    if keys != end or (room != 0 and not only_keys):
        return BAD_COUNT
    section.body_bytes = total
    return OK


@kernel
def write_bodies(
    raw: np.ndarray, buf: np.ndarray, sections: np.ndarray, out: np.ndarray, at: int, ends: np.ndarray
) -> None:
    """Write the records of SECTIONS[m] in the magic 2 encoding, one body after the other from out[at] on.

    raw, buf, sections: of `measure_bodies`, all OK; ends: int64[m], written: end of each body. Without payloads, values
    are empty or null, and there are no headers.
    """
    for j in range(sections.shape[0]):
        section = sections[j]
        at = _write(raw, section, out, at) if _in_file(section) else _write(buf, section, out, at)
        ends[j] = at


@inline
def _write(buf: np.ndarray, section: Any, out: np.ndarray, at: int) -> int:
    end = section.headers_end
    attributes = section.headers_start
    timestamps = section.timestamps
    offsets = section.offsets
    key_lengths = section.key_lengths
    value_lengths = section.value_lengths
    header_sizes = section.header_sizes
    key = section.keys
    payload = section.payloads_start
    only_keys = payload < 0
    timestamp = 0
    offset = -1
    for _ in range(section.n_records):
        step, timestamps = read_varlong(buf, timestamps, end)
        gap, offsets = read_varint(buf, offsets, end)
        key_length, key_lengths = read_varint(buf, key_lengths, end)
        value_length, value_lengths = read_varint(buf, value_lengths, end)
        header_size, header_sizes = read_varint(buf, header_sizes, end)
        timestamp += step
        offset += gap + 1
        if only_keys:
            value_length = min(value_length, 0)
            header_size = 0
        stored = max(value_length, 0) + header_size
        length = 1 + size_of_varlong(timestamp) + size_of_varlong(offset) + size_of_varlong(key_length)
        length += max(key_length, 0) + size_of_varlong(value_length) + stored + (1 if header_size == 0 else 0)
        at = write_varlong(out, at, length)
        out[at] = 0
        if section.attributes:
            out[at] = buf[attributes]
            attributes += 1
        at = write_varlong(out, at + 1, timestamp)
        at = write_varlong(out, at, offset)
        at = write_varlong(out, at, key_length)
        if key_length > 0:
            copy_bytes(out, at, buf, key, key_length)
            key += key_length
            at += key_length
        at = write_varlong(out, at, value_length)
        if stored > 0:  # value, header count and headers are stored as in magic 2
            copy_bytes(out, at, buf, payload, stored)
            payload += stored
            at += stored
        if header_size == 0:
            out[at] = 0
            at += 1
    return at
