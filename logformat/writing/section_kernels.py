"""Kernels from decoded records to the sections of magic 3, the reverse of `batches.section_kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import TIMESTAMP_TYPE_MASK
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import is_shortest, read_varint, size_of_varlong, write_varlong

# The bytes of a batch's columns, and of its sections.
MEASURED = np.dtype(
    [
        ("timestamps", "i8"),
        ("offsets", "i8"),
        ("key_lengths", "i8"),
        ("value_lengths", "i8"),
        ("header_sizes", "i8"),
        ("headers", "i8"),  # of the first section
        ("payloads", "i8"),  # of the second one
        ("attributes", "?"),  # some record has any
    ],
    align=True,
)


@inline
def _fields(buf: np.ndarray, batch: Any, body: Any, span: Any, rebuilt: bool) -> tuple[int, ...]:
    """Return what magic 3 keeps of a decoded record: its timestamp's and offset's deltas in the batch, attributes;
    length of its key, -1 for null, and place; the same of its value; bytes of its headers with their count, 0 for none.
    """
    end = span.end
    attributes: int = 0
    timestamp: int = span.timestamp_delta
    if not rebuilt:
        _, at = read_varint(buf, span.start, end)
        attributes = buf[at]
    elif batch.attributes & TIMESTAMP_TYPE_MASK:
        timestamp = batch.max_timestamp - batch.base_timestamp
    else:
        timestamp += body.base_timestamp - batch.base_timestamp
    offset: int = body.base_offset + span.offset_delta - batch.base_offset
    key_length, key = read_varint(buf, span.rest, end)
    value_length, value = read_varint(buf, key + max(key_length, 0), end)
    header_size: int = end - value - max(value_length, 0)
    if header_size == 1 and buf[end - 1] == 0:
        header_size = 0
    return timestamp, offset, attributes, max(key_length, -1), key, max(value_length, -1), value, header_size


@kernel
def comes_back(
    raw: np.ndarray,
    scratch: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    rebuilt: np.ndarray,
    which: np.ndarray,
) -> None:
    """Take the batches out of `which` (bool[n]) that have a number in a longer form than needed: magic 3 keeps the
    number, not its form. The other arguments are those of `measure_sections`.
    """
    for i in range(bodies.shape[0]):
        if which[i]:
            if bodies[i].in_scratch:
                which[i] = _comes_back(scratch, bodies[i], spans, kept, rebuilt[i])
            else:
                which[i] = _comes_back(raw, bodies[i], spans, kept, rebuilt[i])


@inline
def _comes_back(buf: np.ndarray, body: Any, spans: np.ndarray, kept: np.ndarray, rebuilt: bool) -> bool:
    for row in range(body.first_span, body.first_span + body.n_records):
        if not kept[row]:
            continue
        span = spans[row]
        end = span.end
        if not rebuilt:
            length, at = read_varint(buf, span.start, end)
            if is_shortest(buf, span.start, length) < 0:
                return False
            at = is_shortest(buf, at + 1, span.timestamp_delta)
            if at < 0 or is_shortest(buf, at, span.offset_delta) < 0:
                return False
        key_length, at = read_varint(buf, span.rest, end)
        if key_length < -1 or is_shortest(buf, span.rest, key_length) < 0:
            return False
        at += max(key_length, 0)
        value_length, _ = read_varint(buf, at, end)
        if value_length < -1 or is_shortest(buf, at, value_length) < 0:
            return False
    return True


@kernel
def measure_sections(
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    rebuilt: np.ndarray,
    which: np.ndarray,
    out: np.ndarray,
) -> None:
    """Measure the sections of the batches in `which` (bool[n]): out MEASURED[n], written; zeros for the others.

    raw, scratch: uint8[], where the records lie; batches: BATCH[n], with the fields of new headers; bodies: BODY[n];
    spans: SPAN[]; kept: bool[len(spans)], the records to write; rebuilt: bool[n], batches whose records get times and
    offsets by that header, and no attributes.
    """
    for i in range(bodies.shape[0]):
        if not which[i]:
            continue
        if bodies[i].in_scratch:
            _measure(scratch, batches[i], bodies[i], spans, kept, rebuilt[i], out[i])
        else:
            _measure(raw, batches[i], bodies[i], spans, kept, rebuilt[i], out[i])


@inline
def _measure(
    buf: np.ndarray, batch: Any, body: Any, spans: np.ndarray, kept: np.ndarray, rebuilt: bool, out: Any
) -> None:
    before = 0
    last = -1
    timestamps = 0
    offsets = 0
    key_lengths = 0
    value_lengths = 0
    header_sizes = 0
    keys = 0
    payloads = 0
    any_attributes = 0
    for row in range(body.first_span, body.first_span + body.n_records):
        if not kept[row]:
            continue
        timestamp, offset, attributes, key_length, _, value_length, _, header_size = _fields(
            buf, batch, body, spans[row], rebuilt
        )
        any_attributes |= attributes
        timestamps += size_of_varlong(timestamp - before)
        offsets += size_of_varlong(offset - last - 1)
        key_lengths += size_of_varlong(key_length)
        value_lengths += size_of_varlong(value_length)
        header_sizes += size_of_varlong(header_size)
        keys += max(key_length, 0)
        payloads += max(value_length, 0) + header_size
        before = timestamp
        last = offset
    out.timestamps = timestamps
    out.offsets = offsets
    out.key_lengths = key_lengths
    out.value_lengths = value_lengths
    out.header_sizes = header_sizes
    out.attributes = any_attributes != 0
    out.headers = timestamps + offsets + key_lengths + value_lengths + header_sizes + keys
    if any_attributes != 0:
        out.headers += batch.records_count
    out.payloads = payloads


@kernel
def write_sections(
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    kept: np.ndarray,
    rebuilt: np.ndarray,
    which: np.ndarray,
    measured: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the sections of the batches in `which`, both of one behind those of the other.

    measured: MEASURED[n] of `measure_sections`; out: uint8[all their sections], written; the others as there.
    """
    at = 0
    for i in range(bodies.shape[0]):
        if not which[i]:
            continue
        if bodies[i].in_scratch:
            at = _write(scratch, batches[i], bodies[i], spans, kept, rebuilt[i], measured[i], out, at)
        else:
            at = _write(raw, batches[i], bodies[i], spans, kept, rebuilt[i], measured[i], out, at)


