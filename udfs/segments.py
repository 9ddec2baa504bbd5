"""The segments of a partition, as values that cross between the driver and the workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Self

import google_crc32c
import numpy as np

from lastkey.logformat.batches.chunks import CHUNK_BYTES, MAX_BATCH_BYTES
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_RELATIVE_OFFSET
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerSummary, no_producers
from lastkey.udfs.storage import open_root, opened, read_file


@dataclass(frozen=True)
class ReadFile:
    """A `.log` of the archive that a run has read from its first byte to its last."""

    base_offset: int
    size: int
    checksum: int  # CRC-32C of all its bytes


Reason = Literal["log_start", "size", "time"]


@dataclass(frozen=True)
class Expired:
    """The segments that one rule of retention removed."""

    reason: Reason
    first: int  # base of the first removed segment
    until: int  # offset: the rule removed all in [first, until)
    segments: int
    records: int  # by the headers: a compressed batch of magic 0 or 1 counts as one
    bytes: int
    bytes_above: int = 0  # reason size: bytes of the log above the high watermark, which the rule counts too


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Settings that decide the bytes of a topic's indexes, and how its logs are read."""

    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    time_index_interval_ms: int = 0
    chunk_bytes: int = CHUNK_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES

    @classmethod
    def of(cls, topic: Any, chunk_bytes: int, **more: Any) -> Self:
        """Return the settings of a topic. topic: `TopicSettings` of the settings file; more: other fields."""
        names = ("index_interval_bytes", "segment_index_bytes", "time_index_interval_ms")
        same = {name: getattr(topic, name) for name in names}
        return cls(**same, chunk_bytes=chunk_bytes, max_batch_bytes=topic.max_decompressed_batch_bytes, **more)

    def index_builder(self, base_offset: int, path: str) -> IndexBuilder:
        """Return the builder of a segment's indexes."""
        return IndexBuilder(
            base_offset, self.index_interval_bytes, self.segment_index_bytes, path, self.time_index_interval_ms
        )


class ListedLog(NamedTuple):
    """A `.log` by its listing, and no more: tasks carry many."""

    root: str  # URI that `path` is below
    path: str
    size_bytes: int  # bytes


@dataclass(frozen=True)
class SideFile:
    """A small file that is read if it exists: a `.snapshot` or `.txnindex`; or an index without its `.log`."""

    root: str  # URI that `path` is below
    path: str
    offset: int
    checksum: int | None = None  # CRC-32C of what was written, where a manifest has it


@dataclass(frozen=True)
class Traces:
    """Traces beside the segments of a log of offsets that these may not hold (`udfs.holes`). Files are (offset, path
    below the archive's root), by offset.
    """

    cleaned_until: int = 0  # by the cleaner checkpoint
    log_start: int = 0  # by its checkpoint
    orphans: tuple[tuple[int, str], ...] = ()  # indexes without their log
    snapshots: tuple[tuple[int, str], ...] = ()
    first_epoch: tuple[int, str] | None = None  # offset where the log began, path of the leader-epoch-checkpoint
    begins_elsewhere: bool = False  # offsets from 0 up to the first segment are in remote storage


@dataclass(frozen=True)
class Behind:
    """A listing's knowledge of the offsets after the last batch of a segment."""

    segment: Segment
    next_base_offset: int | None  # base offset of the next segment; None: it is the last one
    cleaned_until: int = 0
    log_start: int = 0
    named: tuple[tuple[int, str], ...] = ()  # (offset that a file shows to have existed, path of the file); rising


@dataclass(frozen=True)
class LastBatch:
    """Identity of the last batch before an offset: shows whether an archive is still the same log."""

    base_offset: int = -1
    leader_epoch: int = -1
    crc: int = -1


# The facts that a scan keeps about a transactional or control batch.
TXN_BATCH = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("producer_id", "i8"),
        ("max_timestamp", "i8"),
        ("records_count", "i4"),
        ("producer_epoch", "i2"),
        ("control", "?"),
        ("control_type", "i1"),  # 0 abort, 1 commit, -1 not control or empty
    ],
    align=True,
)


class ScannedChunk(NamedTuple):
    """Whole batches as a scan read and checked them. The checksum covers the segment from the first scanned byte to the
    end of the chunk. So it also covers the bytes that no batch's own checksum covers.
    """

    position: int
    size: int
    batches: int
    offset_before: int  # last offset of the batch before the chunk; for the first chunk the segment's base - 1
    before: int  # CRC-32C of the bytes scanned before the chunk
    checksum: int  # CRC-32C of those and the chunk
    records: int  # upper bound (`collect_facts`)


