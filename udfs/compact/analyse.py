"""From scans of all segments to everything that the rewrite must know: where the log ends, what is cleanable and due,
which producers are active, which transactions were aborted, which segments become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from logformat.errors import LogFormatError
from logformat.layout import TXN_INDEX_ENTRY
from logformat.side_files import producer_snapshot, transaction_index
from logformat.side_files.producer_kernels import MARKER
from logformat.side_files.producer_state import ProducerState, aborted_transactions
from udfs.compact import cleaner
from udfs.compact.cleaner import CleanableRange, LastBatches, Rules, SegmentFacts
from udfs.compact.gaps import check_gaps
from udfs.compact.piece_stack import Group, PieceStack
from udfs.compact.plan import Gap, NotDue, PartitionPlan, PartitionResult
from udfs.compact.scan_partition import (
    check_checkpoints,
    check_identity,
    check_tails,
    source_of,
    until_high_watermark,
)
from udfs.compact.scan_segment import SegmentScan
from udfs.compact.sources import Source
from udfs.compact.transactions import (
    TXN_BATCH,
    abort_markers,
    contradictions,
    discardable_batches,
    same_marker,
    undecided,
)
from udfs.problem import Problem, SetAside
from udfs.segments import LastBatch, OutputSegment, SideFile
from udfs.storage import open_root, read_file

_MOST_ENTRIES_NAMED: Final = 3  # of one `.txnindex`, in notes


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found."""

    sources: list[Source]  # every segment of the log, in order
    log_end_offset: int
    cleanable: CleanableRange
    rules: Rules
    groups: list[range]  # numbers of the sources that become one; all below the first uncleanable offset
    producers: list[np.ndarray]  # snapshot entries at the base of each source, and at the log end
    aborted: np.ndarray  # transaction_index.ENTRY[m], to be written: of the whole log
    kept_aborts: np.ndarray  # ENTRY[k], to be written: whose markers stay in the cleaned range
    last_batch: LastBatch
    notes: tuple[str, ...]
    gaps: tuple[Gap, ...] = ()  # that the log is worked through with

    @property
    def untouched(self) -> range:
        """Numbers of the sources that are not cleaned."""
        return range(self.groups[-1].stop if self.groups else 0, len(self.sources))

    def group(self, numbers: range, stack: PieceStack | None) -> Group:
        """A group before it is written; without a stack, for a task that fills one."""
        members = [self.sources[i] for i in numbers]
        return Group(
            base_offset=members[0].scan.base_offset,
            next_offset=self.end_of(numbers.stop - 1),
            mtime_ms=members[-1].mtime_ms,
            source_bytes=sum(m.scan.size for m in members),
            source_records=sum(m.scan.n_records for m in members),
            stack=stack if stack is not None else PieceStack(0),
        )

    def end_of(self, number: int) -> int:
        """Where the range of a source ends: the next one's base, or the log end."""
        if number + 1 < len(self.sources):
            return self.sources[number + 1].scan.base_offset
        return self.log_end_offset


