"""Offsets at which a group of A continues in B, a copy of A, without loss, partition by partition.

A record of A was *delivered* if its offset is below the group's committed offset; its copy in B is that of its match
(`runs.match`). Where equal records repeat, more often on one side, as few copies count as delivered as can be.

The group must read, in B,

- every copy of a record that was not delivered;
- every record that A does not have: it was written to B after the mirroring ended, or by another producer. A record
  that A had and removed is not new. It is *passed over* if all of these conditions hold: A has a hole of offsets
  between the neighbours that B has copies of, at least as large; the next neighbour was delivered; and B holds a
  later copy of a newer record of its key (compaction), or no records of A's log are left before it (retention).

The safe offset is the smallest of these, and the end of B if there is none. After it are *again* records: copies of
delivered ones, and copies beyond the first.

An undelivered record without a copy is *lost* by the mirror, unless B has a newer version of its key: then B was
compacted, and the record is *superseded*.

Tasks:

  find_states   a range of hashes: the state of each record, written as a file of states; lost records; figures
  first_new     a partition in which holes can change the answer: its rows of all files of states, in order
  behind        a file of states: what a consumer reads from given offsets on

In memory at a time: the versions of a range; for `first_new` 60 bytes for each record of the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lastkey.udfs.audit.failover_kernels import (
    DELIVERED,
    FIGURES,
    LEAST,
    LOST,
    MOST,
    NONE,
    REPEATED,
    UNMATCHED,
    Records,
    find_states,
)
from lastkey.udfs.audit.runs import PAIR_COLUMNS, Bools, Ints, Matches, Unit, VersionRows, match
from lastkey.udfs.audit.tables import PAIRS, first_rows, joined, make_table, new_file
from lastkey.udfs.storage import open_file, open_root

PARTITION, LOST_RECORD = "partition", "lost"  # kinds of rows of PAIRS
LOST_ROW: Final = pa.schema([PAIRS.field(name) for name in ("topic", "partition", "offset", "timestamp_ms", "key")])
_STATES: Final = pa.schema(
    [
        pa.field("unit", pa.int32()),
        pa.field("a_offset", pa.int64()),  # offset of a record of A, or of the original of a copy; NONE
        pa.field("b_offset", pa.int64()),
        pa.field("b_ms", pa.int64()),
        pa.field("b_state", pa.int8()),
        pa.field("certain", pa.bool_()),  # as many equal records on both sides
        pa.field("has_newer", pa.bool_()),  # a copy of a record of its key is after it in B
    ]
)
# Nearly all offsets and times differ: a dictionary of them takes longer than the rest of writing
_WRITTEN: Final[dict[str, Any]] = {"compression": "lz4", "use_dictionary": ["unit"], "write_statistics": ["unit"]}
READ: Final = ("read", "again", "not_of_a", "passed_over")
BEHIND: Final = (*READ, "again_from_ms", "again_to_ms")
_LARGEST: Final = np.iinfo(np.int64).max
_LEAST, _MOST = (*LEAST, "again_from_ms"), (*MOST, "again_to_ms")
Summary = dict[str, pa.Table]  # "partitions": PAIRS; "lost": LOST_ROW
Figures = Ints  # int64[units, names]; the largest number in LEAST, and ~ of it in MOST: none


@dataclass(frozen=True)
class FailoverQuestion:
    """Question of `audit failover`. committed: the group's offsets in A."""

    source: str
    group: str
    committed: Mapping[Unit, int]
    ignore_timestamps: bool
    most: int
    root: str
    states_folder: str
    schema = PAIRS
    columns = PAIR_COLUMNS

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, RangeResult]:
        """Return the rows of lost records, and figures and states of the range."""
        with new_file(open_root(self.root), self.states_folder, _STATES, **_WRITTEN) as (path, writer, _):
            tables, figures = zip(*(self._part(part, writer) for part in parts), strict=True)
        return pa.concat_tables(tables), RangeResult(add_figures(figures), path)

    def _part(self, versions: VersionRows, writer: Any) -> tuple[pa.Table, Figures]:
        """Write the states of a part. Return the rows of lost records, and figures."""
        matches, units = match(versions, ignore_timestamps=self.ignore_timestamps), versions.sides.units
        records = Records(*(matches[name] for name in ("unit", "side", "keyless", "offset", "timestamp_ms")))
        n, committed = len(versions), np.array([self.committed.get(unit, NONE) for unit in units], np.int64)
        states, newer, figures = np.empty(n, np.int8), np.empty(n, np.bool_), _no_figures(len(units))
        memory = np.empty(n, np.int64)
        find_states(matches.keys.starts, records, matches.links, committed, memory, states, newer, figures)
        if n:
            writer.write_table(_state_rows(records, matches, states, newer))
        rows = np.flatnonzero(states == LOST)
        columns = {
            "source": self.source,
            "group": self.group,
            "kind": LOST_RECORD,
            **versions.sides.places(records.unit[rows]),
            "key": versions.arrow(matches.keys.order[rows], "key")[0],
            "offset": records.offset[rows],
            "timestamp_ms": records.time[rows],
        }
        return make_table(len(rows), columns, PAIRS), figures

    def summary(self, table: pa.Table) -> Summary:
        """Return the rows of partitions, and of the first lost records."""
        return self.merged(
            [
                {
                    "partitions": table.filter(pc.field("kind") == PARTITION),
                    "lost": table.filter(pc.field("kind") == LOST_RECORD).select(LOST_ROW.names),
                }
            ]
        )

    def merged(self, summaries: Sequence[Summary]) -> Summary:
        """Return the rows of all."""
        tables, by = joined(summaries), [(name, "ascending") for name in ("topic", "partition", "offset")]
        return tables | {"lost": first_rows(tables["lost"], by, self.most)}


