"""Audits of a large archive, within a machine's memory: `python -m tests.bench.bench_audit [FOLDER] [--kinds ...]`.

100 million records, 10 million keys of 16 bytes, values of 100 bytes, zstd, in two partitions (make_log.py; kept in
FOLDER if that is given), and a group that committed nine tenths of each. Each kind is audited three times: everything,
nothing new, and 1 % more (a third partition). `mirror` and `failover` compare the archive with a copy that lacks the
newest segment of every ten. The kinds share one table of entries, so the first row of a kind reads only what no kind
before it has read; `--apart` gives each kind tables of its own. `--duckdb`: last, DuckDB groups a Parquet export of the
archive by key, with two threads.

Each audit is a process as users start it; its memory is the sum over the process, its JVM and Spark's workers, shared
pages counted once, twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import make_log
from tests.bench.memory import watched
from tests.builders.groups import commit, write_log

KINDS = ("keys", "delivery", "mirror", "failover")
RECORDS, KEYS, PARTITIONS = 100_000_000, 10_000_000, 2
STEPS = ("everything", "nothing new", "1 % more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--codec", default="zstd", choices=("none", "zstd"))
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--engine", default="spark", choices=("spark", "threads"))
    parser.add_argument("--apart", action="store_true", help="give each kind tables of its own")
    parser.add_argument("--duckdb", help="a Python that has duckdb")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = given.folder or Path(name)
        archive = _archive(root / "archive", given)
        size = sum(path.stat().st_size for path in archive.rglob("*.log"))
        print(f"{given.records:,} records, {given.keys:,} keys, {size:,} bytes of {given.codec}")
        print(
            "| audit | seconds | logs read, bytes | tables, bytes | memory, bytes | result |\n|---|---|---|---|---|---|"
        )
        for kind in given.kinds:
            arguments = [*_arguments(kind, archive, root), "--engine", given.engine]
            audits = Path(name) / (kind if given.apart else "audits")
            for what in given.steps:
                if what == "1 % more":
                    _more(archive, root / "copy", given)
                _measured(kind, what, arguments, audits)
            for side in (archive, root / "copy"):
                shutil.rmtree(side / f"t-{PARTITIONS}", ignore_errors=True)
        if given.duckdb:
            _group_by_duckdb(given.duckdb, archive, root / "exported")


def _archive(archive: Path, given: argparse.Namespace) -> Path:
    each = given.records // PARTITIONS
    for number in range(PARTITIONS):
        folder = archive / f"t-{number}"
        if not folder.exists():
            make_log.make_partition(folder, given.codec, records=each, keys=given.keys // PARTITIONS, seed=number)
    if not (archive / "__consumer_offsets-0").exists():
        rows = [commit("g", "t", number, each * 9 // 10) for number in range(PARTITIONS)]
        write_log(archive / "__consumer_offsets-0", [rows])
    return archive


def _arguments(kind: str, archive: Path, root: Path) -> list[str]:
    """Make what a kind compares with, and return its arguments."""
    if kind in ("mirror", "failover"):
        copy = root / "copy"
        if not copy.exists():
            shutil.copytree(archive, copy, ignore=lambda folder, names: _newest_of_ten(names))
        return [str(archive), str(copy), "--topics", "t", *(("--group", "g") if kind == "failover" else ())]
    return [str(archive), "--topics", "t", *(("--group", "g") if kind == "delivery" else ())]


def _newest_of_ten(names: list[str]) -> list[str]:
    logs = sorted(name for name in names if name.endswith(".log"))
    removed = {name[: -len(".log")] for name in logs[len(logs) - len(logs) // 10 :]} if len(logs) > 1 else set()
    return [name for name in names if name.partition(".")[0] in removed]


def _group_by_duckdb(python: str, archive: Path, exported: Path) -> None:
    """Print how long DuckDB takes for the last offset and the versions of each key."""
    if not exported.exists():
        command = [sys.executable, "-m", "lastkey", "export", str(archive), "--topics", "t", "--format", "parquet"]
        subprocess.run([*command, "--output", str(exported)], check=True, capture_output=True)
    select = f"SELECT key, max(\"offset\"), count(*) FROM read_parquet('{exported}/**/*.parquet') GROUP BY key"
    code = f"import duckdb; duckdb.sql('SET threads = 2'); duckdb.sql({f'CREATE TEMP TABLE found AS {select}'!r})"
    began = time.perf_counter()
    subprocess.run([python, "-c", code], check=True)
    print(f"| DuckDB, by key | {time.perf_counter() - began:.1f} | | | | |", flush=True)


def _more(archive: Path, copy: Path, given: argparse.Namespace) -> None:
    """Add a partition, to the copy too: a topic with other partitions there is compared as a whole."""
    folder = archive / f"t-{PARTITIONS}"
    make_log.make_partition(folder, given.codec, records=given.records // 100, keys=given.keys // 100, seed=9)
    if copy.exists():
        shutil.copytree(folder, copy / folder.name)


def _measured(kind: str, what: str, arguments: list[str], audits: Path) -> None:
    """Run an audit, and print its row."""
    command = [sys.executable, "-m", "lastkey", "audit", kind, *arguments, "--audits", str(audits), "--json"]
    process, seconds, peak = watched(command)
    report = json.loads(process.stdout)
    tables = sum(path.stat().st_size for path in audits.rglob("*.parquet"))
    result = f"{process.returncode} {report.get('summary', report)} {report.get('seconds')}"
    print(
        f"| {kind}, {what} | {seconds:.1f} | {report['bytes_read']:,} | {tables:,} | {peak:,} | {result} |", flush=True
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
