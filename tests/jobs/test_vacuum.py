from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from jobs import vacuum
from jobs.command.options import VacuumOptions
from jobs.command.progress import Silent
from jobs.errors import MissingPathError
from jobs.store.rows import histories
from tests.builders.stores import StoreMaker, run_id
from tests.builders.trees import files_in, files_of

A, B = b"a" * 1000, b"b" * 2000
WEEK = 168.0


@pytest.fixture
def maker(tmp_path, monkeypatch):
    made = StoreMaker(tmp_path)
    return made


@pytest.fixture
def three_generations(maker):
    """t-0: generation 3 keeps a segment of generation 1; a run that died; a folder that is none of ours."""
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    maker.generation("t", 0, 3, {0: A}, kept=first[1:])
    dead = maker.store / "segments" / "t-0" / f"4-{run_id(9, 9)}"
    shutil.copytree(maker.run_folder("t", 0, 3), dead)
    (maker.store / "segments" / "t-0" / "mine").mkdir()
    (maker.store / "segments" / "t-0" / "mine" / "notes.txt").write_text("x")
    maker.archived("t", 0, 0, A)
    maker.dead = dead
    return maker


def _vacuum(maker, **options):
    options.setdefault("grace_hours", WEEK)
    return vacuum.run(VacuumOptions(str(maker.store), **options), Silent())


def test_nothing_young_is_touched(three_generations):
    before = files_of(three_generations.folder)
    report = _vacuum(three_generations)
    assert files_of(three_generations.folder) == before
    assert report.deleted == {}
    assert any("mine: not a run's folder" in note for note in report.notes)
    assert "0 files, 0 B deleted" in report.to_text()


def test_old_generations_and_dead_runs_go_but_for_files_that_the_current_one_names(three_generations):
    maker = three_generations
    folders = [maker.run_folder("t", 0, g) for g in (1, 2, 3)]
    maker.age(WEEK + 1, *folders, maker.dead)
    before = files_of(maker.folder)
    dry = _vacuum(maker, dry_run=True)
    assert files_of(maker.folder) == before
    assert maker.state.vacuumed == [True]
    report = _vacuum(maker)
    assert report.to_json() | {"dry_run": 0, "seconds": 0, "state_files": 0} == dry.to_json() | {
        "dry_run": 0, "seconds": 0, "state_files": 0,
    }  # fmt: skip
    assert [p.name for p in folders[0].iterdir()] == ["00000000000000000100.log"]
    assert not folders[1].exists()
    assert not maker.dead.exists()
    assert len(list(folders[2].iterdir())) == 8
    assert (maker.store / "segments" / "t-0" / "mine" / "notes.txt").exists()
    assert set(before) - set(files_of(maker.folder)) == {f"store/{path}" for path in report.deleted["t", 0]}
    assert sum(len(before[f"store/{path}"]) for path in report.deleted["t", 0]) == report.bytes["t", 0]
    assert _vacuum(maker).deleted == {}


def test_a_generation_that_was_replaced_within_the_grace_stays(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))  # 3 was committed just now
    _vacuum(maker)
    assert maker.run_folder("t", 0, 2).exists()
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()
    assert not (maker.run_folder("t", 0, 1) / "00000000000000000000.log").exists()


def test_a_folder_of_which_not_all_is_known_still_says_when_it_replaced_the_one_before(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))
    (maker.run_folder("t", 0, 3) / "mine").mkdir()  # generation 3 was committed just now
    report = _vacuum(maker)
    assert any("holds folders; left alone" in note for note in report.notes)
    assert maker.run_folder("t", 0, 2).exists()


def test_folders_of_tasks_that_were_tried_again(three_generations):
    """A task's second try has a folder of its own: that of a generation where it was committed, else garbage."""
    maker = three_generations
    retried = maker.run_folder("t", 0, 3).rename(maker.run_folder("t", 0, 3).with_name(f"3-{run_id(3)}.17"))
    again = {"run_id": f"{run_id(3)}.17"}
    maker.state.current_rows["t", 0] = replace(maker.state.current_rows["t", 0], **again)
    maker.state.chains["t", 0][0] = replace(maker.state.chains["t", 0][0], **again)
    paths = {str(maker.run_folder("t", 0, 3).relative_to(maker.store)): str(retried.relative_to(maker.store))}
    maker.state.rows = [
        replace(s, **again, path=s.path.replace(*next(iter(paths.items())))) if s.generation == 3 else s
        for s in maker.state.rows
    ]
    first_try = retried.with_name(f"3-{run_id(3)}")
    shutil.copytree(retried, first_try)
    died = retried.with_name(f"3-{run_id(3)}.9")
    shutil.copytree(retried, died)
    maker.age(WEEK + 1, retried, first_try, died, maker.run_folder("t", 0, 2), maker.run_folder("t", 0, 1))
    report = _vacuum(maker)
    (stray,) = [note for note in report.notes if "not a run's folder" in note]
    assert "mine" in stray
    assert retried.exists()
    assert not first_try.exists()
    assert not died.exists()
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()


