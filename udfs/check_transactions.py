"""Transactions judged from the log alone, by the plainest rule: a batch belongs to the next marker of its producer.

Independent of `udfs.transactions`, which replays Kafka's bookkeeping batch by batch; here everything is a sort.
Source: semantics §2.5, §3.4; Kafka's ProducerAppendInfo and TransactionIndex (4.3.0).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat import transaction_index
from logformat.errors import LogFormatError
from logformat.layout import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MASK, MAX_LAST_OFFSET, TRANSACTIONAL_MASK
from logformat.transaction_index import ENTRY

OPEN: Final = -1  # no marker follows: not decided
_NEVER: Final = MAX_LAST_OFFSET + 1  # offset behind all of data

# What is remembered of a batch that is transactional or a marker.
TXN_ROW = np.dtype([("base_offset", "i8"), ("last_offset", "i8"), ("producer_id", "i8"), ("marker", "i1")])


def transaction_rows(batches: np.ndarray) -> np.ndarray:
    """TXN_ROW[m] of BATCH[n]: data batches of transactions (marker -1), and ABORT and COMMIT markers that hold one."""
    attributes = batches["attributes"]
    control = (attributes & CONTROL_MASK) != 0
    kind = batches["control_type"]
    marker = control & (batches["records_count"] > 0) & ((kind == CONTROL_ABORT) | (kind == CONTROL_COMMIT))
    rows = batches[marker | (~control & ((attributes & TRANSACTIONAL_MASK) != 0))]
    out = np.empty(len(rows), TXN_ROW)
    for name in ("base_offset", "last_offset", "producer_id"):
        out[name] = rows[name]
    out["marker"] = np.where((rows["attributes"] & CONTROL_MASK) != 0, rows["control_type"], -1)
    return out


def decisions(rows: np.ndarray) -> np.ndarray:
    """int8[m]: CONTROL_ABORT, CONTROL_COMMIT or OPEN for each of TXN_ROW[m] in log order; a marker says itself."""
    _, closing = _closing(rows)
    out: np.ndarray = np.where(closing >= 0, rows["marker"][closing], OPEN).astype(np.int8)
    return out


def aborted_data(rows: np.ndarray) -> np.ndarray:
    """int64[k], rising: base offsets of the data batches that are aborted."""
    found: np.ndarray = rows["base_offset"][(rows["marker"] < 0) & (decisions(rows) == CONTROL_ABORT)]
    return found


def completed_transactions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(transactions with data as ENTRY[k] by marker, bool[k]: aborted); last_stable_offset is what the rule of
    semantics §3.4 gives from the batches that are left.
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
    oldest = np.searchsorted(latest_end, end[done], "right")  # the oldest transaction that ends behind this marker
    other = np.append(first[by_first], _NEVER)[oldest]
    entries["last_stable_offset"] = np.minimum(other, entries["last_offset"] + 1)
    return entries, rows["marker"][which[done]] == CONTROL_ABORT


def _closing(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(dense number of each row's producer, row of the marker that it ends with; -1: none), int64[m]."""
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


def check_txn_index(
    data: bytes, path: str, completed: np.ndarray, aborted: np.ndarray, markers: np.ndarray
) -> list[LogFormatError]:
    """What is wrong with a segment's `.txnindex` (empty: there is none).

    completed, aborted: of completed_transactions, those whose marker is in this segment; markers: TXN_ROW[k], its
    markers. An entry of a transaction whose data is gone already does no harm, and so does one that begins earlier
    than what is left of it; a missing or late one would bring aborted records back to life.
    """
    try:
        entries = transaction_index.read(data, path)
    except LogFormatError as error:
        return [error]
    problems = []
    aborts = markers[markers["marker"] == CONTROL_ABORT]
    row = np.searchsorted(aborts["base_offset"], entries["last_offset"])
    row = np.minimum(row, max(len(aborts) - 1, 0))
    known = np.zeros(len(entries), np.bool_)
    if len(aborts):
        known = (aborts["base_offset"][row] == entries["last_offset"]) & (
            aborts["producer_id"][row] == entries["producer_id"]
        )
    for i in np.flatnonzero(~known):  # a loop over what is wrong, not over entries
        problems.append(_entry_problem(path, int(i), "an ABORT marker of its producer at its last offset", entries[i]))
    rising = np.diff(entries["last_offset"], prepend=-1) > 0
    for i in np.flatnonzero(~rising):
        problems.append(_entry_problem(path, int(i), "markers that rise", entries[i]))
    wanted = completed[aborted]
    at = np.searchsorted(entries["last_offset"], wanted["last_offset"])
    have = np.append(entries, np.zeros(1, ENTRY))[np.minimum(at, len(entries))]
    missing = (at >= len(entries)) | (have["last_offset"] != wanted["last_offset"])
    for i in np.flatnonzero(missing):
        expected = (
            f"an entry for the transaction of producer {wanted['producer_id'][i]} from offset "
            f"{wanted['first_offset'][i]} that was aborted at {wanted['last_offset'][i]}"
        )
        problems.append(LogFormatError("index", path, int(at[i]) * ENTRY.itemsize, expected, "none"))
    late = ~missing & (have["first_offset"] > wanted["first_offset"])
    for i in np.flatnonzero(late):
        expected = f"a first offset up to {wanted['first_offset'][i]}"
        problems.append(_entry_problem(path, int(at[i]), expected, have[i]))
    unstable = ~missing & (have["last_stable_offset"] > wanted["last_stable_offset"])
    for i in np.flatnonzero(unstable):
        expected = f"a last stable offset up to {wanted['last_stable_offset'][i]}"
        problems.append(_entry_problem(path, int(at[i]), expected, have[i]))
    return problems


def _entry_problem(path: str, i: int, expected: str, entry: np.void) -> LogFormatError:
    found = (
        f"producer {entry['producer_id']}, offsets {entry['first_offset']} to {entry['last_offset']}, "
        f"last stable {entry['last_stable_offset']}"
    )
    return LogFormatError("index", path, i * ENTRY.itemsize, expected, found)
