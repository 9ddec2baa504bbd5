"""Comparison of a generation with its parent: no record lost, changed or added (invariants 1 to 3).

Both sides are walked once together, in the order of offsets, a run of batches at a time. Each record of the generation
must be in its parent, unchanged. The last committed record of each key in the parent must be in the generation, unless
it is a tombstone past its horizon. The table of keys takes 35 bytes a slot. If it would outgrow the memory, the walk is
repeated for one part of the keys after the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_MASK, DELETE_HORIZON_MASK
from lastkey.udfs.verify.blocks import Block, Order, Side, blocks
from lastkey.udfs.verify.digest_kernels import LastOfKeys, enter_last
from lastkey.udfs.verify.transactions import UNKNOWN, decisions

_BYTES_PER_SLOT = 35
_LISTED = 20  # records that a row names one by one; the others are counted
_KINDS = {  # differences: kind -> expected, found
    "added": ("only records of the generation before", "a record at offset {offset} that is not in it"),
    "batch": (
        "each batch with the offsets, producer, sequence and epochs that it had",
        "others in the batch that ends at offset {offset}",
    ),
    "changed": (
        "every survivor as it was",
        "the record at offset {offset} with another timestamp, key, value or header",
    ),
    "decision": (
        "each batch committed or aborted as in the generation before",
        "the batch at offset {offset} decided the other way",
    ),
    "erased": ("no record of a key of which any was erased", "the record at offset {offset}"),
    "expired": ("every record that retention.ms and retention.bytes did not delete", "no record at offset {offset}"),
    "lost": (
        "the last committed record of every key",
        "no record at offset {offset}, which is the last of its key in the generation before",
    ),
    "old": ("no record older than retention.ms, as retention.exact says", "one at offset {offset}"),
    "returned": (
        "no record of a key whose last one is gone",
        "an older one than the one at offset {offset}, which deleted it",
    ),
    "undecided": ("every record of a transaction whose marker is lost", "no record at offset {offset}"),
    "unkeyed": ("every record without a key kept", "no record at offset {offset}"),
}


@dataclass(frozen=True)
class AllowedDrops:
    """Rules by which records may be missing from the generation."""

    now_ms: int
    legacy_horizon_ms: int  # tombstones of magic 0, 1 may go where their segment's mtime is not above it
    null_keys_stay: bool
    gone_until: int = 0  # offset: retention removed all records below it, by size or log start
    old_until: int = 0  # offset: below it retention removed records older than ...
    oldest_ms: int = 0  # ... this
    by: Order = Order()  # rule that chooses the record of a key to keep
    exact_until: int = 0  # offset: below it retention.exact removed every record older than that
    every_record: bool = False  # no other record may be removed: the topic is not compacted
    erased: int = -1  # with it: number of removed records of erased keys; -1: the run did not erase
    readable_from: int = 0  # offset: below it, the log start, remaining records are not read, removed ones not missed
    file_times: Mapping[str, int] = field(default_factory=dict)  # path -> time for records without timestamp


@dataclass
class Differences:
    """Differences between the two sides."""

    problems: list[LogFormatError] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # by kind, listed or not
    compared_records: int = 0
    erased: list[np.ndarray] = field(default_factory=list)  # uint64[n, 2]: hashes of the keys of erased records

    @property
    def unlisted(self) -> dict[str, int]:
        """Number of differences of each kind that have no row."""
        return {kind: n - _LISTED for kind, n in self.counts.items() if n > _LISTED}

    def add(self, kind: str, offsets: np.ndarray, path: str, texts: tuple[str, str] | None = None) -> None:
        """Add a row for each of the first offsets of a kind; only count the others. texts: None: those of the kind."""
        if not len(offsets):
            return
        expected, found = texts or _KINDS[kind]
        before = self.counts.get(kind, 0)
        self.counts[kind] = before + len(offsets)
        for offset in offsets[: max(_LISTED - before, 0)].tolist():
            self.problems.append(
                LogFormatError("readback", path, 0, expected, found.format(offset=offset), base_offset=offset)
            )

    def add_at(self, kind: str, offsets: np.ndarray, side: Side) -> None:
        """Add offsets as `add` does, each in the segment of `side` whose range contains it."""
        bases = np.array([s.first_offset for s in side.segments], np.int64)
        at = np.maximum(np.searchsorted(bases, offsets, "right") - 1, 0)
        for i in np.unique(at):
            path = side.segments[i].path if side.segments else ""
            self.add(kind, offsets[at == i], path)


def compare(
    parent: Side,
    child: Side,
    parent_transactions: np.ndarray,
    child_transactions: np.ndarray,
    rules: AllowedDrops,
    max_batch_bytes: int,
    memory_bytes: int,
    n_records: int,
) -> Differences:
    """Return all differences.

    *_transactions: TXN_ROW[m] of each side's whole log, after end_offset too; n_records: records of the parent, as far
    as headers show.
    """
    slots = 1 << 16
    while slots // 2 < n_records and slots * 2 * _BYTES_PER_SLOT <= memory_bytes // 2:
        slots *= 2
    secret = secrets.randbits(64), secrets.randbits(64)
    soft = max(memory_bytes // 16, 1 << 20)
    before = decisions(parent_transactions, rules.readable_from)
    after = decisions(child_transactions, rules.readable_from)
    data = parent_transactions["marker"] < 0
    aborted, undecided = (
        parent_transactions["base_offset"][data & (before == what)] for what in (CONTROL_ABORT, UNKNOWN)
    )
    parts = max(1, -(-n_records // (slots // 2)))
    while True:
        all_differences = Differences()
        _compare_transactions(parent_transactions, before, child_transactions, after, child, all_differences)
        for part in range(parts):
            table = _table(slots)
            differences = all_differences if part == 0 else Differences()
            walk = _Walk(parent, child, rules, aborted, undecided, secret, max_batch_bytes, soft, differences)
            if not walk.run(table, (part, parts)):
                break
            _report_lost(table, all_differences, child, rules)
        else:
            if rules.erased >= 0:
                _check_erased(all_differences, child, rules, secret, max_batch_bytes, soft)
            return all_differences
        parts *= 2  # there are more keys than the headers state: magic 0 and 1 do not count what they wrap


def _check_erased(
    differences: Differences, child: Side, rules: AllowedDrops, secret: tuple[int, int], max_batch_bytes: int, soft: int
) -> None:
    """Check that the number of erased records is the run's, and that no record remains of a key that lost one."""
    hashes = np.concatenate([np.empty((0, 2), np.uint64), *differences.erased])
    if len(hashes) != rules.erased:
        path = child.segments[0].path if child.segments else ""
        seen = f"{len(hashes)} from offset {{offset}} on"
        texts = f"{rules.erased} erased records, as the run says", seen
        differences.add("erased", np.zeros(1, np.int64), path, texts)
    keys = np.unique(hashes.view("u8,u8"))
    for held in blocks(child, secret, max_batch_bytes, soft):
        records = held.records
        same = np.isin(np.stack([records.low, records.high], axis=1).view("u8,u8")[:, 0], keys) & ~records.null_key
        differences.add("erased", records.offset[same], held.path)


