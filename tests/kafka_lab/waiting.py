"""The one way the lab waits: it checks a condition again and again until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import LabError

T = TypeVar("T")
_PAUSE_SECONDS = 0.05


def wait_until(condition: Callable[[], T | None], what: str, *, seconds: float) -> T:
    """Return the first true value of `condition()`. Raises LabError with `what` if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(_PAUSE_SECONDS)
    return value
