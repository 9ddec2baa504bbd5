"""Avro as columns: types, prefixes, versions, and what is no Avro. Written by fastavro; by Java's: tests/jobs."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.udfs.decode.avro import AvroSchemaError, avro_json, avro_schema, decode_avro, read_avro
from lastkey.udfs.decode.decoders import DecodeError

UTC = datetime.UTC
MOMENT = 1_700_000_000_123


def record(*fields, name="Order"):
    return {"type": "record", "name": name, "namespace": "shop", "fields": [{"name": n, "type": t} for n, t in fields]}


def encoded(schema, *values):
    def one(value):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        return out.getvalue()

    return pa.array([one(value) for value in values], pa.binary())


@pytest.mark.parametrize(
    ("schema", "kind", "value", "read"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), -5, -5),
        ("long", pa.int64(), 2**40, 2**40),
        ("float", pa.float32(), 0.5, 0.5),
        ("double", pa.float64(), 1.1, 1.1),
        ("bytes", pa.binary(), b"\0\1", b"\0\1"),
        ("string", pa.string(), "Zürich", "Zürich"),
        ({"type": "string"}, pa.string(), "a", "a"),
        ({"type": "string", "avro.java.string": "String"}, pa.string(), "a", "a"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", "B"),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary(), b"abc", b"abc"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [1, 2], [1, 2]),
        ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
        ({"type": "int", "logicalType": "date"}, pa.date32(), 19000, datetime.date(2022, 1, 8)),
        (
            {"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC"), MOMENT,
            datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us"), MOMENT * 1000,
            datetime.datetime(2023, 11, 14, 22, 13, 20, 123000),
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64(), 7, 7),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 7, 7),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), "no check", "no check"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2),
            Decimal("-12.30"), Decimal("-12.30"),
        ),
        (["null", "int"], pa.int32(), None, None),
        (["int", "null", "long"], pa.int64(), 2**40, 2**40),
        (["float", "double"], pa.float64(), 1.1, 1.1),
        ([record(("x", "int"), name="In"), "null"], pa.struct([("x", pa.int32())]), {"x": 1}, {"x": 1}),
    ],
    ids=lambda of: str(of)[:40],
)  # fmt: skip
def test_each_avro_type_has_its_arrow_type(schema, kind, value, read):
    whole = record(("a", schema), ("list", {"type": "array", "items": "string"}))
    column = decode_avro(encoded(whole, {"a": value, "list": ["x"]}), whole)
    assert column.type == pa.struct([("a", kind), ("list", pa.list_(pa.string()))])
    assert column.to_pylist() == [{"a": read, "list": ["x"]}]
    assert decode_avro(encoded(schema, value), schema).type == kind


def test_union_of_several_types_is_decoded():
    a, b = record(("x", "int"), name="A"), record(("x", "int"), ("of", ["null", "shop.A"]), name="B")
    branches = ["null", "int", "string", "bytes", "boolean", a, b, {"type": "map", "values": "int"}]
    values = [None, 3, "text", b"bytes", True, ("shop.A", {"x": 1}), ("shop.B", {"x": 2, "of": {"x": 3}}), {"k": 1}]
    rows = decode_avro(encoded(branches, *values), branches).to_pylist()
    assert [row and {key: of for key, of in row.items() if of is not None} for row in rows] == [
        None, {"member0": 3}, {"member1": "text"}, {"member2": b"bytes"}, {"member3": True}, {"member4": {"x": 1}},
        {"member5": {"x": 2, "of": {"x": 3}}}, {"member6": [("k", 1)]},
    ]  # fmt: skip


def test_numeric_union_members_are_distinguished():
    branches = ["int", "long", "string", "null"]
    column, reasons = read_avro(encoded(branches, 3, "text", None), branches)
    assert column.to_pylist() == [None, {"member0": None, "member1": None, "member2": "text"}, None]
    assert "expected one of int and long in a union of members, found both" in reasons[0].as_py()
    assert reasons.to_pylist()[1:] == [None, None]


def test_schema_version_is_selected_by_its_id():
    old, new = record(("id", "int")), record(("id", "long"), ("note", "string"))
    target = new | {"fields": [new["fields"][0], {"name": "note", "type": "string", "default": "none"}]}
    values = [
        b"\0\0\0\0\1" + encoded(old, {"id": 5})[0].as_py(),
        b"\0\0\0\0\2" + encoded(new, {"id": 2**40, "note": "n"})[0].as_py(),
        None, b"\0\0\0\0\3\0", b"\1\0", b"\0\0\0\0\2\0",
    ]  # fmt: skip
    column, reasons = read_avro(pa.array(values), target, writers={1: old, 2: json.dumps(new)})
    assert column.to_pylist() == [{"id": 5, "note": "none"}, {"id": 2**40, "note": "n"}, None, None, None, None]
    assert reasons.to_pylist()[:5] == [
        None, None, None, "expected a schema id of 1, 2; found 3", "expected a schema id of 1, 2; found none",
    ]  # fmt: skip
    assert "EOFError" in reasons[5].as_py()


INNER = record(("x", "int"), name="In")
LETTERS = {"type": "enum", "name": "L", "symbols": ["A", "B", "C"]}
FEWER = {"type": "enum", "name": "L", "symbols": ["C", "A"], "default": "A"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FLOAT_OF = 2**24 + 1  # no float of 32 bits


@pytest.mark.parametrize(
    ("old", "value", "new", "read"),
    [
        (INNER, {"x": 1}, ["null", INNER], {"x": 1}),
        (["null", INNER], {"x": 1}, INNER, {"x": 1}),
        (["null", INNER], None, INNER, None),
        (["null", INNER], {"x": 1}, ["string", INNER], {"member0": None, "member1": {"x": 1}}),
        (LETTERS, "B", ["null", LETTERS], "B"),
        (["null", LETTERS], "B", LETTERS, "B"),
        (LETTERS, "C", FEWER, "C"),
        (LETTERS, "B", FEWER, "A"),
        ("int", 3, ["null", "long"], 3),
        (["null", "int"], 3, ["string", "null", "double"], {"member0": None, "member1": 3.0}),
        ("int", FLOAT_OF, "float", float(FLOAT_OF - 1)),
        ({"type": "array", "items": "string"}, ["ä"], {"type": "array", "items": "bytes"}, ["ä".encode()]),
        (
            {"type": "map", "values": INNER}, {"k": {"x": 1}}, {"type": "map", "values": ["null", INNER]},
            [("k", {"x": 1})],
        ),
        ("string", "1", "int", None),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", {"type": "fixed", "name": "F", "size": 3}, None),
    ],
    ids=range(15),
)  # fmt: skip
def test_values_are_resolved_to_the_reader_schema(old, value, new, read):
    values = pa.array([b"\0\0\0\0\1" + encoded(record(("a", old)), {"a": value})[0].as_py()])
    column, reasons = read_avro(values, record(("a", new)), writers={1: record(("a", old))})
    assert column.to_pylist() == [None if read is None else {"a": read}]
    assert (reasons[0].as_py() is None) == (read is not None)


def with_default(schema, default):
    fields = [{"name": "id", "type": "int"}, {"name": "a", "type": schema, "default": default}]
    return record(("id", "int")) | {"fields": fields}


@pytest.mark.parametrize(
    ("schema", "default", "read"),
    [
        ("bytes", "ascii", b"ascii"),
        ([LETTERS, "null"], "A", "A"),
        (["null", LETTERS], None, None),
        (["null", "string", "int"], None, None),
        (record(("x", "int"), ("y", ["null", "int"]), name="In") | {"z": 1}, {"x": 1, "y": None}, {"x": 1, "y": None}),
        ({"type": "map", "values": "float"}, {"a": 1}, [("a", 1.0)]),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 1}}, ["\u0001"], [b"\1"]),
    ],
    ids=range(7),
)
def test_missing_fields_have_the_defaults_of_the_reader_schema(schema, default, read):
    values = pa.array([b"\0\0\0\0\1\2", b"\0\0\0\0\1\4"])
    column = decode_avro(values, with_default(schema, default), writers={1: record(("id", "int"))}, errors="fail")
    assert column.to_pylist() == [{"id": 1, "a": read}, {"id": 2, "a": read}]


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("bytes", "\u00ff"), (CENTS, "\u0001"), ([INNER, "string"], {"x": 5}), (["int", "string"], 5),
        (record(("x", "int"), name="In"), {}), ({"type": "array", "items": "bytes"}, ["\u00ff"]),
        ({"type": "map", "values": ["bytes", "null"]}, {"k": "\u00ff"}),
    ],
    ids=range(7),
)  # fmt: skip
def test_unsupported_defaults_are_refused(schema, default):
    values, target = pa.array([b"\0\0\0\0\1\2", None]), with_default(schema, default)
    column, reasons = read_avro(values, target, writers={1: record(("id", "int")), 2: target})
    assert column.to_pylist() == [None, None]
    assert reasons.to_pylist() == [
        "a: expected a default without bytes, decimals, members of unions and fields left out, "
        f"found {default!r} in a field that the writer lacks", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "value", "new", "path"),
    [
        ("int", 3, ["null", "string", "long"], "a"),
        (INNER, {"x": 1}, [INNER, "string"], "a"),
        (record(("y", "int"), name="In"), {"y": 1}, record(("y", ["int", "string"]), name="In"), "a.y"),
        ({"type": "array", "items": "int"}, [1], {"type": "array", "items": ["int", "string"]}, "a[]"),
        (["null", {"type": "map", "values": "int"}], {"k": 1}, {"type": "map", "values": ["int", "string"]}, "a[]"),
    ],
    ids=range(5),
)
def test_union_with_members_unknown_to_the_writer_is_refused(old, value, new, path):
    values = pa.array([b"\0\0\0\0\1" + encoded(record(("a", old)), {"a": value})[0].as_py()])
    column, (reason,) = read_avro(values, record(("a", new)), writers={1: record(("a", old))})
    assert column.to_pylist() == [None]
    assert reason.as_py().startswith(f"{path}: expected a union in the writer's schema, found ")


@pytest.mark.parametrize(
    ("new", "read"),
    [(["bytes", "double", "string", "int"], None), (["string", "double", "int"], None),
     (["int", "string", "double"], [{"member0": 3}, {"member1": "x"}, {"member2": 1.5}])],
)  # fmt: skip
def test_union_with_an_ambiguous_promotion_is_refused(new, read):
    old = record(("a", ["null", "string", "int", "double"]))
    values = encoded(old, {"a": 3}, {"a": "x"}, {"a": 1.5}).to_pylist()
    column, reasons = read_avro(
        pa.array([b"\0\0\0\0\1" + value for value in values]), record(("a", new)), writers={1: old}
    )
    if read is None:
        assert column.null_count == 3 and "which fastavro reads it as" in reasons[0].as_py()
    else:
        assert [{k: v for k, v in row["a"].items() if v is not None} for row in column.to_pylist()] == read


def test_field_written_under_two_aliases_is_refused():
    old = record(("a", "int"), ("b", "int"))
    target = record() | {"fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}
    values = pa.array([b"\0\0\0\0\1" + encoded(old, {"a": 1, "b": 2})[0].as_py()])
    assert read_avro(values, target, writers={1: old})[1].to_pylist() == [
        "b: expected one field of the writer by this name or an alias, found a, b"
    ]
    column = decode_avro(pa.array([b"\0\0\0\0\1\2"]), target, writers={1: record(("a", "int"))}, errors="fail")
    assert column.to_pylist() == [{"b": 1}]


def test_error_explains_why_a_newer_schema_does_not_resolve():
    values = pa.array([b"\0\0\0\0\1\2"])
    for target, problem in (
        (record(("id", "int"), ("more", "int")), "No default value for field more in shop.Order"),
        (record(("id", "string")), "Schema mismatch: int is not string"),
        (record(("id", ["null", "string"])), "Schema mismatch: int is not ['null', 'string'"),
    ):
        assert problem in read_avro(values, target, writers={1: record(("id", "int"))})[1][0].as_py()


def test_invalid_branches_symbols_and_decimals_have_reasons():
    union = record(("a", ["null", "int"]), ("b", ["string", LETTERS]))
    good, values = b"\2\2\2\2", [b"\1\2\2\2", b"\3\2\2", b"\x7f\2\2", b"\4\2\2\2", b"\2\2\1\2", b"\2\2\4"]
    column, reasons = read_avro(pa.array([good, *values]), union)
    assert column.to_pylist() == [{"a": 1, "b": {"member0": None, "member1": "B"}}, *[None] * 6]
    assert ["the union has 2 branches" in (reason or "") for reason in reasons.to_pylist()] == [False, *[True] * 6]
    column, reasons = read_avro(pa.array([b"\1", b"\2", b"\6"]), LETTERS)
    assert column.to_pylist() == [None, "B", None]
    assert ["the value is none of them" in (reason or "") for reason in reasons.to_pylist()] == [True, False, True]
    values = pa.array([b"\4\x27\x0f", b"\4\x27\x10", b"\6\0\x27\x0f", b"\0"])
    assert decode_avro(values, CENTS).to_pylist() == [Decimal("99.99"), None, Decimal("99.99"), None]


def test_avro_columns_of_several_types_are_decoded():
    values = pa.chunked_array([["\2"], ["\4", None]])
    assert decode_avro(values, "int").to_pylist() == [1, 2, None]
    assert decode_avro(pa.array([b"\2", b"\2"]).dictionary_encode(), "int").to_pylist() == [1, 1]
    with pytest.raises(ValueError, match='expected "null" or "fail"'):
        decode_avro(values, "int", errors="ignore")


def test_bytes_that_do_not_match_the_schema():
    schema = record(("id", "int"), ("at", {"type": "long", "logicalType": "timestamp-millis"}))
    good = encoded(schema, {"id": 1, "at": 5})[0].as_py()
    too_large = encoded(record(("id", "long"), ("at", "long")), {"id": 2**40, "at": 5}, {"id": 1, "at": 2**62})
    values = pa.array([good, None, b"", good + b"\0", *too_large.to_pylist()])
    column, reasons = read_avro(values, schema)
    assert [row is not None for row in column.to_pylist()] == [True, False, False, False, False, False]
    assert [reason and reason.split(":")[0].split(",")[0] for reason in reasons.to_pylist()] == [
        None, None, "expected Avro of this schema", "expected Avro of this schema",
        "expected values that fit their types", "expected values that fit their types",
    ]  # fmt: skip
    assert "1 bytes after the value" in reasons[3].as_py()
    with pytest.raises(DecodeError, match="row 2 cannot be decoded as Avro"):
        decode_avro(values, schema, errors="fail")


@given(st.binary(max_size=30), st.integers(0, 29))
def test_damaged_avro_gives_a_reason_or_a_value(junk, at):
    inner = record(("m", {"type": "map", "values": ["null", "string"]}), ("d", "double"), name="I")
    schema = record(
        ("id", "long"), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}), ("i", {"type": "array", "items": inner})
    )
    good = encoded(schema, {"id": 1, "e": "A", "i": [{"m": {"k": "v"}, "d": 0.5}]})[0].as_py()
    column, reasons = read_avro(pa.array([junk, good[:at] + junk[:2] + good[at:]]), schema)
    assert [row is None for row in column.to_pylist()] == [reason is not None for reason in reasons.to_pylist()]


def test_avro_becomes_json_and_bad_values_have_reasons():
    schema = record(
        ("b", "bytes"), ("f", {"type": "array", "items": "double"}), ("d", {"type": "int", "logicalType": "date"}),
        ("t", {"type": "long", "logicalType": "timestamp-micros"}), ("m", {"type": "map", "values": "string"}),
        ("n", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}),
    )  # fmt: skip
    row = {"b": b"\xff", "f": [1.5, float("nan"), float("-inf")], "d": 0, "t": 1, "m": {"ä": "ö"}, "n": Decimal("1.0")}
    values = pa.array([*encoded(schema, row, row | {"t": 2**60}).to_pylist(), b"", None])
    text, reasons = avro_json(values, json.dumps(schema))
    assert json.loads(text[0].as_py()) == {
        "b": "/w==", "f": [1.5, "NaN", "-Infinity"], "d": "1970-01-01", "t": "1970-01-01T00:00:00.000001Z",
        "m": {"ä": "ö"}, "n": "1.0",
    }  # fmt: skip
    assert text.to_pylist()[1:] == [None] * 3
    assert [reason is None for reason in reasons.to_pylist()] == [True, False, False, True]


def test_cost_of_many_schemas_grows_with_the_rows():
    """A column of schemas, each other: its cost grows with the rows, not with rows times schemas."""
    schemas = [json.dumps(record(("id", "int"), name=f"T{i}")) for i in range(500)] * 4
    text, _ = avro_json(pa.array([b"\2"] * 2000), pa.array(schemas))
    assert text.to_pylist() == ['{"id": 1}'] * 2000


def test_each_row_may_have_its_own_schema():
    values = pa.array([b"\2", b"\2a", b"\2", None, b"\4"])
    schemas = pa.array(['"int"', '"string"', None, '"int"', '"int"'])
    text, reasons = avro_json(values, schemas)
    assert text.to_pylist() == ["1", '"a"', None, None, "2"]
    assert reasons.null_count == 5


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "JSONDecodeError"),
        ('{"type": "recor"}', "UnknownType"),
        ('"Order"', "UnknownType Order"),
        ('{"type": "record", "name": "T", "fields": 5}', "found"),
        ("5", "found 5"),
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "array", "items": record(("n", "null"))}, "take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "take no bytes"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "scale"),
        (record(("next", ["null", "shop.Order"])), "shop.Order holds itself"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, "precision"),
    ],
    ids=range(11),
)
def test_invalid_schemas_are_refused(schema, problem):
    with pytest.raises(AvroSchemaError, match=problem):
        avro_schema(schema)
