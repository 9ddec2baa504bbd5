"""Repair of a table's log on a disk: sets torn files aside after a power cut, and refuses any other damage."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.commit_file import is_torn, is_whole, is_whole_checkpoint, sum_of
from lastkey.jobs.store.local_lock import local_lock
from lastkey.udfs.storage import Root, flush

COMMIT: Final = re.compile(r"\d{20}\.json")
CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")


def torn_set_aside(root: Root, name: str) -> Iterator[str]:
    """Rename the newest commit and the newest checkpoint if they are not whole, and yield a note on each: the machine
    lost power before they were on its disk, and before anybody was told of them.
    """
    log = Path(root.full(f"state/{name}/_delta_log"))
    for find in (_torn_checkpoint, _torn_commit):
        if not find(log):
            continue
        with local_lock(root):
            for path in find(log):  # another process may have renamed it first
                path.rename(path.with_name(f"{path.name}.torn-{uuid.uuid4().hex[:8]}"))
                yield f"{path}: incomplete, as after a power cut; it was set aside, and counts as never made"
            flush(root, f"state/{name}/_delta_log")


def _torn_commit(log: Path) -> list[Path]:
    """Return the last commit if it is torn. Raise UsageError if a commit is damaged as no power cut leaves it, or is
    not the last. Commits that a checkpoint covers are not checked.
    """
    names = _log_names(log)
    commits = sorted(name for name in names if COMMIT.fullmatch(name))
    since = max((int(name[:20]) for name in names if CHECKPOINT.fullmatch(name)), default=-1)
    for name in commits[:-1]:
        if int(name[:20]) > since and not _is_whole(log / name):
            raise _lost(log / name)
    if not commits or _is_whole(log / commits[-1]):
        return []
    last = log / commits[-1]
    with suppress(FileNotFoundError):  # another process has set it aside since
        if not is_torn(last.read_bytes()):
            raise _lost(last)
        return [last]
    return []


def _lost(commit: Path) -> UsageError:
    return UsageError(
        message=f"{commit}: expected a whole commit, found one that is empty, cut short, changed or of another "
        "version; what it committed is lost: bring this file back, or move the folder state away and run rebuild-state"
    )


def _is_whole(path: Path) -> bool:
    """Return whether a commit or a checkpoint is whole, or gone: another process set it aside a moment ago."""
    said = path.with_name(sum_of(path.name))
    try:
        if COMMIT.fullmatch(path.name):
            return is_whole(path.read_bytes(), path.parent.parent.name, int(path.stem))
        told = said.read_bytes() if said.exists() else None
        return is_whole_checkpoint(path.read_bytes(), told)
    except FileNotFoundError:
        return True


def _torn_checkpoint(log: Path) -> list[Path]:
    """Return the newest checkpoints that are not whole, and the hint if it names one of them or none: readers list
    checkpoints whatever the hint says.
    """
    checkpoints = sorted(name for name in _log_names(log) if CHECKPOINT.fullmatch(name))
    torn = list(takewhile(lambda path: not _is_whole(path), (log / name for name in checkpoints[::-1])))
    hint = log / "_last_checkpoint"
    try:
        named = f"{int(json.loads(hint.read_bytes())['version']):020}.checkpoint.parquet"
        is_right = named in checkpoints and log / named not in torn
    except FileNotFoundError:
        return torn
    except (ValueError, KeyError, TypeError):
        is_right = False
    return torn if is_right else [hint, *torn]


def commit_numbers(root: Root, name: str) -> list[int]:
    """Return the numbers of a table's commits on a disk, rising, also of those that delta-rs may not read."""
    names = _log_names(Path(root.full(f"state/{name}/_delta_log")))
    return sorted(int(found[:20]) for found in names if COMMIT.fullmatch(found))


def _log_names(log: Path) -> list[str]:
    """Return the names of the files in a table's log; none if the log is missing."""
    try:
        return [entry.name for entry in os.scandir(log)]
    except FileNotFoundError:
        return []
