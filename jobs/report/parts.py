"""Parts of a page and of a text: figures at the top, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
