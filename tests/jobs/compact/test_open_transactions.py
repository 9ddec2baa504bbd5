"""A snapshot that denies an open transaction: nothing past that is cleaned, and no generation hands the snapshot on.

The log holds k=1, committed, and k=2 of a transaction that is open, and is aborted later. A reader that trusts the
snapshot cleans k=1 away, and loses k with the ABORT. A real broker does: tests/kafka/test_open_transactions.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_state import ProducerState
from tests.builders.logs import write_partition
from tests.builders.place import NO_PRODUCERS, Place
from tests.builders.trees import files_in

BEGINS = "k=1 | m=0"
LOG = f"{BEGINS} | {{pid=1 txn}} k=2 || x=1 | y=1 || z=1"
GREW = f"{LOG} | z=2 || w=1 || v=1"
ABORTED = f"{GREW} | {{pid=1 abort}} || u=1"


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def compacted_with_true_snapshots(place: Place, *texts: str) -> str:
    """Return the generation that the log gives with the snapshots that a broker wrote."""
    other = Place(place.root / "honest", place.capsys)
    for text in texts:
        other.write(text)
        assert other.compact()[0] == 0
    return other.generation()


def test_snapshot_of_a_log_without_its_beginning_limits_cleaning(place: Place) -> None:
    """The snapshots are of a copy that held later segments alone."""
    place.write(LOG)
    place.deny()
    code, output = place.compact()
    assert (code, "not due" in output) == (0, True)
    assert (
        "t-0/00000000000000000006.snapshot: expected the transaction of producer 1, open from offset 2 on, because no "
        "marker in the log ends it, found none; the log decides, and nothing is cleaned from there on" in output
    )
    place.write(ABORTED)
    assert place.compact()[0] == 0
    assert "0:k=1" in place.generation()
    assert place.generation() == compacted_with_true_snapshots(place, ABORTED)
    assert place.run("verify", "--store", str(place.store))[0] == 0


def test_open_transaction_in_the_store_limits_cleaning(place: Place) -> None:
    """The archive no longer has the offsets of the store, and its snapshots cover only the remaining log."""
    place.write(BEGINS)
    assert place.compact("--sealed")[0] == 0
    place.write(LOG)
    assert place.compact()[0] == 0
    assert place.generation().startswith("0:k=1 | 1:m=0 || 2:k=2 ||")
    place.write(GREW)
    place.lose(3)
    for offset in (5, 7, 8, 9):
        (place.archive / segment_file(offset, "snapshot")).write_bytes(NO_PRODUCERS)
    code, output = place.compact()
    assert (code, "of producer 1, open from offset 2 on" in output) == (0, True)
    assert place.generation().startswith("0:k=1 | 1:m=0 || 2:k=2 ||")
    aborted = place.root / "aborted"
    write_partition(aborted, ABORTED)
    for path in files_in(aborted, "*.log"):
        if int(path.stem) >= 3:
            shutil.copy(path, place.archive)
    assert place.compact()[0] == 0
    assert "0:k=1" in place.generation() and "k=2" not in place.generation()


def test_a_sealed_archive_is_still_needed(place: Place) -> None:
    place.write(LOG)
    place.deny()
    code, output = place.compact("--sealed")
    assert code == 0 and "no longer needed" not in output


def test_generation_has_snapshots_without_the_open_transaction(place: Place) -> None:
    """A broker that starts on the restored files believes the newest snapshot."""
    place.write(f"a=1 || a=2 || {LOG}".replace("|| k", "| k"))
    opened = {path.name: path.read_bytes() for path in files_in(place.archive, "*.snapshot")}
    place.deny()
    assert place.compact()[0] == 0
    output = place.root / "restored"
    assert place.run("restore", "--store", str(place.store), "--output", str(output))[0] == 0
    snapshots = {path.name: path.read_bytes() for path in files_in(output / "t-0", "*.snapshot")}
    assert len(snapshots) > 1
    for name, data in snapshots.items():
        entries = producer_snapshot.read(data, name)
        assert producer_snapshot.same_entries(entries, producer_snapshot.read(opened[name], name)), name
    assert place.run("verify", str(output))[0] == 0
    assert place.run("verify", "--store", str(place.store))[0] == 0


def test_verify_names_the_snapshot_with_the_open_transaction(place: Place) -> None:
    place.write(LOG)
    assert place.run("verify", str(place.archive.parent))[0] == 0
    (place.archive / segment_file(6, "snapshot")).write_bytes(NO_PRODUCERS)
    code, output = place.run("verify", str(place.archive.parent))
    assert code == 3
    assert (
        "t-0/00000000000000000006.snapshot at byte 0: side_file: expected the transaction of producer 1, which the log "
        "shows open from offset 2 on, found no such producer" in output
    )
    assert "00000000000000000003.snapshot" not in output


def test_verify_reports_a_generation_cleaned_past_an_open_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions made them."""
    place.write(LOG)
    with monkeypatch.context() as patch:
        patch.setattr(ProducerState, "last_stable_offset", lambda self, log_end: log_end)
        assert place.compact()[0] == 0
    assert "0:k=1" not in place.generation()
    code, output = place.run("verify", "--store", str(place.store))
    assert code == 3
    assert (
        "expected nothing cleaned from offset 2 on, where producer 1 began a transaction that was open, found a log "
        "cleaned up to offset 5"
    ) in output


