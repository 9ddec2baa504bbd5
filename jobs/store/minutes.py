"""Table `time_index` of a store: the minutes in which each segment has data. It is no part of a generation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import fs as pafs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.store.paths import TIME_INDEX, table_folder
from lastkey.jobs.store.tables import State
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.udfs.lookup.minutes import TIME_INDEX_ROWS
from lastkey.udfs.storage import Root

_LARGE_TABLE_BYTES = 16 << 20  # tuned: 40 MB, 6 million rows, take 5 s with _SMALL, 2 s without
_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_MOST_IN_PREDICATE = 200  # segments whose rows are replaced by name; for more the table is rewritten
_CONSTRAINT_CHECK = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
_KEY = ("topic", "partition", "segment_base_offset")
SegmentKey = tuple[str, int, int]


def uri_for_spark(root: Root, table: str = TIME_INDEX) -> str:
    """Return the URI of a table for Spark."""
    base = f"file://{root.base}" if root.is_local else as_hadoop_names_it(root.uri)
    return f"{base}/{table_folder(table)}"


def session_for(spark: SparkSession, n_bytes: int) -> SparkSession:
    """Return a session for tables of so many bytes: for few, one partition and no code generation."""
    if n_bytes < _LARGE_TABLE_BYTES and hasattr(spark, "newSession"):  # not of Connect
        spark = spark.newSession()
        for key, value in _SMALL.items():
            spark.conf.set(key, value)
    return spark


def minute_table(spark: SparkSession, root: Root) -> DataFrame:
    """Return the table."""
    files = root.filesystem.get_file_info(pafs.FileSelector(root.full(table_folder(TIME_INDEX))))
    spark = session_for(spark, sum(file.size or 0 for file in files))
    return spark.read.format("delta").load(uri_for_spark(root))


def known_segments(spark: SparkSession, state: State) -> dict[SegmentKey, tuple[str, int, int]]:
    """Return path, size and time of every segment's log when it was read into the table."""
    if not state.table_exists(TIME_INDEX):
        return {}
    columns = (*_KEY, "path", "size_bytes", "mtime_ms")
    rows = minute_table(spark, state.root).select(*columns).distinct().toArrow().to_pylist()
    return {
        (r["topic"], r["partition"], r["segment_base_offset"]): (r["path"], r["size_bytes"], r["mtime_ms"])
        for r in rows
    }


def replace_segments(state: State, frame: DataFrame, replaced: list[SegmentKey]) -> None:
    """Remove the rows of `replaced` segments and add those of `frame`, in one commit."""
    uri = uri_for_spark(state.root)
    if not replaced:  # also if the table does not exist yet
        frame.write.format("delta").mode("append").save(uri)
    elif len(replaced) <= _MOST_IN_PREDICATE:
        is_old = " OR ".join(
            f"(topic = '{topic}' AND partition = {partition} AND segment_base_offset = {base})"
            for topic, partition, base in replaced
        )  # a topic's name holds letters, digits, dots, dashes and underscores only
        write = frame.write.format("delta").mode("overwrite").option("replaceWhere", is_old)
        with set_conf(frame.sparkSession, _CONSTRAINT_CHECK, "false"):  # it also adds rows of segments that are new
            write.save(uri)
    else:
        spark = frame.sparkSession
        schema = pa.schema([TIME_INDEX_ROWS.field(name) for name in _KEY])
        old = spark.createDataFrame(pa.table([list(column) for column in zip(*replaced, strict=True)], schema=schema))
        kept = spark.read.format("delta").load(uri).join(F.broadcast(old), list(_KEY), "left_anti")
        kept.unionByName(frame).write.format("delta").mode("overwrite").save(uri)


@contextlib.contextmanager
def set_conf(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Set a configuration of the session inside the `with` block."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
