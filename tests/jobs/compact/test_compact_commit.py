"""The last check before a commit: every file of the new generations, by name and size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import VacuumOptions
from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store import writing
from lastkey.jobs.store.manifests import check_files, write_manifests
from lastkey.jobs.store.paths import COMMITTED
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.names import segment_file
from lastkey.udfs.storage import open_root
from tests.builders.stores import StoreMaker, row, run_id

A, B = b"a" * 1000, b"b" * 2000


@pytest.fixture
def second(tmp_path):
    """(maker, commit): generation 2 of t-0, of a segment of its own, one of generation 1 and one of the archive."""
    maker = StoreMaker(tmp_path)
    maker.archived("t", 0, 200, A)
    first = maker.generation("t", 0, 1, {0: A, 100: B})
    segments = maker.generation("t", 0, 2, {0: B}, kept=first[1:], archived={200: A})
    folder = maker.run_folder("t", 0, 2)
    (folder / segment_file(100, "txnindex")).write_bytes(b"t" * 34)
    for base in (100, 200):
        (folder / segment_file(base, "snapshot")).write_bytes(b"snapshot")
    sizes = {"offset_index_bytes": len("index 2"), "time_index_bytes": len("timeindex 2")}
    segments = [replace(s, **sizes, txn_index_bytes=34 if s.base_offset == 100 else 0) for s in segments]
    run = replace(maker.state.histories()["t", 0][0], topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    checkpoint = row(
        Checkpoint, topic="t", generation=2, run_id=run_id(2), topic_id=run.topic_id,
        log_start_offset=run.log_start_offset, next_offset=run.next_offset,
    )  # fmt: skip
    commit = Commit(checkpoint, segments, run)
    write_manifests(open_root(str(maker.store)), [commit])
    return maker, commit


FILES = [
    *(f"2/{segment_file(0, kind)}" for kind in ("log", "index", "timeindex")),
    *(f"2/{segment_file(100, kind)}" for kind in ("index", "timeindex", "txnindex", "snapshot")),
    *(f"2/{segment_file(200, kind)}" for kind in ("index", "timeindex", "snapshot")),
    *(f"2/{name}" for name in (segment_file(300, "snapshot"), "leader-epoch-checkpoint", "partition.metadata")),
    "2/manifest.json",
    f"1/{segment_file(100, 'log')}",
]


@pytest.mark.parametrize("name", FILES)
def test_commit_checks_the_size_of_each_file(second, name):
    maker, commit = second
    store = open_root(f"{maker.store}/../{maker.store.name}")  # however it is spelled
    check_files(store, [commit])
    path = maker.run_folder("t", 0, int(name[0])) / name[2:]
    path.write_bytes(b"")
    with pytest.raises(ConflictError, match=r"just before the commit.*found 0 bytes") as raised:
        check_files(store, [commit])
    assert raised.value.exit_code == 4
    assert path.name in str(raised.value)
    path.unlink()
    with pytest.raises(ConflictError, match="found no such file"):
        check_files(store, [commit])


def test_commit_names_every_file_of_its_folder(second):
    maker, _ = second
    assert {f"2/{p.name}" for p in maker.run_folder("t", 0, 2).iterdir()} == {*FILES[:-1], "2/committed"}


def test_commit_with_a_missing_folder_is_a_conflict(second):
    maker, commit = second
    for path in maker.run_folder("t", 0, 2).iterdir():
        path.unlink()
    maker.run_folder("t", 0, 2).rmdir()
    with pytest.raises(ConflictError, match="no such file"):
        check_files(open_root(str(maker.store)), [commit])


def test_conflicting_run_does_not_report_files_that_vacuum_deleted(second):
    """Only a .log of generation 1 is left, which generation 2 names. With `committed` beside it, it would look like a
    generation whose manifest is lost, and vacuum would leave the partition alone from then on.
    """
    maker, commit = second
    maker.age(1, maker.run_folder("t", 0, 1), maker.run_folder("t", 0, 2))
    vacuum.run(VacuumOptions(str(maker.store), grace_hours=0), Silent())
    left = [path.name for path in maker.run_folder("t", 0, 1).iterdir()]
    assert left == [segment_file(100, "log")]
    maker.generation("t", 0, 2, {}, end=400, run=run_id(2, 1), dies=True)  # beaten by the one that is there
    late = replace(commit, run=replace(commit.run, run_id=run_id(2, 1)))
    late = replace(late, checkpoint=replace(commit.checkpoint, run_id=run_id(2, 1)))
    state = open_state(str(maker.store))
    write_manifests(state.root, [late])
    with pytest.raises(ConflictError):
        writing.commit_wave(state, [late], lambda: check_files(state.root, [late]))
    assert COMMITTED not in {path.name for path in maker.run_folder("t", 0, 1).iterdir()}
