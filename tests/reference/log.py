"""A slow, plain reader and writer of `.log` bytes of all three magics: batches and records as dataclasses.

Written from the field tables of Kafka's DefaultRecordBatch, DefaultRecord and LegacyRecord, independently of
`logformat`. So the code under test reads bytes that it did not write, and an independent reader reads its bytes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass, field, replace

import cramjam
import google_crc32c
import zstandard

from tests.reference import varint

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
ABORT, COMMIT = 0, 1
_HEADER = struct.Struct(">qiibIhiqqqhii")  # magic 2, 61 bytes
_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """One batch of magic 2, one message of magic 0 or 1, or one compressed wrapper with its messages."""

    base_offset: int  # base offset; in magic 0 and 1 that of the first record
    last_offset: int
    records: tuple[Record, ...] = ()
    magic: int = 2
    codec: int = NONE
    append_time: bool = False
    transactional: bool = False
    control: bool = False
    delete_horizon: int | None = None
    base_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    data: bytes = field(default=b"", compare=False, repr=False)  # as in the file

    @property
    def marker(self) -> int | None:
        """ABORT or COMMIT; None if the batch is no such marker."""
        if not self.control or not self.records:
            return None
        kind = struct.unpack_from(">h", self.records[0].key, 2)[0]
        return kind if kind in (ABORT, COMMIT) else None

    def encoded(self) -> Batch:
        """Return the batch with its bytes."""
        return replace(self, data=encode_batch(self) if self.magic == 2 else _encode_legacy(self))


def compress(codec: int, data: bytes) -> bytes:
    if codec == GZIP:
        return gzip.compress(data, 6, mtime=0)
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL + struct.pack(">i", len(block)) + block
    if codec == ZSTD:
        return zstandard.ZstdCompressor(3, write_content_size=False).compress(data)
    return data


def decompress(codec: int, data: bytes) -> bytes:
    if codec == GZIP:
        return gzip.decompress(data)
    if codec == LZ4:
        if data[-4:] == b"\0\0\0\x80":  # a stored block of no bytes ends a frame too, for Kafka; not for the library
            data = data[:-1] + b"\0"
        return bytes(cramjam.lz4.decompress(data))
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if codec != SNAPPY:
        return data
    if not data.startswith(_XERIAL[:8]):
        return bytes(cramjam.snappy.decompress_raw(data))  # as librdkafka writes it: one block without a frame
    out, at = b"", len(_XERIAL)
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return out


def _sized(field_bytes: bytes | None) -> bytes:
    return varint.write(-1) if field_bytes is None else varint.write(len(field_bytes)) + field_bytes


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + varint.write(record.timestamp - base_timestamp) + varint.write(record.offset - base_offset)
    body += _sized(record.key) + _sized(record.value) + varint.write(len(record.headers))
    for key, value in record.headers:
        body += _sized(key) + _sized(value)
    return varint.write(len(body)) + body


def encode_batch(b: Batch) -> bytes:
    """Return the bytes of a batch of magic 2."""
    attributes = b.codec | b.append_time << 3 | b.transactional << 4 | b.control << 5
    attributes |= (b.delete_horizon is not None) << 6
    body = b"".join(encode_record(r, b.base_offset, b.base_timestamp) for r in b.records)
    if b.codec and b.records:
        body = compress(b.codec, body)
    head = _HEADER.pack(
        b.base_offset, 49 + len(body), b.leader_epoch, 2, 0, attributes, b.last_offset - b.base_offset,
        b.base_timestamp, b.max_timestamp, b.producer_id, b.producer_epoch, b.base_sequence, len(b.records),
    )  # fmt: skip
    crc = google_crc32c.value(head[21:] + body)
    return head[:17] + struct.pack(">I", crc) + head[21:] + body


def _message(magic: int, offset: int, timestamp: int, attributes: int, key: bytes | None, value: bytes | None) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def _encode_legacy(b: Batch) -> bytes:
    bit = 8 if b.append_time else 0
    if not b.codec:
        (r,) = b.records
        return _message(b.magic, r.offset, b.max_timestamp, bit, r.key, r.value)
    first = b.records[0].offset if b.magic == 1 else 0  # magic 1: offsets in a wrapper are relative
    inner = b"".join(_message(b.magic, r.offset - first, r.timestamp, 0, r.key, r.value) for r in b.records)
    return _message(b.magic, b.last_offset, b.max_timestamp, bit | b.codec, None, compress(b.codec, inner))


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = varint.read(data, at, len(data), bits=32)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _decode_record(data: bytes, at: int, b: Batch) -> tuple[Record, int]:
    length, at = varint.read(data, at, len(data), bits=32)
    assert at >= 0 and length > 0, "record length"
    end = at + length
    timestamp, at = varint.read(data, at + 1, end, bits=64)
    delta, at = varint.read(data, at, end, bits=32)
    key, at = _field(data, at)
    value, at = _field(data, at)
    n, at = varint.read(data, at, end, bits=32)
    assert 0 <= n <= end - at, "headers"
    headers = []
    for _ in range(n):
        name, at = _field(data, at)
        content, at = _field(data, at)
        headers.append((name or b"", content))
    assert at == end, "record length"
    timestamp = b.max_timestamp if b.append_time else (b.base_timestamp + timestamp + 2**63) % 2**64 - 2**63  # as Java
    return Record(b.base_offset + delta, timestamp, key, value, tuple(headers)), at


def decode_batch(data: bytes) -> Batch:
    """Return the batch of magic 2 that fills `data`."""
    (
        base, length, epoch, magic, crc, attributes, last_delta, base_timestamp, max_timestamp, pid, producer_epoch,
        sequence, count,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    assert magic == 2 and length == len(data) - 12, "length"
    assert crc == google_crc32c.value(data[21:]), "checksum"
    codec = attributes & 7
    batch = Batch(
        base_offset=base, last_offset=base + last_delta, codec=codec, append_time=bool(attributes & 8),
        transactional=bool(attributes & 16), control=bool(attributes & 32),
        delete_horizon=base_timestamp if attributes & 64 else None, base_timestamp=base_timestamp,
        max_timestamp=max_timestamp, leader_epoch=epoch, producer_id=pid, producer_epoch=producer_epoch,
        base_sequence=sequence, data=data,
    )  # fmt: skip
    body = decompress(codec, data[61:]) if codec and count else data[61:]
    records, at = [], 0
    for _ in range(count):
        record, at = _decode_record(body, at, batch)
        records.append(record)
    assert at == len(body), "record count"
    return replace(batch, records=tuple(records))


def decode_log(data: bytes) -> list[Batch]:
    """Return all batches of a `.log` of magic 2."""
    out, at = [], 0
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        out.append(decode_batch(data[at : at + size]))
        at += size
    return out


def data_batch(base_offset: int, records: list[tuple[int, bytes | None, bytes | None]], **fields: object) -> Batch:
    """Return a batch of (timestamp, key, value) at consecutive offsets, with the header that a producer's batch has."""
    made = tuple(Record(base_offset + i, t, k, v) for i, (t, k, v) in enumerate(records))
    last = base_offset + len(made) - 1
    batch = Batch(base_offset, last, made, **fields)  # type: ignore[arg-type]
    return with_timestamps(batch).encoded()


def with_timestamps(batch: Batch) -> Batch:
    """Return the batch with the base and largest timestamp of its records (those of LogAppendTime are given)."""
    if batch.append_time:
        records = tuple(replace(r, timestamp=batch.max_timestamp) for r in batch.records)
        return replace(batch, records=records, base_timestamp=batch.max_timestamp)
    if not batch.records:
        return batch
    largest = max(r.timestamp for r in batch.records)
    base = batch.records[0].timestamp if batch.delete_horizon is None else batch.delete_horizon
    return replace(batch, base_timestamp=base, max_timestamp=largest)


def marker_batch(
    offset: int, producer_id: int, kind: int, *, timestamp: int, epoch: int = 0, **fields: object
) -> Batch:
    """Return an end-transaction marker, 78 bytes."""
    record = Record(offset, timestamp, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    batch = Batch(
        offset, offset, (record,), transactional=True, control=True, producer_id=producer_id, producer_epoch=epoch,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip
    return with_timestamps(batch).encoded()
