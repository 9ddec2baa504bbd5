"""Tasks of the data source: ranges of log files, and the requested records or batches of each.

A stretch begins and ends at a batch border. The driver finds the borders (find_pieces), any worker reads the stretches
(read_records, read_batches). All classes are plain values: they cross process borders, and do not use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from lastkey.logformat.listing import Segment
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import Behind, ListedLog, Traces

SPLIT_BYTES: Final = 128 << 20
OPEN_BYTES: Final = 128 << 10  # cost of opening a file: a thousand tiny files are still one task


@dataclass(frozen=True)
class Bound:
    """Start or end of reading."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = -1  # offset, or ms


EARLIEST: Final = Bound("earliest")
LATEST: Final = Bound("latest")


@dataclass(frozen=True)
class SourcePartition:
    """Files of one partition. A partition with a problem cannot be read at all."""

    topic: str | None  # None: a file whose folder does not name it
    partition: int | None
    segments: tuple[Segment, ...] = ()  # by base offset
    log_start_offset: int | None = None  # None: the first segment's base
    high_watermark: int | None = None  # reading stops there; None: the log end
    side_root: str = ""  # URI that the next ones are below
    snapshots: tuple[tuple[int, str], ...] = ()  # (offset, path), rising
    leader_epochs: str | None = None  # path of `leader-epoch-checkpoint`
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, its start) of that file; of look-ups
    max_batch_bytes: int = MAX_BATCH_BYTES  # a look-up refuses a batch that is, or decompresses to, more
    sealed: bool = False  # no writer appends to it: its last batch must be whole
    traces: Traces | None = None  # evidence of gaps; None: single files, or a generation, which was judged when made
    problem: Problem | None = None

    @property
    def name(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.topic}-{self.partition}"

    @property
    def key(self) -> tuple[str, int]:
        """(topic, partition), of a partition whose folder names both."""
        return self.topic or "", self.partition or 0


def logs_behind(partitions: Iterable[Sequence[ListedLog]], log: ListedLog) -> Sequence[ListedLog]:
    """Return the logs after a given one, from the logs of partitions. Raise LogFormatError if none of them has it."""
    for logs in partitions:
        for number, other in enumerate(logs):
            if other[:2] == log[:2]:
                return logs[number + 1 :]
    raise LogFormatError("changed", f"{log.root}/{log.path}", 0, "the log, as listed", "nothing")


def listed_logs(partition: SourcePartition) -> list[ListedLog]:
    """Return the logs of a partition."""
    return [ListedLog(segment.root, segment.path, segment.size_bytes) for segment in partition.segments]


@dataclass(frozen=True)
class Piece:
    """A stretch of one `.log`; or a problem in place of unreadable data."""

    topic: str | None
    partition: int | None
    root: str = ""
    path: str = ""
    base_offset: int = 0  # base offset of the segment
    start: int = 0  # bytes [start, end) of the file; start is a batch border
    end: int = 0
    start_offset: int = 0  # records in [start_offset, end_offset)
    end_offset: int = NO_END
    next_base_offset: int | None = None  # base offset of the next segment; None: it is the last one
    torn_tail: bool = False  # the file may end inside a batch: it is the end of a log that was being written
    index: tuple[str, str] | None = None  # URI and path, to continue after bytes that are no batches
    later: tuple[ListedLog, ...] = ()  # its segment and the next ones, in which markers are looked for
    more_later: bool = False  # more segments follow; ReadSpec.logs_behind lists them
    doubtful: bool = False  # a marker may be lost in damage: transactional data without one is withheld
    behind: Behind | None = None  # set at the end of a segment if a gap after it counts
    problem: Problem | None = None

    @property
    def shown(self) -> str:
        """The file's path as users see it."""
        return f"{self.root}/{self.path}" if self.root else self.path


