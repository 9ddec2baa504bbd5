"""Verdicts on archived indexes and producer snapshots, compared with what their log gives.

The words are those of the report. For a `.index` or `.timeindex` they are tried in this order, and the first that fits
counts:

    missing        there is no such file
    (same)         byte for byte as rebuilt
    huge           longer than segment.index.bytes, and not because of zeros at its end
    foreign        no entry fits this log, or the first one is outside: the file belongs to another segment
    wrong          entry n misleads a look-up
    torn           the file ends inside an entry
        padded         correct entries, then zeros: the segment was active and was never closed
    stale          right as far as it goes, but ends before the log does, or continues where the log was cut off
    other_entries  right for every look-up, but not the entries that Kafka 4.3 and 4.4 make


An archived snapshot has the producer state of a live broker. It can have more than a replay of the log: producers whose
batches were removed by the log start or the cleaner, or a producer's epoch or open transaction whose marker or data was
removed. It can have less: a broker drops producers that were idle for producer.id.expiration.ms and have no open
transaction, also when it loads. Both are `other_entries`. A snapshot that contradicts a batch in the log is `wrong`.

Memory is limited to the valid size of an index (segment.index.bytes), and a little more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.layout import OFFSET_INDEX_ENTRY, SNAPSHOT_ENTRY, SNAPSHOT_HEADER, TIME_INDEX_ENTRY
from lastkey.logformat.side_files import offset_index, producer_snapshot, time_index
from lastkey.udfs.storage import Root, opened
from lastkey.udfs.verify.indexes import EntryCheck, falls

Reason = Literal["", "missing", "torn", "padded", "stale", "wrong", "foreign", "huge", "other_entries"]

_OFFSET_SIZE: Final = OFFSET_INDEX_ENTRY.itemsize
_TIME_SIZE: Final = TIME_INDEX_ENTRY.itemsize
_PART_BYTES: Final = 1 << 20  # read at once to look for zeros


@dataclass(frozen=True)
class Verdict:
    """Fault of a file; without a reason, the file is as rebuilt."""

    reason: str = ""  # a Reason; or of a file that cannot be rebuilt, the kind of problem
    position: int = -1  # byte in the file
    entry: int = -1  # number of the entry there
    expected: str = ""
    found: str = ""


SAME: Final = Verdict()


@dataclass(frozen=True)
class SideBytes:
    """Bytes of a file, as far as they can be right."""

    path: str
    size: int  # size of the whole file
    head: bytes  # its first bytes, up to the limit
    only_zeros_behind: bool  # bytes after `head` are zeros, or there are none


def read_bounded(root: Root, path: str, limit: int) -> SideBytes:
    """Read a file's first `limit` bytes, and check whether the rest is zeros. Raises kind "unreadable"."""
    with readable(path), opened(root, path) as file:
        size = int(file.size())
        head = file.read(min(size, limit))
        zeros, left = True, size - len(head)
        while zeros and left > 0:
            part = file.read(min(left, _PART_BYTES))
            zeros = bool(part) and part.count(0) == len(part)
            left -= len(part)
    return SideBytes(path, size, bytes(head), zeros)


def unparsed(error: LogFormatError, reason: str = "wrong") -> Verdict:
    """Return the verdict on a file that could not be read or parsed."""
    return Verdict(reason, error.position, -1, error.expected, error.found)


