from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from lastkey.jobs import rollback, vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.errors import ConflictError, MissingPathError, UsageError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store import writing
from lastkey.jobs.store.paths import COMMITTED, MANIFEST
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.names import segment_file
from lastkey.udfs.storage import Root
from tests.builders.steps import at_step
from tests.builders.stores import StoreMaker, make_commit, run_id
from tests.builders.trees import files_in, read_tree, tree

pytestmark = pytest.mark.slow

A, B = b"a" * 1000, b"b" * 2000
WEEK = 168.0
UNKNOWN = ": the files of this generation are not known: its manifest.json cannot be read; t-0 is left alone"


@pytest.fixture
def maker(tmp_path):
    return StoreMaker(tmp_path)


@pytest.fixture
def tables_vacuumed(monkeypatch):
    """Arguments `dry_run` of each vacuum of the tables themselves."""
    real, seen = writing.vacuum_state, []

    def vacuum_state(self, *, dry_run=False, **given):
        seen.append(dry_run)
        return real(self, dry_run=dry_run, **given)

    monkeypatch.setattr(writing, "vacuum_state", vacuum_state)
    return seen


@pytest.fixture
def three_generations(maker):
    """t-0: generation 3 keeps a segment of generation 1; a killed run; a foreign folder."""
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    maker.generation("t", 0, 3, {0: A}, kept=first[1:])
    dead = maker.store / "segments" / "t-0" / f"4-{run_id(9, 9)}"
    shutil.copytree(maker.run_folder("t", 0, 3), dead, ignore=shutil.ignore_patterns("manifest.json", "committed"))
    (maker.store / "segments" / "t-0" / "mine").mkdir()
    (maker.store / "segments" / "t-0" / "mine" / "notes.txt").write_text("x")
    maker.archived("t", 0, 0, A)
    maker.dead = dead
    return maker


def _vacuum(maker, **options):
    options.setdefault("grace_hours", WEEK)
    return vacuum.run(VacuumOptions(str(maker.store), **options), Silent())


def _segments(maker):
    return read_tree(maker.store / "segments")


def test_recent_files_are_kept(three_generations):
    before, version = _segments(three_generations), three_generations.state.version()
    report = _vacuum(three_generations)
    assert _segments(three_generations) == before
    assert three_generations.state.version() == version  # without deletions there is no commit
    assert report.deleted == {}
    assert any("mine: not a run's folder" in note for note in report.notes)
    assert "0 files, 0 B deleted" in report.to_text()


def test_vacuum_keeps_files_named_by_the_current_generation(three_generations, tables_vacuumed):
    maker = three_generations
    folders = [maker.run_folder("t", 0, g) for g in (1, 2, 3)]
    maker.age(WEEK + 1, *folders, maker.dead)
    before = read_tree(maker.folder)
    dry = _vacuum(maker, dry_run=True)
    assert read_tree(maker.folder) == before
    assert tables_vacuumed == [True]
    report = _vacuum(maker)
    assert tables_vacuumed == [True, False]
    assert report.to_json() | {"dry_run": 0, "seconds": 0, "state_files": 0} == dry.to_json() | {
        "dry_run": 0, "seconds": 0, "state_files": 0,
    }  # fmt: skip
    assert [p.name for p in folders[0].iterdir()] == ["00000000000000000100.log"]
    assert not folders[1].exists()
    assert not maker.dead.exists()
    assert len(list(folders[2].iterdir())) == 10
    assert (maker.store / "segments" / "t-0" / "mine" / "notes.txt").exists()
    removed = {path for path in set(before) - set(read_tree(maker.folder)) if not path.startswith("store/state/")}
    assert removed == {f"store/{path}" for path in report.deleted["t", 0]}
    assert sum(len(before[f"store/{path}"]) for path in report.deleted["t", 0]) == report.bytes["t", 0]
    assert _vacuum(maker).deleted == {}


def test_generation_replaced_within_the_grace_period_is_kept(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))  # 3 was committed just now
    _vacuum(maker)
    assert maker.run_folder("t", 0, 2).exists()
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()
    assert not (maker.run_folder("t", 0, 1) / "00000000000000000000.log").exists()


