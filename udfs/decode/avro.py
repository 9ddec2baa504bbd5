"""Avro values of known schemas as Arrow columns, decoded with fastavro; each value is one datum.

Types are those of Spark's from_avro: a record is a struct, an enum text, a map has text keys, fixed is binary; date,
decimal and timestamps of milli- and microseconds keep their meaning (local-timestamp-*: without a zone); other logical
types are what they are stored as. A union with null is nullable, [int, long] is a long, and [float, double] a double.
Any other union is a struct with a field member0, member1, ... for each branch. Like from_avro, this refuses a recursive
schema. It also refuses an array whose items take no bytes, because five damaged bytes could claim any number of items.

Values from Confluent's serializers have a prefix. Remove it (decode(values, "payload")), or pass the writers' schemas
by id (`writers`), so that Avro's rules resolve values of several versions into one. A value with bytes left over is
malformed, because it belongs to another schema.

Why fastavro: it is widely used, maintained and compiled, and resolves versions; avro_values.py lists where it is wrong.
pyarrow does not read Avro; Spark's from_avro needs its own jar and does not know the prefix. Each value costs a call.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from lastkey.udfs.decode.avro_values import (
    NO_BRANCH,
    NO_SYMBOLS,
    Convert,
    converter,
    defined,
    definitions,
    is_decimal,
    is_plain,
    list_branches,
    refusal,
    type_name,
)
from lastkey.udfs.decode.decoders import Errors, as_binary, checked_errors, decode, fail_at_first

PRIMITIVES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Final = {  # units of the stored number, as fastavro returns it; in_microseconds changes them for Spark
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}  # fmt: skip
_MAX_PRECISION: Final = 38


class AvroSchemaError(ValueError):
    """A schema that is invalid, or has no Arrow type."""


def arrow_type(schema: Any, names: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
    """Return the Arrow type of a part of a parsed schema, where names are full names. within: records around it."""
    if isinstance(schema, list):
        return _union(schema, names, within)
    schema = defined(schema, names)
    if isinstance(schema, str):
        return PRIMITIVES[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        name = schema["name"]
        if name in within:
            raise AvroSchemaError(f"a recursive schema has no column type: {name} holds itself")
        return pa.struct([pa.field(f["name"], arrow_type(f["type"], names, (*within, name))) for f in schema["fields"]])
    if kind == "array":
        if takes_no_bytes(schema["items"], names):
            raise AvroSchemaError("an array whose items take no bytes: a damaged value could claim any number of them")
        return pa.list_(arrow_type(schema["items"], names, within))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], names, within))
    if is_decimal(schema):
        return _decimal(schema)
    if kind in ("enum", "fixed"):
        return pa.string() if kind == "enum" else pa.binary()
    return _LOGICAL.get((kind, logical), PRIMITIVES[kind])


def _union(branches: list[Any], names: dict[str, Any], within: tuple[str, ...]) -> Any:
    some = list_branches(branches)
    kinds = [arrow_type(branch, names, within) for branch in some]
    if not some:
        return pa.null()
    if not is_plain(branches):
        return pa.struct([pa.field(f"member{i}", kind) for i, kind in enumerate(kinds)])
    return kinds[0] if len(some) == 1 else PRIMITIVES["long" if "long" in map(type_name, some) else "double"]


def _decimal(schema: Any) -> Any:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _MAX_PRECISION:
        raise AvroSchemaError(f"a decimal of precision {precision}: expected 1 to {_MAX_PRECISION}")
    return pa.decimal128(precision, scale)


def takes_no_bytes(schema: Any, names: dict[str, Any], within: tuple[str, ...] = ()) -> bool:
    """Return whether values of a schema may take no bytes at all."""
    schema = defined(schema, names)
    if isinstance(schema, list):
        return False
    kind = type_name(schema)
    if kind == "record":
        if schema["name"] in within:
            return True  # a recursion decides no type
        inner = (*within, schema["name"])
        return all(takes_no_bytes(field["type"], names, inner) for field in schema["fields"])
    return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def in_microseconds(kind: Any) -> Any:
    """Return the type with timestamps in microseconds, as Spark has them."""
    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if t.is_struct(kind):
        return pa.struct([field.with_type(in_microseconds(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(in_microseconds(kind.value_type))
    if t.is_map(kind):
        return pa.map_(pa.string(), in_microseconds(kind.item_type))
    return kind


_NO_BRANCH: Final = {"type": "fixed", "name": NO_BRANCH, "size": 0}
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # in JSON as text, as Spark reads them


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema: `whole` as it is; `bare` for fastavro, which then returns stored values."""

    whole: Any
    names: dict[str, Any]  # names in `whole`: avro_values.definitions
    bare: Any
    convert: Convert | None  # makes a value of what fastavro reads
    stored: Any  # Arrow type of values
    result: Any  # ... of the column


