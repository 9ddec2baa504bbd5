"""The contents that a generation must have, by a rule of its own in plain Python; and a reader of log directories for
it.

The rule starts from the input of a run (`given`): the records of the generation before, as far as they are still there,
and of the archive behind it. The run may leave out a record of these only if

- the run compacts, and a record of the same key outranks it: a later one (or of a higher time or version, by the
  strategy). This other record is committed and was given too. It is not in the segment that is still written to, and is
  not protected by min.compaction.lag.ms;
- it is a tombstone whose batch had a delete horizon, which lies behind the run's clock;
- its transaction was aborted, by a marker that was given too;
- it has no key, and the run's options drop such records;
- it lies below the log start, which only log-start-offset-checkpoint moves, or the run's retention settings: then each
  such record is older than retention.ms, or retention.bytes are left without it.

Each remaining record is as it was appended, in its batch, in order, and belongs to the same transaction: the next
marker of its producer is the one that ended it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.attack.forked import Failed
from tests.attack.model_log import Entry, Log
from tests.reference.log import Batch, Record, decode_log

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Row:
    """A record in its present batch."""

    record: Record
    batch: Batch


@dataclass(frozen=True)
class Contents:
    """Contents of a partition's folder."""

    bases: tuple[int, ...]
    batches: tuple[Batch, ...]
    rows: dict[int, Row]

    @property
    def end(self) -> int:
        """The log end, as a broker would find it."""
        after = self.batches[-1].last_offset + 1 if self.batches else 0
        return max(after, self.bases[-1] if self.bases else 0)


@dataclass
class Generation:
    """A committed generation, with its contents at that time."""

    number: int
    run_id: str
    start: int
    next: int
    first_dirty: int
    now_ms: int
    archive: Path  # place of the archive then
    log: Log  # log that it was made from
    contents: Contents
    in_archive: frozenset[int]  # offsets that it takes from the archive
    parent: Generation | None  # generation that it was made from; None: from the archive alone
    before: Generation | None  # generation that was current before
    given: frozenset[Record] = field(default_factory=frozenset)
    strategy: str = "offset"

    def line(self) -> Iterator[Generation]:
        """Yield this generation, and those that were current before."""
        generation: Generation | None = self
        while generation is not None:
            yield generation
            generation = generation.before

    def chain(self) -> Iterator[Generation]:
        """Yield this generation, and those that it was made from."""
        generation: Generation | None = self
        while generation is not None:
            yield generation
            generation = generation.parent


@dataclass(frozen=True)
class RunOptions:
    """Settings and options of a run for a topic."""

    now_ms: int
    policy: str = "compact"
    strategy: str = "offset"
    null_keys: str = "fail"
    min_lag_ms: int = 0
    retention_ms: int = -1
    retention_bytes: int = -1
    delete_retention_ms: int = DAY_MS
    sealed: bool = False
    force: bool = False
    accept: bool = False

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy


def read_folder(folder: Path) -> Contents:
    """Read all batches of the .log files of a partition; check checksums, sizes and order."""
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    batches: list[Batch] = []
    for base, ends in zip(bases, [*bases[1:], None], strict=True):
        segment_batches = decode_log((folder / f"{base:020}.log").read_bytes())
        for batch in segment_batches:
            after = batches[-1].last_offset if batches else -1
            if not max(base, after + 1) <= batch.base_offset <= batch.last_offset or (
                ends is not None and batch.last_offset >= ends
            ):
                raise Failed(f"{folder.name}/{base}: batch {batch.base_offset}..{batch.last_offset} behind {after}")
            batches.append(batch)
    return Contents(tuple(bases), tuple(batches), rows_by_offset(batches))


def rows_by_offset(batches: list[Batch]) -> dict[int, Row]:
    """Return records by offset. Raises Failed for a record outside of its batch."""
    rows: dict[int, Row] = {}
    last = -1
    for batch in batches:
        for record in batch.records:
            if not max(batch.base_offset, last + 1) <= record.offset <= batch.last_offset:
                raise Failed(f"record {record.offset} in batch {batch.base_offset}..{batch.last_offset}")
            last = record.offset
            rows[last] = Row(record, batch)
    return rows


def given_to(log: Log, parent: Generation | None) -> dict[int, Row]:
    """Return the input of a run: records of the generation before, and of the archive behind it."""
    archived = rows_by_offset(list(log.held()))
    if parent is None:
        return archived
    before = {o: row for o, row in parent.contents.rows.items() if o not in parent.in_archive or o in archived}
    return before | {o: row for o, row in archived.items() if o >= parent.next}


def list_faults(made: Generation, log: Log, given: dict[int, Row], options: RunOptions) -> Iterator[str]:
    """Yield each fault of a generation as a line."""
    yield from _changed(made.contents, log, given)
    yield from _list_wrong_endings(made, log)
    yield from _bounds(made, log, options)
    yield from _missing(made, log, given, options)
    yield from _list_restored_records(made, log)
    yield from _last_batches(made, log, given)
    if options.compacts:
        yield from _list_superseded(made, log, options)


def _changed(contents: Contents, log: Log, given: dict[int, Row]) -> Iterator[str]:
    for batch in contents.batches:
        was = log.batches.get(batch.base_offset)
        if was is None or _header(was) != _header(batch):
            yield f"batch {_header(batch)}, which was {_header(was) if was else 'never appended'}"
    for offset, row in contents.rows.items():
        entry = log.entries.get(offset)
        if entry is None or entry.record != row.record:
            yield f"{row.record}, which was {entry.record if entry else 'never appended'}"
        elif offset not in given:
            yield f"{row.record}, which neither the archive nor the generation before holds"


def _header(b: Batch) -> tuple[int | bool, ...]:
    return (
        b.base_offset, b.last_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.leader_epoch,
        b.transactional, b.control,
    )  # fmt: skip


def _list_wrong_endings(made: Generation, log: Log) -> Iterator[str]:
    """Yield each record of a transaction whose producer's next marker is not the one that ended it."""
    markers = [b for b in made.contents.batches if b.control and b.records]
    for offset, row in made.contents.rows.items():
        txn = log.entries[offset].txn if offset in log.entries else None
        if txn is None or row.batch.control:
            continue
        after = [b.base_offset for b in markers if b.producer_id == row.batch.producer_id and b.base_offset > offset]
        right = txn.end if txn.end is not None and txn.end < made.next else None
        if (after[0] if after else None) != right:
            yield f"{row.record} of a transaction that {_ending(txn.aborted, right)}: the next marker is {after[:1]}"


def _ending(aborted: bool, end: int | None) -> str:
    return "is open" if end is None else f"was {'aborted' if aborted else 'committed'} at {end}"


def _bounds(made: Generation, log: Log, options: RunOptions) -> Iterator[str]:
    end = made.contents.end
    if end != made.next:
        yield f"ends at {end}, and its report says {made.next}"
    known = max(made.parent.next if made.parent is not None else 0, log.segments[0].base)
    if made.next > (max(log.hw, known) if log.hw_known else log.end):
        yield f"goes up to {made.next}; log end {log.end}, high watermark {log.hw if log.hw_known else 'unknown'}"
    if made.parent is not None and made.next < made.parent.next:
        yield f"goes up to {made.next}, the generation before up to {made.parent.next}"
    start = expected_start(made, log)
    if made.start < start or made.start > made.next:
        yield f"log start {made.start}, expected {start}"
    if made.start > start and "delete" not in options.policy:
        yield f"log start {made.start}, expected {start}: policy {options.policy} takes nothing"


def expected_start(made: Generation, log: Log) -> int:
    """Return the log start if Lastkey applies no retention."""
    first = made.parent.start if made.parent is not None else log.segments[0].base
    return max(first, log.start_known or 0)


def _missing(made: Generation, log: Log, given: dict[int, Row], options: RunOptions) -> Iterator[str]:
    best: dict[bytes, tuple[bool, int, int]] = {}
    behind = [b for b in log.held() if b.base_offset >= made.next]  # in the archive; counts for retention.bytes too
    start, left = expected_start(made, log), sum(len(b.data) for b in [*made.contents.batches, *behind])

    def rank(record: Record) -> tuple[bool, int, int]:
        by = 0
        if options.strategy == "timestamp":
            by = record.timestamp
        elif options.strategy == "header":
            by = max(-1, struct.unpack(">q", record.headers[0][1] or bytes(8))[0]) if record.headers else -1
        return record.offset >= start, by, record.offset

    for offset, row in given.items():
        key = row.record.key
        if key is None or row.batch.control or not _counts(log.entries[offset], given, made.next):
            continue
        if _cleanable(row, made, log, options):
            best[key] = max(best.get(key, (False, -2, -1)), rank(row.record))
    for offset, row in given.items():
        if not start <= offset < made.next or offset in made.contents.rows or row.batch.control:
            continue
        if offset < made.start and _may_expire(row, left, options):
            continue
        record, txn = row.record, log.entries[offset].txn
        ended = txn is not None and txn.end is not None and txn.end < made.next and txn.end in given
        why = ""
        if not options.compacts:
            why = f"policy {options.policy} drops nothing"
        elif not _cleanable(row, made, log, options):
            why = "it is not to be cleaned yet"
        elif txn is not None and not ended:
            why = "its transaction is open"
        elif txn is not None and txn.aborted:
            continue
        elif record.key is None:
            why = "" if options.null_keys == "drop" else "it has no key"
        elif best.get(record.key, (False, -2, -1)) > rank(record):
            continue
        elif record.value is None:
            horizon = row.batch.delete_horizon
            if horizon is None or horizon > options.now_ms:
                why = f"it is the last of its key, a tombstone with the horizon {horizon}"
        else:
            why = "it is the last of its key"
        if why:
            yield f"lost: {record}: {why}"


