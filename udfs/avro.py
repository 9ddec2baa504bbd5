"""Avro values of known schemas as Arrow columns: one datum a value, by fastavro.

Types are those of Spark's from_avro: a record is a struct, an enum text, a map has text keys, fixed is binary; date,
decimal and timestamps of milli- and microseconds are that (local-timestamp-*: without a zone), other logical types what
they are stored as; a union with null is nullable, [int, long] a long, [float, double] a double, any other union a
struct with a field member0, member1, ... for each branch. A recursive schema is refused, as there, and so is an array
whose items take no bytes: five damaged bytes could then claim any number of them.

What Confluent's serializers write has a prefix: take it off (decode(values, "payload")), or name the writers' schemas
by id (`writers`), so that values of several versions are resolved into one by Avro's rules. Bytes left over after the
value make it malformed: the schema is another one.

Why fastavro: widely used, kept up, compiled. pyarrow reads no Avro; Spark's from_avro needs a jar of its own, and knows
no prefix. Cost: a call a value. Measured on one core: records of three fields 220,000 a second, of six with an array, a
map and a decimal 84,000, as JSON text 17,000.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from udfs.decode import Errors, as_binary, decode, fail_at_first

Convert = Callable[[Any], Any]

_PRIMITIVES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Final = {  # as fastavro gives the stored number; Spark's timestamps are of microseconds
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}  # fmt: skip
_WIDENED: Final = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,), "long": (int,), "int": (int,), "double": (float,), "float": (float,), "string": (str,),
    "bytes": (bytes, Decimal), "array": (list,), "map": (dict,),
}  # fmt: skip
_MAX_PRECISION: Final = 38
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # in JSON as text, as Spark reads them


class AvroSchemaError(ValueError):
    """A schema that is none, or that has no Arrow type."""


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema: `parsed` for fastavro, `stored` the type of what it gives, `result` the column's."""

    parsed: Any
    stored: Any
    result: Any
    convert: Convert | None  # what fastavro gives -> what `stored` takes; None: nothing to do


def avro_schema(schema: str | Mapping[str, Any] | list[Any]) -> AvroSchema:
    """A schema from its JSON text (a primitive type also without quotes), or as json.loads gives it.

    AvroSchemaError says what is wrong with it.
    """
    return _schema_of_text(schema if isinstance(schema, str) else json.dumps(schema))


def decode_avro(
    values: Any,
    schema: str | Mapping[str, Any],
    *,
    writers: Mapping[int, str | Mapping[str, Any]] | None = None,
    errors: Errors = "null",
) -> Any:
    """Values of a pa.Array of bytes as a column of the schema's type; null where null or malformed.

    writers: schema id -> schema; then values have Confluent's prefix, and `schema` is the one they are resolved into.
    errors="fail": the first malformed value raises DecodeError.
    """
    decoded, reasons = read_avro(values, schema, writers=writers)
    if errors == "fail":
        fail_at_first(values, reasons, "Avro of this schema")
    return decoded


def read_avro(
    values: Any, schema: str | Mapping[str, Any], *, writers: Mapping[int, str | Mapping[str, Any]] | None = None
) -> tuple[Any, Any]:
    """As decode_avro: (decoded, reasons); reasons: pa.StringArray, null where nothing is wrong."""
    target = avro_schema(schema)
    values = as_binary(values)
    if writers is None:
        return _column([_read(value, target.parsed, None) for value in values.to_pylist()], target)
    known = {number: avro_schema(writer).parsed for number, writer in writers.items()}
    ids, payloads = decode(values, "schema_id").to_pylist(), decode(values, "payload").to_pylist()
    rows: list[tuple[Any, str | None]] = []
    for value, number, payload in zip(values.to_pylist(), ids, payloads, strict=True):
        if value is not None and number not in known:
            found = "none" if number is None else str(number)
            rows.append((None, f"expected a schema id of {', '.join(map(str, sorted(known)))}; found {found}"))
        else:
            rows.append(_read(payload, known.get(number), target.parsed))
    return _column(rows, target)


def avro_json(values: Any, schemas: Any) -> tuple[Any, Any]:
    """(text, reasons): values as JSON text, as Spark's from_json reads it.

    schemas: JSON text, or a pa.StringArray, a schema a value; where null the text is null. Bytes are base64, dates and
    times ISO 8601, decimals text.
    """
    if isinstance(schemas, str):
        return _json_of(values, schemas)
    distinct = schemas.dictionary_encode()
    texts, reasons = [None] * len(values), [None] * len(values)
    codes = distinct.indices.to_pylist()
    for code, schema in enumerate(distinct.dictionary.to_pylist()):
        rows = [row for row, other in enumerate(codes) if other == code]
        text, reason = _json_of(values.take(pa.array(rows)), schema)
        for row, *found in zip(rows, text.to_pylist(), reason.to_pylist(), strict=True):
            texts[row], reasons[row] = found
    return pa.array(texts, pa.string()), pa.array(reasons, pa.string())


# -- values


def _read(value: bytes | None, writer: Any, reader: Any) -> tuple[Any, str | None]:
    """(datum, None), or (None, what is wrong)."""
    if value is None:
        return None, None
    source = io.BytesIO(value)
    try:
        datum = fastavro.schemaless_reader(source, writer, reader, return_record_name=True, return_named_type=True)
    except Exception as error:  # of damaged bytes fastavro raises what it stumbles on
        return None, f"expected Avro of this schema: {type(error).__name__} {error}".strip()
    left = len(value) - source.tell()
    if left:
        return None, f"expected Avro of this schema, found {left} bytes after the value: another schema?"
    return datum, None


