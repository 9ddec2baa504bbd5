"""Delivery lag of each key.

A *version* is a record of a key; its *last update* is the one with the largest offset. A position gives the delivered
offsets of a unit and a group: all below `start`, those in `ranges` up to `tail` (share groups), and none from `tail`
on. A table of deliveries states this for each key. Of versions that are added up in one entry, all are delivered or all
are undelivered.

| column | of a key, for a group |
|---|---|
| delivered_offset | largest offset that was delivered; null: none that is left |
| lag_versions | versions after it |
| lag_offsets, lag_ms | from there to the last update; if no such version is left, from the oldest one that is |
| age_ms | from the oldest version that lag_versions counts to the newest timestamp of the partition |
| verdict | delivered, undelivered (the last update was not), or unknown |
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.audit.entries import Secret, bins
from lastkey.udfs.audit.runs import (
    Bools,
    Groups,
    Ints,
    Unit,
    VersionRows,
    by_key,
    first_valid,
    grouped,
    last_valid,
    load_file,
    sums,
)
from lastkey.udfs.audit.tables import first_rows, make_table, new_file
from lastkey.udfs.storage import open_root

LAGS: Final = ("lag_versions", "lag_offsets", "lag_ms", "age_ms")
DELIVERIES: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("group", pa.string()),
        pa.field("group_type", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("last_offset", pa.int64()),
        pa.field("last_timestamp_ms", pa.int64()),
        pa.field("tombstone", pa.bool_()),
        pa.field("versions", pa.int64()),
        pa.field("delivered_offset", pa.int64()),
        pa.field("delivered_timestamp_ms", pa.int64()),
        pa.field("oldest_undelivered_offset", pa.int64()),
        *(pa.field(lag, pa.int64()) for lag in LAGS),
        pa.field("verdict", pa.string()),
    ]
)
_VERDICTS: Final = ("delivered", "undelivered", "unknown")
_UNKNOWN: Final = 2
TABLE_GROUP: Final = "table"  # type of a group of a table of deliveries
COUNTS: Final = ("keys", "delivered", "undelivered", "unknown", "never", "undelivered_tombstones", "versions_behind")
PERCENTILES: Final = ("p50", "p90", "p99", "max")
GROUP_PLACE: Final = ("group", "group_type", "topic")
# Figures of a group and a topic
GROUP_FIGURES: Final = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in GROUP_PLACE),
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS),
        *(pa.field(lag, pa.struct([(share, pa.int64()) for share in PERCENTILES]), nullable=False) for lag in LAGS),
    ]
)
WORST_KEY: Final = pa.schema([column for column in DELIVERIES if column.name not in ("source", "verdict")])
_SHARES: Final = (0.5, 0.9, 0.99, 1.0)
_SAMPLES: Final = 10_000  # samples of a file's lags: a rank is off by at most 1 / 10,000 of the keys
_NONE: Final = np.iinfo(np.int64).min  # no time
_GROUP_ROWS: Final = 1 << 12


@dataclass(frozen=True)
class Position:
    """Position of a group in a unit. known: false if what was committed could not be read."""

    group: str
    group_type: str
    start: int = 0
    tail: int = 0
    ranges: tuple[tuple[int, int], ...] = ()  # first and last offset of each, apart and rising
    known: bool = True


@dataclass(frozen=True)
class DeliveryUnit:
    """Positions of the groups that read a unit; whole: false if something of it could not be read."""

    positions: tuple[Position, ...]
    whole: bool
    newest_ms: int | None = None


@dataclass(frozen=True)
class DeliveryQuestion:
    """Question of `audit delivery`. `told`: files of `write_told`."""

    source: str
    units: Mapping[Unit, DeliveryUnit]
    most: int
    max_age_ms: int | None = None
    told: tuple[str, ...] = ()
    schema = DELIVERIES
    columns = ("timestamp_ms", "tombstone", "versions", "first_offset", "first_timestamp_ms")

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, int]:
        """Return a row for each group and key, and the number of deliveries by key whose key no record has."""
        tables, without = zip(*(self._part(part) for part in parts), strict=True)
        return pa.concat_tables(tables), sum(without)

    def _part(self, versions: VersionRows) -> tuple[pa.Table, int]:
        keys, tables = _Keys(versions), [DELIVERIES.empty_table()]
        told = _Told(versions, keys, self.told) if self.told else None
        for number, place in enumerate(versions.sides.units):
            for position in self.units[place].positions if keys.count(number) else ():
                marks = told.of(position.group) if told and position.group_type == TABLE_GROUP else None
                tables.append(self._rows(keys, number, position, marks))
        return pa.concat_tables(tables), told.without if told else 0

    def _rows(self, keys: _Keys, number: int, position: Position, told: Ints | None) -> pa.Table:
        """Return the rows of a group and a unit. `told`: offset by key, _NONE: no offset."""
        first, stop = keys.unit_range(number)
        begin = int(keys.groups.starts[first])
        rows = slice(begin, int(keys.groups.ends[stop - 1]))
        groups = Groups(keys.groups.order[rows], keys.groups.starts[first:stop] - begin)
        offset, time, first_offset, first_time = (each[rows] for each in keys.places)
        if told is None:
            delivered = _delivered(position, offset)
        else:
            told = told[first:stop]
            delivered = offset <= told[groups.of]
        done, last = last_valid(groups, delivered), groups.ends - 1
        done_at = np.where(done < 0, -1, offset[done])
        is_behind = ~delivered & (offset > done_at[groups.of])
        oldest, lag = first_valid(groups, is_behind), sums(groups, np.where(is_behind, keys.n_versions[rows], 0))
        topic, partition = place = keys.versions.sides.units[number]
        lags, unit = lag > 0, self.units[place]
        first_ms, oldest_ms = first_time[groups.starts], np.where(oldest < 0, _NONE, first_time[oldest])
        done_ms = np.where(done < 0, _NONE, time[done])
        if told is not None:
            done_at = np.where(told >= 0, told, done_at)
        since = np.where(done_at < 0, first_offset[groups.starts] - 1, done_at)
        newest = np.full(len(lag), _NONE if unit.newest_ms is None else unit.newest_ms)
        # a later version may be lost; only where all offsets from a start on are undelivered it is undelivered as well
        sure = unit.whole | (lags & (position.group_type != "share"))
        verdict = np.where(sure & position.known, lags.astype(np.int8), _UNKNOWN).astype(np.int8)
        columns = {
            "source": self.source, "group": position.group, "group_type": position.group_type,
            "topic": topic, "partition": partition,
            "key": keys.key(first, stop),
            "last_offset": offset[last],
            "last_timestamp_ms": _times(time[last]),
            "tombstone": keys.tombstone[rows][last],
            "versions": sums(groups, keys.n_versions[rows]),
            "delivered_offset": _times(done_at),
            "delivered_timestamp_ms": _times(done_ms),
            "oldest_undelivered_offset": _times(np.where(oldest < 0, -1, first_offset[oldest])),
            "lag_versions": lag,
            "lag_offsets": np.where(lags, offset[last] - since, 0),
            "lag_ms": _span(lags, np.where(done < 0, first_ms, done_ms), time[last]),
            "age_ms": _span(lags, oldest_ms, newest),
            "verdict": pa.DictionaryArray.from_arrays(pa.array(verdict), pa.array(_VERDICTS)),
        }  # fmt: skip
        return make_table(len(lag), columns, DELIVERIES)

    def summary(self, table: pa.Table) -> Summary:
        """Return what a report shows of a table's rows."""
        out: Summary = {}
        codes = [table[name].combine_chunks().dictionary_encode() for name in GROUP_PLACE]
        code = np.zeros(len(table), np.int64)
        for one in codes:
            code = code * max(len(one.dictionary), 1) + np.asarray(one.indices)
        order = np.argsort(code, kind="stable")
        edges = [*np.flatnonzero(np.diff(code[order], prepend=-1)).tolist(), len(order)]
        rows = table.take(pa.array(order)).combine_chunks()
        lags = {lag: (np.asarray(rows[lag].fill_null(0)), np.asarray(rows[lag].is_valid())) for lag in LAGS}
        verdict = np.asarray(pc.index_in(rows["verdict"], pa.array(_VERDICTS)))
        never, tombstone = (np.asarray(one) for one in (rows["delivered_offset"].is_null(), rows["tombstone"]))
        for first, stop in itertools.pairwise(edges):
            part = slice(first, stop)
            known, late = verdict[part] != _UNKNOWN, verdict[part] == 1
            flags = verdict[part] == 0, late, ~known, late & never[part], late & tombstone[part]
            counts = {"keys": stop - first, **dict(zip(COUNTS[1:-1], (int(f.sum()) for f in flags), strict=True))}
            counts["versions_behind"] = int(lags["lag_versions"][0][part][known].sum())
            sampled = {lag: _sampled(values[part][known & valid[part]]) for lag, (values, valid) in lags.items()}
            if self.max_age_ms is not None:
                counts["late"] = int((late & (lags["age_ms"][0][part] > self.max_age_ms)).sum())
            waiting = rows.slice(first, stop - first).filter(pa.array(late)).select(WORST_KEY.names)
            place = tuple(rows[name][first].as_py() for name in GROUP_PLACE)
            out[place] = PlaceSummary(Counter(counts), sampled, first_rows(waiting, _WORST, self.most))
        return out

    def merged(self, summaries: Sequence[Summary]) -> Figures:
        """Return the figures of all."""
        found: dict[tuple[str, ...], list[PlaceSummary]] = {}
        for place, of in itertools.chain(*(summary.items() for summary in summaries)):
            found.setdefault(place, []).append(of)
        groups = [
            dict(zip(GROUP_PLACE, place, strict=True))
            | {name: sum(of.counts[name] for of in parts) for name in COUNTS}
            | {lag: spread([of.lags[lag] for of in parts]) for lag in LAGS}
            for place, parts in sorted(found.items())
        ]
        worst = [
            first_rows(pa.concat_tables([of.worst for of in parts]), _WORST, self.most) for parts in found.values()
        ]
        late = sum(of.counts["late"] for parts in found.values() for of in parts)
        return Figures(groups, pa.concat_tables([WORST_KEY.empty_table(), *worst]).sort_by(_WORST_OF_ALL), late)


