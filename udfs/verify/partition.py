"""The invariants of one side: a partition in an archive or a restored log directory, or the files of a generation.

Every byte of every `.log` is read once: checksums, counts, varints, offsets in order, bodies decompressed, records that
fill their batches; then the indexes against the log, and the side files. Nothing here shares code with the cleaner;
files are read through `logformat`. Whatever is wrong is a row, and one bad batch does not hide the next.

What is not wrong is a note: a torn tail of a log that was being written, the zeros of preallocated files, offsets that
a cleaner took, indexes as an older broker made them, leader epochs that fall (a log restored into another cluster).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from logformat.batches.bodies import BodyLoader, Run
from logformat.batches.chunks import MAX_BATCH_BYTES, ChunkBuffer
from logformat.errors import LogFormatError
from logformat.layout import CODEC_MASK, CONTROL_MASK
from logformat.listing import ListedSegment
from logformat.primitives.crc32c import crc32c_extend
from logformat.side_files import checkpoints, producer_snapshot
from logformat.side_files.index_builder import IndexBuilder
from logformat.side_files.producer_state import merge, merge_all, summarize
from udfs.attempt import attempt
from udfs.problem import Problem
from udfs.segments import LastBatch, SideFile
from udfs.storage import open_root, opened, read_file
from udfs.verify.gaps import Thinned, gap_problems
from udfs.verify.indexes import Expected, IndexCheck, IndexFile
from udfs.verify.transactions import (
    TXN_ROW,
    check_txn_index,
    completed_transactions,
    previous_markers,
    transaction_rows,
)
from udfs.verify.walk import LogWalk, read_records, walk_log


@dataclass(frozen=True)
class CheckPlan:
    """One side of one partition."""

    topic: str
    partition: int
    name: str  # of the folder, for rows that are about no file
    store_uri: str  # empty: the archive alone
    segments: tuple[ListedSegment, ...]  # by base offset
    snapshots: tuple[SideFile, ...] = ()
    leader_epochs: SideFile | None = None
    metadata: SideFile | None = None
    log_start_offset: int | None = None  # by a checkpoint
    cleaner_checkpoint: int | None = None
    high_watermark: int | None = None
    orphans: tuple[SideFile, ...] = ()  # indexes whose .log is not there
    gaps_accepted: bool = False  # offsets that are in no segment are a note
    sealed: bool = False  # no segment is active: nothing may be torn or preallocated
    generation: bool = False  # files of ours: every index is there, exactly as a broker would rebuild it
    index_interval_bytes: int = 4096
    max_index_bytes: int = 10 << 20
    max_batch_bytes: int = MAX_BATCH_BYTES  # a batch that is, or decompresses to, more is refused
    chunk_bytes: int = 8 << 20


@dataclass
class SegmentFacts:
    """What was seen of one `.log`."""

    path: str
    base_offset: int
    size: int = 0  # bytes that are batches
    batches: int = 0
    records: int = 0
    headers_records: int = 0  # by the headers alone; a magic 0 or 1 wrapper counts as one
    tombstones: int = 0
    last_offset: int = -1
    max_timestamp_ms: int = -1
    codecs: int = 0  # bits
    checksum: int = 0  # CRC-32C of what was read
    damaged: bool = False
    thinned_offset: int = -1  # the last at which a cleaner's work is seen
    dense: bool = True  # every offset from the base to the last one is in a batch
    last_batch: LastBatch = LastBatch()


@dataclass(frozen=True)
class CheckResult:
    """What was checked of one partition, what is wrong, what could not be checked."""

    topic: str
    partition: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    compared_records: int = 0  # with the generation before
    seconds: float = 0.0


@dataclass
class Findings:
    """Collects rows while a partition is checked."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    facts: list[SegmentFacts] = field(default_factory=list)
    transactions: np.ndarray = field(default_factory=lambda: np.empty(0, TXN_ROW))
    log_end_offset: int = 0

    def add(self, error: LogFormatError) -> None:
        """One more row."""
        self.problems.append(Problem.of(error))

    def attempt(self, step: Callable[[], object], name: str) -> None:
        """Run a step of the check of `name`; what it raises is a row."""
        problem = attempt(name, step)
        if isinstance(problem, Problem):
            self.problems.append(problem)


def check_partition(plan: CheckPlan) -> CheckResult:
    """Check one side. Whatever is wrong, or stops the check, is a row."""
    started = time.perf_counter()
    found = Findings()
    found.attempt(lambda: check_side(plan, found), plan.name)
    return result_of(plan, found, time.perf_counter() - started)