def test_partly_known_folder_has_the_replacement_time_of_its_parent(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))
    (maker.run_folder("t", 0, 3) / "mine").mkdir()  # generation 3 was committed just now
    report = _vacuum(maker)
    assert any("holds folders; left alone" in note for note in report.notes)
    assert maker.run_folder("t", 0, 2).exists()


def test_folders_of_retried_tasks_are_deleted(maker):
    """A task's second attempt has its own folder: it belongs to a generation if it was committed, otherwise it is
    garbage.
    """
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    maker.generation("t", 0, 3, {0: A}, kept=first[1:], run=f"{run_id(3)}.17")
    first_try = maker.store / "segments" / "t-0" / f"3-{run_id(3)}"
    retried, died = first_try.with_name(f"3-{run_id(3)}.17"), first_try.with_name(f"3-{run_id(3)}.9")
    waited = first_try.with_name(f"3-{run_id(3)}.17.{10**18}")  # folder of several tasks, before it is moved
    for tried in (first_try, died, waited):
        shutil.copytree(retried, tried, ignore=shutil.ignore_patterns("manifest.json", "committed"))
    maker.age(WEEK + 1, retried, first_try, died, waited, maker.run_folder("t", 0, 2), maker.run_folder("t", 0, 1))
    report = _vacuum(maker)
    assert report.notes == []
    assert len(list(retried.iterdir())) == 10
    assert not first_try.exists()
    assert not died.exists()
    assert not waited.exists()
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()


def test_active_run_is_kept_while_its_newest_file_is_recent(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.dead)
    (maker.dead / "00000000000000000900.log").write_bytes(A)
    _vacuum(maker)
    assert len(list(maker.dead.iterdir())) == 9


def test_vacuum_without_grace_deletes_generations_of_selected_topics(three_generations, tables_vacuumed):
    maker = three_generations
    maker.generation("u", 0, 1, {0: A})
    maker.generation("u", 0, 2, {0: A})
    maker.age(0.001, *(f for t in ("t-0", "u-0") for f in files_in(maker.store / "segments" / t, "*-*")))
    report = _vacuum(maker, grace_hours=0, topics=TopicFilter(("u*",)))
    assert list(report.deleted) == [("u", 0)]
    assert not maker.run_folder("u", 0, 1).exists()
    assert maker.run_folder("t", 0, 2).exists()
    assert tables_vacuumed == []  # the tables are everybody's: only without --topics


def test_path_without_a_store_is_an_error(tmp_path):
    with pytest.raises(MissingPathError):
        vacuum.run(VacuumOptions(str(tmp_path)), Silent())


@pytest.fixture
def reset_store(maker):
    """t-0: generation 2, which keeps a segment of 1, then a reset, and two generations since; all of them old."""
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    third = maker.generation("t", 0, 3, {0: A}, reset=True)
    maker.generation("t", 0, 4, {100: A}, kept=third)
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2, 3, 4)))
    return maker


def test_generation_before_a_reset_is_kept_until_given_up(reset_store):
    maker = reset_store
    maker.generation("u", 0, 1, {0: A})
    report = _vacuum(maker, give_up=TopicFilter(("u*",)))
    assert maker.run_folder("t", 0, 2).exists()
    assert "00000000000000000100.log" in [p.name for p in maker.run_folder("t", 0, 1).iterdir()]  # generation 2's too
    kept = report.to_json()["kept"]
    assert [g["generation"] for g in kept] == [1, 2]
    assert kept[1] == {
        "topic": "t", "partition": 0, "generation": 2, "run_id": run_id(2), "bytes": 2 * len(B), "offsets": [[0, 299]],
    }  # fmt: skip
    assert "kept: t-0: generation 2, 3.9 KiB" in report.to_text()
    assert "never read its offsets 0 to 299; --give-up 't'" in report.to_text()

    given_up = _vacuum(maker, give_up=TopicFilter(("t",)))
    assert given_up.kept == []
    assert not maker.run_folder("t", 0, 1).exists()
    assert not maker.run_folder("t", 0, 2).exists()
    assert (maker.run_folder("t", 0, 3) / "00000000000000000000.log").exists()  # generation 4 names it


def test_give_up_before_a_reset_observes_the_grace_period(reset_store):
    maker = reset_store
    maker.age(-WEEK, maker.run_folder("t", 0, 3))  # it replaced generation 2 an hour ago
    report = _vacuum(maker, give_up=TopicFilter(("t",)))
    assert maker.run_folder("t", 0, 2).exists()
    assert report.kept == []  # the grace keeps it, not the reset


