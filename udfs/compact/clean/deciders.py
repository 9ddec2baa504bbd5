"""Deciders select the records of a run of batches that may be retained; and the files of keys from which a later run
decides.

KeyTable     the last record of each key, on the way backwards through the log, in bounded memory
Winners      the record of the highest version, if `compaction.strategy` is timestamp or header. From the end on the
             first record of a key is its last one, but not that of the highest version. So this strategy reads the
             cleanable range twice, in the stages of a large partition, and the table takes 32 bytes a key
ErasedKeys   all records except those of erased keys
Survivors    records by their offsets, in a second pass over the log, once every key's last record is known: in the
             rewrite of a large partition
PendingKeys  a file of the keys that a run by yield cleaned first, for the older segments that the run left: a later
             run drops what these keys supersede there, without reading the newer segments again. A file holds exact
             hashes, 16 bytes a key: SLOT[n]. The manifest row of the segment with the first of these offsets names
                          the file until all earlier segments are deduplicated against the file (`with_pending`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer, read_exactly
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.clean_batches import Decider
from lastkey.udfs.compact.clean.key_kernels import (
    KEY_OFFSET,
    SLOT,
    enter_keys,
    enter_offsets,
    mark_entered,
    mark_last_offsets,
    mark_others,
    mark_survivors,
    rehash,
)
from lastkey.udfs.compact.clean.winner_kernels import (
    NO_VERSION,
    WINNER,
    enter_winners,
    versions_by_header,
    versions_by_time,
)
from lastkey.udfs.compact.cleaner import Rules, key_candidates
from lastkey.udfs.compact.plan import Erasing, PartitionPlan
from lastkey.udfs.compact.scan.scan_segment import chunks_again
from lastkey.udfs.compact.verdicts import ALL_GO, ALL_STAY, UNKNOWN
from lastkey.udfs.erased_keys import KEY_ID_BYTES, read_erased
from lastkey.udfs.segments import ScannedChunk, SegmentScan
from lastkey.udfs.storage import make_folder, make_private, open_root, opened, put_file
from lastkey.udfs.yields.key_filter import hash_key_id


class TooManyKeys(Exception):
    """A table would outgrow the task's memory: the keys must be divided."""


class _GrowingTable:
    """A table that grows as keys come; `max_bytes` bounds its memory (with the old slots while it grows)."""

    DTYPE: ClassVar[np.dtype[np.void]]
    LEAST_SLOTS: ClassVar[int]

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.slots = np.zeros(self.LEAST_SLOTS, self.DTYPE)
        self.used = 0

    def _grow(self) -> bool:
        larger = grown(self.slots, self.max_bytes)
        self.slots = self.slots if larger is None else larger
        return larger is not None

    def _take(self, kernel: Any, run: Run, given: Any, out: np.ndarray, left: int) -> int:
        """Take the first `left` records of a run, from last to first, and enlarge the table as needed.

        Return how many records are left: 0, unless the table is full and may not grow. Then clear() makes room.
        """
        while left:
            self.used, left = kernel(run, given, self.slots, self.used, out, left)
            if left and not self._grow():
                break
        return left

    def _enter_all(self, kernel: Any, n: int, *columns: np.ndarray) -> None:
        """Enter n rows of columns. Raises TooManyKeys."""
        done = 0
        while done < n:
            self.used, done = kernel(*columns, self.slots, self.used, done)
            if done < n and not self._grow():
                raise TooManyKeys


class KeyTable(_GrowingTable):
    """A table of keys."""

    DTYPE, LEAST_SLOTS = SLOT, 1 << 16

    def mark(self, run: Run, first_dirty_offset: int, may_stay: np.ndarray, left: int) -> int:
        """Mark the last records of each key (`mark_last_offsets`) among the first `left` of a run; see `_take`."""
        return self._take(mark_last_offsets, run, first_dirty_offset, may_stay, left)

    def enter(self, keys: np.ndarray) -> None:
        """Enter SLOT[n]. Raises TooManyKeys."""
        self._enter_all(enter_keys, len(keys), keys)

    def keys(self) -> np.ndarray:
        """Return the keys that it holds: SLOT[used]."""
        held: np.ndarray = self.slots[(self.slots["low"] != 0) | (self.slots["high"] != 0)]
        return held


