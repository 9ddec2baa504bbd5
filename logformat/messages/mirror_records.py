"""Records of MirrorMaker 2's own topics, as JSON.

| decoder | topic | key | value |
|---|---|---|---|
| mirror-checkpoints | <source>.checkpoints.internal | group, topic, partition | version, both offsets, metadata |
| mirror-offset-syncs | mm2-offset-syncs.<target>.internal | topic, partition | offsets of source and target |
| mirror-heartbeats | heartbeats | aliases of source and target | version, then time |

Fields follow each other as in Kafka's protocol before flexible versions: int16, int32 and int64 are big-endian, and a
string is its bytes (int16) and UTF-8. Source: Checkpoint, OffsetSync and Heartbeat of Kafka's connect/mirror and
connect/mirror-client (4.3.0); the names of fields are theirs. Version 0 is the only one. The value of an offset sync
has no version. No tool of Kafka's prints these as JSON.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from lastkey.logformat.messages.reader import MessageError

_INTEGERS: Final = {"int16": struct.Struct(">h"), "int32": struct.Struct(">i"), "int64": struct.Struct(">q")}
_VERSION: Final = 0
Fields = tuple[tuple[str, str], ...]  # name and type


@dataclass(frozen=True)
class MirrorRecord:
    """Layout of a record."""

    key: Fields
    value: Fields
    has_version: bool = True  # the value begins with it


_PARTITION: Final[Fields] = (("topic", "string"), ("partition", "int32"))
_OFFSETS: Final[Fields] = (("upstreamOffset", "int64"), ("offset", "int64"))
MIRROR_RECORDS: Final = {
    "mirror-checkpoints": MirrorRecord((("group", "string"), *_PARTITION), (*_OFFSETS, ("metadata", "string"))),
    "mirror-offset-syncs": MirrorRecord(_PARTITION, _OFFSETS, has_version=False),
    "mirror-heartbeats": MirrorRecord(
        (("sourceClusterAlias", "string"), ("targetClusterAlias", "string")), (("timestamp", "int64"),)
    ),
}


def key_text(record: MirrorRecord, data: bytes) -> str:
    """Return a key as JSON. Raise MessageError for other bytes."""
    return json.dumps(_fields(data, 0, record.key), separators=(",", ":"), ensure_ascii=False)


def value_text(record: MirrorRecord, data: bytes) -> str:
    """Return a value as JSON. Raise MessageError for other bytes, and for another version."""
    at, head = 0, {}
    if record.has_version:
        version, at = _integer(data, 0, "int16", "version")
        if version != _VERSION:
            raise MessageError(f"version {version}, of which the fields are not known")
        head = {"version": version}
    return json.dumps(head | _fields(data, at, record.value), separators=(",", ":"), ensure_ascii=False)


def _fields(data: bytes, at: int, fields: Fields) -> dict[str, int | str]:
    out: dict[str, int | str] = {}
    for name, kind in fields:
        if kind == "string":
            size, at = _integer(data, at, "int16", name)
            if not 0 <= size <= len(data) - at:
                raise MessageError(f"{name} of {size} bytes, where {len(data) - at} are left")
            try:
                out[name], at = data[at : at + size].decode(), at + size
            except UnicodeDecodeError:
                raise MessageError(f"{name} that is not UTF-8") from None
        else:
            out[name], at = _integer(data, at, kind, name)
    if at < len(data):
        raise MessageError(f"{len(data) - at} bytes after the last field")
    return out


def _integer(data: bytes, at: int, kind: str, name: str) -> tuple[int, int]:
    layout = _INTEGERS[kind]
    if len(data) - at < layout.size:
        raise MessageError(f"{name}: {len(data) - at} bytes are left of {layout.size}")
    return int(layout.unpack_from(data, at)[0]), at + layout.size