@pytest.mark.parametrize("killed_after", range(12))
def test_killed_vacuum_leaves_no_partial_generation(maker, monkeypatch, killed_after):
    """Leftovers of generation 1 would be kept for their offsets, or make rebuild-state ask."""
    maker.generation("t", 0, 1, {0: A})
    maker.generation("t", 0, 2, {0: A}, reset=True)
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2)))
    real, unlinked = os.unlink, []
    store = maker.state.root

    class Disk:
        def __getattr__(self, name):
            return getattr(store.filesystem, name)

        def delete_file(self, path):
            if len(unlinked) == killed_after:
                raise KeyboardInterrupt
            if "/segments/" in path:
                unlinked.append(path)
            real(path)

    class OnDisk(Root):
        is_local = True

    monkeypatch.setattr(vacuum, "open_store", lambda _: State(OnDisk(store.uri, Disk(), store.base)))
    with contextlib.suppress(KeyboardInterrupt):
        _vacuum(maker, give_up=TopicFilter(("t",)))
    monkeypatch.undo()
    names = {p.name for p in maker.run_folder("t", 0, 1).glob("*")}
    assert (COMMITTED in names) == (killed_after == 0)
    assert (MANIFEST in names) == (killed_after < 2)
    assert _vacuum(maker, give_up=None if killed_after > 1 else TopicFilter(("t",))).kept == []
    assert not maker.run_folder("t", 0, 1).exists()


# -- beside runs, and where the tables are not whole


def test_run_cannot_commit_after_vacuum_announced_its_folder(three_generations):
    maker = three_generations
    run = open_state(str(maker.store))
    run.current()  # planned on generation 3
    commit = make_commit(0, 4, run_id(9, 9), run_id(3))  # its files are what looks like those of a run that died
    maker.age(WEEK + 1, maker.dead)
    assert _vacuum(maker, dry_run=True).deleted.keys() == {("t", 0)}  # names nothing
    report = _vacuum(maker)
    assert not maker.dead.exists()
    assert {path.split("/")[2] for path in report.deleted["t", 0]} == {maker.dead.name}
    with pytest.raises(ConflictError, match=f"{maker.dead.name}: expected the files that this run wrote"):
        writing.commit_wave(run, [commit])
    assert maker.state.checkpoints()["t", 0].generation == 3
    other = open_state(str(maker.store))
    other.current()
    writing.commit_wave(other, [make_commit(0, 4, run_id(4), run_id(3))])
    assert maker.state.checkpoints()["t", 0].generation == 4


def test_commit_between_listing_and_marker_is_considered(three_generations):
    """A run that seemed dead commits during the vacuum: its files are kept."""
    maker = three_generations
    run = open_state(str(maker.store))
    run.current()
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2, 3)), maker.dead)

    def commit_it():
        name = maker.dead.relative_to(maker.store)
        commit = make_commit(0, 4, run_id(9, 9), run_id(3), segments=1)
        [segment] = commit.segments
        log = replace(segment, root="store", path=f"{name}/00000000000000000000.log")
        before = run.checkpoints()["t", 0]
        checkpoint = replace(commit.checkpoint, chain=before.chain, read=before.read)
        writing.commit_wave(run, [replace(commit, checkpoint=checkpoint, segments=[log])])

    with at_step("folders chosen", commit_it), at_step("folders chosen", lambda: None, 2):  # it looks twice
        _vacuum(maker)
    assert len(list(maker.dead.iterdir())) == 9, "vacuum said that it was committed"
    assert maker.run_folder("t", 0, 3).exists()  # it was replaced a moment ago
    assert not maker.run_folder("t", 0, 2).exists()
    assert maker.state.checkpoints()["t", 0].generation == 4


def test_old_generations_are_deleted_without_the_table_of_runs(three_generations):
    """The folders show which runs committed, and the manifests which offsets they cover."""
    maker = three_generations
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2, 3)), maker.dead)
    shutil.rmtree(maker.store / "state" / "cleaner_runs")
    assert not any(UNKNOWN in note for note in _vacuum(maker).notes)
    assert not maker.run_folder("t", 0, 2).exists()
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()


