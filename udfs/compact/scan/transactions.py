"""The transactional batches and markers that may go (KAFKA.md, "Transactions" and "Markers").

Input is only the batches that matter here: data batches of transactions, and control batches, of the whole range that
is cleaned, in order. Difference from Kafka: the markers in the log alone tell which transactions were aborted, and
where each begins. A `.txnindex` has no checksum, and decides nothing: a lost one does not turn aborted data into
committed data, nor a wrong field in it committed data into aborted. COMPACTION.md says why the markers are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK
from lastkey.udfs.compact.scan.transaction_kernels import NONE, replay

# The facts that a scan keeps about a transactional or control batch.
TXN_BATCH = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("producer_id", "i8"),
        ("max_timestamp", "i8"),
        ("records_count", "i4"),
        ("producer_epoch", "i2"),
        ("control", "?"),
        ("control_type", "i1"),  # 0 abort, 1 commit, -1 not control or empty
    ],
    align=True,
)
# A data batch of a transaction, and the marker that ends it.
# Data batches of one epoch whose marker is lost: a batch of another epoch comes before the next marker.
UNDECIDED: Final = np.dtype(
    [("producer_id", "i8"), ("base_offset", "i8"), ("epoch", "i2"), ("next_offset", "i8"), ("next_epoch", "i2")]
)
OPEN_BATCH: Final = np.dtype([("producer_id", "i8"), ("first_offset", "i8"), ("marker", "i8")])


def transactional_batches(batches: np.ndarray) -> np.ndarray:
    """Return the rows of BATCH[n] that matter to transactions, as TXN_BATCH[m]."""
    attributes = batches["attributes"]
    rows = batches[(attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) != 0]
    out = np.empty(len(rows), TXN_BATCH)
    for name in TXN_BATCH.names or ():
        if name != "control":
            out[name] = rows[name]
    out["control"] = (rows["attributes"] & CONTROL_MASK) != 0
    return out


def discardable_batches(rows: np.ndarray, aborted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches that may go, of TXN_BATCH[n] in log order, given the aborted transactions, ENTRY[m].

    Returns (discardable: bool[n]; kept_abort: int64[n], for an ABORT marker that must stay its row of `aborted`, else
    -1).
    """
    discardable = np.zeros(len(rows), np.bool_)
    kept_abort = np.full(len(rows), NONE, np.int64)
    if len(rows):
        order = np.argsort(aborted["first_offset"], kind="stable")
        known, dense = np.unique(np.concatenate([rows["producer_id"], aborted["producer_id"]]), return_inverse=True)
        replay(
            rows,
            dense[: len(rows)],
            aborted["first_offset"][order],
            dense[len(rows) :][order],
            np.full(len(known), NONE, np.int64),
            np.zeros(len(known), np.bool_),
            np.zeros(len(known), np.bool_),
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
    only behind a marker. That marker ends the last of them. It tells nothing about those before, as far as they hold
    records. Markers often have a higher epoch than the data before them, so they show nothing.
    """
    data = np.flatnonzero(~rows["control"] & (rows["producer_id"] >= 0) & (rows["last_offset"] >= log_start_offset))
    behind = markers_behind(rows)[data]
    order = np.lexsort((data, behind, rows["producer_id"][data]))
    data, behind = data[order], behind[order]
    producer, epoch = rows["producer_id"][data], rows["producer_epoch"][data]
    begins = np.ones(len(data), np.bool_)  # whether a batch is the first one up to its marker
    begins[1:] = (producer[1:] != producer[:-1]) | (behind[1:] != behind[:-1])
    changes = ~begins
    changes[1:] &= epoch[1:] != epoch[:-1]
    shows = np.flatnonzero(changes)
    if not len(shows):
        return data[:0], data[:0], np.empty(0, UNDECIDED)
    until = np.cumsum(begins) - 1  # number of its marker
    last = np.full(until[-1] + 1, NONE)
    last[until[shows]] = shows  # of several the last one counts
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
    previous marker of each one's producer; -1: there is none.
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
    ranges first..last behind them (int64[m] each, ascending by first). The next marker of such a batch's producer lies
    above that range, and may belong to a later transaction; or there is none.
    """
    least = np.append(np.minimum.accumulate(last[::-1])[::-1], NO_END)
    behind = least[np.searchsorted(first, rows["last_offset"], "right")]
    return np.flatnonzero((markers_behind(rows) > behind) & ~rows["control"])


def markers_behind(rows: np.ndarray) -> np.ndarray:
    """Return int64[n] for TXN_BATCH[n] in log order: the offset of the next marker of each row's producer, or its own
    if it is a marker; NO_END: there is none.
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
    `borders`, as OPEN_BATCH[m], with their marker (NO_END: there is none yet).

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


def denied(entries: np.ndarray, opened: np.ndarray) -> np.ndarray:
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


def with_open(entries: np.ndarray, opened: np.ndarray, replayed: np.ndarray) -> np.ndarray:
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
    log order, that lies wholly below the offset; -1: there is none.
    """
    n, m = len(rows), len(producers)
    producer = np.concatenate([rows["producer_id"], producers])
    offset = np.concatenate([rows["last_offset"], offsets])
    order = np.lexsort((np.arange(n + m) < n, offset, producer))  # at the same offset the pair comes first
    last = np.maximum.accumulate(np.where(order < n, np.arange(n + m), NONE))
    found = np.where(last >= 0, order[last], NONE)
    found[(found >= 0) & (producer[found] != producer[order])] = NONE
    out = np.empty(n + m, np.int64)
    out[order] = found
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
    known, at = same_marker(aborted["last_offset"], aborted["producer_id"], entries)
    replayed = np.append(aborted, np.zeros(1, aborted.dtype))[at]
    begins = np.where(known, replayed["first_offset"], last)
    say(first > begins, "a first offset up to {}", begins)
    most = np.where(known, replayed["last_stable_offset"], last + 1)
    say((stable < 0) | (stable > most), "a last stable offset from 0 to {}", most)
    return dict(sorted(out.items()))


def same_marker(offset: np.ndarray, producer_id: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (bool[n]: whether each entry's marker is among those at `offset`, ascending; int64[n]: its row if it
    is).
    """
    at = np.searchsorted(offset, entries["last_offset"])
    found = np.flatnonzero(at < len(offset))
    same = np.zeros(len(entries), np.bool_)
    same[found] = offset[at[found]] == entries["last_offset"][found]
    same[found] &= producer_id[at[found]] == entries["producer_id"][found]
    return same, at


def by_marker(entries: np.ndarray) -> np.ndarray:
    """Return index entries in the order of their markers, each once."""
    _, first = np.unique(entries["last_offset"], return_index=True)
    out: np.ndarray = entries[first]
    return out