def _delivered(position: Position, offset: Ints) -> Bools:
    delivered = offset < position.start
    if position.ranges:
        firsts, lasts = (np.array([each[i] for each in position.ranges], np.int64) for i in (0, 1))
        at = np.searchsorted(firsts, offset, "right") - 1
        delivered |= (at >= 0) & (offset <= lasts[at]) & (offset < position.tail)
    return delivered


def _times(values: Ints) -> Any:
    """Return times or offsets, null where they are negative."""
    return pa.array(values, mask=values < 0)


def _span(lags: Bools, since: Ints, until: Ints) -> Any:
    """Return the time between, not below 0; null if one is not known; 0 without a lag."""
    unknown = lags & ((since < 0) | (until < 0))
    return pa.array(np.where(lags & ~unknown, np.maximum(until - since, 0), 0), mask=unknown)


class _Keys:
    """Keyed versions of a range by unit and key; a key's rows by offset."""

    def __init__(self, versions: VersionRows) -> None:
        found = by_key(versions)
        keyed = np.flatnonzero(~versions["keyless"][found.order[found.starts]])
        unit = versions["unit"][found.order[found.starts[keyed]]]
        keyed = keyed[np.argsort(unit, kind="stable")]  # groups by unit
        lengths = (found.ends - found.starts)[keyed]
        starts = np.append(0, np.cumsum(lengths))
        row = np.arange(starts[-1]) + np.repeat(found.starts[keyed] - starts[:-1], lengths)
        self.versions = versions
        self.groups = Groups(found.order[row], starts[:-1])
        self.unit = np.sort(unit)
        columns = ("tombstone", "versions", "offset", "timestamp_ms", "first_offset", "first_timestamp_ms")
        self.tombstone, self.n_versions, offset, time, first_offset, first_time = (
            versions[name][self.groups.order] for name in columns
        )
        first_time, time = (np.where(each < 0, _NONE, each) for each in (first_time, time))
        self.places = offset, time, first_offset, first_time
        self._keys: Any = None

    def unit_range(self, number: int) -> tuple[int, int]:
        """Return the first group of a unit, and where they end."""
        first, stop = np.searchsorted(self.unit, (number, number + 1)).tolist()
        return first, stop

    def count(self, number: int) -> int:
        """Return the number of keys of a unit."""
        first, stop = self.unit_range(number)
        return stop - first

    def key(self, first: int, stop: int) -> Any:
        """Return the keys of some groups."""
        if self._keys is None:
            (self._keys,) = self.versions.arrow(self.groups.order[self.groups.starts], "key")
        return self._keys.slice(first, stop - first)


