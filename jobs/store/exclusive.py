"""Probe of the place where a store lies: of two writers that put the same version of a table, it must refuse one."""

from __future__ import annotations

import contextlib
import errno
import uuid
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import NOT_EXCLUSIVE, MachineError
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
            raise  # other failures of a bucket prove nothing here; the commit will report them
    finally:
        with contextlib.suppress(OSError):
            root.filesystem.delete_file(root.full(probe))


def _refused(root: Root, expected: str, found: str) -> MachineError:
    return NOT_EXCLUSIVE(path=f"{root.uri}/state", expected=expected, found=found)
