"""Every damage, through the parsers alone: thousands a second, so that a command can try all of them.

./spark-submit.sh test tests/attack/test_corruption_in_memory.py --attack-cases 400000
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.corrupting import all_cases, attack
from tests.attack.damages import Case, damaged, is_noticed
from tests.attack.forked import Failed
from tests.attack.judge import EQUAL, NAMED, TWIN
from tests.attack.parsers import parse
from tests.attack.specimens import Specimen

pytestmark = [pytest.mark.attack, pytest.mark.slow]

_LOOK_EACH = 64
FEW = 400  # damages


def test_parsers_reject_or_read_damaged_bytes(
    request: pytest.FixtureRequest, specimens: dict[str, Specimen], tmp_path: Path
) -> None:
    healthy = {(s.name, path): parse(data, path) for s in specimens.values() for path, data in s.files.items()}
    wrong = {at: seen.problems for at, seen in healthy.items() if seen.problems}
    assert not wrong, wrong

    def verdict(case: Case) -> str:
        specimen = specimens[case.specimen]
        data = damaged(specimen, case)[case.path]
        assert data is not None
        seen = parse(data, case.path)
        if seen.problems:
            return NAMED
        if is_noticed(specimen, case):
            raise Failed("a wrong checksum, and nothing is said of it")
        return EQUAL if seen.output == healthy[case.specimen, case.path].output else TWIN

    cases, of = all_cases(specimens, request.config.getoption("--attack-seed"))
    attack(request, "parsers in memory", cases, of, FEW, verdict, tmp_path, _LOOK_EACH)
