"""JSON schemas of the reports of all commands, made from their types: `python -m docs.report_schemas` writes them.

`schemas/COMMAND.json` has what `--json` prints (draft 2020-12). A test compares the files with what this module makes.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa

from lastkey.jobs.command import reporting
from lastkey.jobs.command.functions import JOBS, imported
from lastkey.jobs.command.reporting import JobReport
from lastkey.udfs.problem import Problem

FOLDER: Final = Path(__file__).resolve().parent.parent / "schemas"
MORE: Final = ("lookup.tables",)  # its job imports it late
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_PROBLEM: Final = {"anyOf": [{"$ref": "#/$defs/problem"}, {"type": "string"}]}
_EVERY: Final = {  # report, whatever its job
    "exit_code": {"type": "integer"},
    "problems": {"type": "array", "items": _PROBLEM},
    "notes": {"type": "array", "items": {"type": "string"}},
    "engine": {"anyOf": [{"$ref": "#/$defs/engine"}, {"type": "null"}]},
    "seconds": {"type": "object", "additionalProperties": {"type": "number"}},
}
_OBJECT: Final = {"type": "object"}


def schemas() -> dict[str, dict[str, Any]]:
    """Return command -> schema. The reports of a command that has several kinds are alternatives."""
    for job in JOBS:
        imported(job)
    for module in MORE:
        __import__(f"lastkey.jobs.{module}")
    kinds = defaultdict(list)
    for kind in sorted(_below(JobReport), key=lambda kind: (kind.__module__, kind.__name__)):
        if kind.job and "facts" in vars(kind):
            kinds[kind.job.partition(" ")[0]].append(_report(kind))
    shared = {"problem": _value(Problem), "engine": _value(reporting.Work)}
    return {
        job: {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Report of {job}"}
        | (of[0] if len(of) == 1 else {"anyOf": of})
        | {"$defs": shared}
        for job, of in sorted(kinds.items())
    }


def _below(kind: type[JobReport]) -> Iterator[type[JobReport]]:
    for one in kind.__subclasses__():
        if one.__module__.startswith("lastkey."):
            yield one
            yield from _below(one)


def _report(kind: type[JobReport]) -> dict[str, Any]:
    own, others = _facts(kind, kind.facts)
    properties = {"job": {"const": kind.job} if kind.job else {"type": "string"}, **_EVERY, **own}
    optional = {"io": {"type": "object"}, "error": {"type": "object"}}  # the second: of a run that ended early
    return _OBJECT | {
        "properties": properties | optional,
        "required": sorted(properties),
        "additionalProperties": others,
    }


def _facts(kind: type, names: str) -> tuple[dict[str, Any], Any]:
    """Return name -> schema of facts (`reporting.pick`), and the schema of others, with names of their own."""
    found: dict[str, Any] = {}
    others: Any = False
    for name, _, path in (fact.partition("=") for fact in names.split()):
        made = _value(bool) if path[:1] == "?" else _reached(kind, path or name)
        if name != "*":
            found[name] = made
        elif "properties" in made:  # a report inside another one
            found |= {name: made["properties"][name] for name in made["required"]}
        else:
            others = made.get("additionalProperties", True)
    return found, others


def _reached(kind: Any, path: str) -> dict[str, Any]:
    """Return the schema of the value at a path (`reporting._reach`)."""
    is_optional = False
    for name in path.split("."):
        given = [one for one in typing.get_args(kind) if one is not types.NoneType]
        if types.NoneType in typing.get_args(kind):
            kind, is_optional = given[0], True
        if typing.get_origin(kind) in (dict, Mapping):
            kind = typing.get_args(kind)[1]
            continue
        of = inspect.getattr_static(kind, name, None)
        function = of.fget if isinstance(of, property) else of if inspect.isfunction(of) else None
        kind = _hints(function)["return"] if function is not None else _hints(kind)[name]
    found = _value(kind)
    return {"anyOf": [found, {"type": "null"}]} if is_optional and found else found


def _hints(of: Any) -> dict[str, Any]:
    """Return type hints; a name that is imported for type checkers alone is of any type."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(of, localns=unknown, include_extras=True)
        except NameError as error:
            unknown[str(error.name)] = Any


def _value(kind: Any) -> dict[str, Any]:
    """Return the schema of a value (`reporting.plain`)."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _row(given[1])
    if origin in (typing.NotRequired, typing.Required):
        return _value(given[0])
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_value(one) for one in given]}
    if origin is typing.Literal:
        return {"enum": list(given)}
    if origin is not None and issubclass(origin, Mapping):
        return _OBJECT | ({"additionalProperties": of} if (of := _value(given[1])) else {})
    if origin is tuple and given[-1] is not ...:
        return {"type": "array", "prefixItems": [_value(one) for one in given]}
    if origin is not None:
        return {"type": "array"} | ({"items": of} if (of := _value(given[0])) else {})
    if isinstance(kind, type) and issubclass(kind, JobReport):
        return _report(kind)
    if typing.is_typeddict(kind):
        own = {name: _value(of) for name, of in _hints(kind).items()}
        hints = _hints(kind)
        required = sorted(name for name in own if typing.get_origin(hints[name]) is not typing.NotRequired)
        return _OBJECT | {"properties": own, "required": required, "additionalProperties": False}
    if hasattr(kind, "to_json"):
        return _value(_hints(kind.to_json)["return"])
    if not is_dataclass(kind):
        return {}
    names = getattr(kind, "facts", "") or " ".join(f.name for f in fields(kind))
    own, others = _facts(kind, names)
    own = {name: of for name, of in own.items() if (kind, name) != (Problem, "state")}
    return _OBJECT | {"properties": own, "required": sorted(own), "additionalProperties": others}


def _row(columns: Iterable[pa.Field]) -> dict[str, Any]:
    """Return the schema of a row of a table; bytes are keys, which reports show as text."""
    own = {column.name: _cell(column.type, column.nullable) for column in columns}
    return _OBJECT | {"properties": own, "required": sorted(own), "additionalProperties": False}


def _cell(kind: pa.DataType, nullable: bool) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return _row(kind)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _cell(kind.value_type, nullable=False)}
    name = "integer" if pa.types.is_integer(kind) else "boolean" if pa.types.is_boolean(kind) else "string"
    return {"type": [name, "null"] if nullable else name}


def text(schema: Mapping[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for job, made in schemas().items():
        (FOLDER / f"{job}.json").write_text(text(made), encoding="utf-8")
