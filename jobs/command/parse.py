"""Parsers of typed values: moments, numbers, keys, names, other names of topics; and of Java's properties."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import CONFIG_FILE, UnknownNameError, UsageError
from lastkey.jobs.topics import TopicFilter, unmatched
from lastkey.logformat.storage.locations import refuse_secrets

MAX_LONG: Final = 2**63 - 1  # Java's: the highest offset, and timestamp of a record
_LONG_DIGITS: Final = 19
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_TIME_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)  # in the year 9999


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of `1732190700000` or of an ISO 8601 time; without a zone it is UTC.

    Anything else is a UsageError.
    """
    digits = text.removeprefix("-")
    if digits.isdecimal():
        if len(digits) > _LONG_DIGITS or int(digits) > MAX_LONG:
            raise UsageError(message=f"no such time: {text}; expected milliseconds up to {MAX_LONG}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            message=f"no such time: {text}; expected milliseconds since 1970, or ISO 8601 as 2026-11-21T14:05Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_numbers(text: str) -> range:
    """Return the numbers of `3`, or of `3-5`. Raise ValueError for anything else."""
    match = re.fullmatch(r"\s*([0-9]{1,10})\s*(?:-\s*([0-9]{1,10})\s*)?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(text)
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def read_given(path: str, kind: str) -> str:
    """Return the text of a local file that an option names. Raise CONFIG_FILE if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CONFIG_FILE(path=path, expected=kind, found="no such file") from None
    except OSError as error:
        raise CONFIG_FILE(path=path, expected=kind, found=error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise CONFIG_FILE(path=path, expected=kind, found=f"bytes that are not UTF-8: {error}") from error


_SET: Final = re.compile(r"\[!?+\]?+[^\]]*\]")  # [ab], as fnmatch reads it


def parse_globs(option: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the globs of a repeatable option; each value is a list with commas, which no topic's name holds.

    Raises UsageError for a value without a glob, which must not pass for "every topic".
    """
    globs = []
    for text in given:
        parts = [part for part in map(str.strip, text.split(",")) if part]
        if not parts:
            raise UsageError(message=f"{option}: expected globs of topics' names, separated by commas, found {text!r}")
        for part in parts:
            if "[" in _SET.sub("", part):
                raise UsageError(
                    message=f"{option}: expected a ] after the [ of a glob, found {part!r}; a comma separates globs "
                    "inside of [...] too: write [ab] for [a,b]"
                )
        globs += parts
    return tuple(dict.fromkeys(globs))


def parse_topics(
    topics: Iterable[str], exclude: Iterable[str] = (), files: Iterable[str] = (), option: str = "--{}"
) -> TopicFilter:
    """Return the topics of --topics, --exclude and --topics-from, each of which may be repeated.

    A file has a glob a line; # begins a comment. option: how to write an option in messages. UsageError: a value
    without a glob; CONFIG_FILE: a file that cannot be read, or has no glob.
    """
    include = list(parse_globs(option.format("topics"), topics))
    for file in files:
        text = read_given(file, "a file with a glob of topics a line")
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        globs = parse_globs(file, filter(None, lines))
        if not globs:
            raise CONFIG_FILE(path=file, expected="a glob of topics in at least one line", found="none")
        include += globs
    return TopicFilter(tuple(dict.fromkeys(include)), parse_globs(option.format("exclude"), exclude))


def check_text(arguments: Iterable[str]) -> None:
    """Raise UsageError for bytes that are no UTF-8: no code that opens a path, or writes a report, takes them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")
            raise UsageError(message=f"{shown}: expected a path or a name that is UTF-8, found other bytes") from error


def check_location(name: str, value: object) -> str:
    """Return a path or URI that a Python program gave for the argument `name`. Raise TypeError for any other type.

    UsageError: bytes that are no UTF-8. PlaceError: credentials in a URI.
    """
    location = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(location, str):
        raise TypeError(f"{name}: expected a path or URI, found {value!r}")
    refuse_secrets(location)
    check_text([location])
    if "\0" in location:  # no command line can contain it
        raise UsageError(message=f"{name}: expected a path without NUL, found {location!r}")
    return location


def parse_key(text: str) -> bytes:
    """Return a record's key from text, or from its bytes as `0x6162`."""
    return bytes.fromhex(text[2:]) if re.fullmatch("0x([0-9a-fA-F]{2})*", text) else text.encode()


_SHOWN: Final = 10  # names that a message lists


def nearest(found: str | Sequence[str], known_names: Iterable[str], shown: Callable[[str], object] = str) -> str:
    """Return a hint about an unknown name: `did you mean ...?`, or the known names.

    shown: formats a known name, for names that are compared in small letters.
    """
    names = list(known_names)
    near = [name for one in ([found] if isinstance(found, str) else found) for name in _closest(one, names)]
    if near:
        return f"did you mean {' or '.join(str(shown(name)) for name in dict.fromkeys(near[:_SHOWN]))}?"
    return f"there are {abbreviate_names([str(shown(name)) for name in names])}"


def _closest(found: str, names: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(found, names, n=2, cutoff=0.5) or difflib.get_close_matches(
        found.lower(), names, n=2, cutoff=0.5
    )


def abbreviate_names(names: Sequence[str]) -> str:
    """List names for a message: the first of them, and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def check_globs(option: str, globs: Sequence[str], known_topics: Iterable[str], where: str) -> None:
    """Raise UnknownNameError if one of the globs matches none of the known topics; never if none is known.

    option: begins the message, unless it is empty.
    """
    topics = sorted(set(known_topics))
    none = unmatched(globs, topics) if topics else []
    if none:
        said = f"{option}: " if option else ""
        raise UnknownNameError(
            message=f"{said}no topic of {where} matches {abbreviate_names(none)}", near=nearest(none, topics)
        )


def check_topics(wanted: TopicFilter, known_topics: Iterable[str], where: str) -> None:
    """Raise UsageError if a glob of `include` matches no known topic, if `exclude` leaves no known topic, or if
    `exclude` has an unknown name; its patterns may match no topic. Never raise if no topic is known.
    """
    topics = set(known_topics)
    check_globs("", wanted.include, topics, where)
    plain = [name for name in wanted.exclude if not _WILD.search(name)]
    check_globs("exclude", plain, topics, where)
    if topics and not any(wanted.takes(topic) for topic in topics):
        raise UsageError(
            message=f"no topic of {where} is left: {abbreviate_names(wanted.exclude)} leaves out all of "
            f"{abbreviate_names(wanted.include or sorted(topics))}"
        )


_WILD: Final = re.compile(r"[*?[]")


def unmatched_tables(globs: Iterable[str], known_topics: Iterable[str], settings: str) -> list[str]:
    """Return a note for each [topics."GLOB"] of a settings file that matches no known topic."""
    topics = sorted(set(known_topics))
    return [
        f'{settings}: [topics."{glob}"] matches no topic of the archive; {nearest(glob, topics)}'
        for glob in (unmatched(globs, topics) if topics else ())
    ]


_KEY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, path: str) -> dict[str, str]:
    """Return the settings of a broker's server.properties, or a file of --command-config, as java.util.Properties reads
    it. Raise CONFIG_FILE for a line without a name, or a malformed escape.
    """
    out: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, raw in lines:
        line = raw.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        match = _KEY.fullmatch(line)
        if match is None or re.search(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})", line):
            raise CONFIG_FILE(path=f"{path}, line {number}", expected="NAME=VALUE", found=repr(_name(line)))
        out[_unescaped(match[1])] = _unescaped(match[2])
    return out


def _name(line: str) -> str:
    """Return the beginning of a line, up to its value, which may be secret."""
    return re.split(r"[=:\s]", line, maxsplit=1)[0]


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _LETTERS.get(m[1], m[1]), text)


@dataclass(frozen=True)
class Rename:
    """Pattern for whole names of topics, and the other name: groups of the pattern as \\1 or \\g<name>."""

    pattern: str
    replacement: str

    @staticmethod
    def of(text: str) -> Rename:
        """Return the parsed `REGEX=REPLACEMENT`. Raise UsageError."""
        pattern, _, replacement = text.rpartition("=")
        if not pattern:
            raise UsageError(message=f"--rename {text}: expected REGEX=REPLACEMENT, for example 'A\\.(.*)=\\1'")
        try:
            re.sub(pattern, replacement, "")
        except (re.error, IndexError) as error:
            raise UsageError(message=f"--rename {text}: {error}") from None
        return Rename(pattern, replacement)

    def name(self, topic: str) -> str | None:
        """Return the other name of a topic; None if the pattern does not match all of its name."""
        match = re.fullmatch(self.pattern, topic)
        return None if match is None else match.expand(self.replacement)
