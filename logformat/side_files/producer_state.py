"""State of a partition's producers, derived from its batches: for snapshots, aborted transactions, last stable offsets.

`ProducerState` is a broker's state after it has read a log from its beginning, or from a snapshot on. `ProducerSummary`
is the effect of a range of the log on any state, so that segments can be read in parallel: `summarize` each, then
`apply` the summaries in order, or `merge` them in any grouping first. `ProducerState.append` is
`apply(summarize(...))`, so there is one set of rules. A summary does not decide facts that depend on the state before
it:

- A transaction that is open at the beginning. Until a producer's first marker, its own transactional batches only show
  where a transaction would begin if none was open; a first marker without such batches may close one, or none.
- The last stable offset of a marker. Any transaction that was open before the stretch is older than those in it, so it
  comes first until its producer's first marker closes it.
- The last batch. A change of epoch forgets it, and the first batch or marker may be such a change.

Source of the rules: Kafka's ProducerStateManager, ProducerStateEntry and ProducerAppendInfo (4.3.0), as at recovery.
Only a producer's last batch is kept, not its last five, because no file depends on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError, batch_error
from lastkey.logformat.layout import CONTROL_MASK, MAX_LAST_OFFSET
from lastkey.logformat.side_files import producer_kernels as kernels
from lastkey.logformat.side_files import producer_snapshot, transaction_index
from lastkey.logformat.side_files.producer_kernels import MARKER, PRODUCER_SUMMARY

_NEVER: Final = MAX_LAST_OFFSET + 1  # an offset after all data
_LAST_BATCH: Final = ["last_offset", "last_sequence", "offset_delta"]
_EMPTY: Final = np.empty(0, PRODUCER_SUMMARY)


@dataclass(frozen=True)
class ProducerSummary:
    """Effect of a stretch of a log on the producers' state."""

    producers: NDArray[np.void]  # PRODUCER_SUMMARY[p], by producer_id, each once
    markers: NDArray[np.void]  # MARKER[m], by offset: those that close a transaction, or may close one


def summarize(batches: NDArray[np.void], path: str = "") -> ProducerSummary:
    """Summarize consecutive batches: layout.BATCH[n] in offset order; legacy ones are allowed, and have no producer.

    Raises kind "transaction" for a marker that is neither COMMIT nor ABORT. Raises the same kind for a batch outside of
    a transaction while its producer has one open.
    """
    ids, row = np.unique(batches["producer_id"], return_inverse=True)
    none = int(np.searchsorted(ids, 0))  # any number below 0 is no producer
    ids, row = ids[none:], row - none
    producers = np.zeros(len(ids), PRODUCER_SUMMARY)
    producers["producer_id"] = ids
    markers = np.zeros(np.count_nonzero(batches["attributes"] & CONTROL_MASK), MARKER)
    newer, older = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    status, at, n_markers = kernels.summarize(batches, row.astype(np.int64), newer, older, producers, markers)
    if status == kernels.NOT_A_MARKER:
        found = f"control type {batches[at]['control_type']}"
        raise batch_error("transaction", path, batches[at], "a COMMIT or ABORT marker", found)
    if status == kernels.PLAIN_IN_TRANSACTION:
        summary = producers[row[at]]
        position, offset = int(batches["position"][at]), int(batches["base_offset"][at])
        raise _outside_transaction(path, position, offset, summary)
    return ProducerSummary(producers, markers[:n_markers])


def merge(earlier: ProducerSummary, later: ProducerSummary, path: str = "") -> ProducerSummary:
    """Merge the summaries of two consecutive stretches; any grouping of merges gives the same result.

    path: for messages, the file of `later`. Raises kind "transaction" as `summarize` does.
    """
    producers, markers = _combine(earlier.producers, later, False, path)
    return ProducerSummary(producers, np.concatenate([_rows(earlier.markers), _rows(markers)]).view(MARKER))


