"""Opening of files for reading: regular files only.

A named pipe, a socket or a device in a file's place can make a reader wait for ever. A listing may be out of date. So a
local file is opened without blocking, and its type is checked before any byte is read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import fs as pafs

from lastkey.logformat.errors import readable
from lastkey.logformat.storage.locations import text_entries

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


class RegularFile(io.FileIO):
    """A local file that behaves like pyarrow's files: it has a size, and a read ends early only at the file's end."""

    def size(self) -> int:
        """Return the number of bytes that the file has now."""
        return os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read the next `size` bytes, by default all up to the end."""
        if size is None or size < 0:
            return self.readall()
        parts, left = [], size
        while left:
            part = super().read(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:  # closes without a ResourceWarning
        self.close()


def open_local(path: str) -> RegularFile:
    """Open an existing regular local file, without ever waiting. Raise OSError in pyarrow's words for anything else."""
    return RegularFile(path, opener=_open)


def open_input(filesystem: Any, path: str) -> Any:
    """Open a file of any file system: a local one by `open_local`."""
    is_local = isinstance(filesystem, pafs.LocalFileSystem)
    return open_local(path) if is_local else filesystem.open_input_file(path)


@contextmanager
def open_regular(filesystem: Any, path: str, shown: str = "") -> Iterator[Any]:
    """Open a file by `open_input`, and close it after the block.

    Raise LogFormatError kind "unreadable" if it cannot be opened or is not a regular file. Messages show the path
    `shown`, if it is given.
    """
    with readable(shown or path):
        file = open_input(filesystem, path)
    with file:
        yield file


def will_read(file: Any, wanted: Iterable[tuple[int, int]]) -> None:
    """Announce the next reads, (position, bytes), to a file of a bucket; for files on a disk it has no effect."""
    if (tell := getattr(file, "will_read", None)) is not None:
        tell(wanted)


def following(position: int, end: int, size: int) -> Iterable[tuple[int, int]]:
    """Return the (position, bytes) of the parts of bytes [position, end), `size` bytes each."""
    return ((start, min(size, end - start)) for start in range(position, end, size))


@dataclass(frozen=True)
class LogFile:
    """A `.log` to read, by any way of opening."""

    open: Callable[[], AbstractContextManager[Any]]  # the open file has size(), seek(), readinto()
    path: str  # in messages
    size: int | None = None  # bytes that count, as listed; None: all that the file has when it is opened

    @classmethod
    def opened(cls, file: Any, path: str, size: int | None = None) -> LogFile:
        """Return a log that is open already, and stays so."""
        return cls(lambda: nullcontext(file), path, size)


def kind_of_path(path: str) -> str | None:
    """Return the kind of thing at a local path, such as "a named pipe"; None for a regular file or a missing one."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return "a broken link" if Path(path).is_symlink() else None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def odd_entries(filesystem: Any, path: str, listed: Iterable[pafs.FileInfo]) -> dict[str, str]:
    """Return name -> kind of each entry of a folder that is neither a regular file nor a folder.

    listed: pyarrow's listing of the folder, which leaves out links without a target. An object store has no such
    entries.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return {}
    usual = {info.base_name for info in listed if info.type in (pafs.FileType.File, pafs.FileType.Directory)}
    others = [name for name in sorted(os.listdir(path)) if name not in usual and _is_text(name)]  # noqa: PTH208
    kinds = {name: kind_of_path(f"{path}/{name}") for name in others}  # a file or folder is new since the listing
    return {name: kind for name, kind in kinds.items() if kind not in (None, _KINDS[stat.S_IFDIR])}


def files_below(filesystem: Any, path: str) -> list[pafs.FileInfo]:
    """List all entries of a folder, at any depth.

    pyarrow follows links to folders, and would never end in a circle of them. Here each local folder counts once, under
    its own name if it has one below `path`.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return list(filesystem.get_file_info(pafs.FileSelector(path, recursive=True)))
    out: list[pafs.FileInfo] = []
    seen: set[tuple[int, int]] = set()
    folders: list[str] = [path]
    links: list[str] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        listed = filesystem.get_file_info(pafs.FileSelector(folder))
        out += listed
        for info in text_entries(listed)[0]:
            if info.type == pafs.FileType.Directory:
                (links if Path(info.path).is_symlink() else folders).append(info.path)
    return out


def _is_text(name: str) -> bool:
    return name.isascii() or name.encode(errors="replace") == name.encode(errors="surrogateescape")


def _open(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket cannot be opened at all
            raise _refused(path, errno.EINVAL, f"{kind_of_path(path) or 'nothing'}, not a regular file") from error
        raise _refused(path, error.errno or 0, f"[errno {error.errno}] {error.strerror}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        found = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise _refused(path, errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{found}, not a regular file")
    return descriptor


def _refused(path: str, number: int, found: str) -> OSError:
    return OSError(number, f"Failed to open local file '{path}'. Detail: {found}")
