"""Probe of the place where a store lies: of two writers that put the same version of a table, it must refuse one."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import NOT_EXCLUSIVE, MachineError
from lastkey.udfs.storage import Root, make_folders

_OF_TODAY: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # such errors do not show that links are missing


def check_exclusive(root: Root) -> None:
    """Raise NOT_EXCLUSIVE if the place lacks what every commit relies on. Nothing of the probe stays there."""
    probe = f".probe-{uuid.uuid4().hex}"
    if root.is_local:
        _check_links(Path(root.full("state")), probe)
    else:
        _check_conditional_puts(root, root.full(f"state/{probe}"))


def _check_links(folder: Path, probe: str) -> None:
    """Check that hard links work, by which delta-rs commits. FUSE, exFAT and some network shares have none."""
    make_folders(folder)
    first, second = folder / probe, folder / f"{probe}-2"
    try:
        first.touch()
        try:
            os.link(first, second)
        except OSError as error:
            if error.errno in _OF_TODAY:
                raise
            raise _refused(folder, "hard links, which commits need", error.strerror or str(error)) from error
        with contextlib.suppress(FileExistsError):
            os.link(first, second)
            raise _refused(folder, "a hard link that replaces no file", "one that replaced one")
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _check_conditional_puts(root: Root, path: str) -> None:
    """Check that the server honours If-None-Match: of two that put the same object it must refuse the second."""
    try:
        root.filesystem.put_if_absent(path, b"")
        if root.filesystem.put_if_absent(path, b""):
            expected = "a server that refuses to replace a file (If-None-Match: *)"
            raise _refused(f"{root.uri}/state", expected, "one that replaced it")
    except OSError:
        return  # a bucket that fails otherwise shows nothing; the commit will fail with the reason
    finally:
        with contextlib.suppress(OSError):
            root.filesystem.delete_file(path)


def _refused(where: Path | str, expected: str, found: str) -> MachineError:
    return NOT_EXCLUSIVE(path=where, expected=expected, found=found)
