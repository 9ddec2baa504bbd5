"""`merge` of three damaged copies against `cat` of them, in turn: `python -m tests.bench.bench_merge FOLDER`.

Each copy has a partition of about 1 GB; one has lost a segment, one is cut off, in one a bit is flipped. Prints seconds
of `cat` of the three logs to /dev/null and of the whole command `merge --engine threads`, with and without page cache.
Also prints the peak memory of the command. The folder should be on the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench import make_log
from tests.bench.memory import watched

_MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the copies are, or are made and kept")
    parser.add_argument("--records", type=int, default=8_600_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", default="threads", choices=("threads", "spark"))
    arguments = parser.parse_args()
    for label, batch_bytes in (("16 KiB", 16 << 10), ("1 KiB", 1 << 10)):
        root = arguments.folder / label.replace(" ", "")
        if not root.exists():
            make_copies(root, arguments.records, batch_bytes)
        measure(f"batches of {label}", root, arguments.repeats, arguments.engine)


def make_copies(root: Path, records: int, batch_bytes: int) -> None:
    folder = root / "broker-1" / "b-0"
    make_log.make_partition(folder, "none", records=records, batch_bytes=batch_bytes)
    for number in (2, 3):
        shutil.copytree(root / "broker-1", root / f"broker-{number}")
    one, other, third = (sorted((root / f"broker-{n}" / "b-0").glob("*.log")) for n in (1, 2, 3))
    one[len(one) // 2].unlink()
    os.truncate(other[-1], other[-1].stat().st_size // 2)
    with third[0].open("r+b") as file:
        file.seek(third[0].stat().st_size // 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def measure(label: str, root: Path, repeats: int, engine: str) -> None:
    logs = sorted(root.glob("broker-*/b-0/*.log"))
    size = sum(log.stat().st_size for log in logs)
    out = root.parent / "out"
    merge = [sys.executable, "-m", "lastkey", "merge", str(root), "--layout", "replicas", "--output", str(out)]
    merge += ["--engine", engine, "--quiet"]
    os.sync()
    for where in ("in the page cache", "not in the page cache"):
        rows = []
        for _ in range(repeats):
            _prepare(logs, where)
            began = time.perf_counter()
            with Path(os.devnull).open("wb") as null:
                subprocess.run(["cat", *map(str, logs)], stdout=null, check=True)
            cat = time.perf_counter() - began
            _prepare(logs, where)
            shutil.rmtree(out, ignore_errors=True)
            measured, seconds, peak = watched(merge)
            assert measured.returncode == 0, measured.stdout
            rows.append((cat, seconds, peak))
        shutil.rmtree(out)
        cat, seconds, peak = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{label}, {size / _MB:,.0f} MB {where}: cat {cat:.2f} s, merge {seconds:.2f} s "
            f"({seconds / cat:.2f} x), peak {peak / _MB:,.0f} MB",
            flush=True,
        )


def _prepare(logs: list[Path], where: str) -> None:
    for log in logs:
        if where == "in the page cache":
            log.read_bytes()
            continue
        descriptor = os.open(log, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
