"""The records of a coordinator's topic that count at the end of its log, as a coordinator loads them.

A coordinator reads its partition to the high watermark, also after an open transaction, which hides the rest from a
consumer of committed data. A record of a transaction counts once a COMMIT marker of its producer follows. Of the
records of one key the one with the largest offset counts, also if a transaction that began before it commits later:
Kafka compares the offsets of the records. So their order of arrival does not matter here, and every step is a
reduction of columns. Sources: CoordinatorLoaderImpl, OffsetMetadataManager.replay and replayEndTransactionMarker of
4.3.0.

Cost: one reading of the log; in memory are the records that count so far, those of open transactions, and 64 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.layout import CONTROL_ABORT, CONTROL_COMMIT
from lastkey.logformat.schemas import PROBLEM, RECORDS, select
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, ReadSpec, SourcePartition, Wanted, listed_logs, logs_behind
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.problem import Problem

_FLUSH_BYTES: Final = 64 << 20
_TYPE_BYTES: Final = 2
_LONGEST: Final = 2**30
_READ: Final = pa.schema(
    [*select(RECORDS, ["offset", "key", "value", "producer_id", "transactional", "control"]), PROBLEM]
)
LAST: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("identity", pa.large_binary()),  # records with the same one replace each other
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),  # null: a tombstone
    ]
)
_PENDING: Final = LAST.append(pa.field("producer_id", pa.int64()))
_MARKER: Final = np.dtype([("producer_id", "i8"), ("offset", "i8"), ("committed", "?")])


@dataclass(frozen=True)
class Kinds:
    """Record types of a coordinator's topic, by the first two bytes of their keys."""

    wanted: frozenset[int]
    bare: frozenset[int]  # wanted, but their values are not: only whether there is one
    replaces: frozenset[int]  # records of these replace all earlier ones of their identity


class LastRecords(NamedTuple):
    """Records of a partition that count at the end of its log."""

    rows: Any  # pa.Table of LAST, by offset
    types: dict[int, int]  # record type -> records; -1: a key without a type, -2: no key
    problems: tuple[Problem, ...]  # problems of unreadable data
    undecided: int = 0  # records of transactions that have no marker


def last_records(partition: SourcePartition, kinds: Kinds, *, accept_gaps: bool = False) -> LastRecords:
    """Read a partition of a coordinator's topic to its end. Unreadable data becomes a problem."""
    wanted = Wanted(control=True)
    pieces = find_pieces(partition, Range(wanted=wanted, quarantine=True, accept_gaps=accept_gaps))
    state = _State(kinds)
    spec = ReadSpec(_READ, wanted, quarantine=True, logs_behind=partial(logs_behind, [listed_logs(partition)]))
    for batch in read_records(spec, pieces):
        state.add(batch)
    state.settle()
    rows = state.rows.sort_by("offset")
    return LastRecords(rows, state.types, tuple(state.problems), state.lost + len(state.pending))


