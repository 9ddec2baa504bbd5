"""The part of all partitions that one night's `verify` looks at: a pure function of their names and the night.

A hash puts each partition somewhere on a circle. A night takes an arc of it as long as the share, and the next night's
arc begins where that one ends, so after 1 / share nights each partition has had its turn, whatever was added meanwhile.
Nothing is remembered: the arc of a night without a run comes again when the circle is through, or at once by `missed`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import Key

_CIRCLE: Final = 1 << 32
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Sample:
    """Part of the circle that is looked at."""

    arc: int  # of a night
    night: int  # number of this one
    missed: int = 0  # nights before it whose arcs are taken too

    @property
    def nights(self) -> int:
        """Number of nights after which all has had its turn."""
        return -(-_CIRCLE // self.arc)

    def takes(self, key: Key) -> bool:
        """Return whether a partition is looked at."""
        name = f"{key[0]}-{key[1]}".encode()
        at = int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big")
        begin = (self.night - self.missed) * self.arc
        return (at - begin) % _CIRCLE < self.arc * (self.missed + 1)

    def __str__(self) -> str:
        more = f" and the {self.missed} before it" if self.missed else ""
        return f"night {self.night % self.nights + 1}{more} of {self.nights} after which all has had its turn"

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {"share": self.arc / _CIRCLE, "night": self.night, "nights": self.nights, "missed": self.missed}


def sample_of(share: float | None, all_within: str | None, seed: int | None, missed: int, now_ms: int) -> Sample | None:
    """Return what the options of `verify` mean; None: look at everything. Raise UsageError if they do not go together.

    share: --sample. seed: the night's number; None: the day of now_ms, UTC.
    """
    if share is None and all_within is None:
        if seed is not None or missed:
            raise UsageError(message="--seed and --missed need --sample SHARE or --all-within DAYS")
        return None
    if share is not None and all_within is not None:
        raise UsageError(message="--sample and --all-within both say how much to look at: give only one of them")
    if share is not None and not 0 < share <= 1:
        raise UsageError(message=f"--sample: expected a share above 0 and up to 1, found {share}")
    part = Fraction(share) if share is not None else Fraction(1, _days(all_within or ""))
    arc = max(-(-part.numerator * _CIRCLE // part.denominator), 1)
    return Sample(min(arc, _CIRCLE), now_ms // _DAY_MS if seed is None else seed, missed)


def _days(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,4})d?", text.strip())
    if found is None:
        raise UsageError(message=f"--all-within: expected a number of days such as 30d, found {text!r}")
    return int(found[1])
