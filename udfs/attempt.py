"""Work on one thing that gives a result, or the problem that stopped it: one bad partition costs no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from logformat.errors import stopped
from udfs.problem import Problem, SetAside

R = TypeVar("R")


def attempt(name: str, work: Callable[[], R]) -> R | Problem:
    """What `work` gives, or why it gave nothing; `name` is that of the partition, segment or file it works on.

    All that ends a partition's work ends here, in every job: SetAside, LogFormatError, and whatever nobody thought of
    (`logformat.errors.stopped` says which kinds there are). Raises OSError of a full disk.
    """
    try:
        return work()
    except SetAside as reason:
        return reason.problem
    except Exception as error:  # of whatever kind: the other partitions go on
        return Problem.of(stopped(error, name))
