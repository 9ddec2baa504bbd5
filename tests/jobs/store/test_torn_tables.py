"""Tables after a power cut that left more than a torn last commit, and torn ones while a job holds the lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from lastkey.jobs import rollback
from lastkey.jobs.command import cli
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions, RollbackOptions
from lastkey.jobs.errors import JobError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store import table, torn, writing
from lastkey.jobs.store.rows import PartitionState
from lastkey.jobs.store.tables import State, open_state
from tests.builders.limits import within
from tests.builders.steps import at_step, interrupt
from tests.builders.stores import StoreMaker, make_commit, row, run_id

pytestmark = pytest.mark.slow  # whole runs

LOG = "state/compaction_checkpoints/_delta_log"
SECONDS = 60  # of a vacuum of a store of a few rows: a fifth of one. Who waits for itself gives up after five minutes


def _vacuum(store: Path) -> int:
    """Run a vacuum, and return its exit code."""
    with within(SECONDS):
        return cli.main(["vacuum", "--store", str(store)])


def _tear(folder: Path, size: int = 0) -> None:
    newest = max(folder.glob("[0-9]*.json"))
    newest.write_bytes(newest.read_bytes()[:size])


@pytest.mark.parametrize("name", ["cleaner_runs", "cleaner_state"])
def test_a_vacuum_sets_aside_what_is_torn_in_any_table(tmp_path: Path, name: str) -> None:
    """It holds the store's lock when it finds the torn commit, and must not wait for itself."""
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    writing.set_states(maker.state, [row(PartitionState, topic="t", partition=0, generation=2)])
    writing.write_states(maker.state)
    _tear(maker.store / "state" / name / "_delta_log")
    assert _vacuum(maker.store) == 0


def test_a_vacuum_keeps_the_generation_of_a_commit_that_was_set_aside(tmp_path: Path) -> None:
    """A commit may be emptied long after it was said to be made; its generation may be the only copy then."""
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    folder = maker.run_folder("t", 0, 2)
    maker.age(400, folder)
    _tear(maker.store / "state" / "compaction_checkpoints" / "_delta_log")
    assert _vacuum(maker.store) == 0
    assert (folder / f"{0:020}.log").read_bytes() == b"b"


def test_a_restore_says_that_a_commit_was_set_aside(tmp_path: Path) -> None:
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    _tear(maker.store / "state" / "compaction_checkpoints" / "_delta_log")
    report = restore.run(RestoreOptions(str(maker.store), str(tmp_path / "out")), Silent())
    assert any("set aside" in note for note in report.notes)


def test_a_rollback_says_that_a_commit_was_set_aside(tmp_path: Path) -> None:
    """And not only that the partition is there already."""
    maker = StoreMaker(tmp_path)
    maker.generation("t", 0, 1, {0: b"a"})
    maker.generation("t", 0, 2, {0: b"b"})
    _tear(maker.store / "state" / "compaction_checkpoints" / "_delta_log")
    report = rollback.run(RollbackOptions(str(maker.store), generation=1), Silent())
    assert any("left at generation 1" in note for note in report.notes)
    assert any("set aside" in note for note in report.notes)


def _three_partitions(tmp_path: Path) -> State:
    """Commit three partitions at generation 1 at once; then t-0, then t-1 at generation 2, a commit each."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(i, 1, run_id(1, i)) for i in range(3)])
    writing.commit_wave(state, [make_commit(0, 2, run_id(2, 0), run_id(1, 0))])
    writing.commit_wave(state, [make_commit(1, 2, run_id(2, 1), run_id(1, 1))])
    return state


def test_a_commit_that_is_empty_below_the_newest_brings_no_older_generation_back_in_silence(tmp_path: Path) -> None:
    _three_partitions(tmp_path)
    (tmp_path / LOG / f"{1:020}.json").write_bytes(b"")
    state = open_state(str(tmp_path))
    try:
        found = {key[1]: row.generation for key, row in state.checkpoints().items()}
    except (JobError, DeltaError):
        return  # to refuse is as good; to go on is not
    assert found == {0: 2, 1: 2, 2: 1} or state.notes, f"found {found}, and not a word"


def test_what_a_commit_is_built_upon_is_on_the_disk_before_success_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of version n may die, or be slow, before its flush; the writer of n + 1 reports success."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(i, 1, run_id(1, i)) for i in range(2)])
    flushed = []
    real = table.flush

    with pytest.raises(KeyboardInterrupt), at_step("table committed", interrupt, 2):  # the second is the switch
        writing.commit_wave(open_state(str(tmp_path)), [make_commit(0, 2, run_id(2, 0), run_id(1, 0))])
    assert (tmp_path / LOG / f"{1:020}.json").exists()

    def flush(root: object, path: str) -> None:
        flushed.append(path)
        real(root, path)

    monkeypatch.setattr(table, "flush", flush)
    writing.commit_wave(open_state(str(tmp_path)), [make_commit(1, 2, run_id(2, 1), run_id(1, 1))])
    assert f"{LOG}/{2:020}.json" in flushed
    assert f"{LOG}/{1:020}.json" in flushed


@pytest.mark.parametrize("hint", [True, False])
def test_a_torn_checkpoint_that_no_hint_names_yet_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hint: bool
) -> None:
    """A checkpoint is written, then its hint, then both are flushed: after a power cut in between any may be torn."""
    monkeypatch.setattr(table, "_CHECKPOINT_EVERY", 5)
    state = open_state(str(tmp_path))
    for i in range(12 if hint else 7):  # with an older checkpoint, which the hint names, or none
        writing.commit_wave(state, [make_commit(0, i + 1, run_id(i + 1), run_id(i) if i else None)])
    log = tmp_path / LOG
    newest = max(log.glob("*.checkpoint.parquet"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    last = log / "_last_checkpoint"
    if hint:
        last.write_bytes(last.read_bytes().replace(b'"version":10', b'"version":5'))
        assert b'"version":5,' in last.read_bytes()
    else:
        last.unlink()
    assert open_state(str(tmp_path)).checkpoints()["t", 0].generation == (12 if hint else 7)


def test_a_torn_commit_that_another_process_sets_aside_while_it_is_looked_at(tmp_path, monkeypatch):
    """Two that start after a power cut."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(0, 1, run_id(1))])
    torn_one = tmp_path / "state" / "compaction_checkpoints" / "_delta_log" / f"{1:020}.json"
    torn_one.write_bytes(b"")
    real = torn._is_whole

    def is_whole(commit):
        found = real(commit)
        if commit == torn_one:
            torn_one.rename(f"{torn_one}.torn-00000000")
        return found

    monkeypatch.setattr(torn, "_is_whole", is_whole)
    assert open_state(str(tmp_path)).checkpoints()["t", 0].generation == 1
