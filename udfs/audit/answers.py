"""Answers of audits: files of a result table, each written by one task, and the rows that remain valid.

A file has the rows of a range of hashes for some units. Its metadata has a fingerprint of what each unit's rows were
made from. A later audit keeps the rows of units with the same fingerprint, and answers the others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastkey.udfs.audit.runs import Sides, Unit, VersionRows, load
from lastkey.udfs.storage import file_size, flush, make_folder, native_output, open_file, open_root

_UNITS = b"lastkey.units"
Fingerprints = Mapping[Unit, str]


class Question(Protocol):
    """Question of an audit, answered for a range of hashes."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of ENTRIES that it needs."""

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, Any]:
        """Return the rows for the result table, and what the driver needs: a summary, or more."""

    def summary(self, table: pa.Table) -> Any:
        """Return what the report shows of rows of the result table."""


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
    size: int
    rows: int
    summary: Any


def answer(asked: Asked, bounds: tuple[int, int]) -> AnswerFile:
    """Answer the question for a range of hashes."""
    table, summary = asked.question.answer(load(asked.sides, bounds, asked.question.columns))
    return write_rows(asked.sides.root, asked.folder, table, asked.fingerprints, summary)


def write_rows(root_uri: str, folder: str, table: pa.Table, fingerprints: Fingerprints, summary: Any) -> AnswerFile:
    """Write and flush rows as a file of a result table."""
    root, path = open_root(root_uri), f"{folder}/{uuid.uuid4().hex}.parquet"  # a repeated task has another
    metadata = {_UNITS: json.dumps([[*unit, fingerprint] for unit, fingerprint in fingerprints.items()])}
    make_folder(root, folder)
    with native_output(root, path) as stream:
        pq.write_table(
            table.replace_schema_metadata(metadata), stream, compression="zstd", compression_level=1,
            write_page_checksum=True, use_dictionary=[name for name in table.column_names if not _is_distinct(name)],
        )  # fmt: skip
    flush(root, path)
    return AnswerFile(path, file_size(root, path) or 0, len(table), summary)


def _is_distinct(column: str) -> bool:
    """Return whether nearly all values of a result's column differ: a dictionary of them only takes time."""
    return column == "key" or column.endswith(("offset", "timestamp_ms"))


def fingerprints_in(root_uri: str, path: str) -> Fingerprints | None:
    """Return the fingerprints of the units in a file of results; None: it cannot be read."""
    try:
        with open_file(open_root(root_uri), path) as file:
            metadata = pq.read_metadata(file).metadata or {}
        return {(topic, partition): text for topic, partition, text in json.loads(metadata.get(_UNITS, b"[]"))}
    except (pa.ArrowException, OSError, ValueError):
        return None


def keep(asked: Asked, path: str) -> AnswerFile | None:
    """Keep the file as it is if all its units are kept, else write those that are. Return None if it is damaged."""
    root, question = asked.sides.root, asked.question
    units = fingerprints_in(root, path) or {}
    kept = {unit: text for unit, text in units.items() if unit in asked.fingerprints}
    try:
        with open_file(open_root(root), path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError):
        return None
    if len(kept) == len(units):
        return AnswerFile(path, 0, len(table), question.summary(table))
    places = pa.table({"topic": [t for t, _ in kept], "partition": pa.array([p for _, p in kept], pa.int32())})
    codes, topics = _codes(table, places), set(_codes(places, places).tolist())
    rows = table.filter(pa.array(np.isin(codes, sorted(topics))))
    return write_rows(root, asked.folder, rows, kept, question.summary(rows))


def _codes(table: pa.Table, places: pa.Table) -> np.ndarray:
    """Return a number for each row's unit; of topics that are not among `places` a negative one."""
    topic = pa.compute.index_in(table["topic"], pa.compute.unique(places["topic"])).fill_null(-1)
    codes: np.ndarray = (np.asarray(topic).astype(np.int64) << 32) + np.asarray(table["partition"])
    return codes
