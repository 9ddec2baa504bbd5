"""The data sources in Spark: schemas, pushed filters, SQL, errors. tests/udfs checks the records that they read."""

from __future__ import annotations

import ast
import sys
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampNTZType

from lastkey.jobs.data_source.source import SOURCES, KafkaLog, arrow_schema
from lastkey.jobs.errors import MissingPathError
from lastkey.logformat.schemas import SPARK_COLUMNS
from tests.builders.logs import START_MS, write_partition
from tests.builders.sources import parse_options, read
from tests.golden import golden

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[3]
TEXT = "a=1 b=2 c=3 | {codec=zstd} a=4 -=5 | {pid=1 txn} b=6 | {pid=1 abort} || a=7 d=- | e=8"


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data_source") / "archive"
    write_partition(folder / "orders-0", TEXT)
    write_partition(folder / "orders-1", "a=10 z=11 || a=12")
    write_partition(folder / "users-0", "u=1 | {codec=gzip} v=2")
    return folder


@pytest.fixture
def pushing(spark: SparkSession):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def load(spark: SparkSession, path: Path, name: str = "kafka_log", **options: str) -> DataFrame:
    return spark.read.format(name).options(**options).load(str(path))


def assert_rows(frame: DataFrame, ours: pa.Table) -> None:
    """Compare Spark's rows with those read without it; rows of several tasks have no order."""
    assert ours.num_rows
    expected = frame.sparkSession.createDataFrame(ours)
    assert_df_equality(frame, expected, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True)


@pytest.mark.slow
def test_columns_equal_those_of_the_kafka_source_of_spark(spark, archive):
    frame = load(spark, archive)
    assert [f.name for f in frame.schema] == [f.name for f in SPARK_COLUMNS if f.name != "headers"]
    with_headers = load(spark, archive, includeHeaders="true")
    simple = with_headers.schema.simpleString()
    assert simple == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in with_headers.schema)


@pytest.mark.parametrize("name", [source.source for source in SOURCES])
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"badRecords": "quarantine"}, marks=pytest.mark.slow)], ids=["fail", "quarantine"]
)
@pytest.mark.slow
def test_spark_leaves_rows_unchanged(spark, archive, name, options):
    assert_rows(load(spark, archive, name, **options), read(name, archive, **options))


@pytest.mark.slow
def test_golden_records_are_equal_through_spark(spark, tmp_path_factory):
    """Codecs, legacy magics, headers, empty and null fields, timestamps out of range."""
    cases = golden(tmp_path_factory)
    for name in ("zstd-headers", "v1-gzip-append", "txn-zstd"):
        folder = cases[name].folder / "input"
        columns = {"columns": "topic,partition,offset,key,value,headers,timestamp,timestamp_ms,codec,magic,sequence"}
        assert_rows(load(spark, folder, **columns), read("kafka_log", folder, **columns))


FILTERS = [
    "topic = 'orders' AND offset >= 2 AND offset < 5 AND key = X'61' AND timestamp >= timestamp_millis({ms})",
    "timestamp >= timestamp_millis({ms}) AND timestamp < timestamp_millis({ms} + 3)",
    "NOT topic = 'orders' OR key IS NULL",
    "topic = 'orders' AND partition IN (0, 7)",
    "offset >= 2 AND offset < 5",
    "offset > 1 AND offset <= 4 AND topic <=> 'orders'",
    "key = X'61'",
    "key IN (X'61', X'75')",
    "timestamp > timestamp_micros({ms}000 + 500) AND timestamp <= timestamp_micros({ms}000 + 2500)",
    "timestamp = timestamp_millis({ms} + 1)",
    "timestamp = timestamp_micros({ms}000 + 1500)",
    "key IS NULL",
    "NOT topic = 'orders'",
    "offset = 2 OR key = X'61'",
    "topic = 'nothing'",
    "offset = 1 AND offset = 2",
    "length(value) = 2",
]


