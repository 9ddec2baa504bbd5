"""A marker that is lost between two transactions of a producer: the outcome of the first one is unknown.

A replica that fetches behind the leader's cleaner gets data of a transaction whose marker the leader has removed
meanwhile. A batch of another epoch shows it. Kafka's cleaner takes the outcome of the next marker, and so do consumers;
tests/kafka/test_lost_markers.py has their answers on the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from tests.builders.place import NOW, Place

LOST = "{pid=1 epoch=0 txn} a=1@0 | {pid=1 epoch=1 txn base=2} b=2@2"
ABORTED = f"{LOST} | {{pid=1 epoch=2 abort base=3}} || g=7 || h=8"
COMMITTED = f"{LOST} | {{pid=1 epoch=1 commit base=3}}"
PROBLEM = (
    "problem: t-0/00000000000000000000.log at byte 0 (batch at offset 0): transaction: expected a marker of producer 1 "
    "behind this batch of epoch 0, found a batch of epoch 1 at offset 2, and no marker before it; the outcome of this "
    "transaction is unknown: look for its marker in another replica or an older copy"
)
NOTE = (
    "note: t-0/00000000000000000000.log: expected a marker of producer 1 behind its batch of epoch 0 at offset 0, "
    "found a batch of epoch 1 at offset 2; the outcome of this transaction is unknown: its records are kept and "
    "supersede nothing; look for the marker in another replica or an older copy"
)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def compact_after(place: Place, days: int) -> tuple[int, str]:
    """Compact so many days later; delete.retention.ms is a day."""
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--force", "--no-progress"]
    words += ["--topics", "t", "--cleanup-policy", "compact", "--now", str(NOW + days * 86_400_000 + days)]
    code = cli.main(words)
    return code, "".join(place.capsys.readouterr())


def test_lost_marker_is_reported_by_verify_and_compact_keeps_the_earlier_batch(place: Place) -> None:
    place.write(ABORTED)
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, PROBLEM in output) == (3, True)
    code, output = place.compact()
    assert (code, NOTE in output) == (0, True)
    assert place.generation() == "0:a=1 | [2-2] | ABORT | 4:g=7 || 5:h=8"
    code, output = place.run("verify", "--store", str(place.store))
    assert (code, "the outcome of this transaction is unknown" in output) == (0, True)


def test_later_runs_keep_the_batch_before_a_lost_marker(place: Place) -> None:
    """The header of the batch that shows the loss is kept with the marker, so a later run detects the loss again."""
    place.write(ABORTED)
    assert place.compact()[0] == 0
    place.write(f"{ABORTED} || i=9 || {{pid=1 epoch=3 txn}} b=3 | {{pid=1 epoch=4 commit}} || j=1")
    for days in (1, 2, 3, 4):
        code, code_and_output = compact_after(place, days)
        assert (code, "the outcome of this transaction is unknown" in code_and_output) == (0, True)
        assert place.generation().startswith("0:a=1 | [2-2] | ABORT | 4:g=7")
        assert place.run("verify", "--store", str(place.store))[0] == 0


def test_record_without_a_marker_supersedes_no_record(place: Place) -> None:
    place.write(
        "a=0 k=0 | {pid=1 epoch=0 txn} a=1@3 | {pid=1 epoch=1 txn base=5} b=2@5 | {pid=1 epoch=1 commit} || k=1 || h=8"
    )
    assert place.compact()[0] == 0
    assert place.generation() == "0:a=0 | 3:a=1 | 5:b=2 | COMMIT | 7:k=1 || 8:h=8"


def test_record_after_a_lost_marker_is_kept(place: Place) -> None:
    place.write(f"a=0 | {LOST.replace('@0', '@1')} | {{pid=1 epoch=1 commit}} || a=2 b=3 || h=8")
    assert place.compact()[0] == 0
    assert place.generation() == "1:a=1 | [2-2] | COMMIT | 4:a=2 5:b=3 || 6:h=8"


def test_tombstones_after_a_lost_marker_are_kept(place: Place) -> None:
    """Readers see a=1, because the next marker is a COMMIT; removing the tombstone would bring a=1 back."""
    place.write(f"{COMMITTED} || a=- b=- | c=1 || c=2 || h=8")
    for days in range(4):
        assert compact_after(place, days)[0] == 0
        assert place.generation().split(" || ")[0] == "0:a=1 | [2-2] | COMMIT | 4:a=- 5:b=- | 7:c=2"
        assert place.run("verify", "--store", str(place.store))[0] == 0


def test_several_epochs_are_lost_before_one_marker(place: Place) -> None:
    text = (
        "{pid=1 epoch=0 txn} a=0 | {pid=2 epoch=9 txn} x=1 | {pid=1 epoch=0 txn} a=1 | {pid=1 epoch=1 txn} a=2 |"
        " {pid=1 epoch=2 txn} a=3 | {pid=1 epoch=2 commit} | {pid=2 epoch=9 commit} || a=4 || h=8"
    )
    place.write(text)
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, output.count("problem: ")) == (3, 2)
    assert "behind this batch of epoch 0, found a batch of epoch 1 at offset 3," in output
    assert "behind this batch of epoch 1, found a batch of epoch 2 at offset 4," in output
    assert place.compact()[0] == 0
    assert place.generation() == ("0:a=0 | 1:x=1 | 2:a=1 | 3:a=2 | [4-4] | COMMIT | COMMIT | 7:a=4 || 8:h=8")


def test_open_transaction_after_a_lost_marker_stops_cleaning(place: Place) -> None:
    """For a broker the transaction has been open since the earlier batch, so nothing is cleaned from there on."""
    place.write("k=0 || k=1 | {pid=1 epoch=0 txn} a=1 | {pid=1 epoch=1 txn base=4} b=2@4 || g=7 || h=8")
    assert place.run("verify", str(place.archive.parent))[0] == 3
    code, output = place.compact()
    assert (code, "the outcome of this transaction is unknown" in output) == (0, True)
    assert place.generation() == "0:k=0 || 1:k=1 | 2:a=1 | 4:b=2 || 5:g=7 || 6:h=8"


@pytest.mark.parametrize(
    "text",
    [
        # after epoch 32767 the coordinator gives the transactional id another producer id
        "{pid=1 epoch=32766 txn} a=1 | {pid=1 epoch=32767 abort} | {pid=2 epoch=0 txn} b=2 | {pid=2 epoch=0 commit}",
        # InitProducerId raises the epoch, and its ABORT carries the new one
        "{pid=1 epoch=0 txn} a=1 | {pid=1 epoch=1 abort} | {pid=1 epoch=1 txn} b=2 | {pid=1 epoch=1 commit}",
        "{pid=1 epoch=0 txn} a=1 | {pid=1 epoch=2 abort} | {pid=1 epoch=2 txn} b=2 | {pid=1 epoch=3 commit}",
        # transaction.version 1, and after an upgrade 2: each marker raises the epoch
        "{pid=1 epoch=0 txn} a=1 | {pid=1 epoch=0 commit} | {pid=1 epoch=0 txn} b=2 | {pid=1 epoch=1 commit} |"
        " {pid=1 epoch=1 txn} c=3 | {pid=1 epoch=2 abort}",
        # a coordinator writes a marker again; and one of an older term of its own
        "{pid=1 epoch=0 txn} a=1 | {pid=1 epoch=0 commit} | {pid=1 epoch=0 commit} | {pid=1 epoch=1 txn} b=2 |"
        " {pid=1 epoch=1 commit}",
        "{pid=1 epoch=0 txn} a=1 | {pid=1 epoch=0 coordinator=7 commit} | {pid=1 epoch=1 txn} b=2 |"
        " {pid=1 epoch=1 coordinator=3 commit}",
        # emptied by a cleaner: a marker, a batch without its own marker, a batch behind its marker
        "{pid=1 epoch=0 txn control base=1 last=1} | {pid=1 epoch=1 txn base=2} b=2@2 | {pid=1 epoch=1 commit}",
        "{pid=1 epoch=0 txn base=0 last=0} | {pid=1 epoch=1 txn base=2} b=2@2 | {pid=1 epoch=1 commit}",
        "{pid=1 epoch=0 txn} a=1@0 | {pid=1 epoch=0 commit base=1} | {pid=1 epoch=1 txn base=2 last=2} |"
        " {pid=1 epoch=1 abort base=3}",
        # other producers between
        "{pid=1 epoch=0 txn} a=1 | {pid=2 epoch=5 txn} b=2 | {pid=2 epoch=5 commit} | {pid=1 epoch=0 commit}",
    ],
)  # fmt: skip
def test_complete_logs_have_no_lost_marker(place: Place, text: str) -> None:
    place.write(f"{text} || g=7 || h=8")
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, "no problem found" in output) == (0, True), output
    code, output = place.compact()
    assert (code, "unknown" in output) == (0, False), output
