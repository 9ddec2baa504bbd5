"""`audit keys` of a large archive, within a machine's memory: `python -m tests.bench.bench_audit [FOLDER]`.

100 million records, 10 million keys of 16 bytes, values of 100 bytes, zstd, in two partitions (make_log.py; kept in
FOLDER if that is given). Three audits: of everything, of nothing new, and of 1 % more. Each is a process as users start
it; its memory is the sum over the process, its JVM and Spark's workers, shared pages counted once, twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.bench import make_log

RECORDS, KEYS, PARTITIONS = 100_000_000, 10_000_000, 2
_EACH_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--codec", default="zstd", choices=("none", "zstd"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = given.folder or Path(name)
        archive, audits = root / "archive", Path(name) / "audits"
        each = given.records // PARTITIONS
        for number in range(PARTITIONS):
            folder = archive / f"t-{number}"
            if not folder.exists():
                make_log.make_partition(folder, given.codec, records=each, keys=given.keys // PARTITIONS, seed=number)
        size = sum(path.stat().st_size for path in archive.rglob("*.log"))
        print(f"{given.records:,} records, {given.keys:,} keys, {size:,} bytes of {given.codec}")
        print("| audit | seconds | logs read, bytes | tables, bytes | memory, bytes |\n|---|---|---|---|---|")
        measured("of everything", archive, audits)
        measured("of nothing new", archive, audits)
        make_log.make_partition(
            archive / f"t-{PARTITIONS}", given.codec, records=given.records // 100, keys=given.keys // 100, seed=9
        )
        measured("of 1 % more", archive, audits)


def measured(what: str, archive: Path, audits: Path) -> None:
    """Run an audit, and print its row."""
    command = [sys.executable, "-m", "lastkey", "audit", "keys", str(archive), "--audits", str(audits), "--json"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(process, peak))
        watcher.start()
        out, _ = process.communicate()
        watcher.join()
    report = json.loads(out)
    assert process.returncode == 0, report
    seconds = time.perf_counter() - began
    tables = sum(path.stat().st_size for path in audits.rglob("*.parquet"))
    print(f"| {what} | {seconds:.1f} | {report['bytes_read']:,} | {tables:,} | {peak[0]:,} |", flush=True)
    print(f"  {report['seconds']}, {report['summary']}", flush=True)


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_pss, _tree(process.pid))))
        time.sleep(_EACH_S)


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _pss(pid: int) -> int:
    """Return a process's memory in bytes, each shared page divided by its users."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
