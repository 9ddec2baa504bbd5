"""The segments of a partition, as values that cross between the driver and the workers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from logformat.listing import ListedSegment


@dataclass(frozen=True)
class SegmentInput:
    """A segment to be read, from an offset on."""

    listed: ListedSegment
    from_offset: int = 0  # batches below are not part of the log: they are in the generation already
    min_timestamp_ms: int = -1  # as in OutputSegment

    @property
    def base_offset(self) -> int:
        """The lowest offset that counts."""
        return max(self.listed.base_offset, self.from_offset)


@dataclass(frozen=True)
class SideFile:
    """A small file that is read where it is there: a `.snapshot` or `.txnindex`; or an index without its `.log`."""

    root: str  # URI that `path` is below
    path: str
    offset: int
    checksum: int | None = None  # CRC-32C of what was written, where a manifest says it


@dataclass(frozen=True)
class LastBatch:
    """Identity of the last batch before an offset: how an archive shows that it is still the same log."""

    base_offset: int = -1
    leader_epoch: int = -1
    crc: int = -1


@dataclass(frozen=True)
class OutputSegment:
    """One segment of the new generation: a row of log_segments without its keys."""

    base_offset: int
    root: Literal["archive", "store"]
    path: str
    size_bytes: int
    next_offset: int
    last_offset: int
    batches: int
    records: int
    tombstones: int
    max_timestamp_ms: int
    mtime_ms: int
    codecs: str
    checksum: int
    source_bytes: int
    source_records: int
    cleaned: bool
    offset_index_bytes: int
    time_index_bytes: int
    txn_index_bytes: int
    min_timestamp_ms: int = -1  # of its data records that have one; 2**63 - 1: none has; -1: nobody looked
    side_files: str | None = None  # JSON {name: CRC-32C}: indexes, snapshot; last row: others of the generation


def side_checksums(told: Iterable[str | None]) -> dict[str, int]:
    """CRC-32C of files beside the logs of a generation, by name; told: `side_files` of its segments."""
    return {name: checksum for one in told for name, checksum in json.loads(one or "{}").items()}
