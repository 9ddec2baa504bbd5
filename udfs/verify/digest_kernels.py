"""Kernels that compare two sides of a partition, and find the last record of each key: for parent.py and blocks.py.

The version of a record, if `compaction.strategy` is header, is verify's own reading of headers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

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
    raw: np.ndarray,
    scratch: np.ndarray,
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    k0: np.uint64,
    k1: np.uint64,
    offset: np.ndarray,
    times: np.ndarray,
    digest: np.ndarray,
) -> None:
    """Write the offset and timestamp of every record, and a hash of its timestamp and all its bytes from the key on.

    batches: BATCH[n]; bodies: BODY[n]; spans: SPAN[m]; k0, k1: SipHash key; offset, times: int64[m], digest: uint64[m],
    written.
    """
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


@kernel
def enter_last(
    low: np.ndarray,
    high: np.ndarray,
    offset: np.ndarray,
    version: np.ndarray,
    ok: np.ndarray,
    survived: np.ndarray,
    part: int,
    parts: int,
    table_low: np.ndarray,
    table_high: np.ndarray,
    table_offset: np.ndarray,
    table_version: np.ndarray,
    table_ok: np.ndarray,
    table_gone: np.ndarray,
    table_left: np.ndarray,
    used: int,
) -> int:
    """Enter records in the order of their offsets. For each key the table holds the record of the highest version, the
    last one of equals, whether it is `ok`, and whether it is gone; and whether any record of the key survived.

    low, high: uint64[n], key hashes; offset, version: int64[n]; ok, survived: bool[n]; only keys with high % parts ==
    part are entered. table_*: [2^k], offset -1 is free. Returns the entries now used, or -1 if the table is more than
    3/4 full.
    """
    mask = np.uint64(table_low.shape[0] - 1)
    most = table_low.shape[0] // 4 * 3
    one = np.uint64(1)
    for i in range(low.shape[0]):
        if parts > 1 and np.int64(high[i] % np.uint64(parts)) != part:
            continue
        slot = low[i] & mask
        while table_offset[slot] >= 0 and (table_low[slot] != low[i] or table_high[slot] != high[i]):
            slot = (slot + one) & mask
        if table_offset[slot] < 0:
            if used >= most:
                return -1
            table_low[slot] = low[i]
            table_high[slot] = high[i]
            used += 1
        elif version[i] < table_version[slot]:
            continue
        table_left[slot] |= survived[i]
        table_gone[slot] = not survived[i]
        table_offset[slot] = offset[i]
        table_version[slot] = version[i]
        table_ok[slot] = ok[i]
    return used


_NONE = -1


@inline
def _number(buf: np.ndarray, at: Any) -> tuple[Any, Any]:
    """Return a zigzag varint of 32 bits, and the position behind it."""
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
def header_versions(
    raw: np.ndarray, scratch: np.ndarray, bodies: np.ndarray, spans: np.ndarray, name: np.ndarray, out: np.ndarray
) -> None:
    """Write the big-endian long in each record's last header called `name` (uint8[]) to out: int64[m]; -1 if it is
    negative, of another size, or missing. raw, scratch: uint8[]; bodies: BODY[n]; spans: SPAN[m], decoded before.
    """
    for i in range(bodies.shape[0]):
        for row in range(bodies[i].first_span, bodies[i].first_span + bodies[i].n_records):
            at = spans[row].rest
            buf = scratch if bodies[i].in_scratch else raw
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
