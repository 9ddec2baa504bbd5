"""Groups of consecutive items up to a size: one task gets one group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[tuple[T, ...]]:
    """Yield tuples of consecutive items whose sizes add up to at most `most`; a larger item is a group by itself."""
    group: list[T] = []
    held = 0
    for item in items:
        size = size_of(item)
        if group and held + size > most:
            yield tuple(group)
            group, held = [], 0
        group.append(item)
        held += size
    if group:
        yield tuple(group)
