"""Metadata in a table's commits, checkpoints and data files that tell torn and damaged ones from whole ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

_OURS: Final = "lastkey."  # beginning of the names below
ID: Final = "lastkey.commit"
ACTIONS: Final = "lastkey.actions"
VERSION: Final = "lastkey.version"  # table and number: detect a whole commit in the place of another
CHECKSUM: Final = "lastkey.crc32c"  # of the names of the files that a commit adds and removes, of ID and MARK
MARK: Final = "lastkey.mark"
_CHECKED: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet")
_NO_FILE: Final = {"commitInfo", "protocol", "metaData"}
_NO_COMMIT: Final = (ValueError, TypeError, AttributeError, KeyError, StopIteration)  # of JSON that is something else


def commit_metadata(
    own: str, table: str, number: int, added: Collection[str], removed: Collection[str], more: Mapping[str, str]
) -> dict[str, str]:
    """Return the metadata of a commit: its id, the table and version that it makes, the number of files that it adds
    and removes, and a checksum.
    """
    told = {ID: own, VERSION: f"{table}/{number}", ACTIONS: str(len(added) + len(removed)), **more}
    checked = json.dumps([sorted(added), sorted(removed), own, more.get(MARK)]).encode()
    return {**told, CHECKSUM: f"{google_crc32c.value(checked):08x}"}


@lru_cache(256)
def is_whole(commit: bytes, table: str, number: int) -> bool:
    """Return whether a version's commit is as it was written: each line is an action, and its metadata is that of a
    commit of these files to this table and version. Other writers of Delta put commitInfo without this metadata.
    """
    try:
        actions = [json.loads(line) for line in commit.splitlines()]
        info: dict[str, Any] = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        told = {name: value for name, value in info.items() if name.startswith(_OURS)}
        more = {MARK: told[MARK]} if MARK in told else {}
        paths = _paths(actions, "add"), _paths(actions, "remove")
        return not told or told == commit_metadata(told[ID], table, number, *paths, more)
    except _NO_COMMIT:
        return False


def is_torn(commit: bytes) -> bool:
    """Return whether a power cut can have left a damaged commit so: its end is missing, or zeros are in it. Any other
    damage came later, to a commit that may have been reported as made.
    """
    if b"\0" in commit:
        return True
    *lines, last = commit.splitlines() or [b""]
    try:
        actions = [json.loads(line) for line in lines]
        try:
            actions.append(json.loads(last))
        except ValueError:
            of_info = (ID, ACTIONS, CHECKSUM, "clientVersion")
            is_file = any(word in last[:20] for word in (b'{"add"', b'{"remove"', b'{"path"'))
            return not (last.endswith(b"}}") and (is_file or all(f'"{name}"'.encode() in last for name in of_info)))
        n_files = sum(not _NO_FILE & action.keys() for action in actions)
        said = next(action["commitInfo"] for action in actions if "commitInfo" in action)[ACTIONS]
        return bool(said.isdecimal() and n_files < int(said))
    except _NO_COMMIT:
        return False


def _paths(actions: list[dict[str, Any]], kind: str) -> list[str]:
    return [unquote(action[kind]["path"]) for action in actions if kind in action]


def sum_of(checkpoint: str) -> str:
    """Return the name of the file with the CRC-32C of a checkpoint of Delta: Parquet's pages need not have one."""
    return f"{checkpoint.partition('.')[0]}.lastkey-crc32c"


@lru_cache(16)
def is_whole_checkpoint(data: bytes, told: bytes | None) -> bool:
    """Return whether a checkpoint can be read, and is as it was written; told: its sum file (None: another
    writer's, which has none).
    """
    try:
        pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return told is None or told.strip() == sum_line(data).strip()


def sum_line(data: bytes) -> bytes:
    """Return the line in the sum file of a checkpoint."""
    return f"{google_crc32c.value(data):08x}\n".encode()


def check_name(path: str, data: bytes) -> None:
    """Raise pa.ArrowInvalid unless a data file has the checksum in its name; those of other writers have none."""
    said = _CHECKED.fullmatch(path)
    if said is not None and int(said[1], 16) != google_crc32c.value(data):
        raise pa.ArrowInvalid(f"its checksum is {google_crc32c.value(data):08x}, and its name says {said[1]}")
