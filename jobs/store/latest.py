"""A Delta table with the last record of each key of a topic, for `export --latest`. Each commit states its offsets.

The offsets that a commit has brought the table up to are in its user metadata: rows and offsets come in one commit, or
not at all. A run reads them from the newest commit. Only maintenance commits (OPTIMIZE, VACUUM) may follow that commit,
because after any other change the rows may not match the offsets. The table's properties keep commits, and thus the
offsets, for ten years.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from delta.exceptions import DeltaConcurrentModificationException
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store.delta import table_at
from lastkey.jobs.store.minutes import set_conf
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.export.write_files import TOMBSTONE  # rows to merge whose key is removed
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMAT: Final = "lastkey latest 1"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_PROPERTIES: Final = {
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.isolationLevel": "Serializable",  # one of two concurrent runs fails
}
_OF_NO_ROW: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES")


@dataclass(frozen=True)
class TableOffsets:
    """Offsets that a table is brought up to, and the log that they belong to."""

    offsets: dict[int, int] = field(default_factory=dict)  # partition -> next offset to read
    logs: dict[int, str] = field(default_factory=dict)  # identity of each log, if known (jobs.export.latest)
    generations: dict[int, int] = field(default_factory=dict)  # generations of a store that were read last
    run: str = ""  # made the commit


@dataclass(frozen=True)
class Changed:
    """Rows that a commit changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def read_table_offsets(root: Root, topic: str) -> TableOffsets | Problem:
    """Return the offsets of a topic's table; an empty TableOffsets if there is none; a Problem if they are unknown."""
    try:
        table = table_at(root, topic)
    except TableNotFoundError:
        return TableOffsets()
    for commit in table.history():  # the newest first
        progress = _parse_progress(commit.get("userMetadata"))
        if progress is not None:
            of_partition = {name: {int(n): value for n, value in progress[name].items()} for name in _BY_PARTITION}
            return TableOffsets(**of_partition, run=progress["run"])
        if commit["operation"] not in _OF_NO_ROW:
            return _foreign(root, topic, f"{commit['operation']} in version {commit['version']}")
    return _foreign(root, topic, "none that states its offsets")


_BY_PARTITION: Final = ("offsets", "logs", "generations")


def _parse_progress(text: str | None) -> dict[str, Any] | None:
    try:
        content = json.loads(text or "")
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.get("format") == _FORMAT else None


def _foreign(root: Root, topic: str, found: str) -> Problem:
    expected = "a table that only `export --latest`, OPTIMIZE and VACUUM have changed"
    hint = "delete this folder to rebuild the table"
    return Problem("changed", f"{root.uri}/{topic}", NO_POSITION, expected, found, hint=hint)


@contextmanager
def alone(root: Root, topic: str, before: TableOffsets) -> Iterator[None]:
    """Raise ConflictError if another run commits meanwhile, or has since this one read the table's offsets."""
    place, expected = f"{root.uri}/{topic}", "no other run on this table"
    now = read_table_offsets(root, topic)
    if not isinstance(now, TableOffsets) or now.run != before.run:
        raise ConflictError(path=place, expected=expected, found="a newer commit")
    try:
        yield
    except DeltaConcurrentModificationException as error:
        raise ConflictError(path=place, expected=expected, found=str(error).partition("\n")[0]) from error


def _make_sure(spark: SparkSession, root: Root, topic: str, uri: str, stand: TableOffsets) -> None:
    """Commit the offsets alone if no row changed, because Delta has then made no commit."""
    made = read_table_offsets(root, topic)
    if not isinstance(made, TableOffsets) or made.run != stand.run:
        with set_conf(spark, _METADATA, _metadata(stand)):
            spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('lastkey.run' = '{stand.run}')")


def replace_all(root: Root, topic: str, rows: DataFrame, uri: str, stand: TableOffsets) -> Changed:
    """Make the table, or put these rows in place of all, in one commit."""
    kept = rows.where(~F.col(TOMBSTONE)).drop(TOMBSTONE)
    n_rows = kept.count()
    writer = kept.write.format("delta").mode("overwrite").options(**_PROPERTIES)
    writer.option("userMetadata", _metadata(stand)).save(uri)
    _make_sure(rows.sparkSession, root, topic, uri, stand)
    return Changed(inserted=n_rows)


def merge(root: Root, topic: str, rows: DataFrame, uri: str, key: Sequence[str], stand: TableOffsets) -> Changed:
    """Merge the last new record of each key into the table, in one commit.

    rows: the table's columns and TOMBSTONE, each key once. key: columns that distinguish keys.
    """
    spark = rows.sparkSession
    columns = [name for name in rows.columns if name != TOMBSTONE]
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in key)
    view = f"lastkey_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        with set_conf(spark, _METADATA, _metadata(stand)):
            done = spark.sql(
                f"MERGE INTO delta.`{uri}` t USING {view} s ON {same} "
                f"WHEN MATCHED AND s.{TOMBSTONE} THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
                f"WHEN NOT MATCHED AND NOT s.{TOMBSTONE} THEN INSERT ({', '.join(columns)}) "
                f"VALUES ({', '.join(f's.{name}' for name in columns)})"
            ).collect()[0]
    finally:
        spark.catalog.dropTempView(view)
    _make_sure(spark, root, topic, uri, stand)
    return Changed(done["num_inserted_rows"], done["num_updated_rows"], done["num_deleted_rows"])


def read_parquet_files(spark: SparkSession, schema: pa.Schema, uris: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files; no file: an empty frame. Brackets in a path are no pattern."""
    if not uris:
        return spark.createDataFrame(schema.empty_table())
    return spark.read.schema(from_arrow_schema(schema)).option("__globPaths__", "false").parquet(*uris)


def read_table(spark: SparkSession, uri: str) -> DataFrame:
    """Return the rows of a table."""
    return spark.read.format("delta").load(uri)


def _metadata(stand: TableOffsets) -> str:
    return json.dumps({"format": _FORMAT, **asdict(stand)})
