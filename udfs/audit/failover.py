"""Offsets at which a group of A continues in B, a copy of A, without loss, partition by partition.

A record of A was *delivered* if its offset is below the group's committed offset; its copy in B is that of its match
(`pairs.match`). Where equal records repeat, more often on one side, as few copies count as delivered as can be.

The group must read, in B,

- every copy of a record that was not delivered;
- every record that A does not have: it was written to B after the clusters parted, or by somebody else. But what A
  had and dropped is not new: it is *passed over* if all of this holds: A has a hole of offsets between the
  neighbours that B has copies of, at least as large; the next neighbour was delivered; and B holds, behind it, a copy
  of a newer record of its key (compaction), or nothing of A's log is left before it (retention).

The safe offset is the smallest of these, and the end of B if there is none. Behind it lie *again* records: copies of
delivered ones, and copies beyond the first.

An undelivered record without a copy is *lost* by the mirror, unless B has a newer version of its key: then B was
compacted, and the record is *superseded*.

Tasks:

  find_states   a range of hashes: what became of each record, written as a file of states; lost records; figures
  first_new     a partition in which holes can change the answer: its rows of all files of states, in order
  behind        a file of states: what a consumer reads from given offsets on

In memory at a time: the versions of a range; for `first_new` 60 bytes for each record of the partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.udfs.audit.pairs import PAIR_COLUMNS, Matches, match, pair_rows
from lastkey.udfs.audit.runs import Bools, Ints, VersionRows
from lastkey.udfs.storage import make_folder, native_output, open_file, open_root

# States of B's records; a record of A that is neither lost nor superseded has no state here
DELIVERED, UNDELIVERED, REPEATED, UNMATCHED = range(4)
PARTITION, LOST = "partition", "lost"  # kinds of rows of PAIRS
NONE: Final = -1  # no offset, no state
_STATES: Final = pa.schema(
    [
        pa.field("unit", pa.int32()),
        pa.field("a_offset", pa.int64()),  # of a record of A, or of the record whose copy the row is; NONE
        pa.field("b_offset", pa.int64()),
        pa.field("b_ms", pa.int64()),
        pa.field("b_state", pa.int8()),
        pa.field("certain", pa.bool_()),  # as many equal records on both sides
        pa.field("has_newer", pa.bool_()),  # a copy of a record of its key is behind it in B
    ]
)
# Nearly all offsets and times differ: a dictionary of them takes longer than the rest of writing
_WRITTEN: Final[dict[str, Any]] = {"compression": "lz4", "use_dictionary": ["unit"], "write_statistics": ["unit"]}
_LARGEST: Final = np.iinfo(np.int64).max
COUNTED: Final = ("a_records", "b_records", "matched", "undelivered", "lost", "superseded")
LEAST: Final = ("a_first", "b_first", "first_undelivered", "first_unmatched", "first_copy", "undelivered_from_ms")
MOST: Final = ("a_end", "b_end", "delivered_to_ms")
Figures = dict[str, Ints]  # int64[units] by name; the largest number in LEAST, and ~ of it in MOST: none


@dataclass(frozen=True)
class FailoverQuestion:
    """Question of `audit failover`. committed: the group's offset in A of each unit; NONE: nothing."""

    source: str
    group: str
    committed: tuple[int, ...]
    ignore_timestamps: bool
    most: int
    states_folder: str
    columns = PAIR_COLUMNS

    def answer(self, versions: VersionRows) -> tuple[pa.Table, RangeResult]:
        """Return the rows of lost records, and what else the range says."""
        root, path = open_root(versions.sides.root), f"{self.states_folder}/{uuid.uuid4().hex}.parquet"
        make_folder(root, self.states_folder)
        with native_output(root, path) as stream, pq.ParquetWriter(stream, _STATES, **_WRITTEN) as writer:
            tables, figures = zip(*(self._part(part, writer) for part in versions.split()), strict=True)
        lost = pa.concat_tables(tables)
        return lost, RangeResult(add_figures(figures), path, first_lost(lost, self.most))

    def _part(self, versions: VersionRows, writer: Any) -> tuple[pa.Table, Figures]:
        """Write the states of a part. Return the rows of lost records, and figures."""
        matches = match(versions, ignore_timestamps=self.ignore_timestamps)
        states = _States(matches, np.array(self.committed, np.int64))
        writer.write_table(states.rows())
        rows = np.flatnonzero(states.lost)
        offset, unit = (column[rows] for column in (states.offset, states.unit))
        known = versions.sides.units
        columns = {
            "source": pa.repeat(pa.scalar(self.source), len(rows)),
            "group": pa.repeat(pa.scalar(self.group), len(rows)),
            "kind": pa.repeat(pa.scalar(LOST), len(rows)),
            "topic": pa.DictionaryArray.from_arrays(pa.array(unit), pa.array([t for t, _ in known], pa.string())),
            "partition": np.array([partition for _, partition in known], np.int32)[unit],
            "key": versions.arrow(matches.keys.order[rows], "key")[0],
            "offset": offset,
            "timestamp_ms": states.time[rows],
        }
        return pair_rows(len(rows), columns), states.figures(len(known))

    def summary(self, table: pa.Table) -> Earlier:
        """Return the answers of partitions among rows of the result table, and the first lost records."""
        answers = table.filter(pa.compute.field("kind") == PARTITION).to_pylist()
        return Earlier(answers, first_lost(table, self.most))


