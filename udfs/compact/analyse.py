"""From scans of all segments to everything that the rewrite must know: where the log ends, what is cleanable and due,
which producers are active, which transactions were aborted, which segments become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from logformat.errors import LogFormatError
from logformat.side_files import producer_snapshot
from logformat.side_files.producer_kernels import MARKER
from logformat.side_files.producer_state import ProducerState, aborted_transactions
from udfs.compact import cleaner
from udfs.compact.cleaner import CleanableRange, LastBatches, Rules
from udfs.compact.gaps import check_gaps
from udfs.compact.piece_stack import Group, PieceStack
from udfs.compact.place_segments import read_side_file
from udfs.compact.plan import Gap, NotDue, PartitionPlan, PartitionResult
from udfs.compact.retention import Expired
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
    discardable_batches,
)
from udfs.compact.txn_trust import _by_marker, check_ends_known, with_index_entries
from udfs.compact.what_expires import aging_sources, expired, facts_of, rules_of_time
from udfs.segments import LastBatch, OutputSegment


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found."""

    sources: list[Source]  # every segment of the log, in order
    log_end_offset: int
    cleanable: CleanableRange
    rules: Rules
    groups: list[range]  # numbers of the sources that are compacted into one; all below the first uncleanable offset
    producers: list[np.ndarray]  # snapshot entries at the base of each source, and at the log end
    aborted: np.ndarray  # transaction_index.ENTRY[m], to be written: of the whole log
    kept_aborts: np.ndarray  # ENTRY[k], to be written: whose markers stay in the cleaned range
    last_batch: LastBatch
    notes: tuple[str, ...]
    gaps: tuple[Gap, ...] = ()  # that the log is worked through with
    sealed: bool = False  # nothing will be appended to the last source
    not_due: NotDue | None = None  # nothing is compacted, and no whole segment goes
    aging: range = range(0)  # numbers of the sources of which records may go by their time alone
    head: int = 0  # so many sources, the first ones, are replaced by what is written
    least: Mapping[int, int] = field(default_factory=dict)  # smallest timestamps of sources that were read and stay

    @property
    def untouched(self) -> range:
        """Numbers of the sources that are not rewritten."""
        return range(self.head, len(self.sources))

    @property
    def compacts(self) -> bool:
        """Whether anything is cleaned; else retention alone is done."""
        return bool(self.groups)

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


@dataclass(frozen=True)
class WrittenGeneration:
    """What was written: the segments in order, and what retention took of those that there would be."""

    segments: tuple[OutputSegment, ...]
    log_start_offset: int
    expired: tuple[Expired, ...] = ()
    gone: tuple[OutputSegment, ...] = ()
    notes: tuple[str, ...] = ()


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
    sealed = plan.sealed and len(sources) == len(plan.segments) and not scans[-1].reached_end_offset
    not_due = None if due or any(expired(plan, facts_of(sources), sealed).values()) else NotDue(result)
    aging = range(0) if due else aging_sources(plan, sources, log_end, final, sealed)
    if not_due is not None and not aging:
        raise not_due
    end = cleanable.first_uncleanable_offset if due else scans[0].base_offset
    check_ends_known(plan, scans, gaps, end)
    in_index, index_only = with_index_entries(plan, scans, aborted, log_end, end, notes)
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans if s.base_offset < end)])
    discardable, kept_abort = discardable_batches(rows, aborted)
    numbers = [i for i, s in enumerate(scans) if s.base_offset < end]
    all_aborted = _by_marker(np.concatenate([in_index, index_only]))
    return Analysis(
        sources=sources,
        log_end_offset=log_end,
        cleanable=cleanable,
        rules=_rules(plan, sources, cleanable, final, rows, discardable)
        if due
        else rules_of_time(plan, log_end, final),
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
        aborted=all_aborted,
        kept_aborts=in_index[kept_abort[kept_abort >= 0]] if due else all_aborted,
        last_batch=last_batch,
        notes=tuple(notes),
        gaps=gaps,
        sealed=sealed,
        not_due=not_due,
        aging=aging,
        head=len(numbers),
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
            entries = producer_snapshot.read(read_side_file(snapshot), snapshot.path)
        except LogFormatError as error:
            if error.kind == "unreadable":
                raise
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
    facts = facts_of(sources)
    settings = plan.settings
    if not settings.compacts:
        start = cleaner.first_dirty_offset(plan.checkpoint, plan.log_start_offset, log_end)
        return CleanableRange(start, start, 0, 0), False
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
        keeps_end=sources[-1].scan.base_offset < cleanable.first_uncleanable_offset,
        keep_null_keys=plan.settings.null_keys == "keep",
        producers=LastBatches(entries["producer_id"], entries["last_offset"], entries["producer_epoch"]),
        txn_base_offsets=rows["base_offset"].copy(),
        txn_discardable=discardable,
        oldest_ms=plan.oldest_ms,
        dry_run=plan.dry_run,
    )


def result_of(
    plan: PartitionPlan,
    analysis: Analysis,
    generation: WrittenGeneration,
    counters: dict[str, int],
    recompressed_bytes: int,
) -> PartitionResult:
    """The result of a partition that was cleaned."""
    out = generation.segments
    cleaned = [s for s in (*generation.gone, *out) if s.cleaned]
    read = sum(s.scan.size for s in analysis.sources)
    read_again = sum(s.source_bytes for s in cleaned)
    last = analysis.sources[-1].scan
    log_start, cleanable = generation.log_start_offset, analysis.cleanable
    dirty = cleaner.first_dirty_offset(plan.checkpoint, plan.log_start_offset, analysis.log_end_offset)
    cleaned_until = cleanable.first_uncleanable_offset if analysis.compacts else dirty
    return PartitionResult(
        topic=plan.topic,
        partition=plan.partition,
        status="cleaned",
        folder=plan.folder,
        notes=analysis.notes + generation.notes,
        first_dirty_before=analysis.cleanable.first_dirty_offset,
        first_dirty_offset=max(cleaned_until, log_start),
        log_start_offset=log_start,
        next_offset=analysis.log_end_offset,
        last_batch=analysis.last_batch,
        log_end_timestamp_ms=last.max_timestamp,
        dirty_ratio=analysis.cleanable.ratio,
        clean_bytes=analysis.cleanable.clean_bytes,
        dirty_bytes=analysis.cleanable.cleanable_bytes,
        segments=out,
        gaps=analysis.gaps,  # also below the log start: what comes back there was not looked at
        compacted=analysis.compacts,
        expired=generation.expired,
        segments_before=len(analysis.sources),
        counters=counters,
        bytes_read=read + read_again,
        bytes_written=sum(s.size_bytes for s in cleaned),
        bytes_before=read,
        bytes_after=sum(s.size_bytes for s in out),
        recompressed_bytes=recompressed_bytes,
    )
