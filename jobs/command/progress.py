"""Progress of a job on stderr: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from tqdm import tqdm

from lastkey.jobs.command.reporting import count, seconds, size
from lastkey.jobs.errors import UsageError
from lastkey.logformat.control_characters import visible

BYTES: Final = "B"  # the unit of phases that count bytes
LINE_SECONDS: Final = 60.0
_COLUMNS, _ROWS = 80, 24  # for a terminal that does not report its size


class Progress:
    """Progress that a job reports while it runs. Calls may come from any thread of the driver."""

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """Begin a phase, and end the one before."""

    def advance(self, n: int = 1) -> None:
        """Count `n` more units of the phase as done."""

    def doing(self, what: str) -> None:
        """Name work without progress figures, such as "starting Spark"; "" ends it."""

    def close(self) -> None:
        """End the last phase."""


class Silent(Progress):
    """Progress without output."""


class Watcher(Protocol):
    """Watcher of items while they are worked on. Calls come from any thread, and may still come after the work."""

    wants_results: bool

    def read(self, item: int, n: int) -> None:
        """Count `n` more bytes as read of an item."""

    def ended(self, item: int, result: Any) -> None:
        """Count an item as done; `result` is None unless the watcher wants results."""


class CountedBytes:
    """Progress in bytes of items of these sizes: bytes read of each item, up to its size, until it ends.

    An item is read `passes` times, or nearly so.
    """

    wants_results = False

    def __init__(self, progress: Progress, sizes: Sequence[int], passes: int = 1) -> None:
        self._progress, self._sizes, self._passes = progress, sizes, passes
        self._read, self._reported = [0] * len(sizes), [0] * len(sizes)
        self._lock = threading.Lock()

    def read(self, item: int, n: int) -> None:
        """Advance by the bytes that were read of an item."""
        with self._lock:
            self._read[item] += n
            self._advance(item, min(self._read[item] // self._passes, self._sizes[item]))

    def ended(self, item: int, result: Any = None) -> None:
        """Advance to the end of an item."""
        with self._lock:
            self._advance(item, self._sizes[item])

    def _advance(self, item: int, at: int) -> None:
        if at > self._reported[item]:
            self._progress.advance(at - self._reported[item])
            self._reported[item] = at


class PartOf:
    """Watcher of a stage whose items are all parts of one item of another watcher, and count as reads of that item."""

    wants_results = False

    def __init__(self, whole: Watcher, item: int) -> None:
        self._whole, self._item = whole, item

    def read(self, item: int, n: int) -> None:
        """Count the bytes for the whole item."""
        self._whole.read(self._item, n)

    def ended(self, item: int, result: Any) -> None:
        """Do nothing: the whole item has not ended."""


class Bar(Progress):
    """Bar on stderr for the current phase. Its clock also runs without progress."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._ticks = _Ticks(1.0, self._tick)

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """Replace the old bar by a new one."""
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
            **_width(),
        )
        self._ticks.begin()

    def advance(self, n: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(n)

    def doing(self, what: str) -> None:
        """Show the name of the work after the figures."""
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


def _width() -> dict[str, Any]:
    """Return tqdm's options for a bar as wide as the terminal, also after its width changes. In containers and under
    `script` a terminal reports that it has no columns, and tqdm would show no bar: return a fixed size.
    """
    with suppress(OSError):  # no terminal: tqdm copes
        if not os.get_terminal_size(sys.stderr.fileno()).columns:
            return {"ncols": _COLUMNS, "nrows": _ROWS}
    return {"dynamic_ncols": True}


class Lines(Progress):
    """Lines on stderr, one for each minute that a phase takes: for logs that a user follows."""

    def __init__(
        self, write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or sys.stderr.write
        self._clock = clock
        self._phase, self._total, self._unit, self._done, self._what = "", 0, "", 0, ""
        self._began = self._reported = clock()
        self._ticks = _Ticks(LINE_SECONDS / 12, self._report_progress)

    def start(self, phase: str, total: int, unit: str = "partition") -> None:
        """Begin a phase; its first line comes after a minute."""
        self._phase, self._total, self._unit, self._done, self._what = phase, total, unit, 0, ""
        self._began = self._reported = self._clock()
        self._ticks.begin()

    def advance(self, n: int = 1) -> None:
        """Count `n` more units as done, and write a line if a minute has passed."""
        self._done += n
        self._report_progress()

    def doing(self, what: str) -> None:
        """Name the work for the next line."""
        self._what = what

    def close(self) -> None:
        """End the lines."""
        self._ticks.end()

    def _report_progress(self) -> None:
        now = self._clock()
        if now - self._reported >= LINE_SECONDS:
            self._reported = now
            self._write(f"{self._line(now - self._began)}\n")

    def _line(self, took: float) -> str:
        shown = size if self._unit == BYTES else count
        of = f"{shown(self._done)} of {shown(self._total)}" + ("" if self._unit == BYTES else f" {self._unit}s")
        parts = [f"{self._phase}: {100 * self._done // max(self._total, 1)} %", of, f"{seconds(took)} so far"]
        if 0 < self._done < self._total:
            parts.append(f"about {seconds(took * (self._total - self._done) / self._done)} left")
        return ", ".join([*parts, *filter(None, (self._what,))])


class _Ticks:
    """Clock that calls a function every few seconds, from a thread, between `begin` and `end`."""

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


class LogAboveTheBar(logging.Handler):
    """Log on stderr, above a bar if there is one. On a terminal control characters are made visible."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the lines of a record."""
        if record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt):
            return  # py4j's traceback of a Ctrl-C, which ends the job: the error states this in one line
        text = f"{self.format(record)}\n"
        with tqdm.external_write_mode(file=sys.stderr):
            sys.stderr.write(visible(text) if sys.stderr.isatty() else text)
            sys.stderr.flush()


def shown_progress(asked: bool | None, *, quiet: bool, verbose: bool) -> Progress:
    """Return the progress that was asked for, and set the log's level. Raise UsageError for options that contradict."""
    if quiet and (verbose or asked):
        raise UsageError(message="--quiet contradicts --verbose and --progress")
    talks = sys.stderr.isatty() and not quiet
    level = logging.DEBUG if verbose else logging.INFO if talks else logging.WARNING
    logging.getLogger("lastkey").setLevel(level)
    if quiet or asked is False:
        return Silent()
    return Bar() if asked or sys.stderr.isatty() else Lines()
