"""The log that the benchmarks work on: 16-byte keys, 100-byte values, uniform keys, segments of 128 MiB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from lastkey.logformat.writing.segment_writer import SegmentWriter

RECORDS = 8_600_000
KEYS = 1_000_000
SEGMENT_BYTES = 128 << 20
_BATCH_BYTES = {"none": 16 << 10, "zstd": 128 << 10}  # uncompressed; what a producer of batch.size 16 and 64 KiB makes
_PART = 200_000  # records made at a time
_START_MS = 1_700_000_000_000
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def make_partition(folder: Path, codec: str, *, records: int = RECORDS, keys: int = KEYS, seed: int = 1) -> None:
    """Write one partition's folder; the last segment holds one record, so that all others are inactive."""
    rng = np.random.default_rng(seed)
    words = [bytes(rng.integers(97, 123, size, dtype=np.uint8)) + b" " for size in rng.integers(3, 10, 512)]
    text = np.frombuffer(b"".join(words[i] for i in rng.integers(0, 512, 400_000)), np.uint8)
    folder.mkdir(parents=True)
    writer = SegmentWriter(folder, 0)
    for start in range(0, records, _PART):
        if writer.size > SEGMENT_BYTES - (_PART * 130 if codec == "none" else _PART * 60):
            writer.close()
            writer = SegmentWriter(folder, start)
        n = min(_PART, records - start)
        writer.append_records(_records(rng, text, start, n, keys), codec=codec, max_batch_bytes=_BATCH_BYTES[codec])
    writer.close()
    with SegmentWriter(folder, records) as last:
        last.append_records(_records(rng, text, records, 1, keys))


def _records(rng: np.random.Generator, text: np.ndarray, start: int, n: int, keys: int) -> pa.RecordBatch:
    number = rng.integers(0, keys, n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(16, dtype=np.uint64) * np.uint64(4)
    key = _HEX[((number[:, None] >> shifts) & np.uint64(15)).astype(np.intp)]
    value = text[rng.integers(0, len(text) - 100, n)[:, None] + np.arange(100)]
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
