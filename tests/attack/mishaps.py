"""The mishaps of an operation, all cases of them, and how a case is judged.

A case has a name like `compact/EIO/write/3/store/state/cleaner_runs/*.parquet`: the job, the mishap, the kind of
operation, its number among those on paths of this pattern, and the pattern.
"""

from __future__ import annotations

import errno
import random
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tests.attack import power
from tests.attack.forked import in_turn
from tests.attack.histories import TEMPORARY, VACUUM, Child, History, Output, check_end, compact, restore, run
from tests.attack.preload import Order, path_pattern

ON, SAID, KILLED, LIED, MISSED = (
    "completed", "failed with a named error", "killed", "lost to silent disk errors", "without the operation"
)  # fmt: skip
VERDICTS: Final = (ON, SAID, KILLED, LIED, MISSED)
CAME_NO_MORE: Final = "came-no-more"  # file with the names of those cases
_WRITES: Final = ("create", "write", "truncate", "fsync", "rename", "link", "delete", "mkdir", "times", "chmod")
_NAMES: Final = ("rename", "link", "delete", "mkdir")
_READS: Final = ("open", "read", "stat", "list", "readdir", "map")
_WAITING: Final = ("create", *_NAMES, "fsync", "list")
_DAY_NS: Final = 86_400 * 10**9
_CLOCKS: Final = {
    "an hour on": _DAY_NS // 24, "an hour back": -_DAY_NS // 24, "a year on": 365 * _DAY_NS,
    "a year back": -365 * _DAY_NS, "in 1970": _DAY_NS - time.time_ns(), "behind 2038": 13 * 365 * _DAY_NS,
}  # fmt: skip
_OTHERS: Final[dict[str, Callable[..., list[str]]]] = {"compact": compact, "vacuum": VACUUM, "restore": restore}
PATIENCE: Final = (
    3.0  # seconds for another job before the delayed one continues, which may hold a lock that the other waits for
)


@dataclass(frozen=True)
class Mishap:
    """A mishap, and the kinds of operations that it may happen to."""

    name: str
    kinds: tuple[str, ...]
    way: str
    error: int = 0
    times: int = 1
    clock_ns: int = 0
    loss: str = ""  # after a power cut: one of power.LOSSES
    meanwhile: str = ""  # job that runs while the operation waits
    below: str = ""  # only paths below this one


def _errors() -> Iterator[Mishap]:
    yield Mishap("EIO", (*_READS, *_WRITES, "lock", "close"), "error", errno.EIO)
    yield Mishap("EIO for ever", (*_READS, *_WRITES), "error", errno.EIO, times=-1)
    yield Mishap("ENOSPC", ("create", "write", "fsync", "rename", "link", "mkdir", "close"), "error", errno.ENOSPC)
    yield Mishap("EACCES", ("open", "create", "list", "stat", *_NAMES, "times", "chmod"), "error", errno.EACCES)
    yield Mishap("EMFILE", ("open", "create", "list"), "error", errno.EMFILE)
    yield Mishap("EMFILE for ever", ("open", "create", "list"), "error", errno.EMFILE, times=-1)


MISHAPS: Final = {
    mishap.name: mishap
    for mishap in (
        *_errors(),
        Mishap("full", ("create", "write", "mkdir", "link"), "full", errno.ENOSPC),
        Mishap("torn", ("write",), "torn", errno.ENOSPC),
        Mishap("torn, killed", ("write",), "torn, killed"),
        Mishap("short", ("read", "write"), "short"),
        Mishap("answer lost", ("create", *_NAMES, "fsync"), "answer lost", errno.EIO),
        Mishap("doubled", (*_NAMES, "fsync", "truncate", "times"), "doubled"),
        Mishap("lost", ("write",), "lost"),
        Mishap("written twice", ("write",), "doubled"),
        Mishap("wrong bytes", ("read",), "flipped", below=f"{TEMPORARY}/"),
        Mishap("killed before", _WRITES, "killed before"),
        Mishap("killed after", _WRITES, "killed after"),
        Mishap("power cut", _WRITES, "killed before", loss=power.ALL),
        Mishap("power cut, names stay", _WRITES, "killed before", loss=power.BYTES),
        *(Mishap(f"clock {name}", _WRITES, "clock", clock_ns=ns) for name, ns in _CLOCKS.items()),
        *(Mishap(f"delayed by {job}", _WAITING, "delayed", meanwhile=job) for job in _OTHERS),
    )
}  # fmt: skip
_LIES: Final = ("lost", "written twice")
_ONLY_READS: Final = ("verify",)


