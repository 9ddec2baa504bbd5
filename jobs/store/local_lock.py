"""Lock on a store of a local disk: one vacuum, one rebuild at a time. No commit needs it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store.folders import check_no_links
from lastkey.udfs.storage import Root

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
