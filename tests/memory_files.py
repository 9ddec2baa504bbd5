"""Keeps the files of tests in memory, if there is enough.

A run makes and deletes files by the hundred thousand. A disk's file system takes a quarter of the processor seconds of
the tests that write most: it looks for inodes among the deleted ones. PYTEST_DEBUG_TEMPROOT, pytest's own, names
another place.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = "PYTEST_DEBUG_TEMPROOT"
_FOLDER = Path("/dev/shm")  # a tmpfs on Linux; absent on macOS, small in most containers
_FREE_BYTES = 8 << 30
_MEMORY_BYTES = 16 << 30  # memory of the machine: two sessions and a broker run beside


def keep_files_in_memory() -> None:
    """Let pytest make its folders in memory, where they fit and the programs in them may run."""
    if ROOT not in os.environ and _FOLDER.is_dir() and _fits() and not os.statvfs(_FOLDER).f_flag & os.ST_NOEXEC:
        os.environ[ROOT] = str(_FOLDER)


def _fits() -> bool:
    return shutil.disk_usage(_FOLDER).free >= _FREE_BYTES and memory_bytes() >= _MEMORY_BYTES


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
