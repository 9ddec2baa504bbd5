"""Files of an archive or a store, through pyarrow.fs: no renames, no appends, so object stores work alike."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat.errors import PlaceError, readable
from lastkey.logformat.side_files.small_files import read_small_file
from lastkey.logformat.storage import regular_files
from lastkey.logformat.storage.buckets import is_bucket
from lastkey.logformat.storage.io_counts import paid
from lastkey.logformat.storage.locations import (
    TIERED,
    canonical,
    describe_entries,
    file_system,
    refuse_secrets,
    text_entries,
)
from lastkey.logformat.storage.regular_files import LogFile, odd_entries, open_input
from lastkey.logformat.tiered import objects as tiered

_UPLOAD_BYTES: Final = 8 << 20  # size of a part
_FLUSHES: Final = 4  # flushes at a time in a process; more cost processor time and finish no file earlier


@dataclass(frozen=True)
class Root:
    """A folder of a file system; paths below it are relative, with forward slashes."""

    uri: str
    filesystem: Any
    base: str

    def full(self, path: str) -> str:
        """Return the path as the file system wants it."""
        return f"{self.base}/{path}" if path else self.base

    def full_uri(self, path: str) -> str:
        """Return the path or URI by which another program finds a file, without options such as ?endpoint_override."""
        return self.full(path) if self.is_local else f"{self.uri.partition('?')[0].rstrip('/')}/{path}"

    @property
    def place(self) -> Root:
        """The root itself, not a view of it."""
        return Root(self.uri.removeprefix(TIERED), self.filesystem.filesystem, self.base) if self.is_tiered else self

    def as_tiered(self) -> Root:
        """Return the root as a view of the tiered storage that it holds."""
        return self if self.is_tiered else open_root(TIERED + self.uri)

    @property
    def is_tiered(self) -> bool:
        """True if it is a view of tiered storage."""
        return self.uri.startswith(TIERED)

    @property
    def is_local(self) -> bool:
        """True if the files are on a local file system (fsync, locks, file times)."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)


def normal_uri(path_or_uri: str) -> str:
    """Return a user's path as a normal URI or an absolute local path. Raises PlaceError if it holds credentials."""
    refuse_secrets(path_or_uri)
    if path_or_uri.startswith(TIERED):
        return TIERED + normal_uri(path_or_uri.removeprefix(TIERED))
    if "://" in path_or_uri:
        return canonical(path_or_uri).rstrip("/")
    if path_or_uri.startswith("file:/"):  # as Hadoop writes local paths
        path_or_uri = path_or_uri.removeprefix("file:")
    return str(Path(path_or_uri).expanduser().absolute())


def same_kind(uri: str, before: str) -> str:
    """Return the URI of a moved archive in its former kind: a view of tiered storage, or a plain URI."""
    return TIERED + uri.removeprefix(TIERED) if before.startswith(TIERED) else uri


def open_root(uri: str) -> Root:
    """Return the root at a URI or absolute path. Raises PlaceError."""
    if uri.startswith(TIERED):
        from lastkey.logformat.tiered.view import TieredFileSystem  # noqa: PLC0415 - only the view needs kernels

        place = open_root(uri.removeprefix(TIERED))
        return Root(uri, TieredFileSystem(place.filesystem, place.uri), place.base)
    try:
        filesystem, base = file_system(uri)
    except pa.ArrowInvalid as error:
        raise PlaceError(f"{uri}: expected a path, or the URI of a bucket, found {error}") from error
    return Root(uri, filesystem, base.rstrip("/"))


def cached_root(uri: str) -> Root:
    """Return `open_root(uri)`, made once a process; for buckets once for the settings in the environment."""
    return open_root(uri) if is_bucket(canonical(uri.removeprefix(TIERED))) else root_made_once(uri)


@cache
def root_made_once(uri: str) -> Root:
    """Return `open_root(uri)`, made once a process."""
    return open_root(uri)


def cached_place(uri: str) -> tuple[Any, str]:
    """Return (file system, path on it) of a URI, as searches of a log want them."""
    root = cached_root(uri)
    return root.filesystem, root.base


def open_file(root: Root, path: str) -> Any:
    """Open a file for reading, through pyarrow. Raises OSError if it cannot be opened or is no regular file."""
    return open_input(root.filesystem, root.full(path))


