"""Files of versions that tasks write: full disks, and a process that ends while a thread writes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.logs import write_partition

_WRITE = """
import os, resource, sys, threading
from lastkey.jobs.audit.sources import archive_source
from lastkey.jobs.command.kinds import EVERY_TOPIC
from lastkey.udfs.audit import versions
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, Wanted, listed_logs

archive, store, limit = sys.argv[1:]
versions._RUN_BYTES = 1 << 12
(partition,) = archive_source(archive, EVERY_TOPIC).partitions
pieces = find_pieces(partition, Range(wanted=Wanted(committed=True)))
stretches = tuple(versions.Stretch(n, piece, 1, 0) for n, piece in enumerate(pieces))
task = versions.ReadTask(stretches, store, "state/audit_versions", (1, 2), False)
written = threading.Event()

def work():
    while True:
        versions.read_task([listed_logs(partition)], task)
        written.set()

if limit == "none":
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    written.wait()
    sys.exit(5)  # as an error of another task ends a run
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    versions.read_task([listed_logs(partition)], task)
except OSError as error:
    print(error)
    sys.exit(4)
"""


def run(tmp_path: Path, limit: str) -> subprocess.CompletedProcess[str]:
    if not (tmp_path / "archive").exists():
        write_partition(tmp_path / "archive" / "t-0", " | ".join(f"key{i}=1 other{i}=2" for i in range(300)))
    command = [sys.executable, "-c", _WRITE, str(tmp_path / "archive"), str(tmp_path / "store"), limit]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.process
def test_a_process_that_ends_while_threads_write_is_not_aborted(tmp_path: Path) -> None:
    """Arrow's writer must call no stream of Python's: the interpreter may be gone."""
    for _ in range(3):
        done = run(tmp_path, "none")
        assert done.returncode == 5, signal.Signals(-done.returncode) if done.returncode < 0 else done.stderr


@pytest.mark.process
@pytest.mark.parametrize("limit", [0, 10_000])
def test_a_file_that_cannot_grow_is_an_error_of_the_system(tmp_path: Path, limit: int) -> None:
    done = run(tmp_path, str(limit))
    assert done.returncode == 4 and "File too large" in done.stdout, done.stderr
