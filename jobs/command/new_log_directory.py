"""A new log directory: a run that fails, or is interrupted, removes only what it has created of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import fs as pafs

from lastkey.jobs.archive.broker_lock import locked
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import LOG_DIRECTORY_FULL
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.errors import is_full
from lastkey.logformat.side_files.checkpoints import write_clean_shutdown, write_offset_checkpoint
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.storage import Root, delete_folder, flush, flush_names, make_folder, write_file

_NAMED = 10  # paths that an error names


@dataclass
class CreatedFiles:
    """Files and folders that a run makes below a root, so that it can remove these and no others.

    They are noted before they are made, from any thread.
    """

    root: Root
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # full paths; each before the folders in it
    trees: list[str] = field(default_factory=list)  # folders that tasks fill: all that is in them
    given_up: bool = False  # no more files: `file` raises

    def file(self, path: str) -> str:
        """Note a file that is about to be written, and return its path. InterruptedError: the run has given up."""
        if self.given_up:
            raise InterruptedError("the run ended")
        self.files.append(path)
        return path

    def folder(self, path: str) -> Root:
        """Make a folder, and those above it that are missing; return the root."""
        missing = []
        above = self.root.full(path)
        while above and above not in self.folders:
            if self.root.filesystem.get_file_info(above).type != pafs.FileType.NotFound:
                break
            missing.append(above)
            above = above.rpartition("/")[0]
        self.folders += missing[::-1]
        return make_folder(self.root, path)

    def flush_names(self) -> None:
        """Flush the names of the root and of the created folders above it."""
        if self.root.is_local:
            flush_names(folder for folder in self.folders if len(folder) <= len(self.root.base))

    def take_back(self) -> list[str]:
        """Remove the files that were made, and folders that are then empty. Return the files that are left below the
        root: they are not ours, or could not be removed.
        """
        for path in self.trees:
            with contextlib.suppress(OSError):  # not written yet; or it cannot be removed, and is listed below
                delete_folder(self.root, path)
        for path in self.files:
            with contextlib.suppress(OSError):
                self.root.filesystem.delete_file(self.root.full(path))
        for folder in reversed(self.folders):
            with contextlib.suppress(OSError):
                self._remove_empty(folder)
        try:
            below = pafs.FileSelector(self.root.base, recursive=True, allow_not_found=True)
            found, _ = text_entries(self.root.filesystem.get_file_info(below))
        except OSError:  # unknown; perhaps all of it
            return [*self.trees, *self.files]
        return sorted(info.path.removeprefix(f"{self.root.base}/") for info in found if info.type == pafs.FileType.File)

    def _remove_empty(self, folder: str) -> None:
        if self.root.is_local:
            os.rmdir(folder)  # noqa: PTH106 - fails if the folder holds something, whenever that came
        elif not self.root.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
            self.root.filesystem.delete_dir(folder)


@contextlib.contextmanager
def new_log_directory(root: Root) -> Iterator[CreatedFiles]:
    """Yield a record of what the block creates in an empty folder, which it holds against other runs. If the block
    fails, or is interrupted, remove that; raise LOG_DIRECTORY_FULL if the disk is full.
    """
    created = CreatedFiles(root)
    try:
        created.folder("")
        with locked([Path(root.base)]) if root.is_local else contextlib.nullcontext():
            check_empty(root)  # again: planning takes a while, and a failed run removes files by their names
            yield created
    except BaseException as error:  # interrupted as well: half a log directory must not look like one
        _take_back(created, error)
        if not is_full(error):
            raise
        disk_full = LOG_DIRECTORY_FULL(path=getattr(error, "filename", None) or root.uri, found="disk full")
        for note in getattr(error, "__notes__", ()):
            disk_full.add_note(note)
        raise disk_full from error


def encode_checkpoints(
    ends: Mapping[Key, int], cleaned: Mapping[Key, int], starts: Mapping[Key, int]
) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of a log directory's checkpoints, from offsets of its partitions."""
    for name, offsets in (
        (names.RECOVERY_POINT_CHECKPOINT, ends),
        (names.HIGH_WATERMARK_CHECKPOINT, ends),
        (names.CLEANER_OFFSET_CHECKPOINT, cleaned),
        (names.LOG_START_OFFSET_CHECKPOINT, starts),
    ):
        yield name, write_offset_checkpoint(offsets)


def finish_log_directory(created: CreatedFiles, checkpoints: Iterable[tuple[str, bytes]]) -> None:
    """Write the checkpoints, then the mark of a clean shutdown, and flush all names."""
    for name, data in checkpoints:
        write_file(created.root, created.file(name), data)
    # Last: with this file a broker trusts all files above; without it, it checks every segment itself.
    write_file(created.root, created.file(names.CLEAN_SHUTDOWN), write_clean_shutdown())
    flush(created.root, "")
    created.flush_names()


def _take_back(created: CreatedFiles, error: BaseException) -> None:
    """Remove what a run wrote that failed with this error, and add to the error what is left."""
    try:
        left = created.take_back()
    except BaseException as again:
        again.add_note(f"{created.root.uri} still holds part of the output: remove it, and run again")
        raise
    if left:
        error.add_note(f"left in {created.root.uri}: {abbreviate_paths(left)}")
    if not isinstance(error, Exception):
        error.add_note("this run removed what it wrote; run again")


def abbreviate_paths(paths: Sequence[str]) -> str:
    """Return paths for an error, only the first ones if there are many."""
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
