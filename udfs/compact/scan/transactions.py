"""The transactional batches and markers that may go (KAFKA.md, "Transactions" and "Markers"), and checks of markers and
transaction indexes: a marker that may be in a gap, an index that the log contradicts.

Input is only the batches that matter here: data batches of transactions, and control batches, of the whole range that
is cleaned, in order. Difference from Kafka: the markers in the log alone show which transactions were aborted, and
where each begins. A `.txnindex` has no checksum, and decides no outcome: a lost one does not turn aborted data into
committed data, nor a wrong field in it committed data into aborted. COMPACTION.md explains why the markers are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, TXN_INDEX_ENTRY
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.plan import Gap, PartitionPlan
from lastkey.udfs.compact.scan.scan_kernels import NONE, replay
from lastkey.udfs.problem import gap
from lastkey.udfs.segments import TXN_BATCH, SegmentScan, SideFile, read_side_file

# Data batches of one epoch whose marker is lost: a batch of another epoch comes before the next marker.
UNDECIDED: Final = np.dtype(
    [("producer_id", "i8"), ("base_offset", "i8"), ("epoch", "i2"), ("next_offset", "i8"), ("next_epoch", "i2")]
)
# A data batch of a transaction, and the marker that ends it
OPEN_BATCH: Final = np.dtype([("producer_id", "i8"), ("first_offset", "i8"), ("marker", "i8")])


def discardable_batches(rows: np.ndarray, aborted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches that may go, of TXN_BATCH[n] in log order, given the aborted transactions, ENTRY[m].

    Returns (discardable: bool[n]; kept_abort: int64[n], for an ABORT marker that must stay its row of `aborted`, else
    -1).
    """
    discardable = np.zeros(len(rows), np.bool_)
    kept_abort = np.full(len(rows), NONE, np.int64)
    if len(rows):
        order = np.argsort(aborted["first_offset"], kind="stable")
        producer_ids, dense = np.unique(
            np.concatenate([rows["producer_id"], aborted["producer_id"]]), return_inverse=True
        )
        replay(
            rows,
            dense[: len(rows)],
            aborted["first_offset"][order],
            dense[len(rows) :][order],
            np.full(len(producer_ids), NONE, np.int64),
            np.zeros(len(producer_ids), np.bool_),
            np.zeros(len(producer_ids), np.bool_),
            discardable,
            kept_abort,
        )
        has = kept_abort >= 0
        kept_abort[has] = order[kept_abort[has]]
    return discardable, kept_abort


