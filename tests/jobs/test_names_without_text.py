"""Names on a disk are bytes, and pyarrow raises where one is no UTF-8: no job ends of it, and what is left out is said.

`verify` has its own test.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lastkey.jobs import inspect_log, vacuum
from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.options import ReindexOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import InspectOptions, LookupOptions, ReportOptions
from lastkey.jobs.command.store_options import RestoreOptions, VacuumOptions
from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import Selection
from lastkey.jobs.errors import NOT_EMPTY
from lastkey.jobs.lookup import job as lookup
from lastkey.jobs.reindex import job as reindex
from lastkey.jobs.report import job as archive_report
from lastkey.jobs.restore import job as restore
from tests.builders.errors import raises_kind
from tests.builders.opened import open_partition
from tests.builders.stores import StoreMaker, run_id
from tests.builders.trees import read_tree

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "archive"
NAMES = [os.fsdecode(name) for name in (b"\xff-0", b"caf\xe9", b"\xff.log")]


def spoil(*folders: Path) -> None:
    """Make a folder, a folder with a file, and a file of such names."""
    for folder in folders:
        (folder / NAMES[0]).mkdir()
        (folder / NAMES[1]).mkdir()
        (folder / NAMES[1] / "00000000000000000000.log").write_bytes(b"x")
        (folder / NAMES[2]).write_bytes(b"x")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE / "users-0", tmp_path / "archive" / "users-0")
    spoil(tmp_path / "archive", tmp_path / "archive" / "users-0")
    return tmp_path / "archive"


def test_listing_notes_names_that_are_not_utf8(archive):
    listing = listed(str(archive))
    assert list(listing.partitions) == [("users", 0)]
    assert listing.notes == [f"{archive}: 3 names that are not UTF-8; left out"]


@pytest.mark.slow
def test_reading_jobs_note_names_that_are_not_utf8(archive, tmp_path):
    note = "3 names that are not UTF-8"
    checked = reindex.run(ReindexOptions(str(archive), check=True), Silent())
    assert (checked.exit_code, note in checked.to_text()) == (0, True)
    page = archive_report.run(
        ReportOptions(str(archive), str(tmp_path / "page.html"), now_ms=1_790_000_000_000), Silent()
    )
    assert (page.exit_code, note in page.to_text()) == (0, True)
    looked = lookup.run(LookupOptions(archive=str(archive), times=("earliest",)), Silent())
    assert (looked.exit_code, note in looked.to_text()) == (0, True)
    assert len(find_partitions([f"{archive}/*/*.log"], Selection())) == 1
    assert len(find_partitions([str(archive)], Selection())) == 1
    assert open_partition(archive / "users-0").segments


@pytest.mark.parametrize("below", ["", "users-0"])
def test_inspect_counts_names_that_are_not_utf8(archive, tmp_path, below):
    shown: list[bytes] = []
    report = inspect_log.run(InspectOptions((str(archive / below),)), Silent(), shown.append)
    want: list[bytes] = []
    inspect_log.run(InspectOptions((str(EXAMPLE / "users-0"),)), Silent(), want.append)
    assert b"".join(shown).count(b"\n") == b"".join(want).count(b"\n")
    left_out = 3 * (1 if below else 2)  # content of a folder with such a name is not listed
    assert f"Ignoring {archive / below}: {left_out} files and folders whose names are not UTF-8\n" in "".join(
        report.messages
    )
    written = inspect_log.run(InspectOptions((str(archive),), output=str(tmp_path / "out")), Silent(), shown.append)
    assert "Ignoring" in "".join(written.messages)
    assert {path.partition("/")[0] for path in read_tree(tmp_path / "out")} == {"users-0"}


def test_output_with_a_name_that_is_not_utf8_is_refused(archive, tmp_path):
    (tmp_path / "made").mkdir()
    maker = StoreMaker(tmp_path / "made")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / NAMES[0]).mkdir()
    out = str(tmp_path / "out")
    for job in (
        lambda: reindex.run(ReindexOptions(str(archive), output=out), Silent()),
        lambda: inspect_log.run(InspectOptions((str(archive),), output=out), Silent(), print),
        lambda: restore.run(RestoreOptions(str(maker.store), out), Silent()),
    ):
        with raises_kind(NOT_EMPTY, match="a name that is not UTF-8 and 0 more"):
            job()


def test_vacuum_deletes_nothing_in_an_unlistable_folder_and_restore_succeeds(tmp_path):
    """Names that are not UTF-8 hide part of a folder, so vacuum deletes nothing in it; a restore works all the same."""
    maker = StoreMaker(tmp_path)
    maker.archived("t", 0, 0, b"x")
    maker.generation("t", 0, 1, {0: b"x"})
    dead = maker.store / "segments" / "t-0" / f"2-{run_id(9, 9)}"
    shutil.copytree(maker.run_folder("t", 0, 1), dead)
    segments = maker.store / "segments"
    spoil(segments, segments / "t-0", dead, maker.run_folder("t", 0, 1))
    before = read_tree(segments)
    report = vacuum.run(VacuumOptions(str(maker.store), grace_hours=0), Silent())
    assert read_tree(segments) == before
    assert [note for note in report.notes if "UTF-8" in note] == [
        f"{path}: 3 names that are not UTF-8; left alone"
        for path in ("segments", "segments/t-0", f"segments/t-0/1-{run_id(1)}", f"segments/t-0/{dead.name}")
    ]
    assert "\udcff" not in report.to_text()
    restored = restore.run(RestoreOptions(str(maker.store), str(tmp_path / "out")), Silent())
    assert restored.exit_code == 0
