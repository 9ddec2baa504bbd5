"""Comparison of a written `.log` with its intended content, by reading it back; and of many logs with the store's
records of size and checksum, before files of the archive may be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.storage.regular_files import following, will_read
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.storage import Root, open_root, opened

_PART_BYTES: Final = 8 << 20


def check_written(store: Root, path: str, size: int, checksum: int) -> None:
    """Read a written `.log` back, and raise LogFormatError kind "readback" unless it has this size and CRC-32C."""
    checksum_read, buffer = 0, np.empty(min(_PART_BYTES, size), np.uint8)
    with opened(store, path) as file:
        if file.size() != size:
            raise LogFormatError("readback", path, 0, f"{size} bytes", f"{file.size()}")
        for start in range(0, size, _PART_BYTES):
            part = buffer[: size - start]
            read_exactly(file, path, start, part)
            will_read(file, following(start + len(part), size, _PART_BYTES))
            checksum_read = crc32c_extend(checksum_read, part)
    if checksum_read != checksum:
        raise LogFormatError("readback", path, 0, f"checksum {checksum:#010x}, as scanned", f"{checksum_read:#010x}")


@dataclass(frozen=True)
class KnownFile:
    """A `.log` as a store knows it."""

    path: str  # relative to its root
    size: int
    checksum: int  # CRC-32C of all its bytes


@dataclass(frozen=True)
class FilesPlan:
    """Files of one partition to read."""

    name: str
    store_uri: str
    stored: tuple[KnownFile, ...]  # files of its generation
    archive_uri: str
    archived: tuple[KnownFile, ...]  # sources of the generation, by offset


@dataclass(frozen=True)
class FilesResult:
    """Result of reading them."""

    store_problem: Problem | None  # the first file of the generation that has changed
    n_same: int = 0  # so many of the archive's first files are what they were
    archive_problem: Problem | None = None  # problem of the next file of the archive


def compare_files(plan: FilesPlan) -> FilesResult:
    """Read the generation's files, then the archive's, up to the first file that differs from the store's record."""
    store_problem, _ = _same(plan.name, plan.store_uri, plan.stored)
    if store_problem is not None:
        return FilesResult(store_problem)
    archive_problem, n_same = _same(plan.name, plan.archive_uri, plan.archived)
    return FilesResult(None, n_same, archive_problem)


def _same(name: str, uri: str, files: tuple[KnownFile, ...]) -> tuple[Problem | None, int]:
    for n, file in enumerate(files):
        done = attempt(name, partial(check_written, open_root(uri), file.path, file.size, file.checksum), logged=False)
        if isinstance(done, Problem):
            return done, n
    return None, len(files)