def _column(rows: list[tuple[Any, str | None]], schema: AvroSchema) -> tuple[Any, Any]:
    reasons = [reason for _, reason in rows]
    data = [datum for datum, _ in rows]
    if schema.convert is not None:
        data = [None if datum is None else schema.convert(datum) for datum in data]
    try:
        column = _array(data, schema)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # numbers that do not fit: find them
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


def _json_of(values: Any, schema: str) -> tuple[Any, Any]:
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
    """What json.dumps takes."""
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
        given = text if text in _PRIMITIVES else json.loads(text)
        fastavro.parse_schema(given)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AvroSchemaError(f"no Avro schema: {type(error).__name__} {error}; found {text[:200]}") from error
    stored, convert = _kind_of(fastavro.parse_schema(given), {})
    bare = fastavro.parse_schema(_without_logical(given))
    return AvroSchema(bare, stored, _in_microseconds(stored), convert)


def _without_logical(schema: Any) -> Any:
    """The schema without its logical types, except decimal: dates and times come as the numbers that are stored."""
    if isinstance(schema, list):
        return [_without_logical(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _without_logical(kept[key])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_logical(field) for field in kept["fields"]]
    return kept


# (Arrow type, how to make of fastavro's value what the type takes; None: it is that already)
_Kind = tuple[Any, Convert | None]


def _kind_of(schema: Any, named: dict[str, _Kind | None]) -> _Kind:
    """Of a part of a parsed schema, where names are full names. named: what was defined so far; None: being defined."""
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema], None
        found = named[schema]
        if found is None:
            raise AvroSchemaError(f"a recursive schema has no column type: {schema} holds itself")
        return found
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return _record(schema, named)
    if kind == "array":
        item, convert = _kind_of(schema["items"], named)
        if _takes_no_bytes(item) and not isinstance(schema["items"], list):
            raise AvroSchemaError("an array whose items take no bytes: a damaged value could claim any number of them")
        return pa.list_(item), None if convert is None else _of_items(convert)
    if kind == "map":
        item, convert = _kind_of(schema["values"], named)
        return pa.map_(pa.string(), item), None if convert is None else _of_entries(convert)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        made = _decimal(schema)
    elif kind in ("enum", "fixed"):
        made = pa.string() if kind == "enum" else pa.binary()
    else:
        return (
            (_LOGICAL[kind, logical], None)
            if isinstance(kind, str) and (kind, logical) in _LOGICAL
            else _kind_of(kind, named)
        )
    if "name" in schema:
        named[schema["name"]] = made, None
    return made, None


def _of_items(convert: Convert) -> Convert:
    return lambda items: [None if item is None else convert(item) for item in items]


def _of_entries(convert: Convert) -> Convert:
    return lambda entries: {key: None if value is None else convert(value) for key, value in entries.items()}


def _record(schema: Any, named: dict[str, _Kind | None]) -> _Kind:
    named[schema["name"]] = None
    fields, converts = [], {}
    for field in schema["fields"]:
        kind, convert = _kind_of(field["type"], named)
        fields.append(pa.field(field["name"], kind))
        if convert is not None:
            converts[field["name"]] = convert

    def converted(value: Any) -> Any:
        changed = {name: convert(value[name]) for name, convert in converts.items() if value[name] is not None}
        return value | changed

    made = pa.struct(fields), converted if converts else None
    named[schema["name"]] = made
    return made


def _union(branches: list[Any], named: dict[str, _Kind | None]) -> _Kind:
    """Of a named type in a union fastavro gives (name, value), so that branches can be told apart."""
    some = [branch for branch in branches if branch != "null"]
    kinds = [_kind_of(branch, named) for branch in some]
    names = [branch if isinstance(branch, str) else branch.get("name", branch["type"]) for branch in some]
    if not some:
        return pa.null(), None
    if frozenset(names) in _WIDENED:
        return _PRIMITIVES[_WIDENED[frozenset(names)]], None
    if len(some) == 1:
        kind, convert = kinds[0]
        if names[0] not in named:
            return kind, convert
        return kind, lambda value: value[1] if convert is None else convert(value[1])

    def converted(value: Any) -> Any:
        name, plain = value if isinstance(value, tuple) else (None, value)
        at = names.index(name) if name else next(i for i, of in enumerate(names) if _fits(plain, of))
        convert = kinds[at][1]
        return {f"member{at}": convert(plain) if convert else plain}

    return pa.struct([pa.field(f"member{i}", kind) for i, (kind, _) in enumerate(kinds)]), converted


def _fits(value: Any, name: str) -> bool:
    """Whether a value of no named type can be of this branch; an int is no boolean."""
    return isinstance(value, _PYTHON_TYPES.get(name, ())) and (name == "boolean") == isinstance(value, bool)


def _decimal(schema: Any) -> Any:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _MAX_PRECISION:
        raise AvroSchemaError(f"a decimal of precision {precision}: expected 1 to {_MAX_PRECISION}")
    return pa.decimal128(precision, scale)


def _takes_no_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return all(_takes_no_bytes(field.type) for field in kind)
    return bool(pa.types.is_null(kind))


def _in_microseconds(kind: Any) -> Any:
    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if t.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    if t.is_map(kind):
        return pa.map_(pa.string(), _in_microseconds(kind.item_type))
    return kind
