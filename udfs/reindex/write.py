"""Targets of rebuilt side files: none (check), a folder of their own (output), the place of the old files (in place).

In place, a file is written under a name that Kafka and our listing ignore, flushed, read back, and renamed over the old
one: at any moment the name refers to the old bytes or the new ones. Files that a killed run left end in LEFTOVER, and
the next run removes them. Only side files are ever written, never a `.log`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import google_crc32c

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError, is_full
from lastkey.udfs.problem import Problem
from lastkey.udfs.read_back import check_written
from lastkey.udfs.reindex.judge import Verdict, unparsed
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, flush, flush_folder, make_folder, open_root, write_file

LEFTOVER: Final = ".reindex.tmp"  # ends in .tmp: ignored by Kafka, and by names.is_ignorable

Status = Literal["same", "differs", "rebuilt", "impossible"]


@dataclass(frozen=True)
class Target:
    """Target of rebuilt files."""

    mode: Literal["check", "output", "in_place"]
    archive_uri: str
    output_uri: str = ""  # mode "output"


@dataclass(frozen=True)
class FileReport:
    """Report on one file."""

    path: str
    kind: str  # names.KINDS without the log, or names.LEADER_EPOCH_CHECKPOINT; "log", "folder" where that is at fault
    status: Status
    reason: str = ""  # reason in judge_index.Verdict; for "impossible": the kind of problem
    position: int = -1
    entry: int = -1
    expected: str = ""
    found: str = ""
    bytes: int = 0  # size of the rebuilt file
    log: str = ""  # for "impossible": the .log at fault, which contains `position`


@dataclass(frozen=True)
class SideFilePlace:
    """Names of a side file, and of the files beside it."""

    folder: str  # folder of the partition, relative to the archive
    name: str  # as Kafka calls it: 00000000000000000042.index
    kind: str
    archived: str | None  # path of the file that is there, which may end in .swap
    log: str  # path of a .log beside it: a new file takes its owner and mode, and its suffix if it is .swap

    @property
    def path(self) -> str:
        """Path of the file, whether it exists or not."""
        if self.archived is not None:
            return self.archived
        log = self.log.rpartition("/")[2]
        alike = log.endswith(names.SWAP) and log.partition(".")[0] == self.name.partition(".")[0]
        return f"{self.folder}/{self.name}{names.SWAP if alike else ''}"  # a broker will rename both

    def report(self, status: Status, v: Verdict, n_bytes: int = 0) -> FileReport:
        """Return the report on the file. n_bytes: size of the rebuilt one."""
        return FileReport(self.path, self.kind, status, v.reason, v.position, v.entry, v.expected, v.found, n_bytes)


def impossible(path: str, kind: str, why: Problem) -> FileReport:
    """Return the report on a file that cannot be rebuilt, because a log has a problem, or on that log."""
    return FileReport(path, kind, "impossible", why.kind, why.position, -1, why.expected, why.found, 0, why.path)


def settle(target: Target, place: SideFilePlace, verdict: Verdict, data: bytes) -> tuple[FileReport, int]:
    """Write a side file if the target requires it; return its report and how many bytes were written.

    A file that cannot be written becomes a report too; only a full disk raises OSError.
    """
    if target.mode == "check":
        return place.report("differs" if verdict.reason else "same", verdict, len(data)), 0
    if target.mode == "in_place" and verdict.reason in ("", "other_entries"):
        return place.report("same", verdict, len(data)), 0
    try:
        if target.mode == "output":
            root, path = open_root(target.output_uri), f"{place.folder}/{place.name}"
            write_file(root, path, data)
            step("side file written")
            _check_written(root, path, data)
        else:
            replace_file(open_root(target.archive_uri), place, data)
    except OSError as error:
        if is_full(error):
            raise
        found = f"{type(error).__name__}: {error.strerror or error}"
        return place.report("impossible", Verdict("unwritable", expected="a file that can be written", found=found)), 0
    except LogFormatError as error:
        return place.report("impossible", unparsed(error, error.kind)), 0
    return place.report("rebuilt" if verdict.reason else "same", verdict, len(data)), len(data)


def new_folder(target: Target, folder: str) -> None:
    """Make the partition's folder in the output, before anything is written to it."""
    if target.mode == "output":
        make_folder(open_root(target.output_uri), folder)


def finish_folder(target: Target, folder: str, files: Iterable[FileReport]) -> None:
    """Flush the names in the folder, once these files are in it."""
    if target.mode == "output":
        root = open_root(target.output_uri)
        if root.is_local:
            flush_folder(root, folder)
    elif target.mode == "in_place" and any(file.status == "rebuilt" for file in files):
        flush(open_root(target.archive_uri), folder)


def remove_leftovers(root: Root, folder: str) -> int:
    """Remove what killed runs left in a partition's folder; return the number of files. Local only."""
    left = [path for path in Path(root.full(folder)).iterdir() if path.name.endswith(LEFTOVER)]
    for path in left:
        path.unlink()
    return len(left)


def replace_file(root: Root, place: SideFilePlace, data: bytes) -> None:
    """Replace a local side file by `data`, in one step."""
    path = place.path
    file = names.parse_segment_file(path.rpartition("/")[2])
    if file is not None and file.kind == names.LOG:
        raise ValueError(f"{path}: a log is never written")
    final = Path(root.full(path))
    ending = f".{uuid.uuid4().hex[:12]}{LEFTOVER}"  # its own: an earlier try of this task may still be writing
    temporary = final.with_name(final.name + ending)
    like = final if final.is_file() else Path(root.full(place.log))
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            step("side file written")
            _as_before(out.fileno(), like)
            os.fsync(out.fileno())  # before the rename: else a power cut could leave the new name without bytes
        step("side file flushed")
        _check_written(root, path + ending, data)
        step("side file checked")
        temporary.replace(final)
        step("side file replaced")
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _check_written(root: Root, path: str, data: bytes) -> None:
    check_written(root, path, len(data), int(google_crc32c.value(data)))


def _as_before(descriptor: int, like: Path) -> None:
    """Give an open file the mode and owner of the file that it replaces, as far as this process may."""
    stat = like.stat()
    with suppress(PermissionError):
        os.fchown(descriptor, stat.st_uid, stat.st_gid)
    os.fchmod(descriptor, stat.st_mode & 0o7777)  # after fchown, which clears bits
