"""Logs of __cluster_metadata from records in words, for what no broker of today writes: transactions, newer versions.

    write_log(folder, [topic("t", 1), config("t", "retention.ms", "5"), removed(1)])

Each record is a batch of its own, at the next offset. Layout: kafka_messages.txt (frame, type, version, fields, tags).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import START_MS, Row, arrow_records


def record(kind: int, *fields: bytes, version: int = 0) -> bytes:
    """Return the bytes of a record without tagged fields."""
    return bytes((1, kind, version)) + b"".join(fields) + b"\0"


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value.encode()) + 1]) + value.encode()


def topic(name: str, number: int) -> bytes:
    return record(2, text(name), number.to_bytes(16))


def removed(number: int) -> bytes:
    return record(9, number.to_bytes(16))


def config(name: str, setting: str, value: str | None, kind: int = 2) -> bytes:
    return record(4, bytes([kind]), text(name), text(setting), text(value))


def unregistered(broker: int) -> bytes:
    return record(1, broker.to_bytes(4), (7).to_bytes(8))


NO_OP = record(20)
BEGIN, END, ABORT = record(23), record(24), record(25)


def write_log(folder: Path, values: Iterable[bytes | None], base: int = 0) -> Path:
    """Write a segment, a batch for each record; return its path."""
    with SegmentWriter(folder, base) as writer:
        for value in values:
            writer.append_records(arrow_records([Row(None, value)], writer.next_offset))
    return folder / f"{base:020}.log"


def record_time_ms(offset: int) -> int:
    """Return the time of a record."""
    return START_MS + offset
