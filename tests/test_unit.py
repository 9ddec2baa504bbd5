"""The unit subset starts no process: its check is tested to fail."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes import BESIDE
from tests.unit import FOLDERS, no_process


@pytest.mark.parametrize("start", [os.fork, lambda: subprocess.run([sys.executable, "-V"], check=True)])
def test_unit_test_that_starts_a_process_fails(start):
    with pytest.raises(AssertionError, match="a unit test starts a process"), no_process():
        start()
    with pytest.raises(AssertionError, match="a unit test started a process"), no_process(), suppress(AssertionError):
        start()


def test_other_tests_may_start_processes(request):
    assert request.node.get_closest_marker("unit") is None
    subprocess.run([sys.executable, "-V"], check=True, capture_output=True)


def test_the_folders_of_the_subset_exist():
    assert all(list(folder.rglob("test_*.py")) for folder in FOLDERS)


def test_the_files_of_the_third_process_exist():
    root = Path(__file__).resolve().parents[1]
    assert [name for name in BESIDE if not (root / name).exists()] == []
