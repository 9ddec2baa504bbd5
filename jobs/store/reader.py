"""The Delta tables of a store read without a session."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from jobs.errors import MissingPathError
from jobs.store.paths import table_folder
from jobs.store.rows import arrow_schema, from_arrow
from udfs.storage import Root


def table_rows(store: Root, name: str, kind: Any, filters: list[tuple[str, str, Any]] | None = None) -> list[Any]:
    """The rows of a state table, or those that pass the filters of a column, an operator and a value each."""
    uri = f"{store.base if store.is_local else store.uri}/{table_folder(name)}"
    try:
        table = DeltaTable(uri).to_pyarrow_table(filters=filters)
    except (DeltaError, TableNotFoundError) as error:
        raise MissingPathError(path=uri, expected="a Delta table", found=str(error)) from error
    known = [name for name in arrow_schema(kind).names if name in table.column_names]
    return from_arrow(kind, table.select(known))