def undecided_batches(rows: np.ndarray, log_start_offset: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, of TXN_BATCH[n] in log order, the data batches whose marker is lost, as rising rows int64[k]; int64[m],
    rising, the rows that show it; and UNDECIDED[j] in log order.

    A producer's batches up to its next marker with different epochs are not one transaction, because an epoch changes
    only after a marker. That marker ends the last of them. It does not decide the earlier batches, if they have
    records. Markers often have a higher epoch than the data before them, so they are no evidence.
    """
    data = np.flatnonzero(~rows["control"] & (rows["producer_id"] >= 0) & (rows["last_offset"] >= log_start_offset))
    behind = markers_behind(rows)[data]
    order = np.lexsort((data, behind, rows["producer_id"][data]))
    data, behind = data[order], behind[order]
    producer, epoch = rows["producer_id"][data], rows["producer_epoch"][data]
    begins = np.ones(len(data), np.bool_)  # first batches before their markers
    begins[1:] = (producer[1:] != producer[:-1]) | (behind[1:] != behind[:-1])
    changes = ~begins
    changes[1:] &= epoch[1:] != epoch[:-1]
    shows = np.flatnonzero(changes)
    if not len(shows):
        return data[:0], data[:0], np.empty(0, UNDECIDED)
    until = np.cumsum(begins) - 1  # number of its marker
    last = np.full(until[-1] + 1, NONE)
    last[until[shows]] = shows  # the last of several counts
    lost = np.flatnonzero((np.arange(len(data)) < last[until]) & (rows["records_count"][data] != 0))
    following = shows[np.searchsorted(shows, lost, "right")]
    _, first = np.unique(following, return_index=True)
    out, lost_rows, next_rows = np.empty(len(first), UNDECIDED), rows[data[lost[first]]], rows[data[following[first]]]
    out["producer_id"] = lost_rows["producer_id"]
    out["base_offset"], out["epoch"] = lost_rows["base_offset"], lost_rows["producer_epoch"]
    out["next_offset"], out["next_epoch"] = next_rows["base_offset"], next_rows["producer_epoch"]
    return np.sort(data[lost]), np.unique(data[last[until[lost]]]), out[np.argsort(out["base_offset"])]


def abort_markers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ABORT markers among TXN_BATCH[n] in log order, as TXN_BATCH[m], and int64[m], the offset of the
    previous marker of each one's producer; -1 if missing.
    """
    markers = rows[(rows["control_type"] == CONTROL_ABORT) | (rows["control_type"] == CONTROL_COMMIT)]
    order = np.lexsort((markers["base_offset"], markers["producer_id"]))
    producer, offset = markers["producer_id"][order], markers["base_offset"][order]
    same = producer[1:] == producer[:-1]
    before = np.full(len(markers), NONE, np.int64)
    before[order[1:][same]] = offset[:-1][same]
    aborts = markers["control_type"] == CONTROL_ABORT
    return markers[aborts], before[aborts]


def possibly_ended_in(rows: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return rows of TXN_BATCH[n] in log order, rising: the data batches whose transaction may have ended in one of the
    ranges first..last after them (int64[m] each, ascending by first). The next marker of such a batch's producer is
    above that range, and may belong to a later transaction; or there is none.
    """
    least = np.append(np.minimum.accumulate(last[::-1])[::-1], NO_END)
    behind = least[np.searchsorted(first, rows["last_offset"], "right")]
    return np.flatnonzero((markers_behind(rows) > behind) & ~rows["control"])


def markers_behind(rows: np.ndarray) -> np.ndarray:
    """Return int64[n] for TXN_BATCH[n] in log order: the offset of the next marker of each row's producer, or its own
    if it is a marker; NO_END if missing.
    """
    n = len(rows)
    order = np.lexsort((rows["base_offset"], rows["producer_id"]))
    offsets, producers = rows["base_offset"][order], rows["producer_id"][order]
    following = np.where(rows["control_type"][order] >= 0, np.arange(n), n)
    following = np.minimum.accumulate(following[::-1])[::-1]
    at = np.minimum(following, n - 1)
    out = np.full(n, NO_END, np.int64)
    out[order] = np.where((following < n) & (producers[at] == producers), offsets[at], NO_END)
    return out


def open_batches(rows: np.ndarray, log_start_offset: int, borders: Sequence[int]) -> np.ndarray:
    """Return the data batches among TXN_BATCH[n] in log order whose transaction is open at one of the offsets
    `borders`. Result: OPEN_BATCH[m], with the marker (NO_END if the transaction is still open).

    A cleaner keeps a marker while any batch of its transaction is left, so a transaction without a marker is open. If
    it began below the log start, a broker that recovers the log knows only the batches above.
    """
    data = ~rows["control"] & (rows["last_offset"] >= log_start_offset) & (rows["producer_id"] >= 0)
    out = np.empty(np.count_nonzero(data), OPEN_BATCH)
    out["producer_id"], out["first_offset"] = rows["producer_id"][data], rows["base_offset"][data]
    out["marker"] = markers_behind(rows)[data]
    before, behind = (np.searchsorted(np.sort(borders), out[name], "right") for name in ("first_offset", "marker"))
    found: np.ndarray = out[before < behind]
    return found


def open_at(batches: np.ndarray, offset: int) -> np.ndarray:
    """Return the first batch of each transaction in OPEN_BATCH[n] that is open at an offset, by producer."""
    rows = batches[(batches["first_offset"] < offset) & (batches["marker"] >= offset)]
    _, first = np.unique(rows["producer_id"], return_index=True)  # rows are in log order
    out: np.ndarray = rows[first]
    return out


def producers_with_unknown_outcome(entries: np.ndarray, opened: np.ndarray) -> np.ndarray:
    """Return the open transactions, among OPEN_BATCH[n], that a snapshot, ENTRY[m], does not know or lets begin
    later.
    """
    order = np.argsort(entries["producer_id"])
    at = np.searchsorted(entries["producer_id"][order], opened["producer_id"])
    producer, first = (
        np.append(entries[name][order], NONE)[at] for name in ("producer_id", "current_txn_first_offset")
    )
    known = (producer == opened["producer_id"]) & (first >= 0) & (first <= opened["first_offset"])
    out: np.ndarray = opened[~known]
    return out


def add_open_transactions(entries: np.ndarray, opened: np.ndarray, replayed: np.ndarray) -> np.ndarray:
    """Return the producers of a snapshot, ENTRY[n], with the open transactions that it denies, OPEN_BATCH[m].

    replayed: ENTRY[k], producers by the log alone, for those that the snapshot does not know.
    """
    added = replayed[np.isin(replayed["producer_id"], opened["producer_id"])]
    added = added[~np.isin(added["producer_id"], entries["producer_id"])]
    out = np.concatenate([entries, added])
    out = out[np.argsort(out["producer_id"])]
    out["current_txn_first_offset"][np.searchsorted(out["producer_id"], opened["producer_id"])] = opened["first_offset"]
    return out


def data_before(rows: np.ndarray, producers: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return int64[m]: for each pair of producer and offset, the row of the producer's last batch in TXN_BATCH[n], in
    log order, that is wholly below the offset; -1 if missing.
    """
    n, m = len(rows), len(producers)
    producer = np.concatenate([rows["producer_id"], producers])
    offset = np.concatenate([rows["last_offset"], offsets])
    order = np.lexsort((np.arange(n + m) < n, offset, producer))  # at the same offset the pair comes first
    last = np.maximum.accumulate(np.where(order < n, np.arange(n + m), NONE))
    rows_before = np.where(last >= 0, order[last], NONE)
    rows_before[(rows_before >= 0) & (producer[rows_before] != producer[order])] = NONE
    out = np.empty(n + m, np.int64)
    out[order] = rows_before
    return out[n:]


def contradictions(
    entries: np.ndarray, aborted: np.ndarray, markers: np.ndarray, markers_before: np.ndarray
) -> dict[int, str]:
    """Return row -> expectation for each entry of a `.txnindex`, ENTRY[n], that the log contradicts, rising.

    aborted: ENTRY[m] by replay of the log; markers, markers_before: from abort_markers; both by marker. Records that a
    cleaning removed are no contradiction: an entry may begin before the rest of its transaction, but not before its
    producer's previous transaction ended; and no transaction can have been open longer than the log shows. An entry
    that begins at its marker belongs to an ABORT without data, as brokers before KAFKA-10702 note it.
    """
    out: dict[int, str] = {}

    def say(wrong: np.ndarray, expected: str, values: np.ndarray | None = None) -> None:
        for i in np.flatnonzero(wrong):  # a loop over wrong entries only
            out.setdefault(int(i), expected if values is None else expected.format(int(values[i])))

    first, last, stable = entries["first_offset"], entries["last_offset"], entries["last_stable_offset"]
    has_marker, at = same_marker(markers["base_offset"], markers["producer_id"], entries)
    say(~has_marker, "the ABORT marker of its producer at its last offset")
    rows = np.flatnonzero(has_marker)
    falls = np.zeros(len(entries), np.bool_)
    falls[rows[1:]] = last[rows[1:]] <= last[rows[:-1]]
    say(falls, "last offsets that rise")
    before = np.append(markers_before, NONE)[at]
    say((before >= 0) & (first <= before), "a first offset above {}, its producer's previous marker", before)
    say(first < 0, "a first offset of 0 or more")
    marker_known, at = same_marker(aborted["last_offset"], aborted["producer_id"], entries)
    replayed = np.append(aborted, np.zeros(1, aborted.dtype))[at]
    begins = np.where(marker_known, replayed["first_offset"], last)
    say(first > begins, "a first offset up to {}", begins)
    most = np.where(marker_known, replayed["last_stable_offset"], last + 1)
    say((stable < 0) | (stable > most), "a last stable offset from 0 to {}", most)
    return dict(sorted(out.items()))


def same_marker(offset: np.ndarray, producer_id: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (bool[n]: whether each entry's marker is among those at `offset`, ascending; int64[n]: its row if it
    is).
    """
    at = np.searchsorted(offset, entries["last_offset"])
    inside = np.flatnonzero(at < len(offset))
    same = np.zeros(len(entries), np.bool_)
    same[inside] = offset[at[inside]] == entries["last_offset"][inside]
    same[inside] &= producer_id[at[inside]] == entries["producer_id"][inside]
    return same, at


def by_marker(entries: np.ndarray) -> np.ndarray:
    """Return index entries in the order of their markers, each once."""
    _, first = np.unique(entries["last_offset"], return_index=True)
    out: np.ndarray = entries[first]
    return out


_MOST_NAMED: Final = 3  # entries of one `.txnindex`, or transactions, in notes


def check_ends_known(
    plan: PartitionPlan, scans: Sequence[SegmentScan], gaps: Sequence[Gap], end: int, denied_batches: np.ndarray
) -> None:
    """Raise LogFormatError if a transaction's end may be lost in a gap, so that the outcome is unknown.

    A transaction without a marker is open, so its data is at or above `end`, except if `denied_batches`,
    OPEN_BATCH[m], contains it: a snapshot after the gap shows that it ended. Data below the log start does not count.
    """
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans)])
    rows = rows[rows["last_offset"] >= plan.input.log_start_offset]
    lost = sorted((hole for hole in gaps if hole.lost), key=lambda hole: hole.first)
    first, last = np.array([(hole.first, hole.last) for hole in lost], np.int64).reshape(-1, 2).T
    undecided = possibly_ended_in(rows, first, last) if len(rows) else np.empty(0, np.int64)
    undecided = undecided[undecidable_rows(rows[undecided], end, denied_batches)]
    if len(undecided):
        batch = rows[undecided[0]]
        hole = lost[int(np.searchsorted(first, batch["last_offset"], "right"))]
        raise gap(
            plan.name,
            f"the end of the transaction of producer {int(batch['producer_id'])} at offset {int(batch['base_offset'])}",
            f"no segment with offsets {hole.first} to {hole.last}, where it may have been",
            "the outcome of the transaction is unknown: bring the missing file back, or leave this topic out",
            NO_POSITION,
        ).as_error()


def note_undecided(scans: Sequence[SegmentScan], transactions: np.ndarray, notes: list[str]) -> None:
    """Add notes for transactions whose marker is lost, UNDECIDED[n] in log order."""
    bases = np.array([s.first_offset for s in scans], np.int64)
    for transaction in transactions[:_MOST_NAMED]:
        path = scans[int(np.searchsorted(bases, transaction["base_offset"], "right")) - 1].path
        notes.append(
            f"{path}: expected a marker of producer {transaction['producer_id']} behind its batch of epoch "
            f"{transaction['epoch']} at offset {transaction['base_offset']}, found a batch of epoch "
            f"{transaction['next_epoch']} at offset {transaction['next_offset']}; the outcome of this transaction is "
            "unknown: its records are kept and supersede nothing; look for the marker in another replica or an older "
            "copy"
        )
    if len(transactions) > _MOST_NAMED:
        notes.append(f"{len(transactions) - _MOST_NAMED} more transactions of this partition without a marker")


def undecidable_rows(rows: np.ndarray, end: int, denied_batches: np.ndarray) -> np.ndarray:
    """Return bool[n] for TXN_BATCH[n]: whether a batch is below the end of the cleaned range, or a snapshot shows that
    its producer's transaction has ended.
    """
    out: np.ndarray = (rows["base_offset"] < end) | np.isin(rows["producer_id"], denied_batches["producer_id"])
    return out


def with_index_entries(
    plan: PartitionPlan,
    scans: Sequence[SegmentScan],
    aborted: np.ndarray,
    end: int,
    denied_batches: np.ndarray,
    notes: list[str],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of the new `.txnindex` files for the aborted transactions (ENTRY[m], by replay). The archive's
    own entry replaces a replayed one, because its first offset and last stable offset date from before any cleaning.
    These entries decide no outcome. An entry that the log contradicts is skipped, with a note.

    Also return the entries of transactions without data, whose ABORT marker is left: a broker leaves them in the
    segments that it does not clean. end: all below is cleaned; denied_batches: see check_ends_known.
    """
    out, log_end = aborted.copy(), max(scans[-1].first_offset, scans[-1].last_offset + 1)
    rows = np.concatenate([s.transactional for s in scans])
    markers, before = abort_markers(rows)
    index_only = [out[:0]]
    for file in plan.input.txn_indexes:
        try:
            entries = transaction_index.read(read_side_file(file), file.path)
        except LogFormatError as error:
            if error.kind == "unreadable":
                raise
            notes.append(f"{error}; rebuilt from the log")
            continue
        unread = (entries["last_offset"] >= log_end) & (file.offset >= scans[-1].first_offset)
        wrong = contradictions(entries, aborted, markers, before)
        right = np.ones(len(entries), np.bool_)
        right[list(wrong)] = False
        contradicted = [i for i in wrong if not unread[i]]
        for i in contradicted[:_MOST_NAMED]:
            problem = transaction_index.wrong_entry(file.path, i, wrong[i], entries[i])
            notes.append(f"{problem}; the log decides")
        if len(contradicted) > _MOST_NAMED:
            notes.append(f"{file.path}: {len(contradicted) - _MOST_NAMED} more entries that the log contradicts")
        has_marker, at = same_marker(out["last_offset"], out["producer_id"], entries)
        _check_no_marker_lost(plan, file, scans, entries, aborted)
        _check_no_end_lost(plan, file, scans, rows, entries, undecidable_rows(rows, end, denied_batches))
        index_only.append(entries[right & ~has_marker])
        same = right & has_marker
        for name in ("first_offset", "last_stable_offset"):
            out[name][at[same]] = entries[name][same]
    return out, by_marker(np.concatenate(index_only))


def _check_no_marker_lost(
    plan: PartitionPlan, file: SideFile, scans: Sequence[SegmentScan], entries: np.ndarray, aborted: np.ndarray
) -> None:
    """Raise LogFormatError if an index entry and the markers disagree about the beginning of a transaction, and the log
    does not show which is right.

    By the log's markers a transaction may begin before the offset in its index entry only if the marker before it is
    lost: in a hole, or because a broker removed it too early (KAFKA-14055). If the log holds every offset, no marker is
    lost, and the index is wrong. Otherwise committed records of this producer before the index entry may be at stake.
    (An entry that begins at its marker belongs to an ABORT that ended no transaction. Brokers before KAFKA-10702 write
    such entries.) Batches below the log start do not count: a broker that recovers the log reads only the end of a
    transaction that began there.
    """
    if not len(aborted) or _is_dense(scans):
        return
    has_marker, at = same_marker(aborted["last_offset"], aborted["producer_id"], entries)
    first = aborted["first_offset"][np.minimum(at, len(aborted) - 1)]
    lower_bounds = np.maximum(first, plan.input.log_start_offset)
    doubtful = (
        has_marker & (entries["first_offset"] > lower_bounds) & (entries["first_offset"] <= entries["last_offset"])
    )
    if not doubtful.any():
        return
    rows = np.concatenate([s.transactional for s in scans])
    data = rows[~rows["control"] & (rows["records_count"] != 0)]
    data = data[np.lexsort((data["last_offset"], data["producer_id"]))]
    for i in np.flatnonzero(doubtful):
        producer = entries["producer_id"][i]
        begin, end = (int(np.searchsorted(data["producer_id"], producer, side)) for side in ("left", "right"))
        begin += int(np.searchsorted(data["last_offset"][begin:end], lower_bounds[i]))
        if begin == end or data["base_offset"][begin] >= entries["first_offset"][i]:
            continue
        raise LogFormatError(
            "transaction",
            file.path,
            int(i) * TXN_INDEX_ENTRY.itemsize,
            f"an aborted transaction of producer {int(entries['producer_id'][i])} from offset {int(first[i])} on, "
            "by the markers in the log",
            f"one from offset {int(entries['first_offset'][i])} on",
            hint="a marker before it is missing, or this index is wrong: bring missing files back; if it is the "
            "index, delete it, and the markers alone decide",
        )


def _check_no_end_lost(
    plan: PartitionPlan,
    file: SideFile,
    scans: Sequence[SegmentScan],
    rows: np.ndarray,
    entries: np.ndarray,
    matters: np.ndarray,
) -> None:
    """Raise LogFormatError if an entry names a missing ABORT marker of a transaction whose data is left. The offset of
    that marker is after the end of a segment. By the markers in the log (in `rows`, TXN_BATCH[n]) that data would
    belong to a later transaction, or be committed. A cleaner that removes a marker removes its entry too.

    matters: bool[n], the batches at stake (`undecidable_rows`).
    """
    bases, ends = np.array([(s.first_offset, s.last_offset + 1) for s in scans], np.int64).T
    at = np.searchsorted(bases, entries["last_offset"], "right") - 1
    behind = np.flatnonzero((at >= 0) & (at + 1 < len(scans)) & (entries["last_offset"] >= ends[at]))
    left = ~rows["control"] & (rows["records_count"] != 0) & matters
    left &= rows["last_offset"] >= plan.input.log_start_offset
    data, ended = rows[left], markers_behind(rows)[left]
    last = data_before(data, entries["producer_id"][behind], entries["last_offset"][behind])
    behind, last = behind[last >= 0], last[last >= 0]
    lost = ended[last] > entries["last_offset"][behind]
    lost &= data["base_offset"][last] >= entries["first_offset"][behind]
    for i, row in zip(behind[lost], last[lost], strict=True):
        raise LogFormatError(
            "transaction",
            file.path,
            int(i) * TXN_INDEX_ENTRY.itemsize,
            f"the ABORT marker of producer {int(entries['producer_id'][i])} at offset "
            f"{int(entries['last_offset'][i])}, after its data at {int(data['base_offset'][row])}",
            "no batch there",
            hint="the end of a segment is missing, or this index is wrong: bring back what is missing; if it "
            "is the index, delete it, and the markers alone decide",
        )


def _is_dense(scans: Sequence[SegmentScan]) -> bool:
    """Return whether every offset of the log is in a record."""
    ends = [max(s.first_offset, s.last_offset + 1) for s in scans]
    joined = all(end == after.first_offset for end, after in zip(ends, scans[1:], strict=False))
    return joined and all(s.thinned_offset < 0 for s in scans)
