"""Logs compared with what a store says of them, byte by byte, before somebody deletes the archive's."""

from __future__ import annotations

from dataclasses import dataclass

from lastkey.udfs.attempt import attempt
from lastkey.udfs.problem import Problem
from lastkey.udfs.read_back import check_written
from lastkey.udfs.storage import open_root


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
    stored: tuple[KnownFile, ...]  # those of its generation
    archive_uri: str
    archived: tuple[KnownFile, ...]  # those that the generation was made of, by offset


@dataclass(frozen=True)
class FilesResult:
    """Result of reading them."""

    store_problem: Problem | None  # the first file of the generation that is another one now
    n_same: int = 0  # so many of the archive's first files are what they were
    archive_problem: Problem | None = None  # of the next one


def compare_files(plan: FilesPlan) -> FilesResult:
    """Read the generation's files, then the archive's, up to the first that differs from what the store says of it."""
    store_problem, _ = _same(plan.name, plan.store_uri, plan.stored)
    if store_problem is not None:
        return FilesResult(store_problem)
    archive_problem, n_same = _same(plan.name, plan.archive_uri, plan.archived)
    return FilesResult(None, n_same, archive_problem)


def _same(name: str, uri: str, files: tuple[KnownFile, ...]) -> tuple[Problem | None, int]:
    for n, file in enumerate(files):
        done = attempt(name, lambda file=file: check_written(open_root(uri), file.path, file.size, file.checksum))
        if isinstance(done, Problem):
            return done, n
    return None, len(files)
