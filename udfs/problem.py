"""The problem of a partition, as a value that crosses between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from lastkey.logformat.errors import LogFormatError

ANOTHER_LOG: Final = "topic recreated, archive rolled back or converted, or another cluster: --reset starts over"


@dataclass(frozen=True)
class Problem:
    """Problem of a partition, in the words of LogFormatError."""

    kind: str
    path: str
    position: int
    expected: str
    found: str
    base_offset: int = -1
    hint: str = ""
    state: str = "uncleanable"  # of cleaner_state: uncleanable, diverged or gap

    @classmethod
    def of(cls, error: LogFormatError) -> Problem:
        """Return an error as a problem."""
        return cls(*(getattr(error, field.name) for field in fields(cls)))

    def as_error(self) -> LogFormatError:
        """Return the problem as an error to raise."""
        return LogFormatError(**vars(self))

    def __str__(self) -> str:
        return str(self.as_error())