place = itemgetter(2, 3, 4)  # topic, partition, offset


@pytest.fixture(scope="module")
def filtered(spark, archive) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each condition by an independent evaluation: Spark on a local table."""
    table = spark.createDataFrame(read("kafka_log", archive))
    columns = table.select("*", *(expr(text.format(ms=START_MS)).alias(f"f{i}") for i, text in enumerate(FILTERS)))
    rows = columns.collect()
    return {text: [row[: len(table.columns)] for row in rows if row[f"f{i}"]] for i, text in enumerate(FILTERS)}


@pytest.mark.slow
@pytest.mark.parametrize("condition", FILTERS)
def test_pushed_down_filters_select_the_same_rows(pushing, archive, filtered, condition):
    rows = load(pushing, archive, pushFilters="true").where(condition.format(ms=START_MS)).collect()
    assert sorted(rows, key=place) == sorted(filtered[condition], key=place)
    assert len(rows) < 14


@pytest.mark.slow
def test_filters_without_push_down_select_the_same_rows(spark, archive, filtered):
    frame = load(spark, archive, pushFilters="true")
    for condition in FILTERS[:2]:
        rows = frame.where(condition.format(ms=START_MS)).collect()
        assert sorted(rows, key=place) == sorted(filtered[condition], key=place)


@pytest.mark.slow
def test_pushed_filters_are_reported(pushing, archive):
    for options, pushed in (({}, False), ({"pushFilters": "true"}, True)):
        frame = load(pushing, archive, **options).where("topic = 'orders' AND offset > 3")
        checked_again = frame._jdf.queryExecution().toString().split("Physical Plan")[1]
        assert ("= orders" not in checked_again) == pushed
        assert ("> 3" not in checked_again) == pushed


@pytest.mark.slow
def test_filter_of_a_query_does_not_affect_the_next_query(pushing, archive):
    """Also where Spark's setting is on, and Spark 4.2 itself mixes them up: a DataFrame, a join with itself, a view."""
    frame = load(pushing, archive)
    n = frame.count()
    assert frame.where("offset > 2").count() < n == frame.count() == frame.select().count()
    query = frame.where("topic = 'orders' AND offset = 1").select("topic", "partition")
    assert frame.join(query, ["topic", "partition"]).count() == frame.where("topic = 'orders'").count() > 1
    pushing.sql(f"CREATE OR REPLACE TEMPORARY VIEW looked_at USING kafka_log OPTIONS (path '{archive}')")
    counts = [pushing.sql(f"SELECT 1 FROM looked_at {where}").count() for where in ("", "WHERE offset = 0", "")]
    assert counts[0] == counts[2] == n > counts[1]
    pushing.catalog.dropTempView("looked_at")


@pytest.mark.slow
def test_spark_confuses_filters_of_two_queries(pushing, archive):
    """Why the option pushFilters is false by default. When this fails Spark has been mended: make it true."""
    frame = load(pushing, archive, pushFilters="true")
    n = frame.count()
    assert frame.where("offset > 2").count() < n
    assert frame.count() < n


@pytest.mark.slow
def test_schema_selects_columns(spark, archive):
    frame = spark.read.format("kafka_log").schema("offset LONG, key BINARY, codec STRING").load(str(archive))
    assert frame.columns == ["offset", "key", "codec"]
    assert frame.where("codec = 'zstd'").count() == 2
    with pytest.raises(PySparkException, match="schema: offset: expected bigint, found string"):
        spark.read.format("kafka_log").schema("offset STRING").load(str(archive)).collect()
    with pytest.raises(PySparkException, match="schema: unknown column ofset; did you mean offset"):
        spark.read.format("kafka_log").schema("ofset LONG").load(str(archive)).collect()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("partition BIGINT", "partition: expected int, found bigint"),
        ("timestamp TIMESTAMP_NTZ", "timestamp: expected timestamp, found timestamp_ntz"),
        ("offset LONG, key BINARY NOT NULL", "key: expected a nullable column, found NOT NULL"),
        ("offset LONG, key BINARY, offset LONG", "expected each column once, found offset, key, offset"),
        ("", "expected at least one column"),
    ],
)
def test_invalid_schema_is_refused(archive, columns, message):
    """Spark reads nulls of a column that may be none as a NullPointerException, and no columns as no rows."""
    from lastkey.jobs.errors import UsageError

    names = {"LONG": LongType(), "BIGINT": LongType(), "BINARY": BinaryType(), "TIMESTAMP_NTZ": TimestampNTZType()}
    words = [column.split() for column in columns.split(", ") if column]
    schema = StructType([StructField(name, names[kind], not rest) for name, kind, *rest in words])
    with pytest.raises(UsageError, match=f"schema: {message}"):
        arrow_schema(KafkaLog.columns, parse_options("kafka_log", archive), schema)


