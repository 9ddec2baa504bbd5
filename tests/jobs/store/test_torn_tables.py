"""Tables with a commit that is torn: no power cut leaves one, and it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DAMAGED_TABLE
from lastkey.jobs.store import writing
from lastkey.jobs.store.rows import PartitionState
from lastkey.jobs.store.tables import State, open_state
from tests.builders.errors import raises_kind
from tests.builders.limits import within
from tests.builders.steps import at_step, interrupt
from tests.builders.stores import StoreMaker, make_commit, row, run_id

pytestmark = pytest.mark.slow  # whole runs

LOG = "state/compaction_checkpoints/_delta_log"
SECONDS = 60  # a vacuum of a store of a few rows takes a fifth of a second; a deadlock ends after five minutes


def _vacuum(store: Path) -> int:
    """Run a vacuum, and return its exit code."""
    with within(SECONDS):
        return cli.main(["vacuum", "--store", str(store)])


def _tear(folder: Path, size: int = 0) -> None:
    newest = max(folder.glob("[0-9]*.json"))
    newest.write_bytes(newest.read_bytes()[:size])


@pytest.mark.parametrize("name", ["cleaner_runs", "cleaner_state", "compaction_checkpoints"])
def test_vacuum_deletes_nothing_if_a_commit_is_torn(tmp_path: Path, name: str) -> None:
    """A commit may be emptied long after it was reported; its generation may then be the only copy."""
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    writing.set_states(maker.state, [row(PartitionState, topic="t", partition=0, generation=2)])
    writing.write_states(maker.state)
    folder = maker.run_folder("t", 0, 2)
    maker.age(400, folder)
    _tear(maker.store / "state" / name / "_delta_log")
    assert _vacuum(maker.store) == 3
    assert (folder / f"{0:020}.log").read_bytes() == b"b"


@pytest.mark.parametrize("words", [["restore", "--output"], ["rollback", "--generation", "1", "--output"]])
def test_torn_commit_is_reported_as_damage(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    log = maker.store / "state" / "compaction_checkpoints" / "_delta_log"
    _tear(log)
    arguments = [*words[:-1], *([words[-1], str(tmp_path / "out")] if words[0] == "restore" else [])]
    assert cli.main([*arguments, "--store", str(maker.store)]) == 3
    assert f"{max(log.glob('*.json'))}: expected a commit as it was put" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def _three_partitions(tmp_path: Path) -> State:
    """Commit three partitions at generation 1 at once; then t-0, then t-1 at generation 2, a commit each."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(i, 1, run_id(1, i)) for i in range(3)])
    writing.commit_wave(state, [make_commit(0, 2, run_id(2, 0), run_id(1, 0))])
    writing.commit_wave(state, [make_commit(1, 2, run_id(2, 1), run_id(1, 1))])
    return state


def test_empty_commit_below_the_newest_is_reported(tmp_path: Path) -> None:
    _three_partitions(tmp_path)
    (tmp_path / LOG / f"{1:020}.json").write_bytes(b"")
    with raises_kind(DAMAGED_TABLE, match=f"{1:020}.json"):
        open_state(str(tmp_path)).checkpoints()


def test_previous_version_is_flushed_before_success_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of version n may die, or be slow, before its flush; the writer of n + 1 reports success."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(i, 1, run_id(1, i)) for i in range(2)])
    flushed: list[Path] = []
    real = os.fsync

    with pytest.raises(KeyboardInterrupt), at_step("table committed", interrupt, 2):  # the second is the switch
        writing.commit_wave(open_state(str(tmp_path)), [make_commit(0, 2, run_id(2, 0), run_id(1, 0))])
    assert (tmp_path / LOG / f"{1:020}.json").exists()

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt), at_step("rows written", interrupt, 2):  # before the switch is put
        writing.commit_wave(open_state(str(tmp_path)), [make_commit(1, 2, run_id(2, 1), run_id(1, 1))])
    assert tmp_path / LOG in flushed
