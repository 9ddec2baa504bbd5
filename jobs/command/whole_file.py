"""Output files and folders named by a user: the files that they may replace, and the rename of a complete file.

A user can misspell a name, and an archive is often the only copy. So a command replaces only a file of the kind that it
writes, or an empty one, and writes only to an empty folder. It never writes through a symbolic link: the target may
belong to another program. It never writes to a local store or partition, whether or not an option names it.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pyarrow import fs as pafs

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.errors import NOT_EMPTY, JobError, UsageError
from lastkey.jobs.store.folders import check_not_inside
from lastkey.logformat.errors import is_full
from lastkey.udfs.storage import Root, is_link, normal_uri, occupied_by, open_file, open_root, write_file

_HEAD_BYTES: Final = 256 << 10
_PLAN_LINE: Final = re.compile(rb'"?[^",\n]+"?,\d+,\d+\r?\n?')


@dataclass(frozen=True)
class Kind:
    """Kind of a file that a command writes."""

    name: str
    is_ours: Callable[[bytes], bool]  # true for the first bytes of a file of this kind


METRICS: Final = Kind("metrics of Lastkey", lambda head: head.startswith(b"# TYPE lastkey_"))  # ending.py
PAGE: Final = Kind("a page of Lastkey", lambda head: b'<p class="muted">Lastkey, ' in head)  # report/templates
POLICIES: Final = Kind("policies of Lastkey", lambda head: head.startswith(b"# Policies of "))  # cluster_configs.py
NEW: Final = Kind("an empty file", lambda _: False)  # a proof is never replaced
PLAN: Final = Kind("offsets of kafka-consumer-groups", lambda head: _PLAN_LINE.match(head) is not None)
PACK: Final = Kind("a pack of Lastkey", lambda head: _unpacked(head).startswith(b"bin/python\0"))


def _unpacked(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, 512)
    except zlib.error:
        return b""


def check_file(
    option: str, uri: str, kind: Kind, archives: Iterable[str | None] = (), stores: Iterable[str | None] = ()
) -> None:
    """Raise UsageError unless a file of this kind may be written to this path or URI. The place must be outside of the
    archives, the stores and the archives of the stores. It must be absent, an empty file, or a file of this kind.
    option: the user's word for the place.
    """
    for store in filter(None, stores):
        check_apart(Place(option, uri), Place("the store", store), *list_archives(store))
    check_apart(Place(option, uri), *(Place("the archive", archive) for archive in archives if archive))
    root, name = open_root(uri.rpartition("/")[0] or "/"), uri.rpartition("/")[2]
    check_not_inside(option, root, name)
    info = root.filesystem.get_file_info(root.full(name))
    if is_link(root, name):
        found = "a symbolic link"
    elif info.type == pafs.FileType.Directory:
        found = "a folder"
    elif info.type == pafs.FileType.File:
        try:
            with open_file(root, name) as file:
                head = bytes(file.read(_HEAD_BYTES))
        except OSError as error:
            head = str(error).encode()
        found = "another file" if head and not kind.is_ours(head) else ""
    else:
        found = "" if info.type == pafs.FileType.NotFound else "no regular file"
    if found:
        raise UsageError(
            message=f"{option}: {uri}: expected no file, or {kind.name}, found {found}; name another file, or remove it"
        )


def check_empty(root: Root) -> None:
    """Raise NOT_EMPTY unless a folder to write into is empty or absent. Raise UsageError if the folder is in a store or
    a partition.
    """
    check_not_inside("--output", root)
    if found := occupied_by(root):
        raise NOT_EMPTY(path=root.uri, found=found)


def list_archives(store: str) -> list[Place]:
    """Return the archives that a store's generations were made of; none if its tables cannot be read, which is the
    command's to report.
    """
    from lastkey.jobs.store.tables import open_state  # noqa: PLC0415 - delta-rs takes a tenth of a second to load

    with suppress(JobError, OSError, ValueError):
        checkpoints = open_state(store).checkpoints().values()
        return [Place("the archive", uri) for uri in sorted({row.archive_uri for row in checkpoints})]
    return []


@contextmanager
def whole_file(path: Path, kind: Kind | None = None, option: str = "", mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a new file. Rename it to `path` when it is complete; delete it after an error. Raise UsageError if `path`
    is then a file of another kind (`check_file`; None: it is our own), or if its folder is missing. mode: the default
    lets all users read the file, so it must not contain data of a log.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.")
    except FileNotFoundError:
        raise UsageError(message=f"{option}: {path}: expected a folder {path.parent}, found none") from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
        part.chmod(mode)
        if kind is not None:
            check_file(option, str(path), kind)  # again: a run takes a while
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def checked_output(asked: str, archives: Iterable[str | None], stores: Iterable[str | None], kind: Kind = PAGE) -> str:
    """Return the URI of the page. Raise UsageError, before anything is read, if the page cannot be written there, or
    may not (`check_file`).
    """
    output = normal_uri(asked)
    root = open_root(output.rpartition("/")[0] or "/")
    is_folder = root.filesystem.get_file_info(root.full(output.rpartition("/")[2])).type.name == "Directory"
    if is_folder or asked.endswith("/"):
        raise UsageError(message=f"--output: expected a file to write to, found the folder {output}")
    check_file("--output", output, kind, archives, stores)
    if root.is_local:
        folder = Path(output)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not os.access(folder, os.W_OK) or (str(folder) != output and not folder.is_dir()):
            raise _unwritable(output, f"that {folder} is not {'a folder' if folder.is_file() else 'writable'}")
    return output


def _unwritable(output: str, found: str) -> UsageError:
    return UsageError(message=f"--output {output}: expected a file that can be written, found {found}")


def write_page(output: str, page: bytes, kind: Kind = PAGE) -> None:
    """Write the whole page or none of it: on a disk under another name first, so that an old page stays until then.
    Raise UsageError if the name belongs to something else by then.
    """
    root = open_root(os.path.dirname(output) or "/")  # noqa: PTH120 - a URI too
    path = Path(output)
    try:
        if not root.is_local:
            write_file(root, output.rpartition("/")[2], page)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.new")
        try:
            write_file(open_root(str(path.parent)), new.name, page)
            check_file("--output", output, kind)  # again: a run takes a while
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        if is_full(error):
            raise
        raise _unwritable(output, str(error).split(" Detail:")[0]) from error
