"""The problem of a partition, as a value that crosses between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass

from lastkey.logformat.errors import LogFormatError


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
    def of(cls, error: LogFormatError, state: str = "uncleanable") -> Problem:
        """Return an error as a problem."""
        return cls(
            error.kind, error.path, error.position, error.expected, error.found, error.base_offset, error.hint, state
        )

    def as_error(self) -> LogFormatError:
        """Return the problem as an error to raise."""
        return LogFormatError(
            self.kind, self.path, self.position, self.expected, self.found, base_offset=self.base_offset, hint=self.hint
        )

    def __str__(self) -> str:
        return str(self.as_error())


class SetAside(Exception):
    """Error that sets a partition aside: nothing may touch it; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem
