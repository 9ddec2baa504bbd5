"""`.log` bytes of any mix of magics, read slowly: batches of `log`, messages and wrappers of `legacy`, as batches."""

from __future__ import annotations

import struct

from tests.reference import legacy, v3
from tests.reference.log import LZ4, Batch, Record, decode_batch, decompress


def decode_any(data: bytes) -> list[Batch]:
    """Return all batches. A wrapper of magic 0 with lz4 gives no records, since no other library reads its frame
    (KAFKA-3160); they have no timestamps anyway.
    """
    out, at = [], 0
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        part = data[at : at + size]
        out.append(v3.as_v2(part) if part[16] == 3 else decode_batch(part) if part[16] == 2 else _message(part))
        at += size
    return out


def _message(part: bytes) -> Batch:
    (offset,), magic, attributes = struct.unpack_from(">q", part), part[16], part[17]
    timestamp = struct.unpack_from(">q", part, 18)[0] if magic else -1
    codec, append_time = attributes & 7, bool(attributes & 8)
    if codec == 0:
        *_, key, value = legacy.parse(part[12:])
        records = [Record(offset, timestamp, key, value)]
    elif codec == LZ4 and magic == 0:
        records = []
    else:
        _, key_end = legacy.sized(part, 26 if magic else 18)
        value, _ = legacy.sized(part, key_end)
        content = decompress(codec, value or b"")
        inner = legacy.inner_records(content, magic, offset, timestamp, attributes)
        records = [Record(r.offset, r.timestamp, r.key, r.value) for r in inner]
    first = records[0].offset if records else offset
    made = tuple(records)
    return Batch(first, offset, made, magic, codec, append_time, max_timestamp=timestamp, data=part)
