"""What a run does while a rollback works, or behind it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobs import rebuild_state, rollback
from jobs.command.options import RebuildStateOptions, RollbackOptions
from jobs.command.progress import Silent
from jobs.errors import UndecidedError
from jobs.store.manifests import write_manifests
from jobs.store.rows import Commit
from jobs.store.tables import State, open_state
from tests.builders.stores import StoreMaker, run_id

A, B, C = b"a" * 1000, b"b" * 2000, b"c" * 3000
SLOW = run_id(2, 7)


class _Store:
    """t-0 with two generations, and a slow run of generation 1 that has written its files."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.maker = StoreMaker(folder)
        self._written: list[Commit] = []
        with patch.context() as context:
            context.setattr(State, "commit_wave", lambda _, commits, verify=None: self._written.extend(commits))
            self.maker.generation("t", 0, 1, {0: A}, end=100)
            self.maker.generation("t", 0, 2, {0: B}, end=200)
            self.maker.generation("t", 0, 2, {0: C}, end=300, run=SLOW)
        self.commit()
        self.commit()

    def commit(self) -> None:
        """That of the next one of whom all is written."""
        done = [self._written.pop(0)]
        write_manifests(self.maker.state.root, done)
        open_state(str(self.maker.store)).commit_wave(done)

    def roll_back(self) -> None:
        rollback.run(RollbackOptions(str(self.maker.store), 1), Silent())

    def rebuild(self, *choose: str) -> int:
        """How far what counts reaches."""
        shutil.rmtree(self.maker.store / "state", ignore_errors=True)
        options = RebuildStateOptions(str(self.maker.store), choose=choose)
        return rebuild_state.run(options, Silent()).decided[0].checkpoint.next_offset


@pytest.fixture
def store(tmp_path, monkeypatch):
    return _Store(tmp_path, monkeypatch)


def test_a_run_that_a_rollback_took_for_dead_and_that_commits_behind_it_is_not_passed_over(store):
    """Its folder was marked when it was at work. Without the tables generation 1 would be current, in silence."""
    store.roll_back()
    store.commit()
    with pytest.raises(UndecidedError, match=rf"run {SLOW} \(whole, perhaps rolled back to 1\)"):
        store.rebuild()
    assert store.rebuild(f"t-0={SLOW}") == 300
    assert store.rebuild() == 300, "asked once"


def test_what_was_rolled_back_with_nobody_at_work_is_no_question(store):
    shutil.rmtree(store.maker.run_folder("t", 0, 2).with_name(f"2-{SLOW}"))
    store.roll_back()
    assert store.rebuild() == 100


@pytest.mark.parametrize("when", ["before the commit", "after it"])
def test_a_folder_that_a_run_takes_away_while_a_rollback_marks_it(store, monkeypatch, when):
    """A run that meets a problem does so. The rollback had been made, and ended as though it had not."""
    folder = store.maker.run_folder("t", 0, 2).with_name(f"2-{SLOW}")
    real, calls = rollback.mark_rolled_back, []

    def mark(root, marks):
        given = list(marks)  # the folders were listed
        calls.append(given)
        if len(calls) == (1 if when == "before the commit" else 2):
            shutil.rmtree(folder)
        real(root, given)

    monkeypatch.setattr(rollback, "mark_rolled_back", mark)
    store.roll_back()
    assert open_state(str(store.maker.store)).checkpoints()["t", 0].generation == 1
    assert not folder.exists()
