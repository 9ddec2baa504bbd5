"""Files opened for reading: regular ones alone.

What takes a file's place (a named pipe, a socket, a device) can let a reader wait for ever, and what a listing said
before may be no longer so. So a local file is opened without waiting, and asked what it is before anything is read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyarrow import fs as pafs

from logformat.errors import readable
from logformat.locations import text_entries

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


class RegularFile(io.FileIO):
    """A local file as pyarrow's files are: with a size, and reads that end early only at its end."""

    def size(self) -> int:
        """Bytes that it has now."""
        return os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, all of them by default."""
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

    def __del__(self) -> None:  # closed when it is let go of, without a warning
        self.close()


def open_local(path: str) -> RegularFile:
    """A local file that is there and a regular one. OSError for any other, in pyarrow's words; it never waits."""
    return RegularFile(path, opener=_open)


def open_input(filesystem: Any, path: str) -> Any:
    """A file of any file system: open_local, or pyarrow's own."""
    return open_local(path) if isinstance(filesystem, pafs.LocalFileSystem) else filesystem.open_input_file(path)


@contextmanager
def opened(filesystem: Any, path: str, shown: str = "") -> Iterator[Any]:
    """open_input, closed behind the block. What cannot be opened, or is no regular file, raises LogFormatError kind
    "unreadable"; shown: the path as it stands in messages, where that is another one.
    """
    with readable(shown or path):
        file = open_input(filesystem, path)
    with file:
        yield file


def kind_of_path(path: str) -> str | None:
    """What lies at a local path; None: a regular file, or nothing at all."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return "a link to nothing" if Path(path).is_symlink() else None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def odd_entries(filesystem: Any, path: str, listed: Iterable[pafs.FileInfo]) -> dict[str, str]:
    """Name -> what it is, of what lies in a folder and is no regular file and no folder. `listed`: what pyarrow says is
    there, which leaves out links to nothing. Object stores
    have none.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return {}
    usual = {info.base_name for info in listed if info.type in (pafs.FileType.File, pafs.FileType.Directory)}
    others = [name for name in sorted(os.listdir(path)) if name not in usual and _is_text(name)]  # noqa: PTH208
    kinds = {name: kind_of_path(f"{path}/{name}") for name in others}  # a file or folder: it came since the listing
    return {name: kind for name, kind in kinds.items() if kind not in (None, _KINDS[stat.S_IFDIR])}


def files_below(filesystem: Any, path: str) -> list[pafs.FileInfo]:
    """What lies in a folder, at any depth. pyarrow follows links to folders, and would do so for ever in a circle: here
    a local folder counts once, under its own name where it has one below `path`.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return list(filesystem.get_file_info(pafs.FileSelector(path, recursive=True)))
    out: list[pafs.FileInfo] = []
    seen: set[tuple[int, int]] = set()
    folders: list[str] = [path]
    links: list[str] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
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
        if error.errno == errno.ENXIO:  # a socket cannot even be opened
            raise _refused(path, errno.EINVAL, f"{kind_of_path(path) or 'nothing'}, no regular file") from error
        raise _refused(path, error.errno or 0, f"[errno {error.errno}] {error.strerror}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        found = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise _refused(path, errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{found}, no regular file")
    return descriptor


def _refused(path: str, number: int, found: str) -> OSError:
    return OSError(number, f"Failed to open local file '{path}'. Detail: {found}")
