"""Decoders of keys and values, and Kafka's partitioner, as functions of a Spark session, for SQL and DataFrames.

    from lastkey.jobs.functions import register
    register(spark)
    spark.sql("SELECT kafka_string(key), kafka_long(value), kafka_partition(key, 12) FROM topic")
    topic.select(call_function("kafka_schema_id", "value"))

    last_per_key(spark.read.format("kafka_log").load("archive"))    # what a compaction would leave

    register_avro(spark, "order", schema)    # kafka_avro gives JSON text; this gives a struct of the schema's type

All are Arrow UDFs over udfs/decode. They also work through Spark Connect if the server's Python finds this project and
its packages. A malformed value becomes null, and kafka_problem returns the reason; with errors="fail" the query fails
instead. The functions are temporary and belong to the session. udfs/decode/DECODING.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from lastkey.udfs.decode.avro import avro_json, avro_schema, decode_avro
from lastkey.udfs.decode.decoders import DECODERS, Errors, decode, decoder, fail_at_first, find_problems
from lastkey.udfs.decode.partitioner import default_partitions, murmur2

_udf: Any = arrow_udf  # typed Any: its stubs want a function type, its code prefers type hints
_PREFIX: Final = "kafka_"
_LAST: Final = "_last_offset_of_key"
# Decoders of udfs.decode that Spark lacks: its own hex and base64 are faster, and try_parse_json checks JSON
_DECODERS: Final = tuple(name for name in DECODERS if name not in ("json", "hex", "base64"))


def register(spark: SparkSession, *, errors: Errors = "null") -> tuple[str, ...]:
    """Register the functions in a session, and return their names.

    errors: the effect of a malformed value. "null": it becomes null. "fail": the query fails, and the message shows the
    bytes.
    """
    by_name = functions(errors)
    for name, function in by_name.items():
        spark.udf.register(name, function)
    return tuple(by_name)


def functions(errors: Errors = "null") -> dict[str, Any]:
    """Return the functions by name, for a DataFrame without registering: functions()["kafka_long"]("value")."""
    made = {_PREFIX + name: decoding(name, errors) for name in _DECODERS}
    return made | {
        "kafka_avro": _udf(_avro(errors), "string"),
        "kafka_problem": _udf(kafka_problem, "string"),
        "kafka_avro_problem": _udf(kafka_avro_problem, "string"),
        "kafka_partition": _udf(kafka_partition, "int"),
        "kafka_murmur2": _udf(kafka_murmur2, "int"),
    }


def last_per_key(records: DataFrame) -> DataFrame:
    """Select the last record of each key of each partition, tombstones too, of `kafka_log` or of Spark's Kafka source.

    Records without key are left out, and so are control records if a column marks them. A Spark window over (topic,
    partition, key) finds the last ones: any number of keys. Read a log with transactions with isolationLevel
    read_committed: otherwise the last record may be an aborted one.
    """
    keyed = records.where(F.col("key").isNotNull())
    if "control" in records.columns:
        keyed = keyed.where(~F.col("control"))
    last = F.max("offset").over(Window.partitionBy("topic", "partition", "key"))
    return keyed.withColumn(_LAST, last).where(F.col("offset") == F.col(_LAST)).drop(_LAST)


def register_avro(
    spark: SparkSession, name: str, schema: str, *, writers: Mapping[int, str] | None = None, errors: Errors = "null"
) -> Any:
    """Register and return a function of one argument that decodes values of an Avro schema to Spark's types.

    writers: schema id -> schema, for values with Confluent's prefix; each value is resolved into `schema`. Without
    writers, values are bare Avro; use `name(kafka_payload(value))` if they have a prefix. Raises AvroSchemaError for an
    invalid schema.
    """
    result = from_arrow_type(avro_schema(schema).result)
    for writer in (writers or {}).values():
        avro_schema(writer)  # so that an invalid schema fails here, not on a worker

    def read(values: pa.Array) -> pa.Array:
        return decode_avro(values, schema, writers=writers, errors=errors)

    read.__name__ = name
    function = _udf(read, result)
    return spark.udf.register(name, function)


def decoding(name: str, errors: Errors = "null") -> Any:
    """Return the function of a decoder, also of those that SQL does not need; ValueError for an unknown name."""
    decoder(name)

    def read(values: pa.Array) -> pa.Array:
        return decode(values, name, errors=errors)

    read.__name__ = _PREFIX + name  # Spark names the column after it
    return _udf(read, from_arrow_type(DECODERS[name].result))


def refusal(name: str) -> Any:
    """Return the function that describes why a decoder refuses bytes; it returns null for valid bytes."""

    def reasons(values: pa.Array) -> pa.Array:
        return find_problems(values, name)

    return _udf(reasons, "string")


def _avro(errors: Errors) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def read(values: pa.Array, schemas: pa.Array) -> pa.Array:
        text, reasons = avro_json(values, schemas)
        if errors == "fail":
            fail_at_first(values, reasons, "Avro of this schema")
        return text

    read.__name__ = "kafka_avro"
    return read


def kafka_problem(values: pa.Array, names: pa.Array) -> pa.Array:
    """Return the problems of values for the decoder in `names`, which has to be the same in all rows."""
    return find_problems(values, _constant(names, "the decoder's name"))


def kafka_avro_problem(values: pa.Array, schemas: pa.Array) -> pa.Array:
    """Return the problems of values that should be Avro of these schemas."""
    return avro_json(values, schemas)[1]


def kafka_partition(keys: pa.Array, n_partitions: pa.Array) -> pa.Array:
    """Return the partitions of keys. A function of its own, because Spark reads its type hints."""
    return default_partitions(keys, n_partitions)


def kafka_murmur2(keys: pa.Array) -> pa.Array:
    """Return the hashes of keys."""
    return murmur2(keys)


def _constant(values: Any, what: str) -> Any:
    distinct = values.unique().to_pylist()
    if len(distinct) > 1:
        raise ValueError(f"{what} has to be the same in all rows, found {distinct[0]!r} and {distinct[1]!r}")
    if distinct == [None]:
        raise ValueError(f"{what} is NULL; there are {', '.join(DECODERS)}")
    return distinct[0] if distinct else "string"
