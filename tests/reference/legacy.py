"""Slow twin of logformat.batches.legacy: messages of magic 0 and 1 as records, and as bytes of the magic 2 encoding."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from tests.reference import varint


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Bad(Exception):
    """Error whose text is the kind of a LogFormatError."""


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int = -1,
    attributes: int = 0,
    null: int = -1,
    extra: bytes = b"",
) -> bytes:
    """Return the bytes of a message. null: the length that means null; extra: follows the value."""
    body = struct.pack(">BB", magic, attributes) + (struct.pack(">q", timestamp) if magic == 1 else b"")
    for field in (key, value):
        body += struct.pack(">i", null if field is None else len(field)) + (field or b"")
    body += extra
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def sized(body: bytes, at: int) -> tuple[bytes | None, int]:
    if at + 4 > len(body):
        raise Bad("record")
    (length,) = struct.unpack_from(">i", body, at)
    at += 4
    if length < 0:
        return None, at
    if at + length > len(body):
        raise Bad("record")
    return body[at : at + length], at + length


def parse(body: bytes) -> tuple[int, int, int, bytes | None, bytes | None]:
    """Return magic, attributes, timestamp, key and value of a message without its prefix."""
    magic, attributes = body[4], body[5]
    if magic > 1:
        raise Bad("magic")
    if attributes & 7:
        raise Bad("codec")
    if magic == 1 and len(body) < 22:
        raise Bad("record")
    timestamp = struct.unpack_from(">q", body, 6)[0] if magic == 1 else -1
    key, at = sized(body, 14 if magic == 1 else 6)
    value, _ = sized(body, at)
    return magic, attributes, timestamp, key, value


def inner_records(
    content: bytes, wrapper_magic: int, wrapper_offset: int, wrapper_timestamp: int, wrapper_attributes: int
) -> list[Record]:
    """Return the records of a wrapper's decompressed value, as DeepRecordsIterator does (KAFKA.md, "Old messages")."""
    records = []
    while len(content) >= 12:
        offset, size = struct.unpack_from(">qi", content)
        if size < 14:
            raise Bad("length")
        if size > len(content) - 12:
            break
        if offset < 0:  # Kafka accepts it, and lets numbers wrap around; no client writes it
            raise Bad("offsets")
        if records and not -(2**31) <= offset - records[0].offset < 2**31:
            raise Bad("offsets")
        magic, _, timestamp, key, value = parse(content[12 : 12 + size])
        if magic == 1 and wrapper_magic == 1 and wrapper_attributes & 8:
            timestamp = wrapper_timestamp
        records.append(Record(offset, timestamp, key, value))
        content = content[12 + size :]
    if not records:
        raise Bad("count")
    base = 0
    if wrapper_magic == 1 and wrapper_offset != 0:
        if wrapper_offset < records[-1].offset:
            raise Bad("offsets")
        base = wrapper_offset - records[-1].offset
    return [record._replace(offset=base + record.offset) for record in records]


def encode(records: list[Record]) -> bytes:
    """Return the records in the magic 2 encoding; timestamp deltas relative to 0, offset deltas to the first record."""
    out = b""
    for record in records:
        body = b"\0" + varint.write(record.timestamp) + varint.write(record.offset - records[0].offset)
        for field in (record.key, record.value):
            body += varint.write(-1 if field is None else len(field)) + (field or b"")
        body += b"\0"
        out += varint.write(len(body)) + body
    return out


def decode(data: bytes, base_offset: int) -> list[Record]:
    """Return the records of the magic 2 encoding, without headers."""
    records, at = [], 0
    while at < len(data):
        length, at = varint.read(data, at, len(data), bits=32)
        end = at + length
        timestamp, at = varint.read(data, at + 1, end, bits=64)
        delta, at = varint.read(data, at, end, bits=32)
        fields: list[bytes | None] = []
        for _ in range(2):
            size, at = varint.read(data, at, end, bits=32)
            fields.append(None if size < 0 else data[at : at + size])
            at += max(size, 0)
        assert data[at] == 0 and at + 1 == end
        records.append(Record(base_offset + delta, timestamp, fields[0], fields[1]))
        at = end
    return records
