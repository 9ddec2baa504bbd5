"""The Arrow type that values of an Avro schema have."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from lastkey.udfs.decode.avro_values import branches_of, defined, is_decimal, is_plain, kind_of

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


def type_of(schema: Any, names: dict[str, Any], within: tuple[str, ...] = ()) -> Any:
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
        return pa.struct([pa.field(f["name"], type_of(f["type"], names, (*within, name))) for f in schema["fields"]])
    if kind == "array":
        if takes_no_bytes(schema["items"], names):
            raise AvroSchemaError("an array whose items take no bytes: a damaged value could claim any number of them")
        return pa.list_(type_of(schema["items"], names, within))
    if kind == "map":
        return pa.map_(pa.string(), type_of(schema["values"], names, within))
    if is_decimal(schema):
        return _decimal(schema)
    if kind in ("enum", "fixed"):
        return pa.string() if kind == "enum" else pa.binary()
    return _LOGICAL.get((kind, logical), PRIMITIVES[kind])


def _union(branches: list[Any], names: dict[str, Any], within: tuple[str, ...]) -> Any:
    some = branches_of(branches)
    kinds = [type_of(branch, names, within) for branch in some]
    if not some:
        return pa.null()
    if not is_plain(branches):
        return pa.struct([pa.field(f"member{i}", kind) for i, kind in enumerate(kinds)])
    return kinds[0] if len(some) == 1 else PRIMITIVES["long" if "long" in map(kind_of, some) else "double"]


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
    kind = kind_of(schema)
    if kind == "record":
        if schema["name"] in within:
            return True  # a recursion decides nothing
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
