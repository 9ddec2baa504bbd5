"""A data source without Spark: the driver's plan, and the workers' reads, one after the other in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lastkey.jobs.data_source.options import ReadOptions, parse
from lastkey.jobs.data_source.plan_tasks import plan
from lastkey.jobs.data_source.read import read_task
from lastkey.jobs.data_source.source import SOURCES, select_columns
from lastkey.udfs.data_source.pieces import Task

BY_NAME = {source.source: source for source in SOURCES}


class _Partition:
    def __init__(self, value: Task) -> None:
        self.value = value


def parse_options(
    name: str, path: Path | str | list[str] | None, pushed: dict[str, Any] | None = None, **given: str
) -> ReadOptions:
    if isinstance(path, list):
        given["paths"] = json.dumps(path)
    elif path is not None:
        given["path"] = str(path)
    options, limits = parse(given, name), dict(pushed or {})
    asked = replace(
        options.asked, **{name: limits.pop(name) for name in ("start_offset", "end_offset") if name in limits}
    )
    if "keys" in limits and asked.wanted.keys is not None:
        limits["keys"] &= asked.wanted.keys
    return replace(options, asked=replace(asked, wanted=replace(asked.wanted, **limits)))


def list_tasks(name: str, path: Path | str | list[str] | None, **given: Any) -> list[Task]:
    return plan(parse_options(name, path, **given))


def read(name: str, path: Path | str | list[str] | None, **given: Any) -> pa.Table:
    """Return all rows; every batch must have exactly the declared schema."""
    options = parse_options(name, path, **given)
    schema = select_columns(BY_NAME[name].columns, options)
    batches = [batch for task in plan(options) for batch in read_task(options, schema, _Partition(task))]
    assert all(batch.schema.equals(schema) for batch in batches)
    if options.max_rows is not None:
        assert all(batch.num_rows <= options.max_rows for batch in batches)
    return pa.Table.from_batches(batches, schema=schema)


def read_only(name: str, path: Path | str | list[str] | None, **given: Any) -> int:
    """Return the number of rows; keeps none."""
    options = parse_options(name, path, **given)
    schema = select_columns(BY_NAME[name].columns, options)
    return sum(batch.num_rows for task in plan(options) for batch in read_task(options, schema, _Partition(task)))