def test_paths_with_special_characters_are_read(archive, tmp_path):
    """A folder with a pattern's characters; a local path as Hadoop writes it; files beside a log, which are none."""
    folder = tmp_path / "copy [of] orders?"
    write_partition(folder / "orders-0", "a=1 | b=2")
    assert read("kafka_log", folder).num_rows == 2
    assert read("kafka_log", f"{tmp_path}/copy*").num_rows == 2
    assert read("kafka_log", f"file:{archive}").num_rows == read("kafka_log", f"file://{archive}").num_rows == 14
    for name in ("00000000000000000000.timeindex", "leader-epoch-checkpoint"):
        with pytest.raises(MissingPathError, match=r"expected a \.log, or a folder, found a file beside a log"):
            read("kafka_log", archive / "orders-0" / name)


@pytest.mark.slow
def test_a_view_in_sql_reads_records(spark, archive):
    spark.sql(f"CREATE TEMPORARY VIEW orders USING kafka_log OPTIONS (path '{archive}', topics 'orders')")
    rows_read = spark.sql("SELECT string(key) AS k, max(offset) AS last FROM orders GROUP BY key ORDER BY k")
    rows = [(None, 4), ("a", 7), ("b", 5), ("c", 2), ("d", 8), ("e", 9), ("z", 1)]
    assert_df_equality(rows_read, spark.createDataFrame(rows, "k string, last bigint"))
    spark.catalog.dropTempView("orders")


@pytest.mark.slow
def test_several_paths_globs_and_single_files_are_read(spark, archive):
    paths = [str(archive / "orders-1"), str(archive / "users-0")]
    assert spark.read.format("kafka_log").load(paths).count() == 5
    assert load(spark, archive / "orders-*").count() == 12
    assert load(spark, archive / "*" / "00000000000000000000.log").count() == 10
    assert load(spark, archive / "orders-0" / "00000000000000000000.log").select("topic").distinct().count() == 1


