"""Runs that work beside a rollback, or after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastkey.jobs import rebuild_state, rollback
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RollbackOptions
from lastkey.jobs.errors import UNDECIDED, ConflictError
from lastkey.jobs.store import writing
from lastkey.jobs.store.manifests import read_manifest, write_committed_files
from lastkey.jobs.store.tables import open_state
from tests.builders.errors import raises_kind
from tests.builders.stores import StoreMaker, run_id

A, B, C = b"a" * 1000, b"b" * 2000, b"c" * 3000
SLOW = run_id(3, 7)


class _Store:
    """t-0 with two generations, and a slow run that has planned on the second one and written its files."""

    def __init__(self, folder: Path) -> None:
        self.maker = StoreMaker(folder)
        self.maker.generation("t", 0, 1, {0: A}, end=100)
        self.maker.generation("t", 0, 2, {0: B}, end=200)
        self.maker.generation("t", 0, 3, {0: C}, end=300, run=SLOW, dies=True)
        self._written = [read_manifest(self.maker.state.root, f"segments/t-0/3-{SLOW}")]

    def commit(self) -> None:
        """Commit the next run that has written all its files."""
        done = [self._written.pop(0)]
        writing.commit_wave(open_state(str(self.maker.store)), done)
        write_committed_files(self.maker.state.root, [done[0].folder])

    def roll_back(self) -> None:
        rollback.run(RollbackOptions(str(self.maker.store), 1), Silent())

    def rebuild(self, *choose: str) -> int:
        """Return the end of the generation that a rebuild makes current."""
        shutil.rmtree(self.maker.store / "state", ignore_errors=True)
        options = RebuildStateOptions(str(self.maker.store), choose=choose)
        return rebuild_state.run(options, Silent()).decided[0].checkpoint.next_offset


@pytest.fixture
def store(tmp_path):
    return _Store(tmp_path)


def test_run_that_planned_before_a_rollback_conflicts(store):
    """The run planned on generation 2. Its folder has the number of the rollback's generation but needs no --choose."""
    store.roll_back()
    with pytest.raises(ConflictError):
        store.commit()
    assert store.rebuild() == 100
    assert open_state(str(store.maker.store)).checkpoints()["t", 0].back_to == 1


def test_run_killed_after_a_rollback_requires_a_choice(store):
    """The run planned on the rollback's generation and may have committed."""
    store.roll_back()
    folder = store.maker.run_folder("t", 0, 3)
    store.maker.generation("t", 0, 4, {0: C}, end=300, dies=True)
    assert folder.exists()
    with raises_kind(UNDECIDED, match=r"\(whole, perhaps never committed\), generation 3 of run \w+ \(whole\)"):
        store.rebuild()
    assert store.rebuild(f"t-0={run_id(4)}") == 300
    assert store.rebuild() == 300, "asked once"
