"""Old commits that a table of a store needs no more, and the data files that they removed.

A version is read from the newest checkpoint and the commits after it. The newest checkpoint older than KEEP_DAYS stays,
and all after it. So a run or reader that began later finds every commit since then, and every file of the versions that
it read. The clock is the files' own times, so this machine's may be ahead.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from typing import Final
from urllib.parse import unquote

from pyarrow import fs as pafs

from lastkey.jobs.store.commit_file import CHECKPOINT
from lastkey.udfs.storage import Root

KEEP_DAYS: Final = 7  # longest time that a run or a reader may take
_AT_ONCE: Final = 8
_NUMBERED: Final = re.compile(r"\.?(\d{20})\..*")  # commits, checkpoints, checksums, files of killed runs


def forget(root: Root, table: str, needed: Collection[str]) -> None:
    """Delete old commits and data files. table: its folder below the store; needed: the head's data files, below the
    table.
    """
    log = f"{table}/_delta_log"
    listed = root.filesystem.get_file_info(pafs.FileSelector(root.full(log)))
    newest_ns = max((info.mtime_ns or 0 for info in listed), default=0)  # time of the newest commit
    old_ns = min(time.time_ns(), newest_ns) - KEEP_DAYS * 86_400 * 10**9
    files: dict[int, list[pafs.FileInfo]] = {}
    for info in listed:
        if named := _NUMBERED.fullmatch(info.base_name):
            files.setdefault(int(named[1]), []).append(info)
    # up to the first young one: the commits that stay have no gap
    old = list(takewhile(lambda number: all(info.mtime_ns < old_ns for info in files[number]), sorted(files)))
    first = max((n for n in old if any(CHECKPOINT.fullmatch(info.base_name) for info in files[n])), default=0)
    kept = set(needed)

    def delete(number: int) -> None:
        for path in _removed(root, f"{log}/{number:020}.json"):
            if path not in kept and ".." not in path.split("/"):  # a commit names files of its table alone
                _delete(root, f"{table}/{path}")
        for info in files[number]:
            _delete(root, f"{log}/{info.base_name}")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(delete, [number for number in old if number < first]))


def _removed(root: Root, commit: str) -> Iterator[str]:
    """Yield the data files that a commit removed from its table; none if the commit is missing or torn."""
    with suppress(FileNotFoundError, ValueError):
        with root.filesystem.open_input_stream(root.full(commit), compression=None) as stream:
            actions = [json.loads(line) for line in stream.read().splitlines()]
        yield from (unquote(action["remove"]["path"]) for action in actions if "remove" in action)


def _delete(root: Root, path: str) -> None:
    with suppress(FileNotFoundError):
        root.filesystem.delete_file(root.full(path))
