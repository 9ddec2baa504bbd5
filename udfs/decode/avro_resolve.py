"""Values written by one Avro schema, as another one reads them: the specification's rules of schema resolution.

fastavro reads a value by its writer's schema alone. The functions made here then change it into what the reader's
schema says: fields by name or alias, defaults for missing ones, numbers promoted, string and bytes exchanged, branches
of unions found again, symbols that the reader does not know. A pair of schemas is turned into functions once; if
nothing has to change, there is no function.

fastavro (1.13) does not resolve them itself, because with a reader's schema it leaves defaults of bytes as text, and
names a union's branch only if the writer had a union too. It also takes an enum's or union's index below 0, which only
a damaged value has, for one from the end. (It still does so for a union's index of more than one byte.)

Source: Apache Avro's specification 1.12, "Schema Resolution". Records at the same place in both schemas match whatever
their names, as in Avro's Java library; in unions they match by their names without namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

Convert = Callable[[Any], Any]
Names = Mapping[str, Any]  # full name -> definition

INDEX: Final = "i"  # the field of the record that enums are read as: fastavro checks no index
_PROMOTED: Final[dict[tuple[str, str], Convert | None]] = {
    ("int", "long"): None, ("int", "float"): float, ("int", "double"): float, ("long", "float"): float,
    ("long", "double"): float, ("float", "double"): None, ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}  # fmt: skip
_PYTHON_TYPES: Final[dict[str, type]] = {
    "boolean": bool, "long": int, "int": int, "double": float, "float": float, "string": str, "bytes": bytes,
    "array": list, "map": dict,
}  # fmt: skip
_WIDENED: Final = {frozenset(("int", "long")), frozenset(("float", "double"))}
_NO_BRANCH: Final = "the union has {} branches, and the value belongs to none of them"
_EXACT: Final = Context(prec=38)


def kind_of(schema: Any) -> str:
    """Return the type of a part of a parsed schema that is no union: "record" and so on; a reference's name."""
    return schema if isinstance(schema, str) else kind_of(schema["type"])


def defined(schema: Any, names: Names) -> Any:
    """Return the definition behind a reference or a nested type; any other part of a schema as it is."""
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in names):
        return defined(schema["type"], names)
    return schema


