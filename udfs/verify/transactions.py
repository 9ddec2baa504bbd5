"""Transactions judged from the log alone, by the plainest rule: a batch belongs to the next marker of its producer.

Independent of `udfs.compact.scan.transactions`, which replays Kafka's bookkeeping batch by batch; this is all sorting.
Source: KAFKA.md, "Transactions" and "Transaction index"; ProducerAppendInfo and TransactionIndex (4.3.0).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, MAX_LAST_OFFSET, TRANSACTIONAL_MASK
from lastkey.logformat.side_files import transaction_index
from lastkey.logformat.side_files.transaction_index import ENTRY

OPEN: Final = -1  # no marker follows: not decided
UNKNOWN: Final = -2  # the marker is lost
_NEVER: Final = MAX_LAST_OFFSET + 1  # offset after all data

# A batch that is transactional or a marker.
TXN_ROW = np.dtype(
    [
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("producer_id", "i8"),
        ("position", "i8"),
        ("max_timestamp", "i8"),
        ("producer_epoch", "i2"),
        ("marker", "i1"),  # ABORT or COMMIT; -1: data
        ("empty", "?"),  # without records
    ]
)

# A transaction that is open at an offset.
OPEN_AT = np.dtype([("row", "i8"), ("producer_id", "i8"), ("first_offset", "i8")])


def transaction_rows(batches: np.ndarray) -> np.ndarray:
    """Return TXN_ROW[m] of BATCH[n]: data batches of transactions (marker -1), and ABORT and COMMIT markers that hold
    one.

    A batch without a producer is in no transaction.
    """
    attributes = batches["attributes"]
    control = (attributes & CONTROL_MASK) != 0
    kind = batches["control_type"]
    marker = control & (batches["records_count"] > 0) & ((kind == CONTROL_ABORT) | (kind == CONTROL_COMMIT))
    rows = batches[(marker | (~control & ((attributes & TRANSACTIONAL_MASK) != 0))) & (batches["producer_id"] >= 0)]
    out = np.empty(len(rows), TXN_ROW)
    for name in ("base_offset", "last_offset", "producer_id", "position", "max_timestamp", "producer_epoch"):
        out[name] = rows[name]
    out["empty"] = rows["records_count"] == 0
    out["marker"] = np.where((rows["attributes"] & CONTROL_MASK) != 0, rows["control_type"], -1)
    return out


def decisions(rows: np.ndarray, log_start_offset: int = 0) -> np.ndarray:
    """Return int8[m]: CONTROL_ABORT, CONTROL_COMMIT, OPEN or UNKNOWN for each of TXN_ROW[m] in log order; a marker's
    own.
    """
    _, closing = _closing(rows)
    out: np.ndarray = np.where(closing >= 0, rows["marker"][closing], OPEN).astype(np.int8)
    lost, _ = lost_markers(rows, log_start_offset)
    out[lost] = UNKNOWN
    return out


def lost_markers(rows: np.ndarray, log_start_offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of TXN_ROW[m] in log order, int64[k], rising: the data batches whose marker is lost; and for each the
    next batch of its producer that has another epoch.

    Two batches of a producer with different epochs and no marker between them are not one transaction. Only the last
    epoch before a marker is decided by it. Batches without records do not matter, nor do those below the log start.
    """
    group, closing = _closing(rows)
    at = np.flatnonzero((rows["marker"] < 0) & (rows["last_offset"] >= log_start_offset))
    at = at[np.lexsort((at, closing[at], group[at]))]
    n = len(at)
    same = np.zeros(n + 1, np.bool_)  # batch with the producer and the next marker of the batch before
    same[1:-1] = (group[at][1:] == group[at][:-1]) & (closing[at][1:] == closing[at][:-1])
    other = np.zeros(n + 1, np.bool_)
    other[1:-1] = same[1:-1] & (rows["producer_epoch"][at][1:] != rows["producer_epoch"][at][:-1])
    stops = np.where(other | ~same, np.arange(n + 1), n)  # the first batch of another epoch, producer or marker
    following = np.minimum.accumulate(stops[::-1])[::-1][1:]
    lost = np.flatnonzero(other[following] & ~rows["empty"][at])
    by_row = np.argsort(at[lost])
    return at[lost][by_row], at[following[lost]][by_row]


