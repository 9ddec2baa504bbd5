"""Keys in the Parquet files of a table, whichever version of the table has them: a removed file is still a file.

Of a table of audits the column of keys is compared whole, value by value; where it holds keyed hashes in place of keys,
the hashes of the wanted keys are compared too. In any other table, whoever wrote it, the values of every column of
bytes or text are compared, and searched for the bytes of a key as a part: a "may".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.binary_arrays import is_bytes, spans_of, whole_array
from lastkey.udfs.audit.find_in_logs import check_size
from lastkey.udfs.audit.findings import MAY, Found, SearchFile
from lastkey.udfs.audit.key_set import LEAST_TEXT_KEY, KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened

_ROWS: Final = 1 << 16
_NOTHING: Final = np.empty(0, np.int64)
# Columns of the audits' tables that never hold a key: where a record is, and whence it was read
NO_KEYS: Final = frozenset(
    {"source", "other", "root", "topic", "path", "group", "run_id", "secret_id", "kind", "place", "state", "certainty"}
)


def search_table(keys: KeySet, hidden: KeySet | None, file: SearchFile, found: Found) -> None:
    """Add what a Parquet file holds of the keys. hidden: the keyed hashes of the same keys, in their order.

    Raises LogFormatError for a file that cannot be read, or that Parquet does not know.
    """
    with opened(cached_root(file.root), file.path) as stream:
        check_size(stream, file)
        try:
            searched = _search(keys, hidden, pq.ParquetFile(stream), found, NO_KEYS if file.of_audits else frozenset())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise LogFormatError("side_file", file.shown, 0, "a Parquet file", str(error).splitlines()[0]) from error
    if searched and keys.n_short:
        found.problem(
            Problem(
                "side_file", file.shown, 0, f"keys of {LEAST_TEXT_KEY} bytes or more", f"{keys.n_short} shorter ones"
            ),
            f"columns {', '.join(searched)} were not searched for short keys, which stand in any text",
        )


def search_partition(keys: KeySet, path: str, found: Found) -> None:
    """Add what the folders of a table's file say of the keys, as in `name=person-1/part-0.parquet`."""
    texts = [unquote(part.partition("=")[2]) for part in path.split("/")[:-1] if "=" in part]
    if texts:
        values = pa.array([text.encode() for text in texts], pa.large_binary())
        _search_text(keys, values, _compare([keys], values, 0, found), 0, found)


def _search(keys: KeySet, hidden: KeySet | None, parquet: Any, found: Found, no_keys: frozenset[str]) -> list[str]:
    """Search all rows; return the names of the columns that were searched for parts of values. no_keys: columns that
    hold none; if there are any, the column `key` has nothing but keys.
    """
    texts = []
    wanted = [f.name for f in parquet.schema_arrow if f.name not in no_keys and _holds_bytes(f.type)]
    row = 0
    for batch in parquet.iter_batches(_ROWS, columns=wanted) if wanted else ():
        for name in wanted:
            values, known = _stored(batch.column(name)), _NOTHING
            if is_bytes(values.type):
                known = _compare([one for one in (keys, hidden) if one is not None], values, row, found)
            if not (no_keys and name == "key"):
                texts.append(name)
                _search_text(keys, values, known, row, found)
        row += len(batch)
    return list(dict.fromkeys(texts))


def _compare(sets: list[KeySet], values: Any, row: int, found: Found) -> np.ndarray:
    """Add the values that are keys, whole; return the rows of these keys."""
    known = [_NOTHING]
    for one in sets:
        rows = one.rows_of(values)
        at = np.flatnonzero(rows >= 0)
        found.add(rows[at], pa.array(row + at))
        known.append(rows[at])
    return np.concatenate(known)


def _search_text(keys: KeySet, column: Any, known: np.ndarray, row: int, found: Found) -> None:
    first = np.full(len(keys), -1, np.int64)
    for values in _leaves(column):
        data, at = spans_of(values)
        text = data[int(at[0]) : int(at[-1])]
        for group in keys.groups:
            group.search(text, first)
    rows = np.setdiff1d(np.flatnonzero(first >= 0), known)
    found.add(rows, pa.array(np.full(len(rows), row, np.int64)), certainty=MAY)


def _leaves(column: Any) -> Iterator[Any]:
    """Yield the columns of bytes or text within a column."""
    column = _stored(column)
    kind = column.type
    if is_bytes(kind):
        yield column
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _leaves(part)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(column.flatten())
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)


def _stored(column: Any) -> Any:
    column = whole_array(column)
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _holds_bytes(kind: Any) -> bool:
    """Return whether values of a type hold bytes or text anywhere."""
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_bytes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return is_bytes(kind) or any(map(_holds_bytes, parts))