@dataclass(frozen=True)
class RangeResult:
    """Result of a range: figures of each unit, path of the file of states, first lost records."""

    figures: Figures
    states: str
    lost: list[dict[str, Any]]


@dataclass(frozen=True)
class Earlier:
    """Rest of an earlier audit: rows of PAIRS of partitions, and first lost records."""

    answers: list[dict[str, Any]]
    lost: list[dict[str, Any]]


def first_lost(table: pa.Table, most: int) -> list[dict[str, Any]]:
    """Return the first lost records among rows of PAIRS."""
    lost = table.filter(pa.compute.field("kind") == LOST)
    by = [(name, "ascending") for name in ("topic", "partition", "offset")]
    rows = lost.take(pa.compute.select_k_unstable(lost, most, sort_keys=by))
    return list(rows.select(["topic", "partition", "offset", "timestamp_ms", "key"]).to_pylist())


class _States:
    """States of all records: arrays in the order of the matches."""

    def __init__(self, matches: Matches, committed: Ints) -> None:
        self.matches, self.unit, in_b = matches, matches.unit, matches.in_b
        self.offset, self.time = matches["offset"], matches["timestamp_ms"]
        keyed, n_a, n_b, rank = ~matches["keyless"], matches.n_a, matches.n_b, matches.occurrence + 1
        self.in_b, self.is_delivered = in_b, ~in_b & (self.offset < committed[self.unit])
        # of the equal records
        delivered = np.bincount(matches.first[self.is_delivered], minlength=len(in_b))[matches.first]
        undelivered = n_a - delivered
        # Copies of B before the first that may be undelivered: as many as were delivered, fewer if B has lost some
        before = np.maximum(np.minimum(delivered, n_b - undelivered), 0)
        rules = [n_a == 0, (undelivered == 0) | (rank <= before), rank - before <= undelivered]
        state = np.select(rules, [UNMATCHED, DELIVERED, UNDELIVERED], REPEATED)
        self.b_state = np.where(in_b, state, NONE).astype(np.int8)
        of_key = matches.keys.of
        last_copy, last_copied = (
            np.maximum.reduceat(np.where(which, self.offset, NONE), matches.keys.starts)[of_key]
            for which in (in_b & (n_a > 0), ~in_b & (n_b > 0))
        )
        without = ~in_b & ~self.is_delivered & (rank - delivered <= undelivered - n_b)
        self.superseded = without & keyed & (last_copied > self.offset)
        self.lost = without & ~self.superseded
        self.has_newer = in_b & keyed & (last_copy > self.offset)

    def rows(self) -> pa.Table:
        """Return a row for each match, by unit."""
        chosen = np.flatnonzero(~self.in_b | (self.matches.copy < 0))
        chosen = chosen[np.argsort(self.unit[chosen], kind="stable")]
        of_b = np.where(self.in_b[chosen], chosen, self.matches.copy[chosen])
        there = of_b >= 0
        columns = [
            self.unit[chosen],
            np.where(self.in_b[chosen], NONE, self.offset[chosen]),
            *(np.where(there, values[of_b], NONE) for values in (self.offset, self.time, self.b_state)),
            (self.matches.n_a == self.matches.n_b)[chosen],
            self.has_newer[of_b] & there,
        ]
        return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, _STATES, strict=True)], schema=_STATES)

    def figures(self, n_units: int) -> Figures:
        """Return what each unit holds on each side, and what decides where to go on."""
        in_a, in_b, open_ = ~self.in_b, self.in_b, ~self.in_b & ~self.is_delivered
        counted = in_a, in_b, in_a & (self.matches.copy >= 0), open_, self.lost, self.superseded
        out = {
            name: np.bincount(self.unit[which], minlength=n_units)
            for name, which in zip(COUNTED, counted, strict=True)
        }  # fmt: skip
        states = self.b_state == UNDELIVERED, self.b_state == UNMATCHED, in_b & (self.b_state != UNMATCHED)
        least = in_a, in_b, *states, open_
        for name, which in zip(LEAST, least, strict=True):
            out[name] = np.full(n_units, _LARGEST)
            np.minimum.at(out[name], self.unit[which], (self.time if name.endswith("_ms") else self.offset)[which])
        for name, which in zip(MOST, (in_a, in_b, self.is_delivered), strict=True):
            out[name] = np.full(n_units, ~_LARGEST)
            np.maximum.at(out[name], self.unit[which], (self.time if name.endswith("_ms") else self.offset + 1)[which])
        return out


