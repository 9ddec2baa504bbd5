"""A data source without Spark: what the driver plans and the workers read, one after the other in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.data_source.options import parse
from jobs.data_source.plan import plan
from jobs.data_source.read import read_task
from jobs.data_source.read_options import Pushed, ReadOptions
from jobs.data_source.source import SOURCES, columns_of
from udfs.data_source.plan import Task

BY_NAME = {source.source: source for source in SOURCES}


class _Partition:
    def __init__(self, value: Task) -> None:
        self.value = value


def options_of(
    name: str, path: Path | str | list[str] | None, pushed: dict[str, Any] | None = None, **given: str
) -> ReadOptions:
    if isinstance(path, list):
        given["paths"] = json.dumps(path)
    elif path is not None:
        given["path"] = str(path)
    return replace(parse(given, name), pushed=Pushed(**(pushed or {})))


def tasks_of(name: str, path: Path | str | list[str] | None, **given: Any) -> list[Task]:
    return plan(options_of(name, path, **given))


def read(name: str, path: Path | str | list[str] | None, **given: Any) -> pa.Table:
    """All rows; every batch has exactly the schema that is declared."""
    options = options_of(name, path, **given)
    schema = columns_of(BY_NAME[name].columns, options)
    batches = [batch for task in plan(options) for batch in read_task(options, schema, _Partition(task))]
    assert all(batch.schema.equals(schema) for batch in batches)
    if options.max_rows is not None:
        assert all(batch.num_rows <= options.max_rows for batch in batches)
    return pa.Table.from_batches(batches, schema=schema)


def read_only(name: str, path: Path | str | list[str] | None, **given: Any) -> int:
    """The number of rows; none is kept."""
    options = options_of(name, path, **given)
    schema = columns_of(BY_NAME[name].columns, options)
    return sum(batch.num_rows for task in plan(options) for batch in read_task(options, schema, _Partition(task)))