def definitions(schema: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the named types of a parsed schema, by full name."""
    found = {} if found is None else found
    if isinstance(schema, list):
        for branch in schema:
            definitions(branch, found)
    elif isinstance(schema, dict):
        if "name" in schema:
            found[schema["name"]] = schema
        for key in ("type", "items", "values"):
            definitions(schema.get(key), found)
        for field in schema.get("fields", ()):
            definitions(field["type"], found)
    return found


def branches_of(union: list[Any]) -> list[Any]:
    """Return the branches that are members of the union's struct: all but null."""
    return [branch for branch in union if kind_of(branch) != "null"]


def is_plain(union: list[Any]) -> bool:
    """Return whether a union is a column of its one type, or of the wider of two numbers: no struct of members."""
    some = branches_of(union)
    return len(some) <= 1 or frozenset(kind_of(branch) for branch in some) in _WIDENED


def converter(writer: Any, reader: Any, written: Names, read: Names) -> Convert | None:
    """Return a function that makes a value of `reader` from fastavro's datum of `writer`; None: nothing has to change.

    writer, reader: parsed schemas, as fastavro gives them; written, read: their `definitions`. The function raises
    ValueError for a value that the reader cannot take.
    """
    writer, reader = defined(writer, written), defined(reader, read)
    if isinstance(writer, list):
        return _of_branches(writer, reader, written, read)
    if isinstance(reader, list):
        return _into_branch(writer, reader, written, read)
    kinds = kind_of(writer), kind_of(reader)
    logical = reader.get("logicalType") if isinstance(reader, dict) else None
    if not _match(writer, reader, exactly=False, named=kinds[0] != "record"):
        return _refused(f"written as {_shown(writer)}, which cannot be read as {_shown(reader)}")
    if logical == "decimal" and kinds[0] in ("bytes", "fixed"):
        return _decimal(reader)
    if kinds[0] == "record":
        return _record(writer, reader, written, read)
    if kinds[0] == "enum":
        return _enum(writer, reader)
    if kinds[0] == "array":
        return _of_items(converter(writer["items"], reader["items"], written, read))
    if kinds[0] == "map":
        return _of_entries(converter(writer["values"], reader["values"], written, read))
    return _PROMOTED.get(kinds)


def default_of(schema: Any, value: Any, names: Names) -> Any:
    """Return a field's default, given as in JSON, as a value of its schema. Raises ValueError if it does not fit."""
    schema = defined(schema, names)
    if isinstance(schema, list):
        for i, branch in enumerate(schema):
            try:
                found = default_of(branch, value, names)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            return _member(schema, i)(found) if found is not None and not is_plain(schema) else found
        raise ValueError(f"the default {value!r} fits no branch of the union")
    kind = kind_of(schema)
    if kind == "record":
        return {
            f["name"]: default_of(f["type"], value[f["name"]] if f["name"] in value else f["default"], names)
            for f in schema["fields"]
        }
    if kind == "array":
        return [default_of(schema["items"], item, names) for item in list(value)]
    if kind == "map":
        return {key: default_of(schema["values"], item, names) for key, item in value.items()}
    if kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        return _decimal(schema)(data) if schema != "bytes" and schema.get("logicalType") == "decimal" else data
    if kind == "null" and value is None:
        return None
    if kind in ("float", "double"):
        return float(value)
    expected = _PYTHON_TYPES.get(kind, str)
    if not isinstance(value, expected) or isinstance(value, bool) != (kind == "boolean"):
        raise ValueError(f"the default {value!r} is not of type {kind}")
    return value


def _match(writer: Any, reader: Any, *, exactly: bool, named: bool) -> bool:
    kinds = kind_of(writer), kind_of(reader)
    if kinds[0] != kinds[1]:
        return not exactly and kinds in _PROMOTED
    if kinds[0] == "fixed" and writer["size"] != reader["size"]:
        return False
    if "name" not in (writer if isinstance(writer, dict) else {}) or not named:
        return True
    names = {_bare(name) for name in (reader["name"], *reader.get("aliases", ()))}
    return _bare(writer["name"]) in names


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(schema: Any) -> str:
    return " ".join(
        part for part in (kind_of(schema), schema.get("name", "") if isinstance(schema, dict) else "") if part
    )


def _refused(reason: str) -> Convert:
    def refuse(value: Any) -> Any:
        raise ValueError(reason)

    return refuse


def _of_branches(writer: list[Any], reader: Any, written: Names, read: Names) -> Convert | None:
    """Return a function for values of the writer's union: fastavro gives named types as (name, value), and the other
    branches differ in their Python types.
    """
    converts = [converter(branch, reader, written, read) for branch in writer]
    whole = [defined(branch, written) for branch in writer]
    named = {
        one["name"]: convert
        for one, convert in zip(whole, converts, strict=True)
        if isinstance(one, dict) and "name" in one
    }
    plain = [
        (type(None) if kind == "null" else _PYTHON_TYPES[kind], convert)
        for kind, convert in zip(map(kind_of, whole), converts, strict=True)
        if kind == "null" or kind in _PYTHON_TYPES
    ]
    by_type = dict(reversed(plain))  # int or long: both are promoted alike

    def as_it_is(value: Any) -> Any:
        if type(value) is tuple:
            raise ValueError(_NO_BRANCH.format(len(writer)))
        return value

    def converted(value: Any) -> Any:
        if type(value) is tuple:
            name, value = value
            if name not in named:
                raise ValueError(_NO_BRANCH.format(len(writer)))
            convert = named[name]
        else:
            convert = by_type[type(value)]
        return value if convert is None else convert(value)

    return as_it_is if not named and all(convert is None for convert in converts) else converted


def _into_branch(writer: Any, reader: list[Any], written: Names, read: Names) -> Convert | None:
    """Return a function into the reader's first branch of the writer's type, else the first that it is promoted to."""
    branches = [defined(branch, read) for branch in reader]
    for exactly in (True, False):
        for i, branch in enumerate(branches):
            if _match(writer, branch, exactly=exactly, named=True):
                convert = converter(writer, branch, written, read)
                if is_plain(reader) or kind_of(branch) == "null":
                    return convert
                return _then(convert, _member(reader, i))
    return _refused(f"written as {_shown(writer)}, which fits no branch of the union")


def _of_items(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda items: [convert(item) for item in items]


def _of_entries(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda entries: {key: convert(value) for key, value in entries.items()}


def _then(first: Convert | None, second: Convert) -> Convert:
    return second if first is None else lambda value: second(first(value))


def _member(union: list[Any], i: int) -> Convert:
    name = f"member{len(branches_of(union[:i]))}"
    return lambda value: {name: value}


def _record(writer: Any, reader: Any, written: Names, read: Names) -> Convert | None:
    given = {field["name"]: field["type"] for field in writer["fields"]}
    taken: list[tuple[str, str, Convert | None]] = []  # name, name in what was written, what to do
    constant: dict[str, Any] = {}
    for field in reader["fields"]:
        name = next((name for name in (field["name"], *field.get("aliases", ())) if name in given), None)
        if name is not None:
            taken.append((field["name"], name, converter(given[name], field["type"], written, read)))
        elif "default" in field:
            constant[field["name"]] = default_of(field["type"], field["default"], read)
        else:
            return _refused(f"field {field['name']} was not written, and has no default")
    if not constant and all(name == before and convert is None for name, before, convert in taken):
        return None  # Arrow leaves other fields of the writer out
    if not constant and all(name == before for name, before, _ in taken):
        return _in_place([(name, convert) for name, _, convert in taken if convert is not None])

    def converted(value: Any) -> Any:
        out = dict(constant)
        for name, before, convert in taken:
            out[name] = value[before] if convert is None else convert(value[before])
        return out

    return converted


def _in_place(converts: list[tuple[str, Convert]]) -> Convert:
    def converted(value: Any) -> Any:
        for name, convert in converts:
            value[name] = convert(value[name])
        return value

    return converted


def _enum(writer: Any, reader: Any) -> Convert:
    known, default = set(reader["symbols"]), reader.get("default")
    symbols = {i: symbol if symbol in known else default for i, symbol in enumerate(writer["symbols"])}

    def converted(value: Any) -> Any:
        symbol = symbols.get(value[INDEX])
        if symbol is None:
            raise ValueError(f"enum {reader['name']} has no symbol {value[INDEX]}")
        return symbol

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
