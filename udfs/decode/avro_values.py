"""Values of a column from what fastavro reads: members of unions, symbols of enums, decimals; and what it cannot read.

fastavro (1.13) reads a value by its writer's schema, and resolves it into the reader's. A few pairs of schemas it
resolves in a wrong way, in silence; `refusal` finds these, so that their values are malformed.

| fastavro | here |
|---|---|
| gives a default as JSON has it: bytes as text, no branch of a union, no defaults inside of records | refused |
| does not record which branch of a union a value takes if the writer had no union | refused, if it has members |
| does not distinguish int from long, and float from double, in a union | refused, if it has members |
| takes the first branch that a value can be promoted to, before one of its type | refused, if it has members |
| fails with a KeyError if the writer has a field under its name and under an alias | refused |
| takes indexes below 0 of enums and unions, which only damage has, for one from the end | found, if of one byte |
| reads no record as one of another name, as Avro's Java library does outside of unions | its error |
| rounds decimals that are longer than their precision | read as bytes, and checked |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

Convert = Callable[[Any], Any]
Names = Mapping[str, Any]  # full name -> definition

NO_BRANCH: Final = "lastkey.none"  # name of what a damaged index of a union reads
NO_SYMBOLS: Final = tuple(f"lastkey_none_{i}" for i in range(64))  # all indexes below 0 that take one byte
_NAMED: Final = frozenset(("record", "enum", "fixed"))
_PYTHON_TYPES: Final[dict[str, type]] = {
    "null": type(None), "boolean": bool, "long": int, "int": int, "double": float, "float": float, "string": str,
    "bytes": bytes, "array": list, "map": dict,
}  # fmt: skip
_PROMOTED: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
_WIDENED: Final = {frozenset(("int", "long")), frozenset(("float", "double"))}
_EXACT: Final = Context(prec=38)


# -- parts of schemas


def type_name(schema: Any) -> str:
    """Return the type of a part of a parsed schema that is no union: "record" and so on; a reference's name."""
    return schema if isinstance(schema, str) else type_name(schema["type"])


def defined(schema: Any, names: Names) -> Any:
    """Return the definition of a reference or a nested type; any other part of a schema as it is."""
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in names):
        return defined(schema["type"], names)
    return schema


