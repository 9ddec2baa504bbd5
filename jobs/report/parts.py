"""Parts of a page and of a text: figures at the top, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Card:
    """Figure in the summary at the top."""

    label: str
    value: str
    more: str = ""
    kind: str = ""  # good, bad or nothing


@dataclass(frozen=True)
class Table:
    """Rows under a header; `text`: numbers of the columns that hold text, not figures."""

    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bars:
    """Bars of a report, one for each label: each series is (name, values)."""

    name: str
    title: str
    says: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[float]]]
    unit: str = "count"  # count, bytes or ms


class PageReport(Protocol):
    """Protocol of a report that becomes a page: figures, tables and plots under the names of its sources."""

    kind: str
    sources: list[str]
    cards: list[Card]
    tables: list[Table]
    bars: list[Bars]
    notes: list[str]

    @property
    def problems(self) -> list[Any]:
        """Problems: each as a value, or its text."""
