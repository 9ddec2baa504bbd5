"""A slow, plain reader and writer of magic 3, from the tables of FORMAT.md alone, apart from `logformat`."""

from __future__ import annotations

import struct
from dataclasses import replace

import google_crc32c

from tests.reference import varint
from tests.reference.log import Batch, compress, decode_batch, decompress

_FIXED = struct.Struct(">qiibIhqhii")  # 41 bytes
_V2 = struct.Struct(">qiibIhiqqqhii")


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    value, after = varint.read(data, at, len(data), bits=bits)
    assert after >= 0, "varint"
    return value, after


def decode_body(body: bytes, count: int) -> list[tuple[int, int, int, bytes | None, bytes | None, bytes]]:
    """Return (attributes, timestamp delta, offset delta, key, value, headers with their count) of a magic 2 body."""
    out, at = [], 0
    for _ in range(count):
        length, at = _varint(body, at)
        end, attributes = at + length, body[at]
        timestamp, at = _varint(body, at + 1, 64)
        offset, at = _varint(body, at)
        fields: list[bytes | None] = []
        for _ in range(2):
            size, at = _varint(body, at)
            fields.append(None if size < 0 else body[at : at + size])
            at += max(size, 0)
        out.append((attributes, timestamp, offset, fields[0], fields[1], body[at:end]))
        at = end
    assert at == len(body)
    return out


def to_v3(v2: bytes) -> bytes:
    """Return a batch of magic 2 as magic 3."""
    base, _, epoch, _, _, attributes, last, base_ts, max_ts, pid, pepoch, sequence, count = _V2.unpack_from(v2)
    codec = attributes & 7
    records = decode_body(decompress(codec, v2[61:]) if codec and count else v2[61:], count)
    columns: list[list[bytes]] = [[], [], [], [], []]
    time, offset, keys, payloads = 0, -1, b"", b""
    for _, t, o, key, value, headers in records:
        size = 0 if headers == b"\0" else len(headers)
        lengths = (-1 if key is None else len(key), -1 if value is None else len(value), size)
        for column, number in zip(columns, (_wrapped(t - time), o - offset - 1, *lengths), strict=True):
            column.append(varint.write(number))
        time, offset = t, o
        keys += key or b""
        payloads += (value or b"") + (headers if size else b"")
    own = bytes(r[0] for r in records)
    head = (own if any(own) else b"") + b"".join(b"".join(c) for c in columns) + keys
    attributes |= 0 if any(own) else 128
    first, stored = len(head), head
    if codec and head:
        packed = compress(codec, head)
        first, stored = (len(packed), packed) if len(packed) < len(head) else (~len(head), head)
    tail = compress(codec, payloads) if codec and payloads else payloads
    trail = b"".join(varint.write(n) for n in (last, base_ts, _wrapped(max_ts - base_ts), first))
    body = trail + stored + tail
    fixed = _FIXED.pack(base, 29 + len(body), epoch, 3, 0, attributes, pid, pepoch, sequence, count)
    crc = google_crc32c.value(fixed[21:] + body) ^ 0xFFFFFFFF
    return fixed[:17] + struct.pack(">I", crc) + fixed[21:] + body


