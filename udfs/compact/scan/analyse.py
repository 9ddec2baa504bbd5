"""The analysis of a partition: scans of all segments give all facts that the rewrite needs. It finds the log end, the
cleanable range and whether it is due, the active producers, the aborted transactions, and the segments that become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_kernels import MARKER
from lastkey.logformat.side_files.producer_state import ProducerState, aborted_transactions
from lastkey.udfs.compact import cleaner
from lastkey.udfs.compact.cleaner import CleanableRange, Rules
from lastkey.udfs.compact.plan import Extent, Gap, PartitionPlan, PartitionResult
from lastkey.udfs.compact.scan.due import (
    affected_sources,
    cleanable_now,
    collect_times,
    expired,
    not_due,
    retention_held_back,
    rules_of_removal,
)
from lastkey.udfs.compact.scan.scan_partition import (
    check_checkpoints,
    check_gaps,
    check_identity,
    check_tails,
    until_high_watermark,
)
from lastkey.udfs.compact.scan.transactions import (
    add_open_transactions,
    by_marker,
    check_ends_known,
    discardable_batches,
    note_undecided,
    open_at,
    open_batches,
    producers_with_unknown_outcome,
    undecided_batches,
    with_index_entries,
)
from lastkey.udfs.segments import TXN_BATCH, LastBatch, SegmentScan, new_segment, read_side_file


@dataclass(frozen=True)
class Analysis:
    """Result of `analyse`."""

    sources: list[SegmentScan]  # every segment of the log, in order
    log_end_offset: int
    cleanable: CleanableRange
    rules: Rules
    groups: list[range]  # numbers of the sources that become one; all below the first uncleanable offset
    producers: list[np.ndarray]  # snapshot entries at the base of each source, and at the log end
    open_transactions: np.ndarray  # OPEN_BATCH[n], of transactions open at one of these offsets
    aborted: np.ndarray  # transaction_index.ENTRY[m] to write for the whole log
    kept_aborts: np.ndarray  # ENTRY[k] to write for the cleaned range: their markers stay
    last_batch: LastBatch
    notes: tuple[str, ...]
    gaps: tuple[Gap, ...] = ()  # gaps that the compaction passes over
    sealed: bool = False  # no batch will be appended to the last source
    unchanged: PartitionResult | None = None  # set if no segment is compacted and no whole segment expires
    affected: range = range(0)  # numbers of the sources that may lose records by their time alone
    replaced: frozenset[int] = frozenset()  # numbers of the sources that new segments replace
    superseded: Mapping[int, int] = field(default_factory=dict)  # number of a source: dead records, by filters
    min_timestamps: Mapping[int, int] = field(
        default_factory=dict
    )  # smallest timestamps of sources that were read and stay

    @property
    def untouched(self) -> list[int]:
        """Numbers of the sources that are not rewritten."""
        return [n for n in range(len(self.sources)) if n not in self.replaced]

    @property
    def cleans(self) -> bool:
        """True if anything is cleaned; otherwise retention alone is applied."""
        return bool(self.groups)

    def group(self, numbers: range) -> Segment:
        """Return the segment that these sources become, before it is written."""
        first, last = self.sources[numbers.start], self.sources[numbers.stop - 1]
        return new_segment(first.first_offset, self.source_end(numbers.stop - 1), last.mtime_ms)

    def source_end(self, number: int) -> int:
        """Return the end of a source's range: the next source's base, or the log end."""
        if number + 1 < len(self.sources):
            return self.sources[number + 1].first_offset
        return self.log_end_offset


def analyse(
    plan: PartitionPlan, scans: Sequence[SegmentScan], identity: LastBatch, extent: Extent
) -> Analysis | PartitionResult:
    """Make all decisions except for the records; return the result if no work is due. Raises LogFormatError."""
    notes: list[str] = []
    scans = until_high_watermark(plan, scans, notes)
    check_tails(plan, scans, notes)
    log_end = max(scans[-1].first_offset, scans[-1].last_offset + 1)
    last_batch = check_identity(plan, scans, identity, log_end)
    check_checkpoints(plan, log_end)
    gaps = check_gaps(plan, scans, log_end, notes)
    producers, aborted = _replay(scans)
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans)])
    open_ones = open_batches(rows, plan.input.log_start_offset, [*(s.first_offset for s in scans), log_end])
    undecided, witnesses, transactions = undecided_batches(rows, plan.input.log_start_offset)
    note_undecided(scans, transactions, notes)
    undecided, witnesses = rows["base_offset"][undecided], rows["base_offset"][witnesses]
    final, denied_batches = _final_producers(plan, scans, log_end, producers[-1], open_at(open_ones, log_end), notes)
    producers[-1] = final.entries()
    cleanable, due, held_back = cleanable_now(plan, scans, log_end, final, rows, extent)
    sealed = plan.run.sealed and len(scans) == len(plan.input.segments) and not scans[-1].reached_end_offset
    by_rule = expired(plan, collect_times(scans), sealed)
    nothing = not (due or plan.is_due_anyway or any(by_rule.values()))
    first, active = sum(by_rule.values()), log_end if sealed else scans[-1].first_offset
    stays = retention_held_back(plan, collect_times(scans), [s.path for s in scans], first=first, active=active)
    held_back += stays
    notes += [str(one) for one in stays if one.in_future and not (nothing or due)]
    dirty = cleaner.first_dirty_offset(plan.input.first_dirty_offset, plan.input.log_start_offset, log_end)
    result = not_due(plan, dirty, log_end, cleanable, held_back)
    result = replace(result, notes=tuple(notes), log=replace(result.log, last_batch=last_batch, gaps=gaps))
    affected = range(0) if due else affected_sources(plan, scans, log_end, final, sealed)
    end = cleanable.first_uncleanable_offset if due else scans[0].first_offset
    check_ends_known(plan, scans, gaps, end, denied_batches)
    if nothing and not affected:
        return result
    in_index, index_only = with_index_entries(plan, scans, aborted, end, denied_batches, notes)
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans if s.first_offset < end)])
    discardable, kept_abort = discardable_batches(rows, aborted)
    discardable[np.isin(rows["base_offset"], undecided)] = False
    numbers = [i for i, s in enumerate(scans) if s.first_offset < end]
    all_aborted = by_marker(np.concatenate([in_index, index_only]))
    base = rules_of_removal(plan, log_end, final, witnesses)
    return Analysis(
        sources=list(scans),
        log_end_offset=log_end,
        cleanable=cleanable,
        rules=_rules(plan, base, scans, cleanable, (rows["base_offset"], discardable), undecided) if due else base,
        groups=group_segments(plan, scans[: len(numbers)], end),
        producers=producers,
        open_transactions=open_ones,
        aborted=all_aborted,
        kept_aborts=in_index[kept_abort[kept_abort >= 0]] if due else all_aborted,
        last_batch=last_batch,
        notes=tuple(notes),
        gaps=gaps,
        sealed=sealed,
        unchanged=result if nothing else None,
        affected=affected,
        replaced=frozenset(numbers),
    )


def group_segments(plan: PartitionPlan, scans: Sequence[SegmentScan], end_offset: int) -> list[range]:
    """Return the groups of consecutive segments that become one, as ranges of their numbers here; end_offset: of the
    last one's range.
    """
    return cleaner.group_segments_by_size(
        [s.first_offset for s in scans],
        [s.size for s in scans],
        [len(s.offset_index) for s in scans],
        [len(s.time_index) for s in scans],
        end_offset=end_offset,
        max_bytes=plan.policy.settings.segment_bytes,
        max_index_bytes=plan.policy.settings.segment_index_bytes,
    )


def _replay(scans: Sequence[SegmentScan]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the producers at each segment's base and at the end, from the log alone, and all aborted transactions."""
    state = ProducerState()
    entries, completed = [state.entries()], [np.empty(0, MARKER)]
    for scan in scans:
        completed.append(state.apply(scan.producers))
        entries.append(state.entries())
    return entries, aborted_transactions(np.concatenate(completed))


