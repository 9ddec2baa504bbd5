"""Sequences of everything that happens to an archive and its store, with an archive that is deleted as far as
`archive-needed` allows: `deletions` has the step and its rules, `model` all others.

./spark-submit.sh test tests/attack/test_deletions.py --attack-cases 1000 --attack-seed 7
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lastkey.jobs.compact import needed
from tests.attack.deletions import Deleting
from tests.attack.model import Case, Tally, failure, shrunk
from tests.attack.summary import again, chosen, tell

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FIRST = (8, 3)  # cases of seed 1 that delete much in little time: CI runs them
FEW = len(FIRST)
MOST_FAILURES = 3
SHRINK_SECONDS = 60.0


def test_no_command_needs_files_reported_as_not_needed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    option, tally, failures, tried = request.config.getoption, Tally(), [], 0
    others = (number for number in itertools.count() if number not in FIRST)
    sequences = (Case(option("--attack-seed"), number) for number in itertools.chain(FIRST, others))
    for case in chosen(request, sequences, FEW, Case.named):
        tried += 1
        if failure(case, tmp_path / "world", tally, kind=Deleting) is not None:
            least = shrunk(case, tmp_path / "world", SHRINK_SECONDS, kind=Deleting)
            message = failure(least, tmp_path / "world", kind=Deleting)
            failures.append(f"\n{again(request, str(least))}\n    {message}")
        if len(failures) == MOST_FAILURES:
            break
    line = (
        f"deletion of unneeded segments: {tried:,} sequences, {tally.steps['delete']:,} deletions of "
        f"{tally.deleted:,} segments, {tally.generations:,} generations checked: {len(failures)} failed"
    )
    tell(request, line)
    assert not failures, line + "".join(failures)
    assert tally.deleted or option("--attack-case"), line


def test_check_detects_a_wrong_answer_of_archive_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A patched `archive-needed` ignores the offset at which the next run, or a run after a rollback, continues."""
    monkeypatch.setattr(needed, "_first_read", lambda *_: None)
    monkeypatch.setattr(needed, "_reads_the_same", lambda *_: True)
    message = failure(Case(1, FIRST[0]), tmp_path / "world", kind=Deleting)
    assert message is not None
    assert "uncleanable without a reason" in message
