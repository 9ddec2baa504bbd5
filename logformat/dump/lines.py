"""Batches, records and entries of side files as the lines that kafka-dump-log prints, or as JSON.

Arrow joins columns to lines; Python makes none one by one. Every function of lines returns a pyarrow.StringArray, one
line an entry, without line ends.

Source: Kafka's DumpLogSegments (4.3.0).

Control records of KRaft logs (__cluster_metadata and its snapshots) are read by their own message versions; the tool
takes version 0 for all, and ends at a leader change of version 1. Source: ControlRecordUtils of Kafka 4.3.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.layout import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_PRODUCER,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from lastkey.logformat.messages.reader import MessageError, reader
from lastkey.logformat.messages.table import known_versions
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds, decode_text, rewritten
from lastkey.logformat.primitives.text_kernels import escape_json

_VERSION: Final = struct.Struct(">h")
_SHOWN: Final = {  # control type -> text before the message, and the message's name
    2: ("LeaderChange:", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}


def control_record_text(control_type: int, value: bytes | None) -> str | None:
    """Return the text of a control record; None for a marker of a transaction, and for a value that cannot be read."""
    if control_type not in _SHOWN or value is None or len(value) < _VERSION.size:
        return None
    head, name = _SHOWN[control_type]
    (version,) = _VERSION.unpack_from(value)
    if version not in known_versions(name):
        return None
    try:
        text, _ = reader(name, version)(value, 0)
    except MessageError:
        return None
    return f"{head} {text}"


def joined(*parts: Any) -> Any:
    """Join scalars, numpy and Arrow arrays element by element."""
    return pc.binary_join_element_wise(*(_text(part) for part in parts), "")


def _text(part: Any) -> Any:
    if isinstance(part, str):
        return part
    array = pa.array(np.ascontiguousarray(part)) if isinstance(part, np.ndarray) else part
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def look_up_names(names: tuple[str, ...], numbers: NDArray[Any]) -> Any:
    """Return pa.StringArray, the name of each number; every number must have one."""
    return pa.array(names).take(pa.array(np.ascontiguousarray(numbers, np.int64)))


def where(mask: Any, text: Any) -> Any:
    """Return the text where the mask is true, else an empty one."""
    return pc.if_else(mask, text, "")


END_TXN_MARKERS: Final = ("ABORT", "COMMIT")  # by control type
_CONTROL_TYPES: Final = ("ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION",
                         "KRAFT_VOTERS")  # fmt: skip


def read_markers(records: Any) -> tuple[Any, Any]:
    """Return each record's control type by name, and its coordinator's epoch; null where there is none."""
    control = np.asarray(records.column("control"))
    kinds, _ = _number_at(records.column("key"), 2, ">i2")
    epochs, has_epoch = _number_at(records.column("value"), 2, ">i4")
    marker = control & (kinds >= 0) & (kinds < len(END_TXN_MARKERS))
    number = np.minimum(np.where(kinds < 0, len(_CONTROL_TYPES), kinds), len(_CONTROL_TYPES))
    names = look_up_names((*_CONTROL_TYPES, "UNKNOWN"), number)
    said = pc.if_else(pa.array(marker), names, joined(names, "(", kinds, ")"))
    return pc.if_else(pa.array(control), said, None), pa.array(epochs, pa.int32(), mask=~(marker & has_epoch))


def _number_at(values: Any, first: int, kind: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (int64[n], bool[n]): the number at byte `first` of each value, or -1, and whether it is there."""
    data, at = bytes_and_bounds(values)
    size = np.dtype(kind).itemsize
    has_number = (np.diff(at) >= first + size) & np.asarray(values.is_valid())
    out = np.full(len(values), -1, np.int64)
    places = at[:-1][has_number].astype(np.int64)[:, None] + first + np.arange(size)
    out[has_number] = data[places].view(kind)[:, 0]
    return out, has_number


def control_text(records: Any) -> Any:
    """Return the text after the line of each control record; for other records it has no meaning."""
    kind, epoch = read_markers(records)
    marker = joined(" endTxnMarker: ", pc.fill_null(kind, ""), " coordinatorEpoch: ", pc.fill_null(epoch, -1))
    other = pc.coalesce(_kraft_records(records), joined(" controlType: ", pc.fill_null(kind, "")))
    return pc.if_else(pc.is_valid(epoch), marker, other)


def _kraft_records(records: Any) -> Any:
    """Return the text of a KRaft log's control records; null elsewhere. A Python loop, over those records only."""
    texts = np.full(len(records), None, object)
    kinds, _ = _number_at(records.column("key"), 2, ">i2")
    rows = np.flatnonzero(np.asarray(records.column("control")) & (kinds >= len(END_TXN_MARKERS)))
    values = records.column("value").take(pa.array(rows)).to_pylist()
    for row, kind, value in zip(rows.tolist(), kinds[rows].tolist(), values, strict=True):
        text = control_record_text(kind, value)
        texts[row] = None if text is None else f" {text}"
    return pa.array(texts, pa.string())


TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")  # by timestampType + 1
_SEQUENCES: Final = 2**31


def batch_lines(batches: NDArray[np.void], valid: NDArray[np.bool_]) -> Any:
    """Return the lines of layout.BATCH[n]; valid: bool[n], whether the checksum fits."""
    columns = batch_columns(batches, valid)
    columns["deleteHorizonMs"] = _optional(columns["deleteHorizonMs"])
    names, v2 = list(columns), batches["magic"] >= 2
    at = names.index("position")
    first = field_lines({name: columns[name] for name in names[1:at]})
    if not v2.all():
        first = pc.if_else(pa.array(v2), first, joined("offset: ", batches["last_offset"]))
    kind, timestamp = columns["timestampType"], columns["maxTimestamp"]
    rest = field_lines({name: columns[name] for name in names[at + 3 :]})
    return joined(first, " position: ", columns["position"], " ", kind, ": ", timestamp, " ", rest)


def field_lines(columns: Mapping[str, Any]) -> Any:
    """Return lines of the form `name: value name: value`, for index entries and similar rows."""
    parts: list[Any] = []
    for name, column in columns.items():
        parts += [f"{' ' if parts else ''}{name}: ", column]
    return joined(*parts)


def snapshot_columns(entries: NDArray[np.void]) -> dict[str, Any]:
    """Return the columns of producer_snapshot.ENTRY[n], by the tool's names; null means none."""
    e = entries
    last = e["last_sequence"].astype(np.int64)
    no_batch = e["last_offset"] < 0
    columns = {
        "firstSequence": np.where(last == NO_PRODUCER, NO_PRODUCER, (last - e["offset_delta"]) % _SEQUENCES),
        "lastSequence": last, "lastOffset": e["last_offset"], "offsetDelta": e["offset_delta"],
        "timestamp": e["timestamp"],
    }  # fmt: skip
    first = e["current_txn_first_offset"]
    return {
        "producerId": e["producer_id"],
        "producerEpoch": e["producer_epoch"],
        "coordinatorEpoch": e["coordinator_epoch"],
        "currentTxnFirstOffset": pa.array(first, mask=first < 0),
        "lastTimestamp": e["timestamp"],
    } | {name: pa.array(column, mask=no_batch) for name, column in columns.items()}


def snapshot_lines(entries: NDArray[np.void]) -> Any:
    """Return the lines of producer_snapshot.ENTRY[n]; the line of a producer without a batch ends early."""
    columns = snapshot_columns(entries)
    columns["currentTxnFirstOffset"] = _optional(columns["currentTxnFirstOffset"])
    of_batch = {name: columns.pop(name) for name in list(columns)[5:]}
    known = pc.is_valid(of_batch["lastOffset"])
    batch = field_lines({name: pc.fill_null(column, 0) for name, column in of_batch.items()})
    return joined(field_lines(columns), where(known, joined(" ", batch)))


def _optional(numbers: Any) -> Any:
    """Return numbers as Java shows an OptionalLong."""
    return pc.coalesce(joined("OptionalLong[", numbers, "]"), "OptionalLong.empty")


def record_lines(
    records: Any,
    legacy_checksums: tuple[NDArray[np.uint32], NDArray[np.bool_]] | None = None,
    *,
    metadata: bool = True,
    key: Any = None,
    payload: Any = None,
) -> Any:
    """Return the lines of records. With `metadata` off, control records have empty lines.

    records: pa.RecordBatch with the columns RECORD_COLUMNS. legacy_checksums: of each record uint32[n], and whether it
    fits; needed if any has magic 0 or 1. metadata: show offsets, sizes and so on. key, payload: pa.StringArray[n], null
    where no text is to be shown.
    """
    control = records.column("control")
    parts: list[Any] = []
    if metadata:
        v2 = pc.greater_equal(records.column("magic"), 2)
        kind = np.asarray(records.column("timestampType"))
        parts += [
            "| offset: ", records.column("offset"), " ", look_up_names(TIMESTAMP_TYPES, kind + 1), ": ",
            records.column("timestamp_ms"), " keySize: ", _size(records, "key"),
            " valueSize: ", _size(records, "value"),
        ]  # fmt: skip
        of_v2 = joined(" sequence: ", records.column("sequence"), " headerKeys: [", _header_keys(records), "]")
        if legacy_checksums is None:
            parts.append(of_v2)
        else:
            crc, valid = legacy_checksums
            parts.append(pc.if_else(v2, of_v2, joined(" isValid: ", valid, " crc: ", crc)))
        if pc.any(control).as_py():
            parts.append(where(control, control_text(records)))
    if key is not None:
        parts.append(where(pc.is_valid(key), joined(" key: " if metadata else "| key: ", pc.fill_null(key, ""))))
    if payload is not None:
        first = " " if metadata or key is None else pc.if_else(pc.is_valid(key), " ", "| ")
        parts.append(where(pc.is_valid(payload), joined(first, "payload: ", pc.fill_null(payload, ""))))
    if not parts:
        return pa.repeat(pa.scalar(""), len(records))
    return joined(*parts)