def definitions(schema: Any, named: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the named types of a parsed schema, by full name."""
    named = {} if named is None else named
    if isinstance(schema, list):
        for branch in schema:
            definitions(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for key in ("type", "items", "values"):
            definitions(schema.get(key), named)
        for field in schema.get("fields", ()):
            definitions(field["type"], named)
    return named


def list_branches(union: list[Any]) -> list[Any]:
    """Return the branches that are members of the union's struct: all but null."""
    return [branch for branch in union if type_name(branch) != "null"]


def is_plain(union: list[Any]) -> bool:
    """Return whether a union is a column of its one type, or of the wider of two numbers: no struct of members."""
    some = list_branches(union)
    return len(some) <= 1 or frozenset(type_name(branch) for branch in some) in _WIDENED


def is_decimal(schema: Any) -> bool:
    """Return whether values of a schema are decimals."""
    return (
        isinstance(schema, dict) and schema.get("logicalType") == "decimal" and type_name(schema) in ("bytes", "fixed")
    )


# -- values


def converter(schema: Any, names: Names) -> Convert | None:
    """Return a function that makes a column's value from fastavro's datum of a schema; None: the datum is the value.

    A datum of a named type is a tuple of name and value if the writer had a union there. This schema may have no union
    there. The function raises ValueError for branches, symbols and decimals that cannot be.
    """
    schema = defined(schema, names)
    if isinstance(schema, list):
        return _union(schema, names)
    if is_decimal(schema):
        return _convert_named(_decimal(schema)) if type_name(schema) == "fixed" else _decimal(schema)
    kind = type_name(schema)
    if kind == "enum":
        return _convert_named(_symbol(schema))
    if kind == "fixed":
        return _convert_named(None)
    if kind == "record":
        converts = [(f["name"], c) for f in schema["fields"] if (c := converter(f["type"], names)) is not None]
        return _convert_named(_fields(converts) if converts else None)
    inner = converter(schema["items" if kind == "array" else "values"], names) if kind in ("array", "map") else None
    if inner is None:
        return None
    if kind == "array":
        return lambda items: [inner(item) for item in items]
    return lambda entries: {key: inner(value) for key, value in entries.items()}


def _convert_named(convert: Convert | None) -> Convert:
    def converted(value: Any) -> Any:
        if type(value) is tuple:
            value = value[1]
        return value if convert is None else convert(value)

    return converted


def _fields(converts: list[tuple[str, Convert]]) -> Convert:
    def converted(value: dict[str, Any]) -> dict[str, Any]:
        return value | {name: convert(value[name]) for name, convert in converts}  # a default belongs to all values

    return converted


def _union(union: list[Any], names: Names) -> Convert:
    """Return a function for values of a union: fastavro gives named types as (name, value), and the other branches
    differ in their Python types.
    """
    whole = [defined(branch, names) for branch in union]
    kinds = [type_name(one) for one in whole]
    converts = [converter(branch, names) for branch in whole]
    if is_plain(union):
        return _plain(union, kinds, converts)
    # by name, or by Python type: member and convert
    branches: dict[str | type, tuple[str, Convert | None]] = {}
    both: dict[type, str] = {}  # members that have the same type
    for one, kind, convert in zip(whole, kinds, converts, strict=True):
        if kind == "null":
            continue
        of = _PYTHON_TYPES[kind] if kind in _PYTHON_TYPES else one["name"]
        if of in branches:
            both[of] = " and ".join(k for k in kinds if _PYTHON_TYPES.get(k) is of)
        branches[of] = f"member{len(branches) + len(both)}", convert

    def converted(value: Any) -> Any:
        if value is None:
            return None
        of, value = value if type(value) is tuple else (type(value), value)
        if of in both:
            raise ValueError(f"expected one of {both[of]} in a union of members, found both: fastavro gives no branch")
        if of not in branches:
            raise ValueError(f"the union has {len(union)} branches, and the value belongs to none of them")
        member, convert = branches[of]
        return {member: value if convert is None else convert(value)}

    return converted


def _plain(union: list[Any], kinds: list[str], converts: list[Convert | None]) -> Convert:
    convert = next((convert for kind, convert in zip(kinds, converts, strict=True) if kind != "null"), None)

    def converted(value: Any) -> Any:
        if type(value) is tuple and value[0] == NO_BRANCH:
            raise ValueError(f"the union has {len(union)} branches, and the value belongs to none of them")
        return value if value is None or convert is None else convert(value)

    return converted


def _symbol(schema: Any) -> Convert:
    symbols = frozenset(schema["symbols"])

    def converted(value: str) -> str:
        if value not in symbols:
            raise ValueError(f"enum {schema['name']} has {len(symbols)} symbols, and the value is none of them")
        return value

    return converted


def _decimal(schema: Any) -> Convert:
    precision, scale = schema["precision"], schema.get("scale", 0)
    end = 10**precision

    def converted(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, "big", signed=True)
        if not value or not -end < unscaled < end:
            raise ValueError(f"a decimal of {len(value)} bytes does not fit decimal({precision}, {scale})")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return converted


# -- what fastavro cannot resolve


def refusal(writer: Any, reader: Any, written: Names, read: Names, path: str = "") -> str | None:
    """Return the reason to refuse `reader` for values of `writer`: fastavro would return wrong values. None: fastavro
    returns the right values, or raises an error itself.

    writer, reader: parsed schemas; written, read: their `definitions`; path: of the part, in the reader's names.
    """
    writer, reader = defined(writer, written), defined(reader, read)
    if isinstance(reader, list):
        return _refused_union(writer, reader, written, read, path)
    if isinstance(writer, list):
        return _first(refusal(branch, reader, written, read, path) for branch in writer)
    kind = type_name(writer)
    if kind != type_name(reader):
        return None
    if kind == "record":
        return _first(_refused_field(writer, field, written, read, path) for field in reader["fields"])
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return refusal(writer[inner], reader[inner], written, read, f"{path}[]")
    return None


def _refused_union(writer: Any, reader: list[Any], written: Names, read: Names, path: str) -> str | None:
    branches = [defined(branch, written) for branch in writer] if isinstance(writer, list) else [writer]
    of_reader = [defined(branch, read) for branch in reader]
    if not is_plain(reader):
        if not isinstance(writer, list) and type_name(writer) != "null":
            found = f"found {_shown(writer)}: fastavro does not say which branch of the reader's it takes"
            return f"{path or 'the value'}: expected a union in the writer's schema, {found}"
        for branch in branches:
            kinds = [type_name(of) for of in of_reader]
            before = kinds[: kinds.index(type_name(branch))] if type_name(branch) in kinds else []
            if promoted := [kind for kind in before if (type_name(branch), kind) in _PROMOTED]:
                found = f"found {promoted[0]} first, which fastavro reads it as"
                return (
                    f"{path or 'the value'}: expected {type_name(branch)} as the first branch that takes one, {found}"
                )
    return _first(refusal(branch, of, written, read, path) for branch in branches for of in of_reader)


def _refused_field(writer: Any, field: Any, written: Names, read: Names, path: str) -> str | None:
    path = f"{path}.{field['name']}" if path else field["name"]
    names = {field["name"], *field.get("aliases", ())}
    given = [one for one in writer["fields"] if one["name"] in names]
    if len(given) > 1:
        found = ", ".join(one["name"] for one in given)
        return f"{path}: expected one field of the writer by this name or an alias, found {found}"
    if given:
        return refusal(given[0]["type"], field["type"], written, read, path)
    if "default" in field and not _is_as_in_json(field["type"], field["default"], read):
        expected = "expected a default without bytes, decimals, members of unions and fields left out"
        return f"{path}: {expected}, found {field['default']!r} in a field that the writer lacks"
    return None


def _is_as_in_json(schema: Any, value: Any, names: Names) -> bool:
    """Return whether a default, as JSON has it, is fastavro's datum of a schema."""
    schema = defined(schema, names)
    if isinstance(schema, list):
        if value is None or not is_plain(schema):
            return value is None
        return any(_is_as_in_json(branch, value, names) for branch in list_branches(schema))
    kind = type_name(schema)
    if kind == "record":
        fields = schema["fields"]
        return isinstance(value, dict) and all(
            f["name"] in value and _is_as_in_json(f["type"], value[f["name"]], names) for f in fields
        )
    if kind == "array":
        return isinstance(value, list) and all(_is_as_in_json(schema["items"], item, names) for item in value)
    if kind == "map":
        return isinstance(value, dict) and all(_is_as_in_json(schema["values"], item, names) for item in value.values())
    return kind not in ("bytes", "fixed") or (isinstance(value, str) and value.isascii() and not is_decimal(schema))


def _first(reasons: Any) -> str | None:
    return next((one for one in reasons if one is not None), None)


def _shown(schema: Any) -> str:
    return " ".join(
        part for part in (type_name(schema), schema.get("name", "") if isinstance(schema, dict) else "") if part
    )
