"""Topics and their copies, drawn: what mirrors, cleaners and other producers do to a log, one record at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tests.reference.sides import Seen

A, B = "a", "b"  # the names of the sources
_RECORDS = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("tombstone", pa.bool_()),
        pa.field("digest_high", pa.int64()),
        pa.field("digest_low", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Drawn:
    """A topic's log, its copy, and the log before anything was cleaned."""

    a: list[Seen]
    b: list[Seen]
    original: list[Seen]


def draw(seed: int, n_partitions: int = 2, *, changes: bool = True, behind: bool = True, repeats: bool = True) -> Drawn:
    """Return a topic and its copy. Few values and times, so many records are equal; cleaners worked on both sides.

    changes: records of the copy are dropped, changed, moved and added. behind: it may end early. repeats: it may hold
    some records twice, as after a restart of the mirror.
    """
    rng, topic = random.Random(seed), f"t{seed:04}"
    drawn = Drawn([], [], [])
    for partition in range(n_partitions):
        per_ms = rng.choice(((1,), (3,), (1, 3)))  # records of a millisecond; with both, times go back too
        log = [_record(rng, topic, partition, i, per_ms) for i in range(rng.randrange(14))]
        log = _numbered(log, rng, first=rng.choice((0, 0, 7)))
        copy = log[: rng.randrange(len(log) + 1)] if behind and rng.random() < 0.3 else list(log)
        for _ in range(rng.choice((0, 1, 1, 3)) if changes else 0):
            copy = _changed(copy, rng, topic, partition)
        if repeats and rng.random() < 0.2 and copy:
            at = rng.randrange(len(copy))
            copy[at:at] = copy[max(at - 3, 0) : at]
        copy = _numbered(copy, rng, first=rng.choice((0, 3)))
        drawn.original.extend(log)
        drawn.a.extend(_cleaned(log, rng) if rng.random() < 0.3 else log)
        drawn.b.extend(_cleaned(copy, rng) if rng.random() < 0.3 else copy)
    return drawn


def _record(rng: random.Random, topic: str, partition: int, i: int, per_ms: Sequence[int] = (1,)) -> Seen:
    key = None if rng.random() < 0.15 else rng.choice((b"", b"k", b"l"))
    value = rng.choice((None, "x", "y", "z"))
    return Seen(topic, partition, i, 1000 + i // rng.choice(per_ms), key, value, rng.getrandbits(60))


def _numbered(rows: Sequence[Seen], rng: random.Random, first: int) -> list[Seen]:
    """Return the records at new offsets, with some holes, as markers leave them."""
    offset, out = first, []
    for row in rows:
        offset += rng.random() < 0.2
        out.append(replace(row, offset=offset))
        offset += 1
    return out


def _cleaned(rows: Sequence[Seen], rng: random.Random) -> list[Seen]:
    """Return the records that compaction of some of the log leaves; of a whole one perhaps no tombstone either."""
    head = rows[: rng.randrange(len(rows) + 1)]
    last = {row.key: row.offset for row in head}
    drops_tombstones = rng.random() < 0.3
    kept = [
        r for r in head if r.key is None or (last[r.key] == r.offset and not (drops_tombstones and r.value is None))
    ]
    return kept + list(rows[len(head) :])


def _changed(rows: list[Seen], rng: random.Random, topic: str, partition: int) -> list[Seen]:
    rows = list(rows)
    what, at = rng.choice(("drop", "value", "late", "extra")), rng.randrange(len(rows) + 1)
    if what == "extra":
        rows.insert(at, replace(_record(rng, topic, partition, at), value=rng.choice((None, "w"))))
    elif at < len(rows) and what == "drop":
        del rows[at]
    elif at < len(rows) and what == "value":
        rows[at] = replace(rows[at], value="v", origin=rng.getrandbits(60))
    elif at < len(rows):
        rows.insert(rng.randrange(at, len(rows)), rows.pop(at))
    return rows


def records_table(a: Iterable[Seen], b: Iterable[Seen]) -> pa.Table:
    """Return the rows as `records_of` gives them, as far as audits of two sides read them."""
    sides = [(A, row) for row in a] + [(B, row) for row in b]
    digests = {None: 0, **{value: i + 1 for i, value in enumerate("vwxyz")}}
    rows = [
        {
            "source": source, "topic": r.topic, "partition": r.partition, "offset": r.offset,
            "timestamp_ms": r.timestamp, "key": r.key, "tombstone": r.value is None,
            "digest_high": digests.get(r.value, -1), "digest_low": hash_of(r),
        }
        for source, r in sides
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, _RECORDS)


def hash_of(row: Seen) -> int:
    """Return the other half of a digest, which covers the key too."""
    return -1 if row.key is None else int.from_bytes(row.key, "big")


def topics_of(a: Iterable[Seen], b: Iterable[Seen]) -> tuple[set[str], dict[str, str]]:
    """Return the topics of A, and those of B with their names in A, for `two_sides`."""
    return {row.topic for row in a}, {row.topic: row.topic for row in b}