def _list_restored_records(made: Generation, log: Log) -> Iterator[str]:
    """Yield each record that a later tombstone of its key deleted, and that is read again without that tombstone."""
    if log.odd or log.lost or log.cleaned or any(ancestor.strategy != "offset" for ancestor in made.chain()):
        return  # the tombstone was lost with its segment, perhaps, or another order holds
    last: dict[bytes, Record] = {}
    for offset, entry in sorted(log.entries.items()):
        txn = entry.txn
        ended = txn is None or (txn.end is not None and txn.end < made.next and not txn.aborted)
        if offset < made.next and entry.record.key is not None and not entry.batch.control and ended:
            last[entry.record.key] = entry.record
    for offset, row in made.contents.rows.items():
        record, txn = row.record, log.entries[offset].txn if offset in log.entries else None
        if offset < made.start or row.batch.control or record.key is None or (txn is not None and txn.aborted):
            continue
        tombstone = last.get(record.key)
        if tombstone is None or tombstone.value is not None or record.offset >= tombstone.offset:
            continue
        if record.value is not None and tombstone.offset not in made.contents.rows:
            yield f"came back: {record}, which the tombstone at {tombstone.offset} deleted"


def _may_expire(row: Row, left_bytes: int, options: RunOptions) -> bool:
    """Return whether retention may take a record at the beginning: it is too old, or enough is left without it."""
    old = options.retention_ms >= 0 and row.record.timestamp < options.now_ms - options.retention_ms
    return old or 0 <= options.retention_bytes <= left_bytes


def _counts(entry: Entry, given: dict[int, Row], until: int) -> bool:
    """Return whether a record is committed, as far as the run can know."""
    txn = entry.txn
    return txn is None or (txn.end is not None and txn.end < until and txn.end in given and not txn.aborted)


def _cleanable(row: Row, made: Generation, log: Log, options: RunOptions) -> bool:
    """Return whether a run may clean this record: it is neither in the segment still written to, nor too young."""
    start = made.parent.next if made.parent is not None else 0  # cut off there: no longer written to
    if not options.sealed and row.record.offset >= max(log.segments[-1].base, start):
        return False
    clean = made.parent.first_dirty if made.parent is not None and not options.force else 0
    young = options.min_lag_ms > 0 and row.record.timestamp > options.now_ms - options.min_lag_ms
    return row.record.offset < clean or not young


def _last_batches(made: Generation, log: Log, given: dict[int, Row]) -> Iterator[str]:
    """Yield each producer whose last data batch is gone although it was not idle for a day: a broker finds its last
    sequence there.
    """
    last: dict[int, Batch] = {}
    for batch in log.batches.values():
        if batch.last_offset < made.next and batch.producer_id >= 0:
            if not batch.control:
                last[batch.producer_id] = batch
            elif batch.producer_id in last:
                last_of_producer = last[batch.producer_id]
                last[batch.producer_id] = replace(last_of_producer, max_timestamp=batch.max_timestamp)
    existing = {b.base_offset for b in made.contents.batches}
    now_ms = max(ancestor.now_ms for ancestor in made.chain())  # producers that were idle then are forgotten
    for batch in last.values():
        here = any(batch.base_offset <= o <= batch.last_offset for o in given)
        idle = now_ms - batch.max_timestamp >= DAY_MS
        if here and not idle and batch.base_offset >= made.start and batch.base_offset not in existing:
            yield f"the last batch of producer {batch.producer_id} at {batch.base_offset} is gone"


def _list_superseded(made: Generation, log: Log, options: RunOptions) -> Iterator[str]:
    """Yield each record that a compacting run kept although a dirty record outranks it, both in the range that it
    cleaned.
    """
    if options.strategy != "offset" or log.cleaned:
        return
    dirty = max(made.start, made.parent.first_dirty if made.parent is not None and not options.force else 0)
    last: dict[bytes, int] = {}
    for offset, row in made.contents.rows.items():
        if row.record.key is not None and not row.batch.control and dirty <= offset < made.first_dirty:
            last[row.record.key] = offset
    for offset, row in made.contents.rows.items():
        key = row.record.key
        if key is not None and not row.batch.control and offset < last.get(key, -1) and made.parent is None:
            yield f"left over: {row.record}, outranked by {last[key]}"
