"""Every reason for an uncleanable partition has a remedy, which is documented and works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lastkey.jobs.store.tables import open_state
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import transaction_index
from tests.builders.place import Place
from tests.builders.trees import files_in

pytestmark = pytest.mark.slow

LOG = "a=1 b=2 | a=3 || a=4 c=5 || d=1 e=2"
OTHER = "x=1 y=2 z=3 | z=1 | x=3 y=1 d=6 f=9 g=3 || h=1"  # a batch lies across offset 7, where LOG ends
DOUBTFUL = "{pid=1 txn} a=1 | {pid=1 txn} b=1@2 | {pid=1 abort} | c=1 || d=1 || e=1"  # offset 1 is missing


def recreate(place: Place, text: str) -> None:
    shutil.rmtree(place.archive)
    place.archive.mkdir()
    place.write(text)
    (place.archive / "partition.metadata").unlink()


def log(place: Place, base: int) -> Path:
    return place.archive / segment_file(base, "log")


def flip(path: Path, at: int = -3) -> bytes:
    """Change a byte; gives what was there."""
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at:][1:])
    return data


def hide(place: Place, base: int) -> Callable[[], None]:
    """Take a segment away; gives what brings it back."""
    away = place.root / "away"
    away.mkdir()
    for path in files_in(place.archive, f"{base:020d}.*"):
        shutil.move(path, away / path.name)
    return lambda: [shutil.move(path, place.archive / path.name) for path in files_in(away, "*")] and None


def compacted(place: Place, text: str = LOG, *more: str) -> None:
    place.write(text)
    (place.archive / "partition.metadata").unlink()
    assert place.compact(*more)[0] == 0


Way = Callable[[], None] | list[str]  # action, or options of the next run


def topic_id(place: Place) -> Way:
    place.write(LOG)
    assert place.compact("--sealed")[0] == 0
    (place.archive / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    return ["--reset", "t"]


def log_ends_below(place: Place) -> Way:
    compacted(place)
    recreate(place, LOG.rpartition(" || ")[0])
    return ["--reset", "t"]


def another_last_batch(place: Place) -> Way:
    compacted(place, LOG, "--sealed")
    recreate(place, LOG.replace("e=2", "e=3") + " | f=1")
    return ["--reset", "t"]


def batch_across_the_end(place: Place) -> Way:
    compacted(place, LOG, "--sealed")
    recreate(place, OTHER)
    return ["--reset", "t"]


def checkpoint_beyond_the_end(place: Place) -> Way:
    compacted(place)
    checkpoint = place.archive.parent / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 100\n")
    return checkpoint.unlink


def missing_segment(place: Place) -> Way:
    place.write(LOG)
    return hide(place, 3)


def missing_segment_that_is_lost(place: Place) -> Way:
    place.write(LOG)
    hide(place, 3)
    return ["--set", "gaps=accept"]


def missing_segment_of_a_generation(place: Place) -> Way:
    compacted(place, "a=1 | b=1 || {pid=1 txn} c=1 || d=1")
    hide(place, 2)
    return ["--reset", "t", "--set", "gaps=accept"]


def segment_that_came_back(place: Place) -> Way:
    place.write(LOG)
    bring_back = hide(place, 3)
    assert place.compact("--set", "gaps=accept")[0] == 0
    bring_back()
    return ["--reset", "t"]


def end_of_a_transaction_in_a_gap(place: Place) -> Way:
    place.write(
        "{pid=7 txn} a=1 || {pid=7 commit} | {pid=7 txn} b=1 || {pid=7 txn} c=1 | {pid=7 abort} | d=1 || e=1 || f=1"
    )
    bring_back = hide(place, 1)
    code, output = place.compact("--set", "gaps=accept")
    assert (code, "expected the end of the transaction of producer 7" in output) == (3, True)
    return bring_back


def damage(place: Place) -> Way:
    place.write(LOG)
    whole = flip(log(place, 0))
    return lambda: log(place, 0).write_bytes(whole) and None


def damage_in_the_store(place: Place) -> Way:
    compacted(place)
    flip(files_in(place.store / "segments", "t-0/*/*.log")[0])
    return ["--reset", "t"]


def lost_file_of_the_store(place: Place) -> Way:
    compacted(place)
    files_in(place.store / "segments", "t-0/*/*.log")[0].unlink()
    return ["--reset", "t"]


def record_without_key(place: Place) -> Way:
    place.write(LOG.replace("b=2", "-=2"))
    return ["--set", "null.keys=keep"]


def torn_tail(place: Place) -> Way:
    place.write(LOG)
    log(place, 5).write_bytes(log(place, 5).read_bytes()[:-1])
    (place.archive / segment_file(7, "snapshot")).unlink()  # snapshot of a later stop than this copy
    assert place.compact()[0] == 0
    assert place.compact("--sealed")[0] == 3
    return []


def two_places(place: Place) -> Way:
    place.write(LOG)
    for disk in ("one", "two"):
        shutil.copytree(place.archive, place.archive.parent / disk / "t-0")
    shutil.rmtree(place.archive)
    return lambda: shutil.rmtree(place.archive.parent / "two")


def doubtful_index(place: Place) -> Way:
    """Write an index entry that begins after its transaction does in the log; a cleaner may have taken a marker."""
    place.write(DOUBTFUL)
    index = place.archive / segment_file(0, "txnindex")
    entries = transaction_index.read(index.read_bytes(), "")
    entries["first_offset"] = 2
    index.write_bytes(transaction_index.write(entries))
    return index.unlink


def broken_high_watermark(place: Place) -> Way:
    place.write(LOG)
    checkpoint = place.archive.parent / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0\n")
    return checkpoint.unlink


WAYS = [
    (topic_id, "diverged", "changed"),
    (log_ends_below, "diverged", "changed"),
    (another_last_batch, "diverged", "changed"),
    (batch_across_the_end, "diverged", "changed"),
    (checkpoint_beyond_the_end, "diverged", "side_file"),
    (missing_segment, "gap", "gap"),
    (missing_segment_that_is_lost, "gap", "gap"),
    (missing_segment_of_a_generation, "gap", "gap"),
    (segment_that_came_back, "gap", "gap"),
    (end_of_a_transaction_in_a_gap, "gap", "gap"),
    (damage, "uncleanable", "crc"),
    (damage_in_the_store, "uncleanable", "crc"),
    (lost_file_of_the_store, "uncleanable", "unreadable"),
    (record_without_key, "uncleanable", "null_key"),
    (torn_tail, "uncleanable", "torn_tail"),
    (two_places, "uncleanable", "duplicate"),
    (doubtful_index, "uncleanable", "transaction"),
    (broken_high_watermark, "uncleanable", "side_file"),
]


@pytest.mark.parametrize(("breaks", "state", "kind"), WAYS, ids=[way[0].__name__ for way in WAYS])
def test_documented_remedy_makes_the_partition_cleanable(
    breaks: Callable[[Place], Way], state: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, capsys)
    way = breaks(place)
    sealed = ["--sealed"] if breaks is torn_tail else []
    code, output = place.compact(*sealed)
    assert (code, f": {kind}: " in output) == (3, True), output
    assert open_state(str(place.store)).states()["t", 0].state == state
    options = way if isinstance(way, list) else []
    if not isinstance(way, list):
        way()
    code, output = place.compact(*options)
    assert code == 0, output
    code, output = place.run("verify", "--store", str(place.store))
    assert code == 0, output
    assert place.compact(*options[2 * (options[:1] == ["--reset"]) :])[0] == 0  # and stays free
