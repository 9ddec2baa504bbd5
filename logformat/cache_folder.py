"""Where compiled kernels are kept: a folder that nobody else can write.

Numba's cache is made of pickles: whoever can put a file there runs code as everybody who reads it. So a folder is used
only if nobody but trusted users can write in it, or put another one in its place:
- it, and every folder and symbolic link on the way to it from /, belongs to a trusted user;
- its owner alone may write in it; of those above it, others may write only in one with the sticky bit, such as /tmp,
  where they cannot rename what is ours.
Trusted are the user, root, and the owner of these sources, who decides anyway what runs here. (Much as sshd's
StrictModes.) What is made here is open to its owner alone, whatever the umask.

In this order:
1. NUMBA_CACHE_DIR, where it is set, and nothing else; it is refused where it is not safe, since somebody asked for it;
2. `.numba` beside the sources. One that cannot be written counts for the kernels that are in it: an image, or a shared
   checkout, whose owner has run `python -m jobs.prepare`;
3. `lastkey/<uid>` in the user's own XDG_CACHE_HOME, or ~/.cache;
4. none: each process compiles what it calls, which takes it up to a minute, and says so.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from logformat.errors import UnsafeFolderError

ROOT: Final = Path(__file__).resolve().parent.parent
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40  # as Linux


def folders(named: str) -> tuple[Path, ...]:
    """Where kernels may be kept, best first. `named`: by the user; "": not.

    Nothing is looked at or made yet. A home that cannot be found is no place.
    """
    if named:
        return (Path(named).absolute(),)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not caches.is_absolute():  # is to be ignored, says the specification
        with contextlib.suppress(RuntimeError):  # no HOME, and no such user
            caches = Path("~/.cache").expanduser()
    own = (caches / "lastkey" / str(os.getuid()),) if caches.is_absolute() else ()
    return (ROOT / ".numba", *own)


@functools.cache
def usable(folder: Path) -> bool:
    """Whether `folder`, made if it was not there, is safe and can be written. OSError: it is not to be used at all.

    False: it can be read.
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
    """UnsafeFolderError where others could write in the folder that the user named, or in one above it."""
    weak = weakness(Path(named).absolute(), _trusted())
    if weak:
        raise UnsafeFolderError(named, weak)


@functools.cache
def say_nowhere(why: str) -> None:
    """Once: nothing is kept."""
    said = "compiled kernels are not kept, each process makes them anew: %s; NUMBA_CACHE_DIR may name a folder of yours"
    logging.getLogger("lastkey").warning(said, why)


def weakness(folder: Path, trusted: Collection[int]) -> str:
    """What lets others than the users `trusted` change what is in `folder`, an absolute path; "": nothing.

    Of a folder that is not there: in the nearest one above it, where it would be made.
    """
    try:
        for path, info, last in _on_the_way(folder):
            if info.st_uid not in trusted:
                return f"{path} belongs to user {info.st_uid}"
            if stat.S_ISLNK(info.st_mode):
                continue
            if not stat.S_ISDIR(info.st_mode):
                return f"{path} is no folder"
            if info.st_mode & _OTHERS_WRITE and (last or not info.st_mode & stat.S_ISVTX):
                return f"others may write in {path} (mode {stat.S_IMODE(info.st_mode):04o})"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _on_the_way(folder: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """/, and each folder and link that is walked through to `folder`; whether it is the folder itself."""
    here = Path("/")
    names = deque(folder.parts[1:])
    yield here, here.lstat(), not names
    links = 0
    while names:
        name = names.popleft()
        if name == "..":
            here = here.parent  # was judged
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
