"""Encoding of batches that lose some records; and a digest of records, to check them when they are read back."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.header_kernels import write_header
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, TIMESTAMP_TYPE_MASK
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import size_of_varlong, write_varlong
from lastkey.udfs.compact.verdicts import COPIED, DROPPED, REBUILT

# The decision about a batch.
CLEANED = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),  # base timestamp of the result: the delete horizon if its bit is set
        ("max_timestamp", "i8"),
        ("min_timestamp", "i8"),  # smallest timestamp of the kept data records; else NO_TIMESTAMP or UNKNOWN_TIMESTAMP
        ("n_kept", "i4"),
        ("attributes", "i2"),  # attributes of the result
        ("outcome", "i1"),
        ("tombstones", "i4"),  # kept ones
    ],
    align=True,
)


@kernel
def encode_bodies(
    run: Run, cleaned: np.ndarray, kept: np.ndarray, rows: np.ndarray, out: np.ndarray, out_ends: np.ndarray
) -> np.uint64:
    """Encode the kept records of the batches that are REBUILT, one body after the other, uncompressed.

    cleaned: CLEANED[n]; kept: bool[len(spans)]; rows: int32[len(spans)], with anything in it; out: uint8[] with room
    for every kept record and 20 bytes more for each; out_ends: int64[n], written: end of each batch's body in `out`
    (the end before it for the other batches).
    Returns `digest_records` of the same batches, each while its bytes are in the cache. LogAppendTime records take the
    batch's maximum (KAFKA.md, "Written bytes").
    """
    batches, bodies, spans = run.batches, run.bodies, run.spans
    position = 0
    digest = np.uint64(0)
    for i in range(batches.shape[0]):
        if cleaned[i].outcome == REBUILT:
            n = _list_kept(bodies[i], kept, rows)
            buf = run.scratch if bodies[i].in_scratch else run.raw
            digest += _digest_batch(buf, batches[i], bodies[i], spans, rows[:n])
            position = _encode_batch(buf, bodies[i], cleaned[i], spans, rows[:n], out, position)
        out_ends[i] = position
    return digest


@inline
def _list_kept(body: np.ndarray, kept: np.ndarray, rows: np.ndarray) -> int:
    """Write the rows of a batch's kept records into `rows`, int32[n_records] or longer; return their number.

    A loop without branches, because the branches would be unpredictable.
    """
    n = 0
    for row in range(body.first_span, body.first_span + body.n_records):
        rows[n] = row
        n += kept[row]
    return n


@inline
def _encode_batch(
    buf: np.ndarray,
    body: np.ndarray,
    result: np.ndarray,
    spans: np.ndarray,
    rows: np.ndarray,
    out: np.ndarray,
    position: int,
) -> int:
    append_time = result.attributes & TIMESTAMP_TYPE_MASK != 0
    for row in rows:
        span = spans[row]
        timestamp = result.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
        timestamp_delta = timestamp - result.base_timestamp
        offset_delta = body.base_offset + span.offset_delta - result.base_offset
        rest = span.end - span.rest
        length = 1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + rest
        position = write_varlong(out, position, length)
        out[position] = 0
        position = write_varlong(out, position + 1, timestamp_delta)
        position = write_varlong(out, position, offset_delta)
        copy_bytes(out, position, buf, span.rest, rest)
        position += rest
    return position


@kernel
def digest_records(run: Run, kept: np.ndarray, rows: np.ndarray) -> np.uint64:
    """Return a sum over the kept records (bool[len(spans)]) of the wanted batches. It covers each record's offset,
    timestamp and all bytes from the key on. Equal sums before and after a rewrite show that these are unchanged. rows:
    int32[len(spans)], with anything in it.
    """
    total = np.uint64(0)
    for i in range(run.batches.shape[0]):
        if run.wanted[i]:
            n = _list_kept(run.bodies[i], kept, rows)
            buf = run.scratch if run.bodies[i].in_scratch else run.raw
            total += _digest_batch(buf, run.batches[i], run.bodies[i], run.spans, rows[:n])
    return total


@inline
def _digest_batch(
    buf: np.ndarray, batch: np.ndarray, body: np.ndarray, spans: np.ndarray, rows: np.ndarray
) -> np.uint64:
    total = np.uint64(0)
    append_time = batch.magic > 0 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
    for row in rows:
        span = spans[row]
        timestamp = batch.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
        crc = crc32c_range(buf, span.rest, span.end)
        word = _mix(np.uint64(body.base_offset + span.offset_delta))
        word = _mix(word ^ np.uint64(timestamp))
        total += _mix(word ^ np.uint64(crc) ^ (np.uint64(span.end - span.rest) << np.uint64(32)))
    return total


@inline
def _mix(word: np.uint64) -> np.uint64:
    """Scramble a word with the finaliser of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def describe_survivors(
    batches: np.ndarray, cleaned: np.ndarray, body_ends: np.ndarray, rows: np.ndarray
) -> tuple[int, int, int]:
    """Describe the surviving batches of a run as they will be.

    cleaned: CLEANED[n]; body_ends: int64[n], where the body of each rebuilt one ends, and of any other the one before
    it; rows: OUT_BATCH[n], the first are written.
    Returns (number of survivors, of those that are copied, bytes of all).
    """
    m = n_copied = n_bytes = 0
    before = np.int64(0)
    for i in range(batches.shape[0]):
        batch = batches[i]
        result = cleaned[i]
        body = body_ends[i] - before
        before = body_ends[i]
        if result.outcome == DROPPED:
            continue
        copied = result.outcome == COPIED
        size = batch.size if copied else BATCH_OVERHEAD + body
        row = rows[m]
        row.size = size
        row.base_offset = result.base_offset
        row.last_offset = result.last_offset
        row.max_timestamp = result.max_timestamp
        row.min_timestamp = result.min_timestamp
        row.n_records = result.n_kept
        row.tombstones = result.tombstones
        row.codec = result.attributes & CODEC_MASK
        row.magic = batch.magic if copied else 2
        row.rebuilt = result.outcome == REBUILT
        m += 1
        n_copied += copied
        n_bytes += size
    return m, n_copied, n_bytes


@kernel
def assemble_batches(
    run: Run, raw_position: int, cleaned: np.ndarray, payload: np.ndarray, payload_ends: np.ndarray, out: np.ndarray
) -> int:
    """Write the surviving batches one after the other.

    raw_position: of the run's bytes in the file; cleaned: CLEANED[n]; payload: final (compressed) bodies of the REBUILT
    batches, ending at payload_ends[i]; out: uint8[] with room for all. Returns the bytes written.
    """
    batches = run.batches
    position = 0
    for i in range(batches.shape[0]):
        result = cleaned[i]
        if result.outcome == DROPPED:
            continue
        batch = batches[i]
        if result.outcome == COPIED:
            copy_bytes(out, position, run.raw, batch.position - raw_position, batch.size)
            position += batch.size
            continue
        payload_start = payload_ends[i - 1] if i > 0 else np.int64(0)
        n = payload_ends[i] - payload_start if result.outcome == REBUILT else np.int64(0)
        end = position + BATCH_OVERHEAD + n
        copy_bytes(out, position + BATCH_OVERHEAD, payload, payload_start, n)
        write_header(out, position, end, result, batch, result.n_kept)
        position = end
    return position
