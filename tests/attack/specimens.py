"""Small partitions that hold every kind of batch and side file: a few batches of each codec and magic.

With magic 2 and 3, `t-0` has three segments. A broker's cleaner left the first (headers, a tombstone, LogAppendTime, a
delete horizon, an aborted transaction and its marker); the second has producers, a committed transaction, holes and an
empty batch; the active one has an open transaction. With magic 0 and 1: wrappers and plain messages, then a segment of
magic 2.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import google_crc32c

from lastkey.jobs.command.config import parse_config
from lastkey.logformat.names import segment_file
from lastkey.logformat.primitives import codec as product_codec
from lastkey.logformat.side_files import checkpoints
from tests.builders.damage import BOMB_LIMIT, START_MS
from tests.builders.formats import converted
from tests.builders.logs import TOPIC_ID
from tests.builders.reindexed import run as reindex
from tests.builders.trees import read_tree
from tests.reference.log import (
    ABORT,
    COMMIT,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Batch,
    Record,
    compress,
    data_batch,
    decompress,
    marker_batch,
    with_timestamps,
)  # fmt: skip
from tests.reference.xxhash import xxh32

CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
NAMES = (
    *(f"v0-{c}" for c in ("none", "gzip", "snappy", "lz4")),
    *(f"v1-{c}" for c in ("none", "gzip", "snappy", "lz4")),
    *(f"v2-{c}" for c in CODECS),
    *(f"v3-{c}" for c in CODECS),
)
CHECKPOINT = 10  # a cleaner was here below this offset
CONFIG = parse_config(
    {
        "defaults": {
            "index.interval.bytes": 0, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0,
            "null.keys": "drop", "max.decompressed.batch.bytes": BOMB_LIMIT,
        },
        "job": {"engine": "threads"},  # cases are forked from a warm process, and a JVM is not
    }
)  # fmt: skip


@dataclass(frozen=True)
class Specimen:
    """An undamaged archive with one partition, in memory: path below the root -> bytes."""

    name: str
    files: dict[str, bytes]

    def logs(self) -> list[str]:
        return [path for path in self.files if path.endswith(".log")]

    def log_path(self, path: str) -> str:
        """Return the `.log` that a segment's file belongs to."""
        return f"{path.partition('.')[0]}.log"


