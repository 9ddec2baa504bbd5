"""The segments of a partition, as values that cross between the driver and the workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from lastkey.logformat.listing import ListedSegment
from lastkey.logformat.side_files.producer_state import ProducerSummary, no_producers
from lastkey.udfs.storage import open_root, opened


class NamedBytes(NamedTuple):
    """Bytes of an archived `.log` that a generation names: all of it that holds offsets below `until`."""

    size: int  # 0: no generation names any
    checksum: int  # CRC-32C of the first `size` bytes
    until: int


@dataclass(frozen=True)
class SegmentInput:
    """A segment to read from an offset on."""

    listed: ListedSegment
    from_offset: int = 0  # the generation holds the batches below already
    min_timestamp_ms: int = -1  # as in OutputSegment
    row: OutputSegment | None = None  # its row in the last generation, if that lies in the store
    named: NamedBytes | None = None  # as keys were erased from these offsets: must be there still, and nothing else

    @property
    def base_offset(self) -> int:
        """The lowest offset that counts."""
        return max(self.listed.base_offset, self.from_offset)


@dataclass(frozen=True)
class ReadFile:
    """A `.log` of the archive that a run has read from its first byte to its last."""

    base_offset: int
    size: int
    checksum: int  # CRC-32C of all its bytes


@dataclass(frozen=True)
class SideFile:
    """A small file that is read if it exists: a `.snapshot` or `.txnindex`; or an index without its `.log`."""

    root: str  # URI that `path` is below
    path: str
    offset: int
    checksum: int | None = None  # CRC-32C of what was written, where a manifest says it


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
    """A listing's knowledge of the offsets behind the last batch of a segment."""

    segment: ListedSegment
    next_base_offset: int | None  # of the segment behind it; None: it is the last one
    cleaned_until: int = 0
    log_start: int = 0
    named: tuple[tuple[int, str], ...] = ()  # (offset that a file shows to have existed, path of the file); rising


@dataclass(frozen=True)
class LastBatch:
    """Identity of the last batch before an offset: shows whether an archive is still the same log."""

    base_offset: int = -1
    leader_epoch: int = -1
    crc: int = -1


@dataclass(frozen=True)
class OutputSegment:
    """One segment of a generation: a row of log_segments without its keys."""

    base_offset: int
    root: str  # store or archive
    path: str  # of the .log, relative to its root
    size_bytes: int  # bytes of the .log that belong to it: an archived active segment may grow later
    next_offset: int  # end of the range that this segment covers
    last_offset: int  # -1 when empty
    batches: int
    records: int
    tombstones: int
    max_timestamp_ms: int
    mtime_ms: int
    codecs: str  # comma list
    checksum: int  # CRC-32C of the first size_bytes of the .log
    source_bytes: int  # what the group held before this cleaning
    source_records: int
    dead_records: int = field(init=False)  # what went of that
    dead_bytes: int = field(init=False)
    cleaned: bool
    txn_index_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    min_timestamp_ms: int = -1  # of its data records that have one; 2**63 - 1: none has; -1: not known
    side_files: str | None = None  # JSON {name: CRC-32C}: indexes, snapshot; last row: others of the generation
    applied_to: int = -1  # no key has a newer record below this offset; -1: that of the run which cleaned all
    superseded: int = 0  # records that newer ones have superseded since it was written, as filters estimate
    expected_dead: int = -1  # of what it was made of: what filters expected to go; -1: nobody counted
    facts_bytes: int = 0  # of the files beside it that runs by yield read
    key_files: str | None = None  # JSON [[first, until, path, keys, CRC-32C], ...]: hashes of the keys from `first` on
    magics: str | None = None  # comma list: message formats of its batches; None: not known

    def __post_init__(self) -> None:
        object.__setattr__(self, "dead_records", self.source_records - self.records)
        object.__setattr__(self, "dead_bytes", self.source_bytes - self.size_bytes)


