"""The functions in a real session, from SQL and from DataFrames; Avro as Java's own library writes it."""

from __future__ import annotations

import io
import json
import random
import struct
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from py4j.protocol import Py4JJavaError

from lastkey.jobs.functions import functions, register, register_avro
from lastkey.udfs.decode.avro import AvroSchemaError, decode_avro, read_avro
from tests.reference import murmur2 as twin

pytestmark = pytest.mark.spark

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "raw", "type": "bytes"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
            {"name": "who", "type": ["null", {"type": "enum", "name": "Who", "symbols": ["YOU", "ME"]}]},
        ],
    }
)
ORDER = {
    "id": 2**40, "note": {"string": "Zürich"}, "at": 1_700_000_000_123, "raw": "\u0000\u00ff", "price": "\u0004\u00ce",
    "lines": [{"a": 0.5}, {}], "who": {"Who": "ME"},
}  # fmt: skip


@pytest.fixture(scope="module")
def topic(spark):
    """Return a topic as kafka_log gives it, with keys and values as bytes; also make a view of it."""
    order = b"\0\0\0\0\7" + java_avro(spark, SCHEMA, ORDER)
    rows = [(b"key", order), ("schlüssel".encode(), struct.pack(">q", 42)), (None, None), (b"\xff", b"\0\0\0\0\7\0")]
    frame = spark.createDataFrame(rows, "key binary, value binary").coalesce(1)
    frame.createOrReplaceTempView("topic")
    register(spark)
    return frame


def java_avro(spark, schema, datum):
    """Encode a datum, given in Avro's JSON encoding, in binary with the Avro library that Spark ships."""
    jvm = spark._jvm
    avro = jvm.org.apache.avro
    parsed = avro.Schema.Parser().parse(schema)
    decoder = avro.io.DecoderFactory.get().jsonDecoder(parsed, json.dumps(datum))
    value = avro.generic.GenericDatumReader(parsed).read(None, decoder)
    out = jvm.java.io.ByteArrayOutputStream()
    encoder = avro.io.EncoderFactory.get().binaryEncoder(out, None)
    avro.generic.GenericDatumWriter(parsed).write(value, encoder)
    encoder.flush()
    return bytes(out.toByteArray())


def java_resolved(spark, written, read, value):
    """Read a value of one schema as another one with Avro's Java library, and return it in binary; None: it refuses."""
    avro = spark._jvm.org.apache.avro
    old, new = avro.Schema.Parser().parse(written), avro.Schema.Parser().parse(read)
    try:
        decoder = avro.io.DecoderFactory.get().binaryDecoder(value, None)
        datum = avro.generic.GenericDatumReader(old, new).read(None, decoder)
        out = spark._jvm.java.io.ByteArrayOutputStream()
        encoder = avro.io.EncoderFactory.get().binaryEncoder(out, None)
        avro.generic.GenericDatumWriter(new).write(datum, encoder)
        encoder.flush()
    except Py4JJavaError:
        return None
    return bytes(out.toByteArray())


def random_type(drawn, depth=0):
    """Return a schema and a value of it."""
    number = drawn.randrange(-100, 100)
    names = drawn.choice("AB")
    simple = [
        ("int", number), ("long", number), ("float", number / 4), ("double", number / 4), ("string", f"s{number}"),
        ("bytes", f"b{number}".encode()), ("boolean", number > 0),
        ({"type": "enum", "name": f"E{names}", "symbols": drawn.sample("XYZ", 2), "default": "X"}, None),
        ({"type": "fixed", "name": f"F{names}", "size": 1 + number % 2}, b"ab"[: 1 + number % 2]),
    ]  # fmt: skip
    simple[7][0]["default"] = simple[7][0]["symbols"][0]
    simple[7] = (simple[7][0], simple[7][0]["symbols"][1])
    pick = drawn.randrange(len(simple) + (4 if depth < 2 else 0))
    if pick < len(simple):
        return simple[pick]
    inner, value = random_type(drawn, depth + 1)
    if pick == len(simple):
        return {"type": "array", "items": inner}, [value] * (number % 3)
    if pick == len(simple) + 1:
        return {"type": "map", "values": inner}, {f"k{i}": value for i in range(number % 3)}
    if isinstance(inner, list):
        return inner, value
    if pick == len(simple) + 2:
        return drawn.choice([["null", inner], [inner, "null"]]), drawn.choice([value, None])
    other = "string" if inner != "string" else "long"
    return drawn.choice([["null", inner, other], [other, inner]]), value


@pytest.mark.slow
def test_schema_versions_are_resolved_as_in_java(spark):
    drawn = random.Random(11)
    agreed = refused = 0
    for _ in range(80):
        written, value = random_type(drawn)
        read = drawn.choice(
            [random_type(drawn)[0], ["null", written] if not isinstance(written, list) else written[0],
             written if isinstance(written, list) else ["null", "boolean", written], "double", "string"]
        )  # fmt: skip
        if read == ["null", "boolean", "boolean"]:
            continue
        old, new = ({"type": "record", "name": "R", "fields": [{"name": "a", "type": of}]} for of in (written, read))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(old), {"a": value})
        old, new = json.dumps(old), json.dumps(new)
        theirs = java_resolved(spark, old, new, out.getvalue())
        ours, reasons = read_avro(pa.array([b"\0\0\0\0\1" + out.getvalue()]), new, writers={1: old})
        expected = decode_avro(pa.array([theirs], pa.binary()), new, errors="fail")
        reason = reasons[0].as_py() or ""
        if "fastavro" in reason or (value in ([], {}) and "SchemaResolutionError" in reason):  # DECODING.md lists these
            refused += 1
            continue
        assert ours.equals(expected), (old, new, value, theirs, ours.to_pylist(), reasons.to_pylist())
        agreed += theirs is not None
    assert agreed > 25 > refused


