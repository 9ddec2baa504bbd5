"""Batches, records and entries of side files as the lines that kafka-dump-log prints.

A line is made by joining columns in Arrow, never one by one in Python. Every function gives a pyarrow.StringArray, a
line an entry, without the line's end.

Source: Kafka's DumpLogSegments (4.3.0).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logformat.layout import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_PRODUCER,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from logformat.text_kernels import replace_malformed

TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")  # by timestampType + 1
END_TXN_MARKERS: Final = ("ABORT", "COMMIT")  # by control type
_CONTROL_TYPES: Final = ("ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION",
                         "KRAFT_VOTERS")  # fmt: skip
_SEQUENCES: Final = 2**31
_EMPTY: Final = "OptionalLong.empty"
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


def batch_lines(batches: NDArray[np.void], valid: NDArray[np.bool_]) -> Any:
    """layout.BATCH[n]; valid: bool[n], whether its checksum fits."""
    b = batches
    v2 = b["magic"] == 2
    attributes = b["attributes"]
    base_sequence = b["base_sequence"].astype(np.int64)
    last_sequence = (base_sequence + b["last_offset"] - b["base_offset"]) % _SEQUENCES
    horizon = _joined("OptionalLong[", b["base_timestamp"], "]")
    of_v2 = _joined(
        "baseOffset: ", b["base_offset"], " lastOffset: ", b["last_offset"], " count: ", b["records_count"],
        " baseSequence: ", base_sequence,
        " lastSequence: ", np.where(base_sequence == NO_PRODUCER, NO_PRODUCER, last_sequence),
        " producerId: ", b["producer_id"], " producerEpoch: ", b["producer_epoch"],
        " partitionLeaderEpoch: ", b["partition_leader_epoch"],
        " isTransactional: ", attributes & TRANSACTIONAL_MASK != 0, " isControl: ", attributes & CONTROL_MASK != 0,
        " deleteHorizonMs: ", pc.if_else(pa.array(attributes & DELETE_HORIZON_MASK != 0), horizon, _EMPTY),
    )  # fmt: skip
    first = of_v2 if v2.all() else pc.if_else(pa.array(v2), of_v2, _joined("offset: ", b["last_offset"]))
    kind = np.where(b["magic"] == 0, -1, (attributes & TIMESTAMP_TYPE_MASK) // TIMESTAMP_TYPE_MASK)
    return _joined(
        first, " position: ", b["position"], " ", _names(TIMESTAMP_TYPES, kind + 1), ": ", b["max_timestamp"],
        " size: ", b["size"], " magic: ", b["magic"], " compresscodec: ", _names(CODEC_NAMES, attributes & CODEC_MASK),
        " crc: ", b["crc"], " isvalid: ", valid,
    )  # fmt: skip


def offset_index_lines(entries: NDArray[np.void]) -> Any:
    """offset_index.ENTRY[n]."""
    return _joined("offset: ", entries["offset"], " position: ", entries["position"])


def time_index_lines(entries: NDArray[np.void]) -> Any:
    """time_index.ENTRY[n]."""
    return _joined("timestamp: ", entries["timestamp"], " offset: ", entries["offset"])


def transaction_index_lines(entries: NDArray[np.void]) -> Any:
    """transaction_index.ENTRY[n]."""
    return _joined(
        "version: ", entries["version"], " producerId: ", entries["producer_id"],
        " firstOffset: ", entries["first_offset"], " lastOffset: ", entries["last_offset"],
        " lastStableOffset: ", entries["last_stable_offset"],
    )  # fmt: skip


def snapshot_lines(entries: NDArray[np.void]) -> Any:
    """producer_snapshot.ENTRY[n]."""
    e = entries
    last = e["last_sequence"].astype(np.int64)
    first = (last - e["offset_delta"]) % _SEQUENCES
    open_at = _joined("OptionalLong[", e["current_txn_first_offset"], "]")
    batch = _joined(
        " firstSequence: ", np.where(last == NO_PRODUCER, NO_PRODUCER, first), " lastSequence: ", last,
        " lastOffset: ", e["last_offset"], " offsetDelta: ", e["offset_delta"], " timestamp: ", e["timestamp"],
    )  # fmt: skip
    return _joined(
        "producerId: ", e["producer_id"], " producerEpoch: ", e["producer_epoch"],
        " coordinatorEpoch: ", e["coordinator_epoch"], " currentTxnFirstOffset: ",
        pc.if_else(pa.array(e["current_txn_first_offset"] >= 0), open_at, _EMPTY),
        " lastTimestamp: ", e["timestamp"], pc.if_else(pa.array(e["last_offset"] >= 0), batch, ""),
    )  # fmt: skip


def record_lines(
    records: Any,
    legacy_checksums: tuple[NDArray[np.uint32], NDArray[np.bool_]] | None = None,
    *,
    metadata: bool = True,
    key: Any = None,
    payload: Any = None,
) -> Any:
    """Lines of records, without those of control records where `metadata` is off.

    records: pa.RecordBatch with the columns RECORD_COLUMNS. legacy_checksums: of each record uint32[n] and whether it
    fits, where any is of magic 0 or 1. metadata: offsets, sizes and so on. key, payload: pa.StringArray[n], null where
    there is none to be shown.
    """
    control = records.column("control")
    parts: list[Any] = []
    if metadata:
        v2 = pc.equal(records.column("magic"), 2)
        kind = np.asarray(records.column("timestampType"))
        sizes = {name: pc.fill_null(pc.binary_length(records.column(name)), -1) for name in ("key", "value")}
        parts += [
            "| offset: ", records.column("offset"), " ", _names(TIMESTAMP_TYPES, kind + 1), ": ",
            records.column("timestamp_ms"), " keySize: ", sizes["key"], " valueSize: ", sizes["value"],
        ]  # fmt: skip
        of_v2 = _joined(" sequence: ", records.column("sequence"), " headerKeys: [", _header_keys(records), "]")
        if legacy_checksums is None:
            parts.append(of_v2)
        else:
            crc, valid = legacy_checksums
            parts.append(pc.if_else(v2, of_v2, _joined(" isValid: ", valid, " crc: ", crc)))
        if pc.any(control).as_py():
            parts.append(_where(control, _control_records(records.column("key"), records.column("value"), control)))
    if key is not None:
        parts.append(_where(pc.is_valid(key), _joined(" key: " if metadata else "| key: ", pc.fill_null(key, ""))))
    if payload is not None:
        first = " " if metadata or key is None else pc.if_else(pc.is_valid(key), " ", "| ")
        parts.append(_where(pc.is_valid(payload), _joined(first, "payload: ", pc.fill_null(payload, ""))))
    if not parts:
        return pa.repeat(pa.scalar(""), len(records))
    return _joined(*parts)


RECORD_COLUMNS: Final = (
    "key", "value", "offset", "timestampType", "timestamp_ms", "headers", "sequence", "control", "magic",
)  # fmt: skip


def text_of(values: Any) -> Any:
    """pa.BinaryArray as text; malformed UTF-8 becomes U+FFFD as Java's String makes it."""
    text = values.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return _mended(values)
    return text


