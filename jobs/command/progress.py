"""Progress of a job on stderr: a bar where a person watches, a line a minute elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tqdm import tqdm

from jobs.command.reporting import count, seconds, size

BYTES: Final = "B"  # the unit of phases that count bytes
LINE_SECONDS: Final = 60.0


class Progress(Protocol):
    """What a job tells while it runs. Calls may come from any thread of the driver."""

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """A phase begins; it ends the one before."""

    def advance(self, n: int = 1) -> None:
        """`n` units of the phase are done."""

    def doing(self, what: str) -> None:
        """What the job does that moves nothing, such as "starting Spark"; "" ends it."""

    def close(self) -> None:
        """No more phases."""


class Silent:
    """Shows nothing."""

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """Ignored."""

    def advance(self, n: int = 1) -> None:
        """Ignored."""

    def doing(self, what: str) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


class BySize:
    """Progress in bytes of tasks that start in order: when n have ended, these were the first n, or nearly so."""

    def __init__(self, progress: Progress, sizes: Sequence[int]) -> None:
        self._progress, self._sizes, self._ended = progress, sizes, 0

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """A phase of the whole."""
        self._progress.start(phase, total, unit)

    def advance(self, n: int = 1) -> None:
        """`n` more tasks have ended."""
        self._progress.advance(sum(self._sizes[self._ended : self._ended + n]))
        self._ended += n

    def finish(self) -> None:
        """All tasks have ended, counted or not."""
        self.advance(len(self._sizes) - self._ended)

    def doing(self, what: str) -> None:
        """Handed on."""
        self._progress.doing(what)

    def close(self) -> None:
        """Handed on."""
        self._progress.close()


class Bar:
    """One bar on stderr for the phase that runs. Its clock goes on while nothing advances."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._ticks = _Ticks(1.0, self._tick)

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """A new bar takes the old one's line."""
        self._take_away()
        in_bytes = unit == BYTES
        self._bar = tqdm(
            total=total,
            desc=phase,
            unit=BYTES if in_bytes else f" {unit}",
            unit_scale=in_bytes or unit == "record",
            unit_divisor=1024 if in_bytes else 1000,
            leave=False,
            miniters=1,
            dynamic_ncols=True,
        )
        self._ticks.begin()

    def advance(self, n: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(n)

    def doing(self, what: str) -> None:
        """Behind the figures."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)

    def close(self) -> None:
        """Take the bar away."""
        self._ticks.end()
        self._take_away()

    def _tick(self) -> None:
        if self._bar is not None:
            self._bar.refresh()

    def _take_away(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Lines:
    """A line on stderr for each minute that a phase takes: for logs that somebody follows."""

    def __init__(
        self, write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or sys.stderr.write
        self._clock = clock
        self._phase, self._total, self._unit, self._done, self._what = "", 0, "", 0, ""
        self._began = self._told = clock()
        self._ticks = _Ticks(LINE_SECONDS / 12, self._tell)

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """The first line comes after a minute."""
        self._phase, self._total, self._unit, self._done, self._what = phase, total, unit, 0, ""
        self._began = self._told = self._clock()
        self._ticks.begin()

    def advance(self, n: int = 1) -> None:
        """Told with the next line."""
        self._done += n
        self._tell()

    def doing(self, what: str) -> None:
        """Told with the next line."""
        self._what = what

    def close(self) -> None:
        """No more lines."""
        self._ticks.end()

    def _tell(self) -> None:
        now = self._clock()
        if now - self._told >= LINE_SECONDS:
            self._told = now
            self._write(f"{self._line(now - self._began)}\n")

    def _line(self, took: float) -> str:
        shown = size if self._unit == BYTES else count
        of = f"{shown(self._done)} of {shown(self._total)}" + ("" if self._unit == BYTES else f" {self._unit}s")
        parts = [f"{self._phase}: {100 * self._done // max(self._total, 1)} %", of, f"{seconds(took)} so far"]
        if 0 < self._done < self._total:
            parts.append(f"about {seconds(took * (self._total - self._done) / self._done)} left")
        return ", ".join([*parts, *filter(None, (self._what,))])


class _Ticks:
    """Calls a function every few seconds, from a thread, between `begin` and `end`."""

    def __init__(self, every: float, function: Callable[[], object]) -> None:
        self._every, self._function = every, function
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, daemon=True, name="progress-clock")
            self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._function()


def above_the_bar(text: str) -> None:
    """Write whole lines to stderr; a bar that is there stays below them."""
    with tqdm.external_write_mode(file=sys.stderr):
        sys.stderr.write(text)
        sys.stderr.flush()
