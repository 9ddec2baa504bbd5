"""Checkpoints of MirrorMaker 2 in an archived copy: the offsets at which it lets a group continue there.

Each source's topic `<alias>.checkpoints.internal` has one partition; a record's key is group, topic of the copy and
partition, and the last record of a key counts (MirrorCheckpointTask and OffsetSyncStore of Kafka 4.3.0).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from lastkey.logformat.messages.mirror_records import MIRROR_RECORDS, key_text, value_text
from lastkey.logformat.messages.reader import MessageError
from lastkey.udfs.audit.last_records import Kinds, last_records
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem

CHECKPOINT_TOPICS: Final = "*.checkpoints.internal"
_LAYOUT: Final = MIRROR_RECORDS["mirror-checkpoints"]


@dataclass(frozen=True)
class MirrorCheckpoint:
    """Last checkpoint of a group for one partition of the copy."""

    topic: str
    partition: int
    upstream_offset: int  # committed in the source
    offset: int  # in the copy


@dataclass(frozen=True)
class CheckpointsRead:
    """Checkpoints of a group in one topic, and what could not be read."""

    checkpoints: tuple[MirrorCheckpoint, ...] = ()
    problems: tuple[Problem | str, ...] = ()


def read_checkpoints(partition: SourcePartition, group: str) -> CheckpointsRead:
    """Read the last checkpoints of a group. A bad batch or record is a problem of the result."""
    name = group.encode()
    length = frozenset({len(name)})  # a key begins with it
    last = last_records(partition, Kinds(length, frozenset(), length), accept_gaps=True)
    rows = last.rows.filter(pc.starts_with(last.rows["key"], pattern=struct.pack(">h", len(name)) + name))
    problems: list[Problem | str] = list(last.problems)
    found = []
    for row in rows.filter(pc.is_valid(rows["value"])).to_pylist():
        try:
            key, value = json.loads(key_text(_LAYOUT, row["key"])), json.loads(value_text(_LAYOUT, row["value"]))
        except MessageError as error:
            problems.append(
                f"{partition.name}: offset {row['offset']}: expected a checkpoint of MirrorMaker 2: {error}"
            )
            continue
        found.append(MirrorCheckpoint(key["topic"], key["partition"], value["upstreamOffset"], value["offset"]))
    return CheckpointsRead(tuple(found), tuple(problems))
