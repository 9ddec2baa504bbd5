"""Folder for compiled kernels that only trusted users can write.

Numba's cache consists of pickles: a user who can write a file there runs code as every user who reads it. A folder is
used only if trusted users alone can write in it or replace it:
- it, and every folder and symbolic link on the way to it from /, belongs to a trusted user;
- only its owner may write in it; a folder above it may be writable for others only with the sticky bit, like /tmp,
  where they cannot rename our files.
Folders above these sources are not checked: a user who can rename files there can also replace the sources. Spark, YARN
and Kubernetes unpack archives (`pack`) below folders of a group, or of a user of their own.

Trusted users are the user, root, and the owner of these sources, who controls the code in any case. (sshd's StrictModes
is much the same.) Folders made here are accessible to their owner alone, for any umask.

The candidates, in this order:
1. NUMBA_CACHE_DIR alone, if it is set; an unsafe one is refused, because the user asked for it;
2. `.numba` beside the sources. If it is read-only, only kernels already in it count: in an image, or in a shared
   checkout whose owner has run `python -m lastkey.jobs.prepare`;
3. `lastkey/<uid>` in the user's own XDG_CACHE_HOME, or ~/.cache;
4. no folder: each process compiles the kernels that it calls, for up to a minute, with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from numba.core.registry import cpu_target

from lastkey.logformat.errors import PlaceError

ROOT: Final = Path(__file__).resolve().parent.parent
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40  # Linux has the same limit


def folders(named: str) -> tuple[Path, ...]:
    """Return the folders that may keep kernels, best first. `named` is the user's choice, "" for none.

    This only lists paths: it neither checks nor makes them. A home folder that cannot be found is left out.
    """
    if named:
        return (Path(named).absolute(),)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():  # the specification requires to ignore it
        with contextlib.suppress(RuntimeError):  # no HOME, and the user has no entry
            caches = Path("~/.cache").expanduser()
    own = (caches / "lastkey" / str(os.getuid()),) if caches.is_absolute() else ()
    return (ROOT / ".numba", *own)


def processor() -> str:
    """Return a hash of the processor that kernels are compiled for here, as numba distinguishes processors."""
    target = cpu_target.target_context.codegen().magic_tuple()
    return hashlib.sha256(repr(target).encode()).hexdigest()[:16]


@functools.cache
def usable(folder: Path) -> bool:
    """Make `folder` if it is missing, and return whether it can be written, or only read.

    Raise OSError if it must not be used at all: it is unsafe, or cannot be made.
    """
    for made in (False, True):
        weak = weakness(folder, _trusted())
        if weak:
            raise PermissionError(errno.EPERM, weak, str(folder))
        if not made:
            _make(folder)
    return os.access(folder, os.W_OK | os.X_OK)


@functools.cache
def refuse_if_unsafe(named: str) -> None:
    """Raise PlaceError if others could write in the folder that the user named, or in one above it."""
    weak = weakness(Path(named).absolute(), _trusted())
    if weak:
        raise PlaceError(
            f"NUMBA_CACHE_DIR={named}: expected a folder that no other user can write, found that {weak}; what lies "
            "there is run as code: name a folder of your own (mode 0700), or unset the variable"
        )


@functools.cache
def note_missing_cache(why: str) -> None:
    """Warn, once for each reason, that no compiled kernel is kept."""
    message = (
        "no place for compiled kernels, so each process compiles them again: %s; set NUMBA_CACHE_DIR to your own folder"
    )
    logging.getLogger("lastkey").warning(message, why)


def weakness(folder: Path, trusted: Collection[int]) -> str:
    """Return why users outside `trusted` can change what is in `folder`, an absolute path; "" if they cannot.

    For a missing folder, check the nearest existing parent.
    """
    try:
        for path, info, last in _on_the_way(folder):
            if path in ROOT.parents and not last:
                continue
            if info.st_uid not in trusted:
                return f"{path} belongs to user {info.st_uid}"
            if stat.S_ISLNK(info.st_mode):
                continue
            if not stat.S_ISDIR(info.st_mode):
                return f"{path} is not a folder"
            if info.st_mode & _OTHERS_WRITE and (last or not info.st_mode & stat.S_ISVTX):
                return f"others may write in {path} (mode {stat.S_IMODE(info.st_mode):04o})"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _on_the_way(folder: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield /, and each folder and link on the way to `folder`: path, status, and whether it is `folder` itself."""
    here = Path("/")
    names = deque(folder.parts[1:])
    yield here, here.lstat(), not names
    links = 0
    while names:
        name = names.popleft()
        if name == "..":
            here = here.parent  # already checked
            continue
        here /= name
        info = here.lstat()
        if not stat.S_ISLNK(info.st_mode):
            yield here, info, not names
            continue
        yield here, info, False
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(here))
        target = here.readlink()
        names.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        here = Path("/") if target.is_absolute() else here.parent


def _make(folder: Path) -> None:
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


def _trusted() -> frozenset[int]:
    return frozenset((0, os.getuid(), Path(__file__).stat().st_uid))