def avro_schema(schema: str | Mapping[str, Any] | list[Any]) -> AvroSchema:
    """Parse a schema from its JSON text (a primitive type needs no quotes), or from what json.loads returns.

    Raises AvroSchemaError, which states the error.
    """
    return _schema_of_text(schema if isinstance(schema, str) else json.dumps(schema))


def decode_avro(
    values: Any,
    schema: str | Mapping[str, Any],
    *,
    writers: Mapping[int, str | Mapping[str, Any]] | None = None,
    errors: Errors = "null",
) -> Any:
    """Decode a pa.Array of bytes to a column of the schema's type. Null and malformed values become null.

    writers: schema id -> schema; then values have Confluent's prefix, and each is resolved into `schema`.
    errors="fail": the first malformed value raises DecodeError.
    """
    decoded, reasons = read_avro(values, schema, writers=writers)
    if checked_errors(errors) == "fail":
        fail_at_first(values, reasons, "Avro of this schema")
    return decoded


def read_avro(
    values: Any, schema: str | Mapping[str, Any], *, writers: Mapping[int, str | Mapping[str, Any]] | None = None
) -> tuple[Any, Any]:
    """Decode like decode_avro, but return (decoded, reasons); reasons: pa.StringArray, null if the value is valid."""
    target = avro_schema(schema)
    values = as_binary(values)
    if writers is None:
        read = _reader(target, target)
        return _column([read(value) for value in values.to_pylist()], target)
    readers = {number: _reader(avro_schema(one), target) for number, one in writers.items()}
    ids, payloads = decode(values, "schema_id").to_pylist(), decode(values, "payload").to_pylist()
    rows: list[tuple[Any, str | None]] = []
    for value, number, payload in zip(values.to_pylist(), ids, payloads, strict=True):
        if value is None:
            rows.append((None, None))
        elif number not in readers:
            found = "none" if number is None else str(number)
            rows.append((None, f"expected a schema id of {', '.join(map(str, sorted(readers)))}; found {found}"))
        else:
            rows.append(readers[number](payload))
    return _column(rows, target)


def avro_json(values: Any, schemas: Any) -> tuple[Any, Any]:
    """Return (text, reasons): the values as JSON text, as Spark's from_json reads it.

    schemas: JSON text, or a pa.StringArray with a schema for each value; a null schema gives null text. Bytes become
    base64, dates and times ISO 8601, decimals text.
    """
    if isinstance(schemas, str):
        return _to_json(values, schemas)
    distinct = schemas.dictionary_encode()
    codes = np.asarray(distinct.indices.fill_null(-1))
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(-1, len(distinct.dictionary)), "right")
    texts, reasons = np.full((2, len(codes)), None, object)
    for schema, first, end in zip(distinct.dictionary.to_pylist(), ends[:-1], ends[1:], strict=True):
        rows = order[first:end]
        text, reason = _to_json(values.take(pa.array(rows)), schema)
        texts[rows], reasons[rows] = text.to_pylist(), reason.to_pylist()
    return pa.array(texts, pa.string()), pa.array(reasons, pa.string())


