"""Values of a merge: the copies of a partition, what a task is given, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.checkpoints import EpochEntry
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import LogSettings

Reason = Literal["largest", "damaged", "missing", "begins later", "ends", "other lineage", "more records"]


@dataclass(frozen=True)
class LogCopy:
    """One copy of a partition: its listed files, and the contents of the checkpoints beside it."""

    name: str  # the archive, or the broker's folder
    root: str  # URI that `path` is below
    path: str  # path of the partition's folder
    segments: tuple[Segment, ...] = ()
    leader_epochs: tuple[EpochEntry, ...] | None = None
    topic_id: str | None = None
    log_start: int = 0
    cleaned_until: int = 0
    known_end: int = 0  # lower bound of the log end: high watermark, producer snapshot, index without its log
    problem: Problem | None = None  # the folder cannot be read

    @property
    def place(self) -> str:
        """Path or URI of the partition's folder."""
        return f"{self.root}/{self.path}" if self.path else self.root


@dataclass(frozen=True)
class MergeSettings(LogSettings):
    """Settings that decide also where segments end."""

    segment_bytes: int = 1 << 30
    producer_id_expiration_ms: int = 86_400_000
    window_batches: int = 1 << 14  # batches of each copy that are compared at a time


@dataclass(frozen=True)
class MergeTask:
    """One partition to merge."""

    topic: str
    partition: int
    copies: tuple[LogCopy, ...]
    settings: MergeSettings
    output_uri: str = ""  # "": write no files
    folder: str = ""  # folder of the partition, below the output


@dataclass(frozen=True)
class Lack:
    """Offsets first..until-1 that a copy should hold and does not."""

    first: int
    until: int
    reason: Literal["damaged", "missing", "unreadable"]
    problem: Problem | None = None  # place in a file of the copy


@dataclass(frozen=True)
class LosingRange:
    """Batches of a copy that the winning lineage does not have."""

    first: int
    last: int
    batches: int
    leader_epoch: int


@dataclass
class CopyFacts:
    """Findings in a copy, and how much was taken of it."""

    copy: str
    path: str
    first_offset: int | None = None  # None: no batch could be read
    next_offset: int | None = None
    batches: int = 0  # sound ones
    batches_taken: int = 0
    bytes_taken: int = 0
    damaged_bytes: int = 0
    lacks: list[Lack] = field(default_factory=list)
    losing: list[LosingRange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: Problem | None = None


@dataclass
class TakenRange:
    """Consecutive batches of the result that come from one copy."""

    first: int
    last: int
    copy: str
    reason: Reason
    batches: int = 0


@dataclass
class MergedPartition:
    """Result of a merge."""

    topic: str
    partition: int
    copies: list[CopyFacts] = field(default_factory=list)
    ranges: list[TakenRange] = field(default_factory=list)
    ranges_omitted: int = 0  # ranges beyond MOST_RANGES
    gaps: list[tuple[int, int]] = field(default_factory=list)  # offsets first..until-1 that no copy holds
    leader_epochs: tuple[EpochEntry, ...] = ()
    log_start_offset: int = 0
    next_offset: int = 0
    first_base_offset: int = 0
    cleaned_until: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    epochs_corrected: int = 0
    topic_id: str | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # with "refused" no file was written
    refused: bool = False
    seconds: float = 0.0


MOST_RANGES = 1000
