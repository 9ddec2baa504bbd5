"""Workers without Spark and threads: this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lastkey.jobs.command.progress import Watcher

T = TypeVar("T")
R = TypeVar("R")


class InTurn:
    """Runner that processes items in sequence, without notifying watchers."""

    cores = 1

    def run(self, function: Callable[[T], R], items: Sequence[T], name: str, watcher: Watcher | None = None) -> list[R]:
        """Return `function` of every item."""
        return [function(item) for item in items]
