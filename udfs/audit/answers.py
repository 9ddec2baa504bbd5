"""Answers of audits: files of a result table, each written by one task, and what of them still holds.

A file has the rows of a range of hashes for some units. Its metadata has a fingerprint of what each unit's rows were
made from. A later audit keeps the rows of units with the same fingerprint, and answers the others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastkey.udfs.audit.runs import Sides, Unit, VersionRows, load
from lastkey.udfs.storage import file_size, flush, make_folder, native_output, open_file, open_root

_UNITS, _RANGE = b"lastkey.units", b"lastkey.range"
Fingerprints = Mapping[Unit, str]
Reads = Mapping[Unit, Sequence[tuple[int, int, int, int]]]  # side, read_id, start, end of what a unit's rows come from


class Question(Protocol):
    """Question of an audit, answered for a range of hashes."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of VERSIONS that it needs."""

    def answer(self, versions: VersionRows) -> pa.Table | tuple[pa.Table, Any]:
        """Return the rows for the result table; and what the driver needs, if that does not follow from them."""

    def summary(self, table: pa.Table) -> Any:
        """Return what the report shows of rows of the result table."""


@dataclass(frozen=True)
class Asked:
    """Request that all tasks of a question share. folder: of the files, below the store; reads: None if no later audit
    can add to the answer.
    """

    sides: Sides
    question: Question
    folder: str
    fingerprints: Fingerprints
    reads: Reads | None = None


@dataclass(frozen=True)
class AnswerFile:
    """File that a task wrote, below the store, or kept; and what a report shows of it."""

    path: str
    size: int
    rows: int
    summary: Any


def answer(asked: Asked, bounds: tuple[int, int]) -> AnswerFile:
    """Answer the question for a range of hashes."""
    found = asked.question.answer(load(asked.sides, bounds, asked.question.columns))
    table, more = (found, None) if isinstance(found, pa.Table) else found
    summary = asked.question.summary(table) if more is None else more
    reads = None if asked.reads is None else {bounds: asked.reads}
    return write_rows(asked.sides.root, asked.folder, table, asked.fingerprints, summary, reads)


def write_rows(
    root_uri: str, folder: str, table: pa.Table, fingerprints: Fingerprints, summary: Any,
    reads: Mapping[tuple[int, int], Reads] | None = None,
) -> AnswerFile:  # fmt: skip
    """Write and flush rows as a file of a result table. reads: by the range that the rows are of."""
    root, path = open_root(root_uri), f"{folder}/{uuid.uuid4().hex}.parquet"  # a repeated task has another
    metadata = {_UNITS: json.dumps([[*unit, fingerprint] for unit, fingerprint in fingerprints.items()])}
    for bounds, of in (reads or {}).items():
        metadata[_RANGE] = json.dumps([bounds, [[*unit, parts] for unit, parts in of.items()]])
    make_folder(root, folder)
    with native_output(root, path) as stream:
        pq.write_table(
            table.replace_schema_metadata(metadata), stream, compression="zstd", compression_level=1,
            write_page_checksum=True,
        )  # fmt: skip
    flush(root, path)
    return AnswerFile(path, file_size(root, path) or 0, len(table), summary)


@dataclass(frozen=True)
class Labels:
    """Metadata of a file of results. bounds: None if nothing can be added to it."""

    fingerprints: Fingerprints
    bounds: tuple[int, int] | None
    reads: Reads
    rows: int


def labels_of(root_uri: str, path: str) -> Labels | None:
    """Return the metadata of a file of results; None: it cannot be read."""
    try:
        with open_file(open_root(root_uri), path) as file:
            found = pq.read_metadata(file)
        metadata = found.metadata or {}
        units = {(topic, partition): text for topic, partition, text in json.loads(metadata.get(_UNITS, b"[]"))}
        bounds, reads = json.loads(metadata.get(_RANGE, b"[null, []]"))
        of = {(topic, partition): [tuple(part) for part in parts] for topic, partition, parts in reads}
        return Labels(units, None if bounds is None else tuple(bounds), of, found.num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return None


@dataclass(frozen=True)
class KeptAnswers:
    """Request to keep the rows of units in files of earlier answers."""

    root: str
    question: Question
    folder: str
    fingerprints: Fingerprints  # of the units that are kept


def keep(asked: KeptAnswers, path: str) -> AnswerFile | None:
    """Keep the file as it is if all its units are kept, else write those that are. Return None if it is damaged."""
    labels = labels_of(asked.root, path)
    units = {} if labels is None else labels.fingerprints
    kept = {unit: text for unit, text in units.items() if unit in asked.fingerprints}
    try:
        with open_file(open_root(asked.root), path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError):
        return None
    if len(kept) == len(units):
        return AnswerFile(path, 0, len(table), asked.question.summary(table))
    if not kept:
        return AnswerFile("", 0, 0, asked.question.summary(table.slice(0, 0)))
    places = pa.table({"topic": [t for t, _ in kept], "partition": pa.array([p for _, p in kept], pa.int32())})
    codes, topics = _codes(table, places), set(_codes(places, places).tolist())
    rows = table.filter(pa.array(np.isin(codes, sorted(topics))))
    reads = None
    if labels is not None and labels.bounds is not None:
        reads = {labels.bounds: {unit: labels.reads[unit] for unit in kept}}
    return write_rows(asked.root, asked.folder, rows, kept, asked.question.summary(rows), reads)


def _codes(table: pa.Table, places: pa.Table) -> np.ndarray:
    """Return a number for each row's unit; of topics that are not among `places` a negative one."""
    topic = pa.compute.index_in(table["topic"], pa.compute.unique(places["topic"])).fill_null(-1)
    codes: np.ndarray = (np.asarray(topic).astype(np.int64) << 32) + np.asarray(table["partition"])
    return codes
