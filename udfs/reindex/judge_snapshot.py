"""Verdicts on an archived producer `.snapshot`, compared with the state that the log gives at its offset.

An archived snapshot is what a live broker knew. It can know more than a replay of the log: producers whose batches the
log start or the cleaner removed, or a producer's epoch or open transaction whose marker or data is gone. It can know
less: a broker forgets producers that were idle for producer.id.expiration.ms and have no open transaction, and would
forget them again when it loads. Both are `other_entries`. A snapshot that denies a batch in the log is `wrong`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from lastkey.logformat.side_files import producer_snapshot
from lastkey.udfs.reindex.judge_index import SAME, Reason, SideBytes, Verdict

_BATCH_FIELDS: Final = ("last_sequence", "offset_delta")


@dataclass(frozen=True)
class Known:
    """Replay of the state with which a snapshot is compared."""

    offset: int  # the snapshot's
    first_offset: int  # the replay began here
    dense: bool  # every offset since then was in a batch, and no marker was emptied: nothing was taken from the log


def judge_snapshot(file: SideBytes, state: NDArray[np.void], known: Known, expired_ms: Callable[[], int]) -> Verdict:
    """Return the verdict on a snapshot. state: producer_snapshot.ENTRY[n], by producer_id, as replayed.

    expired_ms: returns the time (ms) since which missing producers may have been idle, called only if entries differ.
    Raises kind "side_file" for a file that is damaged but whole: another version, a checksum that does not fit.
    """
    if file.size > len(file.head):
        if not file.only_zeros_behind:
            return Verdict("huge", len(file.head), -1, f"{len(state)} producers", f"{file.size} bytes")
        return Verdict("padded", len(file.head), -1, f"{len(state)} producers", f"{file.size} bytes, zeros at the end")
    size = _size(file.head)
    if len(file.head) < size:
        return Verdict("torn", len(file.head), -1, f"{size} bytes, as its count says", f"{len(file.head)}")
    if len(file.head) > size and not file.head[size:].strip(b"\0"):
        return Verdict("padded", size, -1, f"{size} bytes", f"{len(file.head) - size} bytes of zeros at the end")
    found = producer_snapshot.read(file.head, file.path)
    if producer_snapshot.same_entries(found, state):
        return SAME
    order = np.argsort(found["producer_id"], kind="stable")
    by_id = found[order]
    which, reason = _first_wrong(by_id, state, known, expired_ms())
    position = -1
    entry = -1
    if which >= 0:
        place = np.flatnonzero(found["producer_id"] == which)
        entry = int(place[0]) if len(place) else -1
        position = SNAPSHOT_HEADER.itemsize + entry * SNAPSHOT_ENTRY.itemsize if entry >= 0 else -1
    return Verdict(reason, position, entry, _text(state, which), _text(found, which))


def _size(data: bytes) -> int:
    """Return the bytes of a snapshot by its count; those of a header if the file is shorter than one."""
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return SNAPSHOT_HEADER.itemsize
    count = int(np.frombuffer(data, SNAPSHOT_HEADER, 1)["count"][0])
    if count < 0:
        raise LogFormatError("side_file", "", SNAPSHOT_HEADER.itemsize, "a count from 0 on", str(count))
    return SNAPSHOT_HEADER.itemsize + count * SNAPSHOT_ENTRY.itemsize


def _first_wrong(found: NDArray[np.void], state: NDArray[np.void], known: Known, expired_ms: int) -> tuple[int, Reason]:
    """Return (producer, reason): the lowest id that is wrong, else the lowest that differs. Tables by producer_id."""
    wrong_alone = (found["last_offset"] >= known.offset) | (found["current_txn_first_offset"] >= known.offset)
    in_state = np.isin(found["producer_id"], state["producer_id"])
    if known.dense:  # a producer that the log does not know must have written before the log begins
        later = (found["last_offset"] >= known.first_offset) | (found["current_txn_first_offset"] >= known.first_offset)
        wrong_alone |= ~in_state & later
    in_found = np.isin(state["producer_id"], found["producer_id"])
    lost = state[~in_found]
    alive = (lost["current_txn_first_offset"] >= 0) | (lost["timestamp"] > expired_ms)
    archived, replayed = found[in_state], state[in_found]
    denied = _denies(archived, replayed, known)
    wrong = [found[wrong_alone], lost[alive], archived[denied]]
    if any(map(len, wrong)):
        return _lowest(wrong), "wrong"
    return _lowest([found[~in_state], lost, archived[archived != replayed]]), "other_entries"


def _lowest(tables: list[NDArray[np.void]]) -> int:
    ids = np.concatenate([table["producer_id"] for table in tables])
    return int(ids.min()) if len(ids) else -1


def _denies(archived: NDArray[np.void], replayed: NDArray[np.void], known: Known) -> NDArray[np.bool_]:
    """Return bool[n]: which archived entries contradict a batch in the log. Both tables hold the same producers."""
    newer = archived["producer_epoch"] > replayed["producer_epoch"]  # by a marker that is gone
    same_epoch = archived["producer_epoch"] == replayed["producer_epoch"]
    denied = ~newer & ~same_epoch
    denied |= same_epoch & (archived["last_offset"] < replayed["last_offset"])
    same_batch = same_epoch & (archived["last_offset"] == replayed["last_offset"])
    for name in _BATCH_FIELDS:
        denied |= same_batch & (archived[name] != replayed[name])
    opened, seen = archived["current_txn_first_offset"], replayed["current_txn_first_offset"]
    denied |= (seen >= 0) & ((opened < 0) | (opened > seen))
    if known.dense:
        # A producer that wrote only markers since the replay began may have its last data batch before that.
        before = (replayed["last_offset"] < 0) & (archived["last_offset"] < known.first_offset)
        denied |= newer | ((seen < 0) & (opened >= 0))
        denied |= ~before & (archived["last_offset"] != replayed["last_offset"])
    return np.asarray(denied)


def _text(entries: NDArray[np.void], producer: int) -> str:
    rows = entries[entries["producer_id"] == producer]
    if not len(rows):
        return f"no producer {producer}"
    row = rows[0]
    return (
        f"producer {producer}: epoch {row['producer_epoch']}, last sequence {row['last_sequence']}, last offset "
        f"{row['last_offset']}, timestamp {row['timestamp']}, transaction open from {row['current_txn_first_offset']}, "
        f"coordinator epoch {row['coordinator_epoch']}"
    )
