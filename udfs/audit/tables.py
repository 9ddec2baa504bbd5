"""Tables of audits: the columns of pairs, rows by columns, sums and first rows, and new Parquet files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastkey.udfs.storage import Root, make_folder, native_output

# Columns of `audit_pairs`. `mirror` writes findings, and rows for all that is lawful of a partition; `failover` has a
# row with kind "partition" for each partition, and one with kind "lost" for each undelivered record without a copy
PAIRS: Final = pa.schema(
    [
        pa.field("source", pa.string()),  # the pair; of failover with the group
        pa.field("group", pa.string()),  # group of failover; null: mirror
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),  # A's name
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        # columns of mirror
        pa.field("without_key", pa.bool_()),
        pa.field("a_partition", pa.int32()),
        pa.field("a_offset", pa.int64()),
        pa.field("a_timestamp_ms", pa.int64()),
        pa.field("b_partition", pa.int32()),
        pa.field("b_offset", pa.int64()),
        pa.field("b_timestamp_ms", pa.int64()),
        pa.field("keys", pa.int64()),
        pa.field("a_versions", pa.int64()),
        pa.field("b_versions", pa.int64()),
        pa.field("missing_versions", pa.int64()),
        pa.field("extra_versions", pa.int64()),
        # columns of failover
        pa.field("b_topic", pa.string()),
        pa.field("committed", pa.int64()),  # in A; null: none
        pa.field("offset", pa.int64()),  # in B; null: B has none. Of a lost record: in A
        pa.field("way", pa.string()),  # identity, time or start
        pa.field("why", pa.string()),
        pa.field("undelivered", pa.int64()),  # records of A
        pa.field("lost", pa.int64()),  # records without a copy
        pa.field("superseded", pa.int64()),  # without a copy, but B has a newer version of the key
        pa.field("read", pa.int64()),  # records of B from the offset on
        pa.field("again", pa.int64()),  # records delivered before
        pa.field("again_ms", pa.int64()),
        pa.field("not_of_a", pa.int64()),
        pa.field("passed_over", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),  # timestamp of a lost record
    ]
)


def make_table(n: int, columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return n rows: columns are arrays, or single values; those that are not given are null."""

    def column(field: pa.Field) -> Any:
        value = columns.get(field.name)
        if value is None or isinstance(value, str | int):
            return pa.repeat(pa.scalar(value, field.type), n)
        return (value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value)).cast(field.type)

    return pa.table([column(field) for field in schema], schema=schema)


def first_rows(rows: pa.Table, by: Sequence[tuple[str, ...]], most: int) -> pa.Table:
    """Return the first rows in an order of columns, at most so many."""
    return rows.take(pc.select_k_unstable(rows, most, sort_keys=list(by)))


def added_up(rows: pa.Table, names: Sequence[str], **ways: str) -> pa.Table:
    """Return a row for each value of the columns `names`, in their order, with the sums of the others, or what `ways`
    names for a column.
    """
    counts = {name: ways.get(name, "sum") for name in rows.column_names if name not in names}
    found = rows.group_by(list(names), use_threads=False).aggregate(list(counts.items()))
    found = found.select([*names, *(f"{name}_{way}" for name, way in counts.items())])
    return found.rename_columns([*names, *counts]).sort_by([(name, "ascending") for name in names])


def joined(tables: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Return tables of the same names one after the other."""
    return {name: pa.concat_tables([of[name] for of in tables]) for name in tables[0]}


@contextmanager
def new_file(root: Root, folder: str, schema: pa.Schema, **how: Any) -> Iterator[tuple[str, Any, Any]]:
    """Write a Parquet file into a folder below the root. Yield its path, which no other file has had, the writer and
    the stream.
    """
    path = f"{folder}/{uuid.uuid4().hex}.parquet"
    make_folder(root, folder)
    with native_output(root, path) as stream, pq.ParquetWriter(stream, schema, **how) as writer:
        yield path, writer, stream
