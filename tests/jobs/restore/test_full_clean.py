"""Stores that runs by yield have made: restored as they are, and cleaned first."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastkey
from lastkey.jobs.errors import NOT_CLEANED, RunningError, UsageError
from lastkey.jobs.store.leases import hold_lease
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files.checkpoints import read_offset_checkpoint
from tests.builders.archives import Lab
from tests.builders.errors import raises_kind
from tests.builders.nights import BY_YIELD, NIGHTS, run_every_night
from tests.builders.trees import read_tree

pytestmark = pytest.mark.slow  # whole runs

THREADS = {"job": {"engine": "threads"}}
KEY = ("t", 0)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return run_every_night(tmp_path)


def _rows(lab: Lab) -> list[Segment]:
    at = lab.state().checkpoints()[KEY]
    return lab.state().manifests([at])[KEY]


def _cleaner_checkpoint(output: Path) -> dict[tuple[str, int], int]:
    return read_offset_checkpoint((output / "cleaner-offset-checkpoint").read_bytes(), "cleaner-offset-checkpoint")


def test_report_names_bytes_that_a_broker_will_clean_again(tmp_path: Path) -> None:
    lab = run_every_night(tmp_path, active="h1=9 a=1")
    report = lastkey.restore(lab.store, lab.root / "out")
    met = len(NIGHTS[0].split())  # the first segment met no later key
    rows = [row for row in _rows(lab) if row.base_offset < lab.state().checkpoints()[KEY].first_dirty_offset]
    assert [row.deduplicated_through for row in rows if row.base_offset < met] == [met]
    assert _cleaner_checkpoint(lab.root / "out") == {KEY: met}
    [partition] = report.to_json()["partitions"]
    again = sum(row.size_bytes for row in rows if row.base_offset >= met)
    assert (partition["cleaned_until"], partition["cleaned_again_bytes"]) == (met, again)
    assert partition["cleaned_bytes"] == again + rows[0].size_bytes
    assert (
        f"(not after --full-clean): t-0: from offset {met} on, {again} B of {partition['cleaned_bytes']} B\n"
        in report.to_text()
    )


def test_full_clean_leaves_no_dirty_segment_for_a_broker(lab: Lab) -> None:
    before = lab.state().checkpoints()[KEY]
    report = lastkey.restore(lab.store, lab.root / "out", full_clean=True, config=THREADS)
    assert (report.exit_code, [p.generation for p in report.partitions]) == (0, [before.generation + 1])
    assert _cleaner_checkpoint(lab.root / "out") == {KEY: before.first_dirty_offset}
    assert "cleans again" not in report.to_text()
    assert "\nnote: first cleaned 1 partition, in run " in report.to_text()
    assert {row.cleaned for row in _rows(lab)} == {True}
    keys = [record.key for batch in lab.batches(_rows(lab)) for record in batch.records]
    assert len(keys) == len(set(keys))
    stored = read_tree(lab.store)
    again = lastkey.restore(lab.store, lab.root / "again", full_clean=True, config=THREADS)
    assert [p.generation for p in again.partitions] == [before.generation + 1]
    assert read_tree(lab.store) == stored, "there was nothing to clean"
    assert again.notes == []


@pytest.mark.parametrize("named", [False, True])
def test_full_clean_uses_settings_of_the_topic_or_of_the_last_run(lab: Lab, named: bool) -> None:
    own = {"topics": {"t*": BY_YIELD | {"compaction.min.yield": 0.9}}} if named else {}
    lastkey.restore(lab.store, lab.root / "out", full_clean=True, config=THREADS | own)
    last, before = lab.state().histories()[KEY][:2]
    assert '"compaction_min_yield": 0.3' in before.settings
    wanted = before.settings.replace('"compaction_min_yield": 0.3', '"compaction_min_yield": 0.9')
    assert last.settings == (wanted if named else before.settings)


def test_full_clean_selects_only_topics_that_need_it(lab: Lab) -> None:
    clean = run_every_night(lab.root, NIGHTS[:1], topic="clean")
    settings = THREADS | {"topics": {"*": BY_YIELD}}
    lastkey.restore(lab.store, lab.root / "out", full_clean=True, config=settings)
    assert {key[0]: row.generation for key, row in clean.state().checkpoints().items()} == {"clean": 1, "t": 5}


def test_uncleanable_partition_prevents_the_restore(lab: Lab) -> None:
    row = next(row for row in _rows(lab) if row.root == "store" and row.records)
    data = lab.path(row).read_bytes()
    lab.path(row).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with raises_kind(NOT_CLEANED, match=row.path) as raised:
        lastkey.restore(lab.store, lab.root / "out", full_clean=True, config=THREADS)
    assert raised.value.exit_code == 3
    assert not (lab.root / "out").exists()


def test_full_clean_of_a_moved_archive_is_refused(lab: Lab) -> None:
    moved = lab.archive.rename(lab.root / "moved")
    with pytest.raises(
        UsageError, match=r"--full-clean: expected the archive of this store, .*move it back, or leave out --full-clean"
    ):
        lastkey.restore(lab.store, lab.root / "out", full_clean=True, archive=moved, config=THREADS)
    assert len(lastkey.restore(lab.store, lab.root / "out", archive=moved).partitions) == 1


def test_lease_conflict_does_not_suggest_options_that_restore_lacks(lab: Lab) -> None:
    state = lab.state()
    with (
        hold_lease(state.root, "0" * 32, {KEY}, []),
        pytest.raises(RunningError, match="no other run at t-0") as raised,
    ):
        lastkey.restore(lab.store, lab.root / "out", full_clean=True, config=THREADS)
    assert raised.value.exit_code == 4
    assert "run again when that run has ended" in raised.value.line()
    assert "--wait" not in raised.value.line()
    assert not (lab.root / "out").exists()
