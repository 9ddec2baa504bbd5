"""Markdown tables of the generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BAR: Final = re.compile(r"(`[^`]*`)|\|")  # the site takes a bar in code as it is


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table with a line for each row."""
    names = tuple(head)
    return "".join(map(_line, (names, ("---",) * len(names), *rows)))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(_BAR.sub(lambda found: found[1] or '&#124;', cell) for cell in cells)} |\n"
