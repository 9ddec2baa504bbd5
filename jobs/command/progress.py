"""Progress of a job: phases that count up. Shown on stderr, only where a person watches or asked for it."""

from __future__ import annotations

from typing import Protocol

from tqdm import tqdm


class Progress(Protocol):
    """What a job tells while it runs. Calls may come from any thread of the driver."""

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """A phase begins; it ends the one before."""

    def advance(self, n: int = 1) -> None:
        """`n` units of the phase are done."""

    def close(self) -> None:
        """No more phases."""


class Silent:
    """Shows nothing."""

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """Ignored."""

    def advance(self, n: int = 1) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


class Bar:
    """One bar on stderr for the phase that runs."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """A new bar takes the old one's line."""
        self.close()
        scale = unit in ("B", "record")
        self._bar = tqdm(total=total, desc=phase, unit=f" {unit}", unit_scale=scale, leave=False, miniters=1)

    def advance(self, n: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
