"""A partition with its broker's state, as the reference of the model, and its files in an archive.

`Log` appends batches, ends transactions, rolls segments, gives up its beginning, loses a segment, is created again. It
remembers every batch that was ever appended, whether the archive still holds it or not. It shares nothing with the
product: `tests.reference.log` writes the batches, this module the side files, from Kafka's field tables.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import google_crc32c

from tests.reference.log import ABORT, GZIP, NONE, Batch, Record, decode_log, marker_batch, with_timestamps

ENTRY: Final = struct.Struct(">qhiqiqiq")  # a producer in a snapshot
ABORTED: Final = struct.Struct(">hqqqq")  # an entry of a .txnindex
Given = tuple[int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]  # time, key, value, headers


@dataclass(eq=False)
class Txn:
    """A transaction. `end`: the offset of its marker, None while it is open."""

    first: int
    end: int | None = None
    aborted: bool = False


@dataclass(frozen=True)
class Entry:
    """A record that was appended."""

    record: Record
    batch: Batch
    txn: Txn | None


@dataclass
class Producer:
    """A broker's knowledge of one producer."""

    epoch: int = 0
    sequence: int = -1  # its last sequence
    last: int = -1  # offset of its last data
    delta: int = 0
    timestamp: int = -1
    coordinator: int = -1
    last_base: int = -1  # base offset of its last data batch


@dataclass
class Segment:
    """A segment that the archive holds."""

    base: int
    batches: list[Batch] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(b.data) for b in self.batches)