ERRORS = [
    ({"topcis": "x"}, "kafka_log: unknown option topcis; did you mean topics"),
    ({"topics": "ordrs"}, "no topic of .* matches ordrs; did you mean orders"),
    ({"topics": "orders,clikcs"}, "no topic of .* matches clikcs; there are orders, users"),
    ({"topics": "orders", "exclude": "usres"}, "exclude: no topic of .* matches usres; did you mean users"),
    ({"exclude": "*"}, "no topic of .* is left: . leaves out all of orders, users"),
    ({"topics": " , "}, "topics: expected globs of topics' names, separated by commas, found ' , '"),
    ({"topicsFrom": "/none"}, "/none: expected a file with a glob of topics a line, found no such file"),
    ({"topicsFrom": "/none", "assign": "{}"}, "only one of topics .or topicsFrom."),
    (
        {"isolationLevel": "read_comitted"},
        "isolationLevel: expected read_uncommitted or read_committed, found 'read_com",
    ),
    ({"columns": "offset,vlaue"}, "columns: unknown column vlaue; did you mean value"),
    ({"columns": "key", "includeHeaders": "true"}, "includeHeaders=true contradicts columns=key about headers"),
    ({"includeValue": "no"}, "includeValue: expected true or false, found 'no'"),
    ({"badRecords": "quarantin"}, "badRecords: .* did you mean quarantine"),
    ({"startingOffsets": "erliest"}, "startingOffsets: .* did you mean earliest"),
    ({"startingOffsets": '{"orders":{"0":1}}'}, "startingOffsets: orders-1 is missing"),
    ({"startingOffsets": '{"orders":[1]}'}, "startingOffsets: expected JSON such as"),
    ({"endingOffsets": "{"}, "endingOffsets: expected JSON such as"),
    ({"startingTimestamp": "yesterday"}, "no such time: yesterday"),
    ({"partitions": "1-0"}, "partitions: expected numbers and ranges, such as 0,3-5, found '1-0'"),
    ({"splitBytes": "128M"}, "splitBytes: expected a whole number of at least 1, found '128M'"),
    ({"generation": "1"}, "generation=1 needs the option store"),
    ({"topics": "a", "subscribe": "a"}, "only one of topics .or topicsFrom., subscribe"),
    ({"subscribePattern": "("}, "subscribePattern: not a regular expression"),
    ({"subscribePattern": ""}, "subscribePattern: expected a regular expression, found ''"),
    ({"partitions": "9"}, "no partition of .* is selected"),
    ({"assign": '{"orders":0}'}, "assign: expected JSON such as"),
    ({"assign": '{"orders":[0.5]}'}, "assign: expected JSON such as"),
    ({"startingTimestamp": "99999999999999999999"}, "no such time: 99999999999999999999; expected milliseconds up to"),
    ({"startingTimestamp": "-1"}, "startingTimestamp: expected milliseconds since 1970, from 0 to 9"),
    ({"paths": "a"}, r"paths: expected JSON such as .*, found 'a'"),
]


@pytest.mark.parametrize(
    ("options", "message"), ERRORS, ids=[next(iter(o)) + "=" + next(iter(o.values())) for o, _ in ERRORS]
)
def test_invalid_option_is_refused(archive, options, message):
    from lastkey.jobs.errors import UsageError

    with pytest.raises(UsageError, match=message):
        read("kafka_log", archive, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"path": "s3://AKIA:hush@bucket/a"},
        {"paths": '["b", "s3://AKIA:hush@bucket/a"]'},
        {"paths": "s3://AKIA:hush@bucket/a"},
        {"store": "s3://bucket/s?secret_key=hush"},
        {"path": "s3://AKIA:hush@bucket/a", "topcis": "x"},
    ],
)
def test_credentials_are_refused_and_not_repeated(options):
    from lastkey.jobs.data_source.options import parse
    from lastkey.jobs.errors import UsageError

    with pytest.raises(UsageError, match=r"^(path|paths|store): expected a URI without credentials") as refused:
        parse(options, "kafka_log")
    assert "hush" not in str(refused.value)


def test_conditions_on_keys_leave_those_of_the_option():
    from pyspark.sql.datasource import EqualTo, In

    from lastkey.jobs.data_source.filters import narrow
    from lastkey.jobs.data_source.options import parse

    options = parse({"path": "a", "key": "a"}, "kafka_log")
    both, _ = narrow([In(("key",), (b"a", b"z"))], options)
    neither, _ = narrow([In(("key",), (b"a", b"z")), EqualTo(("key",), b"z")], options)
    assert (both.asked.wanted.keys, neither.asked.wanted.keys) == ({b"a"}, set())