def analyse(plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch) -> Analysis:
    """Decide everything but the records. Raises SetAside, NotDue or LogFormatError."""
    notes: list[str] = []
    scans = until_high_watermark(plan, scans, notes)
    check_tails(plan, scans, notes)
    sources = [source_of(plan, number, scan) for number, scan in enumerate(scans)]
    log_end = max(scans[-1].base_offset, scans[-1].last_offset + 1)
    last_batch = check_identity(plan, scans, identity, log_end)
    check_checkpoints(plan, log_end)
    gaps = check_gaps(plan, scans, log_end, notes)
    producers, aborted = _replay(scans)
    final = _final_producers(plan, scans, log_end, notes)
    producers[-1] = final.entries()
    cleanable, due = _cleanable(plan, sources, log_end, final)
    dirty = cleaner.first_dirty_offset(plan.checkpoint, plan.log_start_offset, log_end)
    result = PartitionResult(
        plan.topic,
        plan.partition,
        "not_due",
        notes=tuple(notes),
        first_dirty_before=dirty,
        first_dirty_offset=dirty,
        log_start_offset=plan.log_start_offset,
        next_offset=log_end,
        last_batch=last_batch,
        dirty_ratio=cleanable.ratio,
        clean_bytes=cleanable.clean_bytes,
        dirty_bytes=cleanable.cleanable_bytes,
        gaps=gaps,
    )
    if not due:
        raise NotDue(result)
    end = cleanable.first_uncleanable_offset
    _check_ends_known(plan, scans, gaps, end)
    in_index, index_only = _with_index_entries(plan, scans, aborted, log_end, notes)
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans if s.base_offset < end)])
    discardable, kept_abort = discardable_batches(rows, aborted)
    numbers = [i for i, s in enumerate(scans) if s.base_offset < end]
    return Analysis(
        sources=sources,
        log_end_offset=log_end,
        cleanable=cleanable,
        rules=_rules(plan, sources, cleanable, final, rows, discardable),
        groups=cleaner.group_segments_by_size(
            [scans[i].base_offset for i in numbers],
            [scans[i].size for i in numbers],
            [len(scans[i].offset_index) for i in numbers],
            [len(scans[i].time_index) for i in numbers],
            end_offset=end,
            max_bytes=plan.settings.segment_bytes,
            max_index_bytes=plan.settings.segment_index_bytes,
        ),
        producers=producers,
        aborted=_by_marker(np.concatenate([in_index, index_only])),
        kept_aborts=in_index[kept_abort[kept_abort >= 0]],
        last_batch=last_batch,
        notes=tuple(notes),
        gaps=gaps,
    )


def _replay(scans: Sequence[SegmentScan]) -> tuple[list[np.ndarray], np.ndarray]:
    """Producers at each segment's base and at the end, from the log alone, and all aborted transactions."""
    state = ProducerState()
    entries, completed = [state.entries()], [np.empty(0, MARKER)]
    for scan in scans:
        completed.append(state.apply(scan.producers))
        entries.append(state.entries())
    return entries, aborted_transactions(np.concatenate(completed))


def _final_producers(
    plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int, notes: list[str]
) -> ProducerState:
    """As a broker that loads the log: the newest snapshot, without expired producers, and the log after it
    (KAFKA.md, "Producers").
    """
    border = {s.base_offset: i for i, s in enumerate(scans)}
    border[log_end] = len(scans)
    for snapshot in sorted(plan.snapshots, key=lambda s: -s.offset):
        if snapshot.offset not in border or snapshot.offset <= plan.log_start_offset:
            continue
        try:
            entries = producer_snapshot.read(read_file(open_root(snapshot.root), snapshot.path), snapshot.path)
        except LogFormatError as error:
            notes.append(f"{error}; an older snapshot, or the log, is used")
            continue
        state = ProducerState.from_snapshot(entries, plan.now_ms, plan.settings.producer_id_expiration_ms)
        for scan in scans[border[snapshot.offset] :]:
            state.apply(scan.producers)
        return state
    state = ProducerState()
    for scan in scans:
        state.apply(scan.producers)
    return state


def _cleanable(
    plan: PartitionPlan, sources: Sequence[Source], log_end: int, producers: ProducerState
) -> tuple[CleanableRange, bool]:
    scans = [s.scan for s in sources]
    facts = SegmentFacts(
        np.array([s.base_offset for s in scans], np.int64),
        np.array([s.size for s in scans], np.int64),
        np.array([s.max_timestamp for s in scans], np.int64),
        np.array([s.first_timestamp for s in scans], np.int64),
        np.array([s.mtime_ms for s in sources], np.int64),
    )
    settings = plan.settings
    whole = len(sources) == len(plan.segments)
    active = log_end if plan.sealed and whole else scans[-1].base_offset
    dirty = (
        plan.log_start_offset
        if plan.force
        else cleaner.first_dirty_offset(plan.checkpoint, plan.log_start_offset, log_end)
    )
    cleanable = cleaner.cleanable_range(
        facts,
        first_dirty=dirty,
        log_end_offset=log_end,
        active_base_offset=active,
        last_stable_offset=producers.last_stable_offset(log_end),
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        now_ms=plan.now_ms,
    )
    delay = cleaner.compaction_delay_ms(facts, dirty, active, settings.max_compaction_lag_ms, plan.now_ms)
    due = cleaner.is_due(cleanable, delay, settings.min_cleanable_dirty_ratio, settings.min_dirty_bytes, plan.force)
    return cleanable, due and cleanable.first_uncleanable_offset > scans[0].base_offset


