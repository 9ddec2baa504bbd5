"""Files of a table's log as Lastkey writes them, and the checksums that detect damaged files.

A commit is Delta's: a JSON object a line, an action each. Its first line begins with the CRC-32C of the table's name,
the version and the rest of the file. So a truncated, changed or exchanged commit is detected. Commits of other writers
of Delta, and of older versions, begin otherwise: they only have to be JSON.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import google_crc32c
import pyarrow as pa

COMMIT: Final = re.compile(r"\d{20}\.json")
CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")
ID: Final = "lastkey.commit"
MARK: Final = "lastkey.mark"
READER, WRITER = 1, 2  # Delta's protocol, which delta-rs and delta-spark both read and write
_START: Final = '{"commitInfo":{"lastkey.checksum":"'
_OURS: Final = re.compile(re.escape(_START.encode()) + b"([0-9a-f]{8})")
_CHECKED: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet")


class DataFile(NamedTuple):
    """A data file of a table."""

    path: str  # below the table's folder
    size: int
    statistics: str  # JSON, as Delta has them

    @classmethod
    def counted(cls, path: str, size: int, n_rows: int) -> DataFile:
        """Return a data file with its row count as the only statistic."""
        return cls(path, size, json.dumps({"numRecords": n_rows}))

    def added(self) -> dict[str, Any]:
        """Return the action that adds the file to the table."""
        now_ms = time.time_ns() // 1_000_000
        add = {"path": quote(self.path), "partitionValues": {}, "size": self.size, "modificationTime": now_ms}
        return {"add": {**add, "dataChange": True, "stats": self.statistics}}


def encode_commit(table: str, number: int, actions: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    """Return the commit that makes a version of a table by these actions of Delta; metadata: ID, and perhaps MARK."""
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "operationParameters": {}, **metadata}
    head, *lines = (json.dumps(one, separators=(",", ":")) for one in (info, *actions))
    rest = "\n".join((f'",{head[1:]}}}', *lines, "")).encode()
    return f"{_START}{_checksum(table, number, rest)}".encode() + rest


def created(schema: str) -> list[dict[str, Any]]:
    """Return the actions that a table's first commit begins with; schema: the table's, as JSON of Delta."""
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()), "name": None, "description": None, "format": {"provider": "parquet", "options": {}},
        "schemaString": schema, "partitionColumns": [], "createdTime": time.time_ns() // 1_000_000, "configuration": {},
    }  # fmt: skip
    return [{"protocol": {"minReaderVersion": READER, "minWriterVersion": WRITER}}, {"metaData": metadata}]


def is_whole(commit: bytes, table: str, number: int) -> bool:
    """Return whether a version's commit is as it was written, to this table as this version."""
    if b'"lastkey.checksum"' in commit:
        found = _OURS.match(commit)
        return found is not None and found[1].decode() == _checksum(table, number, commit[found.end() :])
    try:
        actions = [json.loads(line) for line in commit.splitlines()]
        return any("commitInfo" in action for action in actions)
    except (ValueError, TypeError):
        return False


def _checksum(table: str, number: int, rest: bytes) -> str:
    return f"{google_crc32c.extend(google_crc32c.value(f'{table}/{number}'.encode()), rest):08x}"


def checksum_name(checkpoint: str) -> str:
    """Return the name of the file with the CRC-32C of a checkpoint of Delta: Parquet's pages need not have one."""
    return f"{checkpoint.partition('.')[0]}.lastkey-crc32c"


def sum_line(data: bytes) -> bytes:
    """Return the line in the sum file of a checkpoint."""
    return f"{google_crc32c.value(data):08x}\n".encode()


def check_name(path: str, data: bytes) -> None:
    """Raise pa.ArrowInvalid unless a data file has the checksum in its name; those of other writers have none."""
    said = _CHECKED.fullmatch(path)
    if said is not None and int(said[1], 16) != google_crc32c.value(data):
        raise pa.ArrowInvalid(f"its checksum is {google_crc32c.value(data):08x}, and its name says {said[1]}")
