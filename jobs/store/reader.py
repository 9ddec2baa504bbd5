"""The Delta tables of a store read by delta-rs: in milliseconds, and without a Spark session.

What a job commits it reads through its session (`jobs.store.tables`); a job that only reads a store needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from jobs.errors import MissingPathError
from jobs.store.paths import CHECKPOINTS, RUNS, SEGMENTS, table_folder
from jobs.store.rows import Checkpoint, RunRow, Segment, arrow_schema, from_arrow, histories
from jobs.topics import Key
from udfs.storage import Root

# In a local path delta-rs takes %20 for a blank and a backslash for a slash, and so reads another folder
_MISREAD: Final = re.compile(r"%[0-9a-fA-F]{2}|[\\\x00-\x1f\x7f]")


def is_readable(store: Root) -> bool:
    """Whether delta-rs reads tables of a local store where they lie."""
    return _MISREAD.search(store.base) is None


def table_rows(store: Root, name: str, kind: Any, filters: list[tuple[str, str, Any]] | None = None) -> list[Any]:
    """The rows of a state table, or those that pass the filters of a column, an operator and a value each.

    MissingPathError: there is no such table, it cannot be read, or its path is one that delta-rs misreads.
    """
    uri = f"{store.base if store.is_local else store.uri}/{table_folder(name)}"
    if store.is_local and not is_readable(store):
        raise MissingPathError(
            path=uri, expected="a path without \\ and percent escapes, which delta-rs takes for others", found="some"
        )
    try:
        table = DeltaTable(uri).to_pyarrow_table(filters=filters)
    except (DeltaError, TableNotFoundError) as error:
        raise MissingPathError(path=uri, expected="a Delta table", found=str(error)) from error
    known = [name for name in arrow_schema(kind).names if name in table.column_names]
    return from_arrow(kind, table.select(known))


@dataclass
class StoreReader:
    """The tables of one store (`StoreTables`), each as it was when it was first asked for."""

    root: Root

    @cached_property
    def _current(self) -> dict[Key, Checkpoint]:
        return {(row.topic, row.partition): row for row in table_rows(self.root, CHECKPOINTS, Checkpoint)}

    @cached_property
    def _runs(self) -> list[RunRow]:
        return table_rows(self.root, RUNS, RunRow)

    def checkpoints(self) -> dict[Key, Checkpoint]:
        """Every partition's current generation."""
        return dict(self._current)

    def histories(self, topics: Iterable[str] | None = None) -> dict[Key, list[RunRow]]:
        """The committed runs of every partition, or of those of some topics, newest first."""
        wanted = None if topics is None else set(topics)
        current = {key: row for key, row in self._current.items() if wanted is None or key[0] in wanted}
        return histories(current, self._runs)

    def manifests(self, wanted: Mapping[Key, tuple[int, str]]) -> dict[Key, list[Segment]]:
        """The segments of many partitions' (generation, run id), each list by base offset."""
        found: dict[Key, list[Segment]] = {key: [] for key in wanted}
        for row in self.segments_of_runs({run_id for _, run_id in wanted.values()}):
            if wanted.get((row.topic, row.partition)) == (row.generation, row.run_id):
                found[row.topic, row.partition].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: row.base_offset)
        return found

    def segments_of_runs(self, run_ids: Iterable[str]) -> list[Segment]:
        """Every row that these runs appended, committed or not, in no order."""
        ids = sorted(set(run_ids))
        return table_rows(self.root, SEGMENTS, Segment, [("run_id", "in", ids)]) if ids else []
