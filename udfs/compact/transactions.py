"""Which transactional batches and markers may go (KAFKA.md, "Transactions" and "Markers").

Works on the batches that matter to it alone: data batches of transactions, and control batches, of the whole range that
is cleaned, in order. Difference from Kafka: the markers in the log alone say which transactions were aborted, and where
each begins. A `.txnindex` has no checksum, and decides nothing: a lost one does not turn aborted data into committed
data, nor a wrong field in it committed data into aborted. COMPACTION.md says why the markers are enough.
"""

from __future__ import annotations

import numpy as np

from logformat.batches.chunks import NO_END
from logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, TRANSACTIONAL_MASK
from udfs.compact.transaction_kernels import NONE, replay

# What is remembered of a batch that is transactional or control.
TXN_BATCH = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("producer_id", "i8"),
        ("records_count", "i4"),
        ("control", "?"),
        ("control_type", "i1"),  # 0 abort, 1 commit, -1 not control or empty
    ],
    align=True,
)


def transactional_batches(batches: np.ndarray) -> np.ndarray:
    """The rows of BATCH[n] that matter to transactions, as TXN_BATCH[m]."""
    attributes = batches["attributes"]
    rows = batches[(attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) != 0]
    out = np.empty(len(rows), TXN_BATCH)
    for name in ("base_offset", "last_offset", "producer_id", "records_count", "control_type"):
        out[name] = rows[name]
    out["control"] = (rows["attributes"] & CONTROL_MASK) != 0
    return out


def discardable_batches(rows: np.ndarray, aborted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What may go, of TXN_BATCH[n] in log order, given ABORTED_TXN[m].

    Returns (discardable: bool[n]; kept_abort: int64[n], the row of `aborted` that an ABORT marker which must stay
    belongs to, else -1).
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


def abort_markers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ABORT markers among TXN_BATCH[n] in log order, as TXN_BATCH[m], and of each the offset of its producer's
    marker before it, int64[m]; -1: there is none.
    """
    markers = rows[(rows["control_type"] == CONTROL_ABORT) | (rows["control_type"] == CONTROL_COMMIT)]
    order = np.lexsort((markers["base_offset"], markers["producer_id"]))
    producer, offset = markers["producer_id"][order], markers["base_offset"][order]
    same = producer[1:] == producer[:-1]
    before = np.full(len(markers), NONE, np.int64)
    before[order[1:][same]] = offset[:-1][same]
    aborts = markers["control_type"] == CONTROL_ABORT
    return markers[aborts], before[aborts]


def undecided(rows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Of TXN_BATCH[n] in log order the data batches below offset `first` whose transaction may have ended in
    first..last: rows, rising. The next marker of their producer lies above, and may be of a later transaction; or there
    is none.
    """
    return np.flatnonzero((markers_behind(rows) > last) & (rows["last_offset"] < first) & ~rows["control"])


def markers_behind(rows: np.ndarray) -> np.ndarray:
    """Of each of TXN_BATCH[n] in log order the offset of its producer's next marker, its own if it is one, int64[n];
    NO_END: there is none.
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


def data_before(rows: np.ndarray, producers: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The last of TXN_BATCH[n] in log order that its producer has wholly below an offset, for each of m pairs: rows,
    int64[m]; -1: there is none.
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
    """Row -> what is expected, of each entry of a `.txnindex`, ENTRY[n], that the log denies, rising.

    aborted: ENTRY[m] by replay of the log; markers, markers_before: of abort_markers; both by marker. What a cleaning
    took from the log is no contradiction: an entry may begin before what is left of its transaction, but not before
    the transaction of its producer that ended last; and no transaction can have been open longer than it says. An entry
    that begins at its marker is of an ABORT without data, as brokers of before KAFKA-10702 note it.
    """
    out: dict[int, str] = {}

    def say(wrong: np.ndarray, expected: str, values: np.ndarray | None = None) -> None:
        for i in np.flatnonzero(wrong):  # a loop over what is wrong
            out.setdefault(int(i), expected if values is None else expected.format(int(values[i])))

    first, last, stable = entries["first_offset"], entries["last_offset"], entries["last_stable_offset"]
    has_marker, at = same_marker(markers["base_offset"], markers["producer_id"], entries)
    say(~has_marker, "the ABORT marker of its producer at its last offset")
    rows = np.flatnonzero(has_marker)
    falls = np.zeros(len(entries), np.bool_)
    falls[rows[1:]] = last[rows[1:]] <= last[rows[:-1]]
    say(falls, "markers that rise")
    before = np.append(markers_before, NONE)[at]
    say((before >= 0) & (first <= before), "a first offset above {}, its producer's marker before", before)
    say(first < 0, "a first offset from 0 on")
    known, at = same_marker(aborted["last_offset"], aborted["producer_id"], entries)
    replayed = np.append(aborted, np.zeros(1, aborted.dtype))[at]
    begins = np.where(known, replayed["first_offset"], last)
    say(first > begins, "a first offset up to {}", begins)
    most = np.where(known, replayed["last_stable_offset"], last + 1)
    say((stable < 0) | (stable > most), "a last stable offset from 0 to {}", most)
    return dict(sorted(out.items()))


def same_marker(offset: np.ndarray, producer_id: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bool[n]: whether each entry's marker is among those at `offset`, rising; int64[n]: its row, where it is)."""
    at = np.searchsorted(offset, entries["last_offset"])
    found = np.flatnonzero(at < len(offset))
    same = np.zeros(len(entries), np.bool_)
    same[found] = offset[at[found]] == entries["last_offset"][found]
    same[found] &= producer_id[at[found]] == entries["producer_id"][found]
    return same, at
