"""What a user types, parsed once: moments, partitions, keys, names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from jobs.errors import UsageError

MAX_TIME_MS: Final = 2**63 - 1  # of a Java long: what a record's timestamp can be


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of `1732190700000` or of an ISO 8601 time; without a zone it is UTC.

    Anything else is a UsageError.
    """
    if text.lstrip("-").isdecimal():
        if abs(int(text)) > MAX_TIME_MS:
            raise UsageError(message=f"no such time: {text}; expected milliseconds up to {MAX_TIME_MS}")
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
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; there are {', '.join(str(shown(name)) for name in names[:_SHOWN])}{more}"


def no_such_topic(asked: str, known: Iterable[str], where: str) -> UsageError:
    """Nothing of the known topics matches what was asked for."""
    return UsageError(message=f"no topic of {where} matches {asked}{nearest(asked, sorted(set(known)))}")
