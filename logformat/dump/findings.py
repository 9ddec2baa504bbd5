"""Findings that kafka-dump-log prints at its end for all files, and damage.

Source: Kafka's DumpLogSegments (4.3.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.dump.indexes import CONTRADICTIONS, IndexFindings
from lastkey.logformat.dump.log import LogFindings
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.binary_arrays import joined_bytes

_LINES: Final = 1 << 16  # findings that are formatted at a time


@dataclass
class DumpFindings:
    """Findings of a whole dump, by path."""

    logs: dict[str, LogFindings] = field(default_factory=dict)
    indexes: dict[str, IndexFindings] = field(default_factory=dict)
    problems: list[LogFormatError] = field(default_factory=list)  # problems of files that cannot be read at all
    unknown: list[str] = field(default_factory=list)

    @property
    def all_problems(self) -> list[LogFormatError]:
        """Damage, in the order of files."""
        return [
            *self.problems,
            *(p for of in self.logs.values() for p in of.problems),
            *(p for of in self.indexes.values() for p in of.problems),
        ]

    @property
    def n_mismatches(self) -> int:
        """Index entries that contradict their log."""
        return sum(len(pairs) for of in self.indexes.values() for pairs in of.pairs.values())

    def add(self, other: DumpFindings) -> None:
        """Add the findings of other files."""
        self.logs |= other.logs
        self.indexes |= other.indexes
        self.problems += other.problems
        self.unknown += other.unknown

    def text(self) -> Iterator[str]:
        """Yield whole lines, many at a time: first the tool's findings, then damage.

        The tool prints mismatches of offset indexes and gaps of offsets in the order of a hash map, each first offset
        once; here they are sorted.
        """
        for title, form, pairs in self._pairs():
            if len(pairs):
                yield f"{title}\n"
                yield from _lines(form, pairs)
        yield from (f"problem: {problem}\n" for problem in self.all_problems)

    def summary(self, most: int) -> tuple[str, ...]:
        """Return at most `most` lines of each kind, and the number of those left out."""
        lines = [f"unknown: {path}" for path in self.unknown]
        for title, form, pairs in self._pairs():
            if len(pairs):
                lines += [title, *"".join(_lines(form, pairs[:most])).splitlines()]
                lines += [f"  and {len(pairs) - most} more"] if len(pairs) > most else []
        return (*lines, *(f"problem: {problem}" for problem in self.all_problems))

    def _pairs(self) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
        for kind, (_, title, form) in CONTRADICTIONS.items():
            for path, of in self.indexes.items():
                pairs = of.pairs[kind]
                yield title.format(path), form, _rising(pairs) if kind == "offsetMismatch" else pairs
        for path, log in self.logs.items():
            gaps = np.concatenate([np.empty((0, 2), np.int64), *log.not_consecutive])
            yield f"Non-consecutive offsets in {path}", "  {} is followed by {}", _rising(gaps)


def _rising(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs sorted by the first number; of pairs with the same one only the last."""
    _, last = np.unique(pairs[::-1, 0], return_index=True)
    return pairs[::-1][last]


def _lines(form: str, pairs: NDArray[np.int64]) -> Iterator[str]:
    """Yield pairs as lines, with their line ends."""
    head, middle, tail = form.split("{}")
    for first in range(0, len(pairs), _LINES):
        left, right = (pa.array(column).cast(pa.string()) for column in pairs[first : first + _LINES].T)
        lines = pc.binary_join_element_wise(head, left, middle, right, f"{tail}\n", "")
        yield bytes(joined_bytes(lines)).decode()
