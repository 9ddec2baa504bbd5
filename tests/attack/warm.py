"""A process under `preload.c` that imports and compiles everything once, and forks a child for each attack.

`Warm` starts it and asks it; each question is a line of JSON, and so is the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.attack import full_disk, histories, mishaps, races, store_damages, store_readers
from tests.attack.damages import case_named
from tests.attack.forked import Tried, try_all
from tests.attack.preload import VARIABLE, Control, library
from tests.attack.summary import judged, n_cases

ROOT = Path(__file__).resolve().parents[2]
MEMORY_BYTES = 1 << 30
Answer = tuple[Tried, int, str]  # result of a group's cases, how many cases there are, more to report


@dataclass
class Warm:
    """The process, as tests see it."""

    process: subprocess.Popen[str]

    def ask(self, **question: Any) -> Answer:
        """Ask the process to try a group's cases; return the result."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(question)}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that attacks has ended"
        report = json.loads(line)
        return Tried(**report["tried"]), report["of"], report["more"]

    def attack(self, request: pytest.FixtureRequest, name: str, group: str, few: int, what: str) -> Tried:
        """Try a few of the group's cases, or those that the options ask for."""
        option = request.config.getoption
        tried, of, more = self.ask(
            group=group, seed=option("--attack-seed"), n=n_cases(request, few), case=option("--attack-case")
        )
        return judged(request, name, tried, of, what, more)


@contextmanager
def warm(folder: Path, within: Sequence[str] = ()) -> Iterator[Warm]:
    """Start the process. within: a command to start it with, as `full_disk.own_mounts` returns."""
    with library(folder) as made:
        environment = Control.environment(made, folder / "control") | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [*within, sys.executable, "-m", "tests.attack.warm", str(folder)], env=environment, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            yield Warm(process)


def main(folder: Path) -> None:
    histories.warm()
    control = Control(Path(os.environ[VARIABLE]), folder / "root")
    for line in sys.stdin:
        request = json.loads(line)
        options = request["seed"], request["case"], request["n"]
        kind, _, job = request["group"].partition("/")
        if kind == "store":
            tried, of, more = _damages(store_readers.Attacked(job, folder), *options, folder)
        elif kind == "full disk":
            tried, of, more = _full_disks(full_disk.Filled(job, folder, control), *options, folder)
        elif request["group"] in races.PARTIES:
            history = histories.History(histories.KINDS["compact"], folder, control)
            tried, of, more = _races(history, request["group"], *options, folder)
        else:
            history = histories.History(histories.KINDS[request["group"]], folder, control)
            tried, of, more = _mishaps(history, *options, folder)
        sys.__stdout__.write(f"{json.dumps({'tried': asdict(tried), 'of': of, 'more': more})}\n")
        sys.__stdout__.flush()


def _mishaps(history: histories.History, seed: int, case: str | None, n: int, folder: Path) -> Answer:
    cases = [mishaps.Case.named(case)] if case else mishaps.cases(history, seed)
    todo = cases[:n]
    work = partial(mishaps.verdict, history)
    missed = folder / mishaps.CAME_NO_MORE
    missed.write_text("")
    tried = try_all(todo, work, mishaps.VERDICTS, MEMORY_BYTES, folder)
    names = missed.read_text().splitlines()
    met, of = mishaps.operations(todo[: tried.total], set(names)), mishaps.operations(cases)
    more = f"; {met:,} of {of:,} operations{'; operation no longer reached: ' if names else ''}{', '.join(names[:3])}"
    return tried, len(cases), more


def _damages(attacked: store_readers.Attacked, seed: int, case: str | None, n: int, folder: Path) -> Answer:
    todo, of = store_damages.draw_cases(attacked.files, f"{seed}, {attacked.name}")  # each job has cases of its own
    if case:
        todo, of = iter([case_named(case)]), 1
    return try_all(islice(todo, n), attacked.verdict, store_readers.VERDICTS, MEMORY_BYTES, folder), of, ""


def _full_disks(filled: full_disk.Filled, seed: int, case: str | None, n: int, folder: Path) -> Answer:
    todo = [full_disk.Left.named(case)] if case else filled.cases(seed)
    return try_all(todo[:n], filled.verdict, full_disk.VERDICTS, MEMORY_BYTES, folder), len(todo), ""


def _races(history: histories.History, who: str, seed: int, case: str | None, n: int, folder: Path) -> Answer:
    work = partial(races.verdict, history, races.known(history))
    todo = iter([races.Round.named(case)]) if case else races.rounds(who, seed)
    return try_all(islice(todo, n), work, races.VERDICTS, MEMORY_BYTES, folder), 0, ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
