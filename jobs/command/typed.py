"""What a user types, parsed once: moments, partitions, keys, names."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from jobs.errors import UsageError
from jobs.topics import matches

MAX_LONG: Final = 2**63 - 1  # of Java: what an offset, and a record's timestamp, can be
_LONG_DIGITS: Final = 19


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of `1732190700000` or of an ISO 8601 time; without a zone it is UTC.

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
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def parse_numbers(text: str) -> range:
    """The numbers of `3`, or of `3-5`. ValueError: it is neither."""
    found = re.fullmatch(r"\s*([0-9]{1,10})\s*(?:-\s*([0-9]{1,10})\s*)?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(text)
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def parse_partitions(text: str | None) -> tuple[range, ...] | None:
    """`0,3-5` of --partitions as ranges; None is not given."""
    if text is None:
        return None
    try:
        return tuple(parse_numbers(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(message=f"--partitions: expected numbers and ranges such as 0,3-5, found {text!r}") from error


def parse_span(option: str, text: str, parse: Callable[[str], int]) -> tuple[int | None, int | None]:
    """The ends of `A..B`, `A..` or `..B`, each as `parse` reads it: from A on, below B. UsageError: it is none."""
    start, dots, end = text.partition("..")
    try:
        ends = (parse(start) if start else None, parse(end) if end else None)
    except ValueError:
        dots, ends = "", (None, None)
    if not dots or any(end is not None and abs(end) > MAX_LONG for end in ends):
        raise UsageError(message=f"{option}: expected FROM..TO, FROM.. or ..TO, found {text!r}")
    if ends[0] is not None and ends[1] is not None and ends[1] < ends[0]:  # else: as if there were no such record
        raise UsageError(message=f"{option}: expected a FROM that is not behind TO, found {text!r}")
    return ends


def check_text(arguments: Iterable[str]) -> None:
    """UsageError: bytes that are no UTF-8. Nothing that opens a path, or writes a report, takes them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")
            raise UsageError(message=f"{shown}: expected a path or a name that is UTF-8, found other bytes") from error


def parse_key(text: str) -> bytes:
    """A record's key: text, or its bytes as `0x6162`."""
    return bytes.fromhex(text[2:]) if re.fullmatch("0x([0-9a-fA-F]{2})*", text) else text.encode()


def parse_filter(text: str | None) -> bytes | None:
    """The key of --filter key=TEXT or key=0x6162; None is not given."""
    if text is None:
        return None
    name, equals, key = text.partition("=")
    if name != "key" or not equals:
        raise UsageError(message=f"--filter: expected key=TEXT or key=0xHEX, found {text!r}")
    return parse_key(key)


_SHOWN: Final = 10  # names that a message lists


def nearest(found: str, known: Iterable[str], shown: Callable[[str], object] = str) -> str:
    """`; did you mean ...?`, or what there is: the end of a message about a name that there is not.

    shown: how a known name is written, where it is looked for in small letters.
    """
    names = list(known)
    near = difflib.get_close_matches(found, names, n=2, cutoff=0.5) or difflib.get_close_matches(
        found.lower(), names, n=2, cutoff=0.5
    )
    if near:
        return f"; did you mean {' or '.join(str(shown(name)) for name in near)}?"
    return f"; there are {some_of([str(shown(name)) for name in names])}"


def some_of(names: Sequence[str]) -> str:
    """Names as a message lists them: the first of them, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def no_such_topic(asked: str, known: Iterable[str], where: str) -> UsageError:
    """Nothing of the known topics matches what was asked for."""
    return UsageError(message=f"no topic of {where} matches {asked}{nearest(asked, sorted(set(known)))}")


def check_topics(glob: str | None, known: Iterable[str], where: str) -> None:
    """Raise UsageError if a glob is given that matches none of the known topics; never if none is known."""
    topics = set(known)
    if glob is not None and topics and not any(matches(glob, topic) for topic in topics):
        raise no_such_topic(glob, topics, where)


def unmatched_tables(globs: Iterable[str], known: Iterable[str], settings: str) -> list[str]:
    """A note for each [topics."GLOB"] of a settings file that matches no known topic."""
    topics = sorted(set(known))
    return [
        f'{settings}: [topics."{glob}"] matches no topic of the archive{nearest(glob, topics)}'
        for glob in globs
        if topics and not any(matches(glob, topic) for topic in topics)
    ]
