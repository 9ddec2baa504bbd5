"""One group of damage: its cases, their number, and the line about them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.damages import Case, Stream, case_named, shuffled, streams
from tests.attack.forked import Tried, in_turn, try_all
from tests.attack.judge import VERDICTS
from tests.attack.specimens import Specimen
from tests.attack.summary import chosen, judged

MEMORY_BYTES = 160 << 20  # beyond the memory of the process before: chunks, key tables, a few batches of up to 1 MiB


def all_cases(specimens: dict[str, Specimen], seed: int | str) -> tuple[Iterator[Case], int]:
    """Return every damage of every specimen, kinds in turn, and their number. With a seed for each job, a few cases of
    each are many different ones.
    """
    kinds: dict[tuple[str, bool], list[Stream]] = {}
    for specimen in specimens.values():
        for stream in streams(specimen):
            kinds.setdefault((stream.kind, stream.path.endswith(".log")), []).append(stream)
    rng = random.Random(seed)
    return in_turn([shuffled(of, rng) for of in kinds.values()]), sum(s.n for of in kinds.values() for s in of)


def attack(
    request: pytest.FixtureRequest,
    group: str,
    cases: Iterator[Case],
    of: int,
    few: int,
    work: Callable[[Case], str],
    folder: Path,
    look_each: int = 1,
) -> Tried:
    """Try a few of them, or those that the options ask for; a failure says how to repeat it."""
    some = chosen(request, cases, few, case_named)
    tried = try_all(some, work, VERDICTS, MEMORY_BYTES, folder, look_each)
    return judged(request, f"corruption, {group}", tried, of)
