"""Packs for clusters, each made once in a session of tests, whichever of its processes asks first."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.shared import shared_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack for executors."""
    return _once(tmp_path_factory, "lastkey.tar.gz")


@pytest.fixture(scope="session")
def drivers_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pack for drivers and executors."""
    return _once(tmp_path_factory, "lastkey-driver.tar.gz", "--driver")


def _once(tmp_path_factory: pytest.TempPathFactory, name: str, *words: str) -> Path:
    path = shared_folder(tmp_path_factory) / name
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = subprocess.run(
                [ROOT / "spark-submit.sh", "pack", path, *words], capture_output=True, text=True, check=False,
                env=os.environ | {"LASTKEY_VENV": sys.prefix},
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
    return path