def _final_producers(
    plan: PartitionPlan,
    scans: Sequence[SegmentScan],
    log_end: int,
    replayed: np.ndarray,
    opened: np.ndarray,
    notes: list[str],
) -> tuple[ProducerState, np.ndarray]:
    """Return the producers at the log end, as a broker that loads the log knows them: from the newest snapshot without
    expired producers, and the log after it (KAFKA.md, "Producers"). Unlike a broker, add every transaction that the log
    shows open. Also return, as OPEN_BATCH[m], the transactions that the snapshot denies.

    replayed: ENTRY[n], the producers at the log end by the log alone; opened: OPEN_BATCH[k], its open transactions.
    """
    state, path = _loaded_producers(plan, scans, log_end, notes)
    entries = state.entries()
    denied_batches = producers_with_unknown_outcome(entries, opened)
    if not len(denied_batches):
        return state, denied_batches
    oldest = denied_batches[np.argmin(denied_batches["first_offset"])]
    more = f", and {len(denied_batches) - 1} more" if len(denied_batches) > 1 else ""
    notes.append(
        f"{path}: expected the transaction of producer {oldest['producer_id']}, open from offset "
        f"{oldest['first_offset']} on{more}, because no marker in the log ends it, found none; the log decides, and "
        "nothing is cleaned from there on"
    )
    return ProducerState.from_snapshot(add_open_transactions(entries, denied_batches, replayed)), denied_batches


