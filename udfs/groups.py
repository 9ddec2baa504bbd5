"""What a task is given: consecutive things up to a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[tuple[T, ...]]:
    """Consecutive items whose sizes are `most` together at the most; one that is larger is alone."""
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
