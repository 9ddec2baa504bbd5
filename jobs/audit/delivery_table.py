"""A table of deliveries by key, which a user's consumers keep: Parquet, CSV or Delta.

It has the columns topic, key and offset (the largest one that was delivered of the key), and, if it has them, partition
and group. Rows of one key count as their largest offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, IntegralType, StringType

from lastkey.jobs.command.option_groups import KeyFormat
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.jobs.spark import connector
from lastkey.jobs.store.audits import delta_table
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.storage import exists, normal_uri, open_root

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NO_GROUP: Final = "(table)"  # name for tables without the column
_NEEDED: Final = ("topic", "key", "offset")


def read_deliveries(spark: SparkSession, uri: str, key_format: KeyFormat) -> DataFrame:
    """Return group, topic, key (binary), `told` (an offset), and partition if the table has it; each key of a group
    once.

    key_format: how a column of strings shows keys. Raise UsageError for a table without these columns, or with rows
    without values.
    """
    found = _loaded(spark, normal_uri(uri))
    names = {name.lower(): name for name in found.columns}
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UsageError(message=f"--deliveries {uri}: expected the columns topic, key and offset; found"
                                 f" {', '.join(found.columns) or 'none'}")  # fmt: skip
    types = {field.name.lower(): field.dataType for field in found.schema}
    columns = {
        "group": F.col(names["group"]).cast("string") if "group" in names else F.lit(NO_GROUP),
        "topic": F.col(names["topic"]).cast("string"),
        "key": _key(F.col(names["key"]), types["key"], key_format, uri),
        "told": _integer(F.col(names["offset"]), types["offset"], "long", "offset", uri),
    }
    if "partition" in names:
        columns["partition"] = _integer(F.col(names["partition"]), types["partition"], "int", "partition", uri)
    rows = found.select(*(column.alias(name) for name, column in columns.items()))
    _check_values(rows, uri, key_format)
    by = [name for name in rows.columns if name != "told"]
    return rows.groupBy(*by).agg(F.max("told").alias("told"))


def _loaded(spark: SparkSession, uri: str) -> DataFrame:
    root = open_root(uri)
    if not exists(root, ""):
        raise MissingPathError(path=uri, expected="a table of deliveries", found="nothing")
    place = as_hadoop_names_it(uri)
    connector.connect(spark, place)
    if exists(root, "_delta_log"):
        return delta_table(spark, place)
    kind = uri.rstrip("/").rpartition(".")[2].lower()
    if kind not in ("parquet", "csv"):
        raise UsageError(message=f"--deliveries {uri}: expected a Delta table, or a name that ends in .parquet or .csv")
    reader = spark.read.option("header", "true") if kind == "csv" else spark.read
    return reader.format(kind).load(place)


def _key(column: Column, kind: object, key_format: KeyFormat, uri: str) -> Column:
    if isinstance(kind, BinaryType):
        return column
    if not isinstance(kind, StringType):
        raise UsageError(message=f"--deliveries {uri}: column key: expected binary or strings, found {kind}")
    return F.encode(column, "UTF-8") if key_format == "text" else F.try_to_binary(column, F.lit(key_format))


def _integer(column: Column, kind: object, wanted: str, name: str, uri: str) -> Column:
    if not isinstance(kind, IntegralType | StringType):
        raise UsageError(message=f"--deliveries {uri}: column {name}: expected numbers, found {kind}")
    return column.try_cast(wanted)


def _check_values(rows: DataFrame, uri: str, key_format: KeyFormat) -> None:
    """Raise UsageError for rows in which a value is missing, or could not be read."""
    bad = rows.agg(*(F.count_if(F.col(name).isNull()).alias(name) for name in rows.columns)).toArrow().to_pylist()[0]
    told = {"told": "offset"}
    wrong = [f"{n:,} rows without a readable {told.get(name, name)}" for name, n in bad.items() if n]
    if wrong:
        hint = f"; keys are read as {key_format} (--key-format)" if bad["key"] else ""
        raise UsageError(message=f"--deliveries {uri}: {', '.join(wrong)}{hint}")
