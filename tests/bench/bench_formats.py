"""Magic 3 against magic 2: a scan of keys, a scan of whole records, and bytes, for each codec and some batch sizes.

    .venv-test/bin/python -m tests.bench.bench_formats [--megabytes 64] [--value-bytes 1000]
    ... --table | --against CHECKOUT

Prints for each case the medians of turns taken in one process, and their ratio: from files in memory, with checksums,
to key hashes and numbers of every record. Values are texts of eight words and numbers, as many as their bytes need.
--against: how this checkout reads magic 2, and how another one does, such as a worktree at 5e613c5, the last one
without magic 3; two processes take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.listing import Segment
from lastkey.logformat.writing.encode import BatchOptions, encode_batches
from tests.bench.format_savings import FormatTask, measure_formats, merged
from tests.builders.formats import converted
from tests.conftest import ROOT

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


def log(n: int, size: int, per_batch: int, codec: str, *, keys: int | None = None) -> bytes:
    rng = random.Random(3)
    records = pa.record_batch(
        {
            "key": pa.array([b"user-%08d" % rng.randrange(keys or n) for _ in range(n)]),
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
        for chunk in read_chunks(pa.BufferReader(data), "log", LogRange(0, len(data)), buffer, Tail()):
            for run in loader.runs(chunk):
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


# Reads a log of magic 2 in several ways, as often as lines come; only names that 5e613c5 has too
_READER = """
import sys, time
import numpy as np
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact import job
from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.walk_kernels import walk_batches
from lastkey.logformat.layout import BATCH
logs = {name: np.fromfile(f"{sys.argv[1]}/{name}", np.uint8) for name in ("none", "zstd")}
out = np.empty(1 << 20, BATCH)
loader = BodyLoader(max_batch_bytes=1 << 28, secret=(1, 2))
def walk(name, check):
    return walk_batches(logs[name], len(logs[name]), 0, -1, 2**63 - 1, check, out)[0]
rows = {name: out[: walk(name, 1)].copy() for name in logs}
def records(name):
    by_chunk = "chunk" in loader.runs.__code__.co_varnames  # 5e613c5 takes its parts
    given = [logs[name], 0, rows[name], np.ones(len(rows[name]), bool), ""]
    for run in loader.runs(Chunk(0, *given[:1], rows[name])) if by_chunk else loader.runs(*given, backwards=False):
        pass
ways = {"walk": lambda name: walk(name, 0), "walk with checksums": lambda name: walk(name, 1), "records": records}
for line in sys.stdin:
    way, name = line.strip().split(" of ")
    best, end = 9.0, time.perf_counter() + 0.05
    while time.perf_counter() < end:
        start = time.perf_counter()
        ways[way](name)
        best = min(best, time.perf_counter() - start)
    print(best, flush=True)
"""


def print_against(other: Path, turns: int) -> None:
    """Print how long both checkouts read magic 2."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        for codec in ("none", "zstd"):
            (Path(name) / codec).write_bytes(log(300_000, 100, 16, codec))
        command = [sys.executable, "-c", _READER, name]
        readers = [
            stack.enter_context(
                subprocess.Popen(
                    command, text=True, cwd=side, env={**os.environ, "PYTHONPATH": str(side)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )
            for side in (other.resolve(), ROOT)
        ]  # fmt: skip
        for way in ("walk", "walk with checksums", "records"):
            for codec in ("none", "zstd"):
                seconds: list[list[float]] = [[], []]
                for turn in range(-1, turns):  # the first one compiles
                    for reader, of_side in list(zip(readers, seconds, strict=True))[:: 1 if turn % 2 else -1]:
                        assert reader.stdin is not None and reader.stdout is not None
                        print(f"{way} of {codec}", file=reader.stdin, flush=True)
                        of_side.append(float(reader.stdout.readline()))
                before, now = (np.array(s[1:]) for s in seconds)
                print(
                    f"{way} of {codec}: {np.median(before) * 1e6:.0f} us there, {np.median(now) * 1e6:.0f} us here, "
                    f"median of ratios {np.median(now / before):.3f}",
                    flush=True,
                )


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
                    segment = Segment(name, path.name, 0, path.stat().st_size, 0)
                    savings = merged([measure_formats(FormatTask(name, (segment,), 8 << 20, 1 << 28))])
                    assert not savings.stayed
                    sums = np.sum([row.bytes for row in savings.rows], axis=0) / n
                    changes = " ".join(f"{before - after:.2f}" for before, after in pairwise(sums))
                    cells.append(f"{sums[0]:.1f} - {sums[0] - sums[-1]:.2f}")
                    print(f"  {size} B, {per_batch}, {codec}: {sums[0]:.2f} to {sums[-1]:.2f}; changes {changes}")
                print(f"| {size} | {per_batch:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--table", action="store_true", help="bytes a record, as BENCHMARKS.md shows them")
    parser.add_argument("--against", type=Path, help="a checkout to compare the readers of magic 2 with")
    arguments = parser.parse_args()
    if arguments.table:
        print_table()
    elif arguments.against:
        print_against(arguments.against, arguments.turns)
    else:
        print_scans(arguments)


def print_scans(arguments: argparse.Namespace) -> None:
    """Print how long scans of keys and of whole records take."""
    n = arguments.megabytes * (1 << 20) // (arguments.value_bytes + 20)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for per_batch in (16, 100, 1000):
            data = log(n, arguments.value_bytes, per_batch, codec)
            bytes_v3 = len(converted(data, 3))
            print(f"{codec}, {per_batch} records a batch: {len(data)} bytes in v2, {bytes_v3} in v3")
            print("  " + compare("keys", data, True, arguments.turns))
            print("  " + compare("whole records", data, False, arguments.turns), flush=True)


if __name__ == "__main__":
    main()