class IndexJudge:
    """Judge of a segment's two index files (None if missing), which takes the log's batches in order first."""

    def __init__(self, base_offset: int, offset_file: SideBytes | None, time_file: SideBytes | None) -> None:
        self.offset_file, self.time_file = offset_file, time_file
        self._base = base_offset
        offsets = offset_index.read(_whole(offset_file, _OFFSET_SIZE), base_offset, "")
        times = time_index.read(_whole(time_file, _TIME_SIZE), base_offset, "")
        self._entries = EntryCheck(base_offset, offsets, times)
        self._end = 0  # end of the log so far, bytes

    def feed(self, batches: NDArray[np.void], position: int, size: int) -> None:
        """Take the next batches, layout.BATCH[n]: bytes [position, position + size) of the log."""
        if self.offset_file is not None or self.time_file is not None:
            self._entries.feed(batches, position, size)
        self._end = position + size

    def offset_index(self, rebuilt: bytes, max_bytes: int) -> Verdict:
        """Return the verdict on the `.index`. rebuilt: its right bytes; max_bytes: segment.index.bytes."""
        seen, e = self._entries, self._entries.offsets
        beyond = (e["position"] >= self._end) | (e["offset"] > seen.last_offset)
        bad = falls(e["offset"]) | falls(e["position"]) | (seen.wrong_offset & seen.seen_offset)
        bad |= ~seen.seen_offset & ~beyond
        right = offset_index.read(rebuilt, self._base, "")
        entries = _Entries("offset {} at position {}", _OFFSET_SIZE, e, right, bad, beyond)
        return _judge(self.offset_file, rebuilt, max_bytes, entries)

    def time_index(self, rebuilt: bytes, max_bytes: int) -> Verdict:
        """Return the verdict on the `.timeindex`; arguments as for `offset_index`."""
        seen, e = self._entries, self._entries.times
        beyond = e["offset"] > seen.last_offset
        bad = falls(e["timestamp"]) | falls(e["offset"], may_stay=True) | (e["offset"] < self._base)
        bad |= (seen.wrong_time & ~beyond) | (~beyond & (e["timestamp"] > seen.max_timestamp))
        ends_early = not len(e) or int(e["timestamp"][-1]) < seen.max_timestamp
        right = time_index.read(rebuilt, self._base, "")
        entries = _Entries("timestamp {} at offset {}", _TIME_SIZE, e, right, bad, beyond)
        return _judge(self.time_file, rebuilt, max_bytes, entries, ends_early)


def _whole(file: SideBytes | None, entry_size: int) -> bytes:
    return b"" if file is None else file.head[: len(file.head) - len(file.head) % entry_size]


@dataclass(frozen=True)
class _Entries:
    """Entries of an index, and those of the one that is right."""

    template: str  # format of an entry as text
    size: int  # bytes of one in the file
    found: NDArray[np.void]
    right: NDArray[np.void]
    bad: NDArray[np.bool_]  # found entries that mislead
    beyond: NDArray[np.bool_]  # found entries beyond the log's end

    def text(self, n: int, entries: NDArray[np.void]) -> str:
        return self.template.format(*(int(value) for value in entries[n])) if n < len(entries) else "no entry"


