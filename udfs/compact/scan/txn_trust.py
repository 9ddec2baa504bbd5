"""Checks on markers and transaction indexes: an end that may lie in a gap, an index that the log contradicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import TXN_INDEX_ENTRY
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.plan import Gap, PartitionPlan
from lastkey.udfs.compact.scan.read_again import read_side_file
from lastkey.udfs.compact.scan.scan_segment import SegmentScan
from lastkey.udfs.compact.scan.transactions import (
    TXN_BATCH,
    abort_markers,
    by_marker,
    contradictions,
    data_before,
    markers_behind,
    possibly_ended_in,
    same_marker,
)
from lastkey.udfs.problem import Problem, SetAside
from lastkey.udfs.segments import SideFile

_MOST_NAMED: Final = 3  # entries of one `.txnindex`, or transactions, in notes


def check_ends_known(
    plan: PartitionPlan, scans: Sequence[SegmentScan], gaps: Sequence[Gap], end: int, is_denied: np.ndarray
) -> None:
    """Raise SetAside if a transaction's end may be lost in a gap: nobody could tell whether its records count.

    A transaction without a marker is open, and nothing from its data on lies below `end`, unless `is_denied`,
    OPEN_BATCH[m], has it: a snapshot behind the gap knows that it ended.
    """
    rows = np.concatenate([np.empty(0, TXN_BATCH), *(s.transactional for s in scans)])
    lost = sorted((gap for gap in gaps if gap.lost), key=lambda gap: gap.first)
    first, last = np.array([(gap.first, gap.last) for gap in lost], np.int64).reshape(-1, 2).T
    found = possibly_ended_in(rows, first, last) if len(rows) else np.empty(0, np.int64)
    found = found[at_stake(rows[found], end, is_denied)]
    if len(found):
        batch = rows[found[0]]
        gap = lost[int(np.searchsorted(first, batch["last_offset"], "right"))]
        raise SetAside(
            Problem(
                "gap",
                plan.name,
                NO_POSITION,
                f"the end of the transaction of producer {int(batch['producer_id'])} at offset "
                f"{int(batch['base_offset'])}",
                f"no segment with offsets {gap.first} to {gap.last}, where it may have been",
                state="gap",
                hint="nobody can say whether its records were committed: bring the missing file back, or leave "
                "this topic out",
            )
        )


def note_undecided(scans: Sequence[SegmentScan], transactions: np.ndarray, notes: list[str]) -> None:
    """Add notes for transactions whose marker is lost, UNDECIDED[n] in log order."""
    bases = np.array([s.base_offset for s in scans], np.int64)
    for one in transactions[:_MOST_NAMED]:
        path = scans[int(np.searchsorted(bases, one["base_offset"], "right")) - 1].path
        notes.append(
            f"{path}: expected a marker of producer {one['producer_id']} behind its batch of epoch {one['epoch']} at "
            f"offset {one['base_offset']}, found a batch of epoch {one['next_epoch']} at offset {one['next_offset']}; "
            "the outcome of this transaction is unknown: its records are kept and supersede nothing; look for the "
            "marker in another replica or an older copy"
        )
    if len(transactions) > _MOST_NAMED:
        notes.append(f"{len(transactions) - _MOST_NAMED} more transactions of this partition without a marker")


def at_stake(rows: np.ndarray, end: int, is_denied: np.ndarray) -> np.ndarray:
    """Return bool[n] for TXN_BATCH[n]: whether a batch lies below the end of the cleaned range, or a snapshot says that
    its producer's transaction has ended.
    """
    out: np.ndarray = (rows["base_offset"] < end) | np.isin(rows["producer_id"], is_denied["producer_id"])
    return out


def with_index_entries(
    plan: PartitionPlan,
    scans: Sequence[SegmentScan],
    aborted: np.ndarray,
    log_end: int,
    end: int,
    is_denied: np.ndarray,
    notes: list[str],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of the new `.txnindex` files for the aborted transactions (ENTRY[m], by replay). The archive's
    own entry replaces a replayed one, because its first offset and last stable offset date from before any cleaning.
    These entries decide nothing. An entry that the log contradicts is skipped, with a note.

    Also return the entries of transactions of which only the ABORT marker is left: a broker leaves them in the segments
    that it does not clean. end: all below is cleaned; is_denied: see check_ends_known.
    """
    out = aborted.copy()
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
        unread = (entries["last_offset"] >= log_end) & (file.offset >= scans[-1].base_offset)
        wrong = contradictions(entries, aborted, markers, before)
        right = np.ones(len(entries), np.bool_)
        right[list(wrong)] = False
        said = [i for i in wrong if not unread[i]]
        for i in said[:_MOST_NAMED]:
            problem = transaction_index.wrong_entry(file.path, i, wrong[i], entries[i])
            notes.append(f"{problem}; the log decides")
        if len(said) > _MOST_NAMED:
            notes.append(f"{file.path}: {len(said) - _MOST_NAMED} more entries that the log contradicts")
        known, at = same_marker(out["last_offset"], out["producer_id"], entries)
        _check_no_marker_lost(plan, file, scans, entries, aborted, known, at)
        _check_no_end_lost(plan, file, scans, rows, entries, at_stake(rows, end, is_denied))
        index_only.append(entries[right & ~known])
        same = right & known
        for name in ("first_offset", "last_stable_offset"):
            out[name][at[same]] = entries[name][same]
    return out, by_marker(np.concatenate(index_only))


