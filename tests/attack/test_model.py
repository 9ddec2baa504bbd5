"""Sequences of everything that happens to an archive and its store, drawn from a seed: `model` has the events and the
rules.

./spark-submit.sh test tests/attack/test_model.py --attack-cases 1000 --attack-seed 7
./spark-submit.sh test tests/attack/test_model.py --attack-case '7.23:0,4,17'     three steps of sequence 23 of seed 7
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastkey.udfs.compact import passes
from tests.attack import model
from tests.attack.histories import Output
from tests.attack.model import KNOWN, Case, Tally, failure, shrunk
from tests.attack.summary import again, chosen, tell
from tests.reference.log import decode_log, with_timestamps

pytestmark = [pytest.mark.attack, pytest.mark.slow]


FEW = 9  # sequences: each kind of step is among them
MOST_FAILURES = 3
SHRINK_SECONDS = 60.0


def test_random_command_sequences_lose_no_record(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    option = request.config.getoption
    sequences = (Case(option("--attack-seed"), number) for number in itertools.count())
    known_failures = {} if option("--attack-known") else KNOWN
    tally, failures, tried = Tally(), [], 0
    for case in chosen(request, sequences, FEW, Case.named):
        tried += 1
        if failure(case, tmp_path / "world", tally, known_failures) is not None:
            least = (
                case if option("--attack-case") else shrunk(case, tmp_path / "world", SHRINK_SECONDS, known_failures)
            )
            message = failure(least, tmp_path / "world", known=known_failures)
            more = " --attack-known" * option("--attack-known")
            failures.append(f"\n{again(request, str(least))}{more}\n    {message}")
        if len(failures) == MOST_FAILURES:
            break
    steps = ", ".join(f"{n:,} {name}" for name, n in tally.steps.most_common())
    ended = "".join(f"; {n:,} ended at a known defect, {name}" for name, n in sorted(tally.known.items()))
    line = (
        f"model over time: {tried:,} sequences, {tally.generations:,} generations ({tally.by_yield:,} "
        f"by yield, {tally.carried:,} carry segments over) of {tally.records:,} records checked: "
        f"{len(failures)} failed{ended}; {tally.steps.total():,} steps: {steps}"
    )
    tell(request, line)
    assert not failures, line + "".join(failures)
    assert tally.generations or option("--attack-case"), line


MOST_TRIED = 12  # sequences: the first ones of seed 1 show it


def lost(tmp_path: Path) -> str:
    """Return the failure of the first sequence of seed 1 that loses a record; "" if none does."""
    for number in range(MOST_TRIED):
        message = failure(Case(1, number), tmp_path / "world")
        if message is not None and "lost: Record(" in message:
            return message
    return ""


def test_check_detects_a_dropped_last_record_of_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A patched product drops the last record of one key. Its own checks before the commit compare the written bytes
    with its decisions, and report nothing.
    """
    marker = passes.last_offset_decider

    def forgetting(table: Any, first_dirty_offset: int) -> Any:
        mark_last = marker(table, first_dirty_offset)

        def forget_one(run: Any, is_last: np.ndarray) -> None:
            mark_last(run, is_last)
            is_last[np.flatnonzero(is_last)[:1]] = False

        return forget_one

    monkeypatch.setattr(passes, "last_offset_decider", forgetting)
    assert "it is the last of its key" in lost(tmp_path)


def test_check_detects_a_record_missing_in_a_generation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last record of a segment in the store is removed, and its batch has a right checksum. verify would notice by
    the checksum of the file, but the model reads the file first.
    """
    command = model.World.command

    def damage_after(self: model.World, *words: object, codes: Sequence[int] = (0,)) -> Output:
        output = command(self, *words, codes=codes)
        if words[0] == "compact":
            for path in (self.store / "segments").rglob(f"*-{output.report['run_id']}/*.log"):
                batches = decode_log(path.read_bytes())
                if batches and batches[-1].records and not batches[-1].control:
                    fewer = with_timestamps(replace(batches[-1], records=batches[-1].records[:-1])).encoded()
                    path.write_bytes(b"".join(b.data for b in [*batches[:-1], fewer]))
        return output

    monkeypatch.setattr(model.World, "command", damage_after)
    assert lost(tmp_path)
