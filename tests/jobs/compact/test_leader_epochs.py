"""Leader epochs of a generation whose archive has truncated, lost or damaged its epoch file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.verify import job as verify
from lastkey.udfs.problem import Problem
from tests.builders.archives import HOUR, Lab, by_topic, offset_checkpoint
from tests.builders.logs import write_partition
from tests.builders.trees import files_in

pytestmark = pytest.mark.slow  # whole runs

NOW_MS = 1_700_000_000_000
CHECKPOINT = "leader-epoch-checkpoint"
KNOWN = "0\n4\n0 0\n3 2\n5 4\n7 6\n"
# The first run leaves no batch of epoch 3, and of epoch 5 only the batches behind its beginning.
LOG = "{leader=0} a=1 b=1 || {leader=3} c=2 c=3 || {leader=5} c=4 | {leader=5} d=1 || {leader=7} a=4 c=5"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """After a first run, whose generation the archive's own checkpoint went into."""
    defaults = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.bytes": 14}
    lab = Lab(None, tmp_path, {"defaults": defaults, "job": {"engine": "threads"}})
    write_partition(lab.archive / "t-0", LOG + " || {leader=7} e=1")
    (lab.archive / "t-0" / CHECKPOINT).write_text(KNOWN)
    lab.run(NOW_MS)
    assert (lab.folder() / CHECKPOINT).read_text() == KNOWN
    return lab


def give_up(lab: Lab, epochs: str) -> None:
    """Remove the first two segments, as a broker's retention does; the store keeps them."""
    for log in files_in(lab.archive / "t-0")[:2]:
        for path in log.parent.glob(f"{log.stem}.*"):
            path.unlink()
    (lab.archive / "t-0" / CHECKPOINT).write_text(epochs)


def later(lab: Lab) -> str:
    report = lab.run(NOW_MS + HOUR, force=True)
    assert by_topic(report)["t"].status == "cleaned"
    return (lab.folder() / CHECKPOINT).read_text()


@pytest.mark.parametrize("left", ["0\n2\n5 4\n7 6\n", "0\n2\n5 5\n7 6\n", "0\n0\n"])
def test_store_keeps_leader_epochs_of_retained_records(lab: Lab, left: str) -> None:
    give_up(lab, left)
    assert later(lab) == KNOWN


def test_lost_epochs_are_not_rebuilt_from_a_cleaned_log(lab: Lab) -> None:
    """The remaining batches do not contain epoch 3."""
    (lab.archive / "t-0" / CHECKPOINT).unlink()
    assert later(lab) == KNOWN


def test_epochs_below_the_log_start_are_removed(lab: Lab) -> None:
    give_up(lab, "0\n2\n5 5\n7 6\n")
    offset_checkpoint(lab.archive / "log-start-offset-checkpoint", {"t-0": 5})
    assert later(lab) == "0\n2\n5 5\n7 6\n"


def test_verify_requires_no_epoch_below_the_log_start(lab: Lab) -> None:
    """DeleteRecords moved it; the archive's file, written before, still names the epochs of what is below."""
    offset_checkpoint(lab.archive / "log-start-offset-checkpoint", {"t-0": 5})
    assert later(lab) == "0\n2\n5 5\n7 6\n"
    report = verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent())
    assert report.problems == []


@pytest.mark.parametrize("left", ["0\n2\n9 12\n10 13\n", "0\n1\n10 13\n", "0\n1\n12 99\n", "0\n0\n"])
def test_epochs_missing_in_both_files_are_read_from_batches(lab: Lab, left: str) -> None:
    """The broker's retention deleted more than the store has read: its epoch file begins above the offsets of the last
    generation.
    """
    more = "{leader=8} f=1 | {leader=9} f=2 || {leader=9} f=3 f=4 || {leader=10} g=1 || {leader=10} h=1"
    for log in write_partition(lab.root / "more" / "t-0", more, base_offset=9).logs:
        shutil.copy(log, lab.archive / "t-0")
    give_up(lab, left)
    assert later(lab) == "0\n7\n0 0\n3 2\n5 4\n7 6\n8 9\n9 10\n10 13\n"
    report = verify.run(
        VerifyOptions(archive_moved=str(lab.archive), store=str(lab.store), config=parse_config({})), Silent()
    )
    assert [checked.notes for checked in report.results] == [()]


@pytest.mark.parametrize("how", ["damaged", "lost"])
@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (None, "0\n3\n0 0\n5 5\n7 6\n"),  # no batch of epoch 3 is left, and the first one of epoch 5 is missing
        ("0\n2\n5 4\n7 6\n", "0\n3\n0 0\n5 4\n7 6\n"),  # the store's own segments hold epoch 0
        (KNOWN, KNOWN),
    ],
)
def test_missing_checkpoint_is_replaced_by_epochs_of_archive_and_batches(
    lab: Lab, how: str, left: str | None, expected: str
) -> None:
    give_up(lab, left or "")
    if left is None:
        (lab.archive / "t-0" / CHECKPOINT).unlink()
    own = lab.folder() / CHECKPOINT
    own.write_text("0\n1\n9 9\n")
    if how == "lost":
        own.unlink()
    assert verify_store(lab)
    report = lab.run(NOW_MS + HOUR, force=True)
    [note] = [note for note in by_topic(report)["t"].notes if CHECKPOINT in note]
    assert "the epochs of the archive's file and of the batches are used instead" in note
    assert (lab.folder() / CHECKPOINT).read_text() == expected
    assert verify_store(lab) == []


def verify_store(lab: Lab) -> list[Problem]:
    """Return the problems of the store."""
    return verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent()).problems