def add_figures(all_: Sequence[Figures]) -> Figures:
    """Return the figures of all ranges together."""
    ways = dict.fromkeys(COUNTED, np.add) | dict.fromkeys(LEAST, np.minimum) | dict.fromkeys(MOST, np.maximum)
    return {name: way.reduce([one[name] for one in all_]) for name, way in ways.items()}


def figure(figures: Figures, name: str, unit: int) -> int | None:
    """Return a figure of a unit; None: none."""
    value = int(figures[name][unit])
    return None if name not in COUNTED and value in (_LARGEST, ~_LARGEST) else value


@dataclass(frozen=True)
class Suspect:
    """Partition whose answer may be a record that A had and dropped: A has holes, and was read beyond them."""

    unit: int
    committed: int
    a_first: int
    first_copy: int | None


def first_new(root: str, paths: Sequence[str], suspect: Suspect) -> int | None:
    """Return the offset of the first record of B in a partition that A never had; None: all unmatched records are
    passed over.
    """
    rows = pa.concat_tables([_STATES.empty_table(), *(_unit_states(root, path, suspect.unit) for path in paths)])
    a, b, certain, has_newer = (np.asarray(rows[n]) for n in ("a_offset", "b_offset", "certain", "has_newer"))
    of_a = np.sort(a[a >= 0])
    unmatched, copies = np.asarray(rows["b_state"]) == UNMATCHED, (b >= 0) & (a >= 0) & certain
    chosen = np.flatnonzero(unmatched | copies)
    chosen = chosen[np.argsort(b[chosen])]
    a, b, has_newer = a[chosen], b[chosen], has_newer[chosen]
    is_copy = a >= 0
    # A run: a copy, and the unmatched records between it and the next copy; the first run may have no copy
    run = np.cumsum(is_copy)
    starts = np.flatnonzero(np.append(True, run[1:] != run[:-1]))[: len(run)]
    a_offset = np.maximum.reduceat(a, starts)
    holes = np.where(a_offset >= 0, a_offset - np.searchsorted(of_a, a_offset), 0)
    alone = ~is_copy & ~has_newer
    inside = alone & (b > (_LARGEST if suspect.first_copy is None else suspect.first_copy))
    n, n_alone, n_inside = (np.add.reduceat(which.astype(np.int64), starts) for which in (~is_copy, alone, inside))
    first = np.minimum.reduceat(np.where(is_copy, _LARGEST, b), starts)
    next_offset, next_holes = np.append(a_offset[1:], NONE), np.append(holes[1:], 0)
    passed_over = (
        (next_offset > a_offset)
        & (next_offset < suspect.committed)
        & (n <= next_holes - holes)
        & (n_inside == 0)  # the others may have gone by retention, from below A's first offset
        & (n_alone <= suspect.a_first)
    )
    new = first[~passed_over & (first < _LARGEST)]
    return int(new.min()) if len(new) else None