def result_of(plan: CheckPlan, found: Findings, seconds: float, compared_records: int = 0) -> CheckResult:
    """The rows as a value."""
    facts = found.facts
    return CheckResult(
        plan.topic,
        plan.partition,
        problems=tuple(found.problems),
        notes=tuple(found.notes),
        not_checked=tuple(found.not_checked),
        segments=len(facts),
        batches=sum(f.batches for f in facts),
        records=sum(f.records for f in facts),
        bytes=sum(f.size for f in facts),
        compared_records=compared_records,
        seconds=seconds,
    )


def check_side(plan: CheckPlan, found: Findings) -> None:
    """All checks of one side, into `found`."""
    buffer = ChunkBuffer(plan.chunk_bytes, plan.max_batch_bytes)
    rows: list[np.ndarray] = []
    epochs, producers = _Epochs(plan, found), _Producers()
    for number in range(len(plan.segments)):
        rows.append(_check_segment(plan, number, found, epochs, producers, buffer))
    _check_gaps(plan, epochs.first, found)
    last = found.facts[-1] if found.facts else None
    found.log_end_offset = 0 if last is None else max(last.base_offset, last.last_offset + 1)
    found.transactions = np.concatenate([np.empty(0, TXN_ROW), *rows])
    _check_txn_indexes(plan, found)
    for snapshot in plan.snapshots:
        found.attempt(lambda s=snapshot: _check_snapshot(s), snapshot.path)  # type: ignore[misc]
    _check_text_files(plan, found)


def _check_segment(
    plan: CheckPlan, number: int, found: Findings, epochs: _Epochs, producers: _Producers, buffer: ChunkBuffer
) -> np.ndarray:
    """Walk one `.log` and its indexes; TXN_ROW[m] of its batches."""
    segment = plan.segments[number]
    base, path = segment.base_offset, segment.path
    after = plan.segments[number + 1].base_offset if number + 1 < len(plan.segments) else None
    active = after is None and not plan.sealed and not plan.generation
    facts = SegmentFacts(path, base)
    found.facts.append(facts)
    index = segment.index or _path_of(path, "index")
    times = segment.time_index or _path_of(path, "timeindex")
    indexes = IndexCheck(
        base,
        IndexFile("offset", index, _data(plan, segment, segment.index, found, segment.size)),
        IndexFile("time", times, _data(plan, segment, segment.time_index, found, segment.size)),
        IndexBuilder(base, plan.index_interval_bytes, plan.max_index_bytes, path),
    )
    walk = LogWalk(path, segment.size, indexes.positions, base_offset=base)
    loader = BodyLoader(max_batch_bytes=plan.max_batch_bytes)
    placed, thinned = _Placed(path, base, after), Thinned(base)
    rows = []
    try:
        with opened(open_root(segment.root), path) as file:
            if file.size() < segment.size:
                raise LogFormatError("changed", path, file.size(), f"{segment.size} bytes, as listed", "fewer")
            for chunk in walk_log(file, walk, buffer):
                placed.check(chunk.batches, walk)
                thinned.see(chunk.batches)
                epochs.check(path, chunk.batches)
                indexes.feed(chunk.batches, chunk.position, len(chunk.raw))
                producers.check(chunk.batches, walk)
                rows.append(transaction_rows(chunk.batches))
                _count(facts, chunk.batches, chunk.raw)
                for run in read_records(loader, chunk, walk):
                    _count_records(facts, run)
    except LogFormatError as error:
        walk.add(error)
    facts.damaged, facts.thinned_offset = walk.n_problems > 0, thinned.last
    expected = Expected(
        active=active,
        exact=plan.generation,
        damaged=facts.damaged or walk.torn_bytes > 0,
        missing_ok=not plan.generation,
    )
    problems, notes = indexes.finish(expected)
    found.problems += walk.problems
    if walk.n_problems > len(walk.problems):
        found.notes.append(f"{path}: {walk.n_problems - len(walk.problems)} more problems in this file are not listed")
    _check_tail(walk, active, found)
    for problem in problems:
        found.add(problem)
    found.notes += notes
    if walk.unread_bytes:
        found.not_checked.append(f"{path}: {walk.unread_bytes} bytes behind damage, where no batch could be found")
    return np.concatenate([np.empty(0, TXN_ROW), *rows])


def _path_of(log_path: str, kind: str) -> str:
    return f"{log_path.partition('.log')[0]}.{kind}"


def _data(
    plan: CheckPlan, segment: ListedSegment, path: str | None, found: Findings, log_bytes: int = 0
) -> bytes | None:
    """An index of a segment."""
    if path is None:
        return None
    try:
        return read_file(open_root(segment.beside), path, log_bytes)
    except LogFormatError as error:
        if not (plan.generation and isinstance(error.__cause__, FileNotFoundError)):
            found.add(error)
        return None