@pytest.mark.slow
def test_spark_reports_errors_of_options_and_paths(spark, archive, tmp_path):
    with pytest.raises(AnalysisException, match="unknown option topcis; did you mean topics"):
        load(spark, archive, topcis="x")
    with pytest.raises(PySparkException, match=r"expected an archive, a partition's folder or a \.log, found nothing"):
        load(spark, tmp_path / "nowhere").collect()
    with pytest.raises(AnalysisException, match=r"Did you mean one of the following\? \[`offset`"):
        load(spark, archive).where("ofset > 3")
    with pytest.raises(AnalysisException, match="kafka_log_index: unknown option startingOffsets"):
        load(spark, archive, "kafka_log_index", startingOffsets="earliest")
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.read.format("kafka_log").load()
    with pytest.raises(AnalysisException, match="path: expected a URI without credentials") as refused:
        spark.read.format("kafka_log").load("s3://AKIA:hush@bucket/a")
    assert "hush" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kafka_log_batches", {}, "kafka_log_batches: not a stream: use spark.read"),
        ("kafka_log", {"endingOffsets": '{"orders":{"0":1}}'}, "endingOffsets: a stream has no end"),
    ],
)
def test_spark_reports_unsupported_stream_options(spark, archive, name, options, message):
    frame = spark.readStream.format(name).options(**options).load(str(archive))
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=rf"UsageError: {message}.*\n"):
        query.awaitTermination(60)
    assert "UnboundLocalError" not in str(query.exception())


@pytest.mark.slow
def test_spark_reports_damage(spark, tmp_path):
    log = write_partition(tmp_path / "t-0", "a=1 | b=2 | c=3").logs[0]
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    with pytest.raises(
        PySparkException, match=r"00000000.log at byte \d+ \(batch at offset 2\): crc: expected checksum"
    ):
        load(spark, tmp_path).collect()
    rows = load(spark, tmp_path, badRecords="quarantine").orderBy("offset").collect()
    assert [row.offset for row in rows] == [None, 0, 1]
    assert rows[0].problem.kind == "crc"
    assert rows[0].problem.path == str(log)


def test_options_of_sparks_kafka_source_are_accepted(archive):
    """Options for connections to brokers have no effect; options that select records have Spark's meaning."""
    options = {
        "kafka.bootstrap.servers": "localhost:9092", "kafkaConsumer.pollTimeoutMs": "1", "failOnDataLoss": "false",
        "groupIdPrefix": "g", "minPartitions": "1",
    }  # fmt: skip
    assert read("kafka_log", archive, subscribe="users,unknown", **options).num_rows == 2
    assert read("kafka_log", archive, subscribePattern="ord.*", **options).num_rows == 12
    assert read("kafka_log", archive, assign='{"orders":[1],"users":[0]}', **options).num_rows == 5


def test_data_source_does_not_use_the_jvm():
    ours, found_by_spark = [*(ROOT / "jobs" / "data_source").glob("*.py")], [*ROOT.glob("pyspark_*.py")]
    assert len(ours) > 5
    assert found_by_spark
    for path in ours + found_by_spark:
        text = path.read_text()
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert not imported & {"py4j", "delta"}, path
        assert not any(word in text for word in ("_jvm", "_jdf", "_jsc", "sparkContext", "_jsparkSession")), path


def test_workers_import_no_session(archive):
    """A worker that reads imports neither a session nor anything of Delta."""
    import subprocess

    code = (
        "import sys; from lastkey.udfs.data_source import records, index_entries;"
        "assert not any(m.partition('.')[0] in ('pyspark', 'delta', 'deltalake', 'py4j') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_timestamps_out_of_range_are_null_in_spark(spark, tmp_path):
    write_partition(tmp_path / "t-0", f"a=1~{2**62} b=2~-1")
    rows = load(spark, tmp_path, columns="timestamp,timestamp_ms").toArrow()
    assert rows["timestamp_ms"].to_pylist() == [2**62, -1]
    assert rows["timestamp"].to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)]
    assert pa.types.is_timestamp(rows["timestamp"].type)


def test_every_column_is_on_the_reference_page():
    section = (ROOT / "docs/reference/data-source.md").read_text()
    default = {field.name for field in SPARK_COLUMNS}
    assert all(f"`{name}`" in section for name in set(KafkaLog.columns.names) - default)