@inline
def _write(
    buf: np.ndarray,
    batch: Any,
    body: Any,
    spans: np.ndarray,
    kept: np.ndarray,
    rebuilt: bool,
    sizes: Any,
    out: np.ndarray,
    at: int,
) -> int:
    attribute = at
    timestamps = at + batch.records_count if sizes.attributes else at
    offsets = timestamps + sizes.timestamps
    key_lengths = offsets + sizes.offsets
    value_lengths = key_lengths + sizes.key_lengths
    header_sizes = value_lengths + sizes.value_lengths
    keys = header_sizes + sizes.header_sizes
    payloads = at + sizes.headers
    before = 0
    last = -1
    for row in range(body.first_span, body.first_span + body.n_records):
        if not kept[row]:
            continue
        timestamp, offset, attributes, key_length, key, value_length, value, header_size = _fields(
            buf, batch, body, spans[row], rebuilt
        )
        if sizes.attributes:
            out[attribute] = attributes
            attribute += 1
        timestamps = write_varlong(out, timestamps, timestamp - before)
        offsets = write_varlong(out, offsets, offset - last - 1)
        key_lengths = write_varlong(out, key_lengths, key_length)
        value_lengths = write_varlong(out, value_lengths, value_length)
        header_sizes = write_varlong(out, header_sizes, header_size)
        if key_length > 0:
            copy_bytes(out, keys, buf, key, key_length)
            keys += key_length
        stored = max(value_length, 0) + header_size
        if stored > 0:  # the headers stand right behind the value
            copy_bytes(out, payloads, buf, value, stored)
            payloads += stored
        before = timestamp
        last = offset
    end: int = at + sizes.headers + sizes.payloads
    return end


@kernel
def bodies_equal(
    raw_a: np.ndarray,
    scratch_a: np.ndarray,
    bodies_a: np.ndarray,
    raw_b: np.ndarray,
    scratch_b: np.ndarray,
    bodies_b: np.ndarray,
    equal: np.ndarray,
) -> None:
    """Compare the records of BODY[n] with those of BODY[n], byte for byte: equal bool[n], written only with False."""
    for i in range(bodies_a.shape[0]):
        if bodies_a[i].in_scratch:
            equal[i] = equal[i] and _equal_to(scratch_a, bodies_a[i], raw_b, scratch_b, bodies_b[i])
        else:
            equal[i] = equal[i] and _equal_to(raw_a, bodies_a[i], raw_b, scratch_b, bodies_b[i])


@inline
def _equal_to(buf: np.ndarray, body: Any, raw: np.ndarray, scratch: np.ndarray, other: Any) -> bool:
    if other.in_scratch:
        return _equal(buf, body, scratch, other)
    return _equal(buf, body, raw, other)


@inline
def _equal(a: np.ndarray, body_a: Any, b: np.ndarray, body_b: Any) -> bool:
    n = body_a.end - body_a.start
    if n != body_b.end - body_b.start:
        return False
    difference = np.uint8(0)
    for j in range(n):
        difference |= a[body_a.start + j] ^ b[body_b.start + j]
    return bool(difference == 0)
