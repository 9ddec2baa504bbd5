"""A file that is missing from an archive, from run to run: uncleanable, accepted, restored; wrong checkpoints."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.compact.needed import Needed
from lastkey.jobs.restore import job as restore
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import Lab, contents, offset_checkpoint, only_input, put
from tests.builders.stores import manifest_segments
from tests.builders.trees import files_in
from tests.golden import golden
from tests.reference.log import decode_log

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path):
    return Lab(None, tmp_path)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return golden(tmp_path_factory)["none-tomb"]


@pytest.fixture
def now_ms(case):
    return case.now_ms(1, case.partitions[0])


def hide(lab, number):
    """Take a segment with its indexes out of the archive; gives what brings it back."""
    log, away = files_in(lab.archive / "t-0")[number], lab.root / "away"
    away.mkdir()
    for path in files_in(log.parent, f"{log.stem}.*"):
        shutil.move(path, away / path.name)
    return lambda: [shutil.move(path, log.parent / path.name) for path in sorted(away.iterdir())]


def archived(lab):
    return [b for log in files_in(lab.archive / "t-0") for b in decode_log(log.read_bytes())]


def last_records(batches):
    """Return offset and value of the last record of every key."""
    return {r.key: (r.offset, r.value) for b in batches if not b.control for r in b.records}


def test_missing_segment_is_reported_in_every_run(lab, case, now_ms):
    put(only_input(case), lab.archive / "t-0")
    whole = archived(lab)
    bring_back = hide(lab, 1)
    missing = files_in(lab.archive / "t-0")[1].name

    aside = lab.run(now_ms, sealed=True)
    assert aside.exit_code == 3 and aside.archive_needed
    assert f"problem: t-0/{missing} at byte 0: gap:" in aside.to_text()
    assert "no longer needed" not in aside.to_text()
    assert aside.to_json()["partitions"][0]["state"] == "gap"
    assert lab.state().states()["t", 0].state == "gap"
    assert not lab.state().checkpoints()

    accepted = lab.run(now_ms, sealed=True, overrides={"gaps": "accept"})
    assert accepted.exit_code == 0
    first, last = accepted.to_json()["partitions"][0]["gaps"][0]
    assert f"no segment holds offsets {first} to {last}" in accepted.to_text()
    assert "the archive is still needed: offsets are missing, and may come back: t-0" in accepted.to_text()
    again = lab.run(now_ms, sealed=True)  # not due, and still reported
    assert [r.status for r in again.results] == ["not_due"], again.results[0].problem
    assert again.archive_needed == [Needed("gap", ("t-0",))]

    bring_back()
    back = lab.run(now_ms, sealed=True)
    assert back.exit_code == 3
    assert "what was missing has come back" in back.results[0].problem.hint
    after_reset = lab.run(now_ms, sealed=True, reset=TopicFilter(("t",)))
    # a rollback can still go to generation 1, which lacks them
    assert (after_reset.exit_code, after_reset.archive_needed) == (0, [Needed("gap", ("t-0",))])
    checkpoints, manifests = lab.state().current()
    assert checkpoints["t", 0].gaps is None
    kept = last_records(lab.batches(manifests["t", 0]))
    for key, record in last_records(whole).items():
        if record[1] is not None:
            assert kept[key] == record


def test_generation_is_continued_after_an_accepted_gap(lab, case, now_ms):
    """The generation continues with the next offsets and keeps all of its records."""
    put(only_input(case), lab.archive / "t-0", segments=1)
    first = lab.run(now_ms, sealed=True)
    assert first.exit_code == 0
    before = lab.batches(manifest_segments(lab.state(), "t", 0))
    put(only_input(case), lab.archive / "t-0")
    for log in files_in(lab.archive / "t-0")[:2]:
        for path in files_in(log.parent, f"{log.stem}.*"):
            path.unlink()
    assert lab.run(now_ms, sealed=True).exit_code == 3
    after = lab.run(now_ms, sealed=True, overrides={"gaps": "accept"})
    assert (after.exit_code, after.generations) == (0, {("t", 0): 2})
    kept = last_records(lab.batches(manifest_segments(lab.state(), "t", 0)))
    want = last_records(before) | last_records(archived(lab))
    assert kept == {key: record for key, record in want.items() if record[1] is not None or key in kept}
    third = lab.run(now_ms, sealed=True, force=True)  # accepted once: no gap any more, and not forgotten
    assert third.exit_code == 0 and third.results[0].log.gaps == after.results[0].log.gaps


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_checkpoint_of_another_log_is_diverged(lab, case, now_ms, name):
    put(only_input(case), lab.archive / "t-0")
    offset_checkpoint(lab.archive / name, {"t-0": 1_000_000})
    report = lab.run(now_ms)  # due or not, without --force
    assert report.exit_code == 3
    assert (report.results[0].problem.state, report.generations) == ("diverged", {})
    after_reset = lab.run(now_ms, reset=TopicFilter(("t",)))
    assert after_reset.exit_code == 0, after_reset.results
    checkpoint = lab.state().checkpoints()["t", 0]
    assert (checkpoint.generation, checkpoint.log_start_offset) == (1, 0)
    assert checkpoint.next_offset < 1_000_000
    (lab.archive / name).unlink()
    other = Lab(None, lab.root, archive_at=lab.archive, store_at=lab.root / "other")
    other.run(now_ms)
    mine, theirs = (lab_.batches(manifest_segments(lab_.state(), "t", 0)) for lab_ in (lab, other))
    assert contents(mine) == contents(theirs)


def test_unreadable_high_watermark_is_reported(lab, case, now_ms):
    """A broker may truncate records above it, so they must not supersede others."""
    put(only_input(case), lab.archive / "t-0")
    checkpoint = lab.archive / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 2")  # cut short: the offset was 2500
    checkpoint.write_bytes(checkpoint.read_bytes()[:-2])
    report = lab.run(now_ms)
    assert (report.exit_code, report.generations) == (3, {})
    problem = report.results[0].problem
    assert (problem.kind, problem.path) == ("side_file", "replication-offset-checkpoint")
    assert "delete it" in problem.hint
    checkpoint.unlink()
    assert lab.run(now_ms).exit_code == 0


def test_store_of_the_last_release_is_continued(lab, case, now_ms):
    """Its checkpoints have no column for gaps: it is read, and grows the column."""
    put(only_input(case), lab.archive / "t-0", segments=1, batches=2)
    lab.run(now_ms)
    uri = str(lab.store / "state" / "compaction_checkpoints")
    old = pa.table(DeltaTable(uri).to_pyarrow_table()).drop_columns(["gaps"])
    shutil.rmtree(uri)
    write_deltalake(uri, old)
    put(only_input(case), lab.archive / "t-0")
    hide(lab, 2)
    report = lab.run(now_ms, overrides={"gaps": "accept"})
    assert (report.exit_code, report.generations) == (0, {("t", 0): 2}), report.to_text()
    assert json.loads(lab.state().checkpoints()["t", 0].gaps)
    output = lab.root / "restored"
    restore.run(RestoreOptions(str(lab.store), str(output)), Silent())
    assert files_in(output / "t-0")