class Log:
    """One partition, `<topic>-0`, from its creation on."""

    def __init__(
        self, root: Path, topic: str, *, topic_id: bytes | None, indexes: bool, lives: Iterator[int], base: int = 0
    ) -> None:
        self.topic, self.folder, self.topic_id = topic, root / f"{topic}-0", topic_id
        self.lives = lives  # numbers of the logs of one world: values hold them, so their sizes are the same each time
        self.life = next(lives)
        self.shared: dict[int, int] = {}  # other lives -> offset up to which they are the same log
        self.segments = [Segment(base)]
        self.batches: dict[int, Batch] = {}  # every batch ever appended, by base offset
        self.entries: dict[int, Entry] = {}  # every record, by offset
        self.producers: dict[int, Producer] = {}
        self.open: dict[int, Txn] = {}
        self.aborts: list[tuple[int, bytes]] = []  # marker's offset, entry of the .txnindex
        self.epochs = [(0, base)]
        self.end = self.hw = base
        self.hw_known = False
        self.start_known: int | None = None  # in log-start-offset-checkpoint
        self.lost: list[tuple[int, int]] = []  # first and last offset of segments that went missing
        self.missing: list[tuple[Segment, dict[str, bytes]]] = []  # missing segments, and their files
        self.cleaned = False  # a broker continues with a restored log: holes are a cleaner's
        self.odd: set[str] = set()  # reasons for which this partition may be uncleanable
        self.indexes = indexes

    # appending

    def append(self, given: Sequence[Given], *, pid: int = -1, transactional: bool = False, codec: int = NONE) -> Batch:
        """Append a producer's batch."""
        producer = self.producers.get(pid, Producer())
        records = tuple(Record(self.end + i, t, k, v, h) for i, (t, k, v, h) in enumerate(given))
        batch = with_timestamps(
            Batch(
                self.end, self.end + len(records) - 1, records, codec=codec, transactional=transactional,
                leader_epoch=self.epochs[-1][0], producer_id=pid, producer_epoch=producer.epoch if pid >= 0 else -1,
                base_sequence=producer.sequence + 1 if pid >= 0 else -1,
            )
        ).encoded()  # fmt: skip
        return self._append(batch)

    def end_transaction(self, pid: int, kind: int, timestamp: int) -> Batch:
        """Append a transaction's marker: ABORT or COMMIT."""
        epoch = self.producers[pid].epoch
        return self._append(
            marker_batch(self.end, pid, kind, timestamp=timestamp, epoch=epoch, leader_epoch=self.epochs[-1][0])
        )

    def _append(self, batch: Batch) -> Batch:
        aborts = len(self.aborts)
        self.take(batch)
        self.segments[-1].batches.append(batch)
        with self._path(self.segments[-1].base, "log").open("ab") as file:
            file.write(batch.data)
        if self.indexes and len(self.aborts) > aborts:
            with self._path(self.segments[-1].base, "txnindex").open("ab") as file:
                file.write(self.aborts[-1][1])
        return batch

    def take(self, batch: Batch) -> None:
        """Remember a batch, and its effect on transactions and producers."""
        self.batches[batch.base_offset] = batch
        self.end = batch.last_offset + 1
        pid, txn = batch.producer_id, None
        if pid >= 0:
            producer = self.producers.setdefault(pid, Producer(batch.producer_epoch))
            producer.epoch, producer.timestamp = batch.producer_epoch, batch.max_timestamp
        if batch.control:
            producer.coordinator = 0
            ended = self.open.pop(pid, None)
            if ended is not None:
                ended.end, ended.aborted = batch.base_offset, batch.marker == ABORT
                stable = min((t.first for t in self.open.values()), default=self.end)
                if ended.aborted:
                    entry = ABORTED.pack(0, pid, ended.first, batch.base_offset, stable)
                    self.aborts.append((batch.base_offset, entry))
        elif pid >= 0:
            producer.sequence = batch.base_sequence + batch.last_offset - batch.base_offset
            producer.last, producer.delta = batch.last_offset, batch.last_offset - batch.base_offset
            producer.last_base = batch.base_offset
            if batch.transactional:
                txn = self.open.setdefault(pid, Txn(batch.base_offset))
        for record in batch.records:
            self.entries[record.offset] = Entry(record, batch, txn)

    def roll(self, snapshots: bool) -> None:
        """Begin a segment, empty so far."""
        if self.segments[-1].base == self.end:
            return
        self._close(self.segments[-1])
        self.segments.append(Segment(self.end))
        self._path(self.end, "log").touch()
        if self.indexes:
            self._path(self.end, "index").touch()
            self._path(self.end, "timeindex").touch()
        if snapshots:
            self._path(self.end, "snapshot").write_bytes(self.snapshot())

    def _close(self, segment: Segment) -> None:
        """Write a segment's indexes, as a broker does that has index.interval.bytes = 4096 and smaller segments."""
        if not self.indexes:
            return
        stamps = [(-b.max_timestamp, b.last_offset) for b in segment.batches if b.max_timestamp >= 0]
        entry = b""
        if stamps:
            at, offset = min(stamps)
            entry = struct.pack(">qi", -at, offset - segment.base)
        self._path(segment.base, "index").write_bytes(b"")
        self._path(segment.base, "timeindex").write_bytes(entry)

    def new_leader(self) -> None:
        """Give the next batch a higher leader epoch."""
        self.epochs.append((self.epochs[-1][0] + 1, self.end))
        if len(self.epochs) > 1 and self.epochs[-2][1] == self.end:
            del self.epochs[-2]
        self._write_epochs()

    # the beginning goes, segments are lost

    def give_up(self, n: int) -> None:
        """Remove the first n segments, as retention does, but never the last one."""
        for segment in self.segments[: min(n, len(self.segments) - 1)]:
            self._remove(segment.base)
            self.segments.remove(segment)
        first = max(self.segments[0].base, self.start_known or 0)
        ends = [b.last_offset + 1 for b in self.batches.values() if b.last_offset + 1 >= first]
        self.hw = max(self.hw, min(ends, default=first))  # a broker gives up nothing above it; a batch ends there
        below = [epoch for epoch in self.epochs if epoch[1] <= first]
        self.epochs = [(below[-1][0], first)] * bool(below) + [epoch for epoch in self.epochs if epoch[1] > first]
        self._write_epochs()

    def lose(self, number: int, *, log_alone: bool) -> None:
        """Remove a segment in the middle: all its files, or its .log alone."""
        segment = self.segments.pop(number)
        files = {p.name: p.read_bytes() for p in self._files(segment.base)}
        for name in files:
            if name.endswith(".log") or not log_alone:
                (self.folder / name).unlink()
        self.missing.append((segment, files))
        self.lost.append((segment.base, self.segments[number].base - 1))
        self.odd.add("hole")

    def find(self) -> None:
        """Restore all missing segments."""
        for segment, files in self.missing:
            for name, data in files.items():
                (self.folder / name).write_bytes(data)
            self.segments.append(segment)
        self.segments.sort(key=lambda s: s.base)
        self.missing, self.lost = [], []
        self.odd.add("came back")

    def _remove(self, base: int) -> None:
        for path in self._files(base):
            path.unlink()

    # files

    def create(self) -> None:
        """Create the folder of a new partition."""
        self.folder.mkdir(parents=True)
        self._path(self.segments[0].base, "log").touch()
        self._write_epochs()
        if self.topic_id is not None:
            name = base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")
            (self.folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {name}")

    def _write_epochs(self) -> None:
        lines = ["0", str(len(self.epochs)), *(f"{epoch} {start}" for epoch, start in self.epochs)]
        (self.folder / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")

    def snapshot(self) -> bytes:
        """Return a snapshot of its producers, as Kafka writes it."""
        entries = b"".join(
            ENTRY.pack(
                pid, p.epoch, p.sequence, p.last, p.delta, p.timestamp, p.coordinator,
                self.open[pid].first if pid in self.open else -1,
            )
            for pid, p in self.producers.items()
        )  # fmt: skip
        body = struct.pack(">i", len(self.producers)) + entries
        return struct.pack(">hI", 1, google_crc32c.value(body)) + body

    def _path(self, base: int, kind: str) -> Path:
        return self.folder / f"{base:020}.{kind}"

    def _files(self, base: int) -> list[Path]:
        return sorted(self.folder.glob(f"{base:020}.*"))

    # existing files

    def held(self) -> Iterator[Batch]:
        """Yield the batches that the archive holds."""
        for segment in self.segments:
            yield from segment.batches

    def is_same_as(self, life: int, until: int) -> bool:
        """Return whether this log and that of another life were one up to this offset."""
        return life == self.life or until <= self.shared.get(life, -1)

    def continued_with(self, folder: Path, until: int) -> Log:
        """Return the log of a broker that continues with a restored folder, which ends at offset `until`."""
        bases = sorted(int(path.stem) for path in folder.glob("*.log"))
        log = Log(folder.parent, self.topic, topic_id=self.topic_id, indexes=True, lives=self.lives, base=bases[0])
        log.shared = {**{life: min(at, until) for life, at in self.shared.items()}, self.life: until}
        for base in sorted(self.batches):
            if base < until:
                log.take(replace(self.batches[base]))
        log.segments = [Segment(base, decode_log((folder / f"{base:020}.log").read_bytes())) for base in bases]
        log.end = log.hw = until
        log.epochs = read_epochs(folder) or [(0, bases[0])]
        log.cleaned = True
        log.odd.add("restored")
        return log


def read_epochs(folder: Path) -> list[tuple[int, int]]:
    """Return the entries of a leader-epoch-checkpoint."""
    lines = (folder / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


def drawn_records(rng: random.Random, log: Log, clock_ms: int, *, nulls: bool, most: int = 5) -> list[Given]:
    """Draw records of a few keys: unique values, tombstones, now and then no key; times out of order."""
    out: list[Given] = []
    for i in range(rng.randint(1, most)):
        key = None if nulls and rng.random() < 0.1 else b"k%d" % rng.randrange(7)
        value = b"%d.%d" % (log.life, log.end + i) + bytes(rng.choice((0, 0, 40)))
        version = struct.pack(">q", rng.randrange(20))
        headers = ((b"v", version),) if rng.random() < 0.7 else ()
        at = clock_ms + rng.randrange(-60_000, 60_000)
        out.append((at, key, value if key is None or rng.random() > 0.2 else None, headers))
    return out


def drawn_codec(rng: random.Random) -> int:
    """Draw a codec: mostly none, or gzip."""
    return rng.choice((NONE, NONE, GZIP))
