"""One lost table of a store: commands refuse to run or use other sources, and never treat it as empty."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from lastkey.jobs import rebuild_state, vacuum
from lastkey.jobs.command import cli
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RestoreOptions, VacuumOptions
from lastkey.jobs.errors import ConflictError, JobError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store import writing
from lastkey.jobs.store.generations import make_rollback
from lastkey.jobs.store.rows import PartitionState
from lastkey.jobs.store.tables import open_state
from lastkey.jobs.topics import TopicFilter
from tests.builders.logs import START_MS, write_partition
from tests.builders.steps import at_step, interrupt
from tests.builders.stores import StoreMaker, make_commit, row, run_id
from tests.builders.trees import read_tree

pytestmark = pytest.mark.slow

OLD, NEW = b"a" * 1000, b"b" * 2000


@pytest.fixture
def maker(tmp_path):
    """t-0: generation 2 keeps a segment of generation 1; generation 3 started over: 2 may be the only copy."""
    made = StoreMaker(tmp_path)
    first = made.generation("t", 0, 1, {0: OLD, 100: NEW})
    made.generation("t", 0, 2, {0: NEW}, kept=first[1:])
    made.generation("t", 0, 3, {0: NEW}, reset=True)
    made.archived("t", 0, 0, OLD)
    return made


def test_older_generation_without_known_segments_is_not_restored_as_empty(maker):
    output = maker.folder / "restored"
    (maker.run_folder("t", 0, 2) / "manifest.json").unlink()
    with pytest.raises(JobError):
        restore.run(RestoreOptions(str(maker.store), str(output), generation=2), Silent())
    assert not output.exists()


def test_vacuum_keeps_files_that_a_missing_manifest_may_reference(maker):
    """The folder of generation 2 is kept, because it may be the only copy; the `.log` of its first run must be kept
    too.
    """
    maker.age(400, *[maker.run_folder("t", 0, g) for g in (1, 2, 3)])
    kept = maker.run_folder("t", 0, 1) / "00000000000000000100.log"
    vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert kept.exists(), "as long as the manifest is there"
    (maker.run_folder("t", 0, 2) / "manifest.json").unlink()
    with contextlib.suppress(JobError):  # to refuse is as good
        vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert kept.exists()


def test_partition_state_of_a_rolled_back_generation_is_dropped(tmp_path):
    state = open_state(str(tmp_path))
    first, second = make_commit(0, 1, run_id(1)), make_commit(0, 2, run_id(2), run_id(1))
    writing.commit_wave(state, [first])
    writing.commit_wave(state, [second])
    state_row = row(PartitionState, topic="t", partition=0, state="dirty", generation=2, run_id=run_id(3))
    writing.commit_wave(open_state(str(tmp_path)), [make_rollback(first, 3, run_id(9), run_id(2), 0, None)])
    writing.set_states(state, [state_row])  # state by a compact that read generation 2
    assert ("t", 0) not in state.states()


def test_run_does_not_recreate_a_deleted_table_with_its_partitions_only(maker):
    """As for rebuild-state, while it runs. No commit would name t-0 then, and vacuum would delete all of it."""
    state = open_state(str(maker.store))
    assert state.checkpoints()
    (maker.store / "state").rename(maker.folder / "moved")
    with pytest.raises(ConflictError, match="expected version 2, which was there, or a later one, found no table"):
        writing.commit_wave(state, [make_commit(0, 1, run_id(1), topic="new")])
    assert not state.table_exists("compaction_checkpoints")


def test_run_does_not_recreate_a_table_deleted_between_waves(tmp_path):
    """The store is new; the second wave reads the state of the first."""
    state = open_state(str(tmp_path))
    writing.commit_wave(state, [make_commit(0, 1, run_id(1))])
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(ConflictError, match="which was there"):
        writing.commit_wave(state, [make_commit(1, 1, run_id(1))])


def test_vacuum_deletes_nothing_if_a_table_disappears_after_its_listing(maker):
    """On a disk the mark finds no folder for its file; in a bucket it needs none."""
    maker.age(400, *[maker.run_folder("t", 0, g) for g in (1, 2, 3)])
    before = read_tree(maker.store / "segments")
    taken_away = at_step("folders listed", lambda: (maker.store / "state").rename(maker.folder / "moved"))
    with pytest.raises(ConflictError, match="which was there"), taken_away:
        vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert read_tree(maker.store / "segments") == before


_CONFIG = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n'


@pytest.fixture
def begun(tmp_path):
    """Make a store of first generations alone that is half a month old and has lost its tables."""
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1 || a=2 || c=1")
    write_partition(tmp_path / "archive" / "t-1", "a=1 b=1 || a=2 || c=1")
    (tmp_path / "lastkey.toml").write_text(_CONFIG)
    assert _compact(tmp_path) == 0
    shutil.rmtree(tmp_path / "store" / "state")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (START_MS / 1000, START_MS / 1000))
    return tmp_path


def _compact(root, *words):
    how = ["--config", str(root / "lastkey.toml"), "--now", str(START_MS + 3_600_000)]
    return cli.main(["compact", str(root / "archive"), "--store", str(root / "store"), *how, *words])


@pytest.mark.parametrize(
    "words",
    [
        ("restore", "--output", "restored", "--generation", "1"),
        ("lookup", "--offset", "0", "--generation", "1"),
        ("verify", "--generation", "1"),
        ("rollback", "--generation", "1", "--dry-run"),
        ("archive-needed",),
    ],
    ids=lambda words: words[0],
)
def test_missing_history_changes_no_result(begun, monkeypatch, capsys, words):
    monkeypatch.chdir(begun)
    shutil.rmtree(begun / "store")
    assert [_compact(begun), _compact(begun, "--force")] == [0, 0]
    words = [words[0], *([str(begun / "archive")] if words[0] == "archive-needed" else []), *words[1:]]

    def answer():
        capsys.readouterr()
        code = cli.main([*words, "--store", str(begun / "store"), "--json"])
        report = json.loads(capsys.readouterr().out)
        shutil.rmtree(begun / "restored", ignore_errors=True)
        return code, without(report)

    def without(report):
        """Return the JSON of a report, without the fields that differ from run to run."""
        if isinstance(report, list):
            return [without(each) for each in report]
        if isinstance(report, dict):
            varies = ("seconds", "io", "engine", "run_id")
            return {name: without(value) for name, value in report.items() if name not in varies}
        return report

    before = answer()
    assert before[0] == 0
    for name in ("cleaner_runs", "cleaner_state"):
        shutil.rmtree(begun / "store" / "state" / name)
    assert answer() == before


def _first_folder(root, partition):
    return next((root / "store" / "segments" / f"t-{partition}").glob("1-*"))


def test_store_starts_over_only_without_traces_of_a_commit(begun, capsys):
    assert _compact(begun) == 2
    output = capsys.readouterr().err
    assert "expected this store's tables in state, because segments/t-0/1-" in output
    assert "was committed, found none; restore them from a copy, or run rebuild-state" in output
    assert not (begun / "store" / "state" / "compaction_checkpoints").exists()
    for partition in (0, 1):
        (_first_folder(begun, partition) / "committed").unlink()
    assert _compact(begun) == 0


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("how", ["begins below", "reaches further", "has no other"])
def test_vacuum_keeps_a_first_generation_with_offsets_missing_in_the_tables(begun, how, committed):
    """The tables start over, for an archive that is another one by now."""
    lost = _first_folder(begun, 0)
    aside = begun / "aside"
    lost.rename(aside)
    (_first_folder(begun, 1) / "committed").unlink()
    if not committed:
        (aside / "committed").unlink()
    if how == "begins below":
        (begun / "archive" / "t-0" / f"{0:020}.log").unlink()
    elif how == "reaches further":
        shutil.rmtree(begun / "archive" / "t-0")
        write_partition(begun / "archive" / "t-0", "a=1 b=1 || a=2")
    else:
        shutil.rmtree(begun / "archive" / "t-0")
    assert _compact(begun, *(["--set", "gaps=accept"] if how == "begins below" else [])) == 0
    aside.rename(lost)
    report = vacuum.run(VacuumOptions(str(begun / "store")), Silent())
    assert [(kept["topic"], kept["partition"], kept["run_id"]) for kept in report.kept] == [
        ("t", 0, lost.name.partition("-")[2])
    ]
    assert "kept: t-0: generation 1" in report.to_text() and report.to_json()["kept"] == report.kept
    assert list(lost.glob("*.log"))
    assert not [
        path
        for path in (begun / "store" / "segments" / "t-1").glob("1-*")
        if path.stat().st_mtime < START_MS / 1000 + 1
    ]
    given_up = vacuum.run(VacuumOptions(str(begun / "store"), give_up=TopicFilter(("t",))), Silent())
    assert given_up.kept == [] and not lost.exists()


@pytest.mark.parametrize("cleaned", [None, 1, 2, 4], ids=lambda n: "young" if n is None else f"killed-after-{n}")
def test_run_that_a_rollback_replaced_is_not_restored(begun, cleaned):
    """The run planned before the rollback, and its folder is complete. cleaned: number of folders that vacuum deletes
    before it is killed; None: vacuum is not killed, and that folder is younger than the grace period.
    """
    store = begun / "store"
    shutil.rmtree(store)
    assert [_compact(begun), _compact(begun, "--force")] == [0, 0]
    with at_step("wave planned", lambda: cli.main(["rollback", "--store", str(store), "--generation", "1"])):
        assert _compact(begun, "--force") == 4
    current = {key: row.run_id for key, row in open_state(str(store)).checkpoints().items()}
    for path in (store / "segments").rglob("*"):
        if cleaned is not None or "/3-" not in str(path):
            os.utime(path, (START_MS / 1000, START_MS / 1000))
    if cleaned is None:
        vacuum.run(VacuumOptions(str(store)), Silent())
    else:
        with pytest.raises(KeyboardInterrupt), at_step("folder deleted", interrupt, cleaned):
            vacuum.run(VacuumOptions(str(store)), Silent())
    (store / "state").rename(begun / "moved")
    assert cli.main(["rebuild-state", "--store", str(store)]) == 0
    assert {key: row.run_id for key, row in open_state(str(store)).checkpoints().items()} == current


def test_deletions_during_a_rebuild_are_a_conflict(begun):
    """A vacuum may continue that began while the tables were there. One waits for the other where there is a lock."""
    store = begun / "store"
    (store / "state").mkdir()

    def delete_file():
        with ThreadPoolExecutor(1) as other, pytest.raises(ConflictError, match="the store's lock within 0 s"):
            other.submit(open_state(str(store)).lock(0).__enter__).result()
        next(_first_folder(begun, 1).glob("*.index")).unlink()

    missing = pytest.raises(ConflictError, match="just before the commit, found no such file")
    with missing, at_step("generations chosen", delete_file):
        rebuild_state.run(RebuildStateOptions(str(store)), Silent())
    assert not open_state(str(store)).table_exists("compaction_checkpoints")
