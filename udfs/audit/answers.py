"""Answers of audits: files of a result table, each written by one task, and the rows that remain valid.

A file has the rows of a range of hashes for some units. Its metadata has a fingerprint of what each unit's rows were
made from. A later audit keeps the rows of units with the same fingerprint, and answers the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastkey.udfs.audit.runs import Sides, Unit, VersionRows, load
from lastkey.udfs.audit.tables import new_file
from lastkey.udfs.storage import file_size, flush, open_file, open_root

_UNITS = b"lastkey.units"
_WRITTEN: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
Fingerprints = Mapping[Unit, str]


class Question(Protocol):
    """Question of an audit, answered for a range of hashes."""

    @property
    def source(self) -> str:
        """Source, as the result table names it."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the result table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of ENTRIES that it needs."""

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, Any]:
        """Return the rows for the result table, and what else the driver needs."""

    def summary(self, table: pa.Table) -> Any:
        """Return what the report shows of rows of the result table."""

    def merged(self, summaries: Sequence[Any]) -> Any:
        """Return the summary of all files."""


@dataclass(frozen=True)
class Asked:
    """Request that all tasks of a question share. folder: of the files, below the store; fingerprints: of the units
    that are answered, or kept.
    """

    sides: Sides
    question: Question
    folder: str
    fingerprints: Fingerprints


@dataclass(frozen=True)
class AnswerFile:
    """File that a task wrote, below the store, or kept; and what a report shows of it."""

    path: str
    size: int  # 0: an earlier audit wrote it
    rows: int
    summary: Any
    more: Any = None  # facts for the driver beside the rows


def answer(asked: Asked, bounds: tuple[int, int]) -> AnswerFile:
    """Answer the question for a range of hashes."""
    return write_rows(asked, *asked.question.answer(load(asked.sides, bounds, asked.question.columns)))


def write_rows(asked: Asked, table: pa.Table, more: Any = None) -> AnswerFile:
    """Write and flush rows of the units that are answered as a file of the result table."""
    root = open_root(asked.sides.root)
    metadata = {_UNITS: json.dumps([[*unit, fingerprint] for unit, fingerprint in asked.fingerprints.items()])}
    table = table.replace_schema_metadata(metadata)
    encoded = [name for name in table.column_names if not _is_distinct(name)]
    with new_file(root, asked.folder, table.schema, use_dictionary=encoded, **_WRITTEN) as (path, writer, _):
        writer.write_table(table)
    flush(root, path)
    return AnswerFile(path, file_size(root, path) or 0, len(table), asked.question.summary(table), more)


def _is_distinct(column: str) -> bool:
    """Return whether nearly all values of a result's column differ: a dictionary of them only takes time."""
    return column == "key" or column.endswith(("offset", "timestamp_ms"))


def fingerprints_in(root_uri: str, path: str) -> Fingerprints | None:
    """Return the fingerprints of the units in a file of results; None: it cannot be read."""
    try:
        with open_file(open_root(root_uri), path) as file:
            return _fingerprints(pq.read_metadata(file).metadata)
    except (pa.ArrowException, OSError, ValueError):
        return None


def _fingerprints(metadata: Mapping[bytes, bytes] | None) -> Fingerprints:
    return {(topic, partition): text for topic, partition, text in json.loads((metadata or {}).get(_UNITS, b"[]"))}


def keep(asked: Asked, path: str) -> AnswerFile | None:
    """Keep the file as it is if all its units are kept, else write those that are. Return None if it is damaged."""
    try:
        with open_file(open_root(asked.sides.root), path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError):
        return None
    units = _fingerprints(table.schema.metadata)
    kept = {unit: text for unit, text in units.items() if unit in asked.fingerprints}
    if len(kept) == len(units):
        return AnswerFile(path, 0, len(table), asked.question.summary(table))
    places = pa.table({"topic": [t for t, _ in kept], "partition": pa.array([p for _, p in kept], pa.int32())})
    codes, topics = _codes(table, places), set(_codes(places, places).tolist())
    return write_rows(replace(asked, fingerprints=kept), table.filter(pa.array(np.isin(codes, sorted(topics)))))


def _codes(table: pa.Table, places: pa.Table) -> np.ndarray:
    """Return a number for each row's unit; of topics that are not among `places` a negative one."""
    topic = pc.index_in(table["topic"], pc.unique(places["topic"])).fill_null(-1)
    codes: np.ndarray = (np.asarray(topic).astype(np.int64) << 32) + np.asarray(table["partition"])
    return codes
