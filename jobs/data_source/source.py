"""`spark.read.format("kafka_log")`: an archive of Kafka's logs as a DataFrame, by Spark's Python data source API.

    spark.read.format("kafka_log").load("archive")                        # a row for each record
    spark.read.format("kafka_log_batches").load("archive/orders-0")       # a row for each batch, not decompressed
    spark.read.format("kafka_log_index").load("s3://bucket/archive")      # a row for each index entry
    spark.readStream.format("kafka_log").load("archive")                  # as the archive grows

A session knows the formats by itself if Python finds this project, because Spark looks for modules named pyspark_*
(pyspark_kafka_log.py and the others beside `jobs`). No code here talks to the JVM, so all formats work through Spark
Connect. Spark calls a source in its own processes: `schema` and `partitions` in one on the driver, `read` in workers.
The work is done in udfs, which does not depend on Spark.

Spark 4.2 does not prune columns of such a source; the source makes every declared column. So the default columns are
exactly those of Spark's own Kafka source. A query then works unchanged, even INSERT INTO and UNION. To leave columns
out, use `columns`, `includeValue=false` or .schema(...).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lastkey.jobs.command.parse import nearest
from lastkey.jobs.data_source.options import ReadOptions, Source, parse
from lastkey.jobs.data_source.read import read_task
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.logformat.schemas import BATCHES, INDEX, PATH, PROBLEM, RECORDS, SPARK_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class _Source(DataSource):
    """Base of the three formats."""

    source: Source
    columns: Any  # pa.Schema of all columns that a query can ask for

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.source

    def schema(self) -> StructType:
        """Return the columns that the options ask for. UsageError for impossible options."""
        return from_arrow_schema(select_columns(self.columns, self.parsed()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of these columns."""
        options = self.parsed()
        kind = PushingReader if options.push_filters and _is_planning_filters() else Reader
        return kind(options, arrow_schema(self.columns, options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that refuses: only records come as a stream."""
        return NoStream(
            UsageError(message=f"{self.source}: not a stream: use spark.read, or readStream with kafka_log")
        )

    def parsed(self) -> ReadOptions:
        """Parse the options."""
        return parse(self.options, self.source)


class KafkaLog(_Source):
    """Format with a row for each record."""

    source = "kafka_log"
    columns = pa.schema([*RECORDS, PATH, PROBLEM])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of the records that are added to the archive."""
        from lastkey.jobs.data_source.stream import StreamReader  # noqa: PLC0415 - a batch query needs none of it

        try:
            return StreamReader(self.parsed(), arrow_schema(self.columns, self.parsed(), schema))
        except UsageError as error:
            return NoStream(error)


class KafkaLogBatches(_Source):
    """Format with a row for each batch."""

    source = "kafka_log_batches"
    columns = pa.schema([*BATCHES, PATH, PROBLEM])


class KafkaLogIndex(_Source):
    """Format with a row for each entry of an index, a snapshot or a leader epoch checkpoint."""

    source = "kafka_log_index"
    columns = pa.schema([*INDEX, PROBLEM])


SOURCES: Final = (KafkaLog, KafkaLogBatches, KafkaLogIndex)


def register(spark: SparkSession) -> None:
    """Register the formats in a session whose Python worker does not find pyspark_kafka_log.py by itself."""
    for source in SOURCES:
        spark.dataSource.register(source)


def select_columns(all_columns: Any, options: ReadOptions) -> Any:
    """Return the pa.Schema that the options ask for. UsageError for an unknown column."""
    if options.columns is not None:
        names = _requested_columns(all_columns, options)
    elif options.source == "kafka_log":
        left_out = {name for name, wanted in (("value", options.value), ("headers", options.headers)) if not wanted}
        names = [field.name for field in SPARK_COLUMNS if field.name not in left_out]
    else:
        names = [name for name in all_columns.names if name != PROBLEM.name]
    if options.asked.quarantine and PROBLEM.name not in names:
        names.append(PROBLEM.name)
    return pa.schema([_for_spark(all_columns.field(name)) for name in names])


def _requested_columns(all_columns: Any, options: ReadOptions) -> list[str]:
    names = list(options.columns or ())
    for name in names:
        if name not in all_columns.names:
            raise UnknownNameError(message=f"columns: unknown column {name}", near=nearest(name, all_columns.names))
    if len(set(names)) < len(names):
        raise UsageError(message=f"columns: expected each column once, found {','.join(names)}")
    for option, name, contradicted in (
        ("includeHeaders=true", "headers", options.headers and "headers" not in names),
        ("includeValue=false", "value", not options.value and "value" in names),
    ):
        if contradicted:
            raise UsageError(message=f"{option} contradicts columns={','.join(names)} about {name}")
    return names


def _for_spark(field: Any) -> Any:
    """Return a column as Spark has it: nullable, as in Spark's Kafka source, and without unsigned numbers."""
    kind = pa.int64() if field.type == pa.uint32() else field.type
    if field.name == PROBLEM.name:
        kind = pa.struct([inner.with_nullable(True).remove_metadata() for inner in kind])
    return pa.field(field.name, kind, nullable=True)


def arrow_schema(all_columns: Any, options: ReadOptions, schema: StructType) -> Any:
    """Return the pa.Schema of the Arrow batches that Spark expects. UsageError for a .schema(...) that does not fit."""
    expected = to_arrow_schema(schema, timezone="UTC")
    if not len(expected):
        raise UsageError(message="schema: expected at least one column, found none. To count rows, read one column")
    for number, field in enumerate(expected):
        if field.name not in all_columns.names:
            near = nearest(field.name, all_columns.names)
            raise UnknownNameError(message=f"schema: unknown column {field.name}", near=near)
        kind = _for_spark(all_columns.field(field.name)).type
        if field.type != kind:
            found = schema[number].dataType.simpleString()
            raise UsageError(message=f"schema: {field.name}: expected {_type_name(kind)}, found {found}")
        if not field.nullable:
            raise UsageError(message=f"schema: {field.name}: expected a nullable column, found NOT NULL")
    if len(set(expected.names)) < len(expected):
        raise UsageError(message=f"schema: expected each column once, found {', '.join(expected.names)}")
    if options.asked.quarantine and PROBLEM.name not in expected.names:
        raise UsageError(message="badRecords=quarantine needs the column problem in .schema(...)")
    return expected


def _type_name(kind: Any) -> str:
    return from_arrow_schema(pa.schema([pa.field("x", kind)]))["x"].dataType.simpleString()


def _is_planning_filters() -> bool:
    """Return whether this is the process in which Spark asks what it can push down.

    Spark refuses a reader that takes filters if spark.sql.python.filterPushdown.enabled is off, and does not report the
    setting to the source. But Spark asks for filters in a separate worker module, and only if the setting is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)


class Reader(DataSourceReader):
    """Reader of a batch query: plans on the driver, reads on workers."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options, self.schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for about every splitBytes of log."""
        from lastkey.jobs.data_source.plan_tasks import plan  # noqa: PLC0415 - workers need none of it

        return [InputPartition(task) for task in plan(self.options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield pa.RecordBatch with exactly the declared columns."""
        return read_task(self.options, self.schema, partition)


class NoStream(DataSourceStreamReader):
    """Reader that raises, as soon as Spark calls it, the reason why there is no stream. If the constructor raised it,
    Spark 4.2 would show an error of its own instead, about a reader that it cannot stop.
    """

    def __init__(self, error: UsageError) -> None:
        self.error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815 - Spark's names


class PushingReader(Reader):
    """A reader for a session that pushes filters down, if the option pushFilters allows it.

    The option exists because Spark 4.2 caches the partitions of a filtered query. Every later query without a filter on
    the same DataFrame or view then reads only these. Rows would be missing silently.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that reduce what is read; Spark applies again those that this returns."""
        from lastkey.jobs.data_source.filters import narrow  # noqa: PLC0415 - as above

        self.options, rest = narrow(filters, self.options)
        return rest