class LastOffsets(_GrowingTable):
    """A table of keys and their last offsets, for records in any order."""

    DTYPE, LEAST_SLOTS = KEY_OFFSET, 1 << 16

    def enter(self, keys: np.ndarray, offsets: np.ndarray) -> None:
        """Enter SLOT[n] with int64[n]. Raises TooManyKeys."""
        self._enter_all(enter_offsets, len(keys), keys, offsets)

    def are_last(self, keys: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return bool[n]: whether each of SLOT[n] with int64[n] is the last one of its key."""
        out = np.empty(len(keys), np.bool_)
        mark_entered(keys, offsets, self.slots, out)
        return out


def last_offset_decider(table: KeyTable, first_dirty_offset: int) -> Decider:
    """Return a function that marks the last records of a run, by a table of the keys after it. It raises TooManyKeys.

    first_dirty_offset: records below it are looked up only.
    """

    def mark_last(run: Run, may_stay: np.ndarray) -> None:
        if table.mark(run, first_dirty_offset, may_stay, len(run.spans)):
            raise TooManyKeys

    return mark_last


def grown(slots: np.ndarray, max_bytes: int) -> np.ndarray | None:
    """Return a table with twice the slots and the same keys; None if both together need more than max_bytes."""
    size = 2 * len(slots)
    if (size + len(slots)) * slots.itemsize > max_bytes:
        return None
    larger = np.zeros(size, slots.dtype)
    rehash(slots, larger)
    return larger


_KEYS: Final = ".keys"


@dataclass(frozen=True)
class PendingKeys:
    """Keys of the records in a range of offsets."""

    first: int
    until: int
    path: str  # below the store
    n: int
    checksum: int  # CRC-32C of what the hashes depend on, and the file


def write_keys(plan: PartitionPlan, first: int, until: int, keys: np.ndarray) -> PendingKeys:
    """Write SLOT[n], and read it back."""
    store = make_folder(open_root(plan.run.store_uri), plan.run.folder)
    path, raw = f"{plan.run.folder}/{first:020}{_KEYS}", keys.view(np.uint8)
    make_private(store, path)
    put_file(store, path, raw.data)
    written = PendingKeys(first, until, path, len(keys), crc32c_extend(_seed(plan), raw))
    read_keys(plan, written)
    return written


def read_keys(plan: PartitionPlan, pending: PendingKeys) -> np.ndarray:
    """Return SLOT[n]. Raises LogFormatError if they cannot be read, or are not the written ones."""
    size = pending.n * SLOT.itemsize
    with opened(open_root(plan.run.store_uri), pending.path) as file:
        if file.size() != size:
            raise LogFormatError("readback", pending.path, 0, f"{size} bytes, as written", f"{file.size()}")
        raw = np.empty(size, np.uint8)
        read_exactly(file, pending.path, 0, raw)
    found = crc32c_extend(_seed(plan), raw)
    if found != pending.checksum:
        expected = f"CRC-32C {pending.checksum:#010x}, as written"
        raise LogFormatError("readback", pending.path, 0, expected, f"{found:#010x}")
    return raw.view(SLOT)


def _seed(plan: PartitionPlan) -> int:
    """Return a CRC-32C to begin with, which differs for hashes under another key."""
    return crc32c_extend(0, np.frombuffer(hash_key_id(plan.run.secret), np.uint8))


def list_pending_keys(rows: Iterable[Segment | None]) -> list[PendingKeys]:
    """Return the key files that rows of a manifest name, by offset."""
    told = [PendingKeys(*one) for row in rows if row is not None for one in json.loads(row.key_files or "[]")]
    return sorted(told, key=lambda one: one.first)


def known_from(pending: Sequence[PendingKeys], end: int) -> int:
    """Return the lowest offset from which key files, by offset, hold all keys up to `end`."""
    for files in reversed(pending):
        if files.until != end:
            break
        end = files.first
    return end


def with_pending(rows: Sequence[Segment], pending: Sequence[PendingKeys]) -> list[Segment]:
    """Return a manifest's rows, by offset, with the key files that are still needed: those against which an earlier
    segment is not deduplicated yet.
    """
    out, least = [], MAX_OFFSET  # smallest `deduplicated_through` so far
    for row in rows:
        mine = [one for one in pending if row.base_offset <= one.first < row.next_offset]
        needed = [astuple(one) for one in mine if least <= one.first]
        out.append(replace(row, key_files=json.dumps(needed) if needed else None))
        least = min(least, row.deduplicated_through) if row.deduplicated_through >= 0 else least
    return out


class Winners(_GrowingTable):
    """A table of the winner of each key."""

    DTYPE, LEAST_SLOTS = WINNER, 1 << 15

    def enter(self, run: Run, versions: np.ndarray, wins: np.ndarray, left: int) -> int:
        """Enter the first `left` records of a run; mark in `wins` those that win (`enter_winners`); see `_take`."""
        return self._take(enter_winners, run, versions, wins, left)


def read_versions(run: Run, plan: PartitionPlan) -> np.ndarray:
    """Return int64[len(run.spans)]: the version of each record of the wanted batches. NO_VERSION: no version, or no
    key. Records below the log start get less, so that they never supersede readable ones.
    """
    versions, settings = np.full(len(run.spans), NO_VERSION, np.int64), plan.policy.settings
    if settings.compaction_strategy == "timestamp":
        versions_by_time(run, versions)
    else:
        name = np.frombuffer(settings.compaction_strategy_header.encode(), np.uint8)
        versions_by_header(run, name, versions)
    versions[run.spans["null_key"]] = NO_VERSION
    if len(run.batches) and run.batches["base_offset"][0] < plan.input.log_start_offset:
        versions[_offsets(run) < plan.input.log_start_offset] = NO_VERSION - 1
    return versions


def _offsets(run: Run) -> np.ndarray:
    """Return int64[len(run.spans)]: the offset of each record."""
    offsets: np.ndarray = np.repeat(run.bodies["base_offset"], run.bodies["n_records"]) + run.spans["offset_delta"]
    return offsets


def key_runs(
    plan: PartitionPlan, source: SegmentScan, chunks: Sequence[ScannedChunk], rules: Rules, buffer: ChunkBuffer
) -> Iterator[Run]:
    """Yield runs with the keys of some consecutive chunks of a source, backwards; wanted are the batches whose records
    may be the last of their key.
    """
    loader = plan.loader(plan.run.secret, keys_only=plan.policy.settings.compaction_strategy != "header")
    with source.open_log() as file:
        for chunk in chunks_again(file, source.path, chunks[::-1], buffer):
            yield from loader.runs(chunk, key_candidates(chunk.batches, rules), backwards=True)


def check_versions(plan: PartitionPlan, highest: int, any_keys: bool) -> None:
    """Raise LogFormatError if no record of a partition has the version header: compaction would silently decide by
    offset.
    """
    settings = plan.policy.settings
    if settings.compaction_strategy == "header" and any_keys and highest <= NO_VERSION:
        expected = f"a header {settings.compaction_strategy_header!r} of eight bytes, not negative, in some record"
        hint = "compaction.strategy.header names it: without one, offsets alone would decide"
        raise LogFormatError("version", plan.name, NO_POSITION, expected, "none", hint=hint)


class ErasedKeys:
    """Table of the keys whose records are removed from a partition, each below an offset."""

    def __init__(self, plan: PartitionPlan, erasing: Erasing) -> None:
        store = open_root(plan.run.store_uri)
        files = [(read_erased(store, path), until) for path, until in erasing.files]
        files += [(erasing.digests, MAX_OFFSET)] if erasing.digests else []
        parts = [(np.frombuffer(data, SLOT, offset=KEY_ID_BYTES), until) for data, until in files]
        n = sum(len(digests) for digests, _ in parts)
        self._table, used = np.zeros(1 << max((2 * n).bit_length(), 4), KEY_OFFSET), 0
        for digests, until in parts:
            used, _ = enter_offsets(digests, np.full(len(digests), until, np.int64), self._table, used, 0)
        self._removed = [np.empty((0, 2), np.int64)]  # first and last of ranges of offsets

    def mark(self, run: Run, stays: np.ndarray) -> None:
        """Mark the records that stay, in stays: bool[len(run.spans)]."""
        mark_others(run, self._table, stays)
        if not stays.all():
            removed = _offsets(run)[~stays]
            self._removed.append(_joined(np.stack([removed, removed], axis=1)))

    def ranges(self) -> np.ndarray:
        """Return the offsets of the removed records, as rising ranges: int64[n, 2], first and last of each."""
        return _joined(np.concatenate(self._removed))


def _joined(ranges: np.ndarray) -> np.ndarray:
    """Return ranges in order, those that touch as one."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    begins = np.ones(len(ranges), np.bool_)
    begins[1:] = ranges[1:, 0] != ranges[:-1, 1] + 1
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(ranges)) - 1 if len(at) else at
    return np.stack([ranges[at, 0], ranges[ends, 1]], axis=1)


