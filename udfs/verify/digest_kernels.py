"""Kernels that compare two sides of a partition, and find the last record of each key: for parent.py and blocks.py.

The version of a record, if `compaction.strategy` is header, is verify's own reading of headers.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK, TRANSACTIONAL_MASK
from lastkey.logformat.primitives.siphash_kernels import siphash128

_KEPT_BITS: Final = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


@inline
def _mix(word: np.uint64, more: np.uint64) -> np.uint64:
    """Return the next value of a chain over 64-bit words (the finaliser of splitmix64)."""
    word = (word ^ more) + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def digest_batches(batches: np.ndarray, plain: np.ndarray, full: np.ndarray) -> None:
    """Hash what cleaning must not change in a batch. batches: BATCH[n]; plain, full: uint64[n], written.

    plain: producer id, epoch and sequence, leader epoch, timestamp type, transactional and control bits; full: also
    first and last offset, which a batch of magic 2 keeps.
    """
    for i in range(batches.shape[0]):
        batch = batches[i]
        bits = np.int64(batch.attributes) & _KEPT_BITS if batch.magic > 0 else np.int64(0)
        word = _mix(np.uint64(0), np.uint64(batch.producer_id))
        word = _mix(word, np.uint64(np.int64(batch.producer_epoch)))
        word = _mix(word, np.uint64(np.int64(batch.base_sequence)))
        word = _mix(word, np.uint64(np.int64(batch.partition_leader_epoch)))
        plain[i] = _mix(word, np.uint64(bits))
        word = _mix(plain[i], np.uint64(batch.base_offset))
        full[i] = _mix(word, np.uint64(batch.last_offset))


@kernel
def digest_records(
    run: Run, k0: np.uint64, k1: np.uint64, offset: np.ndarray, times: np.ndarray, digest: np.ndarray
) -> None:
    """Write the offset and timestamp of every record, and a hash of its timestamp and all its bytes from the key on.

    k0, k1: SipHash key; offset, times: int64[m], digest: uint64[m], written.
    """
    raw, scratch, batches, bodies, spans = run.raw, run.scratch, run.batches, run.bodies, run.spans
    for i in range(batches.shape[0]):
        body = bodies[i]
        append_time = batches[i].magic > 0 and batches[i].attributes & TIMESTAMP_TYPE_MASK != 0
        for row in range(body.first_span, body.first_span + body.n_records):
            span = spans[row]
            timestamp = batches[i].max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
            if body.in_scratch:
                low, _ = siphash128(scratch, span.rest, span.end, k0, k1)
            else:
                low, _ = siphash128(raw, span.rest, span.end, k0, k1)
            offset[row] = body.base_offset + span.offset_delta
            times[row] = timestamp
            digest[row] = _mix(low, np.uint64(timestamp))


class Records(NamedTuple):
    """Columns of m records."""

    batch: np.ndarray  # int64, row of its batch
    offset: np.ndarray  # int64
    timestamp: np.ndarray  # int64, ms; -1: none
    digest: np.ndarray  # uint64
    low: np.ndarray  # uint64, key hash
    high: np.ndarray  # uint64
    null_key: np.ndarray  # bool
    null_value: np.ndarray  # bool
    version: np.ndarray  # int64: the highest of a key's records stays, the later of equals


class LastOfKeys(NamedTuple):
    """Table of 2^k slots: for each key the record of the highest version, the last one of equals."""

    low: np.ndarray  # uint64, key hash
    high: np.ndarray  # uint64
    offset: np.ndarray  # int64; -1: the slot is free
    version: np.ndarray  # int64
    ok: np.ndarray  # bool, whether the record is, or may be missing
    gone: np.ndarray  # bool, whether it is missing
    left: np.ndarray  # bool, whether any record of the key survived
    used: np.ndarray  # int64[1], slots that are not free


@kernel
def enter_last(
    records: Records, rows: np.ndarray, ok: np.ndarray, survived: np.ndarray, part: tuple[int, int], table: LastOfKeys
) -> bool:
    """Enter records in the order of their offsets; return False if the table would be more than 3/4 full.

    rows: int64[], of the records to enter; ok, survived: bool[m]; part: (number, of how many): only keys with this
    remainder of `high` are entered.
    """
    mask = np.uint64(table.low.shape[0] - 1)
    most = table.low.shape[0] // 4 * 3
    one = np.uint64(1)
    number, parts = part
    for i in rows:
        low, high = records.low[i], records.high[i]
        if parts > 1 and np.int64(high % np.uint64(parts)) != number:
            continue
        slot = low & mask
        while table.offset[slot] >= 0 and (table.low[slot] != low or table.high[slot] != high):
            slot = (slot + one) & mask
        if table.offset[slot] < 0:
            if table.used[0] >= most:
                return False
            table.low[slot] = low
            table.high[slot] = high
            table.used[0] += 1
        elif records.version[i] < table.version[slot]:
            continue
        table.left[slot] |= survived[i]
        table.gone[slot] = not survived[i]
        table.offset[slot] = records.offset[i]
        table.version[slot] = records.version[i]
        table.ok[slot] = ok[i]
    return True


_NONE = -1


@inline
def _number(buf: np.ndarray, at: Any) -> tuple[Any, Any]:
    """Return a zigzag varint of 32 bits, and the position after it."""
    word = np.uint64(0)
    shift = np.uint64(0)
    while at < len(buf) and shift < np.uint64(35):  # five bytes at most
        byte = np.uint64(buf[at])
        at += 1
        word |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            break
        shift += np.uint64(7)
    word &= np.uint64(0xFFFFFFFF)  # bits beyond its type are dropped, as in Kafka
    return np.int64(word >> np.uint64(1)) ^ -np.int64(word & np.uint64(1)), at


@kernel
def header_versions(run: Run, name: np.ndarray, out: np.ndarray) -> None:
    """Write the big-endian long in each record's last header called `name` (uint8[]) to out: int64[m]; -1 if it is
    negative, of another size, or missing.
    """
    bodies, spans = run.bodies, run.spans
    for i in range(bodies.shape[0]):
        for row in range(bodies[i].first_span, bodies[i].first_span + bodies[i].n_records):
            at = spans[row].rest
            buf = run.scratch if bodies[i].in_scratch else run.raw
            size, at = _number(buf, at)  # key
            at += max(size, 0)
            size, at = _number(buf, at)  # value
            at += max(size, 0)
            headers, at = _number(buf, at)
            out[row] = _NONE
            for _ in range(headers):
                size, at = _number(buf, at)
                matches = size == len(name) and (buf[at : at + size] == name).all()
                at += size
                size, at = _number(buf, at)
                if matches:
                    value = np.int64(_NONE)
                    if size == 8:
                        word = np.uint64(0)
                        for byte in buf[at : at + 8]:
                            word = (word << np.uint64(8)) | np.uint64(byte)
                        value = np.int64(word)
                    out[row] = value if value >= 0 else _NONE
                at += max(size, 0)