class ProducerState:
    """The state of all producers at an offset of the log; a new one, without a snapshot, knows no producers."""

    def __init__(self) -> None:
        self._producers: NDArray[np.void] = _EMPTY  # PRODUCER_SUMMARY[p], by producer_id

    @classmethod
    def from_snapshot(
        cls, entries: NDArray[np.void], now_ms: int = 0, expiration_ms: int | None = None
    ) -> ProducerState:
        """Return the state of producer_snapshot.ENTRY[n], without the producers that a broker drops when it loads it.

        A broker drops a producer that has no open transaction and has been idle for producer.id.expiration.ms (86400000
        by default) at `now_ms`. With expiration_ms None no producer is dropped.
        """
        kept = entries
        if expiration_ms is not None:
            idle_ms = now_ms - entries["timestamp"]  # wraps around as Kafka's does
            kept = entries[(entries["current_txn_first_offset"] >= 0) | (idle_ms < expiration_ms)]
        kept = kept[np.argsort(kept["producer_id"])]
        producers = np.zeros(len(kept), PRODUCER_SUMMARY)
        for name in kept.dtype.names or ():
            producers[name] = kept[name]
        no_batch = producers["last_offset"] < 0
        for name, none in zip(_LAST_BATCH, (-1, -1, 0), strict=True):
            producers[name][no_batch] = none
        producers["changes"] = True
        producers["first_marker"] = producers["plain_offset"] = -1
        state = cls()
        state._producers = producers
        return state

    def append(self, batches: NDArray[np.void], path: str = "") -> NDArray[np.void]:
        """Take the next batches (layout.BATCH[n]); return the transactions that their markers complete, as `apply`
        does.
        """
        return self.apply(summarize(batches, path), path)

    def apply(self, summary: ProducerSummary, path: str = "") -> NDArray[np.void]:
        """Take the next stretch of the log; return the transactions that it completes as MARKER[m], by marker offset.

        All fields are final. A marker without a transaction completes none. Raises kind "transaction" as `summarize`
        does, and takes no batch then.
        """
        self._producers, completed = _combine(self._producers, summary, True, path)
        return completed

    def entries(self) -> NDArray[np.void]:
        """Return the entries of a snapshot at this offset: producer_snapshot.ENTRY[p], by producer_id."""
        entries = np.empty(len(self._producers), producer_snapshot.ENTRY)
        for name in entries.dtype.names or ():
            entries[name] = self._producers[name]
        return entries

    def open_transactions(self) -> NDArray[np.int64]:
        """Return the first offsets of the open transactions, rising."""
        first: NDArray[np.int64] = self._producers["current_txn_first_offset"]
        return np.sort(first[first >= 0])

    def last_stable_offset(self, log_end: int, completed: NDArray[np.void] | None = None) -> int:
        """Return the first unstable offset, at most `log_end`; a reader of committed data sees only offsets below it.

        log_end: the log end offset, or the high watermark if it is known. With a high watermark pass `completed`, the
        MARKER[m] of all appends so far: a transaction stays unstable until its marker is below the high watermark.
        """
        unstable = self.open_transactions()[:1]
        if completed is not None:
            unstable = np.concatenate([unstable, completed["first_offset"][completed["last_offset"] >= log_end]])
        return min(log_end, int(unstable.min())) if len(unstable) else log_end


def aborted_transactions(completed: NDArray[np.void]) -> NDArray[np.void]:
    """Return the transaction index entries of completed transactions, MARKER[m], for the segment of their markers."""
    aborted = completed[completed["aborted"]]
    entries = np.zeros(len(aborted), transaction_index.ENTRY)
    for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset"):
        entries[name] = aborted[name]
    return entries


def no_producers() -> ProducerSummary:
    """Return the summary of no batches."""
    return ProducerSummary(_EMPTY, np.empty(0, MARKER))


