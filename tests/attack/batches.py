"""Damaged archives by the dozen for jobs that need Spark: each is a log directory of one archive, which one run reads.

A batch that fails or hangs is halved until the case is found.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.attack.damages import Case, case_named, damaged
from tests.attack.forked import MOST_FAILURES, Failed, Tried
from tests.attack.judge import EQUAL, VERDICTS
from tests.attack.specimens import Specimen, put
from tests.attack.summary import chosen, judged

HANG_SECONDS: Final = 120.0  # for a batch
_MANY: Final = 32  # cases in a batch
T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """A log directory of the batch's archive, with one partition."""

    topic: str
    specimen: Specimen
    case: Case | None  # None: undamaged

    @property
    def folder(self) -> str:
        """Folder of the partition, below the archive."""
        return f"{self.topic}/{self.topic}-0"


def lay_out(root: Path, specimens: dict[str, Specimen], cases: list[Case]) -> list[Member]:
    """Write the archive: a log directory for each case, and an undamaged one with the first case's specimen."""
    whole = Member("whole", specimens[cases[0].specimen], None)
    members = [whole, *(Member(f"c{i}", specimens[case.specimen], case) for i, case in enumerate(cases))]
    for member in members:
        changes = damaged(member.specimen, member.case) if member.case is not None else {}
        files = member.specimen.files | changes
        put({_moved(p, member.topic): _renamed(p, d, member.topic) for p, d in files.items() if d is not None}, root)
    return members


def _moved(path: str, topic: str) -> str:
    return f"{topic}/{topic}-0/{path.removeprefix('t-0/')}" if path.startswith("t-0/") else f"{topic}/{path}"


def _renamed(path: str, data: bytes, topic: str) -> bytes:
    """Return a file with the topic's new name, which only checkpoints of the log directory contain."""
    return data if path.startswith("t-0/") else data.replace(b"t 0 ", f"{topic} 0 ".encode())


Work = Callable[[list[Case]], list[str | Failed]]  # the verdict on each case


def attack(request: pytest.FixtureRequest, group: str, cases: Iterator[Case], of: int, few: int, work: Work) -> Tried:
    """Try a few of them, or those that the options ask for, batch after batch."""
    some = chosen(request, cases, few, case_named)
    tried = Tried(dict.fromkeys(VERDICTS, 0))
    while len(tried.failures) < MOST_FAILURES and (batch := list(islice(some, _MANY))):
        _try(batch, work, tried)
    return judged(request, f"corruption, {group}", tried, of)


def judge_each(members: list[Member], verdict: Callable[[Member], str]) -> list[str | Failed]:
    """Return the verdict on each case. Raises Failed if one stopped the undamaged partition."""
    out: list[str | Failed] = []
    for member in members:
        try:
            outcome: str | Failed = verdict(member)
        except Failed as error:
            outcome = error
        if member.case is not None:
            out.append(outcome)
        elif outcome != EQUAL:
            raise Failed(f"a whole partition beside damaged ones: {outcome}")
    return out


def _try(batch: list[Case], work: Work, tried: Tried) -> None:
    try:
        verdicts = within(HANG_SECONDS, lambda: work(batch))
    except Exception as error:
        if len(batch) > 1:
            _try(batch[: len(batch) // 2], work, tried)
            _try(batch[len(batch) // 2 :], work, tried)
            return
        verdicts = [error if isinstance(error, Failed) else Failed("".join(traceback.format_exception(error)[-6:]))]
        tried.hangs += isinstance(error, TimeoutError)
        tried.crashes -= isinstance(error, TimeoutError)
    for case, verdict in zip(batch, verdicts, strict=True):
        if isinstance(verdict, Failed):
            tried.crashes += 1
            tried.failures.append((str(case), str(verdict)))
        else:
            tried.counts[verdict] += 1


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of the work. Raises TimeoutError if it takes longer, and leaves its thread running."""
    done: list[T | BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised again in the waiting thread
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise TimeoutError(f"still going after {seconds:g} s")
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]