def _loaded_producers(
    plan: PartitionPlan, scans: Sequence[SegmentScan], log_end: int, notes: list[str]
) -> tuple[ProducerState, str]:
    """Return the producers at the log end, and the path of the snapshot that they are based on; "" without one."""
    border = {s.first_offset: i for i, s in enumerate(scans)}
    border[log_end] = len(scans)
    for snapshot in sorted(plan.input.snapshots, key=lambda s: -s.offset):
        if snapshot.offset not in border or snapshot.offset <= plan.input.log_start_offset:
            continue
        try:
            entries = producer_snapshot.read(read_side_file(snapshot), snapshot.path)
        except LogFormatError as error:
            if error.kind == "unreadable":
                raise
            notes.append(f"{error}; an older snapshot or the log is used instead")
            continue
        state = ProducerState.from_snapshot(entries, plan.run.now_ms, plan.policy.settings.producer_id_expiration_ms)
        for scan in scans[border[snapshot.offset] :]:
            state.apply(scan.producers)
        return state, snapshot.path
    state = ProducerState()
    for scan in scans:
        state.apply(scan.producers)
    return state, ""


def _rules(
    plan: PartitionPlan,
    base: Rules,
    scans: Sequence[SegmentScan],
    cleanable: CleanableRange,
    transactional: tuple[np.ndarray, np.ndarray],
    undecided: np.ndarray,
) -> Rules:
    """Return the rules of a compaction. base: those of a removal; transactional, undecided: as in Rules."""
    before = [s for s in scans if s.first_offset < cleanable.first_dirty_offset]
    return replace(
        base,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        legacy_horizon_ms=before[-1].mtime_ms - base.delete_retention_ms if before else base.legacy_horizon_ms,
        keeps_end=scans[-1].first_offset < cleanable.first_uncleanable_offset,
        keep_null_keys=plan.policy.settings.null_keys == "keep",
        txn_base_offsets=transactional[0].copy(),
        txn_discardable=transactional[1],
        by_key=True,
        keep_batches=False,
        compression=plan.policy.settings.compression,
        tombstones_from=min(undecided.tolist(), default=MAX_OFFSET),
        undecided=undecided,
    )
