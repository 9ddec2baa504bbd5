"""What the files of a table say of themselves, commits and data: torn and damaged ones are told from whole ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

import google_crc32c
import pyarrow as pa
from pyarrow import fs as pafs

from udfs.storage import Root

ID: Final = "lastkey.commit"
ACTIONS: Final = "lastkey.actions"
CHECKSUM: Final = "lastkey.crc32c"  # of the names of the files that a commit adds and removes, and of what it tells
MARK: Final = "lastkey.mark"
_CHECKED: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet")
_NO_FILE: Final = {"commitInfo", "protocol", "metaData"}


def stated(own: str, added: Collection[str], removed: Collection[str], more: Mapping[str, str]) -> dict[str, str]:
    """What a commit is to say: its id, how many files it adds and removes, and a checksum."""
    told = {ID: own, ACTIONS: str(len(added) + len(removed)), **more}
    return {**told, CHECKSUM: _checksum(added, removed, told)}


def is_whole(commit: bytes) -> bool:
    """Whether a commit's bytes are all that was written: each line is JSON, there are as many as it says, and they
    have the checksum that it says.
    """
    try:
        actions = [json.loads(line) for line in commit.splitlines()]
        info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        added, removed = _paths(actions, "add"), _paths(actions, "remove")
        if not actions or int(info.get(ACTIONS, len(added) + len(removed))) != len(added) + len(removed):
            return False
        return CHECKSUM not in info or info[CHECKSUM] == _checksum(added, removed, info)
    except (ValueError, TypeError, AttributeError, KeyError):
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
    n_files = sum(isinstance(action, dict) and not _NO_FILE & action.keys() for action in actions)
    said = next((a["commitInfo"].get(ACTIONS, "") for a in actions if isinstance(a.get("commitInfo"), dict)), "")
    return said.isdecimal() and n_files < int(said)


def _paths(actions: list[dict[str, Any]], kind: str) -> list[str]:
    return sorted(unquote(action[kind]["path"]) for action in actions if kind in action)


def _checksum(added: Collection[str], removed: Collection[str], told: Mapping[str, str]) -> str:
    of = [sorted(added), sorted(removed), told[ID], told.get(MARK)]
    return f"{google_crc32c.value(json.dumps(of).encode()):08x}"


def was_set_aside(root: Root, log: str) -> bool:
    """Whether a torn commit of a table was set aside, and lies there still; log: its folder below the store."""
    listed = root.filesystem.get_file_info(pafs.FileSelector(root.full(log), allow_not_found=True))
    return any(".json.torn-" in info.base_name for info in listed)


def check_name(path: str, data: bytes) -> None:
    """That a data file holds what its name says; one of an older version says nothing. pa.ArrowInvalid."""
    said = _CHECKED.fullmatch(path)
    if said is not None and int(said[1], 16) != google_crc32c.value(data):
        raise pa.ArrowInvalid(f"its checksum is {google_crc32c.value(data):08x}, and its name says {said[1]}")
