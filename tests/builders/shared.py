"""A folder for what one process of a run of tests makes for all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = "LASTKEY_TESTS_SHARED"  # the folder, for a run within a run


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of a run of tests have, each below it one of its own."""
    if SHARED in os.environ:
        return Path(os.environ[SHARED])
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
