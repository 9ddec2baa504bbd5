"""A last segment that was just rolled: 0 bytes, with its indexes there. No generation needs the archive for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders.archives import offset_checkpoint
from tests.builders.place import Place
from tests.builders.trees import files_in

LOG = "a=1 b=2 | a=3 || a=4 c=5 || "


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--sealed",), "the archive is no longer needed"),
        ((), "the archive is still needed: it is the last segment of a log that may continue: t-0"),
    ],
    ids=["sealed", "active"],
)
def test_unneeded_archive_can_be_deleted(place: Place, options: tuple[str, ...], answer: str) -> None:
    place.write(LOG)
    code, text = place.compact(*options)
    assert (code, answer in text) == (0, True)
    code, text = place.run("archive-needed", str(place.archive.parent), "--store", str(place.store))
    assert (code, answer in text) == (0, True)
    shutil.move(place.archive.parent, place.root / "gone")
    assert place.run("verify", "--store", str(place.store))[0] == 0
    output = place.root / "restored"
    assert place.run("restore", "--store", str(place.store), "--output", str(output))[0] == 0
    assert [path.stat().st_size > 0 for path in files_in(output / "t-0")] == [True, False]
    assert place.run("verify", str(output))[0] == 0


def test_a_log_with_empty_segments_can_grow_and_be_compacted_again(place: Place) -> None:
    place.write(LOG)
    assert place.compact()[0] == 0
    place.write(LOG + "a=5 | d=6 || e=7")
    assert place.compact()[0] == 0
    assert place.generation() == "1:b=2 | 4:c=5 | 5:a=5 | 6:d=6 || 7:e=7"
    assert place.run("verify", "--store", str(place.store))[0] == 0


def test_empty_segment_after_archive_segments_stays_in_the_archive(place: Place) -> None:
    """A generation holds what is its own first: the archive is read from the end of that on."""
    place.write("a=1 || {pid=1 txn} a=2 || a=3 || ")
    code, output = place.compact()
    assert (code, "the archive is still needed: a generation uses the segment: t-0" in output) == (0, True)
    assert place.generation() == "0:a=1 || 1:a=2 || 2:a=3 || "
    place.write("a=1 || {pid=1 txn} a=2 || a=3 || {pid=1 commit} | a=4 || b=1")
    assert place.compact()[0] == 0
    assert place.generation() == "[1-1] | COMMIT | 4:a=4 || 5:b=1"


def test_generation_ends_at_the_high_watermark(place: Place) -> None:
    """The active segment was not read: the generation has an empty segment and continues there."""
    place.write("a=1 | b=2 || c=3")
    offset_checkpoint(place.archive.parent / "replication-offset-checkpoint", {"t-0": 2})
    code, output = place.compact()
    assert (code, "no longer needed" in output, place.generation()) == (0, False, "0:a=1 | 1:b=2 || ")
    (place.archive.parent / "replication-offset-checkpoint").unlink()
    assert place.compact()[0] == 0
    assert place.generation() == "0:a=1 | 1:b=2 || 2:c=3"
