"""Conversions that are killed at drawn moments, in real processes: no half partition looks whole, a rerun ends them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.jobs.command.options import ConvertOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.convert import job as convert
from lastkey.jobs.errors import LOG_DIRECTORY_IN_USE, NOT_EMPTY
from tests.builders.archives import log_directory
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.killed_conversions import CONFIG, in_child, run
from tests.builders.steps import at_step, interrupt
from tests.builders.trees import files_in, read_tree
from tests.golden import Case

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = ("none-tomb", "lz4-append", "txn-zstd")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def archive(cases: dict[str, Case], tmp_path: Path) -> Path:
    """Return a folder with a log directory of several partitions, some of several segments."""
    return log_directory(cases, NAMES, tmp_path / "archive")


def test_rerun_completes_a_killed_conversion(archive: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    n_cases = request.config.getoption("--attack-cases") or 8
    call = f"killed_runs(Path({str(archive)!r}), Path({str(tmp_path)!r}), 31, {n_cases})"
    code = f"from pathlib import Path; from tests.builders.killed_conversions import killed_runs; {call}"
    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout.splitlines()[-1])
    assert report["moments"] > 100
    assert report["killed"] >= n_cases
    assert report["kept"] > 0


def test_conversion_with_other_options_or_changed_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert in_child(archive, output, 60) == -1
    before = read_tree(output)
    with raises_kind(NOT_EMPTY, match=r"convert\.part of another conversion"):
        convert.run(ConvertOptions(str(archive), output=str(output), to="v2", config=CONFIG), Silent())
    log = files_in(archive, "**/none-tomb-0/*.log")[-1]
    times = log.stat()
    os.utime(log, ns=(times.st_mtime_ns + 10**9,) * 2)
    with raises_kind(NOT_EMPTY, match="changed"):
        run(archive, output)
    assert read_tree(output) == before
    os.utime(log, ns=(times.st_mtime_ns,) * 2)
    (output / "convert.part").write_bytes((output / "convert.part").read_bytes()[:30])  # killed while it was written
    assert run(archive, output).exit_code == 0


def test_rerun_reads_an_unreadable_log_again(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    log = files_in(archive, "**/lz4-append-0/*.log")[0]
    flip(log, log.stat().st_size - 3)
    with pytest.raises(KeyboardInterrupt), at_step("archive converted", interrupt):
        run(archive, output)
    again = run(archive, output)
    assert [p.path for p in again.problems] == [str(log.relative_to(archive))]
    assert sum(p.kept for p in again.partitions) == len(files_in(output, "**/*.log"))
    assert not any(path.endswith(".part") for path in read_tree(output))
    assert "kept of a run that was cut off" in again.to_text()


def test_two_conversions_cannot_write_to_one_folder(archive: Path, tmp_path: Path) -> None:
    def convert_twice() -> None:
        with raises_kind(LOG_DIRECTORY_IN_USE):
            run(archive, tmp_path / "out")

    with at_step("archive converted", convert_twice):
        run(archive, tmp_path / "out")