@pytest.mark.parametrize("manifests", [True, False])
def test_retained_older_generation_keeps_its_segments(maker, manifests):
    """The manifest in the folder decides; if it is damaged, vacuum deletes nothing of the partition."""
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    maker.generation("t", 0, 3, {0: A, 100: A})
    maker.archived("t", 0, 0, A)
    if not manifests:
        (maker.run_folder("t", 0, 2) / MANIFEST).write_bytes(b"{")
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2)))  # 2 was replaced just now
    before = _segments(maker)
    report = _vacuum(maker)
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()
    if manifests:
        assert len(list(maker.run_folder("t", 0, 1).iterdir())) == 1
        assert not any(UNKNOWN in note for note in report.notes)
    else:
        assert _segments(maker) == before
        assert f"segments/{maker.run_folder('t', 0, 2).relative_to(maker.store / 'segments')}{UNKNOWN}" in report.notes


def test_missing_mark_of_the_current_generation_is_written(maker):
    """The run crashed between its commit and the file `committed`."""
    maker.generation("t", 0, 1, {0: A})
    (maker.run_folder("t", 0, 1) / COMMITTED).unlink()
    _vacuum(maker, dry_run=True)
    assert not (maker.run_folder("t", 0, 1) / COMMITTED).exists()
    _vacuum(maker)
    assert (maker.run_folder("t", 0, 1) / COMMITTED).exists()


def _two_generations(maker):
    """Make two generations of t-0, the first of them replaced long ago; return their folders."""
    maker.generation("t", 0, 1, {0: A})
    maker.generation("t", 0, 2, {0: B})
    folders = [maker.run_folder("t", 0, number) for number in (1, 2)]
    maker.age(WEEK + 1, *folders)
    return folders


LINKED = "a symbolic link; left alone, as its files may be another store's"


@pytest.mark.parametrize("linked", ["segments/t-0", "segments/t-0/{run}", "segments/t-0/{run}/{log}"])
def test_links_are_not_followed(maker, tmp_path, linked):
    """A copy of the store by `cp -a` has the same link, and shares the files that it leads to."""
    old, _ = _two_generations(maker)
    path = linked.format(run=old.name, log=segment_file(0, "log"))
    (tmp_path / "disk2").mkdir()
    moved = (maker.store / path).rename(tmp_path / "disk2" / "moved")
    (maker.store / path).symlink_to(moved)
    before = _segments(maker), tree(tmp_path / "disk2")
    report = _vacuum(maker)
    assert (_segments(maker), tree(tmp_path / "disk2")) == before
    assert not report.deleted and f"{path}: {LINKED}" in report.notes
    assert not any(generation["selected"] for generation in report.generations)
    (maker.store / path).unlink()
    moved.rename(maker.store / path)
    assert _vacuum(maker).deleted
    assert not old.exists()


@pytest.mark.parametrize("linked", ["segments", "state", "state/compaction_checkpoints"])
def test_store_with_a_linked_folder_is_not_vacuumed(maker, tmp_path, linked):
    _two_generations(maker)
    moved = (maker.store / linked).rename(tmp_path / "moved")
    (maker.store / linked).symlink_to(moved)
    before = tree(moved)
    with pytest.raises(UsageError, match=f"/{linked}: expected a folder or file of the store, found a symbolic link"):
        _vacuum(maker)
    assert tree(moved) == before


def test_store_behind_a_link_is_vacuumed(maker, tmp_path):
    old, _ = _two_generations(maker)
    (tmp_path / "link").symlink_to(maker.store)
    assert vacuum.run(VacuumOptions(str(tmp_path / "link")), Silent()).deleted
    assert not old.exists()


def test_vacuum_of_a_copied_store_does_not_change_the_original(maker, tmp_path):
    old, _ = _two_generations(maker)
    before = tree(maker.store)
    shutil.copytree(maker.store, tmp_path / "copy", symlinks=True)
    assert vacuum.run(VacuumOptions(str(tmp_path / "copy")), Silent()).deleted
    assert not (tmp_path / "copy" / old.relative_to(maker.store)).exists()
    assert tree(maker.store) == before