# -- values


def _reader(writer: AvroSchema, target: AvroSchema) -> Callable[[bytes | None], tuple[Any, str | None]]:
    """Return a function that gives (datum, None) of a value, or (None, what is wrong)."""
    resolved = None if writer.whole == target.whole else target.bare
    refused = None if resolved is None else refusal(writer.whole, target.whole, writer.names, target.names)

    def read(value: bytes | None) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        if refused is not None:
            return None, refused
        source = io.BytesIO(value)
        try:
            datum = fastavro.schemaless_reader(
                source, writer.bare, resolved, return_record_name=True, return_named_type=True
            )
            if target.convert is not None:
                datum = target.convert(datum)
        except Exception as error:  # fastavro raises many kinds of errors for damaged bytes
            return None, f"expected Avro of this schema: {type(error).__name__} {error}".strip()
        left = len(value) - source.tell()
        if left:
            return None, f"expected Avro of this schema, found {left} bytes after the value: another schema?"
        return datum, None

    return read


def _column(rows: list[tuple[Any, str | None]], schema: AvroSchema) -> tuple[Any, Any]:
    reasons = [reason for _, reason in rows]
    data = [datum for datum, _ in rows]
    try:
        column = _array(data, schema)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # some numbers do not fit: find them
        for row, datum in enumerate(data):
            try:
                _array([datum], schema)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                data[row], reasons[row] = None, f"expected values that fit their types: {error}"
        column = _array(data, schema)
    return column, pa.array(reasons, pa.string())


def _array(data: list[Any], schema: AvroSchema) -> Any:
    column = pa.array(data, schema.stored)
    return column if schema.stored == schema.result else column.cast(schema.result)


def _to_json(values: Any, schema: str) -> tuple[Any, Any]:
    column, reasons = read_avro(values, schema)
    texts, problems = [], reasons.to_pylist()
    for i, row in enumerate(column):
        try:
            plain = _plain(row.as_py(maps_as_pydicts="lossy"))
            texts.append(json.dumps(plain, ensure_ascii=False) if row.is_valid else None)
        except (ValueError, OverflowError) as error:  # a moment that Python's datetime cannot hold
            texts.append(None)
            problems[i] = f"expected values that JSON text can hold: {error}"
    return pa.array(texts, pa.string()), pa.array(problems, pa.string())


def _plain(value: Any) -> Any:
    """Return a value that json.dumps takes."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return _NO_NUMBERS.get(str(value), value)
    return value


# -- schemas


@lru_cache(maxsize=256)
def _schema_of_text(text: str) -> AvroSchema:
    try:
        given = text if text in PRIMITIVES else json.loads(text)
        fastavro.parse_schema(given)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AvroSchemaError(f"not an Avro schema: {type(error).__name__} {error}; found {text[:200]}") from error
    whole = fastavro.parse_schema(given)
    names = definitions(whole)
    stored = arrow_type(whole, names)
    bare = fastavro.parse_schema(_bare(given, chain([_NO_BRANCH], repeat(NO_BRANCH))))
    return AvroSchema(whole, names, bare, converter(whole, names), stored, in_microseconds(stored))


def _bare(schema: Any, no_branch: Iterator[Any]) -> Any:
    """Return the schema that fastavro reads by: no logical types; unions and enums end with additional branches and
    symbols, because fastavro counts a negative index from the end. no_branch: yields the definition of such a branch,
    then its name.
    """
    if isinstance(schema, list):
        return [*(_bare(branch, no_branch) for branch in schema), *islice(no_branch, len(NO_SYMBOLS))]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType"}
    if kept["type"] == "enum":
        kept["symbols"] = [*kept["symbols"], *NO_SYMBOLS]
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _bare(kept[key], no_branch)
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_bare(field, no_branch) for field in kept["fields"]]
    return kept
