"""An older generation made current again: what it needs, what it leaves, and that the next run goes on from there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs import rebuild_state, rollback, vacuum
from jobs.command.options import RebuildStateOptions, RestoreOptions, RollbackOptions, VacuumOptions, VerifyOptions
from jobs.command.progress import Silent
from jobs.errors import ConflictError, MissingPathError, NoGenerationError, UndecidedError, UsageError
from jobs.restore import job as restore
from jobs.rollback import RollbackReport
from jobs.store import manifests, table
from jobs.store.manifests import read_manifest, read_mark
from jobs.store.paths import MANIFEST
from jobs.store.tables import State
from jobs.verify import job as verify
from tests.builders.archives import Lab, only_input, put
from tests.builders.trees import files_in, files_of, tree
from tests.golden import golden

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _rollback(lab: Lab, generation: int, **options: Any) -> RollbackReport:
    return rollback.run(RollbackOptions(str(lab.store), generation, **options), Silent())


def _restored(lab: Lab, name: str) -> dict[str, Any]:
    output = lab.root / name
    restore.run(RestoreOptions(str(lab.store), str(output)), Silent())
    timed = (".log", ".index", ".timeindex")
    return {path: of if path.endswith(timed) else (of[0], 0) for path, of in tree(output).items() if of[0] != "folder"}


def _age(lab: Lab) -> None:
    for path in files_in(lab.store / "segments", "**/*"):
        if path.is_file():
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**15,) * 2)  # 11 days


@pytest.fixture
def lab(spark, tmp_path, tmp_path_factory) -> Lab:
    """t-0 with three generations of a log that grows; what was restored of the first, and its checkpoint."""
    case = golden(tmp_path_factory)["idem-active"]
    made = Lab(spark, tmp_path)
    made.now_ms = max(case.now_ms(1, p) for p in case.partitions)
    for segments in (3, 5, None):
        put(only_input(case), made.archive / "t-0", segments=segments)
        assert made.run(made.now_ms, force=True).exit_code == 0
        if segments == 3:
            made.first = (made.state().current(), made.state().states(), _restored(made, "first"), made.folder())
    assert made.state().checkpoints()["t", 0].generation == 3
    return made


def test_an_older_generation_is_current_and_the_next_run_goes_on_from_it(lab: Lab) -> None:
    before = files_of(lab.store)
    dry = _rollback(lab, 1, dry_run=True)
    assert files_of(lab.store) == before
    third = lab.folder()
    report = _rollback(lab, 1)
    assert report.partitions == dry.partitions
    assert [(p["generation_before"], p["generation"]) for p in report.partitions] == [(3, 1)]
    assert "3 -> 1" in report.to_text()

    current, states, files, folder = lab.first
    assert lab.state().current() == current
    assert lab.state().states() == states
    assert [run.generation_after for run in lab.state().history("t", 0)] == [1]
    assert _restored(lab, "again") == files
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0
    assert _rollback(lab, 1).partitions == []

    _age(lab)  # the marks too: then only what it reaches keeps the third
    kept = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert third.exists() and folder.exists()
    assert [g["generation"] for g in kept.kept_rolled_back] == [2, 3]
    assert "it was rolled back" in kept.to_text()

    assert lab.run(lab.now_ms, force=True).exit_code == 0
    rows = lab.state().history("t", 0)
    assert [(run.generation_after, run.generation_before) for run in rows] == [(2, 1), (1, 0)]
    want = read_manifest(lab.state().root, f"segments/t-0/{third.name}").run.next_offset
    assert rows[0].next_offset == want
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0
    lab.check_whole(lab.state().manifest("t", 0))
    _age(lab)
    done = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert done.kept_rolled_back == []
    assert not third.exists()
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_what_was_rolled_back_stays_for_the_grace_and_can_be_given_up(lab: Lab) -> None:
    third = lab.folder()
    _age(lab)
    _rollback(lab, 2)
    given_up = VacuumOptions(str(lab.store), before_reset="t")
    vacuum.run(given_up, Silent())
    assert third.exists(), "the grace begins with the rollback"
    _age(lab)
    vacuum.run(given_up, Silent())
    assert not third.exists()
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_a_run_in_between_is_a_conflict(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    third = lab.folder()
    roll_back = State.roll_back

    def later(self: State, *given: Any) -> None:
        assert lab.run(lab.now_ms, force=True).exit_code == 0
        roll_back(self, *given)

    monkeypatch.setattr(State, "roll_back", later)
    with pytest.raises(ConflictError, match="expected generation 3"):
        _rollback(lab, 1)
    assert lab.state().checkpoints()["t", 0].generation == 4
    mark = read_mark(lab.state().root, f"segments/t-0/{third.name}")
    assert mark is not None
    assert not mark.made


def test_what_a_vacuum_has_said_that_it_takes_cannot_come_back(lab: Lab) -> None:
    *_, folder = lab.first
    state = lab.state()
    assert state.mark([f"segments/t-0/{folder.name}"], state.version())
    with pytest.raises(ConflictError, match="a vacuum that took them"):
        _rollback(lab, 1)
    assert _rollback(lab, 2).partitions[0]["generation"] == 2


@pytest.mark.parametrize("what", ["*.index", "*.log", "manifest.json", "*"])
def test_a_generation_whose_files_are_gone_is_refused(lab: Lab, what: str) -> None:
    *_, folder = lab.first
    for path in files_in(folder, what)[: None if what == "*" else 1]:
        path.unlink()
    if what == "*":
        folder.rmdir()
    before = lab.state().current()
    with pytest.raises(NoGenerationError, match=r"generation 1: .*; expected (one that is still there: 2|another)"):
        _rollback(lab, 1)
    assert lab.state().current() == before


def test_what_there_is_not(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(NoGenerationError, match="never committed"):
        _rollback(lab, 9)
    with pytest.raises(UsageError, match=r"no topic of .* matches u"):
        _rollback(lab, 1, topics="u*")
    with pytest.raises(MissingPathError):
        rollback.run(RollbackOptions(str(tmp_path / "none"), 1), Silent())


class Killed(BaseException):
    """The process, at this moment."""


def _killed_at(patch: pytest.MonkeyPatch, n: int) -> list[str]:
    """What is written, flushed and committed from now on, until the n-th time; then nothing more."""
    steps: list[str] = []
    for module, name in ((table, "flush"), (table, "_write"), (table, "_commit"), (manifests, "write_file"),
                         (manifests, "flush")):  # fmt: skip

        def step(real: Callable[..., Any], *given: Any) -> Any:
            if len(steps) == n:
                raise Killed
            steps.append(real.__name__)
            return real(*given)

        patch.setattr(module, name, partial(step, getattr(module, name)))
    return steps


def test_a_rollback_that_is_killed_at_any_step_leaves_one_generation_or_the_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, n, killed = set(), 0, True
    while killed:
        one = replace(lab, store_at=lab.root / f"killed{n}")
        shutil.copytree(lab.store, one.store)
        with monkeypatch.context() as patch:
            steps = _killed_at(patch, n)
            try:
                _rollback(one, 1)
                killed = False
            except Killed:
                assert len(steps) == n
        at = one.state().checkpoints()["t", 0]
        assert at.generation in (1, 3)
        seen.add((at.generation, killed))
        if at.generation == 1:
            assert one.state().current() == lab.first[0]
        one.check_whole(one.state().manifest("t", 0))
        lost = replace(lab, store_at=lab.root / f"lost{n}")
        shutil.copytree(one.store, lost.store)
        shutil.rmtree(lost.store / "state")
        with contextlib.suppress(UndecidedError):  # where it is not known whether it was made
            rebuild_state.run(RebuildStateOptions(str(lost.store)), Silent())
            assert lost.state().checkpoints()["t", 0] == at
        _rollback(one, 1)
        assert one.state().current() == lab.first[0]
        shutil.rmtree(one.store)
        shutil.rmtree(lost.store)
        n += 1
    assert n > 10
    assert seen == {(3, True), (1, True), (1, False)}


def test_a_generation_that_reaches_further_and_cannot_be_read_is_left_alone_by_vacuum(lab: Lab) -> None:
    third = lab.folder()
    _rollback(lab, 1)
    shutil.rmtree(lab.store / "state" / "log_segments")
    (third / MANIFEST).write_bytes(b"{")
    _age(lab)
    before = files_of(lab.store / "segments")
    report = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert files_of(lab.store / "segments") == before
    assert any("left alone" in note for note in report.notes)
