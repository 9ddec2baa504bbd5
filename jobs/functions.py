"""Decoders of keys and values, and Kafka's partitioner, as functions of a Spark session: for SQL and for DataFrames.

    from jobs.functions import register
    register(spark)
    spark.sql("SELECT kafka_string(key), kafka_long(value), kafka_partition(key, 12) FROM topic")
    topic.select(call_function("kafka_schema_id", "value"))

    last_per_key(spark.read.format("kafka_log").load("archive"))    # what a compaction would leave

    register_avro(spark, "order", schema)    # kafka_avro gives JSON text; this one a struct of the schema's type

All are Arrow UDFs over udfs/decode, so they work through Spark Connect as well, where the
server's Python finds this project and its packages. A malformed value is null, and kafka_problem says why;
registered with errors="fail" it ends the query. They are temporary functions of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from udfs.decode.avro import avro_json, avro_schema, decode_avro
from udfs.decode.decoders import DECODERS, Errors, decode, fail_at_first, problems_of
from udfs.decode.partitioner import murmur2, partition_of

_udf: Any = arrow_udf  # its stubs want a function type, its code prefers type hints
_PREFIX: Final = "kafka_"
_LAST: Final = "_last_offset_of_key"
# Those of udfs.decode.decoders that Spark has not itself: its hex and base64 are faster, and try_parse_json checks JSON
_DECODERS: Final = tuple(name for name in DECODERS if name not in ("json", "hex", "base64"))


def register(spark: SparkSession, *, errors: Errors = "null") -> tuple[str, ...]:
    """Make the functions known to a session, and give their names.

    errors: what a malformed value does; "null": it is null, "fail": the query ends with a message that says its bytes.
    """
    made = functions(errors)
    for name, function in made.items():
        spark.udf.register(name, function)
    return tuple(made)


def functions(errors: Errors = "null") -> dict[str, Any]:
    """The functions by name, for a DataFrame without registering: functions()["kafka_long"]("value")."""
    made = {_PREFIX + name: _decoder(name, errors) for name in _DECODERS}
    return made | {
        "kafka_avro": _udf(_avro(errors), "string"),
        "kafka_problem": _udf(kafka_problem, "string"),
        "kafka_avro_problem": _udf(kafka_avro_problem, "string"),
        "kafka_partition": _udf(kafka_partition, "int"),
        "kafka_murmur2": _udf(kafka_murmur2, "int"),
    }


def last_per_key(records: DataFrame) -> DataFrame:
    """Of each key of each partition the last record, tombstones too: rows of `kafka_log`, or of Spark's Kafka source.

    Records without key are left out, and control records where their column says so. It is a Spark window over (topic,
    partition, key), as `engine = "window"` of compact: any number of keys. Of a log with transactions, read it with
    isolationLevel read_committed, or the last record may be one that was aborted.
    """
    keyed = records.where(F.col("key").isNotNull())
    if "control" in records.columns:
        keyed = keyed.where(~F.col("control"))
    last = F.max("offset").over(Window.partitionBy("topic", "partition", "key"))
    return keyed.withColumn(_LAST, last).where(F.col("offset") == F.col(_LAST)).drop(_LAST)


def register_avro(
    spark: SparkSession,
    name: str,
    schema: str,
    *,
    writers: Mapping[int, str] | None = None,
    errors: Errors = "null",
) -> Any:
    """Register a function of one argument that gives values of an Avro schema as Spark's types; also given back.

    writers: schema id -> schema, for values with Confluent's prefix; they are resolved into `schema`. Without: values
    are bare Avro, so `name(kafka_payload(value))` where there is a prefix. AvroSchemaError: a schema that is none.
    """
    result = from_arrow_type(avro_schema(schema).result)
    for writer in (writers or {}).values():
        avro_schema(writer)  # what is wrong with it is said here, not on a worker

    def read(values: pa.Array) -> pa.Array:
        return decode_avro(values, schema, writers=writers, errors=errors)

    read.__name__ = name
    function = _udf(read, result)
    return spark.udf.register(name, function)


def _decoder(name: str, errors: Errors) -> Any:
    def read(values: pa.Array) -> pa.Array:
        return decode(values, name, errors=errors)

    read.__name__ = _PREFIX + name  # what Spark calls the column
    return _udf(read, from_arrow_type(DECODERS[name].result))


def _avro(errors: Errors) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def read(values: pa.Array, schemas: pa.Array) -> pa.Array:
        text, reasons = avro_json(values, schemas)
        if errors == "fail":
            fail_at_first(values, reasons, "Avro of this schema")
        return text

    read.__name__ = "kafka_avro"
    return read


def kafka_problem(values: pa.Array, names: pa.Array) -> pa.Array:
    """What is wrong with values that should be what `names`, all the same, say."""
    return problems_of(values, _constant(names, "the decoder's name"))


def kafka_avro_problem(values: pa.Array, schemas: pa.Array) -> pa.Array:
    """What is wrong with values that should be Avro of these schemas."""
    return avro_json(values, schemas)[1]


def kafka_partition(keys: pa.Array, n_partitions: pa.Array) -> pa.Array:
    """Partitions of keys; a function of its own, for its types."""
    return partition_of(keys, n_partitions)


def kafka_murmur2(keys: pa.Array) -> pa.Array:
    """Hashes of keys."""
    return murmur2(keys)


def _constant(values: Any, what: str) -> Any:
    distinct = values.unique().to_pylist()
    if len(distinct) > 1:
        raise ValueError(f"{what} has to be the same in all rows, found {distinct[0]!r} and {distinct[1]!r}")
    if distinct == [None]:
        raise ValueError(f"{what} is NULL; there are {', '.join(DECODERS)}")
    return distinct[0] if distinct else "string"
