"""Cases run in sequence in a forked process, which may crash or hang; the parent process identifies the case.

Both processes share the memory that counts the ends of cases. A case that ends the process (a signal), or that does not
end, is a failure of its own, and another process continues behind it.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

C = TypeVar("C")

HANG_SECONDS = 20.0  # limit for one process working on a case, or for all of them being idle
LOOK_SECONDS = 0.5  # between two looks at the number of the current case
MOST_FAILURES = 25
LEAK_BYTES = 1 << 30  # limit for the memory that all earlier cases together leave
_AT_ONCE = 1 << 12  # cases for one process
_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD = struct.Struct("=qq")  # number of the current case, most bytes that a case took


class Failed(Exception):
    """A case that ended in a forbidden way."""


@dataclass
class Tried:
    """Result of a group's cases."""

    counts: dict[str, int] = field(default_factory=dict)  # verdict -> cases
    failures: list[tuple[str, str]] = field(default_factory=list)  # name of the case, what happened
    crashes: int = 0
    hangs: int = 0
    peak_bytes: int = 0  # most resident memory that a case took

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + self.crashes + self.hangs

    def add(self, other: Tried) -> None:
        """Add the result of more cases."""
        for verdict, n in other.counts.items():
            self.counts[verdict] += n
        self.failures += other.failures
        self.crashes += other.crashes
        self.hangs += other.hangs
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


def try_all(
    cases: Iterable[C],
    work: Callable[[C], str],
    verdicts: tuple[str, ...],
    memory_bytes: int,
    folder: Path,
    look_each: int = 1,
) -> Tried:
    """Try all cases, or stop after many failures. work: returns a verdict, or raises Failed or anything else.

    look_each: measure the memory of so many cases together, for cases that are quicker than the measuring.
    """
    tried = Tried(dict.fromkeys(verdicts, 0))
    first, left = 0, iter(cases)
    rest = list(islice(left, _AT_ONCE))
    while rest and len(tried.failures) < MOST_FAILURES:
        while first < len(rest) and len(tried.failures) < MOST_FAILURES:
            first += _one_process(rest[first:], work, tried, memory_bytes, folder, look_each)
        first, rest = 0, list(islice(left, _AT_ONCE))
    return tried


def _one_process(
    cases: list[C], work: Callable[[C], str], tried: Tried, memory_bytes: int, folder: Path, look_each: int
) -> int:
    """Try cases in one process; return how many it tried."""
    verdicts = tuple(tried.counts)
    shared = mmap.mmap(-1, _HEAD.size + 8 * len(verdicts))
    failures_file = folder / "failures"
    failures_file.write_bytes(b"")
    pid = os.fork()
    if pid == 0:
        try:
            _child(cases, work, verdicts, shared, failures_file, memory_bytes, look_each)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit(0)
    status, hung = _wait(pid, shared)
    number, peak = _HEAD.unpack_from(shared)
    tried.peak_bytes = max(tried.peak_bytes, peak)
    for verdict, n in zip(verdicts, struct.unpack_from(f"={len(verdicts)}q", shared, _HEAD.size), strict=True):
        tried.counts[verdict] += n
    for failure in failures_file.read_text().split("\0")[:-1]:
        name, _, what = failure.partition("\n")
        tried.crashes += 1
        tried.failures.append((name, what))
    if hung:
        tried.hangs += 1
        tried.failures.append((str(cases[number]), f"still going after {HANG_SECONDS:g} s"))
        return number + 1
    if os.WIFSIGNALED(status):
        tried.crashes += 1
        tried.failures.append((str(cases[number]), f"the process died of {signal.Signals(os.WTERMSIG(status)).name}"))
        return number + 1
    if os.WEXITSTATUS(status):
        tried.crashes += 1
        tried.failures.append((str(cases[number]), f"the process ended with {os.WEXITSTATUS(status)}"))
        return number + 1
    return number


def _wait(pid: int, shared: mmap.mmap) -> tuple[int, bool]:
    """Return the status of a process, and whether it hung. Processor time decides, because a busy machine lets any case
    wait.
    """
    number, since = -1, time.monotonic()
    begun: dict[int, float] = {}
    before: dict[int, float] = {}
    child = os.pidfd_open(pid)
    try:
        while not select.select([child], [], [], LOOK_SECONDS)[0]:
            (now,) = struct.unpack_from("=q", shared)
            worked = _worked(pid)
            if now != number:
                number, begun = now, worked
            if worked != before:
                before, since = worked, time.monotonic()
            idle = time.monotonic() - since
            if max(idle, *(seconds - begun.get(one, 0) for one, seconds in worked.items())) > HANG_SECONDS:
                for one in (*worked, pid):
                    with suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 0, True
        return os.waitpid(pid, 0)[1], False
    finally:
        os.close(child)


def _worked(pid: int) -> dict[int, float]:
    """Return the seconds of processor time that a process and each of its descendants have had."""
    progress: dict[int, tuple[int, float]] = {}  # pid -> parent, seconds
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            progress[int(stat.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
    below = {pid}
    while more := {one for one, (parent, _) in progress.items() if parent in below} - below:
        below |= more
    return {one: progress[one][1] for one in below if one in progress}


def _child(
    cases: list[C],
    work: Callable[[C], str],
    verdicts: tuple[str, ...],
    shared: mmap.mmap,
    failures_file: Path,
    memory_bytes: int,
    look_each: int,
) -> None:
    counts, failures = dict.fromkeys(verdicts, 0), 0
    before = at_first = _forget_peak()
    most = 0
    with failures_file.open("a") as file:
        for number, case in enumerate(cases):
            _HEAD.pack_into(shared, 0, number, most)
            if failures >= MOST_FAILURES:
                return
            if number % look_each == 0:
                before = _forget_peak()
                if before > at_first + LEAK_BYTES:
                    raise MemoryError(f"{before - at_first >> 20} MiB more than at first, after {number} cases")
            try:
                verdict = work(case)
                if (number + 1) % look_each == 0:
                    took = _resident("VmHWM") - before
                    most = max(most, took)
                    if took > memory_bytes:
                        raise Failed(f"took {took >> 20} MiB, more than {memory_bytes >> 20}")
            except Exception as error:
                what = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error)[-6:])
                file.write(f"{case}\n{what}\0")
                file.flush()
                failures += 1
                continue
            counts[verdict] += 1
            struct.pack_into("=q", shared, _HEAD.size + 8 * verdicts.index(verdict), counts[verdict])
        _HEAD.pack_into(shared, 0, len(cases), most)


def _forget_peak() -> int:
    """Reset the peak of resident memory to the present size; return it in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) << 10


def in_turn(streams: list[Iterator[C]]) -> Iterator[C]:
    """Yield one case of each stream in turn, as long as there are any: rare kinds of damage come as often as frequent
    ones.
    """
    while streams:
        left = []
        for stream in streams:
            for one in islice(stream, 1):
                left.append(stream)
                yield one
        streams = left