class _State:
    """Records that count so far, and those of transactions without a marker."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.rows, self.pending = LAST.empty_table(), _PENDING.empty_table()
        self.markers: list[NDArray[np.void]] = []
        self.new: list[Any] = []  # tables of _PENDING: producer -1 where there is no transaction
        self.types: dict[int, int] = {}
        self.problems: list[Problem] = []
        self.lost = 0

    def add(self, batch: Any) -> None:
        """Take the next rows of the log."""
        problems = batch.column("problem").drop_null().to_pylist()
        if problems:
            self.problems += [Problem(**found) for found in problems]
            self.settle()  # a marker may be lost in damage: what is open here stays undecided
            self.lost += len(self.pending)
            self.pending = _PENDING.empty_table()
            return
        is_control = batch.column("control")
        controls = batch.filter(is_control)
        if len(controls):
            self.markers.append(_markers(controls))
        records = _columns(batch.filter(pc.invert(is_control)), self.kinds, self.types)
        if len(records):
            self.new.append(records)
        if sum(table.nbytes for table in self.new) > _FLUSH_BYTES:
            self.settle()

    def settle(self) -> None:
        """Decide transactions whose markers are known, and drop records that others replace."""
        new = pa.concat_tables([self.pending, *self.new])
        is_open = pc.greater_equal(new["producer_id"], 0)
        known, waiting = new.filter(pc.invert(is_open)), new.filter(is_open)
        markers = np.concatenate([np.empty(0, _MARKER), *self.markers])
        verdict = outcomes(np.asarray(waiting["producer_id"]), np.asarray(waiting["offset"]), markers)
        committed = waiting.filter(pa.array(verdict == CONTROL_COMMIT))
        self.pending = waiting.filter(pa.array(verdict < 0))
        counted = pa.concat_tables([known, committed]).select(LAST.names)
        self.rows = reduce_to_last(pa.concat_tables([self.rows, counted]), self.kinds)
        self.new, self.markers = [], []  # later records have offsets above every known marker


def _markers(controls: Any) -> NDArray[np.void]:
    keys = controls.column("key")
    kind = pc.binary_slice(keys, _TYPE_BYTES, 2 * _TYPE_BYTES)
    is_commit = np.asarray(pc.equal(kind, CONTROL_COMMIT.to_bytes(2)).fill_null(False))
    is_marker = is_commit | np.asarray(pc.equal(kind, CONTROL_ABORT.to_bytes(2)).fill_null(False))
    out = np.empty(len(controls), _MARKER)
    out["producer_id"], out["offset"] = controls.column("producer_id"), controls.column("offset")
    out["committed"] = is_commit
    chosen: NDArray[np.void] = out[is_marker]
    return chosen


def _columns(batch: Any, kinds: Kinds, types: dict[int, int]) -> Any:
    """Return the wanted records as a table of _PENDING; count all by type."""
    keys = batch.column("key").cast(pa.large_binary())
    codes = record_types(keys)
    for code, count in zip(*(part.tolist() for part in np.unique(codes, return_counts=True)), strict=True):
        types[code] = types.get(code, 0) + count
    wanted = pa.array(np.isin(codes, sorted(kinds.wanted)))
    batch, keys, codes = batch.filter(wanted), keys.filter(wanted), codes[np.asarray(wanted)]
    values = batch.column("value").cast(pa.large_binary())
    is_bare = pa.array(np.isin(codes, sorted(kinds.bare)))
    bare = pc.and_(is_bare, values.is_valid())
    values = pc.if_else(bare, pa.scalar(b"", pa.large_binary()), values)
    producers = pc.if_else(batch.column("transactional"), batch.column("producer_id"), pa.scalar(-1, pa.int64()))
    columns = [batch.column("offset"), _identities(keys), keys, values, producers]
    return pa.Table.from_arrays(columns, schema=_PENDING)


def _identities(keys: Any) -> Any:
    """Return keys in which the types 0 and 1 are one: they are a commit in the old and the new form, or a snapshot and
    an update of one share partition.
    """
    rest = pc.binary_slice(keys, _TYPE_BYTES, _LONGEST)  # without an end, pyarrow 26 fails on short keys
    one, none = (pa.scalar(data, pa.large_binary()) for data in ((1).to_bytes(_TYPE_BYTES), b""))
    return pc.if_else(pa.array(record_types(keys) == 0), pc.binary_join_element_wise(one, rest, none), keys)


def record_types(keys: Any) -> NDArray[np.int64]:
    """Return int64[n]: the record type of each key, -1 for a key that is too short, -2 for no key."""
    heads = pc.binary_slice(keys, 0, _TYPE_BYTES)
    encoded = heads.dictionary_encode(null_encoding="encode")
    distinct = np.array([_control_type(head) for head in encoded.dictionary.to_pylist()], np.int64)
    return distinct[np.asarray(encoded.indices)] if len(keys) else np.empty(0, np.int64)


def _control_type(head: bytes | None) -> int:
    if head is None:
        return -2
    return int.from_bytes(head, signed=True) if len(head) == _TYPE_BYTES else -1


def outcomes(producers: NDArray[np.int64], offsets: NDArray[np.int64], markers: NDArray[np.void]) -> NDArray[np.int64]:
    """Return int64[n]: CONTROL_COMMIT or CONTROL_ABORT of the next marker after each record's offset, -1: none."""
    both = np.concatenate([markers["offset"], offsets])
    of_producer = np.concatenate([markers["producer_id"], producers])
    kind = np.concatenate([np.where(markers["committed"], CONTROL_COMMIT, CONTROL_ABORT), np.full(len(offsets), -1)])
    order = np.lexsort((both, of_producer))
    row = np.arange(len(order))
    following = np.where(kind[order] >= 0, row, len(order))
    following = np.minimum.accumulate(following[::-1])[::-1] if len(order) else following
    found = np.minimum(following, max(len(order) - 1, 0))
    there = (following < len(order)) & (of_producer[order[found]] == of_producer[order])
    out = np.empty(len(order), np.int64)
    out[order] = np.where(there, kind[order[found]], -1)
    return out[len(markers) :]


def reduce_to_last(table: Any, kinds: Kinds) -> Any:
    """Return the rows of a table of LAST from the last record on that replaces all earlier ones of its identity."""
    if not len(table):
        return table
    encoded = table["identity"].combine_chunks().dictionary_encode()
    codes, offsets = np.asarray(encoded.indices), np.asarray(table["offset"])
    base = np.isin(record_types(table["key"].combine_chunks()), list(kinds.replaces))
    last = np.full(len(encoded.dictionary), -1, np.int64)
    np.maximum.at(last, codes[base], offsets[base])
    return table.filter(pa.array(offsets >= last[codes])).combine_chunks()