def test_a_run_at_work_is_spared_while_its_newest_file_is_young(three_generations):
    maker = three_generations
    maker.age(WEEK + 1, maker.dead)
    (maker.dead / "00000000000000000900.log").write_bytes(A)
    _vacuum(maker)
    assert len(list(maker.dead.iterdir())) == 9


def test_no_grace_and_a_glob(three_generations):
    maker = three_generations
    maker.generation("u", 0, 1, {0: A})
    maker.generation("u", 0, 2, {0: A})
    maker.age(0.001, *(f for t in ("t-0", "u-0") for f in files_in(maker.store / "segments" / t, "*-*")))
    report = _vacuum(maker, grace_hours=0, topics="u*")
    assert list(report.deleted) == [("u", 0)]
    assert not maker.run_folder("u", 0, 1).exists()
    assert maker.run_folder("t", 0, 2).exists()
    assert maker.state.vacuumed == []  # the tables are everybody's: only without --topics


def test_a_store_that_is_none(tmp_path):
    with pytest.raises(MissingPathError):
        vacuum.run(VacuumOptions(str(tmp_path)), Silent())


@pytest.fixture
def reset_store(maker):
    """t-0: generation 2, which keeps a segment of 1, then a reset, and two generations since; all of them old."""
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:])
    third = maker.generation("t", 0, 3, {0: A}, anew=True)
    maker.generation("t", 0, 4, {100: A}, kept=third)
    maker.age(WEEK + 1, *(maker.run_folder("t", 0, g) for g in (1, 2, 3, 4)))
    return maker


def test_what_was_before_a_reset_stays_until_it_is_given_up(reset_store):
    maker = reset_store
    report = _vacuum(maker, before_reset="u*")
    assert maker.run_folder("t", 0, 2).exists()
    assert [p.name for p in maker.run_folder("t", 0, 1).iterdir()] == ["00000000000000000100.log"]  # generation 2's too
    [kept] = report.to_json()["kept_before_reset"]
    assert kept == {"topic": "t", "partition": 0, "generation": 2, "run_id": run_id(2), "bytes": 2 * len(B)}
    assert "kept: t-0: generation 2, 3.9 KiB" in report.to_text()
    assert "--before-reset 't'" in report.to_text()

    given_up = _vacuum(maker, before_reset="t")
    assert given_up.kept_before_reset == []
    assert not maker.run_folder("t", 0, 1).exists()
    assert not maker.run_folder("t", 0, 2).exists()
    assert (maker.run_folder("t", 0, 3) / "00000000000000000000.log").exists()  # generation 4 names it


def test_giving_up_what_was_before_a_reset_waits_for_the_grace(reset_store):
    maker = reset_store
    maker.age(-WEEK, maker.run_folder("t", 0, 3))  # which replaced generation 2 an hour ago
    report = _vacuum(maker, before_reset="t")
    assert maker.run_folder("t", 0, 2).exists()
    assert report.kept_before_reset == []  # the grace keeps it, not the reset


def test_a_reset_by_an_older_version_named_no_parent(reset_store):
    maker = reset_store
    chain = maker.state.chains["t", 0]
    third = chain[1]
    assert third.generation_after == 3
    runs = [replace(row, parent_run_id=None, anew=False) if row is third else row for row in chain]
    maker.state.chains = histories(maker.state.current_rows, runs)
    assert [row.generation_after for row in maker.state.chains["t", 0]] == [4, 3, 2, 1]
    _vacuum(maker)
    assert maker.run_folder("t", 0, 2).exists()

    died = replace(chain[2], run_id=run_id(2, 9))  # which of both was committed is not known: both stay
    shutil.copytree(maker.run_folder("t", 0, 2), maker.store / "segments" / "t-0" / f"2-{run_id(2, 9)}")
    maker.age(WEEK + 1, maker.store / "segments" / "t-0" / f"2-{run_id(2, 9)}")
    maker.state.chains = histories(maker.state.current_rows, [*runs, died])
    assert [row.generation_after for row in maker.state.chains["t", 0]] == [4, 3]
    assert [g["run_id"] for g in _vacuum(maker).kept_before_reset] == [run_id(2), run_id(2, 9)]
    assert (maker.run_folder("t", 0, 1) / "00000000000000000100.log").exists()