def completed_transactions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (transactions with data as ENTRY[k] by marker, bool[k]: aborted).

    last_stable_offset follows the rule of KAFKA.md, "Transaction index", for the batches that are left.
    """
    group, closing = _closing(rows)
    data = rows["marker"] < 0
    key = np.where(closing >= 0, closing, len(rows) + group)  # transactions that are open count for the others
    which, at = np.unique(key[data], return_inverse=True)
    first = np.full(len(which), _NEVER, np.int64)
    np.minimum.at(first, at, rows["base_offset"][data])
    done = which < len(rows)
    end = np.full(len(which), _NEVER, np.int64)
    end[done] = rows["base_offset"][which[done]]
    by_first = np.argsort(first, kind="stable")
    latest_end = np.maximum.accumulate(end[by_first]) if len(which) else end
    entries = np.zeros(int(done.sum()), ENTRY)
    entries["producer_id"] = rows["producer_id"][which[done]]
    entries["first_offset"] = first[done]
    entries["last_offset"] = end[done]
    oldest = np.searchsorted(latest_end, end[done], "right")  # the oldest transaction that ends after this marker
    other = np.append(first[by_first], _NEVER)[oldest]
    entries["last_stable_offset"] = np.minimum(other, entries["last_offset"] + 1)
    return entries, rows["marker"][which[done]] == CONTROL_ABORT


def open_transactions(rows: np.ndarray, offsets: np.ndarray, log_start_offset: int) -> np.ndarray:
    """Return OPEN_AT[k]: for each of the offsets, int64[n], rising, the transactions of TXN_ROW[m] in log order that
    are open there. Their data begins below the offset, and their marker, if there is one, is not below it.

    Batches below the log start do not count: a broker that recovers the log reads none of them.
    """
    rows = rows[rows["last_offset"] >= log_start_offset]
    group, closing = _closing(rows)
    data = np.flatnonzero(rows["marker"] < 0)
    key = np.where(closing >= 0, closing, len(rows) + group)[data]
    which, first = np.unique(key, return_index=True)
    begins = rows[data[first]]
    end = np.append(rows["base_offset"], _NEVER)[np.minimum(which, len(rows))]
    low = np.searchsorted(offsets, begins["base_offset"], "right")
    n = np.searchsorted(offsets, end, "right") - low
    out = np.empty(int(n.sum()), OPEN_AT)
    out["row"] = np.repeat(low - np.cumsum(n) + n, n) + np.arange(len(out))
    out["producer_id"], out["first_offset"] = np.repeat(begins["producer_id"], n), np.repeat(begins["base_offset"], n)
    return out


def check_snapshot(entries: np.ndarray, path: str, opened: np.ndarray) -> None:
    """Raise kind "side_file" if a snapshot, producer_snapshot.ENTRY[n], denies a transaction that the log shows open at
    its offset, OPEN_AT[m]: a broker believes it, serves the transaction's records, and cleans by them.
    """
    order = np.argsort(entries["producer_id"])
    by_id = entries[order]
    at = np.searchsorted(by_id["producer_id"], opened["producer_id"])
    has_producer = np.append(by_id["producer_id"], -1)[at] == opened["producer_id"]
    first = np.where(has_producer, np.append(by_id["current_txn_first_offset"], -1)[at], -1)
    for i in np.flatnonzero((first < 0) | (first > opened["first_offset"]))[:1]:
        expected = (
            f"the transaction of producer {opened['producer_id'][i]}, which the log shows open from offset "
            f"{opened['first_offset'][i]} on"
        )
        found = f"one from {first[i]} on" if first[i] >= 0 else "none" if has_producer[i] else "no such producer"
        hint = "a broker believes this file, and cleans past the transaction: delete it, or run reindex --in-place"
        raise LogFormatError("side_file", path, 0, expected, found, hint=hint)


def _closing(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (dense number of each row's producer, row of the marker that ends its transaction, -1: none), int64[m]."""
    _, group = np.unique(rows["producer_id"], return_inverse=True)
    order = np.argsort(group, kind="stable")
    closing = np.full(len(rows), -1, np.int64)
    if len(rows):
        n = len(rows)
        at = np.where(rows["marker"][order] >= 0, np.arange(n), n)
        following = np.minimum.accumulate(at[::-1])[::-1]
        found = following < n
        found[found] = group[order][following[found]] == group[order][found]
        closing[order[found]] = order[following[found]]
    return group, closing