def test_verify_requires_no_transaction_below_the_log_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner deleted the partition's records, so the generation keeps none of them."""
    place.write(LOG)
    (place.archive.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    with monkeypatch.context() as patch:
        patch.setattr(ProducerState, "last_stable_offset", lambda self, log_end: log_end)
        assert place.compact()[0] == 0
    code, output = place.run("verify", "--store", str(place.store))
    assert code == 0, output


def test_reindex_writes_no_snapshot_for_a_log_without_its_beginning(place: Place) -> None:
    place.write(LOG)
    place.lose(3)
    for _ in range(2):  # the second run learns nothing from the first
        code, output = place.run("reindex", str(place.archive.parent), "--in-place")
        assert code == 0
        assert "t-0: the log begins at offset 3, and neither log-start-offset-checkpoint nor leader-epoch-ch" in output
        assert not [*place.archive.glob("*.snapshot"), *place.archive.glob("leader-epoch-checkpoint")]
    (place.archive.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    assert place.run("reindex", str(place.archive.parent), "--in-place")[0] == 0
    assert [path.name for path in files_in(place.archive, "*.snapshot")] == [
        segment_file(n, "snapshot") for n in (5, 6)
    ]


def test_reindex_continues_from_a_snapshot_where_the_beginning_is_missing(place: Place) -> None:
    place.write(LOG)
    first, last = (place.archive / segment_file(offset, "snapshot") for offset in (3, 6))
    snapshots, right = first.read_bytes(), last.read_bytes()
    place.lose(3)
    first.write_bytes(snapshots)
    code, output = place.run("reindex", str(place.archive.parent), "--in-place")
    assert (code, "kept as it is, because the log before it is missing" in output) == (0, True)
    assert last.read_bytes() == right
    last.write_bytes(NO_PRODUCERS)
    assert place.run("reindex", str(place.archive.parent), "--check")[0] == 3


def test_reindex_keeps_a_wrong_snapshot_that_nothing_can_replace(place: Place) -> None:
    place.write(LOG)
    place.lose(3)
    wrong = place.archive / segment_file(5, "snapshot")
    damaged = NO_PRODUCERS[:2] + bytes(4) + NO_PRODUCERS[6:]  # another checksum
    wrong.write_bytes(damaged)
    code, output = place.run("reindex", str(place.archive.parent), "--in-place")
    assert (code, "impossible: t-0/00000000000000000005.snapshot: wrong" in output) == (3, True)
    assert wrong.read_bytes() == damaged