def make(name: str, work: Path) -> Specimen:
    """Build a specimen below an existing folder."""
    magic, _, codec = name.partition("-")
    root = work / name
    folder = root / "t-0"
    folder.mkdir(parents=True)
    segments = _magic_2_segments(CODECS[codec]) if magic >= "v2" else _legacy(int(magic[1]), CODECS[codec])
    for base, batches in segments.items():
        data = b"".join(b.data for b in batches)
        (folder / segment_file(base, "log")).write_bytes(converted(data, 3) if magic == "v3" else data)
    (folder / "partition.metadata").write_bytes(checkpoints.write_partition_metadata(TOPIC_ID))
    end = max(b.last_offset for b in segments[max(segments)]) + 1
    for checkpoint, offset in (
        ("cleaner-offset-checkpoint", CHECKPOINT), ("log-start-offset-checkpoint", 0),
        ("replication-offset-checkpoint", end), ("recovery-point-offset-checkpoint", end),
    ):  # fmt: skip
        (root / checkpoint).write_bytes(checkpoints.write_offset_checkpoint({("t", 0): offset}))
    (root / "meta.properties").write_text("version=1\ncluster.id=abcdefghijklmnopqrstuv\nnode.id=1\nbroker.id=1\n")
    report = reindex(root, "in_place", config=CONFIG)
    assert not report.exit_code, report.to_text()
    for path in folder.iterdir():
        os.utime(path, (START_MS // 1000,) * 2)
    return Specimen(name, read_tree(root))


def put(files: dict[str, bytes], root: Path) -> None:
    """Write files below a root, creating folders, all with one mtime."""
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        os.utime(target, (START_MS // 1000,) * 2)


def _records(base: int, *rows: tuple[bytes | None, bytes | None]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(START_MS + base + i, key, value) for i, (key, value) in enumerate(rows)]


def _magic_2_segments(codec: int) -> dict[int, list[Batch]]:
    plain = {"codec": codec, "leader_epoch": 1}
    headers = ((b"header", b"of a record"), (b"", None))
    first = Batch(
        0, 2, (Record(0, START_MS, b"a", b"value of a", headers), Record(1, START_MS + 9, b"b", b"b" * 40),
               Record(2, START_MS + 2, b"c", None)), codec=codec, leader_epoch=1,
    )  # fmt: skip
    holes = Batch(15, 18, (Record(15, START_MS, b"a", b"new"), Record(17, START_MS + 7, b"e", b"")), **plain)  # type: ignore[arg-type]
    before = [
        _encoded(first),
        _data(3, (b"d", b"appended"), (b"b", b"later"), append_time=True, max_timestamp=START_MS + 50, **plain),
        _data(5, (b"x", None), (b"y", b"stays"), delete_horizon=START_MS + 1000, **plain),
        _data(7, (b"a", b"aborted"), (b"z", b"aborted"), transactional=True, **_producer(7), **plain),
        marker_batch(9, 7, ABORT, timestamp=START_MS + 9, leader_epoch=1),
    ]
    middle = [
        _data(10, (b"d", b"idempotent"), (b"f", b"1"), **_producer(8), **plain),
        _data(12, (b"b", b"committed"), (b"g", None), transactional=True, **_producer(9), **plain),
        marker_batch(14, 9, COMMIT, timestamp=START_MS + 14, leader_epoch=1),
        _encoded(holes),
        Batch(19, 20, max_timestamp=START_MS + 20, leader_epoch=1, **_producer(8, 2)).encoded(),
    ]
    later = {**plain, "leader_epoch": 3}
    active = [
        _data(21, (b"a", b"last"), (b"h", b"last"), **later),
        _data(23, (b"i", b"open"), (b"j", b"open"), transactional=True, **_producer(7, 2), **later),
    ]
    return {0: before, 10: middle, 21: active}


def _producer(pid: int, sequence: int = 0) -> dict[str, int]:
    return {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequence}


def _data(base: int, *rows: tuple[bytes | None, bytes | None], **fields: object) -> Batch:
    codec = fields.pop("codec", NONE)
    made = data_batch(base, _records(base, *rows), **fields)
    return _encoded(replace(made, codec=codec))  # type: ignore[arg-type]


def _encoded(batch: Batch) -> Batch:
    """Return the batch with its bytes; the reference writes no lz4."""
    batch = with_timestamps(batch)
    if batch.codec != LZ4:
        return batch.encoded()
    plain = replace(batch, codec=NONE).encoded()
    data = bytearray(plain.data[:61] + pack(LZ4, 2, plain.data[61:]))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, struct.unpack_from(">h", data, 21)[0] | LZ4)
    return replace(batch, data=signed(bytes(data)))


def _legacy(magic: int, codec: int) -> dict[int, list[Batch]]:
    def time(offset: int) -> int:
        return START_MS + offset if magic else -1

    def wrapper(base: int, *rows: tuple[bytes | None, bytes | None], **fields: object) -> list[Batch]:
        records = tuple(Record(base + i, time(base + i), key, value) for i, (key, value) in enumerate(rows))
        if not codec:
            return [Batch(r.offset, r.offset, (r,), magic, max_timestamp=r.timestamp).encoded() for r in records]
        made = Batch(
            base, records[-1].offset, records, magic, GZIP, max_timestamp=time(records[-1].offset), **fields,  # type: ignore[arg-type]
        ).encoded()  # fmt: skip
        at = 26 + 8 * magic
        data = bytearray(made.data[:at] + pack(codec, magic, decompress(GZIP, made.data[at:])))
        struct.pack_into(">i", data, 8, len(data) - 12)
        data[17] = data[17] & ~7 | codec
        struct.pack_into(">i", data, at - 4, len(data) - at)
        return [replace(made, codec=codec, data=signed(bytes(data)))]

    def plain(offset: int, key: bytes | None, value: bytes | None) -> Batch:
        record = Record(offset, time(offset), key, value)
        return Batch(offset, offset, (record,), magic, max_timestamp=record.timestamp).encoded()

    before = [*wrapper(0, (b"a", b"1"), (b"b", b"2"), (b"c", None)), plain(3, b"d", b"4"), *wrapper(4, (b"a", b"5"))]
    before += [plain(offset, b"%d" % (offset % 2), b"more") for offset in range(5, 10)]
    appended = {"append_time": True} if magic else {}
    middle = [*wrapper(10, (b"b", b"6"), (b"e", b""), (b"f", None), **appended), plain(13, b"c", b"7")]
    active = [_data(14, (b"a", b"last"), (b"g", b"last"), leader_epoch=3)]
    return {0: before, 10: middle, 14: active}


def pack(codec: int, magic: int, body: bytes) -> bytes:
    """Return a body compressed as Kafka does."""
    if codec != LZ4:
        return compress(codec, body)
    packed = bytearray(product_codec.compress(LZ4, body))
    if magic == 0:  # KAFKA-3160: the descriptor's checksum includes the frame's magic
        packed[6] = xxh32(bytes(packed[:6])) >> 8 & 0xFF
    return bytes(packed)


def unpack(codec: int, magic: int, body: bytes) -> bytes:
    """Return a body that `pack` compressed."""
    if codec == LZ4 and magic == 0:
        body = body[:6] + bytes([xxh32(body[4:6]) >> 8 & 0xFF]) + body[7:]
    return decompress(codec, body)


def batch_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield position and size of each batch of a healthy log."""
    at = 0
    while at < len(data):
        size = 12 + int(struct.unpack_from(">i", data, at + 8)[0])
        yield at, size
        at += size


def signed(data: bytes, at: int = 0, size: int | None = None) -> bytes:
    """Return the data with a right checksum in the batch or message at a position."""
    end = len(data) if size is None else at + size
    out = bytearray(data)
    if out[at + 16] >= 2:
        inverted = 0xFFFFFFFF if out[at + 16] == 3 else 0
        struct.pack_into(">I", out, at + 17, crc32c(bytes(out[at + 21 : end])) ^ inverted)
    else:
        struct.pack_into(">I", out, at + 12, zlib.crc32(bytes(out[at + 16 : end])))
    return bytes(out)


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))
