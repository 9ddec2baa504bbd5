"""Probe of the place where a store lies: of two writers that put the same version of a table, it must refuse one."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from lastkey.jobs.errors import NotExclusiveError
from lastkey.jobs.store.delta import storage_options, uri_of
from lastkey.udfs.storage import Root, make_folders

_SCHEMA: Final = Schema.from_arrow(pa.schema([("nothing", pa.int32())]))
_OF_TODAY: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # such errors do not show that links are missing
_ONCE: Final = CommitProperties(max_commit_retries=0)


def check_exclusive(root: Root, rounds: int = 3) -> None:
    """Raise NotExclusiveError if the place lacks what every commit relies on. Nothing of the probe stays there.

    It costs half a millisecond on a disk, and 20 requests a round in a bucket. delta-rs looks before it puts, so a
    round shows nothing if one put came before the other's look: measured, in one of 20.
    """
    probe = f".probe-{uuid.uuid4().hex}"
    if root.is_local:
        _check_links(Path(root.full("state")), probe)
    else:
        _check_conditional_puts(root, probe, rounds)


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


def _check_conditional_puts(root: Root, probe: str, rounds: int) -> None:
    """Check that the server honours If-None-Match: put the same version twice at once."""
    uri, options = uri_of(root, probe), storage_options(root)
    try:
        DeltaTable.create(uri, _SCHEMA, storage_options=options)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(rounds):
                both, begin = [DeltaTable(uri, storage_options=options) for _ in range(2)], threading.Barrier(2)
                if all(pool.map(_puts, both, [begin] * 2)):
                    expected = "a server that refuses to replace a file (If-None-Match: *)"
                    raise _refused(f"{root.uri}/state", expected, "one that replaced it")
    except (DeltaError, OSError):
        return  # a bucket that fails otherwise shows nothing; the commit will fail with the reason
    finally:
        with contextlib.suppress(OSError):
            root.filesystem.delete_dir(root.full(f"state/{probe}"))


def _puts(table: DeltaTable, begin: threading.Barrier) -> bool:
    begin.wait()
    try:
        table.create_write_transaction([], "append", _SCHEMA, commit_properties=_ONCE)
    except CommitFailedError:
        return False
    return True


def _refused(where: Path | str, expected: str, found: str) -> NotExclusiveError:
    return NotExclusiveError(path=where, expected=expected, found=found)
