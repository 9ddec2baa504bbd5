"""Values of a partition's check: its plan, what it has seen of each segment, and what it has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.segments import LastBatch, SideFile
from lastkey.udfs.verify.transactions import TXN_ROW


@dataclass(frozen=True)
class CheckPlan:
    """Files of one side of one partition, and the rules to check them by."""

    topic: str
    partition: int
    name: str  # name of the folder, for rows that are about no file
    store_uri: str  # empty: the archive alone
    segments: tuple[Segment, ...]  # by base offset
    snapshots: tuple[SideFile, ...] = ()
    leader_epochs: SideFile | None = None
    archived_epochs: tuple[tuple[int, int], ...] = ()  # a generation's (epoch, start offset) by the archive's file
    metadata: SideFile | None = None
    txn_indexes: bool = True  # False: they were not copied into this archive
    log_start_offset: int | None = None  # by a checkpoint
    cleaner_checkpoint: int | None = None
    high_watermark: int | None = None
    orphans: tuple[SideFile, ...] = ()  # indexes whose .log is not there
    gaps_accepted: bool = False  # offsets that are in no segment are a note
    sealed: bool = False  # no segment is active: no file may be torn or preallocated
    generation: bool = False  # files of ours: every index is there, exactly as a broker would rebuild it
    index_interval_bytes: int = 4096
    max_index_bytes: int = 10 << 20
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is refused
    chunk_bytes: int = 8 << 20


@dataclass
class CheckedSegment:
    """Facts about one `.log`, as the walk saw it."""

    path: str
    base_offset: int
    size: int = 0  # bytes that are batches
    batches: int = 0
    records: int = 0
    headers_records: int = 0  # by the headers alone; a magic 0 or 1 wrapper counts as one
    tombstones: int = 0
    last_offset: int = -1
    max_timestamp_ms: int = -1
    min_timestamp_ms: int = 2**63 - 1  # smallest timestamp of data records that have one
    codecs: int = 0  # bits
    magics: int = 0  # bits
    checksum: int = 0  # CRC-32C of what was read
    damaged: bool = False
    thinned_offset: int = -1  # the last at which a cleaner's work is seen
    dense: bool = True  # every offset from the base to the last one is in a batch
    last_batch: LastBatch = LastBatch()


@dataclass(frozen=True)
class CheckResult:
    """Result of one partition's check: checks done, problems, and checks that were not possible."""

    topic: str
    partition: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    held_back: HeldBack | None = None  # the oldest open transaction, after which no offset is cleaned
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    compared_records: int = 0  # with the generation before
    seconds: float = 0.0
    generation: int | None = None  # generation of a store


@dataclass
class Findings:
    """Rows that are collected while a partition is checked."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    held_back: HeldBack | None = None
    facts: list[CheckedSegment] = field(default_factory=list)
    transactions: np.ndarray = field(default_factory=lambda: np.empty(0, TXN_ROW))
    log_end_offset: int = 0

    def add(self, error: LogFormatError) -> None:
        """Add a row."""
        self.problems.append(Problem.of(error))

    def attempt(self, step: Callable[[], object], name: str, *, logged: bool = False) -> None:
        """Run a step of the check of `name`; an error becomes a row. logged: as for `attempt`."""
        problem = attempt(name, step, logged=logged)
        if isinstance(problem, Problem):
            self.problems.append(problem)


def make_result(plan: CheckPlan, findings: Findings, seconds: float, compared_records: int = 0) -> CheckResult:
    """Return the findings as a value."""
    facts = findings.facts
    return CheckResult(
        plan.topic,
        plan.partition,
        problems=tuple(findings.problems),
        notes=tuple(findings.notes),
        not_checked=tuple(findings.not_checked),
        held_back=findings.held_back,
        segments=len(facts),
        batches=sum(f.batches for f in facts),
        records=sum(f.records for f in facts),
        bytes=sum(f.size for f in facts),
        compared_records=compared_records,
        seconds=seconds,
    )