@dataclass(frozen=True)
class Case:
    """One mishap of one operation; nth 0: power is lost when the job has ended, or the clock is off when it begins."""

    job: str
    mishap: str
    kind: str
    nth: int
    pattern: str

    def __str__(self) -> str:
        return f"{self.job}/{self.mishap}/{self.kind}/{self.nth}/{self.pattern}"

    @property
    def operation(self) -> tuple[str, str, int]:
        return self.kind, self.pattern, self.nth

    @staticmethod
    def named(name: str) -> Case:
        job, mishap, kind, nth, pattern = name.split("/", 4)
        return Case(job, mishap, kind, int(nth), pattern)


def cases(history: History, seed: int) -> list[Case]:
    """Return all cases of a job. First comes one for each operation, mishaps in turn; then the others, one of each
    mishap and kind of operation in turn, so that rare ones come as often as frequent ones.
    """
    made = Counter((one.kind, path_pattern(one.other or one.path)) for one in history.noted)
    job = history.kind.name
    rng = random.Random(f"{seed}, {job}")
    streams = []
    drawn = [mishap for mishap in MISHAPS.values() if mishap.name.startswith(history.kind.only)]
    for mishap in drawn:
        if history.kind.damaged and mishap.meanwhile:
            continue  # reindex holds Kafka's lock, so no other job reads the archive meanwhile
        for kind in mishap.kinds:
            of = [
                Case(job, mishap.name, kind, nth, pattern)
                for (operation, pattern), n in made.items()
                if operation == kind and pattern.startswith(mishap.below) and pattern.startswith(history.kind.below)
                for nth in range(1, n + 1)
            ]
            rng.shuffle(of)
            streams.append(of)
    rng.shuffle(streams)
    whole = [Case(job, m.name, "end", 0, "*") for m in drawn if m.loss and not history.kind.below]
    whole += [Case(job, m.name, "open", 0, "*") for m in drawn if m.clock_ns and not history.kind.below]
    of_each = list(in_turn([iter(of) for of in streams]))
    return list(dict.fromkeys(chain(in_turn([iter(whole), _new(of_each)]), of_each)))


def _new(of_each: list[Case]) -> Iterator[Case]:
    """Yield one case for each operation, mishaps in turn."""
    by_operation: dict[tuple[str, str, int], list[Case]] = {}
    for case in of_each:
        by_operation.setdefault(case.operation, []).append(case)
    used: Counter[str] = Counter()
    for of in by_operation.values():
        case = min(of, key=lambda case: used[case.mishap])
        used[case.mishap] += 1
        yield case


def operations(of: Iterable[Case], missed: Container[str] = ()) -> int:
    """Return the number of operations that something happens to. missed: cases whose operation did not come."""
    return len({case.operation for case in of if case.nth and str(case) not in missed})


def verdict(history: History, case: Case) -> str:
    """Run a case; return one of VERDICTS. Raises Failed."""
    mishap = MISHAPS[case.mishap]
    history.reset()
    history.thorough = zlib.crc32(str(case).encode()) % 4 == 0
    order = None
    if case.nth or mishap.clock_ns:
        order = Order(
            case.kind, case.pattern, case.nth, mishap.way, mishap.error, mishap.times, mishap.clock_ns
        )  # fmt: skip
    at_first = power.before(history.root) if mishap.loss else None
    child = history.start(order, noting=bool(mishap.loss), trash=bool(mishap.loss))
    if mishap.meanwhile:
        return _beside(history, child, mishap.meanwhile)
    output = child.result() or Output(-9, {}, "")
    if case.nth and not history.control.done:
        history.check(output)
        with (history.work / CAME_NO_MORE).open("a") as missed:
            missed.write(f"{case}\n")
        return MISSED
    if at_first is not None:
        power.lose_power(history.root, at_first, history.control.noted(), history.trash, mishap.loss)
    if case.mishap in _LIES:
        return _check_false_success(history, output)
    history.check(output)
    return KILLED if output.killed else ON if output.code == 0 else SAID


def _check_false_success(history: History, output: Output) -> str:
    """Check a run on a disk that reported false success: verify must find and name the damage; nothing else is
    guaranteed.
    """
    history.check_false_success(output)
    return LIED


def _beside(history: History, child: Child, job: str) -> str:
    """Run another job while an operation waits. The first job then either ends as if it ran alone, or reports the
    conflict.

    If the delayed job holds a lock that the other one waits for, it continues first.
    """
    while not history.control.reached and not child.ended(0.0005):
        pass
    other = Child(
        lambda: run(_OTHERS[job](history.root, "meanwhile") if job == "restore" else _OTHERS[job](history.root)),
        history.work,
    )
    other.ended(PATIENCE)
    history.control.go()
    output, beside = child.result(), other.result()
    check_end(output)
    check_end(beside)
    if job == "restore":
        shutil.rmtree(history.root / "meanwhile", ignore_errors=True)
    history.check_archive()
    history.check_beside(output, beside)
    return ON if output.code == 0 else SAID