def _check_ends_known(plan: PartitionPlan, scans: Sequence[SegmentScan], gaps: Sequence[Gap], end: int) -> None:
    """That no transaction's end is lost in a gap: whether its data counts nobody could say then."""
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans)])
    for gap in gaps:
        found = undecided(rows, gap.first, gap.last) if gap.lost and len(rows) else rows[:0]
        if len(found) and rows["base_offset"][found[0]] < end:
            batch = rows[found[0]]
            raise SetAside(
                Problem(
                    "gap",
                    f"{plan.topic}-{plan.partition}",
                    0,
                    f"the end of the transaction of producer {int(batch['producer_id'])} at offset "
                    f"{int(batch['base_offset'])}",
                    f"offsets {gap.first} to {gap.last}, where it may have been, in no segment",
                    state="gap",
                    hint="whether its records were committed nobody can say: bring the missing file back, or leave "
                    "this topic out",
                )
            )


def _with_index_entries(
    plan: PartitionPlan, scans: Sequence[SegmentScan], aborted: np.ndarray, log_end: int, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """What the new `.txnindex` files say of the aborted transactions (ENTRY[m], by replay): the archive's own entry
    where its index has one, whose first offset and last stable offset are those of the time before any cleaning.
    Nothing is decided by it. An entry that the log contradicts is passed over, with a note.

    Also the entries of transactions of which nothing but the ABORT marker is left: a broker leaves them in the
    segments that it does not clean.
    """
    out = aborted.copy()
    markers, before = abort_markers(np.concatenate([s.transactional for s in scans]))
    index_only = [out[:0]]
    for file in plan.txn_indexes:
        try:
            entries = transaction_index.read(read_file(open_root(file.root), file.path), file.path)
        except LogFormatError as error:
            notes.append(f"{error}; rebuilt from the log")
            continue
        unread = (entries["last_offset"] >= log_end) & (file.offset >= scans[-1].base_offset)
        wrong = contradictions(entries, aborted, markers, before)
        right = np.ones(len(entries), np.bool_)
        right[list(wrong)] = False
        said = [i for i in wrong if not unread[i]]
        for i in said[:_MOST_ENTRIES_NAMED]:
            problem = transaction_index.wrong_entry(file.path, i, wrong[i], entries[i])
            notes.append(f"{problem}; what the log says is taken")
        if len(said) > _MOST_ENTRIES_NAMED:
            notes.append(f"{file.path}: {len(said) - _MOST_ENTRIES_NAMED} more entries that the log contradicts")
        known, at = same_marker(out["last_offset"], out["producer_id"], entries)
        _check_no_marker_lost(file, scans, entries, aborted, known, at)
        index_only.append(entries[right & ~known])
        same = right & known
        for name in ("first_offset", "last_stable_offset"):
            out[name][at[same]] = entries[name][same]
    return out, _by_marker(np.concatenate(index_only))


def _check_no_marker_lost(
    file: SideFile,
    scans: Sequence[SegmentScan],
    entries: np.ndarray,
    aborted: np.ndarray,
    known: np.ndarray,
    at: np.ndarray,
) -> None:
    """By the log's markers a transaction may begin before the offset that its index entry says, only if the marker of
    the one before is lost: in a hole, or by a broker that took it too early (KAFKA-14055). Where every offset is there
    none is lost, and the index is wrong; else it cannot be told which is, and committed records may be at stake.

    known, at: which of `entries` are in `aborted`, and where.
    """
    if not len(aborted) or _is_dense(scans):
        return
    first = aborted["first_offset"][np.minimum(at, len(aborted) - 1)]
    doubtful = known & (entries["first_offset"] > first) & (entries["first_offset"] < entries["last_offset"])
    for i in np.flatnonzero(doubtful)[:1]:
        raise SetAside(
            Problem(
                "transaction",
                file.path,
                int(i) * TXN_INDEX_ENTRY.itemsize,
                f"an aborted transaction of producer {int(entries['producer_id'][i])} from offset {int(first[i])} on, "
                "by the markers in the log",
                f"{int(entries['first_offset'][i])}",
                hint="a marker before it is missing, or this index is wrong: bring missing files back; if it is the "
                "index, take it away, and the markers alone decide",
            )
        )


def _is_dense(scans: Sequence[SegmentScan]) -> bool:
    """Whether every offset of the log is in a record."""
    ends = [max(s.base_offset, s.last_offset + 1) for s in scans]
    joined = all(end == after.base_offset for end, after in zip(ends, scans[1:], strict=False))
    return joined and all(s.thinned_offset < 0 for s in scans)


def _by_marker(entries: np.ndarray) -> np.ndarray:
    """Index entries in the order of their markers, each once."""
    _, first = np.unique(entries["last_offset"], return_index=True)
    out: np.ndarray = entries[first]
    return out


def _rules(
    plan: PartitionPlan,
    sources: Sequence[Source],
    cleanable: CleanableRange,
    producers: ProducerState,
    rows: np.ndarray,
    discardable: np.ndarray,
) -> Rules:
    before = [s for s in sources if s.scan.base_offset < cleanable.first_dirty_offset]
    entries = producers.entries()
    return Rules(
        now_ms=plan.now_ms,
        delete_retention_ms=plan.settings.delete_retention_ms,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        legacy_horizon_ms=before[-1].mtime_ms - plan.settings.delete_retention_ms
        if before
        else cleaner.NO_LEGACY_HORIZON,
        keep_null_keys=plan.settings.null_keys == "keep",
        producers=LastBatches(entries["producer_id"], entries["last_offset"], entries["producer_epoch"]),
        txn_base_offsets=rows["base_offset"].copy(),
        txn_discardable=discardable,
        dry_run=plan.dry_run,
    )


def result_of(
    plan: PartitionPlan,
    analysis: Analysis,
    segments: Iterable[OutputSegment],
    counters: dict[str, int],
    recompressed_bytes: int,
) -> PartitionResult:
    """The result of a partition that was cleaned."""
    out = tuple(segments)
    cleaned = [s for s in out if s.cleaned]
    read = sum(s.scan.size for s in analysis.sources)
    before = sum(s.source_bytes for s in cleaned)
    last = analysis.sources[-1].scan
    return PartitionResult(
        topic=plan.topic,
        partition=plan.partition,
        status="cleaned",
        folder=plan.folder,
        notes=analysis.notes,
        first_dirty_before=analysis.cleanable.first_dirty_offset,
        first_dirty_offset=analysis.cleanable.first_uncleanable_offset,
        log_start_offset=plan.log_start_offset,
        next_offset=analysis.log_end_offset,
        last_batch=analysis.last_batch,
        log_end_timestamp_ms=last.max_timestamp,
        dirty_ratio=analysis.cleanable.ratio,
        clean_bytes=analysis.cleanable.clean_bytes,
        dirty_bytes=analysis.cleanable.cleanable_bytes,
        segments=out,
        gaps=analysis.gaps,
        segments_before=len(analysis.sources),
        counters=counters,
        bytes_read=read + before,
        bytes_written=sum(s.size_bytes for s in cleaned),
        bytes_before=read,
        bytes_after=sum(s.size_bytes for s in out),
        recompressed_bytes=recompressed_bytes,
    )