def _unit_states(root: str, path: str, unit: int) -> pa.Table:
    """Return the states of a unit."""
    with open_file(open_root(root), path) as file:
        parquet = pq.ParquetFile(file)
        bounds = [parquet.metadata.row_group(n).column(0).statistics for n in range(parquet.num_row_groups)]
        groups = [n for n, of in enumerate(bounds) if of.min <= unit <= of.max]
        rows = parquet.read_row_groups(groups, use_threads=False)
    return rows.filter(pa.compute.field("unit") == unit)


READ: Final = ("read", "again", "not_of_a", "passed_over")


@dataclass(frozen=True)
class Continuations:
    """Offsets at which a consumer continues, by unit; NONE: nowhere. from_ms: of units answered by time."""

    root: str
    go_on: tuple[int, ...]
    from_ms: tuple[int | None, ...]


def first_at(asked: Continuations, path: str) -> Ints:
    """Return int64[units]: the first offset of B in a file of states with a timestamp of at least from_ms."""
    unit, offset, time, _ = _b_states(asked, path)
    least = np.array([_LARGEST if ms is None else ms for ms in asked.from_ms], np.int64)
    wanted = np.array([ms is not None for ms in asked.from_ms], np.bool_)
    out = np.full(len(asked.from_ms), _LARGEST)
    later = wanted[unit] & (time >= least[unit])
    np.minimum.at(out, unit[later], offset[later])
    return out


def behind(asked: Continuations, path: str) -> tuple[dict[str, Ints], Ints, Ints]:
    """Return READ of each unit, int64[units], and the earliest and latest time of what is read again."""
    unit, offset, time, state = _b_states(asked, path)
    go_on = np.array(asked.go_on, np.int64)
    there = go_on[unit] >= 0
    read = there & (offset >= go_on[unit])
    again = read & ((state == DELIVERED) | (state == REPEATED))
    which = read, again, read & (state == UNMATCHED), there & ~read & (state == UNMATCHED)
    counts = {name: np.bincount(unit[one], minlength=len(go_on)) for name, one in zip(READ, which, strict=True)}
    earliest, latest = np.full(len(go_on), _LARGEST), np.full(len(go_on), ~_LARGEST)
    np.minimum.at(earliest, unit[again], time[again])
    np.maximum.at(latest, unit[again], time[again])
    return counts, earliest, latest


def _b_states(asked: Continuations, path: str) -> tuple[NDArray[np.int32], Ints, Ints, NDArray[np.int8]]:
    """Return unit, offset, time and state of B's records in a file of states."""
    with open_file(open_root(asked.root), path) as file:
        rows = pq.read_table(file, columns=["unit", "b_offset", "b_ms", "b_state"], use_threads=False)
    unit, offset, time, state = (np.asarray(rows[name]) for name in rows.column_names)
    of_b: Bools = offset >= 0
    return unit[of_b], offset[of_b], time[of_b], state[of_b]
