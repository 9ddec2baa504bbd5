"""Comparison of folders, independent of the spelling of their paths: equality and containment.

An archive is only ever read, so no file may be written into it, and one store serves one archive. Comparing texts is
not enough: a link, `..`, file:///, a mount or s3a:// gives one folder several paths. So each folder has addresses:
- local: for every ancestor that exists, its device and inode, and the names from this ancestor to the folder (links are
  resolved; the folder itself may not exist yet);
- on Linux also its path within the mounted file system: a folder of the archive may be mounted somewhere else too, as
  in a container, and then none of its ancestors is the archive;
- elsewhere: scheme (s3a:// is s3://), host or bucket, and the names in the path.
Folder X is inside folder Y if an address of Y is a prefix of an address of X.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lastkey.jobs.errors import UsageError
from lastkey.logformat.storage.buckets import address
from lastkey.logformat.storage.locations import TIERED, canonical
from lastkey.udfs.storage import normal_uri

if TYPE_CHECKING:
    from lastkey.jobs.archive.listing import Archive  # at run time it would import kernels into each command

_DEFAULT_PORT = {"hdfs": ":8020"}
_INODE = "inode"
_MOUNTS = Path("/proc/self/mountinfo")

_Address = tuple[object, ...]


@dataclass(frozen=True)
class Place:
    """Path or URI, with the user's word for it."""

    what: str  # as in "the archive", "--output"
    uri: str


def lies_in(inner: str, outer: str) -> bool:
    """Return whether a path or URI is `outer` or is below it. Neither has to exist; only local disks are asked."""
    found = list(_addresses(outer))
    return any(_begins(address, start) for address in _addresses(inner) for start in found)


def is_same(place: str, other: str) -> bool:
    """Return whether two paths or URIs name one folder."""
    if place == other:
        return True
    same_server = place.partition("?")[2] == other.partition("?")[2]  # s3://bucket/key?endpoint_override=...
    return same_server and lies_in(place, other) and lies_in(other, place)


def check_apart(written: Place, *others: Place) -> None:
    """Raise UsageError if the place to write to is inside one of the others, or one of them is inside it."""
    for other in others:
        for inner, outer in ((written, other), (other, written)):
            if lies_in(inner.uri, outer.uri):
                raise _nested(written, inner, outer)


def check_outside(written: Place, archive: Archive) -> None:
    """Raise UsageError if the place to write to is inside a folder of the archive, even through a link or mount."""
    root = archive.root.place
    if not root.is_local:
        return
    above = {address[1] for address in _addresses(written.uri) if address[0] == _INODE}
    for folder in sorted({*archive.folders, *(found.path for found in archive.partitions.values())}):
        try:
            stat = os.stat(root.full(folder))  # noqa: PTH116 - one of very many
        except OSError:  # the folder was deleted after the listing
            continue
        if (stat.st_dev, stat.st_ino) in above:
            raise _nested(written, written, Place("the archive's folder", root.full(folder)))


def local_path(uri: str) -> str | None:
    """Return the path of a local file or folder in any spelling; None on another file system."""
    uri = uri.removeprefix(TIERED)
    scheme, _, rest = uri.partition("://")
    if "://" not in uri:
        return normal_uri(uri)
    if scheme.lower() != "file":
        return None
    return unquote(re.split("[?#]", f"/{rest.partition('/')[2]}")[0])


def _begins(address: _Address, start: _Address) -> bool:
    """Return whether an address begins with `start`. hdfs:///folder names no host: it may be any host's."""
    same = (a == b or (i == 1 and "" in (a, b)) for i, (a, b) in enumerate(zip(address, start, strict=False)))
    return len(address) >= len(start) and all(same)


def _addresses(uri: str) -> Iterator[_Address]:
    path = local_path(uri)
    if path is None:
        yield _parse_address(uri)
        return
    real = PurePosixPath(os.path.realpath(path))
    for ancestor in (real, *real.parents):
        try:
            stat = os.stat(ancestor)  # noqa: PTH116 - a pure path
        except OSError:  # missing, or not accessible
            continue
        yield _INODE, (stat.st_dev, stat.st_ino), *real.relative_to(ancestor).parts
    mounted = within_mount(str(real), os.fsdecode(_MOUNTS.read_bytes())) if _MOUNTS.is_file() else ()
    if mounted:
        yield "mount", *mounted


def _parse_address(uri: str) -> _Address:
    plain = canonical(uri.removeprefix(TIERED)).partition("?")[0]
    kind, _, rest = plain.partition("://")
    host, _, path = rest.partition("/")
    host = host.lower().removesuffix(_DEFAULT_PORT.get(kind, "/")).rpartition("@")[2]
    if (bucket := address(plain)) is not None:
        kind, host = bucket[0], "/".join(bucket[1:])
    return kind, host, *PurePosixPath(posixpath.normpath(f"/{unquote(path)}")).parts[1:]


def within_mount(path: str, mounts: str) -> tuple[str, ...]:
    """Return (device, names of the path within its file system) of a real path below a mount, else (). mounts: the text
    of /proc/self/mountinfo.
    """
    found: tuple[str, ...] = ()
    deepest = -1
    parts = PurePosixPath(path).parts
    for device, root, point in _mounts(mounts):
        if parts[: len(point)] == point and len(point) >= deepest:  # the last mount is on top
            deepest = len(point)
            found = device, *root, *parts[len(point) :]
    return found


def shared_mounts(folder: str, mounts: str | None = None) -> list[str]:
    """Return the mount points below a local folder, relative to it, whose files another mount shows too. mounts: as in
    within_mount; None: this machine's.
    """
    if mounts is None:
        mounts = os.fsdecode(_MOUNTS.read_bytes()) if _MOUNTS.is_file() else ""
    above, all_mounts = PurePosixPath(os.path.realpath(folder)).parts, list(_mounts(mounts))
    return sorted(
        "/".join(point[len(above) :])
        for device, root, point in all_mounts
        if point[: len(above)] == above and len(point) > len(above)
        if any(other[0] == device and other[2] != point and root[: len(other[1])] == other[1] for other in all_mounts)
    )


def _mounts(mounts: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield device, names of the mounted folder within its file system, and names of the mount point, of each mount.
    Fields of a line: id, parent, device, root of the mount in its file system, mount point; blanks are \\040 in there.
    """
    for line in mounts.splitlines():
        device, root, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), f) for f in line.split(" ")[2:5])
        yield device, PurePosixPath(root).parts[1:], PurePosixPath(point).parts


def _nested(written: Place, inner: Place, outer: Place) -> UsageError:
    shown = [f"{place.what} {place.uri}{_really(place.uri)}" for place in (inner, outer)]
    return UsageError(
        message=f"{shown[0]} lies in {shown[1]}: nothing was written; {written.what} needs a place outside of it"
    )


def _really(uri: str) -> str:
    path = local_path(uri)
    real = uri if path is None else os.path.realpath(path)
    return "" if real == uri else f" (that is {real})"
