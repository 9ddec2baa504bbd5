"""What time it is where a store lies: ages of its files are told by the clock that gave them their times.

That is the server's, of a bucket or a network share. A machine whose own clock runs ahead would take what is young for
old, and delete it.
"""

from __future__ import annotations

import contextlib
import time
import uuid

from udfs.storage import Root


def store_now_ms(root: Root) -> int:
    """The time that a new file gets there, or the wall clock where that is behind it: what is deleted is old by both.

    Writes an empty file below `state/`, and takes it away.
    """
    path = root.full(f"state/.probe-{uuid.uuid4().hex}")
    root.filesystem.open_output_stream(path, compression=None).close()
    try:
        there_ms = (root.filesystem.get_file_info(path).mtime_ns or 0) // 1_000_000
    finally:
        with contextlib.suppress(FileNotFoundError):  # it is gone, and the answer was lost
            root.filesystem.delete_file(path)
    return min(there_ms, time.time_ns() // 1_000_000)