def _check_no_marker_lost(
    plan: PartitionPlan,
    file: SideFile,
    scans: Sequence[SegmentScan],
    entries: np.ndarray,
    aborted: np.ndarray,
    known: np.ndarray,
    at: np.ndarray,
) -> None:
    """Raise SetAside if an index entry and the markers disagree about the beginning of a transaction, and nobody can
    tell which is right.

    By the log's markers a transaction may begin before the offset in its index entry only if the marker before it is
    lost: in a hole, or because a broker removed it too early (KAFKA-14055). If the log holds every offset, no marker is
    lost, and the index is wrong. Otherwise committed records of this producer before the index entry may be at stake.
    (An entry that begins at its marker belongs to an ABORT that ended nothing, as brokers before KAFKA-10702 note it.)
    Batches below the log start do not count: a broker that recovers the log reads only the end of a transaction that
    began there.

    known, at: whether each of `entries` is in `aborted`, and its row.
    """
    if not len(aborted) or _is_dense(scans):
        return
    first = aborted["first_offset"][np.minimum(at, len(aborted) - 1)]
    at_stake = np.maximum(first, plan.input.log_start_offset)
    doubtful = known & (entries["first_offset"] > at_stake) & (entries["first_offset"] <= entries["last_offset"])
    if not doubtful.any():
        return
    rows = np.concatenate([s.transactional for s in scans])
    data = rows[~rows["control"] & (rows["records_count"] != 0)]
    data = data[np.lexsort((data["last_offset"], data["producer_id"]))]
    for i in np.flatnonzero(doubtful):
        producer = entries["producer_id"][i]
        begin, end = (int(np.searchsorted(data["producer_id"], producer, side)) for side in ("left", "right"))
        begin += int(np.searchsorted(data["last_offset"][begin:end], at_stake[i]))
        if begin == end or data["base_offset"][begin] >= entries["first_offset"][i]:
            continue
        raise SetAside(
            Problem(
                "transaction",
                file.path,
                int(i) * TXN_INDEX_ENTRY.itemsize,
                f"an aborted transaction of producer {int(entries['producer_id'][i])} from offset {int(first[i])} on, "
                "by the markers in the log",
                f"one from offset {int(entries['first_offset'][i])} on",
                hint="a marker before it is missing, or this index is wrong: bring missing files back; if it is the "
                "index, delete it, and the markers alone decide",
            )
        )


def _check_no_end_lost(
    plan: PartitionPlan,
    file: SideFile,
    scans: Sequence[SegmentScan],
    rows: np.ndarray,
    entries: np.ndarray,
    matters: np.ndarray,
) -> None:
    """Raise SetAside if an entry names an ABORT marker behind the end of a segment, where nothing is now, and that
    marker ended a transaction whose data is left. By the markers in the log (in `rows`, TXN_BATCH[n]) that data would
    belong to a later transaction, or be committed. A cleaner that removes a marker removes its entry too.

    matters: bool[n], the batches at stake (`at_stake`).
    """
    bases, ends = np.array([(s.base_offset, s.last_offset + 1) for s in scans], np.int64).T
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
        raise SetAside(
            Problem(
                "transaction",
                file.path,
                int(i) * TXN_INDEX_ENTRY.itemsize,
                f"the ABORT marker of producer {int(entries['producer_id'][i])} at offset "
                f"{int(entries['last_offset'][i])}, after its data at {int(data['base_offset'][row])}",
                "no batch there",
                hint="the end of a segment is missing, or this index is wrong: bring back what is missing; if it "
                "is the index, delete it, and the markers alone decide",
            )
        )


def _is_dense(scans: Sequence[SegmentScan]) -> bool:
    """Return whether every offset of the log is in a record."""
    ends = [max(s.base_offset, s.last_offset + 1) for s in scans]
    joined = all(end == after.base_offset for end, after in zip(ends, scans[1:], strict=False))
    return joined and all(s.thinned_offset < 0 for s in scans)