def _judge(
    file: SideBytes | None, rebuilt: bytes, max_bytes: int, entries: _Entries, ends_early: bool = False
) -> Verdict:
    entry_size, bad, beyond = entries.size, entries.bad, entries.beyond
    if file is None:
        return Verdict("missing", expected=f"{len(rebuilt)} bytes", found="no such file")
    if file.size == len(rebuilt) and file.head == rebuilt:
        return SAME
    n = len(bad)
    used = n * entry_size
    whole = len(file.head) - len(file.head) % entry_size
    behind = np.frombuffer(file.head, np.uint8)[used:whole]  # whole entries after the last one that counts
    zeros_to_end = not file.head[used:].strip(b"\0") and file.only_zeros_behind
    if file.size > max_bytes and (used > max_bytes or not zeros_to_end):
        most = f"at most {max_bytes} bytes (segment.index.bytes)"
        return Verdict("huge", max_bytes, max_bytes // entry_size, most, f"{file.size} bytes")

    def at(reason: Reason, i: int) -> Verdict:
        return Verdict(reason, i * entry_size, i, entries.text(i, entries.right), entries.text(i, entries.found))

    misfits = np.flatnonzero(bad | beyond)
    if len(misfits):
        first = int(misfits[0])
        cut_off = not bad[first:].any() and bool(beyond[first:].all())  # only entries beyond the log's end follow
        if n > 1 and bad.any() and len(misfits) == n:
            return at("foreign", 0)
        if cut_off and first == 0 and rebuilt:
            return at("foreign", 0)
        return at("stale" if cut_off else "wrong", first)
    if behind.any():
        position = used + int(behind.argmax())
        entry = position // entry_size
        return Verdict("wrong", entry * entry_size, entry, "nothing after the zeros at its end", "more entries")
    if file.size % entry_size:
        entry, rest = divmod(file.size, entry_size)
        expected = f"entries of {entry_size} bytes"
        return Verdict("torn", entry * entry_size, entry, expected, f"{rest} bytes at the end")
    if file.size > used:
        return Verdict("padded", used, n, f"{len(rebuilt)} bytes", f"{file.size - used} bytes of zeros at the end")
    if ends_early or rebuilt.startswith(file.head):
        missing = entries.text(min(n, len(entries.right) - 1), entries.right) if len(entries.right) else "no entry"
        return Verdict("stale", used, n, missing, "no entry")  # the last right entry, if the file has as many others
    other = np.frombuffer(file.head, np.uint8)[: len(rebuilt)] != np.frombuffer(rebuilt, np.uint8)[: len(file.head)]
    return at("other_entries", (int(other.argmax()) if other.any() else len(rebuilt)) // entry_size)


_BATCH_FIELDS: Final = ("last_sequence", "offset_delta")


@dataclass(frozen=True)
class Known:
    """Replay of the state with which a snapshot is compared."""

    offset: int  # the snapshot's
    first_offset: int  # the replay began here
    dense: bool  # every offset since then was in a batch, and no marker was emptied: no batch was removed from the log


def judge_snapshot(file: SideBytes, state: NDArray[np.void], log: Known, expired_ms: Callable[[], int]) -> Verdict:
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
    entries = producer_snapshot.read(file.head, file.path)
    if producer_snapshot.same_entries(entries, state):
        return SAME
    order = np.argsort(entries["producer_id"], kind="stable")
    by_id = entries[order]
    which, reason = _first_wrong(by_id, state, log, expired_ms())
    position = -1
    entry = -1
    if which >= 0:
        place = np.flatnonzero(entries["producer_id"] == which)
        entry = int(place[0]) if len(place) else -1
        position = SNAPSHOT_HEADER.itemsize + entry * SNAPSHOT_ENTRY.itemsize if entry >= 0 else -1
    return Verdict(reason, position, entry, _text(state, which), _text(entries, which))


def _size(data: bytes) -> int:
    """Return the bytes of a snapshot by its count; those of a header if the file is shorter than one."""
    if len(data) < SNAPSHOT_HEADER.itemsize:
        return SNAPSHOT_HEADER.itemsize
    count = int(np.frombuffer(data, SNAPSHOT_HEADER, 1)["count"][0])
    if count < 0:
        raise LogFormatError("side_file", "", SNAPSHOT_HEADER.itemsize, "a count from 0 on", str(count))
    return SNAPSHOT_HEADER.itemsize + count * SNAPSHOT_ENTRY.itemsize


def _first_wrong(entries: NDArray[np.void], state: NDArray[np.void], log: Known, expired_ms: int) -> tuple[int, Reason]:
    """Return (producer, reason): the lowest id that is wrong, else the lowest that differs. Tables by producer_id."""
    wrong_alone = (entries["last_offset"] >= log.offset) | (entries["current_txn_first_offset"] >= log.offset)
    in_state = np.isin(entries["producer_id"], state["producer_id"])
    if log.dense:  # a producer that the log does not know must have written before the log begins
        later = (entries["last_offset"] >= log.first_offset) | (entries["current_txn_first_offset"] >= log.first_offset)
        wrong_alone |= ~in_state & later
    in_entries = np.isin(state["producer_id"], entries["producer_id"])
    lost = state[~in_entries]
    alive = (lost["current_txn_first_offset"] >= 0) | (lost["timestamp"] > expired_ms)
    archived, replayed = entries[in_state], state[in_entries]
    denied = _denies(archived, replayed, log)
    wrong = [entries[wrong_alone], lost[alive], archived[denied]]
    if any(map(len, wrong)):
        return _lowest(wrong), "wrong"
    return _lowest([entries[~in_state], lost, archived[archived != replayed]]), "other_entries"


def _lowest(tables: list[NDArray[np.void]]) -> int:
    ids = np.concatenate([table["producer_id"] for table in tables])
    return int(ids.min()) if len(ids) else -1


def _denies(archived: NDArray[np.void], replayed: NDArray[np.void], log: Known) -> NDArray[np.bool_]:
    """Return bool[n]: which archived entries contradict a batch in the log. Both tables hold the same producers."""
    newer = archived["producer_epoch"] > replayed["producer_epoch"]  # by a removed marker
    same_epoch = archived["producer_epoch"] == replayed["producer_epoch"]
    denied = ~newer & ~same_epoch
    denied |= same_epoch & (archived["last_offset"] < replayed["last_offset"])
    same_batch = same_epoch & (archived["last_offset"] == replayed["last_offset"])
    for name in _BATCH_FIELDS:
        denied |= same_batch & (archived[name] != replayed[name])
    opened, seen = archived["current_txn_first_offset"], replayed["current_txn_first_offset"]
    denied |= (seen >= 0) & ((opened < 0) | (opened > seen))
    if log.dense:
        # A producer that wrote only markers since the replay began may have its last data batch before that.
        before = (replayed["last_offset"] < 0) & (archived["last_offset"] < log.first_offset)
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