def to_v2(v3: bytes) -> bytes:
    """Return a batch of magic 3 as magic 2, not compressed."""
    base, length, epoch, magic, crc, attributes, pid, pepoch, sequence, count = _FIXED.unpack_from(v3)
    assert magic == 3 and length == len(v3) - 12
    assert crc == google_crc32c.value(v3[21:]) ^ 0xFFFFFFFF
    last, at = _varint(v3, 41)
    base_ts, at = _varint(v3, at, 64)
    delta, at = _varint(v3, at, 64)
    first, at = _varint(v3, at)
    codec = attributes & 7
    size = first if first >= 0 else ~first
    head, tail = v3[at : at + size], v3[at + size :]
    if codec and first > 0:
        head = decompress(codec, head)
    if codec and tail:
        tail = decompress(codec, tail)
    at = 0
    own = bytes(count)
    if not attributes & 128:
        own, at = head[:count], count
    columns = []
    for bits in (64, 32, 32, 32, 32):
        column = []
        for _ in range(count):
            number, at = _varint(head, at, bits)
            column.append(number)
        columns.append(column)
    body, time, offset, p = b"", 0, -1, 0
    for i, (step, gap, k, v, h) in enumerate(zip(*columns, strict=True)):
        time, offset = _wrapped(time + step), offset + gap + 1
        record = own[i : i + 1] + varint.write(time) + varint.write(offset)
        record += varint.write(k) + head[at : at + max(k, 0)]
        at += max(k, 0)
        record += varint.write(v) + tail[p : p + max(v, 0) + h] + (b"" if h else b"\0")
        p += max(v, 0) + h
        body += varint.write(len(record)) + record
    assert at == len(head) and p == len(tail)
    attributes &= 127 - 7
    made = _V2.pack(
        base, 49 + len(body), epoch, 2, 0, attributes, last, base_ts, _wrapped(base_ts + delta), pid, pepoch, sequence,
        count,
    )  # fmt: skip
    return made[:17] + struct.pack(">I", google_crc32c.value(made[21:] + body)) + made[21:] + body


def header_end(v3: bytes) -> int:
    """Return where the header ends, and the first section begins."""
    at = 41
    for bits in (32, 64, 64, 32):
        _, at = _varint(v3, at, bits)
    return at


def decode_header(v3: bytes) -> Batch:
    """Return a batch as its header tells, without records."""
    base, _, _, _, _, attributes, pid, pepoch, sequence, _ = _FIXED.unpack_from(v3)
    last, at = _varint(v3, 41)
    base_ts, at = _varint(v3, at, 64)
    delta, at = _varint(v3, at, 64)
    return Batch(
        base, base + last, codec=attributes & 7, transactional=bool(attributes & 16), control=bool(attributes & 32),
        max_timestamp=_wrapped(base_ts + delta), producer_id=pid, producer_epoch=pepoch, base_sequence=sequence,
        data=v3,
    )  # fmt: skip


def headers_in(v3: bytes) -> bytes:
    """Return the headers section, decompressed."""
    first, at = _varint(v3, header_end(v3) - _size_of_last(v3))
    head = v3[at : at + (first if first >= 0 else ~first)]
    return decompress(v3[22] & 7, head) if v3[22] & 7 and first > 0 else head


def _size_of_last(v3: bytes) -> int:
    """Return the bytes of the trail's last number."""
    at = 41
    for bits in (32, 64, 64):
        _, at = _varint(v3, at, bits)
    return header_end(v3) - at


def numbers_in(v3: bytes) -> list[tuple[int, int, int, int]]:
    """Return start, end, -1 and value of each number in the columns of a batch's headers section."""
    head, count = headers_in(v3), _FIXED.unpack_from(v3)[9]
    out, at = [], 0 if v3[22] & 128 else count
    for bits in (64, 32, 32, 32, 32):
        for _ in range(count):
            start = at
            number, at = _varint(head, at, bits)
            out.append((start, at, -1, number))
    return out


def with_headers(v3: bytes, headers: bytes) -> bytes:
    """Return a batch with another first section, as it is stored, compressed if the batch is; not signed."""
    end = header_end(v3)
    trail, at = b"", 41
    for bits in (32, 64, 64):
        start = at
        _, at = _varint(v3, at, bits)
        trail += v3[start:at]
    first, _ = _varint(v3, at)
    rest = v3[end + (first if first >= 0 else ~first) :]
    body = trail + varint.write(len(headers)) + headers + rest
    return v3[:8] + struct.pack(">i", 29 + len(body)) + v3[12:41] + body


def as_v2(v3: bytes) -> Batch:
    """Return the batch that a batch of magic 3 holds."""
    return replace(decode_batch(to_v2(v3)), codec=v3[22] & 7, data=v3)
