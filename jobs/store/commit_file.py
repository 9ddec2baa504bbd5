"""What the files of a table say of themselves, commits and data: torn and damaged ones are told from whole ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from udfs.storage import Root

ID: Final = "lastkey.commit"
ACTIONS: Final = "lastkey.actions"
VERSION: Final = "lastkey.version"  # table and number: a whole commit in the place of another is told
CHECKSUM: Final = "lastkey.crc32c"  # of the names of the files that a commit adds and removes, of ID and MARK
MARK: Final = "lastkey.mark"
_CHECKED: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet")
_NO_FILE: Final = {"commitInfo", "protocol", "metaData"}


def stated(
    own: str, table: str, number: int, added: Collection[str], removed: Collection[str], more: Mapping[str, str]
) -> dict[str, str]:
    """What a commit is to say: its id, which version of which table it makes, how many files it adds and removes, and
    a checksum.
    """
    told = {ID: own, VERSION: _version(table, number), ACTIONS: str(len(added) + len(removed)), **more}
    return {**told, CHECKSUM: _checksum(added, removed, told)}


def is_whole(commit: bytes, table: str, number: int) -> bool:
    """Whether the bytes where a version's commit lies are all that was written there: each line is an action, there
    are as many as it says, they have the checksum that it says, and it is no other version's. (Those of older versions
    of Lastkey say less, but every writer of Delta puts commitInfo.)
    """
    try:
        actions = [json.loads(line) for line in commit.splitlines()]
        info: dict[str, Any] = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        added, removed = _paths(actions, "add"), _paths(actions, "remove")
        if int(info.get(ACTIONS, len(added) + len(removed))) != len(added) + len(removed):
            return False
        if info.get(VERSION, _version(table, number)) != _version(table, number):
            return False
        return CHECKSUM not in info or info[CHECKSUM] == _checksum(added, removed, info)
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
        return False


def is_torn(commit: bytes) -> bool:
    """Of a commit that is not whole: whether a power cut can have left it so, with its end lost, or zeros in it.
    Other damage was done to a commit that may have been said to be made.
    """
    if b"\0" in commit:
        return True
    *lines, last = commit.splitlines() or [b""]
    try:
        actions = [json.loads(line) for line in lines]
    except ValueError:
        return False
    try:
        actions.append(json.loads(last))
    except ValueError:
        of_info = (ID, ACTIONS, CHECKSUM, "clientVersion")
        is_file = any(word in last[:20] for word in (b'{"add"', b'{"remove"', b'{"path"'))
        return not (last.endswith(b"}}") and (is_file or all(f'"{name}"'.encode() in last for name in of_info)))
    if not all(isinstance(action, dict) for action in actions):
        return False
    n_files = sum(not _NO_FILE & action.keys() for action in actions)
    said = next((a["commitInfo"].get(ACTIONS) for a in actions if isinstance(a.get("commitInfo"), dict)), None)
    return isinstance(said, str) and said.isdecimal() and n_files < int(said)


def _version(table: str, number: int) -> str:
    return f"{table}/{number}"


def _paths(actions: list[dict[str, Any]], kind: str) -> list[str]:
    return sorted(unquote(action[kind]["path"]) for action in actions if kind in action)


def _checksum(added: Collection[str], removed: Collection[str], told: Mapping[str, str]) -> str:
    of = [sorted(added), sorted(removed), told[ID], told.get(MARK)]  # and no more: older versions of Lastkey check it
    return f"{google_crc32c.value(json.dumps(of).encode()):08x}"


def sum_of(checkpoint: str) -> str:
    """The name of the file that holds the CRC-32C of a checkpoint of Delta: Parquet's pages need not have one."""
    return f"{checkpoint.partition('.')[0]}.lastkey-crc32c"


def is_whole_checkpoint(data: bytes, told: bytes | None) -> bool:
    """Whether a checkpoint can be read, and is what was written; told: what its sum says (None: there is none, as an
    older version of Lastkey leaves it).
    """
    try:
        pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return told is None or told.strip() == sum_line(data).strip()


def sum_line(data: bytes) -> bytes:
    """What the sum of a checkpoint says."""
    return f"{google_crc32c.value(data):08x}\n".encode()


def was_set_aside(root: Root, log: str) -> bool:
    """Whether a torn commit of a table was set aside, and lies there still; log: its folder below the store."""
    listed = root.filesystem.get_file_info(pafs.FileSelector(root.full(log), allow_not_found=True))
    return any(".json.torn-" in info.base_name for info in listed)


def check_name(path: str, data: bytes) -> None:
    """That a data file holds what its name says; one of an older version says nothing. pa.ArrowInvalid."""
    said = _CHECKED.fullmatch(path)
    if said is not None and int(said[1], 16) != google_crc32c.value(data):
        raise pa.ArrowInvalid(f"its checksum is {google_crc32c.value(data):08x}, and its name says {said[1]}")