@dataclass(frozen=True)
class Wanted:
    """Limits of wanted records; all of them hold together. Limits by offset stand in the pieces."""

    start_ms: int | None = None  # records' timestamps in [start_ms, end_ms)
    end_ms: int | None = None
    keys: frozenset[bytes] | None = None  # exactly one of these
    control: bool = False  # control records too
    committed: bool = False  # no records of aborted transactions

    @property
    def by_time(self) -> bool:
        """True if timestamps decide."""
        return self.start_ms is not None or self.end_ms is not None

    def batches(self, batches: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.bool_]:
        """Return bool[n]: whether each of BATCH[n] may have a requested record.

        A batch's base timestamp is no lower limit of its records' timestamps; only with LogAppendTime are all the same.
        """
        may: NDArray[np.bool_] = (batches["last_offset"] >= start_offset) & (batches["base_offset"] < end_offset)
        may &= batches["records_count"] != 0
        if not self.control:
            may &= batches["attributes"] & CONTROL_MASK == 0
        if self.start_ms is not None:
            may &= batches["max_timestamp"] >= self.start_ms
        if self.end_ms is not None:
            append_time = (batches["magic"] >= 2) & (batches["attributes"] & TIMESTAMP_TYPE_MASK != 0)
            may &= ~append_time | (batches["max_timestamp"] < self.end_ms)
        return may


@dataclass(frozen=True)
class Range:
    """Request for one partition."""

    start: Bound = EARLIEST
    end: Bound = LATEST
    start_offset: int = 0  # offsets also in [start_offset, end_offset), which the log need not hold
    end_offset: int = NO_END
    wanted: Wanted = Wanted()
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True  # a start or end offset outside of the log is an error
    need_start_time: bool = False  # a starting timestamp that no record reaches is an error
    quarantine: bool = False  # a problem of the partition becomes a piece, not an error
    accept_gaps: bool = False  # skip offsets that no segment holds although no cleaner removed them
    as_stored: bool = False  # read all that the files hold: ignore the log start and the high watermark


@dataclass(frozen=True)
class ReadSpec:
    """Result to make of the pieces; the same for all tasks of a query."""

    schema: Any  # pa.Schema: exactly what Spark expects
    wanted: Wanted = field(default_factory=Wanted)
    quarantine: bool = False  # a bad batch is a row in `problem`; else it raises
    max_rows: int | None = None  # maximum of rows in an Arrow batch; None: as logformat.batches.columns has it
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is damage
    logs_behind: Callable[[ListedLog], Iterable[ListedLog]] | None = None  # lists later logs, if a piece has not all
    secret: tuple[int, int] | None = None  # secret of the hashes of keys in spans; None: not hashed


Task = tuple[Piece, ...]


def pack(pieces: Sequence[Piece], split_bytes: int = SPLIT_BYTES, min_tasks: int = 1) -> list[Task]:
    """Return tasks of consecutive pieces, of about split_bytes each; at least min_tasks if there are enough pieces."""
    limit = max(min(split_bytes, sum(map(_cost, pieces)) // max(min_tasks, 1)), 1)
    return list(groups(pieces, _cost, limit + OPEN_BYTES))


def _cost(piece: Piece) -> int:
    return piece.end - piece.start + OPEN_BYTES


def is_past(piece: Piece, batches: NDArray[np.void], previous: int) -> bool:
    """Return whether all batches after BATCH[n] are after the piece's end too. previous: last offset before them.

    A single batch across the end, or after it, is no proof: its offset may be damage, and then the next batch shows
    it.
    """
    last = batches[-1]
    if last["last_offset"] + 1 == piece.end_offset:
        return True
    before = int(batches["last_offset"][-2]) if len(batches) > 1 else previous
    return bool(last["base_offset"] >= piece.end_offset) and before + 1 >= piece.end_offset


def limited(piece: Piece) -> Piece:
    """Return the piece without offsets that its segment cannot have."""
    end = piece.end_offset if piece.next_base_offset is None else min(piece.end_offset, piece.next_base_offset)
    return replace(piece, start_offset=max(piece.start_offset, piece.base_offset), end_offset=end)