def opened(root: Root, path: str) -> AbstractContextManager[Any]:
    """Open a file for reading: a local file as io.FileIO, so that batches.reader can read headers alone; else with
    pyarrow.

    Raises LogFormatError kind "unreadable" if it cannot be opened or is no regular file.
    """
    return regular_files.open_regular(root.filesystem, root.full(path), path)


def log_file(root: Root, path: str, size: int | None = None, shown: str = "") -> LogFile:
    """Return a `.log` for a LogReader; size: bytes that count, as listed; shown: its path in messages, if another."""
    return LogFile(lambda: opened(root, path), shown or path, size)


def read_file(root: Root, path: str, log_bytes: int = 0) -> bytes:
    """Return the bytes of a small file. log_bytes: size of the log beside an index, if known.

    Raises LogFormatError kind "side_file" if the file is larger than its kind can sensibly be, "unreadable" if it
    cannot be read.
    """
    return read_small_file(root.filesystem, root.full(path), path, log_bytes)


def open_output(root: Root, path: str) -> Any:
    """Open a new file for writing. Written bytes count for the limit on I/O."""
    return paid(root.filesystem.open_output_stream(root.full(path), compression=None))


@contextlib.contextmanager
def native_output(root: Root, path: str, check: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """Yield a stream of Arrow's own to a new file. A writer of Arrow that calls a stream of Python's aborts the process
    if that ends meanwhile, as after another task's error.

    In a bucket the file is a copy of a temporary one. check: called before an upload is complete; may raise.
    """
    if root.is_local:
        with root.filesystem.open_output_stream(root.full(path), compression=None) as stream:
            yield stream
        return
    with tempfile.NamedTemporaryFile(prefix="lastkey-") as copy:
        with pa.OSFile(copy.name, "wb") as stream:
            yield stream
        with root.filesystem.open_output_stream(root.full(path), compression=None) as upload:
            while data := copy.read(_UPLOAD_BYTES):
                upload.write(data)
            check()


def put_file(root: Root, path: str, data: bytes | memoryview) -> None:
    """Write a small file, for a later `flush_all` or `flush_whole`."""
    with open_output(root, path) as stream:
        stream.write(data)


def write_file(root: Root, path: str, data: bytes | memoryview) -> None:
    """Write a small file and flush it to the disk."""
    put_file(root, path, data)
    flush(root, path)


def put_if_absent(root: Root, path: str, data: bytes) -> bool:
    """Write a small file under an unused name, complete and flushed on return. Return False if the name is in use; the
    folder is flushed then too, so the name survives a power cut. After an OSError the file may exist nevertheless.

    An object store does this by itself. On a disk the order is: 1. the bytes go to a file of another name, and are
    flushed; 2. a hard link, which replaces no file, gives them their name; 3. the folder is flushed. ext4 and XFS write
    a file's size and blocks after its name if it is not flushed. A power cut can then leave it empty, cut short or with
    zeros. Here that can happen only between 1 and 2, under the other name, which starts with a dot and is never read.
    Between 2 and 3 the name may be lost, but no result was reported. After step 3 the name is durable. A file under its
    final name is therefore complete; an incomplete one was changed later.
    """
    if not root.is_local:
        return bool(root.filesystem.put_if_absent(root.full(path), data))
    folder, _, name = path.rpartition("/")
    other = f"{folder}/.{name}.{uuid.uuid4().hex}"
    try:
        with root.filesystem.open_output_stream(root.full(other), compression=None) as stream:
            stream.write(data)
        flush(root, other)
        os.link(root.full(other), root.full(path))
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):  # it occupies space until old commits are deleted
            os.unlink(root.full(other))  # noqa: PTH108
        flush(root, folder)
    return True


