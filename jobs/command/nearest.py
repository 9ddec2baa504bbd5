"""Messages about a name that there is not: they end with the nearest that there is."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Final

from jobs.errors import UsageError

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
