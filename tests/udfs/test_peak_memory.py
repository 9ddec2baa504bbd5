"""The peak memory in results is that of the task."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.udfs import problem

_STARTER = """
import subprocess, sys
held = b"1" * int(sys.argv[1])
subprocess.run([sys.executable, "-c", "from lastkey.udfs.problem import peak_memory; print(peak_memory())"])
"""


@pytest.mark.process
def test_peak_excludes_the_parent_process() -> None:
    large = 400 << 20
    printed = subprocess.run([sys.executable, "-c", _STARTER, str(large)], check=True, capture_output=True, text=True)
    assert 1 << 20 < int(printed.stdout) < large // 2


def test_peak_includes_released_memory() -> None:
    before = problem.peak_memory()
    held = b"1" * (before + (64 << 20))
    assert problem.peak_memory() >= len(held)
    del held
    assert problem.peak_memory() >= before + (64 << 20)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
@pytest.mark.parametrize("status", [None, "Name:\tpython\nVmRSS:\t  812 kB\n"], ids=["no_proc", "no_peak"])
def test_peak_is_read_from_getrusage_without_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, unit: int, status: str | None
) -> None:
    if status is not None:
        (tmp_path / "status").write_text(status)
    monkeypatch.setattr(problem, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(sys, "platform", platform)
    least = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert least <= problem.peak_memory() <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
