"""Segments of tiered storage, as Kafka's LocalTieredStorage, Aiven's plugin and Pinterest's uploader upload them.

Aiven's jars are not on Maven Central. So their objects are written here from the published format, with the standard
library and the zstandard codec alone. Source, at Aiven-Open/tiered-storage-for-apache-kafka 1.1.1: ObjectKeyFactory,
KafkaRemoteStorageManager (what is uploaded in which order), SegmentManifestV1, SegmentIndexesV1Builder,
FixedSizeChunkIndex, VariableSizeChunkIndex, ChunkSizesBinaryCodec, KafkaTypeSerdeModule.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lastkey.logformat.side_files.index_builder import IndexBuilder
from tests.reference.log import Batch, data_batch

TOPIC_ID = "aBcDeFgHiJkLmNoPqRsT-w"
NO_PRODUCERS = struct.pack(">hIi", 1, 0x48674BC7, 0)  # a snapshot of no producers; its CRC-32C is of the last 4 bytes
START_MS = 1_700_000_000_000
_ZSTD = pa.Codec("zstd")


@dataclass(frozen=True)
class Uploaded:
    """Files of a segment, as a broker gives them to its remote storage."""

    start: int
    last: int
    log: bytes
    index: bytes
    time_index: bytes
    snapshot: bytes
    epochs: bytes
    txn_index: bytes = b""


def batches(first: int, until: int, epoch: int = 0, *, each: int = 5, tag: str = "") -> list[Batch]:
    """Return batches of `each` records with the offsets [first, until); the same offset and tag give the same batch."""
    return [
        data_batch(
            base,
            [(START_MS + o, b"key-%d" % (o % 7), f"value {o} {tag}".encode()) for o in range(base, base + each)],
            leader_epoch=epoch,
        )
        for base in range(first, until, each)
    ]


def segment(made: Sequence[Batch], epochs: Sequence[tuple[int, int]] = ((0, 0),)) -> Uploaded:
    """Return the files of a segment with these batches; epochs: (epoch, start offset) of the leader at its end."""
    builder = IndexBuilder(made[0].base_offset, 0)
    for b in made:
        builder.append([b.last_offset], [len(b.data)], [b.max_timestamp])
    index, time_index = builder.finish()
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    log = b"".join(b.data for b in made)
    checkpoint = "\n".join(lines).encode() + b"\n"
    return Uploaded(made[0].base_offset, made[-1].last_offset, log, index, time_index, NO_PRODUCERS, checkpoint)


def segment_id(number: int) -> str:
    """Return an id of a segment."""
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode()[:22]


def put_kafka(root: Path, partition: str, number: int, files: Uploaded, without: Sequence[str] = ()) -> Path:
    """Upload a segment as LocalTieredStorage does, without the objects of some kinds. Return its folder."""
    folder = root / f"{partition}-{TOPIC_ID}"
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"log": files.log, "index": files.index, "timeindex": files.time_index, "snapshot": files.snapshot,
             "leader_epoch_checkpoint": files.epochs}  # fmt: skip
    if files.txn_index:
        kinds["txnindex"] = files.txn_index
    for kind, data in kinds.items():
        if kind not in without:
            (folder / f"{files.start}-{segment_id(number)}.{kind}").write_bytes(data)
    return folder


def put_pinterest(root: Path, partition: str, number: int, files: Uploaded, without: Sequence[str] = ()) -> Path:
    """Upload a segment as Pinterest's uploader does; `number` is in no name. Return its folder."""
    folder = root / partition
    folder.mkdir(parents=True, exist_ok=True)
    for kind, data in (("log", files.log), ("index", files.index), ("timeindex", files.time_index)):
        if kind not in without:
            (folder / f"{files.start:020d}.{kind}").write_bytes(data)
    (folder / "offset.wm").write_text(str(files.start))
    return folder


def put_aiven(
    root: Path,
    partition: str,
    number: int,
    files: Uploaded,
    *,
    chunk: int = 1 << 12,
    compressed: bool = True,
    without: Sequence[str] = (),
    **manifest: object,
) -> Path:
    """Upload a segment as Aiven's plugin does; manifest: fields to replace. Return its folder."""
    topic, _, name = partition.rpartition("-")
    folder = root / f"{topic}-{TOPIC_ID}" / name
    folder.mkdir(parents=True, exist_ok=True)
    parts = [files.log[at : at + chunk] for at in range(0, len(files.log), chunk)]
    stored = [bytes(_ZSTD.compress(part)) if compressed else part for part in parts]
    sizes = {"type": "variable", "transformedChunks": chunk_sizes([len(part) for part in stored])}
    if not compressed:
        sizes = {"type": "fixed", "transformedChunkSize": chunk, "finalTransformedChunkSize": len(parts[-1])}
    indexes: dict[str, dict[str, int]] = {}
    joined = b""
    for kind, data in (("offset", files.index), ("timestamp", files.time_index), ("producerSnapshot", files.snapshot),
                       ("leaderEpoch", files.epochs), ("transaction", files.txn_index)):  # fmt: skip
        if kind != "transaction" or data:
            indexes[kind] = {"position": len(joined), "size": len(data)}
        joined += data
    remote = {
        "remoteLogSegmentId": {
            "topicIdPartition": {"topicId": TOPIC_ID, "topicPartition": {"topic": topic, "partition": int(name)}},
            "id": segment_id(number),
        },
        "startOffset": files.start, "endOffset": files.last, "maxTimestampMs": START_MS, "brokerId": 1,
        "eventTimestampMs": START_MS, "segmentLeaderEpochs": {"0": files.start},
    }  # fmt: skip
    described = {
        "version": "1",
        "chunkIndex": sizes | {"originalChunkSize": chunk, "originalFileSize": len(files.log)},
        "segmentIndexes": indexes,
        "compression": compressed,
        "remoteLogSegmentMetadata": remote,
    }
    objects = {"log": b"".join(stored), "indexes": joined, "rsm-manifest": json.dumps(described | manifest).encode()}
    for kind, data in objects.items():
        if kind not in without:
            (folder / f"{files.start:020d}-{segment_id(number)}.{kind}").write_bytes(data)
    return folder


def chunk_sizes(values: Sequence[int]) -> str:
    """Return sizes of stored chunks as in a manifest."""
    *front, last = values
    raw = struct.pack(">i", len(values))
    if front:
        base = min(front)
        width = max((max(front) - base).bit_length() + 7 >> 3, 1)
        raw += struct.pack(">ib", base, width) + b"".join((v - base).to_bytes(width, "big") for v in front)
    return base64.b64encode(bytes(_ZSTD.compress(raw + struct.pack(">i", last)))).decode()