def _combine(
    earlier: NDArray[np.void], later: ProducerSummary, complete: bool, path: str
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return PRODUCER_SUMMARY of both in order, and the markers of `later` as far as `earlier` decides them.

    complete: `earlier` is a state, not a summary, so a producer that it does not know did not exist; it may be
    overwritten.
    """
    producers = later.producers
    at = np.searchsorted(earlier["producer_id"], producers["producer_id"])
    has_earlier = np.zeros(len(producers), np.bool_)
    within = at < len(earlier)
    has_earlier[within] = earlier["producer_id"][at[within]] == producers["producer_id"][within]
    before, after = _take(earlier, at[has_earlier]), _take(producers, has_earlier)
    outside = (before["current_txn_first_offset"] >= 0) & (after["plain_offset"] >= 0)
    if outside.any():
        first = int(np.where(outside, after["plain_offset"], _NEVER).argmin())
        position, offset = int(after["plain_position"][first]), int(after["plain_offset"][first])
        raise _outside_transaction(path, position, offset, before[first])
    markers = _resolve(earlier, later, at, has_earlier, complete)
    combined = earlier if complete else _rows(earlier).copy().view(PRODUCER_SUMMARY)
    _rows(combined)[at[has_earlier]] = _rows(_compose(before, after))
    if not has_earlier.all():
        new = at[~has_earlier] + np.arange(np.count_nonzero(~has_earlier))  # rows of the producers that come in between
        old = np.ones(len(earlier) + len(new), np.bool_)
        old[new] = False
        both = np.empty(len(old), PRODUCER_SUMMARY)
        _rows(both)[old], _rows(both)[new] = _rows(combined), _rows(producers)[~has_earlier]
        combined = both
    return combined, markers


def _compose(before: NDArray[np.void], after: NDArray[np.void]) -> NDArray[np.void]:
    """Return PRODUCER_SUMMARY[p], the effect of `before` and then `after` on each producer."""
    out = np.where(after["changes"], _rows(after), _rows(before)).view(PRODUCER_SUMMARY)
    both = before["changes"] & after["changes"]
    epoch_changed = before["producer_epoch"] != after["first_epoch"]
    no_marker = both & (after["first_marker"] < 0)

    def keep(fields: list[str], where: NDArray[np.bool_]) -> None:
        for name in fields:
            out[name][where] = before[name][where]

    keep(_LAST_BATCH, both & ~after["has_data"] & ~after["epoch_changed"] & ~epoch_changed)
    keep(["coordinator_epoch"], no_marker)
    keep(["current_txn_first_offset"], no_marker & (before["current_txn_first_offset"] >= 0))
    keep(["first_epoch"], both)
    decided = both & (before["first_marker"] >= 0)
    keep(["first_marker"], decided)
    keep(["plain_offset", "plain_position"], decided | (both & (before["plain_offset"] >= 0)))
    out["has_data"] |= before["has_data"]
    out["epoch_changed"] |= before["epoch_changed"] | (both & epoch_changed)
    return out


def _resolve(
    earlier: NDArray[np.void],
    later: ProducerSummary,
    at: NDArray[np.int64],
    has_earlier: NDArray[np.bool_],
    complete: bool,
) -> NDArray[np.void]:
    """Return the markers of `later`, MARKER[<= m], completed from `earlier`, without those that close no transaction.

    at, has_earlier: the row of `earlier` for each producer of `later`, if there is one.
    """
    markers = _rows(later.markers).copy().view(MARKER)
    if not len(markers):
        return markers
    producers = later.producers
    row = np.searchsorted(producers["producer_id"], markers["producer_id"])
    is_first = producers["first_marker"][row] == markers["last_offset"]
    began = np.full(len(producers), -1, np.int64)
    began[has_earlier] = earlier["current_txn_first_offset"][at[has_earlier]]
    continues = is_first & (began[row] >= 0)
    markers["first_offset"][continues] = began[row][continues]

    # The oldest transaction from before `later` that is still open after each marker: its closing marker comes later.
    closed_at = np.full(len(earlier), _NEVER, np.int64)
    first_marker = producers["first_marker"][has_earlier]
    closed_at[at[has_earlier]] = np.where(first_marker >= 0, first_marker, _NEVER)
    is_open = earlier["current_txn_first_offset"] >= 0
    closed_at, first_offset = closed_at[is_open], earlier["current_txn_first_offset"][is_open]
    order = np.argsort(closed_at)
    oldest = np.append(np.minimum.accumulate(first_offset[order][::-1])[::-1], _NEVER)
    still_open = oldest[np.searchsorted(closed_at[order], markers["last_offset"], side="right")]
    np.minimum(markers["last_stable_offset"], still_open, out=markers["last_stable_offset"])

    decided = np.full(len(producers), complete)
    decided[has_earlier] |= earlier["first_marker"][at[has_earlier]] >= 0
    closes_nothing = is_first & (markers["first_offset"] < 0) & decided[row]
    return _take(markers, ~closes_nothing)


def _rows(table: NDArray[np.void]) -> NDArray[np.void]:
    """Return the same rows without fields: numpy moves them as bytes, 15 times as fast as field by field."""
    return table.view(f"V{table.dtype.itemsize}")


def _take(table: NDArray[np.void], rows: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.void]:
    return _rows(table)[rows].view(table.dtype)


def _outside_transaction(path: str, position: int, base_offset: int, summary: np.void) -> LogFormatError:
    """summary: PRODUCER_SUMMARY of the producer up to its open transaction."""
    began = f"producer {summary['producer_id']} began at offset {summary['current_txn_first_offset']}"
    expected, found = f"a batch of the transaction that {began}", "a batch outside of any transaction"
    return LogFormatError("transaction", path, position, expected, found, base_offset=base_offset)