def _count(facts: SegmentFacts, batches: np.ndarray, raw: np.ndarray) -> None:
    facts.batches += len(batches)
    facts.size += len(raw)
    facts.headers_records += int(np.abs(batches["records_count"]).sum(dtype=np.int64))
    ends = np.concatenate([[max(facts.last_offset, facts.base_offset - 1)], batches["last_offset"]])
    facts.dense = facts.dense and bool((batches["base_offset"] == ends[:-1] + 1).all())
    facts.last_offset = max(facts.last_offset, int(batches["last_offset"].max()))
    facts.max_timestamp_ms = max(facts.max_timestamp_ms, int(batches["max_timestamp"].max()))
    facts.codecs |= int(np.bitwise_or.reduce(1 << (batches["attributes"] & CODEC_MASK)))
    facts.checksum = crc32c_extend(facts.checksum, raw)
    last = batches[-1]
    offset = last["base_offset"] if last["magic"] == 2 else last["last_offset"]
    facts.last_batch = LastBatch(int(offset), int(last["partition_leader_epoch"]), int(last["crc"]))


def _count_records(facts: SegmentFacts, run: Run) -> None:
    facts.records += len(run.spans)
    data = np.repeat((run.batches["attributes"] & CONTROL_MASK) == 0, run.bodies["n_records"])
    facts.tombstones += int((run.spans["null_value"] & data).sum())


@dataclass
class _Placed:
    """Whether offsets lie where the names of this segment and the next say."""

    path: str
    base_offset: int
    next_base: int | None

    def check(self, batches: np.ndarray, walk: LogWalk) -> None:
        first = np.where(batches["base_offset"] >= 0, batches["base_offset"], batches["last_offset"])
        for i in _some(first < self.base_offset):
            self._add(walk, "name", batches[i], f"offsets from {self.base_offset} on, as its name says", int(first[i]))
        if self.next_base is not None:
            expected = f"offsets below {self.next_base}, where the next segment begins"
            for i in _some(batches["last_offset"] >= self.next_base):
                self._add(walk, "overlap", batches[i], expected, int(batches["last_offset"][i]))

    def _add(self, walk: LogWalk, kind: str, batch: np.void, expected: str, found: int) -> None:
        base = int(batch["base_offset"])
        walk.add(
            LogFormatError(kind, self.path, int(batch["position"]), expected, str(found), base_offset=max(base, -1))
        )


def _some(wrong: np.ndarray) -> Iterator[int]:
    """The first of them: where a name is wrong, every batch is."""
    yield from (int(i) for i in np.flatnonzero(wrong)[:1])


class _Epochs:
    """Leader epochs, which no checksum covers: they do not fall along the log of one cluster, and are those that the
    leader-epoch-checkpoint names. Where they are not, that is a note: a log restored into another cluster looks so.
    """

    def __init__(self, plan: CheckPlan, found: Findings) -> None:
        self.found, self.latest, self.listed = found, -1, np.empty((0, 2), np.int64)
        self.path = plan.leader_epochs.path if plan.leader_epochs is not None else ""
        if plan.leader_epochs is not None:
            found.attempt(lambda: self._read(plan.leader_epochs), plan.leader_epochs.path)  # type: ignore[arg-type]

    def _read(self, file: SideFile) -> None:
        data = read_file(open_root(file.root), file.path)
        epochs = checkpoints.read_leader_epochs(data, file.path)
        self.listed = np.array(epochs, np.int64).reshape(-1, 2)
        lines = data.decode("utf-8", "replace").split("\n")[2:]
        if [tuple(map(int, line.split())) for line in lines if line.strip()] != [tuple(e) for e in epochs]:
            raise LogFormatError("side_file", file.path, 0, "epochs and offsets that rise", "some that do not")

    @property
    def first(self) -> tuple[str, int] | None:
        """The leader-epoch-checkpoint, and where its first epoch begins; None: it lists none."""
        return (self.path, int(self.listed[0, 1])) if len(self.listed) else None

    def check(self, path: str, batches: np.ndarray) -> None:
        """One note for a chunk, at the first batch that is not as expected."""
        epoch = batches["partition_leader_epoch"]
        current = batches["magic"] == 2
        highest = np.maximum.accumulate(np.concatenate([[self.latest], epoch]))
        wrong = current & ((epoch < -1) | ((epoch >= 0) & (epoch < highest[:-1])))
        expected = highest[:-1].astype(np.int64)
        if len(self.listed):
            at = np.searchsorted(self.listed[:, 1], batches["base_offset"], "right") - 1
            known = self.listed[np.maximum(at, 0), 0]
            wrong |= current & (at >= 0) & (epoch != known) & (epoch != -1)
            expected = np.where(at >= 0, known, expected)
        for i in np.flatnonzero(wrong)[:1]:
            self.found.notes.append(
                f"{path} at byte {int(batches['position'][i])}: leader epoch {int(epoch[i])}, expected "
                f"{int(expected[i])}: from another cluster, or damaged (no checksum covers it)"
            )
        self.latest = int(epoch[-1]) if len(epoch) and epoch[-1] >= 0 else int(highest[-1])