def make_private(root: Root, path: str) -> None:
    """Make an empty file that its owner alone can read, before keys and values are written to it.

    The umask can only take more away. Has no effect in object stores, which have rules of their own.
    """
    if root.is_local:
        os.close(os.open(root.full(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def flush(root: Root, path: str) -> None:
    """Make a written file, or a folder's list of names, survive a power cut. Object stores do so by themselves."""
    if root.is_local:
        _flush_and_close(os.open(root.full(path), os.O_RDONLY))


def _flush_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def flushing(root: Root, path: str) -> Iterator[None]:
    """Flush a file while the block runs, and on after it: the `flush_whole` of its folder waits for that and raises its
    error. If the block fails too, raise the flush's error here: it explains why the bytes differ. Where the disk is
    slower than the task, wait after the block for the folder's oldest flush, and raise its error.
    """
    if not root.is_local:
        yield
        return
    file = os.open(root.full(path), os.O_RDONLY)  # here: retention may delete it before a thread is free
    flushed = _flushers(os.getpid()).submit(_flush_and_close, file)
    begun = _begun.setdefault((os.getpid(), root.full(path.rpartition("/")[0])), [])
    begun.append(flushed)
    try:
        yield
    except BaseException:
        flushed.result()
        raise
    while len(begun) > _FLUSHES:  # each holds a file open
        begun.pop(0).result()


_begun: dict[tuple[int, str], list[Future[None]]] = {}  # flushes that `flush_whole` waits for: process, folder


def await_flushes(root: Root, folder: str) -> None:
    """Wait for the flushes that `flushing` has begun in a folder to delete, and ignore their results."""
    for flushed in _begun.pop((os.getpid(), root.full(folder)), ()):
        flushed.exception()


def flush_all(root: Root, paths: Iterable[str]) -> None:
    """Flush files and folders, many at once: a file system's journal commits them together. On ext4 a dozen small files
    take 3 ms so, and 40 ms one after the other.
    """
    if root.is_local:
        list(_flushers(os.getpid()).map(lambda path: flush(root, path), paths))


@cache
def _flushers(process: int) -> ThreadPoolExecutor:
    """Return this process's threads: a fork does not inherit them, and to start them for each folder takes 1 ms."""
    return ThreadPoolExecutor(_FLUSHES, thread_name_prefix=f"flush-{process}")


def flush_whole(root: Root, folder: str) -> None:
    """Flush all files of a folder, its names, and the names above it up to the root."""
    if root.is_local:
        with os.scandir(root.full(folder)) as entries:
            files = [f"{folder}/{entry.name}" for entry in entries if entry.is_file()]
        flush_all(root, [*files, *_and_above(folder)])
        for flushed in _begun.pop((os.getpid(), root.full(folder)), ()):
            flushed.result()


def set_time(root: Root, path: str, mtime_ns: int) -> None:
    """Give a file, or a folder, this modification time. Object stores keep times of their own."""
    if root.is_local:
        os.utime(root.full(path), ns=(mtime_ns, mtime_ns))


def flush_folder(root: Root, folder: str) -> None:
    """Flush a folder and those above it up to the root, so that its own name survives a power cut too."""
    flush_all(root, _and_above(folder))


def _and_above(folder: str) -> list[str]:
    """Return a folder and those above it up to the root, which is ""."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]


def make_folder(root: Root, path: str) -> Root:
    """Make a folder and those above it that are missing; a bucket needs none. Return the root."""
    root.filesystem.create_dir(root.full(path), recursive=True)
    return root


def make_folders(folder: Path) -> None:
    """Make a local folder and its missing parents; their names survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    flush_names(map(str, missing))


def flush_names(paths: Iterable[str]) -> None:
    """Make the names of newly made local files or folders survive a power cut."""
    for folder in {os.path.dirname(path) for path in paths}:  # noqa: PTH120 - as they are, links too
        _flush_and_close(os.open(folder, os.O_RDONLY))


def no_files(root: Root, path: str, listed: Iterable[pafs.FileInfo]) -> dict[str, str]:
    """Return name -> kind of the entries in a folder that are neither file nor folder (`regular_files.odd_entries`)."""
    return odd_entries(root.filesystem, root.full(path), listed)


def folder_identity(root: Root, path: str) -> tuple[int, int] | None:
    """Return device and inode of a local folder, the same for all its names; None elsewhere: there are no links."""
    if not root.place.is_local:
        return None
    found = Path(root.full(path)).stat()
    return found.st_dev, found.st_ino


def is_link(root: Root, path: str) -> bool:
    """Return whether the name is a symbolic link."""
    return root.place.is_local and Path(root.full(path)).is_symlink()


def links_in(root: Root, folder: str) -> set[str]:
    """Return the names in a folder that are symbolic links; none in an object store, or without such a folder."""
    if not root.place.is_local:
        return set()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(root.full(folder)) as entries:
        return {entry.name for entry in entries if entry.is_symlink()}
    return set()


def links_below(root: Root) -> Iterator[str]:
    """Yield the path of each symbolic link below a local folder, at any depth."""
    for folder, folders, files in os.walk(root.base) if root.is_local else ():
        paths = (os.path.join(folder, name) for name in (*folders, *files))  # noqa: PTH118 - of very many
        yield from (path.removeprefix(f"{root.base}/") for path in paths if os.path.islink(path))  # noqa: PTH114


def occupied_by(root: Root) -> str:
    """Return the kind of the obstacle to a new folder; "": no entry, or an empty folder. A listing of pyarrow has
    neither links without a target nor names that are not UTF-8.
    """
    info = _info(root, "")
    if info.type == pafs.FileType.File:
        return "a file"
    if info.type != pafs.FileType.Directory:
        return (root.is_local and regular_files.kind_of_path(root.base)) or ""
    if listed := root.filesystem.get_file_info(pafs.FileSelector(root.base)):
        return describe_entries(listed)
    names = [os.fsencode(name) for name in os.listdir(root.base)] if root.is_local else []  # noqa: PTH208
    return f"{names[0].decode(errors='replace')} and {len(names) - 1} more" if names else ""


def delete_folder(root: Root, path: str) -> None:
    """Delete a folder and all in it."""
    root.filesystem.delete_dir(root.full(path))


def exists(root: Root, path: str) -> bool:
    """Return whether there is a file or folder of this name."""
    return bool(_info(root, path).type != pafs.FileType.NotFound)


def file_size(root: Root, path: str) -> int | None:
    """Return the bytes of a file; None if missing."""
    info = _info(root, path)
    return int(info.size) if info.type == pafs.FileType.File else None


def sizes_in(root: Root, folder: str) -> dict[str, int]:
    """Return name -> bytes of the files in a folder, by one request; none if there is no such folder."""
    listed = root.filesystem.get_file_info(pafs.FileSelector(root.full(folder), allow_not_found=True))
    return {str(one.base_name): int(one.size) for one in text_entries(listed)[0] if one.type == pafs.FileType.File}


def absent(root: Root, wanted: Sequence[tuple[str, int]]) -> list[str]:
    """Return the paths of files, given with their bytes, that are missing or shorter."""
    infos = root.filesystem.get_file_info([root.full(path) for path, _ in wanted]) if wanted else []
    there = [info.size if info.type == pafs.FileType.File else -1 for info in infos]
    return [path for (path, size), found in zip(wanted, there, strict=True) if found < size]


def _info(root: Root, path: str) -> Any:
    with readable(path):
        return root.filesystem.get_file_info(root.full(path))


def list_objects(root: Root, path: str) -> list[str]:
    """Return the paths or URIs that a deletion of a file affects: the file, or its objects in tiered storage."""
    if not root.is_tiered:
        return [root.full_uri(path)]
    place = root.place
    start = len(place.base) + 1
    return [place.full_uri(found[start:]) for found in root.filesystem.objects(root.full(path))]


def holds_segments(root: Root, path: str, files: Iterable[str]) -> bool:
    """Return whether a folder with these files holds remote segments, and the root is not a view of them yet."""
    return not root.is_tiered and tiered.holds_segments(root.full(path), files)


def copies_left_out(root: Root, path: str) -> tuple[str, ...]:
    """Return the paths of the remote copies of a partition's segments that its folder does not show, or not whole."""
    return tuple(root.filesystem.left_out(root.full(path))) if root.is_tiered else ()


def is_remote(root: Root, path: str) -> bool:
    """Return whether a partition's folder is a view of remote segments, as Kafka's or Aiven's plugin uploads them."""
    above = tiered.remote_partition(root.full(path).rpartition("/")[0]) if root.is_tiered else None
    return above is not None and bool(above.topic_id)


def notes_on_copies(root: Root, path: str) -> tuple[str, ...]:
    """Return the notes on the remote segments in a partition's folder."""
    return tuple(root.filesystem.notes(root.full(path))) if root.is_tiered else ()
