"""Logs of coordinators, as groups leave them: records of __consumer_offsets and __share_group_state, by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import BatchText, Row, TextWriter

GROUP_METADATA, CONSUMER_GROUP, SHARE_GROUP, SHARE_TOPICS = 2, 3, 11, 15
COMMIT_MS = 1_700_000_123_456


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def compact_text(value: str) -> bytes:
    data = value.encode()
    return bytes([len(data) + 1]) + data


def commit_key(group: str, topic: str, partition: int, record_type: int = 1) -> bytes:
    return struct.pack(">h", record_type) + text(group) + text(topic) + struct.pack(">i", partition)


def commit_value(offset: int, version: int = 3, metadata: str = "", topic_id: bytes = b"") -> bytes:
    """Return an OffsetCommitValue of a version from 0 to 4."""
    out = struct.pack(">hq", version, offset)
    out += struct.pack(">i", 5) if version >= 3 else b""
    out += (compact_text if version >= 4 else text)(metadata) + struct.pack(">q", COMMIT_MS)
    out += struct.pack(">q", COMMIT_MS + 9) if version == 1 else b""
    if version >= 4:
        out += bytes([1, 0, 16]) + topic_id if topic_id else b"\0"
    return out


def group_record(group: str, record_type: int, *, is_tombstone: bool = False) -> Row:
    """Return the record of a group's type, whose value no audit reads, or its tombstone."""
    return Row(struct.pack(">h", record_type) + text(group), None if is_tombstone else b"\0\3?")


def commit(group: str, topic: str, partition: int, offset: int | None, **options: Any) -> Row:
    """Return a committed offset; None: its tombstone."""
    record_type = options.pop("record_type", 1)
    value = None if offset is None else commit_value(offset, **options)
    return Row(commit_key(group, topic, partition, record_type), value)


def share_topics(group: str, topic: str, topic_id: bytes, partitions: Sequence[int]) -> Row:
    """Return the record that names a share group's topic."""
    numbers = bytes([len(partitions) + 1]) + b"".join(struct.pack(">i", number) for number in partitions)
    value = b"\0\0" + b"\1" + b"\2" + topic_id + compact_text(topic) + numbers + b"\0" + b"\1" + b"\0"
    return Row(struct.pack(">h", SHARE_TOPICS) + text(group), value)


Batch = tuple[int, int, int, int]  # first, last, state, count


def share_record(
    group: str, topic_id: bytes, partition: int, start: int, batches: Iterable[Batch] | None, *, update: bool = False
) -> Row:
    """Return a ShareSnapshot, or a ShareUpdate; batches None: a tombstone."""
    key = struct.pack(">h", int(update)) + text(group) + topic_id + struct.pack(">i", partition)
    if batches is None:
        return Row(key, None)
    listed = [struct.pack(">qqbh", *batch) + b"\0" for batch in batches]
    epochs = struct.pack(">ii", 0, 4) if update else struct.pack(">iii", 0, 1, 4)
    times = b"" if update else struct.pack(">qq", COMMIT_MS, COMMIT_MS)
    value = b"\0\0" + epochs + struct.pack(">q", start) + times + bytes([len(listed) + 1]) + b"".join(listed) + b"\0"
    return Row(key, value)


def write_log(folder: Path, segments: Iterable[Iterable[BatchText | Row]]) -> Path:
    """Write a partition of these segments; a Row is a batch of its own."""
    writer, offset = TextWriter(), 0
    for batches in segments:
        with SegmentWriter(folder, offset) as out:
            for batch in batches:
                writer.append(out, BatchText((batch,)) if isinstance(batch, Row) else batch)
        offset = max(out.next_offset, offset + 1)
    return folder


def in_transaction(producer: int, *rows: Row) -> BatchText:
    return BatchText(rows, {"producer_id": producer, "transactional": True})


def end(producer: int, *, commit: bool) -> BatchText:
    return BatchText((), {"producer_id": producer, "commit" if commit else "abort": True})


def checkpoint(group: str, topic: str, upstream: int, offset: int) -> Row:
    """Return a record as MirrorMaker 2's Checkpoint writes it, of partition 0."""
    names = b"".join(struct.pack(">h", len(name)) + name for name in (group.encode(), topic.encode()))
    return Row(names + struct.pack(">i", 0), struct.pack(">hqqh", 0, upstream, offset, 0))
