"""Whether a store can lie where it is: of two who put the same version of a table, one must be refused."""

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

from jobs.errors import NotExclusiveError
from jobs.store.delta import storage_options, uri_of
from udfs.storage import Root, make_folders

_SCHEMA: Final = Schema.from_arrow(pa.schema([("nothing", pa.int32())]))
_OF_TODAY: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # they say nothing of links: a link needs room for a name
_ONCE: Final = CommitProperties(max_commit_retries=0)


def check_exclusive(root: Root, rounds: int = 3) -> None:
    """NotExclusiveError: every commit would rely on what the place does not do. Nothing of the probe stays there.

    On a disk half a millisecond; in a bucket 20 requests a round. delta-rs looks before it puts, and a round shows
    nothing where one put came before the other's look: measured, in one of 20.
    """
    probe = f".probe-{uuid.uuid4().hex}"
    if root.is_local:
        _check_links(Path(root.full("state")), probe)
    else:
        _check_conditional_puts(root, probe, rounds)


def _check_links(folder: Path, probe: str) -> None:
    """delta-rs commits by a hard link. FUSE, exFAT and some network shares have none."""
    make_folders(folder)
    first, second = folder / probe, folder / f"{probe}-2"
    try:
        first.touch()
        try:
            os.link(first, second)
        except OSError as error:
            if error.errno in _OF_TODAY:
                raise
            raise _refused(folder, "hard links, of which each commit is one", error.strerror or str(error)) from error
        with contextlib.suppress(FileExistsError):
            os.link(first, second)
            raise _refused(folder, "that a hard link replaces nothing", "that one did")
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _check_conditional_puts(root: Root, probe: str, rounds: int) -> None:
    """That the server honours If-None-Match: two put the same version at once."""
    uri, options = uri_of(root, probe), storage_options(root)
    try:
        DeltaTable.create(uri, _SCHEMA, storage_options=options)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(rounds):
                both, begin = [DeltaTable(uri, storage_options=options) for _ in range(2)], threading.Barrier(2)
                if all(pool.map(_puts, both, [begin] * 2)):
                    expected = "a server that puts nothing over a file that is there (If-None-Match: *)"
                    raise _refused(f"{root.uri}/state", expected, "that it did")
    except (DeltaError, OSError):
        return  # a bucket that does not answer as it should shows nothing; the commit will say what is wrong
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
