"""Corruption, drawn from all there is of small partitions: every bit, every prefix, every field at its extremes.

Each job that reads gets each damage. It may name the problem, or give what it gives of the undamaged archive, or what a
slow reader makes of the same bytes; nothing else, and never loses a record of a segment that was not damaged in
silence. `test_corruption_kafka` asks Kafka's own cleaner about a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.damages import Case, Stream, case_named, shuffled, streams
from tests.attack.forked import Tried, in_turn, try_all
from tests.attack.judge import VERDICTS, Judge
from tests.attack.readers import JOBS
from tests.attack.specimens import NAMES, Specimen, make
from tests.attack.summary import PROPERTY, line_of

pytestmark = [pytest.mark.attack, pytest.mark.slow]

MEMORY_BYTES = 160 << 20  # above what the process had: chunks, key tables, a few batches of up to 1 MiB


@pytest.fixture(scope="session")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Specimen]:
    work = tmp_path_factory.mktemp("specimens")
    return {name: make(name, work) for name in NAMES}


def all_cases(specimens: dict[str, Specimen], seed: int) -> tuple[Iterator[Case], int]:
    """Every damage of every specimen, kinds in turn, and how many there are."""
    kinds: dict[tuple[str, bool], list[Stream]] = {}
    for specimen in specimens.values():
        for one in streams(specimen):
            kinds.setdefault((one.kind, one.path.endswith(".log")), []).append(one)
    rng = random.Random(seed)
    return in_turn([shuffled(of, rng) for of in kinds.values()]), sum(s.n for of in kinds.values() for s in of)


def attack(
    request: pytest.FixtureRequest,
    group: str,
    cases: Iterator[Case],
    of: int,
    work: Callable[[Case], str],
    folder: Path,
    look_each: int = 1,
) -> Tried:
    """Try them as the options say; a failure says how to make it happen again."""
    option = request.config.getoption
    if option("--attack-case"):
        cases, of = iter([case_named(option("--attack-case"))]), 1
    tried = try_all(cases, work, VERDICTS, option("--attack-seconds"), MEMORY_BYTES, folder, look_each)
    line = line_of(f"corruption, {group}", tried.counts, of, tried.crashes, tried.hangs, tried.peak_bytes)
    request.node.user_properties.append((PROPERTY, line))
    again = f"./spark-submit.sh test {request.node.path.relative_to(request.config.rootpath)} -k '{request.node.name}'"
    said = "".join(f"\n{again} --attack-case '{name}'\n    {what}" for name, what in tried.failures)
    assert not tried.failures, f"{line}{said}"
    assert tried.total, "nothing was tried"
    return tried


@pytest.mark.parametrize("job", JOBS)
def test_job(request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path, job: str) -> None:
    """Undamaged inputs first, in this process: kernels are compiled here, and their outputs are what others must be."""
    judge = Judge(job, JOBS[job], specimens, tmp_path)
    cases, of = all_cases(specimens, request.config.getoption("--attack-seed"))
    attack(request, job, cases, of, judge.verdict, tmp_path)