class ScannedChunk(NamedTuple):
    """Whole batches as a scan read and checked them. The checksum covers the segment from the first scanned byte to the
    end of the chunk, so also the bytes that no batch's own checksum covers.
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
    """A scanned segment, with the facts that the scan remembers."""

    segment: SegmentInput
    start_position: int
    end_position: int  # first byte that does not belong to the log
    torn_bytes: int  # incomplete batch or zeros after end_position
    reached_end_offset: bool
    n_batches: int
    n_records: int  # a wrapper of magic 0, 1 counts as one
    last_offset: int  # -1: empty
    max_timestamp: int  # ms, -1: none
    first_timestamp: int  # ms, the largest of the first batch; -1: none
    chunks: tuple[ScannedChunk, ...]
    codecs: str
    transactional: np.ndarray  # TXN_BATCH[m]
    producers: ProducerSummary
    epochs: tuple[tuple[int, int], ...]  # (leader epoch, base offset of its first batch)
    last_batch: LastBatch
    marked_batch: LastBatch  # last batch before the requested `mark`
    checksum: int
    offset_index: bytes
    time_index: bytes
    thinned_offset: int = -1  # last offset that shows a cleaner's work (`thinned_offset`); -1: none
    indexed_end: int = 0  # end offset by the archive's own indexes if higher than by the batches; else 0 (`gaps`)
    above_base: int = -1  # base of the batch that reached the end offset; -1: none, or unknown
    bytes_above: int = 0  # bytes of log from the end offset on, in this segment and those behind it
    wrapped_records: int = 0  # upper bound of the records in wrappers beyond n_records
    facts_bytes: int = 0  # of the file that it was read from in place of the segment; 0: there was none
    last_horizon_ms: int = -1  # largest delete horizon of its batches; -1: none, or not known
    magics: str | None = None  # comma list; None: not known, read from facts

    @property
    def base_offset(self) -> int:
        """The lowest offset that counts."""
        return self.segment.base_offset

    @property
    def path(self) -> str:
        """The path of its `.log`."""
        return self.segment.listed.path

    @property
    def mtime_ms(self) -> int:
        """The file's modification time."""
        return self.segment.listed.mtime_ms

    def open_log(self) -> AbstractContextManager[Any]:
        """Open its `.log` for reading, as `storage.opened` does."""
        return opened(open_root(self.segment.listed.root), self.path)

    @property
    def size(self) -> int:
        """Bytes that belong to the log."""
        return self.end_position - self.start_position

    @property
    def most_records(self) -> int:
        """Upper bound of the number of records (`collect_facts`)."""
        return self.n_records + self.wrapped_records

    def lean(self) -> SegmentScan:
        """Return the scan without the parts that only the analysis needs, to send to the tasks of a large partition."""
        none = no_producers()
        return replace(self, producers=none, offset_index=b"", time_index=b"", transactional=self.transactional[:0])


OF_YIELD: Final = ("facts", "filter")  # kinds of files that runs by yield read


def files_beside(path: str) -> tuple[str, str]:
    """Return the paths of a segment's facts and filter (`segment_facts`), given that of its `.log`."""
    stem = path.removesuffix(".log")
    return f"{stem}.facts", f"{stem}.filter"


def kinds_of(row: OutputSegment) -> tuple[str, ...]:
    """Return the kinds of files of a segment that a run has written."""
    txn_index = ("txnindex",) if row.txn_index_bytes else ()
    return ("log", "index", "timeindex", *txn_index, *(OF_YIELD if row.facts_bytes else ()))


def kept_for_yield(row: OutputSegment) -> list[str]:
    """Return the paths of the files that later runs by yield need for a segment of the store."""
    beside = files_beside(row.path) if row.facts_bytes else ()
    return [*beside, *(path for _, _, path, *_ in json.loads(row.key_files or "[]"))]


def cleaned_until(rows: Sequence[OutputSegment], first_dirty_offset: int) -> int:
    """Return the offset up to which a generation is clean as a broker means it: the largest c such that no segment that
    begins below c holds a record that one below c has superseded. rows: by offset; first_dirty_offset: end of what the
    runs have cleaned.
    """
    applied = first_dirty_offset
    for row in rows:
        if row.base_offset >= applied:
            break
        if row.applied_to >= 0:
            applied = min(applied, row.applied_to)
    return applied


def side_checksums(told: Iterable[str | None]) -> dict[str, int]:
    """Return the CRC-32C of files beside the logs of a generation, by name. told: `side_files` of its segments."""
    return {name: checksum for one in told for name, checksum in json.loads(one or "{}").items()}