def _begin_at(batches: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bool[n] for BATCH[n]: the batches whose base offset is one of `offsets`, int64[m], rising."""
    if not len(offsets):
        return np.zeros(len(batches), np.bool_)
    at = np.minimum(np.searchsorted(offsets, batches["base_offset"]), len(offsets) - 1)
    found: np.ndarray = offsets[at] == batches["base_offset"]
    return found


def _table(slots: int) -> LastOfKeys:
    low, high = np.zeros((2, slots), np.uint64)
    ok, gone, left = np.zeros((3, slots), np.bool_)
    offset, version, used = np.full(slots, -1, np.int64), np.zeros(slots, np.int64), np.zeros(1, np.int64)
    return LastOfKeys(low, high, offset, version, ok, gone, left, used)


def _report_lost(table: LastOfKeys, differences: Differences, child: Side, rules: AllowedDrops) -> None:
    """Report the keys that lost their last record, and the keys with only an older record. With a version strategy, a
    record with a lower version may remain.
    """
    taken = table.offset >= 0
    differences.add_at("lost", np.sort(table.offset[taken & ~table.ok]), child)
    if rules.by.strategy == "offset":
        readable = table.offset >= rules.readable_from
        differences.add_at(
            "returned", np.sort(table.offset[taken & readable & table.ok & table.gone & table.left]), child
        )


def _compare_transactions(
    parent: np.ndarray, then: np.ndarray, child: np.ndarray, now: np.ndarray, side: Side, differences: Differences
) -> None:
    """Check that aborted batches stay aborted and committed ones committed, as far as they are still there.

    then, now: `decisions` about each row.
    """
    data, now = child[child["marker"] < 0], now[child["marker"] < 0]
    before, then = parent[parent["marker"] < 0], then[parent["marker"] < 0]
    at = np.minimum(np.searchsorted(before["base_offset"], data["base_offset"]), max(len(before) - 1, 0))
    if not len(before):
        return
    wrong = (before["base_offset"][at] == data["base_offset"]) & (then[at] != now)
    differences.add_at("decision", data["base_offset"][wrong], side)


@dataclass
class _Walk:
    parent: Side
    child: Side
    rules: AllowedDrops
    aborted: np.ndarray  # int64[k], rising: base offsets
    undecided: np.ndarray  # int64[m], rising: base offsets of batches whose marker is lost
    secret: tuple[int, int]
    max_batch_bytes: int
    soft_bytes: int
    differences: Differences

    def run(self, table: LastOfKeys, part: tuple[int, int]) -> bool:
        """Walk both sides once, side by side. Return whether the table had room for the keys; else it ends early."""
        children = blocks(self.child, self.secret, self.max_batch_bytes, self.soft_bytes)
        waiting: list[Block] = []
        for block in blocks(self.parent, self.secret, self.max_batch_bytes, self.soft_bytes, self.rules.by):
            end = int(block.batches["last_offset"][-1])
            while not waiting or int(waiting[-1].batches["last_offset"][-1]) < end:
                following = next(children, None)
                if following is None:
                    break
                waiting.append(following)
            survived = np.zeros(len(block.records.offset), np.bool_)
            for held in waiting:
                self._match(block, held, end, survived)
            waiting = [w for w in (held.after(end) for held in waiting) if len(w.batches)]
            if not self._enter(block, survived, table, part):
                return False
        for held in [*waiting, *children]:
            self._report_added(held, np.ones(len(held.records.offset), np.bool_), np.ones(len(held.batches), np.bool_))
        return True

    def _match(self, block: Block, held: Block, end: int, survived: np.ndarray) -> None:
        """Compare the child's batches and records up to offset `end` with the parent's run that covers them."""
        n = int(np.searchsorted(held.batches["last_offset"], end, "right"))
        m = int(np.searchsorted(held.records.batch, n))
        self.differences.compared_records += m
        legacy = block.batches["magic"] < 2
        # batches: one of magic 2 keeps its offsets; one of magic 0 or 1 is inside one of the parent's
        at = np.searchsorted(block.batches["last_offset"], held.batches["last_offset"][:n])
        wrong = np.where(legacy[at], block.plain[at] != held.plain[:n], block.full[at] != held.full[:n])
        # records
        offset = held.records.offset[:m]
        row = np.minimum(np.searchsorted(block.records.offset, offset), max(len(block.records.offset) - 1, 0))
        same = np.zeros(m, np.bool_)
        if len(block.records.offset):
            same = block.records.offset[row] == offset
            changed = same & (block.records.digest[row] != held.records.digest[:m])
            self.differences.add("changed", offset[changed], held.path)
            survived[row[same & ~changed]] = True
        if self.rules.exact_until:
            self._report_old(held, m)
        first = np.zeros(len(held.records.offset), np.bool_)
        first[:m] = ~same
        batches = np.zeros(len(held.batches), np.bool_)
        batches[:n] = wrong
        self._report_added(held, first, batches)

    def _report_added(self, held: Block, records: np.ndarray, batches: np.ndarray) -> None:
        self.differences.add("added", held.records.offset[records], held.path)
        self.differences.add("batch", held.batches["last_offset"][batches], held.path)

    def _report_old(self, held: Block, m: int) -> None:
        data = (held.batches["attributes"] & CONTROL_MASK) == 0
        time = held.records.timestamp[:m]
        old = data[held.records.batch[:m]] & (time >= 0) & (time < self.rules.oldest_ms)
        self.differences.add(
            "old", held.records.offset[:m][old & (held.records.offset[:m] < self.rules.exact_until)], held.path
        )

    def _enter(self, block: Block, survived: np.ndarray, table: LastOfKeys, part: tuple[int, int]) -> bool:
        """Enter the records of a run of the parent that must be retained; return whether the table had room."""
        batches, records = block.batches, block.records
        control = (batches["attributes"] & CONTROL_MASK) != 0
        aborted, undecided = (_begin_at(batches, offsets) for offsets in (self.aborted, self.undecided))
        current = batches["magic"] >= 2
        horizon = current & ((batches["attributes"] & DELETE_HORIZON_MASK) != 0)
        past = np.where(
            current,
            horizon & (batches["base_timestamp"] <= self.rules.now_ms),
            block.mtime_ms <= self.rules.legacy_horizon_ms,
        )
        if len(self.undecided):  # later tombstones are kept, because they delete records that readers may see
            past &= batches["base_offset"] < self.undecided[0]
        data = ~(control | aborted | undecided)[records.batch]
        without = self.rules.file_times.get(block.path, block.mtime_ms)
        time = np.where(records.timestamp >= 0, records.timestamp, without)
        # retention's time for a record without one is known only if it deleted whole segments of the parent
        undated = (records.timestamp < 0) & (not self.rules.every_record)
        old = (records.offset < self.rules.old_until) & ((time < self.rules.oldest_ms) | undated)
        exact = (records.offset < self.rules.exact_until) & (records.timestamp >= 0)
        old |= exact & (records.timestamp < self.rules.oldest_ms)
        expired = old | (records.offset < self.rules.gone_until)
        if self.rules.erased >= 0:  # aborted transactions too
            erased = ~survived & ~control[records.batch] & ~records.null_key
            self.differences.erased.append(np.stack([records.low[erased], records.high[erased]], axis=1))
            expired |= erased
        if self.rules.every_record:
            self.differences.add(
                "expired", records.offset[(data | undecided[records.batch]) & ~survived & ~expired], block.path
            )
            return True
        may_go = expired | (records.null_key & (not self.rules.null_keys_stay))
        self.differences.add("undecided", records.offset[undecided[records.batch] & ~survived & ~may_go], block.path)
        ok = survived | (records.null_value & past[records.batch]) | expired
        has_room = bool(enter_last(records, np.flatnonzero(data & ~records.null_key), ok, survived, part, table))
        if self.rules.null_keys_stay:
            self.differences.add("unkeyed", records.offset[data & records.null_key & ~survived & ~expired], block.path)
        return has_room
