"""Rows as Spark expects them: exactly the declared schema, and a row for what could not be read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pyarrow as pa

from lastkey.logformat.schemas import PATH, PROBLEM
from lastkey.udfs.data_source.pieces import Piece
from lastkey.udfs.problem import Problem


def aligned(batch: Any, schema: Any, piece: Piece) -> Any:
    """Return a record batch with `schema`, a pa.Schema: columns by name, cast if Spark has no such type.

    Fills in `path`; `problem` is null.
    """
    return pa.record_batch([_column(batch, field, piece) for field in schema], schema=schema)


def _column(batch: Any, field: Any, piece: Piece) -> Any:
    if field.name == PROBLEM.name:
        return pa.nulls(len(batch), field.type)
    if field.name == PATH.name:
        return pa.repeat(pa.scalar(piece.shown, field.type), len(batch))
    values = batch.column(field.name)
    return values if values.type == field.type else values.cast(field.type)


def problem_row(schema: Any, piece: Piece, problem: Problem) -> Any:
    """Return one row of `schema` with topic, partition, path and problem, as far as it has such columns; else nulls."""
    known = {field.name: getattr(problem, field.name) for field in fields(problem) if field.name != "state"}
    values = {"topic": piece.topic, "partition": piece.partition, PATH.name: problem.path, PROBLEM.name: known}
    return pa.record_batch([pa.array([values.get(field.name)], field.type) for field in schema], schema=schema)
