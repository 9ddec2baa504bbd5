"""Rule that selects the generations of a partition to keep, by number, day and week, as in borg's `prune`.

The newest `generations` stay; then the newest of each of the last `daily` days, and of each of the last `weekly` weeks
(from Monday on, UTC) that have one. A generation that an earlier rule keeps is not counted by the later ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_DAY_MS: Final = 86_400_000
_MONDAY: Final = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True)
class Keep:
    """Numbers of generations, days and weeks."""

    generations: int = 0
    daily: int = 0
    weekly: int = 0

    def __bool__(self) -> bool:
        return bool(self.generations or self.daily or self.weekly)


_FIELDS: Final = {"": "generations", "d": "daily", "w": "weekly"}


def parse_keep(texts: Iterable[str]) -> Keep:
    """Return the rules of N, Nd and Nw, one or several with commas. Raise ValueError for any other, and for two of one.

    >>> parse_keep(["3,7d", "4w"])
    Keep(generations=3, daily=7, weekly=4)
    """
    numbers: dict[str, int] = {}
    for rule in (part.strip() for text in texts for part in text.split(",")):
        match = re.fullmatch(r"([0-9]{1,9})([dw]?)", rule)
        if match is None or _FIELDS[match[2]] in numbers:
            raise ValueError(rule)
        numbers[_FIELDS[match[2]]] = int(match[1])
    return Keep(**numbers)


def kept_by(keep: Keep, run_times: Mapping[int, int]) -> dict[int, str]:
    """Return the generations to keep, each with its rule. run_times: generation -> time of its run in ms."""
    rules: tuple[tuple[str, int, Callable[[int], int]], ...] = (
        (f"--keep {keep.generations}", keep.generations, lambda number: number),
        (f"--keep {keep.daily}d", keep.daily, lambda number: run_times[number] // _DAY_MS),
        (f"--keep {keep.weekly}w", keep.weekly, lambda number: (run_times[number] // _DAY_MS + _MONDAY) // 7),
    )
    kept: dict[int, str] = {}
    for name, most, period_of in rules:
        newest: dict[int, int] = {}
        for number in sorted(run_times, reverse=True):
            newest.setdefault(period_of(number), number)
        more = [number for number in newest.values() if number not in kept][:most]
        kept |= dict.fromkeys(more, name)
    return kept
