"""Checkpoints of MirrorMaker 2 in an archived copy: the offsets at which it lets a group continue there.

Each source's topic `<alias>.checkpoints.internal` has one partition; a record's key is group, topic of the copy and
partition, and the last record of a key counts (MirrorCheckpointTask and OffsetSyncStore of Kafka 4.3.0).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lastkey.logformat.messages.mirror_records import MIRROR_RECORDS, key_text, value_text
from lastkey.logformat.messages.reader import MessageError
from lastkey.logformat.schemas import PROBLEM, RECORDS, select
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, ReadSpec, SourcePartition
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.problem import Problem

CHECKPOINT_TOPICS: Final = "*.checkpoints.internal"
_LAYOUT: Final = MIRROR_RECORDS["mirror-checkpoints"]
_COLUMNS: Final = ("offset", "key", "value")
_READ: Final = pa.schema([*select(RECORDS, _COLUMNS), PROBLEM])
_READ_ROWS: Final = pa.schema(
    [pa.field("offset", pa.int64()), pa.field("key", pa.binary()), pa.field("value", pa.binary())]
)


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
    prefix, last = struct.pack(">h", len(name)) + name, _READ_ROWS.empty_table()
    problems: list[Problem | str] = []
    pieces = find_pieces(partition, Range(quarantine=True, accept_gaps=True))
    for batch in read_records(ReadSpec(_READ, quarantine=True), pieces):
        problems += [Problem(**found) for found in batch.column("problem").drop_null().to_pylist()]
        rows = pa.table({c: batch.column(c) for c in _COLUMNS}).cast(_READ_ROWS)
        rows = rows.filter(pc.fill_null(pc.starts_with(rows["key"], pattern=prefix), False))
        if len(rows):
            last = _last_of_keys(pa.concat_tables([last, rows]))
    found = []
    for row in last.filter(pc.is_valid(last["value"])).sort_by("offset").to_pylist():
        try:
            key, value = json.loads(key_text(_LAYOUT, row["key"])), json.loads(value_text(_LAYOUT, row["value"]))
        except MessageError as error:
            problems.append(
                f"{partition.name}: offset {row['offset']}: expected a checkpoint of MirrorMaker 2: {error}"
            )
            continue
        found.append(MirrorCheckpoint(key["topic"], key["partition"], value["upstreamOffset"], value["offset"]))
    return CheckpointsRead(tuple(found), tuple(problems))


def _last_of_keys(rows: Any) -> Any:
    """Return the row of each key with the largest offset."""
    newest = rows.group_by("key").aggregate([("offset", "max")])["offset_max"]
    return rows.filter(pc.is_in(rows["offset"], value_set=newest.combine_chunks()))