@dataclass(frozen=True)
class SegmentScan:
    """A scanned segment, with what else its scan remembers until the run ends."""

    segment: Segment  # scanned; size_bytes as it was listed
    start_position: int
    end_position: int  # first byte that does not belong to the log
    torn_bytes: int  # incomplete batch or zeros after end_position
    reached_end_offset: bool
    first_timestamp: int  # ms, the largest of the first batch; -1: none
    chunks: tuple[ScannedChunk, ...]
    transactional: np.ndarray  # TXN_BATCH[m]
    producers: ProducerSummary
    epochs: tuple[tuple[int, int], ...]  # (leader epoch, base offset of its first batch)
    last_batch: LastBatch
    marked_batch: LastBatch  # last batch before the requested `mark`
    offset_index: bytes
    time_index: bytes
    thinned_offset: int = -1  # last offset that shows a cleaner's work (`thinned_offset`); -1: none
    indexed_end: int = 0  # end offset by the archive's own indexes if higher than by the batches; else 0 (`gaps`)
    above_base: int = -1  # base of the batch that reached the end offset; -1: none, or unknown
    bytes_above: int = 0  # bytes of log from the end offset on, in this segment and the next ones
    wrapped_records: int = 0  # upper bound of the records in wrappers beyond `segment.records`
    facts_bytes: int = 0  # size of the file that was read in place of the segment; 0: there was none
    last_horizon_ms: int = -1  # largest delete horizon of its batches; -1: none, or not known

    @property
    def first_offset(self) -> int:
        """The lowest offset that counts."""
        return self.segment.first_offset

    @property
    def last_offset(self) -> int:
        """Its last offset; -1: it is empty."""
        return self.segment.last_offset

    @property
    def path(self) -> str:
        """The path of its `.log`."""
        return self.segment.path

    @property
    def mtime_ms(self) -> int:
        """The file's modification time."""
        return self.segment.mtime_ms

    def open_log(self) -> AbstractContextManager[Any]:
        """Open its `.log` for reading, as `storage.opened` does."""
        return opened(open_root(self.segment.root), self.path)

    @property
    def size(self) -> int:
        """Bytes that belong to the log."""
        return self.end_position - self.start_position

    @property
    def most_records(self) -> int:
        """Upper bound of the number of records (`collect_facts`)."""
        return self.segment.records + self.wrapped_records

    def lean(self) -> SegmentScan:
        """Return the scan without the parts that only the analysis needs, to send to the tasks of a large partition."""
        none = no_producers()
        return replace(self, producers=none, offset_index=b"", time_index=b"", transactional=self.transactional[:0])


def new_segment(base_offset: int, next_offset: int, mtime_ms: int) -> Segment:
    """Return an empty segment of the store for these offsets, before it is written."""
    return Segment("store", "", base_offset, 0, mtime_ms, next_offset=next_offset)


def can_begin_at(last_offset: int, base_offset: int) -> bool:
    """Return whether the relative offsets of a segment's indexes fit an earlier base. last_offset: of its last batch;
    -1: no batch.
    """
    return last_offset - base_offset <= MAX_RELATIVE_OFFSET


OF_YIELD: Final = ("facts", "filter")  # kinds of files that runs by yield read


def files_beside(path: str) -> tuple[str, str]:
    """Return the paths of a segment's facts and filter (`facts_files`), given that of its `.log`."""
    stem = path.removesuffix(".log")
    return f"{stem}.facts", f"{stem}.filter"


def written_kinds(row: Segment) -> tuple[str, ...]:
    """Return the kinds of files of a segment that a run has written."""
    txn_index = ("txnindex",) if row.txn_index_bytes else ()
    return ("log", "index", "timeindex", *txn_index, *(OF_YIELD if row.facts_bytes else ()))


def kept_for_yield(row: Segment) -> list[str]:
    """Return the paths of the files that later runs by yield need for a segment of the store."""
    beside = files_beside(row.path) if row.facts_bytes else ()
    return [*beside, *(path for _, _, path, *_ in json.loads(row.key_files or "[]"))]


def cleaner_checkpoint(rows: Sequence[Segment], first_dirty_offset: int) -> int:
    """Return the offset up to which a generation is clean as a broker means it: the largest c such that no segment that
    begins below c holds a record that one below c has superseded. rows: by offset; first_dirty_offset: end of what the
    runs have cleaned.
    """
    bound = first_dirty_offset
    for row in rows:
        if row.base_offset >= bound:
            break
        if row.deduplicated_through >= 0:
            bound = min(bound, row.deduplicated_through)
    return bound


def side_checksums(side_files: Iterable[str | None]) -> dict[str, int]:
    """Return the CRC-32C of files beside the logs of a generation, by name. side_files: of its segments, as JSON."""
    return {name: checksum for one in side_files for name, checksum in json.loads(one or "{}").items()}


def read_side_file(file: SideFile) -> bytes:
    """Return a side file's bytes. Raises LogFormatError kind "side_file" if the manifest has another checksum."""
    data: bytes = read_file(open_root(file.root), file.path)
    if file.checksum not in (None, found := int(google_crc32c.value(data))):
        expected = f"CRC-32C {file.checksum:#010x}, as it was written"
        raise LogFormatError("side_file", file.path, 0, expected, f"{found:#010x}")
    return data