class _Producers:
    """What a broker that loads the log refuses: markers of unknown type, batches that break into a transaction."""

    def __init__(self) -> None:
        self.before = merge_all([])

    def check(self, batches: np.ndarray, walk: LogWalk) -> None:
        try:
            self.before = merge(self.before, summarize(batches, walk.path), walk.path)
        except LogFormatError as error:
            walk.add(error)
            self.before = merge_all([])


def _check_tail(walk: LogWalk, active: bool, found: Findings) -> None:
    if not walk.torn_bytes:
        return
    what = "zeros of a preallocated file" if walk.zeros else "no whole batch"
    if active:
        found.notes.append(f"{walk.path}: the last {walk.torn_bytes} bytes are {what}; the log ends before them")
    else:
        found.add(
            LogFormatError(
                "torn_tail",
                walk.path,
                walk.end_position,
                "whole batches up to the end of the file",
                f"{walk.torn_bytes} bytes that are {what}",
            )
        )


def _check_gaps(plan: CheckPlan, first_epoch: tuple[str, int] | None, found: Findings) -> None:
    if plan.generation:
        return
    rows = [
        (f.path, f.base_offset, max(f.base_offset, f.last_offset + 1), f.thinned_offset, not f.damaged)
        for f in found.facts
    ]
    for gap in gap_problems(
        plan.name,
        rows,
        plan.orphans,
        log_start_offset=plan.log_start_offset or 0,
        cleaned_until=plan.cleaner_checkpoint or 0,
        first_epoch=first_epoch,
    ):
        if isinstance(gap, str) or plan.gaps_accepted:
            found.notes.append(str(gap))
        else:
            found.problems.append(Problem.of(gap, "gap"))


def _check_txn_indexes(plan: CheckPlan, found: Findings) -> None:
    rows = found.transactions
    if any(f.damaged for f in found.facts) and len(rows):
        found.not_checked.append(f"{plan.name}: transaction indexes, since not every batch could be read")
        return
    completed, aborted = completed_transactions(rows)
    by_marker = np.argsort(completed["last_offset"], kind="stable")
    completed, aborted = completed[by_marker], aborted[by_marker]
    markers = rows[rows["marker"] >= 0]
    previous, _ = previous_markers(markers, markers[:0])
    dense_from = found.facts[0].base_offset if all(f.dense for f in found.facts) and _joined(found.facts) else None
    for i, segment in enumerate(plan.segments):
        low = segment.base_offset
        high = plan.segments[i + 1].base_offset if i + 1 < len(plan.segments) else found.log_end_offset
        inside = (completed["last_offset"] >= low) & (completed["last_offset"] < high)
        here = (markers["base_offset"] >= low) & (markers["base_offset"] < high)
        data = _data(plan, segment, segment.txn_index, found)
        path = segment.txn_index or _path_of(segment.path, "txnindex")
        for error in check_txn_index(
            data or b"", path, completed[inside], aborted[inside], markers[here], previous[here], dense_from
        ):
            found.add(error)


def _joined(facts: list[SegmentFacts]) -> bool:
    """Whether each segment begins where the one before it ends."""
    ends = [max(f.base_offset, f.last_offset + 1) for f in facts]
    return all(f.base_offset == end for f, end in zip(facts[1:], ends[:-1], strict=True))


def _check_snapshot(file: SideFile) -> None:
    entries = producer_snapshot.read(read_file(open_root(file.root), file.path), file.path)
    wrong = (entries["last_offset"] >= file.offset) | (entries["current_txn_first_offset"] >= file.offset)
    if wrong.any():
        entry = entries[wrong][0]
        raise LogFormatError(
            "side_file",
            file.path,
            0,
            f"offsets below {file.offset}, as its name says",
            f"{max(int(entry['last_offset']), int(entry['current_txn_first_offset']))} of producer "
            f"{int(entry['producer_id'])}",
        )


def _check_text_files(plan: CheckPlan, found: Findings) -> None:
    if plan.metadata is not None:
        root, path = open_root(plan.metadata.root), plan.metadata.path
        found.attempt(lambda: checkpoints.read_partition_metadata(read_file(root, path), path), path)
    if any(f.damaged for f in found.facts):
        return  # where the log ends is not certain
    end = found.log_end_offset
    for what, offset in (
        ("log start", plan.log_start_offset), ("cleaner", plan.cleaner_checkpoint),
        ("high watermark", plan.high_watermark),
    ):  # fmt: skip
        if offset is not None and offset > end:
            found.add(
                LogFormatError(
                    "side_file", plan.name, 0, f"a checkpoint of the {what} up to the log end, {end}", str(offset)
                )
            )
