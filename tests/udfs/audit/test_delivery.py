"""Lags of drawn logs by the functions of the tasks, as plain code counts them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.audit.delivery import (
    DELIVERIES,
    LAGS,
    PERCENTILES,
    DeliveryQuestion,
    DeliveryUnit,
    Position,
    write_told,
)
from lastkey.udfs.audit.runs import Shown, Sides, load, ranges
from tests.builders.logs import START_MS
from tests.builders.mirrored import added_up, write_rows
from tests.reference.delivery import Version, key_lag, rank

SECRET = (1, 2)
_TOPICS = 60
Unit = tuple[str, int]


def drawn_case(
    rng: random.Random,
) -> tuple[dict[Unit, list[dict[str, Any]]], dict[Unit, list[Position]], list[dict[str, Any]]]:
    """Return (records and positions by unit, deliveries by key) with drawn keys, gaps and times out of order."""
    records: dict[Unit, list[dict[str, Any]]] = {}
    positions: dict[Unit, list[Position]] = {}
    deliveries: list[dict[str, Any]] = []
    for number in range(_TOPICS):
        topic = f"t{number}"
        for partition in range(rng.randrange(1, 3)):
            offset, end = rng.randrange(5), rng.randrange(3, 60)
            rows = records[topic, partition] = []
            while offset < end:
                key = rng.choice([b"", b"a", b"b", b"c", b"\xff", None])
                time = rng.choice([-1, START_MS + offset * 10 + rng.randrange(-40, 40)])
                rows.append({"offset": offset, "timestamp_ms": time, "key": key, "tombstone": rng.random() < 0.2})
                offset += rng.choice([1, 1, 1, 4])
            positions[topic, partition] = [_position(rng, kind) for kind in ("classic", "share")]
            positions[topic, partition].append(Position("table", "table"))
        deliveries += [
            {"group": "table", "topic": topic, "key": key,
             "told": rng.choice([-(2**63), -1, *(rng.randrange(60) for _ in range(6))])}
            for key in (b"", b"a", b"c", b"nowhere")
            if rng.random() < 0.7
        ]  # fmt: skip
    return records, positions, deliveries


def _position(rng: random.Random, kind: str) -> Position:
    start, ranges_ = rng.randrange(70), ()
    if kind == "share":
        edges = sorted(rng.sample(range(start, start + 30), 2 * rng.randrange(4)))
        ranges_ = tuple(zip(edges[::2], edges[1::2], strict=True))
    tail = max([start, *(last + 1 for _, last in ranges_)])
    return Position(kind, kind, start, tail, ranges_, rng.random() < 0.9)


def write_entries(root: Path, records: dict[Unit, list[dict[str, Any]]], cuts: list[int] | None) -> Sides:
    """Write records as one file of `audit_entries`; cuts: between which versions are added up."""
    units, rows = tuple(sorted(records)), []
    for number, unit in enumerate(units):
        keys = pa.array([row["key"] for row in records[unit]], pa.binary())
        hashes = keyed_hashes(keys, SECRET).view("i8").tolist()
        rows += [
            row | {"read_id": number, "high": high, "low": low, "keyless": row["key"] is None, "digest": 0}
            for row, (low, high) in zip(records[unit], hashes, strict=True)
        ]
    write_rows(root / "entries.parquet", rows if cuts is None else added_up(rows, cuts))
    shown = [Shown(number, number, unit[1]) for number, unit in enumerate(units)]
    return Sides(str(root), units, ({"entries.parquet": shown},))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastkey.udfs.audit.runs._PART_ROWS", 50)
    monkeypatch.setattr("lastkey.udfs.audit.entries._GROUP_ROWS", 50)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_lags_of_random_logs_equal_those_of_plain_code(tmp_path: Path, seed: int, apart: bool) -> None:
    records, positions, deliveries = drawn_case(random.Random(seed))
    every = [position for of in positions.values() for position in of]
    edges = [edge for position in every for first, last in position.ranges for edge in (first, last + 1)]
    cuts = [*edges, *(position.start for position in every), *(delivery["told"] + 1 for delivery in deliveries)]
    sides = write_entries(tmp_path, records, None if apart else cuts)
    schema = pa.schema([("group", pa.string()), ("topic", pa.string()), ("key", pa.binary()), ("told", pa.int64())])
    batches = pa.Table.from_pylist(deliveries, schema).to_batches(max_chunksize=20)
    paths = {
        row["path"] for batch in write_told(str(tmp_path), "told", SECRET, iter(batches)) for row in batch.to_pylist()
    }
    times = [[row["timestamp_ms"] for row in records[unit] if row["timestamp_ms"] >= 0] for unit in sides.units]
    newest = [max(of, default=None) for of in times]
    units = {u: DeliveryUnit(tuple(positions[u]), True, ms) for u, ms in zip(sides.units, newest, strict=True)}
    question = DeliveryQuestion("s", units, 20, None, tuple(paths))
    answered = [question.answer(load(sides, bounds, question.columns)) for bounds in ranges(3, 1)]
    tables, without = ([delivery[i] for delivery in answered] for i in (0, 1))
    rows = pa.concat_tables(tables).cast(DELIVERIES).drop_columns(["source", "group_type"]).to_pylist()
    ours = {(row["group"], row["topic"], row["partition"], row["key"]): row for row in rows}
    expected = expected_rows(records, positions, deliveries)
    assert len(ours) == len(rows) == len(expected) > 400
    for where, row in expected.items():
        assert ours[where] == row, where
    assert sum(without) == sum(
        not any(
            row["key"] == delivery["key"] for unit, of in records.items() if unit[0] == delivery["topic"] for row in of
        )
        for delivery in deliveries
    )
    for row in question.merged([question.summary(table) for table in tables]).groups:
        group, topic = row["group"], row["topic"]
        certain = [e for e in expected.values() if (e["group"], e["topic"]) == (group, topic)]
        assert row["keys"] == len(certain)
        certain = [e for e in certain if e["verdict"] != "unknown"]
        for lag in LAGS:
            values = [e[lag] for e in certain]
            theirs = [rank(values, share) for share in (0.5, 0.9, 0.99, 1)]
            assert row[lag] == dict(zip(PERCENTILES, theirs, strict=True)), (group, topic, lag)


def expected_rows(
    records: dict[Unit, list[dict[str, Any]]], positions: dict[Unit, list[Position]], deliveries: list[dict[str, Any]]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    out = {}
    offsets = {(delivery["topic"], delivery["key"]): delivery["told"] for delivery in deliveries}
    for unit, rows in records.items():
        newest = max((r["timestamp_ms"] for r in rows if r["timestamp_ms"] >= 0), default=None)
        for position in positions[unit]:
            for key in {r["key"] for r in rows} - {None}:
                versions = [Version(r["offset"], r["timestamp_ms"], r["tombstone"]) for r in rows if r["key"] == key]
                at = offsets.get((unit[0], key))
                row = key_lag(versions, delivered_by(position, at), newest)
                if position.group == "table":
                    row["delivered_offset"] = at if at is not None and at >= 0 else None
                    row["lag_offsets"] = lag_by_table(row, versions)
                verdict = "undelivered" if row["lag_versions"] else "delivered"
                row["verdict"] = verdict if position.known else "unknown"
                where = {"group": position.group, "topic": unit[0], "partition": unit[1], "key": key}
                out[tuple(where.values())] = where | row
    return out


def delivered_by(position: Position, deliveries: int | None):
    if position.group == "table":
        return lambda offset: deliveries is not None and offset <= deliveries
    return lambda offset: offset < position.start or any(a <= offset <= b for a, b in position.ranges)


def lag_by_table(row: dict[str, Any], versions: list[Version]) -> int:
    """Return the lag in offsets behind the offset that the table names, which need not be one that is left."""
    if not row["lag_versions"]:
        return 0
    since = row["delivered_offset"]
    return row["last_offset"] - (min(versions).offset - 1 if since is None else since)
