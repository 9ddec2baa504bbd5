"""Table of Kafka's generated messages: fields, types and versions, from kafka_messages.txt, which explains itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).with_name("kafka_messages.txt")
_FOREVER: Final = 2**15


@dataclass(frozen=True)
class Field:
    """A field of a message; a struct, or an array of structs, has `fields` of its own."""

    name: str
    kind: str  # for an array: the kind of its items
    versions: range
    array: bool = False
    null: range | None = None
    tag: int | None = None
    default: str = ""  # as JSON text; set only where there is a tag
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Message:
    """A message of the table."""

    name: str
    versions: range
    flexible: range | None
    fields: tuple[Field, ...] = field(default=(), repr=False)


@cache
def messages() -> dict[str, Message]:
    """Return all messages of the table, by name."""
    lines = [line for line in _TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    by_name = {}
    at = 0
    while at < len(lines):
        name, versions, *options = lines[at].split()
        fields, at = _fields(lines, at + 1, 2)
        flexible = dict(_option(option) for option in options).get("flexible")
        by_name[name] = Message(name, _versions(versions), _versions(flexible) if flexible else None, fields)
    return by_name


def known_versions(name: str) -> range:
    """Return the known versions of a message."""
    return messages()[name].versions


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _versions(text: str) -> range:
    low, _, high = text.partition("-")
    if low.endswith("+"):
        return range(int(low[:-1]), _FOREVER)
    return range(int(low), int(high or low) + 1)


def _fields(lines: list[str], at: int, indent: int) -> tuple[tuple[Field, ...], int]:
    """Parse the fields from line `at` on that have this indent; return them and the next line's number."""
    fields = []
    while at < len(lines) and lines[at].startswith(" " * indent):
        name, kind, *rest = lines[at].split()
        inner, at = _fields(lines, at + 1, indent + 2)
        versions = _versions(rest.pop(0)) if rest and rest[0][0].isdigit() else range(_FOREVER)
        options = dict(_option(option) for option in rest)
        null = None
        if "null" in options:
            null = _versions(options["null"]) if options["null"] else versions
        tag = int(options["tag"]) if "tag" in options else None
        array = kind.startswith("[]")
        fields.append(
            Field(name, kind.removeprefix("[]"), versions, array, null, tag, options.get("default", ""), inner)
        )
    return tuple(fields), at