def column(frame):
    return [row[0] for row in frame.collect()]


@pytest.mark.slow
def test_decoders_work_in_sql(spark, topic):
    frame = spark.sql(
        "SELECT kafka_string(key) k, kafka_long(value) l, kafka_schema_id(value) id, kafka_partition(key, 12) p,"
        " kafka_problem(value, 'long') IS NULL fine FROM topic"
    )
    first, second, last = (twin.default_partition(key, 12) for key in (b"key", "schlüssel".encode(), b"\xff"))
    rows = [
        ("key", None, 7, first, False), ("schlüssel", 42, 0, second, True), (None, None, None, None, True),
        ("�", None, 7, last, False),
    ]  # fmt: skip
    expected = spark.createDataFrame(rows, "k string, l bigint, id int, p int, fine boolean")
    assert_df_equality(frame, expected, ignore_nullable=True)


@pytest.mark.slow
def test_decoders_work_on_dataframes(topic):
    made = functions()
    longs = topic.select(made["kafka_long"]("value").alias("l"))
    assert_df_equality(longs, topic.sparkSession.createDataFrame([(None,), (42,), (None,), (None,)], "l bigint"))
    assert column(topic.select(made["kafka_payload"]("value")))[3] == b"\0"
    for name, function in made.items():
        arguments = (
            ["key"]
            if name not in ("kafka_avro", "kafka_problem", "kafka_avro_problem", "kafka_partition")
            else ["key", "value"]
        )
        assert topic.select(function(*arguments)).columns == [f"{name}({', '.join(arguments)})"]


@pytest.mark.slow
def test_partitioner_accepts_keys_of_other_types(spark, topic):
    expressions = (
        "kafka_partition('order-17', 50), kafka_partition(17, 50), kafka_partition(17L, 50), kafka_murmur2('abc')"
    )
    packed = (b"order-17", struct.pack(">i", 17), struct.pack(">q", 17))
    expected = [twin.default_partition(key, 50) for key in packed] + [twin.murmur2(b"abc")]
    names = [f"v{i}" for i in range(len(expected))]
    frame = spark.sql(f"SELECT {expressions}").toDF(*names)
    expected_row = spark.createDataFrame([tuple(expected)], ", ".join(f"{n} int" for n in names))
    assert_df_equality(frame, expected_row, ignore_metadata=True)


@pytest.mark.slow
def test_avro_as_json_text_is_readable_by_from_json(spark, topic):
    types = "id bigint, note string, at timestamp, raw binary, price decimal(9,2), lines array<map<string, double>>"
    read = f"kafka_avro(kafka_payload(value), '{SCHEMA}')"
    frame = spark.sql(
        f"SELECT {read} text, from_json({read}, '{types}, who string') j,"
        f" kafka_avro_problem(kafka_payload(value), '{SCHEMA}') why FROM topic"
    ).collect()
    assert [row.text is None for row in frame] == [False, True, True, True]
    assert [row.why is None for row in frame] == [True, False, True, False]
    check_order(frame[0].j)


@pytest.mark.slow
def test_avro_is_decoded_to_a_struct(spark, topic):
    register_avro(spark, "orders_avro", SCHEMA)
    register_avro(spark, "orders_by_id", SCHEMA, writers={7: SCHEMA})
    for expression in ("orders_avro(kafka_payload(value))", "orders_by_id(value)"):
        structs = column(spark.sql(f"SELECT {expression} FROM topic"))
        check_order(structs[0])
        assert structs[1:] == [None] * 3


def check_order(order):
    assert (order.id, order.note, order.who) == (2**40, "Zürich", "ME")
    assert order.at.timestamp() == 1_700_000_000.123
    assert order.raw == b"\0\xff"
    assert order.price == Decimal("12.30")
    assert order.lines == [{"a": 0.5}, {}]


@pytest.mark.slow
def test_decoders_set_to_fail_raise_at_the_first_bad_row(spark, topic):
    made = functions("fail")
    with pytest.raises(Exception, match="row 0 cannot be decoded as long: expected 8 bytes, found 2 bytes"):
        spark.createDataFrame([(b"ab",)], "value binary").select(made["kafka_long"]("value")).collect()
    assert column(topic.limit(1).select(made["kafka_schema_id"]("value"))) == [7]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("kafka_problem(value, 'lnog')", "did you mean long"),
        ("kafka_problem(value, NULL)", "the decoder's name is NULL; there are string"),
        ("kafka_partition(key, 0)", "number of partitions: expected 1 or more, found 0"),
        ("kafka_avro(value, '{')", "not an Avro schema"),
        ("kafka_long(5)", "expected a column of bytes, found int32"),
    ],
)
@pytest.mark.slow
def test_errors_name_the_wrong_argument(spark, topic, asked, problem):
    with pytest.raises(Exception, match=problem):
        spark.sql(f"SELECT {asked} FROM topic").collect()


@pytest.mark.slow
def test_a_wrong_schema_is_refused_before_any_query(spark):
    with pytest.raises(AvroSchemaError, match="UnknownType"):
        register_avro(spark, "wrong", '"Order"')
    with pytest.raises(AvroSchemaError, match="UnknownType"):
        register_avro(spark, "wrong", '"int"', writers={1: '"Order"'})