@pytest.mark.parametrize("shared", ["segments", "segments/t-0"])
def test_files_of_a_shared_mount_are_kept(maker, tmp_path, shared):
    """The store as a whole may be mounted."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine refuses a mount namespace of its own")
    old, _ = _two_generations(maker)
    copy, whole, before = tmp_path / "copy", tmp_path / "whole", tree(maker.store)
    shutil.copytree(maker.store, copy)
    whole.mkdir()
    vacuumed = f"{sys.executable} -m lastkey vacuum --store"
    script = f"mount --bind {maker.store / shared} {copy / shared} && {vacuumed} {copy}"
    completed = subprocess.run(["unshare", "-rm", "sh", "-c", script], check=True, capture_output=True, text=True)
    assert f"{shared}: mounted here, and its files have another name; left alone" in completed.stdout
    assert tree(maker.store) == before
    script = f"mount --bind {copy} {whole} && {vacuumed} {whole}"
    subprocess.run(["unshare", "-rm", "sh", "-c", script], check=True)
    assert not (copy / old.relative_to(maker.store)).exists()
    assert tree(maker.store) == before


@pytest.mark.parametrize("linked", ["a partition's folder", "a run's folder"])
def test_current_generation_behind_a_link_is_kept(maker, linked):
    """Under the other name it was not committed."""
    old, current = _two_generations(maker)
    partition = current.parent
    link = partition.with_name("t-1") if linked == "a partition's folder" else partition / f"1-{'e' * 32}"
    link.symlink_to(partition if linked == "a partition's folder" else current)
    before = read_tree(current)
    report = _vacuum(maker)
    assert read_tree(current) == before and link.is_symlink()
    assert f"{link.relative_to(maker.store)}: {LINKED}" in report.notes
    assert not old.exists()


def _old_nights(maker, times):
    """Make a generation for each time, each with a file of its own, all of them older than the grace."""
    for number, at in enumerate(times, 1):
        maker.generation("t", 0, number, {0: bytes([number]) * 100}, started_ms=at)
        maker.age(WEEK + 1, maker.run_folder("t", 0, number))


def test_newest_generations_of_days_and_weeks_are_kept_and_restorable(maker, tmp_path):
    day, start = 86_400_000, 1_699_228_800_000  # a Monday, 00:00 UTC
    _old_nights(maker, [start + n * day + hour for n in range(15) for hour in (0, day // 2)])
    dry = _vacuum(maker, keep="2,3d,2w", dry_run=True)
    stays = {g["generation"]: g["because"] for g in dry.generations if not g["selected"]}
    assert stays == {
        30: ["--keep 2", "it is current"],
        29: ["--keep 2"],
        28: ["--keep 3d"],
        26: ["--keep 3d"],
        24: ["--keep 3d"],
        14: ["--keep 2w"],
    }
    text = dry.to_text()
    assert "delete: t-0: generation 1 of 2023-11-06 00:00: nothing keeps it" in text
    assert "keep: t-0: generation 14 of 2023-11-12 12:00: --keep 2w" in text
    before = _segments(maker)
    _vacuum(maker, keep="2,3d,2w")
    after = _segments(maker)
    left = {int(name.split("/")[1].split("-")[0]) for name in after}
    assert left == stays.keys()
    assert after.items() <= before.items()
    for number in left:
        restore.run(RestoreOptions(str(maker.store), str(tmp_path / str(number)), generation=number), Silent())
        log = next((tmp_path / str(number) / "t-0").glob("*.log"))
        assert log.read_bytes() == bytes([number]) * 100


def test_retained_rollback_keeps_files_of_its_target(maker):
    _old_nights(maker, [1_699_228_800_000 + n * 86_400_000 for n in range(3)])
    rollback.run(RollbackOptions(str(maker.store), 1), Silent())
    maker.generation("t", 0, 5, {0: B}, started_ms=2_000_000_000_000)
    for number in range(1, 6):
        maker.age(WEEK + 1, maker.run_folder("t", 0, number))
    _vacuum(maker, keep="2")
    left = {path.name.split("-")[0] for path in (maker.store / "segments" / "t-0").iterdir()}
    assert left == {"1", "4", "5"}


def test_report_names_safety_reasons_in_addition_to_the_rules(three_generations):
    report = _vacuum(three_generations, keep="1d", dry_run=True)
    assert all(not g["selected"] for g in report.generations)
    assert "replaced less than 168 hours ago" in report.generations[0]["because"]
    assert "it is current" in report.generations[-1]["because"]
