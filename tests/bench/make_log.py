"""The log that the benchmarks work on: 16-byte keys, values of words, uniform keys, segments of 128 MiB."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa

from lastkey.logformat.writing.segment_writer import SegmentWriter

RECORDS = 8_600_000
KEYS = 1_000_000
SEGMENT_BYTES = 128 << 20
_BATCH_BYTES = 128 << 10  # before compression; what a producer of batch.size 64 KiB makes
_PLAIN_BATCH_BYTES = 16 << 10  # size of a batch by the default batch.size, 16 KiB, without a codec
_PART_BYTES = 24 << 20  # bytes of records that are made at a time
_RECORD_BYTES = 30  # maximum size of a record without its value
_START_MS = 1_700_000_000_000
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def make_partition(
    folder: Path,
    codec: str,
    *,
    records: int = RECORDS,
    keys: int = KEYS,
    value_bytes: int = 100,
    batch_bytes: int | None = None,
    seed: int = 1,
) -> None:
    """Write one partition's folder; the last segment holds one record, so that all others are inactive.

    batch_bytes: most of a batch before compression; 1: batches of one record; None: what producers make.
    """
    rng = np.random.default_rng(seed)
    words = [bytes(rng.integers(97, 123, size, dtype=np.uint8)) + b" " for size in rng.integers(3, 10, 512)]
    text = np.frombuffer(b"".join(words[i] for i in rng.integers(0, 512, 400_000)), np.uint8)
    most = batch_bytes or (_PLAIN_BATCH_BYTES if codec == "none" else _BATCH_BYTES)
    part = max(_PART_BYTES // (value_bytes + _RECORD_BYTES), 1)
    folder.mkdir(parents=True)
    writer, largest = SegmentWriter(folder, 0), 0
    for start in range(0, records, part):
        if writer.size > SEGMENT_BYTES - largest * 9 // 8:
            writer.close()
            writer = SegmentWriter(folder, start)
        before = writer.size
        n = min(part, records - start)
        writer.append_records(_records(rng, text, start, n, keys, value_bytes), codec=codec, max_batch_bytes=most)
        largest = max(largest, writer.size - before)
    writer.close()
    with SegmentWriter(folder, records) as last:
        last.append_records(_records(rng, text, records, 1, keys, value_bytes))


def keys_for(survivors: float, records: int) -> int:
    """Return how many keys, drawn uniformly for so many records, leave this share of the records as survivors."""
    low, high = 1e-6, 1e3  # keys for each record
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if -middle * math.expm1(-1 / middle) > survivors else (middle, high)
    return max(round(low * records), 1)


def _records(
    rng: np.random.Generator, text: np.ndarray, start: int, n: int, keys: int, value_bytes: int
) -> pa.RecordBatch:
    number = rng.integers(0, keys, n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(16, dtype=np.uint64) * np.uint64(4)
    key = _HEX[((number[:, None] >> shifts) & np.uint64(15)).astype(np.intp)]
    value = np.lib.stride_tricks.sliding_window_view(text, value_bytes)[rng.integers(0, len(text) - value_bytes, n)]
    offset = np.arange(start, start + n)
    return pa.record_batch(
        {
            "key": _binary(key),
            "value": _binary(value),
            "offset": pa.array(offset),
            "timestamp": pa.array((_START_MS + offset * 10) * 1000, pa.timestamp("us", "UTC")),
        }
    )


def _binary(rows: np.ndarray) -> pa.Array:
    ends = pa.py_buffer(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, ends, pa.py_buffer(np.ascontiguousarray(rows))])
