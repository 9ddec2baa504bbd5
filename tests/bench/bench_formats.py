"""Magic 3 against magic 2: a scan of keys, a scan of whole records, and bytes, for each codec and some batch sizes.

    .venv-test/bin/python -m tests.bench.bench_formats [--megabytes 64] [--value-bytes 1000]

Prints for each case the medians of turns taken in one process, and their ratio: from files in memory, with checksums,
to key hashes and numbers of every record. Values are texts of eight words and numbers, as many as their bytes need.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer, Tail, read_chunks
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.listing import ListedSegment
from lastkey.logformat.writing.encode import BatchOptions, encode_batches
from lastkey.udfs.report.format_savings import FormatTask, measure_formats, merged
from tests.builders.formats import converted

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def values(n: int, size: int, seed: int = 7) -> list[bytes]:
    rng = random.Random(seed)
    out = []
    for i in range(n):
        text = f'{{"id":{i},"amount":{rng.random():.6f},"text":"'
        while len(text) < size:
            text += f"{rng.choice(_WORDS)}-{rng.randrange(1000)} "
        out.append(text[:size].encode())
    return out


def log(n: int, size: int, per_batch: int, codec: str) -> bytes:
    rng = random.Random(3)
    records = pa.record_batch(
        {
            "key": pa.array([b"user-%08d" % rng.randrange(n) for _ in range(n)]),
            "value": pa.array(values(n, size)),
            "timestamp_ms": pa.array([1_700_000_000_000 + 3 * i + rng.randrange(3) for i in range(n)]),
        }
    )
    return encode_batches(records, 0, BatchOptions(codec=codec, max_batch_records=per_batch)).tobytes()


def scan(data: bytes, keys_only: bool) -> Callable[[], int]:
    buffer = ChunkBuffer()
    loader = BodyLoader(max_batch_bytes=1 << 28, secret=(1, 2), keys_only=keys_only)

    def once() -> int:
        seen = 0
        for chunk in read_chunks(pa.BufferReader(data), "log", 0, len(data), buffer, Tail()):
            wanted = np.ones(len(chunk.batches), np.bool_)
            for run in loader.runs(chunk.raw, chunk.position, chunk.batches, wanted, "log", backwards=False):
                seen ^= int(np.bitwise_xor.reduce(run.spans["key_low"]))
        return seen

    return once


def compare(name: str, data: bytes, keys_only: bool, turns: int) -> str:
    sides = [scan(side, keys_only) for side in (data, converted(data, 3))]
    assert sides[0]() == sides[1]()
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for side, of_side in zip(sides, seconds, strict=True):
            start = time.perf_counter()
            side()
            of_side.append(time.perf_counter() - start)
    v2, v3 = (statistics.median(s) for s in seconds)
    return f"{name}: v2 {v2 * 1000:.1f} ms, v3 {v3 * 1000:.1f} ms, {v2 / v3:.2f} times as fast"


def print_table() -> None:
    """Print a row for each size of records and of batches, with each codec's bytes a record in either format."""
    with tempfile.TemporaryDirectory() as name:
        for size in (10, 100, 1000):
            for per_batch in (1, 10, 100, 1000, 10_000):
                n = max(per_batch, min(20_000, 2_000_000 // size))
                cells = []
                for codec in CODEC_NAMES:
                    path = Path(name) / "00000000000000000000.log"
                    path.write_bytes(log(n, size, per_batch, codec))
                    segment = ListedSegment(name, path.name, 0, path.stat().st_size, 0)
                    found = merged([measure_formats(FormatTask(name, (segment,), 8 << 20, 1 << 28))])
                    assert not found.stayed
                    sums = np.sum([row.bytes for row in found.rows], axis=0) / n
                    changes = " ".join(f"{before - after:.2f}" for before, after in pairwise(sums))
                    cells.append(f"{sums[0]:.1f} - {sums[0] - sums[-1]:.2f}")
                    print(f"  {size} B, {per_batch}, {codec}: {sums[0]:.2f} to {sums[-1]:.2f}; changes {changes}")
                print(f"| {size} | {per_batch:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--table", action="store_true", help="bytes a record, as FORMAT.md shows them")
    given = parser.parse_args()
    if given.table:
        print_table()
        return
    n = given.megabytes * (1 << 20) // (given.value_bytes + 20)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for per_batch in (16, 100, 1000):
            data = log(n, given.value_bytes, per_batch, codec)
            bytes_v3 = len(converted(data, 3))
            print(f"{codec}, {per_batch} records a batch: {len(data)} bytes in v2, {bytes_v3} in v3")
            print("  " + compare("keys", data, True, given.turns))
            print("  " + compare("whole records", data, False, given.turns), flush=True)


if __name__ == "__main__":
    main()
