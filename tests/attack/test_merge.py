"""Drawn damage to two of three copies of a log, of which some are compacted, given to `merge`.

Each batch that some copy still has must be in the result as it was written. A batch that only a compacted copy has must
be in the result as the cleaner left it. The result may hold no other batch, and `verify` finds no problem if no batch
was lost.

./spark-submit.sh test tests/attack/test_merge.py --attack-cases 1000
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.attack.summary import again, chosen, tell
from tests.builders import replicas
from tests.builders.replicas import Original, intact, judge, read_batches, run_merge

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FEW = 40
CASES_OF_A_LOG = 20
MOST_FAILURES = 5


def test_merge_result_has_every_record_of_every_copy(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    seed, tally, failures, tried = request.config.getoption("--attack-seed"), Counter[str](), [], 0
    logs = _Logs(tmp_path / "logs")
    for case in chosen(request, (f"{seed}/{n}" for n in itertools.count()), FEW, str):
        tried += 1
        message = failure(case, logs, tmp_path / "case", tally)
        if message:
            failures.append(f"\n{again(request, case)}\n    {message}")
        if len(failures) == MOST_FAILURES:
            break
    counts = ", ".join(f"{n:,} {what}" for what, n in sorted(tally.items()))
    line = f"merged copies: {tried:,} cases, {counts}: {len(failures)} failed"
    tell(request, line)
    assert not failures, line + "".join(failures)


class _Logs:
    """Undamaged logs, each used for several cases."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, seed: str, number: int) -> tuple[Path, Path]:
        folder = self.root / f"{seed}-{number}"
        if not folder.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            return replicas.drawn_log(folder, random.Random(f"log {seed} {number}"))
        return folder / "whole", folder / "compacted"


def failure(case: str, logs: _Logs, work: Path, tally: Counter[str]) -> str:
    """Return the fault of a merge; "" if there is none."""
    seed, _, number = case.partition("/")
    whole, compacted = logs.get(seed, int(number) // CASES_OF_A_LOG)
    rng = random.Random(case)
    shutil.rmtree(work, ignore_errors=True)
    sources = rng.choice(((whole, whole, whole), (whole, whole, compacted), (whole, compacted, compacted)))
    copies = [work / f"broker-{n}" for n in range(3)]
    for source, copy in zip(rng.sample(sources, 3), copies, strict=True):
        shutil.copytree(source, copy)
    originals = [read_batches(copy) for copy in copies]
    done = [
        f"{copy.name}: {replicas.damage(copy, rng)}"
        for copy in rng.sample(copies, 2)
        for _ in range(rng.choice((1, 1, 2, 4)))
    ]
    kept = [intact(copy, batches) for copy, batches in zip(copies, originals, strict=True)]
    tally["damages"] += len(done)
    try:
        report = run_merge(copies, work / "out")
        message = judge(read_batches(whole), Original(originals, kept), report, work / "out", tally)
    except Exception as error:  # any error fails the case
        message = f"{type(error).__name__}: {error}"
    return f"{done}: {message}" if message else ""
