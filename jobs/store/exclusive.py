"""Exclusive writers: a probe of a store's place, which must refuse the second writer of a name; and a lock on a local
disk, for one vacuum, one rebuild at a time. No commit needs the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import NOT_EXCLUSIVE, ConflictError, MachineError
from lastkey.jobs.store.folders import check_no_links
from lastkey.udfs.storage import Root, make_folders, put_if_absent

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # errors of disks without hard links


def check_exclusive(root: Root) -> None:
    """Raise NOT_EXCLUSIVE if a second writer of the same name is not refused, because every commit relies on that:
    FUSE, exFAT and some network shares have no hard links, and not every server honours If-None-Match. Delete the
    probe.
    """
    probe = f"state/.probe-{uuid.uuid4().hex}"
    expected = (
        "a hard link that replaces no file"
        if root.is_local
        else ("a server that refuses to replace a file (If-None-Match: *)")
    )
    if root.is_local:
        make_folders(Path(root.full("state")))
    try:
        put_if_absent(root, probe, b"")
        if put_if_absent(root, probe, b""):
            raise _refused(root, expected, "one that replaced one")
    except OSError as error:
        if root.is_local and error.errno in _NO_LINKS:
            raise _refused(root, "hard links, which commits need", error.strerror or str(error)) from error
        if root.is_local:
            raise  # other failures of a bucket are no proof here; the commit will report them
    finally:
        with contextlib.suppress(OSError):
            root.filesystem.delete_file(root.full(probe))


def _refused(root: Root, expected: str, found: str) -> MachineError:
    return NOT_EXCLUSIVE(path=f"{root.uri}/state", expected=expected, found=found)


LOCK_SECONDS: Final = 300.0


@contextlib.contextmanager
def local_lock(root: Root, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold an exclusive lock on a store of a local disk; it ends with the process at the latest. Raise ConflictError if
    another process keeps it for `seconds`, LINKED_FOLDER if a part of the store's state is a symbolic link.
    """
    folder = Path(root.full("state"))
    check_no_links(root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:  # does not truncate a file that another process created since
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ConflictError(
                        path=file.name,
                        expected=f"the store's lock within {seconds:.0f} s",
                        found="another process that holds it",
                    ) from None
                time.sleep(0.05)
        yield