class RangeResult(NamedTuple):
    """Figures of each unit in a range, and the path of its file of states."""

    figures: Figures
    states: str


def _state_rows(records: Records, matches: Matches, states: NDArray[np.int8], newer: Bools) -> pa.Table:
    """Return a row of _STATES for each match, by unit."""
    links = matches.links
    chosen = np.flatnonzero(~records.in_b | (links.copy < 0))
    chosen = chosen[np.argsort(records.unit[chosen], kind="stable")]
    of_b = np.where(records.in_b[chosen], chosen, links.copy[chosen])
    there = of_b >= 0
    columns = [
        records.unit[chosen],
        np.where(records.in_b[chosen], NONE, records.offset[chosen]),
        *(np.where(there, values[of_b], NONE) for values in (records.offset, records.time, states)),
        (links.n_a == links.n_b)[chosen],
        newer[of_b] & there,
    ]
    return make_table(len(chosen), dict(zip(_STATES.names, columns, strict=True)), _STATES)


def _no_figures(n_units: int, names: Sequence[str] = FIGURES) -> Figures:
    none = [_LARGEST if name in _LEAST else ~_LARGEST if name in _MOST else 0 for name in names]
    return np.tile(np.array(none, np.int64), (n_units, 1))


def add_figures(all_: Sequence[Figures], names: Sequence[str] = FIGURES) -> Figures:
    """Return the figures of all ranges, or files, together."""
    ways = [np.minimum if name in _LEAST else np.maximum if name in _MOST else np.add for name in names]
    stacked = np.stack(all_)
    return np.column_stack([way.reduce(stacked[:, :, i]) for i, way in enumerate(ways)])


def named_figures(figures: Figures) -> list[dict[str, Any]]:
    """Return FIGURES of each unit by name; None: none."""
    none = {**dict.fromkeys(LEAST, _LARGEST), **dict.fromkeys(MOST, ~_LARGEST)}
    rows = (zip(FIGURES, row, strict=True) for row in figures.tolist())
    return [{name: None if n == none.get(name) else n for name, n in row} for row in rows]


@dataclass(frozen=True)
class Suspect:
    """Partition whose answer may be a record that A had and removed: A has holes, and was read above them."""

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
        & (n_inside == 0)  # retention may have removed the others, below A's first offset
        & (n_alone <= suspect.a_first)
    )
    new = first[~passed_over & (first < _LARGEST)]
    return int(new.min()) if len(new) else None


def _unit_states(root: str, path: str, unit: int) -> pa.Table:
    """Return the states of a unit."""
    with open_file(open_root(root), path) as file:
        return pq.read_table(file, filters=pc.field("unit") == unit, use_threads=False)


def first_at(root: str, from_ms: Sequence[int | None], path: str) -> Ints:
    """Return int64[units]: the first offset of B in a file of states with a timestamp of at least from_ms, where that
    is given.
    """
    unit, offset, time, _ = _b_states(root, path)
    least = np.array([_LARGEST if ms is None else ms for ms in from_ms], np.int64)
    wanted = np.array([ms is not None for ms in from_ms], np.bool_)
    out = np.full(len(from_ms), _LARGEST)
    later = wanted[unit] & (time >= least[unit])
    np.minimum.at(out, unit[later], offset[later])
    return out


def behind(root: str, offsets: Sequence[int], path: str) -> Figures:
    """Return BEHIND of each unit: what a consumer reads, and the earliest and latest time of what it reads again.
    offsets: at which it continues in B, by unit; NONE: nowhere.
    """
    unit, offset, time, state = _b_states(root, path)
    begin = np.array(offsets, np.int64)
    there = begin[unit] >= 0
    read = there & (offset >= begin[unit])
    again = read & ((state == DELIVERED) | (state == REPEATED))
    which = read, again, read & (state == UNMATCHED), there & ~read & (state == UNMATCHED)
    out = _no_figures(len(begin), BEHIND)
    for i, rows in enumerate(which):
        out[:, i] = np.bincount(unit[rows], minlength=len(begin))
    np.minimum.at(out[:, -2], unit[again], time[again])
    np.maximum.at(out[:, -1], unit[again], time[again])
    return out


def _b_states(root: str, path: str) -> tuple[NDArray[np.int32], Ints, Ints, NDArray[np.int8]]:
    """Return unit, offset, time and state of B's records in a file of states."""
    with open_file(open_root(root), path) as file:
        rows = pq.read_table(file, columns=["unit", "b_offset", "b_ms", "b_state"], use_threads=False)
    unit, offset, time, state = (np.asarray(rows[name]) for name in rows.column_names)
    of_b: Bools = offset >= 0
    return unit[of_b], offset[of_b], time[of_b], state[of_b]
