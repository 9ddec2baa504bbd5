"""Records of __cluster_metadata that decide which topics, brokers and settings a cluster has; all others are counted.

Only the records in CHANGES are decoded. A version of them that is not known is an error, because its fields may mean
something else; a record type that is not known is counted, so that a caller can name it. Source: the generated messages
and MetadataRecordSerde of Kafka 4.4.0.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.messages.coordinator_records import METADATA_RECORDS, framed_message
from lastkey.logformat.messages.reader import MessageError
from lastkey.logformat.messages.table import known_versions
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds

CHANGES: Final = frozenset(
    ("RegisterBroker", "UnregisterBroker", "Topic", "RemoveTopic", "Config", "BeginTransaction", "EndTransaction",
     "AbortTransaction")
)  # fmt: skip
_TYPES: Final = {kind: name for kind, name in METADATA_RECORDS.items() if name in CHANGES}
_FRAME: Final = 1  # the only version of the frame
_ONE_BYTE: Final = 0x80  # below this a varint is one byte: all types that are known


@dataclass(frozen=True)
class MetadataChange:
    """A decoded record: its type by name, and its fields as Kafka names them."""

    kind: str
    offset: int
    timestamp_ms: int
    fields: dict[str, Any] = field(hash=False)


def bad_record(path: str, offset: int, expected: str, found: str) -> LogFormatError:
    """Return the error for a record in the file at `path` that cannot be decoded."""
    return LogFormatError("record", path, NO_POSITION, expected, f"{found} (record at offset {offset})")


def metadata_changes(
    path: str, values: Any, offsets: Any, timestamps_ms: Any, unknown: Counter[int]
) -> list[MetadataChange]:
    """Return the decoded CHANGES of data records, in their order; count record types that are not known in `unknown`.

    values: pa.BinaryArray; offsets, timestamps_ms: int64[n]. Types are found on columns; a Python loop decodes only the
    changes, and a cluster has few. Raise LogFormatError.
    """
    offsets = np.asarray(offsets)
    types = _types(path, values, offsets)
    known = np.isin(types, list(METADATA_RECORDS))
    for kind, n in zip(*np.unique(types[~known], return_counts=True), strict=True):
        unknown[int(kind)] += int(n)
    rows = np.flatnonzero(np.isin(types, list(_TYPES)))
    times = np.asarray(timestamps_ms)
    return [
        _change(path, value, int(offsets[row]), int(times[row]))
        for row, value in zip(rows.tolist(), values.take(rows).to_pylist(), strict=True)
    ]


def _types(path: str, values: Any, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the record type of each value. Raise LogFormatError for the first value that has no frame of this log."""
    data, at = bytes_and_bounds(values)
    starts, sizes = at[:-1].astype(np.int64), np.diff(at)
    framed = (sizes >= 3) & np.asarray(values.is_valid())
    framed[framed] &= data[starts[framed]] == _FRAME
    framed[framed] &= data[starts[framed] + 1] < _ONE_BYTE
    if not framed.all():
        row = int(np.argmin(framed))
        expected = f"a record of __cluster_metadata, in frame version {_FRAME}"
        raise bad_record(path, int(offsets[row]), expected, _bytes(values[row].as_py()))
    return data[starts + 1].astype(np.int64)


def _change(path: str, value: bytes, offset: int, timestamp_ms: int) -> MetadataChange:
    try:
        kind, version, text = framed_message(value, _TYPES)
    except MessageError as error:
        raise bad_record(path, offset, "a record of __cluster_metadata", str(error)) from None
    versions = known_versions(f"{_TYPES[kind]}Record")
    if version not in versions:
        expected = f"a {_TYPES[kind]}Record of version {versions[0]} to {versions[-1]}"
        raise bad_record(path, offset, expected, f"version {version}, of a newer Kafka than this Lastkey knows")
    return MetadataChange(_TYPES[kind], offset, timestamp_ms, json.loads(text))


def _bytes(value: bytes | None) -> str:
    return "no value" if value is None else f"{len(value)} bytes, 0x{value[:8].hex()}" if value else "an empty value"