RECORD_COLUMNS: Final = (
    "key", "value", "offset", "timestampType", "timestamp_ms", "headers", "sequence", "control", "magic",
)  # fmt: skip


def json_lines(columns: Mapping[str, Any]) -> Any:
    """Return a JSON object for each row, from name -> column: int, bool, text, lists and structs of them, in Arrow or
    numpy.

    A null becomes null; a plain str is repeated in every row.
    """
    parts: list[Any] = []
    for name, column in columns.items():
        parts += [("," if parts else "{") + json.dumps(name) + ":", _json(column)]
    return joined(*parts, "}")


def _json(column: Any) -> Any:
    if isinstance(column, str):
        return json.dumps(column)
    array = pa.array(np.ascontiguousarray(column)) if isinstance(column, np.ndarray) else column
    if pa.types.is_list(array.type):
        texts = pc.binary_join(pa.ListArray.from_arrays(array.offsets, _text(_json(array.values))), ",")
        text = joined("[", pc.fill_null(texts, ""), "]")
    elif pa.types.is_struct(array.type):
        text = json_lines({field.name: array.field(field.name) for field in array.type})
    elif pa.types.is_string(array.type):
        text = joined('"', rewritten(pc.fill_null(array, ""), escape_json, 6), '"')
    else:
        text = array.cast(pa.string())
    return pc.if_else(pc.is_valid(array), text, "null") if array.null_count else text


def batch_columns(batches: NDArray[np.void], valid: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the content of `batch_lines` as columns for `json_lines`, with the same names."""
    b, attributes = batches, batches["attributes"]
    base, last = _sequences(b)
    return {
        "type": "batch", "baseOffset": b["base_offset"], "lastOffset": b["last_offset"], "count": b["records_count"],
        "baseSequence": base, "lastSequence": last, "producerId": b["producer_id"],
        "producerEpoch": b["producer_epoch"], "partitionLeaderEpoch": b["partition_leader_epoch"],
        "isTransactional": attributes & TRANSACTIONAL_MASK != 0, "isControl": attributes & CONTROL_MASK != 0,
        "deleteHorizonMs": pa.array(b["base_timestamp"], mask=attributes & DELETE_HORIZON_MASK == 0),
        "position": b["position"], "timestampType": look_up_names(TIMESTAMP_TYPES, _timestamp_type(b) + 1),
        "maxTimestamp": b["max_timestamp"], "size": b["size"], "magic": b["magic"],
        "compresscodec": look_up_names(CODEC_NAMES, attributes & CODEC_MASK), "crc": b["crc"], "isvalid": valid,
    }  # fmt: skip


def record_columns(records: Any, key: Any = None, payload: Any = None) -> dict[str, Any]:
    """Return the content of `record_lines` as columns for `json_lines`.

    Control records have their type and coordinator epoch. With a key or payload the values of headers are included.
    """
    kind, epoch = read_markers(records)
    out = {
        "type": "record", "offset": records.column("offset"),
        "timestampType": look_up_names(TIMESTAMP_TYPES, np.asarray(records.column("timestampType")) + 1),
        "timestamp": records.column("timestamp_ms"), "keySize": _size(records, "key"),
        "valueSize": _size(records, "value"), "sequence": records.column("sequence"),
        "headerKeys": _header_key_lists(records), "controlType": kind, "coordinatorEpoch": epoch,
    }  # fmt: skip
    if key is None and payload is None:
        return out
    return out | {"headers": _headers(records), "key": key, "payload": payload}


def _sequences(b: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and last sequence of batches; both are -1 for magic 0 and 1."""
    base = b["base_sequence"].astype(np.int64)
    last = base + b["last_offset"] - b["base_offset"]
    last[last >= _SEQUENCES] -= _SEQUENCES
    return base, np.where(base == NO_PRODUCER, NO_PRODUCER, last)


def _timestamp_type(b: NDArray[np.void]) -> NDArray[np.int64]:
    return np.where(b["magic"] == 0, -1, (b["attributes"] & TIMESTAMP_TYPE_MASK) // TIMESTAMP_TYPE_MASK)


def _size(records: Any, name: str) -> Any:
    return pc.fill_null(pc.binary_length(records.column(name)), -1)


def _header_key_lists(records: Any) -> Any:
    """Return list<string>[n] of each record's header keys, empty if it has none."""
    headers = records.column("headers")
    offsets = np.asarray(headers.offsets)  # a null has no elements
    keys = headers.values.field("key")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), keys)


def _headers(records: Any) -> Any:
    """Return list<struct<key: string, value: string>>[n] of each record's headers, empty if it has none."""
    headers = records.column("headers")
    values = headers.values
    pairs = pa.StructArray.from_arrays([values.field("key"), decode_text(values.field("value"))], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(np.asarray(headers.offsets), pa.int32()), pairs)


def _header_keys(records: Any) -> Any:
    lists = _header_key_lists(records)
    return pc.binary_join(lists, ",") if len(lists.values) else ""
