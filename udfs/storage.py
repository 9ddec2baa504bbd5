"""Files of an archive or a store, through pyarrow.fs: nothing here renames or appends, so object stores work alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from logformat import regular_files
from logformat.errors import readable
from logformat.locations import file_system, refuse_secrets
from logformat.regular_files import odd_entries, open_input
from logformat.side_files.small_files import read_small_file


@dataclass(frozen=True)
class Root:
    """A folder of a file system; paths below it are relative, with forward slashes."""

    uri: str
    filesystem: Any
    base: str

    def full(self, path: str) -> str:
        """The path as the file system wants it."""
        return f"{self.base}/{path}" if path else self.base

    @property
    def is_local(self) -> bool:
        """Whether the files lie on a local file system (fsync, locks, file times)."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)


def normal_uri(path_or_uri: str) -> str:
    """A URI, or an absolute local path, of what a user typed. SecretInUriError: it holds credentials."""
    refuse_secrets(path_or_uri)
    if "://" in path_or_uri:
        return path_or_uri.rstrip("/")
    if path_or_uri.startswith("file:/"):  # as Hadoop writes local paths
        path_or_uri = path_or_uri.removeprefix("file:")
    return str(Path(path_or_uri).expanduser().absolute())


class UnknownRootError(ValueError):
    """A URI of no file system that pyarrow knows, or that is not well formed."""


def open_root(uri: str) -> Root:
    """The file system of a URI or absolute path. UnknownRootError, SecretInUriError."""
    try:
        filesystem, base = file_system(uri)
    except pa.ArrowInvalid as error:
        raise UnknownRootError(f"{uri}: expected a path, or a URI that pyarrow.fs knows, found {error}") from error
    return Root(uri, filesystem, base.rstrip("/"))


@cache
def cached_root(uri: str) -> Root:
    """`open_root`, once a process."""
    return open_root(uri)


def cached_place(uri: str) -> tuple[Any, str]:
    """The same as searches of a log want it: the file system, and the path on it."""
    root = cached_root(uri)
    return root.filesystem, root.base


def open_file(root: Root, path: str) -> Any:
    """An open file for reading, as pyarrow's are. OSError for what is no regular file, and what cannot be opened."""
    return open_input(root.filesystem, root.full(path))


def opened(root: Root, path: str) -> AbstractContextManager[Any]:
    """An open file for reading: an io.FileIO of a local one, of which batches.headers reads headers alone; else one of
    pyarrow's. What cannot be opened, or is no regular file, raises LogFormatError kind "unreadable".
    """
    return regular_files.opened(root.filesystem, root.full(path), path)


def read_file(root: Root, path: str, log_bytes: int = 0) -> bytes:
    """A small file, whole. log_bytes: of the log beside an index, where known. A larger file than is sensible for its
    kind raises LogFormatError kind "side_file", one that cannot be read "unreadable".
    """
    return read_small_file(root.filesystem, root.full(path), path, log_bytes)


def write_file(root: Root, path: str, data: bytes) -> None:
    """A small file, whole, flushed to the disk."""
    with root.filesystem.open_output_stream(root.full(path), compression=None) as stream:
        stream.write(data)
    flush(root, path)


def make_private(root: Root, path: str) -> None:
    """An empty file that its owner alone can read, for what is about to be written: keys and values. The umask can only
    take more away. Object stores have rules of their own.
    """
    if root.is_local:
        os.close(os.open(root.full(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def flush(root: Root, path: str) -> None:
    """Make a written file, or a folder's list of names, survive a power cut. Object stores do so by themselves."""
    if root.is_local:
        descriptor = os.open(root.full(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush_folder(root: Root, folder: str) -> None:
    """Flush a folder and those above it up to the root, so that its own name is there after a power cut too."""
    while True:
        flush(root, folder)
        if not folder:
            return
        folder = folder.rpartition("/")[0]


def make_folders(folder: Path) -> None:
    """Make a local folder and those above it that are not there; their names survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    flush_names(map(str, missing))


def flush_names(made: Iterable[str]) -> None:
    """Make the names of local files or folders that were made survive a power cut."""
    for folder in {os.path.dirname(path) for path in made}:  # noqa: PTH120 - as they are, links too
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def no_files(root: Root, path: str, listed: Iterable[pafs.FileInfo]) -> dict[str, str]:
    """Name -> what it is, of what lies in a folder and is neither a file nor a folder (`regular_files.odd_entries`)."""
    return odd_entries(root.filesystem, root.full(path), listed)


def folder_identity(root: Root, path: str) -> tuple[int, int] | None:
    """Which local folder it is, whatever names lead to it; None on other file systems, which have no links."""
    if not root.is_local:
        return None
    found = Path(root.full(path)).stat()
    return found.st_dev, found.st_ino


def is_link(root: Root, path: str) -> bool:
    """Whether the name is a symbolic link."""
    return root.is_local and Path(root.full(path)).is_symlink()


def exists(root: Root, path: str) -> bool:
    """Whether there is a file or folder of this name."""
    return bool(_info(root, path).type != pafs.FileType.NotFound)


def file_size(root: Root, path: str) -> int | None:
    """Bytes of a file; None where there is none."""
    info = _info(root, path)
    return int(info.size) if info.type == pafs.FileType.File else None


def _info(root: Root, path: str) -> Any:
    with readable(path):
        return root.filesystem.get_file_info(root.full(path))
