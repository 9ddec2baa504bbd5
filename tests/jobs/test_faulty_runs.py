"""The command line in separate processes with failing operations: exit codes, reports, and progress of other
partitions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, START_MS, Partition, build
from tests.builders.faults import Fault, faulty_environment, happened
from tests.reference.log import data_batch

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300
NOW = "1800000000000"
_THIRD = 2 * SEGMENT_OFFSETS
TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
[job]
"engine" = "threads"
"split.bytes" = {split}
"""

# each command line given, one after the other, in one process: imports and kernels take longer than the jobs
_RUN = """
import json, sys
from lastkey.jobs.command.cli import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    print(json.dumps({"code": code}), flush=True)
"""


@pytest.fixture
def two(tmp_path: Path) -> Partition:
    """t-0, in which an operation will fail, and the undamaged u-0."""
    part = build(tmp_path / "archive")
    shutil.copytree(part.folder, part.root / "u-0")
    return part


def run(tmp_path: Path, commands: list[list[str]], *given: Fault) -> tuple[list[tuple[int, Any]], str]:
    """Return (exit code, output of --json) of each command, and stderr."""
    child = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)], env=faulty_environment(tmp_path, *given), cwd=ROOT,
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    decoder, text, answer = json.JSONDecoder(), child.stdout.strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        answer.append(value)
        text = text[end:].strip()
    return [(code["code"], report) for report, code in zip(answer[::2], answer[1::2], strict=True)], child.stderr


@pytest.mark.slow
def test_failed_reads_are_problems_of_reading_jobs(two: Partition, tmp_path: Path) -> None:
    """Reads fail for good, those too that a kernel makes by the C library's pread."""
    log, archive = two.log(SEGMENT_OFFSETS), str(two.root)
    commands = [
        ["verify", archive, "--json"],
        ["reindex", archive, "--check", "--skip-crc", "--engine", "threads", "--json"],
        ["lookup", archive, "--sizing", "--json"],
    ]
    done, stderr = run(tmp_path, commands, Fault("read", str(log), times=None, error="EIO"))
    assert [code for code, _ in done] == [3, 3, 3]
    assert "Traceback" not in stderr
    path = f"t-0/{log.name}"
    verified, reindexed, sized = (report for _, report in done)
    of = {f"{p['topic']}-{p['partition']}": p for p in verified["partitions"]}
    (problem,) = of["t-0"]["problems"]
    assert (problem["kind"], problem["path"], problem["position"]) == ("unreadable", path, 0)
    assert "Errno 5" in problem["found"]
    assert (of["u-0"]["problems"], of["u-0"]["records"]) == ([], 48)
    impossible = [f for p in reindexed["partitions"] for f in p["files"] if f["status"] == "impossible"]
    assert {(f["reason"], f["log"]) for f in impossible} == {("unreadable", path)}
    assert ("unreadable", path) in [(p["kind"], p["path"]) for p in sized["problems"] if "Errno 5" in p["found"]]
    assert sum(t["batches"] for t in sized["topics"]) == 2 * 12 - 3
    assert happened(tmp_path)[0] >= 3


@pytest.mark.slow
def test_failed_read_of_headers_is_retried(two: Partition, tmp_path: Path) -> None:
    """The C library reports only a byte count. A second read gives the reason of the failure, or the bytes."""
    log = two.log(SEGMENT_OFFSETS)
    commands = [["lookup", str(two.root), "--sizing", "--json"]]
    ((code, report),), _ = run(tmp_path, commands, Fault("read", str(log), error="EINTR"))
    assert happened(tmp_path) == [1]
    assert (code, report["problems"], sum(t["batches"] for t in report["topics"])) == (0, [], 24)


# case: how the partition is taken, at which read of its third segment the disk fails
READS = {
    "scan-whole": (1 << 30, 1), "clean-whole": (1 << 30, 2), "copy-whole": (1 << 30, 3),
    "scan-splits": (500, 1), "keys-splits": (500, 2), "rewrite-splits": (500, 3),
}  # fmt: skip
FULL = {"full-whole": 1 << 30, "full-splits": 500}


@pytest.mark.spark
@pytest.mark.slow
def test_compact_continues_with_other_partitions(tmp_path: Path) -> None:
    """Whichever read fails, the other partition is committed; a full disk is the machine's. One session for all."""
    parts = {case: _partitions(tmp_path / case) for case in (*READS, *FULL)}
    faults = [Fault("read", str(parts[c].log(_THIRD)), nth=nth, error="EIO") for c, (_, nth) in READS.items()]
    faults += [Fault("write", f"{parts[case].store}/segments/t-0/*", error="ENOSPC") for case in FULL]
    splits = {case: split for case, (split, _) in READS.items()} | FULL
    commands = []
    for case, part in parts.items():
        config = tmp_path / f"{case}.toml"
        config.write_text(TOML.format(split=splits[case]))
        commands.append(
            ["compact", str(part.root), "--store", str(part.store), "--now", NOW, "--config", str(config), "--json"]
        )
    done, stderr = run(tmp_path, commands, *faults)
    assert happened(tmp_path) == [1] * len(faults)
    for (case, part), (code, report) in zip(parts.items(), done, strict=True):
        if case in FULL:
            assert (code, report["error"]["kind"]) == (5, "DiskFullError"), case
            continue
        assert code == 3, (case, stderr)
        partitions = {f"{p['topic']}-{p['partition']}": p for p in report["partitions"]}
        problem = partitions["t-0"]["problem"]
        assert (problem["kind"], problem["path"]) == ("unreadable", f"t-0/{part.log(_THIRD).name}"), case
        assert "Errno 5" in problem["found"]
        assert partitions["u-0"]["problem"] is None
        assert list((part.store / "segments" / "u-0").rglob("*.log"))
        assert not list((part.store / "segments").glob("t-0/*/*"))


def _partitions(folder: Path) -> Partition:
    """Write t-0, whose third segment keeps all that it has and so is copied, read for a third time; and u-0."""
    part = build(folder / "archive")
    rows = [(START_MS + i, b"only-%d" % i, b"value") for i in range(_THIRD, _THIRD + SEGMENT_OFFSETS)]
    part.write(
        _THIRD,
        [data_batch(_THIRD + i, rows[i : i + RECORDS], leader_epoch=3) for i in range(0, SEGMENT_OFFSETS, RECORDS)],
    )
    shutil.copytree(part.folder, part.root / "u-0")
    return part