def previous_markers(markers: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64[m]: offset of the same producer's marker before each one, -1: none; TXN_ROW[p]: last marker of each
    producer).

    markers: TXN_ROW[m], markers in log order; before: TXN_ROW[], the last one of each producer before them.
    """
    both = np.concatenate([before, markers])
    order = np.argsort(both["producer_id"], kind="stable")
    producer = both["producer_id"][order]
    same = producer[1:] == producer[:-1]
    previous = np.full(len(both), -1, np.int64)
    previous[order[1:][same]] = both["base_offset"][order[:-1][same]]
    return previous[len(before) :], both[order[np.append(~same, np.ones(min(len(both), 1), np.bool_))]]


def check_txn_index(
    data: bytes,
    path: str,
    aborted: np.ndarray,
    markers: np.ndarray,
    previous: np.ndarray,
    dense_from: int | None = None,
) -> list[LogFormatError]:
    """Return the problems of a segment's `.txnindex` (empty: none).

    aborted: ENTRY[m], of completed_transactions those that were aborted by a marker in this segment; markers:
    TXN_ROW[k], its markers; previous: int64[k], of previous_markers; dense_from: every offset of the log from here on
    is in a batch, so that no batch was removed by a cleaner; None: some may have been.

    An entry of a transaction without data is harmless. So is one that begins earlier than the remaining data of its
    transaction, as long as it begins after its producer's previous marker. An even earlier one would hide committed
    records from readers; a missing or late one would bring aborted records back to life.
    """
    try:
        entries = transaction_index.read(data, path)
    except LogFormatError as error:
        return [error]
    problems: list[LogFormatError] = []

    def report(wrong: np.ndarray, expected: str, values: np.ndarray | None = None) -> None:
        for i in np.flatnonzero(wrong).tolist():  # a loop over what is wrong, not over entries
            text = expected if values is None else expected.format(int(values[i]))
            problems.append(transaction_index.wrong_entry(path, i, text, entries[i]))

    n = len(entries)
    first, last, stable = entries["first_offset"], entries["last_offset"], entries["last_stable_offset"]
    is_abort = markers["marker"] == CONTROL_ABORT
    aborts, previous = markers[is_abort], np.append(previous[is_abort], -1)
    row = np.searchsorted(aborts["base_offset"], last)
    marker = np.append(aborts, np.zeros(1, TXN_ROW))[row]
    has_marker = row < len(aborts)
    has_marker &= (marker["base_offset"] == last) & (marker["producer_id"] == entries["producer_id"])
    report(~has_marker, "an ABORT marker of its producer at its last offset")
    falls = np.zeros(n, np.bool_)
    falls[1:] = last[1:] <= last[:-1]
    report(falls, "last offsets that rise")
    before = previous[row]
    report(
        has_marker & (before >= 0) & (first <= before),
        "a first offset above {}, its producer's previous marker",
        before,
    )

    missing, at, present = _missing_entries(last, aborted, path)
    problems += missing
    left = np.zeros(n, np.bool_)  # the log holds data of the entry's transaction, which begins at, and is stable up to:
    begins, most = last.copy(), last + 1
    left[at] = True
    begins[at], most[at] = present["first_offset"], present["last_stable_offset"]
    report(first > begins, "a first offset up to {}", begins)
    report(first < 0, "a first offset of 0 or more")
    report(stable > most, "a last stable offset up to {}", most)
    report(stable < 0, "a last stable offset of 0 or more")
    if dense_from is not None:
        within = first >= dense_from
        report(left & within & (first < begins), "a first offset of {}", begins)
        report(
            has_marker & ~left & within & (first < last), f"no data in the log, or a first offset below {dense_from}"
        )
        report(left & (stable >= dense_from) & (stable < most), "a last stable offset of {}", most)
    return sorted(problems, key=lambda problem: problem.position)


def _missing_entries(
    last: np.ndarray, aborted: np.ndarray, path: str
) -> tuple[list[LogFormatError], np.ndarray, np.ndarray]:
    """Return the errors for aborted transactions, ENTRY[m], without an entry; of the others the rows of their entries,
    whose last offsets are `last`, int64[n]; and these transactions.
    """
    by_marker = np.argsort(last, kind="stable")
    place = np.searchsorted(last[by_marker], aborted["last_offset"])
    at = np.append(by_marker, len(last))[place]
    missing = np.append(last, -1)[at] != aborted["last_offset"]
    problems = []
    for i in np.flatnonzero(missing):
        expected = (
            f"an entry for the transaction of producer {aborted['producer_id'][i]} from offset "
            f"{aborted['first_offset'][i]} that was aborted at {aborted['last_offset'][i]}"
        )
        problems.append(LogFormatError("index", path, int(place[i]) * ENTRY.itemsize, expected, "none"))
    return problems, at[~missing], aborted[~missing]