def _mended(values: Any) -> Any:
    values = pc.fill_null(values, b"")
    _, ends, data = values.buffers()
    first, n = values.offset, len(values)
    at = np.frombuffer(ends, np.int32)[first : first + n + 1].astype(np.int64)
    out, out_at = np.empty(3 * int(at[-1] - at[0]), np.uint8), np.empty(n + 1, np.int32)
    size = replace_malformed(np.frombuffer(data, np.uint8), at, out, out_at)
    return pa.StringArray.from_buffers(n, pa.py_buffer(out_at), pa.py_buffer(out[:size]))


def _header_keys(records: Any) -> Any:
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return ""
    keys = headers.flatten().field("key")
    lists = pa.ListArray.from_arrays(headers.offsets, keys)
    return pc.fill_null(pc.binary_join(lists, ","), "")


def _control_records(key: Any, value: Any, control: Any) -> Any:
    """What is said of control records: a Python loop, over markers only."""
    said = [
        _control_record(k, v) if is_control else ""
        for k, v, is_control in zip(key.to_pylist(), value.to_pylist(), control.to_pylist(), strict=True)
    ]
    return pa.array(said, pa.string())


def _control_record(key: bytes, value: bytes | None) -> str:
    (kind,) = _I16.unpack_from(key, 2)
    if kind < len(END_TXN_MARKERS):
        (epoch,) = _I32.unpack_from(value or b"", 2)
        return f" endTxnMarker: {END_TXN_MARKERS[kind]} coordinatorEpoch: {epoch}"
    return f" controlType: {_CONTROL_TYPES[kind] if kind < len(_CONTROL_TYPES) else 'UNKNOWN'}({kind})"


def _joined(*parts: Any) -> Any:
    """Scalars, numpy and Arrow arrays joined element by element."""
    return pc.binary_join_element_wise(*(_text(part) for part in parts), "")


def _text(part: Any) -> Any:
    if isinstance(part, str):
        return part
    array = pa.array(np.ascontiguousarray(part)) if isinstance(part, np.ndarray) else part
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def _names(names: tuple[str, ...], numbers: NDArray[Any]) -> Any:
    return pa.array(names).take(pa.array(np.ascontiguousarray(numbers, np.int64)))


def _where(mask: Any, text: Any) -> Any:
    return pc.if_else(mask, text, "")
