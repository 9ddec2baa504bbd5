"""Generations that become current, or are replaced, between a vacuum's listing and its choice."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from lastkey.jobs import rollback, vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RollbackOptions, VacuumOptions
from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store.manifests import write_manifests
from lastkey.jobs.store.tables import State
from tests.builders.steps import at_step
from tests.builders.stores import StoreMaker, make_commit, run_id

A, B = b"a" * 1000, b"b" * 2000


@pytest.fixture
def maker(tmp_path):
    return StoreMaker(tmp_path)


def test_generation_replaced_after_the_listing_is_kept_for_the_grace_period(maker):
    """Listing 10,000 partitions takes time; runs may commit meanwhile, because vacuum takes no lock against them."""
    maker.generation("t", 0, 1, {0: A})
    maker.generation("u", 0, 1, {0: A})
    maker.age(400, maker.run_folder("t", 0, 1), maker.run_folder("u", 0, 1))
    with at_step("folders listed", lambda: maker.generation("t", 0, 2, {0: B})):
        vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert maker.run_folder("t", 0, 1).exists(), "replaced a moment ago; the grace is a week"


def test_generation_rolled_back_after_the_listing_is_kept(maker, monkeypatch):
    """In a bucket: there is no lock."""
    monkeypatch.setattr(State, "lock", lambda self, seconds=0.0: contextlib.nullcontext())
    maker.generation("t", 0, 1, {0: A}, end=200)
    maker.generation("t", 0, 2, {0: B}, end=300)
    maker.age(400, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))

    def roll_back():
        rollback.run(RollbackOptions(str(maker.store), 1), Silent())

    with at_step("folders listed", roll_back):
        vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert (maker.run_folder("t", 0, 2) / "00000000000000000000.log").exists(), "it was replaced a moment ago"
    assert (maker.run_folder("t", 0, 1) / "00000000000000000000.log").exists()


def test_vacuum_without_grace_that_deleted_the_folder_of_a_run_is_a_conflict(maker):
    """The vacuum deletes the folder before the run writes its manifest."""
    made = make_commit(0, 1, run_id(1))
    with pytest.raises(ConflictError, match="the folder that this run wrote"):
        write_manifests(maker.state.root, [made])


@pytest.mark.parametrize("grace_hours", [0, 168])
def test_files_written_after_an_empty_listing_are_kept(maker, grace_hours):
    """Vacuum must not delete the files that a run has written into the folder since the listing, whatever the grace."""
    maker.generation("t", 0, 1, {0: A})
    folder = maker.run_folder("t", 0, 2)
    folder.mkdir()

    def fill() -> None:
        folder.rmdir()  # the maker makes it
        maker.generation("t", 0, 2, {0: B})

    with at_step("folders chosen", fill):
        vacuum.run(VacuumOptions(str(maker.store), grace_hours=grace_hours), Silent())
    assert (folder / f"{0:020}.log").read_bytes() == B


def test_concurrent_write_into_a_deleted_folder_does_not_stop_the_vacuum(maker):
    """A folder that receives files during its deletion must not end the vacuum with `Directory not empty`."""
    maker.generation("t", 0, 1, {0: A})
    maker.generation("t", 0, 2, {0: B})
    folder = maker.run_folder("t", 0, 1)
    began, ended = threading.Event(), threading.Event()

    def write():
        with contextlib.suppress(FileNotFoundError):  # the folder is gone
            for n in itertools.count():
                (folder / f"{n}").touch()
                if n == 1000:  # so that the deletion takes a while
                    began.set()
                if ended.is_set():
                    return

    run = threading.Thread(target=write)

    def begin():
        run.start()
        began.wait()

    try:
        with at_step("deletions announced", begin):
            vacuum.run(VacuumOptions(str(maker.store), grace_hours=0), Silent())
    finally:
        ended.set()
        run.join()
    assert not (folder / f"{0:020}.log").exists()


def test_run_folder_with_only_subfolders_is_kept(maker):
    """The vacuum does what its note states."""
    maker.generation("t", 0, 1, {0: A})
    inside = maker.run_folder("t", 0, 2) / "somebody's"
    inside.mkdir(parents=True)
    (inside / "file").write_bytes(b"x")
    report = vacuum.run(VacuumOptions(str(maker.store), grace_hours=0), Silent())
    assert any("holds folders; left alone" in note for note in report.notes)
    assert (inside / "file").exists()
