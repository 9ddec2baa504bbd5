"""The segments of a partition, as values that cross between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SegmentInput:
    """One `.log` to be read, never beyond `size`."""

    root: Literal["archive", "store"]
    path: str  # of the .log, relative to its root
    base_offset: int
    size: int  # bytes when it was listed
    mtime_ms: int
    from_offset: int = 0  # batches below are not part of the log: they are in the generation already
    offset_index: str | None = None  # of the archive, where there is one: what it says of the end of the .log ...
    time_index: str | None = None  # ... (`gaps.indexed_end`); nothing else of it is used


@dataclass(frozen=True)
class SideFile:
    """A small file that is read where it is there: a `.snapshot` or `.txnindex`; or an index without its `.log`."""

    root: Literal["archive", "store"]
    path: str
    offset: int


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
