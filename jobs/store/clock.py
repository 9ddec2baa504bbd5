"""Time of the place where a store lies: ages of its files are told by the clock that gave them their times.

A bucket or a network share has its server's clock. A machine whose own clock runs ahead would take young files for
old, and delete them.
"""

from __future__ import annotations

import contextlib
import time
import uuid

from lastkey.udfs.storage import Root


def store_now_ms(root: Root) -> int:
    """Return the time that a new file gets in the store, or the wall clock if earlier: deleted files are old by both.

    Writes an empty file below `state/`, and deletes it.
    """
    path = root.full(f"state/.probe-{uuid.uuid4().hex}")
    root.filesystem.open_output_stream(path, compression=None).close()
    try:
        there_ms = (root.filesystem.get_file_info(path).mtime_ns or 0) // 1_000_000
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was deleted, and the answer was lost
            root.filesystem.delete_file(path)
    return min(there_ms, time.time_ns() // 1_000_000)