class Survivors:
    """The decider of a rewrite: it retains the records with these offsets, and counts the records that it found."""

    def __init__(self, plan: PartitionPlan, offsets: np.ndarray, to_read: np.ndarray) -> None:
        """offsets: int64[n], ascending; to_read: int64[m], as of `batches_to_read`."""
        self.offsets, self.met = offsets, 0
        self._plan, self._to_read = plan, to_read

    def mark(self, run: Run, may_stay: np.ndarray) -> None:
        """Mark the records of a run that stay."""
        if len(run.bodies):
            at = int(np.searchsorted(self.offsets, run.bodies["base_offset"].min()))
            self.met += mark_survivors(run, self.offsets, at, may_stay)

    def verdicts(self, batches: np.ndarray, decided: np.ndarray, rewritten: np.ndarray) -> np.ndarray:
        """Return int8[n], the verdicts on BATCH[n] that are certain before their records are read.

        decided: bool[n], batches whose records all go, or all stay, in any case; rewritten: bool[n], batches that are
        read if all their records stay.
        """
        possible = ~decided & (batches["magic"] == 2) & (batches["attributes"] & CONTROL_MASK == 0)
        possible &= (batches["records_count"] > 0) & ~np.isin(batches["last_offset"], self._to_read)
        first = np.searchsorted(self.offsets, batches["base_offset"])
        n = np.searchsorted(self.offsets, batches["last_offset"], side="right") - first
        all_stay = possible & ~rewritten & (n == batches["records_count"])
        self.met += int(n[all_stay].sum())
        verdicts = np.full(len(batches), UNKNOWN, np.int8)
        verdicts[all_stay], verdicts[possible & (n == 0)] = ALL_STAY, ALL_GO
        return verdicts

    def check(self) -> None:
        """Raise LogFormatError kind "readback" unless all records that stay were met."""
        if self.met != len(self.offsets):
            raise incomplete(self._plan, f"{self.met} of {len(self.offsets)} records")


def batches_to_read(run: Run) -> np.ndarray:
    """Return int64[m], the last offsets of the batches with a tombstone or a record without key: the rules may decide
    about these by more than whether a later record of the key exists.
    """
    rows = run.spans["null_key"] | run.spans["null_value"]
    if not rows.any():
        return np.zeros(0, np.int64)
    batch_of = np.repeat(np.arange(len(run.batches)), run.bodies["n_records"])
    last: np.ndarray = run.batches["last_offset"][np.unique(batch_of[rows])]
    return last


def incomplete(plan: PartitionPlan, found: str) -> LogFormatError:
    """Return the error of a rewrite that did not find all records to write."""
    return LogFormatError(
        "readback", plan.name, NO_POSITION, "every record that stays, and a decision about each", found
    )
