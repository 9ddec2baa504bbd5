"""Topics and their copies, drawn: what mirrors, cleaners and other producers do to a log, one record at a time."""

from __future__ import annotations

import bisect
import hashlib
import random
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastkey.udfs.audit.entries import ENTRIES, sort_run
from lastkey.udfs.audit.runs import ALL_PARTITIONS, Shown, Sides
from tests.reference.sides import Seen


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


def write_sides(root: Path, a: Sequence[Seen], b: Sequence[Seen], spread: Collection[str] = ()) -> Sides:
    """Write the records as files of `audit_entries`, a few runs each, and return them as what two sources show."""
    units = sorted({(row.topic, ALL_PARTITIONS if row.topic in spread else row.partition) for row in (*a, *b)})
    number = {unit: n for n, unit in enumerate(units)}
    files = []
    for side, rows in enumerate((a, b)):
        reads = sorted({(row.topic, row.partition) for row in rows})
        path, shown = f"{side}-{uuid.uuid4().hex}.parquet", list[Shown]()
        for read_id, (topic, partition) in enumerate(reads):
            unit = number[topic, ALL_PARTITIONS if topic in spread else partition]
            shown.append(Shown(read_id, unit, partition))
        write_rows(root / path, [_version(reads.index((row.topic, row.partition)), row) for row in rows])
        files.append({path: shown} if rows else {})
    return Sides(str(root), tuple(units), tuple(files))


def write_rows(path: Path, rows: Sequence[dict[str, object]], n_runs: int = 3) -> None:
    """Write rows as runs of ENTRIES."""
    step = max(-(-len(rows) // n_runs), 1)
    with pq.ParquetWriter(path, ENTRIES) as writer:
        for begin in range(0, len(rows), step):
            run = pa.Table.from_pylist(rows[begin : begin + step], ENTRIES)
            order, edges = sort_run(np.asarray(run["high"]))
            for first, stop in edges:
                writer.write_table(run.take(pa.array(order[first:stop])))


def added_up(rows: Sequence[dict[str, Any]], cuts: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return one row for the keyed rows of each read and key between two cuts. rows: by offset."""
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["key"] is None:
            continue
        where = row["read_id"], row["key"], bisect.bisect(sorted(cuts), row["offset"])
        sums = out.get(where, {"versions": 0, "bytes": 0})
        first = {"first_offset": row["offset"], "first_timestamp_ms": row["timestamp_ms"]} | {
            name: sums[name] for name in ("first_offset", "first_timestamp_ms") if name in sums
        }
        added = {"versions": sums["versions"] + 1, "bytes": sums["bytes"] + row.get("size_bytes", 1)}
        out[where] = row | first | added | {"digest": None}
    return list(out.values())


def _version(read_id: int, row: Seen) -> dict[str, object]:
    digest, of_key = hash_columns(repr((row.key, row.value)).encode()), hash_columns(row.key or b"")
    high, low = digest if row.key is None else of_key
    return {
        "read_id": read_id, "high": high, "low": low, "keyless": row.key is None, "digest": digest[1],
        "offset": row.offset, "timestamp_ms": row.timestamp, "key": row.key, "tombstone": row.value is None,
        "size_bytes": 1,
    }  # fmt: skip


def hash_columns(data: bytes) -> tuple[int, int]:
    """Return two halves of a hash, as columns of ENTRIES hold them."""
    digest = hashlib.sha256(data).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:16], "little", signed=True)
