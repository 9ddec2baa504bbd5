"""Kernels from decoded records to the sections of magic 3, the reverse of `batches.section_kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
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
        ("headers", "i8"),  # size of the first section
        ("payloads", "i8"),  # size of the second section
        ("attributes", "?"),  # some record has any
    ],
    align=True,
)


@inline
def _fields(buf: np.ndarray, span: Any) -> tuple[int, ...]:
    """Return the fields of a decoded record that magic 3 stores beside its deltas.

    Attributes; length of its key, -1 for null, and its position; the same of its value; bytes of its headers with their
    count, 0 for none.
    """
    end = span.end
    _, at = read_varint(buf, span.start, end)
    attributes: int = buf[at]
    key_length, key = read_varint(buf, span.rest, end)
    value_length, value = read_varint(buf, key + max(key_length, 0), end)
    header_size: int = end - value - max(value_length, 0)
    if header_size == 1 and buf[end - 1] == 0:
        header_size = 0
    return attributes, max(key_length, -1), key, max(value_length, -1), value, header_size


@kernel
def comes_back(run: Run, which: np.ndarray) -> None:
    """Take the batches out of `which` (bool[n]) that have a number in a longer form than needed: magic 3 keeps the
    number, not its form.
    """
    bodies = run.bodies
    for i in range(bodies.shape[0]):
        if which[i]:
            if bodies[i].in_scratch:
                which[i] = _comes_back(run.scratch, bodies[i], run.spans)
            else:
                which[i] = _comes_back(run.raw, bodies[i], run.spans)


@inline
def _comes_back(buf: np.ndarray, body: Any, spans: np.ndarray) -> bool:
    for row in range(body.first_span, body.first_span + body.n_records):
        span = spans[row]
        end = span.end
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
def measure_sections(run: Run, which: np.ndarray, out: np.ndarray) -> None:
    """Measure the sections of the batches in `which` (bool[n]): out MEASURED[n], written; zeros for the others."""
    bodies = run.bodies
    for i in range(bodies.shape[0]):
        if not which[i]:
            continue
        if bodies[i].in_scratch:
            _measure(run.scratch, bodies[i], run.spans, out[i])
        else:
            _measure(run.raw, bodies[i], run.spans, out[i])


@inline
def _measure(buf: np.ndarray, body: Any, spans: np.ndarray, out: Any) -> None:
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
        timestamp: int = spans[row].timestamp_delta
        offset: int = spans[row].offset_delta
        attributes, key_length, _, value_length, _, header_size = _fields(buf, spans[row])
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
        out.headers += body.n_records
    out.payloads = payloads


@kernel
def write_sections(run: Run, which: np.ndarray, measured: np.ndarray, out: np.ndarray) -> None:
    """Write the sections of the batches in `which` (bool[n]), both of one batch after those of the previous one.

    measured: MEASURED[n] of `measure_sections`; out: uint8[all their sections], written.
    """
    bodies = run.bodies
    at = 0
    for i in range(bodies.shape[0]):
        if not which[i]:
            continue
        if bodies[i].in_scratch:
            at = _write(run.scratch, bodies[i], run.spans, measured[i], out, at)
        else:
            at = _write(run.raw, bodies[i], run.spans, measured[i], out, at)


@inline
def _write(buf: np.ndarray, body: Any, spans: np.ndarray, sizes: Any, out: np.ndarray, at: int) -> int:
    attribute = at
    timestamps = at + body.n_records if sizes.attributes else at
    offsets = timestamps + sizes.timestamps
    key_lengths = offsets + sizes.offsets
    value_lengths = key_lengths + sizes.key_lengths
    header_sizes = value_lengths + sizes.value_lengths
    keys = header_sizes + sizes.header_sizes
    payloads = at + sizes.headers
    before = 0
    last = -1
    for row in range(body.first_span, body.first_span + body.n_records):
        timestamp: int = spans[row].timestamp_delta
        offset: int = spans[row].offset_delta
        attributes, key_length, key, value_length, value, header_size = _fields(buf, spans[row])
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
        if stored > 0:  # the headers are right after the value
            copy_bytes(out, payloads, buf, value, stored)
            payloads += stored
        before = timestamp
        last = offset
    end: int = at + sizes.headers + sizes.payloads
    return end


@kernel
def bodies_equal(run: Run, bodies: np.ndarray, other: Run, equal: np.ndarray) -> None:
    """Compare the records of some of a run's bodies, BODY[n], with those of another run of n batches, byte for byte:
    equal bool[n], written only with False.
    """
    for i in range(bodies.shape[0]):
        if bodies[i].in_scratch:
            equal[i] = equal[i] and _equal_to(run.scratch, bodies[i], other, other.bodies[i])
        else:
            equal[i] = equal[i] and _equal_to(run.raw, bodies[i], other, other.bodies[i])


@inline
def _equal_to(buf: np.ndarray, body: Any, run: Run, other: Any) -> bool:
    if other.in_scratch:
        return _equal(buf, body, run.scratch, other)
    return _equal(buf, body, run.raw, other)


@inline
def _equal(a: np.ndarray, body_a: Any, b: np.ndarray, body_b: Any) -> bool:
    n = body_a.end - body_a.start
    if n != body_b.end - body_b.start:
        return False
    difference = np.uint8(0)
    for j in range(n):
        difference |= a[body_a.start + j] ^ b[body_b.start + j]
    return bool(difference == 0)
