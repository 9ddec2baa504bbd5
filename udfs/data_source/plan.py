"""What a task of the data source is told: stretches of log files, and which of their records or batches are wanted.

A stretch begins and ends at a batch border. The driver finds the borders (find_pieces), any worker reads them
(read_records, read_batches). All are plain values: they cross process borders, and know nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logformat.batches.chunks import MAX_BATCH_BYTES, NO_END
from logformat.layout import CONTROL_MASK, TIMESTAMP_TYPE_MASK
from logformat.listing import ListedSegment
from udfs.groups import groups
from udfs.problem import Problem

SPLIT_BYTES: Final = 128 << 20
OPEN_BYTES: Final = 128 << 10  # what opening one more file counts for: a thousand tiny ones still are one task


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends."""

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = -1  # offset, or ms


EARLIEST: Final = Bound("earliest")
LATEST: Final = Bound("latest")


@dataclass(frozen=True)
class SourcePartition:
    """What there is of one partition. With a problem it cannot be read at all."""

    topic: str | None  # None: a file whose folder does not say
    partition: int | None
    segments: tuple[ListedSegment, ...] = ()  # by base offset
    log_start_offset: int | None = None  # None: the first segment's base
    high_watermark: int | None = None  # nothing from there on is read; None: the log end
    side_root: str = ""  # URI that the next ones are below
    snapshots: tuple[tuple[int, str], ...] = ()  # (offset, path), rising
    leader_epochs: str | None = None  # path of `leader-epoch-checkpoint`
    sealed: bool = False  # nothing appends to it: its last batch must be whole
    problem: Problem | None = None

    @property
    def name(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.topic}-{self.partition}"


class ListedLog(NamedTuple):
    """A `.log` by its listing, and no more: tasks carry many."""

    root: str  # URI that `path` is below
    path: str
    size: int  # bytes


@dataclass(frozen=True)
class Piece:
    """A stretch of one `.log`; or a problem that stands for what cannot be read."""

    topic: str | None
    partition: int | None
    root: str = ""
    path: str = ""
    base_offset: int = 0  # of the segment
    start: int = 0  # bytes [start, end) of the file; start is a batch border
    end: int = 0
    start_offset: int = 0  # records in [start_offset, end_offset)
    end_offset: int = NO_END
    next_base_offset: int | None = None  # of the segment behind it; None: the last one
    torn_tail: bool = False  # the file may end inside a batch: it is the end of a log that was being written
    index: tuple[str, str] | None = None  # URI and path, to go on behind bytes that are no batches
    later: tuple[ListedLog, ...] = ()  # its segment and the next ones: where markers are looked for
    more_later: bool = False  # and there are more behind, which ReadSpec.logs_behind lists
    doubtful: bool = False  # a marker may be lost in damage: data of transactions that has none is withheld
    problem: Problem | None = None

    @property
    def shown(self) -> str:
        """The file as it is shown to people."""
        return f"{self.root}/{self.path}" if self.root else self.path


@dataclass(frozen=True)
class Wanted:
    """Which records: all limits together. Offsets stand in the pieces."""

    start_ms: int | None = None  # records' timestamps in [start_ms, end_ms)
    end_ms: int | None = None
    keys: tuple[bytes, ...] | None = None  # exactly one of these
    control: bool = False  # control records too
    committed: bool = False  # no records of aborted transactions

    @property
    def by_time(self) -> bool:
        """Whether timestamps decide."""
        return self.start_ms is not None or self.end_ms is not None

    def batches(self, batches: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.bool_]:
        """bool[n]: which of BATCH[n] may hold such a record.

        A batch's base timestamp is no lower limit of its records' timestamps; only with LogAppendTime all are the same.
        """
        may: NDArray[np.bool_] = (batches["last_offset"] >= start_offset) & (batches["base_offset"] < end_offset)
        may &= batches["records_count"] != 0
        if not self.control:
            may &= batches["attributes"] & CONTROL_MASK == 0
        if self.start_ms is not None:
            may &= batches["max_timestamp"] >= self.start_ms
        if self.end_ms is not None:
            append_time = (batches["magic"] == 2) & (batches["attributes"] & TIMESTAMP_TYPE_MASK != 0)
            may &= ~append_time | (batches["max_timestamp"] < self.end_ms)
        return may


@dataclass(frozen=True)
class Range:
    """What is asked of one partition."""

    start: Bound = EARLIEST
    end: Bound = LATEST
    start_offset: int = 0  # and offsets in [start_offset, end_offset), of which nothing needs to be there
    end_offset: int = NO_END
    wanted: Wanted = Wanted()
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True  # a start or end offset outside of the log is an error
    need_start_time: bool = False  # a starting timestamp that no record reaches is an error
    set_aside: bool = False  # what is wrong with the partition is a piece that says so
    as_stored: bool = False  # all that the files hold: the log start and the high watermark are passed over


@dataclass(frozen=True)
class ReadSpec:
    """What is made of the pieces; the same for all tasks of a query."""

    schema: Any  # pa.Schema: exactly what Spark expects
    wanted: Wanted = field(default_factory=Wanted)
    set_aside: bool = False  # a bad batch is a row in `problem`; else it raises
    max_rows: int | None = None  # of one Arrow batch; None: as logformat.batches.columns has it
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is damage
    logs_behind: Callable[[ListedLog], Iterable[ListedLog]] | None = None  # of a partition, where a piece has not all


Task = tuple[Piece, ...]


def pack(pieces: Sequence[Piece], split_bytes: int = SPLIT_BYTES, min_tasks: int = 1) -> list[Task]:
    """Consecutive pieces as tasks of about split_bytes each, at least min_tasks where there are enough pieces."""
    limit = max(min(split_bytes, sum(map(_cost, pieces)) // max(min_tasks, 1)), 1)
    return list(groups(pieces, _cost, limit + OPEN_BYTES))


def _cost(piece: Piece) -> int:
    return piece.end - piece.start + OPEN_BYTES


def is_past(piece: Piece, batches: NDArray[np.void], previous: int) -> bool:
    """Whether what stands behind BATCH[n] is behind the piece's end too; previous: last offset before them. A single
    batch across the end, or behind it, does not tell: its offset may be the damage, and then the next batch shows it.
    """
    last = batches[-1]
    if last["last_offset"] + 1 == piece.end_offset:
        return True
    before = int(batches["last_offset"][-2]) if len(batches) > 1 else previous
    return bool(last["base_offset"] >= piece.end_offset) and before + 1 >= piece.end_offset


def limited(piece: Piece) -> Piece:
    """The same without offsets that its segment cannot have."""
    end = piece.end_offset if piece.next_base_offset is None else min(piece.end_offset, piece.next_base_offset)
    return replace(piece, start_offset=max(piece.start_offset, piece.base_offset), end_offset=end)
