"""The columns are those of Spark's own Kafka source, then ours; each says what it means."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lastkey.logformat.schemas import BATCHES, INDEX, PROBLEMS, RECORDS, SPARK_COLUMNS, select


def test_record_columns_equal_those_of_the_kafka_source_of_spark():
    """KafkaRecordToRowConverter.kafkaSchema(includeHeaders = true), by Spark's own translation to Arrow."""
    from pyspark.sql import types as t
    from pyspark.sql.pandas.types import to_arrow_schema

    header = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    kafka = t.StructType(
        [
            t.StructField("key", t.BinaryType()), t.StructField("value", t.BinaryType()),
            t.StructField("topic", t.StringType()), t.StructField("partition", t.IntegerType()),
            t.StructField("offset", t.LongType()), t.StructField("timestamp", t.TimestampType()),
            t.StructField("timestampType", t.IntegerType()), t.StructField("headers", t.ArrayType(header)),
        ]
    )  # fmt: skip
    ours = pa.schema(list(SPARK_COLUMNS))
    assert ours == to_arrow_schema(kafka, timezone="UTC")
    assert ours.field("headers").type.value_field.name == "element"
    assert RECORDS.names[: len(ours)] == ours.names


@pytest.mark.parametrize("schema", [RECORDS, BATCHES, INDEX, PROBLEMS], ids=["records", "batches", "index", "problems"])
def test_every_column_has_a_description(schema):
    assert len(schema)
    for field in schema:
        assert field.metadata[b"meaning"]
        assert (b"unit" in field.metadata) == field.name.endswith(("_ms", "_bytes", "position")), field.name
        assert not pa.types.is_large_binary(field.type)
        assert not pa.types.is_large_string(field.type)


def test_columns_are_selected_by_name_and_unknown_names_are_refused():
    assert select(RECORDS, None) is RECORDS
    assert select(RECORDS, ["value", "offset"]).names == ["value", "offset"]
    with pytest.raises(ValueError, match="no such column: 'offest'; did you mean offset"):
        select(RECORDS, ["offest"])
    with pytest.raises(ValueError, match="there are key, value"):
        select(RECORDS, ["zzzzzz"])
    with pytest.raises(TypeError, match="not one string"):
        select(RECORDS, "key")
