"""What markers and transaction indexes are trusted with: an end that may lie in a gap, an index that the log denies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from logformat.errors import LogFormatError
from logformat.layout import TXN_INDEX_ENTRY
from logformat.side_files import transaction_index
from udfs.compact.place_segments import read_side_file
from udfs.compact.plan import Gap, PartitionPlan
from udfs.compact.scan_segment import SegmentScan
from udfs.compact.transactions import (
    TXN_BATCH,
    abort_markers,
    contradictions,
    data_before,
    markers_behind,
    same_marker,
    undecided,
)
from udfs.problem import Problem, SetAside
from udfs.segments import SideFile

_MOST_ENTRIES_NAMED: Final = 3  # of one `.txnindex`, in notes


def check_ends_known(plan: PartitionPlan, scans: Sequence[SegmentScan], gaps: Sequence[Gap], end: int) -> None:
    """That no transaction's end is lost in a gap: whether its data counts nobody could say then.

    One that no marker ends is open, and nothing from its data on is below `end`; unless a snapshot behind the gap knows
    that it ended.
    """
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


def with_index_entries(
    plan: PartitionPlan, scans: Sequence[SegmentScan], aborted: np.ndarray, log_end: int, end: int, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """What the new `.txnindex` files say of the aborted transactions (ENTRY[m], by replay): the archive's own entry
    where its index has one, whose first offset and last stable offset are those of the time before any cleaning.
    Nothing is decided by it. An entry that the log contradicts is passed over, with a note.

    Also the entries of transactions of which nothing but the ABORT marker is left: a broker leaves them in the
    segments that it does not clean. end: what lies below is cleaned.
    """
    out = aborted.copy()
    rows = np.concatenate([s.transactional for s in scans])
    markers, before = abort_markers(rows)
    index_only = [out[:0]]
    for file in plan.txn_indexes:
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
        for i in said[:_MOST_ENTRIES_NAMED]:
            problem = transaction_index.wrong_entry(file.path, i, wrong[i], entries[i])
            notes.append(f"{problem}; what the log says is taken")
        if len(said) > _MOST_ENTRIES_NAMED:
            notes.append(f"{file.path}: {len(said) - _MOST_ENTRIES_NAMED} more entries that the log contradicts")
        known, at = same_marker(out["last_offset"], out["producer_id"], entries)
        _check_no_marker_lost(plan, file, scans, entries, aborted, known, at)
        _check_no_end_lost(plan, file, scans, rows, entries, end)
        index_only.append(entries[right & ~known])
        same = right & known
        for name in ("first_offset", "last_stable_offset"):
            out[name][at[same]] = entries[name][same]
    return out, _by_marker(np.concatenate(index_only))


def _check_no_marker_lost(
    plan: PartitionPlan,
    file: SideFile,
    scans: Sequence[SegmentScan],
    entries: np.ndarray,
    aborted: np.ndarray,
    known: np.ndarray,
    at: np.ndarray,
) -> None:
    """By the log's markers a transaction may begin before the offset that its index entry says, only if the marker of
    the one before is lost: in a hole, or by a broker that took it too early (KAFKA-14055). Where every offset is there
    none is lost, and the index is wrong; else it cannot be told which is, and committed records may be at stake: those
    of this producer before the index entry. (One that begins at its marker is of an ABORT that ended nothing, as
    brokers of before KAFKA-10702 note it.) Not so below the log start: of a transaction that began there, a broker that
    recovers the log reads no more than the end.

    known, at: which of `entries` are in `aborted`, and where.
    """
    if not len(aborted) or _is_dense(scans):
        return
    first = aborted["first_offset"][np.minimum(at, len(aborted) - 1)]
    at_stake = np.maximum(first, plan.log_start_offset)
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
                f"{int(entries['first_offset'][i])}",
                hint="a marker before it is missing, or this index is wrong: bring missing files back; if it is the "
                "index, take it away, and the markers alone decide",
            )
        )


def _check_no_end_lost(
    plan: PartitionPlan,
    file: SideFile,
    scans: Sequence[SegmentScan],
    rows: np.ndarray,
    entries: np.ndarray,
    end: int,
) -> None:
    """That no entry names an ABORT marker behind the end of a segment, where nothing is now, if it tells what became of
    data: by the markers in the log (of `rows`, TXN_BATCH[n]) that data would be a later transaction's, or committed. A
    cleaner takes a marker's entry with it.
    """
    bases, ends = np.array([(s.base_offset, s.last_offset + 1) for s in scans], np.int64).T
    at = np.searchsorted(bases, entries["last_offset"], "right") - 1
    behind = np.flatnonzero((at >= 0) & (at + 1 < len(scans)) & (entries["last_offset"] >= ends[at]))
    left = ~rows["control"] & (rows["records_count"] != 0) & (rows["base_offset"] < end)
    left &= rows["last_offset"] >= plan.log_start_offset
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
                f"{int(entries['last_offset'][i])}, behind its data at {int(data['base_offset'][row])}",
                "no batch there",
                hint="the end of a segment is missing, or this index is wrong: bring back what is missing; if it "
                "is the index, take it away, and the markers alone decide",
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