# -- a table of deliveries


TOLD_FILES: Final = pa.schema([("path", pa.string()), ("group", pa.string()), ("topic", pa.string())])


def write_told(
    root_uri: str, folder: str, secret: Secret, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write rows of group, topic, key, `told` (an offset), and partition or not, as a file in the order of the keys'
    hashes. Yield TOLD_FILES: a row for each group and topic of it.
    """
    parts = [batch for batch in batches if len(batch)]
    if not parts:
        return
    rows = pa.Table.from_batches(parts).combine_chunks()
    hashes = keyed_hashes(rows["key"].combine_chunks(), secret).view(np.int64)
    rows = rows.drop_columns("key")
    rows = rows.append_column("high", pa.array(hashes[:, 1])).append_column("low", pa.array(hashes[:, 0]))
    order = np.argsort(bins(hashes[:, 1]), kind="stable")
    with new_file(open_root(root_uri), folder, rows.schema, compression="lz4") as (path, writer, _):
        writer.write_table(rows.take(pa.array(order)), _GROUP_ROWS)
    named = rows.select(["group", "topic"]).group_by(["group", "topic"]).aggregate([]).combine_chunks()
    paths = pa.repeat(pa.scalar(path), len(named))
    columns = [paths, *(named[name].cast(pa.string()).combine_chunks() for name in ("group", "topic"))]
    yield pa.record_batch(columns, schema=TOLD_FILES)


class _Told:
    """Deliveries by key in a range."""

    def __init__(self, versions: VersionRows, keys: _Keys, paths: Sequence[str]) -> None:
        sides = versions.sides
        rows = pa.concat_tables([load_file(sides.root, path, versions.bounds) for path in paths])
        by_partition = "partition" in rows.column_names
        topics = sorted({topic for topic, _ in sides.units})
        number = np.array([topics.index(topic) for topic, _ in sides.units], np.int64)[keys.unit]
        of_topic = pc.index_in(rows["topic"], pa.array(topics, pa.string())).fill_null(-1)
        at = keys.groups.order[keys.groups.starts]
        partition = versions["partition"][at] if by_partition else np.zeros(len(at), np.int32)
        theirs = np.asarray(rows["partition"]) if by_partition else np.zeros(len(rows), np.int32)
        self._ours = number, partition, versions["high"][at], versions["low"][at]
        self._theirs = np.asarray(of_topic).astype(np.int64), theirs, np.asarray(rows["high"]), np.asarray(rows["low"])
        self._offsets = np.asarray(rows["told"])
        groups = rows["group"].combine_chunks().dictionary_encode()
        self._names, self._group = groups.dictionary.to_pylist(), np.asarray(groups.indices)
        self.without = 0  # rows whose key no record has
        self._found = {name: self._of(self._group == code) for code, name in enumerate(self._names)}

    def of(self, group: str) -> Ints:
        """Return the offset that was delivered of each key to a group, _NONE: none."""
        return self._found[group] if group in self._found else np.full(len(self._ours[0]), _NONE)

    def _of(self, chosen: Bools) -> Ints:
        n = int(chosen.sum())
        columns = [np.concatenate([b[chosen], a]) for a, b in zip(self._ours, self._theirs, strict=True)]
        found = grouped((columns[0] << 32) + columns[1], columns[2], columns[3])
        first = first_valid(found, found.order < n)
        has_key = last_valid(found, found.order >= n) >= 0
        self.without += int((~has_key).sum())
        told = np.append(self._offsets[chosen], _NONE)
        offsets = told[np.where(first < 0, n, found.order[first])]
        out = np.empty(len(found.order), np.int64)
        out[found.order] = offsets[found.of]
        return out[n:]


# -- the report's figures


_Lags = tuple[NDArray[np.int64], NDArray[np.int64]]  # values, rising, and how many keys have each
_WORST: Final = [("age_ms", "descending"), ("lag_versions", "descending"), ("partition", "ascending"),
                 ("key", "ascending")]  # fmt: skip
_WORST_OF_ALL: Final = [*_WORST[:2], ("group", "ascending"), ("topic", "ascending"), *_WORST[2:]]


class PlaceSummary(NamedTuple):
    """Figures that a report shows of a group and a topic in a file of results."""

    counts: Counter[str]  # COUNTS, and "late": keys that have waited for too long
    lags: dict[str, _Lags]
    worst: pa.Table  # undelivered keys that have waited longest, as rows of WORST_KEY


Summary = dict[tuple[str, ...], PlaceSummary]  # by GROUP_PLACE


class Figures(NamedTuple):
    """Figures that a report shows."""

    groups: list[dict[str, Any]]  # rows of GROUP_FIGURES, by place
    worst: pa.Table  # rows of each place
    late: int


def _sampled(values: Ints) -> _Lags:
    """Return the values and how often each occurs; of many, the last of each of _SAMPLES equal shares of the rows."""
    found, n = np.unique(values, return_counts=True)
    if len(found) <= _SAMPLES:
        return found, n
    ends = np.append(np.arange(1, _SAMPLES) * len(values) // _SAMPLES, len(values))
    return np.sort(values)[ends - 1], np.diff(np.append(0, ends))


def spread(lags: Iterable[_Lags]) -> dict[str, int | None]:
    """Return PERCENTILES of a lag: the smallest value that at least such a share of the keys does not exceed."""
    values, counts = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in zip(*lags, strict=True))
    if not len(values):
        return dict.fromkeys(PERCENTILES)
    order = np.argsort(values, kind="stable")
    below = np.cumsum(counts[order])
    at = [int(np.searchsorted(below, max(int(np.ceil(share * below[-1])), 1))) for share in _SHARES]
    return dict(zip(PERCENTILES, values[order][at].tolist(), strict=True))
