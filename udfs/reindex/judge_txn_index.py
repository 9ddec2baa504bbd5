"""Verdicts on an archived transaction index."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.layout import TXN_INDEX_ENTRY
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.reindex.judge_index import SAME, Reason, SideBytes, Verdict
from lastkey.udfs.reindex.segment import SegmentOutcome
from lastkey.udfs.verify.transactions import check_txn_index

_TXN_SIZE: Final = TXN_INDEX_ENTRY.itemsize


def judge_txn_index(
    file: SideBytes | None,
    entries: NDArray[np.void],
    outcome: SegmentOutcome,
    previous: NDArray[np.int64],
    dense_from: int | None = None,
) -> Verdict:
    """Return the verdict on a `.txnindex`.

    entries: transaction_index.ENTRY[n], by replay of the log; previous: int64[k], for each of the segment's ABORT
    markers the offset of its producer's marker before it, -1: none; dense_from: from here on every offset is in a
    batch, None: some may have been cleaned away.

    On a compacted log the archived file can know more: transactions whose data is gone, an earlier first offset. Such a
    file is `other_entries` if three things hold: it covers every replayed entry; each other entry has its ABORT marker
    (else a reader would drop what the producer wrote later); and none begins before its producer's previous marker
    (else a reader would drop what was committed there).
    """
    rebuilt = transaction_index.write(entries)
    if file is None:
        return Verdict("missing", expected=f"{len(entries)} entries", found="no such file")
    if file.size == len(rebuilt) and file.head == rebuilt:
        return SAME
    if file.size > len(file.head) and not file.only_zeros_behind:
        return Verdict(
            "huge", len(file.head), len(file.head) // _TXN_SIZE, f"{len(entries)} entries", f"{file.size} bytes"
        )
    used = -(-len(file.head.rstrip(b"\0")) // _TXN_SIZE) * _TXN_SIZE  # no entry ends in a zero offset and begins in one
    whole = min(used, len(file.head) - len(file.head) % _TXN_SIZE)
    found = transaction_index.read(file.head[:whole], file.path)
    n = len(found)

    def at(reason: Reason, i: int, expected: str = "") -> Verdict:
        right = _txn_text(entries[i]) if i < len(entries) else "no entry"
        said = _txn_text(found[i]) if i < n else "no entry"
        return Verdict(reason, i * _TXN_SIZE, i, expected or right, said)

    problems = check_txn_index(
        file.head[:whole], file.path, entries, np.ones(len(entries), np.bool_), outcome.aborts, previous, dense_from
    )
    ended = n < len(entries) and rebuilt.startswith(file.head[:whole])
    if problems and not ended:
        outside = (found["last_offset"] < outcome.base_offset) | (found["last_offset"] > outcome.last_offset)
        first = min(problems, key=lambda problem: problem.position)
        i = first.position // _TXN_SIZE
        if outside.any() and outside.all() and (len(entries) or found["last_offset"][0] < outcome.base_offset):
            return at("foreign", 0)
        cut_off = bool(
            outside[i:].any() and outside[i:].all() and (found["last_offset"][i:] > outcome.last_offset).all()
        )
        return at("stale", i) if cut_off else at("wrong", i, first.expected)
    rest = file.size - whole
    if 0 < rest < _TXN_SIZE:
        return Verdict("torn", whole, n, f"entries of {_TXN_SIZE} bytes", f"{rest} bytes at the end")
    if rest:
        return Verdict("padded", whole, n, f"{len(rebuilt)} bytes", f"{rest} bytes of zeros at the end")
    if ended:
        return at("stale", n)
    both = min(n, len(entries))
    differs = np.flatnonzero(found[:both] != entries[:both])
    return at("other_entries", int(differs[0]) if len(differs) else both)


def _txn_text(entry: np.void) -> str:
    return (
        f"producer {entry['producer_id']}, offsets {entry['first_offset']} to {entry['last_offset']}, "
        f"last stable {entry['last_stable_offset']}"
    )
