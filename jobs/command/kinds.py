"""Kinds of values that options take: each check and conversion once, for the command line and for programs."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from lastkey.jobs.command.declare import Value, ValueKind
from lastkey.jobs.command.parse import (
    MAX_LONG,
    check_location,
    check_text,
    parse_globs,
    parse_key,
    parse_numbers,
    parse_time,
)
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import EVERY_TOPIC, FOLDER_KINDS, TopicFilter
from lastkey.logformat.storage.locations import refuse_secrets

Given = TypeVar("Given")
Held = TypeVar("Held")
Name = TypeVar("Name", bound=str)
Some = TypeVar("Some")
Location = str | os.PathLike[str]  # a path, or a URI such as s3://bucket/archive
Globs = str | Iterable[str]  # globs of topics' names: one text with commas between them, or several

# Types of the commonest options
Flag = Value[bool, bool]
Place = Value[Location, str]
MaybePlace = Value[Location | None, str | None]
MaybeNumber = Value[int | None, int | None]
Text = Value[str, str]
MaybeText = Value[str | None, str | None]
Places = Value[Location | Iterable[Location] | None, tuple[str, ...]]
TopicCount = tuple[str, int]
Texts = Value[Globs | None, tuple[str, ...]]


def maybe(kind: ValueKind[Given, Held]) -> ValueKind[Given | None, Held | None]:
    """Return the kind that takes None too, for an option that is not given."""

    def check(option: Value[Any, Any], value: object) -> Held | None:
        return None if value is None else kind.check(option, value)

    return replace(kind, check=check)  # type: ignore[arg-type, return-value]  # of other types


_SWITCH: Final = "true or false"


def _flag(option: Value[Any, Any], value: object) -> bool:
    if not isinstance(value, bool):
        raise option.wrong_type(_SWITCH, value)
    return value


def _parse_switch(option: Value[Any, Any], text: str) -> bool:
    if text not in ("true", "false"):
        raise option.wrong(_SWITCH, repr(text))
    return text == "true"


def _text(option: Value[Any, Any], value: object) -> str:
    """Check a text, as the command line checks every word but a key: it may not hold credentials."""
    if not isinstance(value, str):
        raise option.wrong_type("text", value)
    refuse_secrets(value)
    check_text([value])
    return value


def number(least: int | None = None, most: int | None = None, metavar: str = "N") -> ValueKind[int, int]:
    """Return the kind of whole numbers from `least` to `most`."""
    bounds = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most}"
    allowed = f"a whole number{bounds}"

    def from_text(option: Value[Any, Any], text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise option.wrong(allowed, repr(text)) from None

    def check(option: Value[Any, Any], value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise option.wrong_type(allowed, value)
        if (least is not None and value < least) or (most is not None and value > most):
            raise option.wrong(allowed, value)
        return value

    return ValueKind(check, metavar, allowed, from_text)


def real(least: float, most: float = math.inf, metavar: str = "N") -> ValueKind[float, float]:
    """Return the kind of finite numbers from `least` to `most`."""
    allowed = f"a number from {least:g} to {most:g}" if most < math.inf else f"a number from {least:g} on"

    def from_text(option: Value[Any, Any], text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise option.wrong(allowed, repr(text)) from None

    def check(option: Value[Any, Any], value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise option.wrong_type(allowed, value)
        if not (math.isfinite(value) and least <= value <= most):
            raise option.wrong(allowed, value)
        return float(value)

    return ValueKind(check, metavar, allowed, from_text)


def choice(names: tuple[Name, ...]) -> ValueKind[Name, Name]:
    """Return the kind of names in a list."""
    allowed = " or ".join(names)

    def check(option: Value[Any, Any], value: object) -> Name:
        if not isinstance(value, str):
            raise option.wrong_type(allowed, value)
        text = _text(option, value)
        for name in names:
            if text == name:
                return name
        raise option.wrong(allowed, repr(text))

    return ValueKind(check, "|".join(names), allowed, choices=names)


class _NotGiven(tuple[Any, ...]):
    """Empty tuple of an option that is not given; an empty list that a program gives is refused."""

    __slots__ = ()


NOT_GIVEN: Final = _NotGiven()


def check_each(
    option: Value[Any, Any], value: object, check: Callable[[Value[Any, Any], object], Held], what: str
) -> tuple[Held, ...]:
    """Return one value, or several, each checked, as a tuple. what: noun for messages."""
    is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike)
    values: Iterable[object] = value if is_several else (value,)  # type: ignore[assignment]  # mypy forgets the check
    try:
        return tuple(check(option, each) for each in values)
    except TypeError:
        raise option.wrong_type(f"{what}, or several of them", value) from None


def _not_empty(option: Value[Any, Any], values: tuple[Some, ...], what: str) -> tuple[Some, ...]:
    """Raise UsageError for an empty list of an option that restricts a run: an empty list does not mean "all"."""
    if not values:
        raise option.wrong(f"at least one {what}", "none; leave it out to take all")
    return values


def repeated(
    kind: ValueKind[Given, Held], what: str, *, least: str = ""
) -> ValueKind[Given | Iterable[Given] | None, tuple[Held, ...]]:
    """Return the kind of one value of a kind, or several. what: noun for messages; least: noun if an empty list is
    refused; else an empty list has no effect.
    """

    def check(option: Value[Any, Any], value: object) -> tuple[Held, ...]:
        if value is None or isinstance(value, _NotGiven):
            return NOT_GIVEN
        found = check_each(option, value, kind.check, what)
        return _not_empty(option, found, least) if least else found

    return replace(kind, check=check, repeats=True)  # type: ignore[arg-type, return-value]  # of other types


def texts(what: str = "text", *, adds: bool = False, metavar: str = "TEXT") -> ValueKind[Globs | None, tuple[str, ...]]:
    """Return the kind of one text, or several. adds: an empty list has no effect; else it is refused."""
    return repeated(ValueKind(_text, metavar), what, least="" if adds else "value")


def span(parse: Callable[[str], int]) -> ValueKind[str | None, tuple[int | None, int | None]]:
    """Return the kind of `A..B`, `A..` or `..B`, whose ends `parse` reads: from A on, below B."""

    def check(option: Value[Any, Any], value: object) -> tuple[int | None, int | None]:
        if value is None:
            return None, None
        if isinstance(value, tuple):  # checked before
            return value
        text = _text(option, value)
        start, dots, end = text.partition("..")
        try:
            ends = (parse(start) if start else None, parse(end) if end else None)
        except ValueError:
            dots, ends = "", (None, None)
        if not dots or any(end is not None and abs(end) > MAX_LONG for end in ends):
            raise option.wrong("FROM..TO, FROM.. or ..TO", repr(text))
        if ends[0] is not None and ends[1] is not None and ends[1] < ends[0]:  # else no record would match, silently
            raise option.wrong("a FROM that is not after TO", repr(text))
        return ends

    return ValueKind(check, "FROM..TO")


def _key_text(option: Value[Any, Any], value: object) -> str:
    """Check the key of a record, which may look like anything, also like a URI with credentials."""
    if not isinstance(value, str):
        raise option.wrong_type("text", value)
    check_text([value])
    return value


def _key(option: Value[Any, Any], value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else parse_key(_key_text(option, value))


def _globs(option: Value[Any, Any], value: object) -> tuple[str, ...]:
    return parse_globs(option.flag, check_each(option, value, _text, "globs of topics as text"))


def _include(option: Value[Any, Any], value: object) -> TopicFilter:
    if value is None or isinstance(value, TopicFilter):
        return value or EVERY_TOPIC
    globs = value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if isinstance(globs, tuple):
        _not_empty(option, globs, "glob")
    return TopicFilter(_globs(option, globs))


def _folders(option: Value[Any, Any], value: object) -> tuple[str, ...]:
    texts = check_each(option, value, _text, "kinds of folders as text")
    kinds = [kind.strip() for text in texts for kind in text.split(",")]
    if wrong := [kind for kind in kinds if kind not in FOLDER_KINDS]:
        raise option.wrong(f"{', '.join(FOLDER_KINDS)}, or several with commas", repr(wrong[0]))
    return tuple(dict.fromkeys(kinds))


def _some_topics(option: Value[Any, Any], value: object) -> TopicFilter | None:
    if value is None or isinstance(value, TopicFilter):
        return value
    globs = _globs(option, value)
    return TopicFilter(globs) if globs else None


def _partitions(option: Value[Any, Any], value: object) -> tuple[range, ...]:
    if isinstance(value, str):
        text = _text(option, value)
        try:
            return tuple(map(parse_numbers, text.split(",")))
        except ValueError:
            raise option.wrong("numbers and ranges such as 0,3-5", repr(text)) from None
    parts = tuple(value) if isinstance(value, Iterable) else ()
    if parts and all(isinstance(part, range) for part in parts):
        return parts
    if not parts or not all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
        raise option.wrong_type("numbers of partitions, or text such as '0,3-5'", value)
    return tuple(range(part, part + 1) for part in parts)


_UNITS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION: Final = re.compile("".join(rf"(?:([0-9]{{1,9}}){unit})?" for unit in _UNITS))


def _duration(option: Value[Any, Any], value: object) -> float:
    if isinstance(value, str):
        text = _text(option, value)
        found = _DURATION.fullmatch(text.strip())
        parts = zip(found.groups(), _UNITS.values(), strict=True) if found else ()
        if not (seconds := sum(int(n or 0) * unit for n, unit in parts)):
            raise option.wrong("a duration such as 90s, 30m or 1h30m", repr(text))
        return float(seconds)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise option.wrong_type("seconds, or text such as '1h30m'", value)
    if not 0 < value < 10**14:  # more than the longest text, 999999999d
        raise option.wrong("seconds above 0", value)
    return float(value)


def _time(option: Value[Any, Any], value: object) -> int:
    if isinstance(value, str):
        return parse_time(_text(option, value))
    if not isinstance(value, int) or isinstance(value, bool):
        raise option.wrong_type("milliseconds since 1970, or ISO 8601 as text", value)
    return value


def _now(option: Value[Any, Any], value: object) -> int:
    return time.time_ns() // 1_000_000 if value is None else _WHOLE.check(option, value)


def _progress(option: Value[Any, Any], value: object) -> Progress | bool:
    if not isinstance(value, bool) and not callable(getattr(value, "start", None)):
        raise option.wrong_type("True or False", value)
    return value  # type: ignore[return-value]  # a Progress, by its methods


def _url(option: Value[Any, Any], value: object) -> str:
    """Check that a post can go there. The message does not repeat the URL, which may hold a secret."""
    text = _text(option, value)
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        fits = fits and parts.username is None and parts.password is None and text.isascii() and text.isprintable()
    except ValueError:
        fits = False
    if not fits or " " in text:
        expected = "http://HOST/... or https://HOST/..., without user or password"
        raise UsageError(message=f"{option.flag}: expected {expected}")
    return text


@dataclass(frozen=True)
class AuditSource:
    """Source of an audit: an archive, or a generation of a store, whose archive may have moved."""

    archive: str | None = None
    store: str | None = None
    generation: int | None = None  # None: the current one


def audit_side(text: str) -> AuditSource:
    """Return the source that A or B names: an archive, STORE@GENERATION or STORE@current."""
    store, at, generation = text.rpartition("@")
    if not store or not at or not (generation == "current" or generation.isdecimal()):
        return AuditSource(archive=text)
    return AuditSource(store=store, generation=None if generation == "current" else int(generation))


def _side(option: Value[Any, Any], value: object) -> AuditSource:
    return value if isinstance(value, AuditSource) else audit_side(check_location(option.name, value))


def _count(option: Value[Any, Any], value: object) -> TopicCount:
    if isinstance(value, tuple):  # checked before
        return value
    text = _text(option, value)
    topic, _, n = text.rpartition("=")
    if not topic or not n.isdecimal() or int(n) < 1:
        raise option.wrong("TOPIC=N, with N from 1 on", repr(text))
    return topic, int(n)


def _place(metavar: str, completes: Literal["file", "dir"] = "dir") -> ValueKind[Location, str]:
    return ValueKind(lambda option, value: check_location(option.name, value), metavar, completes=completes)


_WHOLE: Final = number()
Engine = Literal["default", "spark", "threads", "auto"]  # default: of each command
ENGINE: Final[ValueKind[Engine, Engine]] = choice(get_args(Engine))
FLAG: Final[ValueKind[bool, bool]] = ValueKind(_flag, "", _SWITCH, _parse_switch, is_flag=True)
TEXT: Final[ValueKind[str, str]] = ValueKind(_text, "TEXT", "text")
URI, ARCHIVE, STORE, DIR = map(_place, ("URI", "ARCHIVE", "STORE", "DIR"))
FILE: Final = _place("FILE", "file")
ARCHIVES: Final = repeated(ARCHIVE, "a path", least="file")
STORES: Final = repeated(STORE, "a path", least="file")
FILES: Final = repeated(FILE, "a path", least="file")
KEY: Final[ValueKind[str | bytes | None, bytes | None]] = ValueKind(_key, "KEY")
KEYS: Final[ValueKind[Globs | None, tuple[str, ...]]] = repeated(ValueKind(_key_text, "KEY"), "keys as text")
FOLDERS: Final[ValueKind[Globs, tuple[str, ...]]] = ValueKind(
    _folders, "KIND", ", ".join(FOLDER_KINDS), choices=(), repeats=True
)
TOPICS: Final[ValueKind[Globs | TopicFilter | None, TopicFilter]] = ValueKind(_include, "GLOB", repeats=True)
GLOBS: Final[ValueKind[Globs, tuple[str, ...]]] = ValueKind(_globs, "GLOB", repeats=True)
SOME_TOPICS: Final[ValueKind[Globs | TopicFilter | None, TopicFilter | None]] = ValueKind(
    _some_topics, "GLOB", repeats=True
)
URL: Final[ValueKind[str, str]] = ValueKind(_url, "URL")
PROGRESS: Final[ValueKind[Progress | bool, Progress | bool]] = ValueKind(_progress)
PARTITIONS: Final[ValueKind[str | Iterable[int | range], tuple[range, ...]]] = ValueKind(_partitions, "N,N-M")
DURATION: Final[ValueKind[str | float, float]] = ValueKind(_duration, "DURATION")
SIDE: Final[ValueKind[Location | AuditSource, AuditSource]] = ValueKind(_side, completes="dir")
COUNTS: Final = repeated(ValueKind[str | TopicCount, TopicCount](_count, "TOPIC=N"), "TOPIC=N")
TIME: Final[ValueKind[int | str, int]] = ValueKind(_time, "TIME")
NOW: Final[ValueKind[int | None, int]] = ValueKind(_now, "EPOCH_MS", from_text=_WHOLE.from_text)
