"""`reindex`: findings for damaged files, the rebuilt files, and files that it never changes.

Without Spark, but for one test: these archives are small.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import struct
import subprocess
import sys

import numpy as np
import pytest

from lastkey.jobs.archive.broker_lock import locked
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.errors import CONFLICT, DONE, ENVIRONMENT, LOG_DIRECTORY_IN_USE, PROBLEMS, USAGE, UsageError
from lastkey.jobs.reindex import job as reindex
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import producer_snapshot, transaction_index
from lastkey.udfs.problem import Problem
from lastkey.udfs.reindex import side_files as reindex_side_files
from lastkey.udfs.reindex import write as reindex_write
from tests.builders.archives import borders
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.faults import Fault, faults
from tests.builders.logs import START_MS, write_partition, write_segment
from tests.builders.reindexed import BASES, END, TEXT, not_same, run
from tests.builders.steps import at_step
from tests.builders.trees import files_in, read_tree, tree
from tests.golden import PASSES, case_names

# Kinds of files that a broker did not make from the log as it is now
DIFFER = {
    "v0-none": {"index"}, "v1-none": {"index", "timeindex"},  # a 2.8.2 broker, an entry for each append
    "none-tomb-more": {"snapshot"}, "txn-none-more": {"snapshot"}, "zstd-headers-more": {"snapshot"},  # more batches
}  # fmt: skip
LOST = {"txn-none-more": {"txnindex"}}  # index of transactions whose records were cleaned away


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Make an archive of one partition with every kind of side file."""
    root = tmp_path_factory.mktemp("sound") / "archive"
    made = write_partition(root / "t-0", TEXT, index_interval_bytes=0)
    assert (made.bases, made.end_offset) == (BASES, END)
    return root


@pytest.fixture
def root(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "archive")
    return tmp_path / "archive"


def test_intact_partition_has_no_differences(root, sound):
    before = tree(root)
    report = run(root)
    assert (report.exit_code, not_same(report)) == (DONE, {})
    kinds = [f.kind for f in report.files]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "index": 3, "timeindex": 3, "txnindex": 2, "snapshot": 3, "leader-epoch-checkpoint": 1,
    }  # fmt: skip
    assert tree(root) == before
    report = run(root, "in_place")
    assert (report.exit_code, not_same(report), report.totals()["bytes_written"]) == (DONE, {}, 0)
    assert tree(root) == before


def test_all_side_files_are_rebuilt_from_the_logs(root):
    good = read_tree(root)
    for path in (root / "t-0").iterdir():
        if path.suffix != ".log" and path.name != "partition.metadata":
            path.unlink()
    report = run(root, "output")
    rebuilt = {path: data for path, data in good.items() if not path.endswith((".log", "partition.metadata"))}
    assert read_tree(root.parent / "output") == rebuilt
    assert report.exit_code == DONE
    assert set(not_same(report).values()) == {("rebuilt", "missing")}
    run(root, "in_place")
    assert read_tree(root) == good


# -- damage


def _edit(position, data):
    def edit(path):
        whole = bytearray(path.read_bytes())
        whole[position : position + len(data)] = data
        path.write_bytes(bytes(whole))

    return edit


def _cut(n):
    return lambda path: path.write_bytes(path.read_bytes()[:-n])


def _add(data):
    return lambda path: path.write_bytes(path.read_bytes() + data)


def _like(other):
    return lambda path: path.write_bytes((path.parent / other).read_bytes())


def _resigned(edit):
    """Return a function that edits a snapshot's entries and writes a checksum that fits."""

    def change(path):
        entries = producer_snapshot.read(path.read_bytes(), "p").copy()
        path.write_bytes(producer_snapshot.write(edit(entries)))

    return change


def _producer(field, value):
    def edit(entries):
        entries[field][0] = value
        return entries

    return _resigned(edit)


def _just_after(damage):
    def change(path):
        damage(path)
        os.utime(path, (START_MS // 1000 + 60, START_MS // 1000 + 60))

    return change


def _more_producers(last_offset):
    def edit(entries):
        entry = entries[:1].copy()
        entry["producer_id"], entry["last_offset"], entry["current_txn_first_offset"] = 99, last_offset, -1
        return np.concatenate([entries, entry])

    return _resigned(edit)


def _txn(field, value, entry=0):
    def change(path):
        entries = transaction_index.read(path.read_bytes(), "p").copy()
        entries[field][entry] = value
        path.write_bytes(transaction_index.write(entries))

    return change


def _remove(path):
    path.unlink()


INDEX, TIME, TXN, SNAPSHOT = (
    segment_file(5, "index"),
    segment_file(5, "timeindex"),
    segment_file(10, "txnindex"),
    segment_file(10, "snapshot"),
)
EPOCHS = "leader-epoch-checkpoint"
DAMAGE = [
    (INDEX, "missing", _remove),
    (INDEX, "torn", _cut(3)),
    (INDEX, "padded", _add(bytes(800))),
    (INDEX, "padded", lambda path: path.write_bytes(bytes(10 << 20))),
    (INDEX, "stale", _cut(8)),
    (INDEX, "stale", _add(struct.pack(">ii", 2000, 70_000))),
    (INDEX, "wrong", _edit(12, struct.pack(">i", 1))),
    (INDEX, "foreign", _like(segment_file(10, "index"))),
    (INDEX, "foreign", lambda path: path.write_bytes(struct.pack(">4i", 5000, 100_000, 5001, 100_100))),
    (INDEX, "huge", lambda path: path.write_bytes(b"\1" * ((10 << 20) + 8))),
    (INDEX, "other_entries", lambda path: path.write_bytes(path.read_bytes()[:8] + path.read_bytes()[16:])),
    (TIME, "missing", _remove),
    (TIME, "torn", _cut(5)),
    (TIME, "padded", _add(bytes(1200))),
    (TIME, "padded", lambda path: path.write_bytes(path.read_bytes()[:-12] + bytes(1200))),
    (TIME, "stale", _cut(12)),
    (TIME, "wrong", _edit(12, struct.pack(">q", 1))),
    (TIME, "foreign", lambda path: path.write_bytes(struct.pack(">qiqi", START_MS, 900, START_MS + 1, 901))),
    (TIME, "huge", lambda path: path.write_bytes(b"\1" * ((10 << 20) + 8))),
    (TIME, "other_entries", lambda path: path.write_bytes(path.read_bytes()[12:])),
    (TXN, "missing", _remove),
    (TXN, "torn", _cut(29)),
    (TXN, "torn", _cut(5)),
    (TXN, "padded", _add(bytes(68))),
    (TXN, "stale", _cut(34)),
    (TXN, "stale", lambda path: path.write_bytes(b"")),
    (TXN, "stale", _add(transaction_index.write(np.array([(0, 7, 400, 500, 501)], transaction_index.ENTRY)))),
    (TXN, "wrong", _txn("first_offset", 8)),
    (TXN, "wrong", _txn("last_offset", 12, 1)),
    (TXN, "wrong", _edit(0, b"\7")),
    (TXN, "foreign", _like(segment_file(0, "txnindex"))),
    (TXN, "huge", lambda path: path.write_bytes(b"\1" * (3 << 20))),
    (TXN, "wrong", _txn("first_offset", 3)),  # valid in a log with holes, but here every offset exists
    (SNAPSHOT, "missing", _remove),
    (SNAPSHOT, "torn", _cut(1)),
    (SNAPSHOT, "torn", lambda path: path.write_bytes(b"\0\1")),
    (SNAPSHOT, "padded", _add(bytes(100))),
    (SNAPSHOT, "wrong", _edit(30, b"\7")),
    (SNAPSHOT, "wrong", _add(b"\7")),
    (SNAPSHOT, "wrong", _producer("last_sequence", 50)),
    (SNAPSHOT, "wrong", _producer("producer_epoch", -1)),
    (SNAPSHOT, "wrong", _producer("current_txn_first_offset", -1)),
    (SNAPSHOT, "wrong", _producer("last_offset", 9)),
    (SNAPSHOT, "wrong", _more_producers(3)),
    (SNAPSHOT, "wrong", _just_after(_resigned(lambda entries: entries[:1]))),  # the other one cannot have expired
    (SNAPSHOT, "other_entries", _resigned(lambda entries: entries[:1])),
    (SNAPSHOT, "wrong", _like(segment_file(5, "snapshot"))),
    (SNAPSHOT, "huge", lambda path: path.write_bytes(b"\1" * (1 << 17))),
    (SNAPSHOT, "other_entries", _more_producers(-1)),
    (SNAPSHOT, "other_entries", _producer("timestamp", 5)),
    (EPOCHS, "missing", _remove),
    (EPOCHS, "stale", lambda path: path.write_bytes(b"")),
    (EPOCHS, "wrong", lambda path: path.write_text("0\n2\n0 0\n")),
]


@pytest.mark.parametrize(("file", "reason", "damage"), DAMAGE, ids=[f"{d[0][-9:]}-{d[1]}" for d in DAMAGE])
def test_damaged_side_file_is_reported_and_rebuilt(file, reason, damage, root, sound, monkeypatch):
    monkeypatch.setattr(reindex_side_files, "_MOST_SIDE_BYTES", 1 << 16)
    path = root / "t-0" / file
    damage(path)
    before = tree(root)
    report = run(root)
    assert tree(root) == before
    assert not_same(report) == {file: ("differs", reason)}
    assert report.exit_code == (DONE if reason == "other_entries" else PROBLEMS)
    (files,) = [f for f in report.files if f.reason]
    assert files.expected and files.found
    assert len(files.found) < 300
    assert files.bytes == (sound / "t-0" / file).stat().st_size

    written = run(root, "output")
    expected = {p: data for p, data in read_tree(sound).items() if not p.endswith((".log", "partition.metadata"))}
    if file != EPOCHS:
        del expected[f"t-0/{EPOCHS}"]  # it is rebuilt only where it is lost
    assert read_tree(root.parent / "output") == expected
    assert not_same(written) == {file: ("rebuilt", reason)}
    assert tree(root) == before

    report = run(root, "in_place")
    assert report.exit_code == DONE
    if reason == "other_entries":
        assert not_same(report) == {file: ("same", reason)}
        assert tree(root) == before
        return
    assert not_same(report) == {file: ("rebuilt", reason)}
    assert read_tree(root) == read_tree(sound)
    after = tree(root)
    changed = {p for p in after if p not in before or after[p] != before[p]}
    assert f"t-0/{file}" in changed <= {"t-0", f"t-0/{file}"}
    assert not_same(run(root)) == {}


def test_superfluous_transaction_index_is_removed(root, sound):
    path = root / "t-0" / segment_file(5, "txnindex")
    path.write_bytes(b"")
    report = run(root)
    assert not_same(report) == {}
    run(root, "output")
    assert not (root.parent / "output/t-0" / path.name).exists()
    path.write_bytes((root / "t-0" / segment_file(0, "txnindex")).read_bytes())
    assert not_same(run(root)) == {path.name: ("differs", "foreign")}
    run(root, "in_place")
    assert path.read_bytes() == b""
    assert not_same(run(root)) == {}


# -- logs that are bad


def _flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_side_files_of_intact_logs_around_a_damaged_log_are_rebuilt(root):
    write_partition(root / "other-0", "a=1 | b=2", index_interval_bytes=0)
    log = root / "t-0" / segment_file(5, "log")
    position = borders(log.read_bytes())[1]
    _flip(log, position + 65)
    (root / "other-0" / segment_file(0, "index")).write_bytes(b"")
    (root / "t-0" / segment_file(10, "timeindex")).unlink()
    (root / "t-0" / segment_file(10, "snapshot")).unlink()
    (root / "t-0" / EPOCHS).unlink()
    before = {p: data for p, data in read_tree(root).items() if p.endswith(".log")}
    report = run(root, "in_place")
    assert report.exit_code == PROBLEMS
    outcomes = not_same(report)
    assert outcomes.pop("other-0/" + segment_file(0, "index")) == ("rebuilt", "stale")
    assert outcomes == {
        segment_file(5, "index"): ("impossible", "crc"), segment_file(5, "timeindex"): ("impossible", "crc"),
        segment_file(5, "txnindex"): ("impossible", "crc"), segment_file(10, "timeindex"): ("rebuilt", "missing"),
        segment_file(10, "snapshot"): ("impossible", "crc"), segment_file(10, "txnindex"): ("impossible", "crc"),
        segment_file(15, "snapshot"): ("impossible", "crc"), EPOCHS: ("impossible", "crc"),
    }  # fmt: skip
    for f in report.files:
        if f.status == "impossible":
            assert (f.log, f.position) == (f"t-0/{log.name}", position)
            assert f.expected.startswith("checksum 0x")
            assert f.found.startswith("0x")
    assert f"impossible: t-0/{INDEX}: crc at byte {position} of t-0/{log.name}: expected checksum" in report.to_text()
    assert {p: data for p, data in read_tree(root).items() if p.endswith(".log")} == before
    assert run(root).exit_code == PROBLEMS


def test_reading_continues_from_the_snapshot_after_a_damaged_log(root, sound):
    _flip(root / "t-0" / segment_file(5, "log"), 70)
    for base in BASES:
        (root / "t-0" / segment_file(base, "index")).unlink()
    (root / "t-0" / TXN).unlink()
    (root / "t-0" / segment_file(END, "snapshot")).unlink()
    report = run(root, "in_place")
    assert not_same(report) == {
        segment_file(0, "index"): ("rebuilt", "missing"), INDEX: ("impossible", "crc"), TIME: ("impossible", "crc"),
        segment_file(5, "txnindex"): ("impossible", "crc"), segment_file(10, "index"): ("rebuilt", "missing"),
        TXN: ("rebuilt", "missing"), segment_file(END, "snapshot"): ("rebuilt", "missing"),
    }  # fmt: skip
    assert any(SNAPSHOT in note and "kept as it is" in note for p in report.partitions for note in p.notes)
    good = read_tree(sound)
    del good[f"t-0/{INDEX}"]
    files = read_tree(root)
    assert files.pop(f"t-0/{segment_file(5, 'log')}") != good.pop(f"t-0/{segment_file(5, 'log')}")
    assert files == good


@pytest.mark.parametrize("zeros", [False, True])
def test_torn_tail_ends_the_last_log_and_is_damage_in_others(root, zeros):
    for base in (0, 10):
        log = root / "t-0" / segment_file(base, "log")
        data = log.read_bytes()
        log.write_bytes(data + bytes(500) if zeros else data[:-10])
    report = run(root)
    outcomes = not_same(report)
    assert outcomes[segment_file(0, "index")] == ("impossible", "torn_tail")
    if zeros:
        assert segment_file(10, "index") not in outcomes
    else:  # they point into the batch that is cut
        assert outcomes[segment_file(10, "index")] == ("differs", "stale")
        assert outcomes[segment_file(10, "timeindex")] == ("differs", "stale")
    assert any("a broker truncates it there" in note for p in report.partitions for note in p.notes)


def test_log_with_overflowing_or_foreign_offsets_is_reported(tmp_path):
    root = tmp_path / "archive"
    near = write_segment(root / "far-0", "a=1")
    far = write_segment(tmp_path / "far", "{base=3000000000} b=2@3000000000", 3_000_000_000)
    near.write_bytes(near.read_bytes() + far.read_bytes())
    write_partition(root / "name-0", "a=1 | b=2", base_offset=50)
    (root / "name-0" / segment_file(50, "log")).rename(root / "name-0" / segment_file(60, "log"))
    write_partition(root / "over-0", "a=1 b=2 | c=3 || d=4", bases={1: 3})
    (root / "over-0" / segment_file(3, "log")).rename(root / "over-0" / segment_file(2, "log"))
    report = run(root)
    reasons = {f.path: f.reason for f in report.files if f.kind == "index"}
    assert reasons[f"far-0/{segment_file(0, 'index')}"] == "relative_offset"
    assert reasons[f"name-0/{segment_file(60, 'index')}"] == "name"
    assert reasons[f"over-0/{segment_file(0, 'index')}"] == "overlap"
    assert reasons[f"over-0/{segment_file(2, 'index')}"] == "missing"


def test_invalid_transaction_does_not_stop_the_indexes(tmp_path):
    root = tmp_path / "archive"
    write_partition(root / "t-0", "{pid=7 txn} a=1 || b=2", index_interval_bytes=0)
    other = write_segment(tmp_path / "other", "{base=1 pid=7} b=2", 1, index_interval_bytes=0)
    shutil.copy(other, root / "t-0" / segment_file(1, "log"))
    outcomes = not_same(run(root))
    assert outcomes[segment_file(2, "snapshot")] == ("impossible", "transaction")
    assert segment_file(1, "index") not in outcomes


# -- skipped files, messages


def test_empty_segment_gets_indexes_and_stray_snapshot_is_noted(root, tmp_path):
    (root / "t-0" / segment_file(15, "log")).write_bytes(b"")
    shutil.copy(root / "t-0" / segment_file(10, "snapshot"), root / "t-0" / segment_file(12, "snapshot"))
    report = run(root, "in_place")
    assert not_same(report) == {
        segment_file(15, "index"): ("rebuilt", "missing"),
        segment_file(15, "timeindex"): ("rebuilt", "missing"),
    }
    assert (root / "t-0" / segment_file(15, "index")).read_bytes() == b""
    assert any(f"{segment_file(12, 'snapshot')}: at no segment's base" in n for p in report.partitions for n in p.notes)
    assert (root / "t-0" / segment_file(12, "snapshot")).exists()


def test_state_below_the_log_start_is_not_rebuilt(root):
    """UnifiedLog.rebuildProducerState loads nothing there; the snapshots at those bases are not made."""
    (root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 11\n")
    for path in files_in(root / "t-0", "*.snapshot"):
        path.unlink()
    run(root, "output")
    out = root.parent / "output/t-0"
    assert [p.name for p in files_in(out, "*.snapshot")] == [segment_file(END, "snapshot")]
    # the transaction that began at 5 is not known in the segment of the log start: nothing for its marker at 10
    entries = transaction_index.read((out / TXN).read_bytes(), "p")
    assert entries["last_offset"].tolist() == [14]


def test_files_of_an_interrupted_swap_keep_their_names(root, sound):
    """The cleaner's swap is incomplete: files keep the names that the broker will rename."""
    folder = root / "t-0"
    for kind in ("log", "index"):
        (folder / segment_file(5, kind)).rename(folder / f"{segment_file(5, kind)}.swap")
    (folder / f"{segment_file(5, 'index')}.swap").write_bytes(b"")
    (folder / segment_file(5, "snapshot")).unlink()
    (folder / TIME).unlink()
    (folder / f"{segment_file(0, 'index')}.deleted").write_bytes(b"x")
    (folder / segment_file(10, "log")).rename(folder / f"{segment_file(10, 'log')}.swap")
    (folder / segment_file(END, "snapshot")).unlink()
    (folder / EPOCHS).unlink()
    report = run(root, "in_place")
    assert not_same(report) == {
        EPOCHS: ("rebuilt", "missing"), segment_file(END, "snapshot"): ("rebuilt", "missing"),
        f"{INDEX}.swap": ("rebuilt", "stale"), f"{TIME}.swap": ("rebuilt", "missing"),
        f"{segment_file(5, 'snapshot')}.swap": ("rebuilt", "missing"),
        # a broker deletes what lies between the offsets of .log.swap files and is no .swap itself
        **{
            f"{segment_file(10, kind)}.swap": ("rebuilt", "missing")
            for kind in ("index", "timeindex", "txnindex", "snapshot")
        },
    }  # fmt: skip
    for kind in ("index", "timeindex", "snapshot"):
        assert (folder / f"{segment_file(5, kind)}.swap").read_bytes() == (
            sound / "t-0" / segment_file(5, kind)
        ).read_bytes()
        assert not (folder / segment_file(5, kind)).exists()
    assert not_same(run(root)) == {}


def test_mode_and_owner_are_kept_and_copied_from_the_log_for_new_files(root):
    folder = root / "t-0"
    (folder / INDEX).write_bytes(b"")
    (folder / INDEX).chmod(0o640)
    (folder / segment_file(5, "log")).chmod(0o604)
    (folder / TIME).unlink()
    if os.geteuid() == 0:
        os.chown(folder / INDEX, 1234, 2345)
    run(root, "in_place")
    status = (folder / INDEX).stat()
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert stat.S_IMODE((folder / TIME).stat().st_mode) == 0o604
    if os.geteuid() == 0:
        assert (status.st_uid, status.st_gid) == (1234, 2345)


def test_unwritable_file_is_reported_and_others_are_written(root, sound):
    (root / "t-0" / INDEX).unlink()
    (root / "t-0" / INDEX).mkdir()  # as root, a mode would not do
    (root / "t-0" / TIME).unlink()
    report = run(root, "in_place")
    assert report.exit_code == PROBLEMS
    assert not_same(report) == {INDEX: ("impossible", "unwritable"), TIME: ("rebuilt", "missing")}
    assert (root / "t-0" / TIME).read_bytes() == (sound / "t-0" / TIME).read_bytes()
    assert not list((root / "t-0").glob("*.tmp"))


def test_unreadable_index_is_not_a_problem_of_the_log(root, sound, tmp_path):
    with faults(tmp_path, Fault("read", f"*/{INDEX}", times=None, error="EIO")):
        report = run(root, "in_place")
    assert not_same(report) == {INDEX: ("rebuilt", "wrong")}
    assert read_tree(root) == read_tree(sound)


def test_full_disk_is_an_environment_error(root, capsys):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    (root / "t-0" / segment_file(0, "index")).write_bytes(b"x")
    with at_step("side file flushed", full):
        assert cli.main(["reindex", str(root), "--in-place", "--json"]) == ENVIRONMENT
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["path"]) == ("OutputFullError", "somewhere")
    assert (root / "t-0" / segment_file(0, "index")).read_bytes() == b"x"
    assert not list((root / "t-0").glob("*.tmp"))


def test_files_with_a_read_back_mismatch_are_not_renamed(root):
    (root / "t-0" / INDEX).write_bytes(b"x")
    with at_step("side file flushed", lambda: flip(next((root / "t-0").glob(f"{INDEX}.*")), 0)):
        report = run(root, "in_place")
    assert not_same(report) == {INDEX: ("impossible", "readback")}
    assert (root / "t-0" / INDEX).read_bytes() == b"x"


def test_temporary_files_of_a_killed_run_are_removed(root, sound):
    left = root / "t-0" / (INDEX + reindex_write.LEFTOVER)
    left.write_bytes(b"half")
    report = run(root, "in_place")
    assert not left.exists()
    assert any("removed 1 file that a killed run left" in n for p in report.partitions for n in p.notes)
    assert read_tree(root) == read_tree(sound)


# -- a broker


_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
_TRY = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)
"""


@pytest.fixture
def held_by_broker(root):
    (root / ".lock").write_bytes(b"")
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(root / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    yield root
    holder.communicate()


def test_in_place_is_refused_for_a_directory_locked_by_a_broker(held_by_broker, capsys):
    (held_by_broker / "t-0" / INDEX).unlink()
    before = tree(held_by_broker)
    assert cli.main(["reindex", str(held_by_broker), "--in-place", "--json"]) == CONFLICT
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "LogDirectoryInUseError"
    assert "stop the broker" in error["hint"]
    assert tree(held_by_broker) == before


def test_log_of_a_running_broker_is_read_up_to_the_high_watermark(held_by_broker):
    (held_by_broker / "replication-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    (held_by_broker / "t-0" / segment_file(10, "index")).write_bytes(bytes(800))
    (held_by_broker / "t-0" / INDEX).write_bytes(bytes(800))
    report = run(held_by_broker)
    assert not_same(report) == {INDEX: ("differs", "padded")}
    assert any("those that end below the high watermark 12" in n for n in report.partitions[0].notes)
    assert not any("left alone" in n for n in report.partitions[0].notes)
    run(held_by_broker, "output")
    names = {p.name for p in (held_by_broker.parent / "output/t-0").iterdir()}
    assert names == {
        segment_file(0, "index"),
        segment_file(0, "timeindex"),
        segment_file(0, "txnindex"),
        INDEX,
        TIME,
        segment_file(5, "snapshot"),
    }


def test_replacing_files_locks_out_brokers_and_other_runs(root):
    lock = root / ".lock"
    lock.write_bytes(b"")
    with locked([root]):
        assert subprocess.run([sys.executable, "-c", _TRY, str(lock)], check=False).returncode == 7
        with raises_kind(LOG_DIRECTORY_IN_USE, match="another run"), locked([root]):
            pass
        assert subprocess.run([sys.executable, "-c", _TRY, str(lock)], check=False).returncode == 7
    assert subprocess.run([sys.executable, "-c", _TRY, str(lock)], check=False).returncode == 0


@pytest.mark.parametrize("before", [TEXT[: TEXT.rindex(" |")], TEXT[: TEXT.rindex(" ||")]], ids=["grown", "rolled"])
def test_appends_of_a_broker_before_the_lock_is_acquired_are_no_damage(before, root, tmp_path, monkeypatch):
    """Appends of the broker are no damage, although its indexes cover more than the listed log."""
    archive = tmp_path / "before"
    write_partition(archive / "t-0", before, index_interval_bytes=0)

    def come_and_go(directories):
        shutil.rmtree(archive / "t-0")
        shutil.copytree(root / "t-0", archive / "t-0")
        return locked(directories)

    monkeypatch.setattr(reindex, "locked", come_and_go)
    report = run(archive, "in_place")
    assert read_tree(archive) == read_tree(root)
    assert (not_same(report), report.partitions[0].segments) == ({}, len(BASES))


def test_reindex_creates_no_lock_file(root):
    (root / "t-0" / INDEX).unlink()
    run(root, "in_place")
    assert not (root / ".lock").exists()


# -- the command line


def test_problem_of_each_kind_has_a_text():
    """A post of --notify has it; reindex has kinds that no error of a log has."""
    problem = Problem("torn", "t-0/x.index", 3, "entries of 8 bytes", "2 bytes at the end")
    assert str(problem) == "t-0/x.index at byte 3: torn: expected entries of 8 bytes, found 2 bytes at the end"


def test_report_is_written_as_json(root, capsys):
    (root / "t-0" / INDEX).write_bytes((root / "t-0" / INDEX).read_bytes() + bytes(10))
    config = root.parent / "c.toml"
    config.write_text('[defaults]\n"index.interval.bytes" = 0\n')
    assert cli.main(["reindex", str(root), "--check", "--json", "--config", str(config)]) == PROBLEMS
    report = json.loads(capsys.readouterr().out)
    assert (report["job"], report["mode"], report["output"], report["exit_code"]) == (
        "reindex",
        "check",
        None,
        PROBLEMS,
    )
    (partition,) = report["partitions"]
    assert (partition["topic"], partition["partition"], partition["path"]) == ("t", 0, "t-0")
    assert len(partition["files"]) == 12
    (wrong,) = [f for f in partition["files"] if f["status"] != "same"]
    size = (root / "t-0" / INDEX).stat().st_size
    assert wrong == {
        "path": f"t-0/{INDEX}", "kind": "index", "status": "differs", "reason": "torn", "position": size - 2,
        "entry": (size - 2) // 8, "expected": "entries of 8 bytes", "found": "2 bytes at the end", "bytes": size - 10,
        "log": "",
    }  # fmt: skip
    totals = report["totals"]
    logs = sum((root / "t-0" / segment_file(base, "log")).stat().st_size for base in BASES)
    assert (totals["files"], totals["same"], totals["differs"], totals["reasons"]) == (12, 11, 1, {"torn": 1})
    assert totals["log_bytes"] == logs < totals["bytes_read"]
    assert cli.main(["reindex", str(root), "--in-place", "--config", str(config)]) == DONE
    text = capsys.readouterr().out
    assert f"rebuilt: t-0/{INDEX}: torn at byte {size - 2} (entry {(size - 2) // 8}): expected entries of 8" in text
    assert "12 files of 3 segments: 11 same, 1 rebuilt (1 torn)" in text
    assert cli.main(["reindex", str(root), "--check", "--config", str(config)]) == DONE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --check"),
        (["--check", "--in-place"], "one of --check"),
        (["--check", "--output", "x"], "one of --check"),
        (["--check", "--partition", "3-1"], "such as 0,3-5"),
        (["--check", "--partition", "a"], "such as 0,3-5"),
        (["--check", "--partition", "1,"], "such as 0,3-5"),
        (["--output", "{root}/inside"], "outside of it"),
        (["--output", "{root}"], "outside of it"),
        (["--output", "{full}"], "expected an empty or absent folder"),
    ],
)
def test_wrong_usage_is_refused_and_changes_no_file(arguments, message, root, capsys):
    full = root.parent / "full"
    full.mkdir()
    (full / "x").write_bytes(b"")
    before = tree(root)
    words = [word.format(root=root, full=full) for word in arguments]
    assert cli.main(["reindex", str(root), *words]) == USAGE
    assert message in capsys.readouterr().err
    assert tree(root) == before


def test_missing_archive_is_a_usage_error(tmp_path, capsys):
    assert cli.main(["reindex", str(tmp_path / "nowhere"), "--check"]) == USAGE


def test_topics_and_partitions_options_select_partitions(tmp_path):
    root = tmp_path / "archive"
    for folder in ("a-0", "a-1", "a-3", "a-4", "a-5", "b-0"):
        write_partition(root / folder, "a=1")
    chosen = run(root, topics=TopicFilter(("a",)), partitions=(range(1), range(3, 5)))
    assert [p.path for p in chosen.partitions] == ["a-0", "a-3", "a-4"]
    with pytest.raises(UsageError, match="no partition has one of these numbers; there are 0, 1, 3, 4, 5"):
        run(root, partitions=(range(9, 10),))
    with pytest.raises(UsageError, match="matches c; there are a, b"):
        run(root, topics=TopicFilter(("c",)))


def test_duplicate_partition_is_not_changed(root, tmp_path):
    shutil.copytree(root / "t-0", root / "disk" / "t-0")
    (root / "disk/t-0" / INDEX).unlink()
    before = tree(root)
    report = run(root, "in_place")
    assert report.exit_code == PROBLEMS
    assert [(f.status, f.reason) for f in report.files] == [("impossible", "duplicate")]
    assert tree(root) == before


@pytest.mark.parametrize("skip_crc", [False, True])
def test_skip_crc_gives_the_same_and_ignores_a_wrong_checksum(root, skip_crc):
    good = read_tree(root)
    for kind in ("index", "timeindex", "txnindex", "snapshot"):
        for path in files_in(root / "t-0", f"*.{kind}"):
            path.unlink()
    _flip(root / "t-0" / segment_file(5, "log"), 70)
    report = run(root, "in_place", skip_crc=skip_crc)
    assert report.exit_code == (DONE if skip_crc else PROBLEMS)
    files = read_tree(root)
    del files[f"t-0/{segment_file(5, 'log')}"]
    if skip_crc:
        assert files == {path: data for path, data in good.items() if path in files}
        assert set(good) - set(files) == {f"t-0/{segment_file(5, 'log')}"}


def test_time_index_interval_of_a_minute_is_used(tmp_path):
    root = tmp_path / "archive"
    batches = " | ".join(f"{{ts={START_MS - START_MS % 60_000 + 20_000 * i}}} a={i}" for i in range(10))
    write_partition(root / "t-0", batches, index_interval_bytes=0)
    config = parse_config({"defaults": {"index.interval.bytes": 0, "time.index.interval.ms": 60_000}})
    assert not_same(run(root, config=config)) == {segment_file(0, "timeindex"): ("differs", "other_entries")}
    run(root, "output", config=config)
    written = root.parent / "output/t-0" / segment_file(0, "timeindex")
    times = struct.unpack(">" + "qi" * 4, written.read_bytes())
    shutil.copyfile(written, root / "t-0" / written.name)
    assert list(times[1::2]) == [1, 3, 6, 9]
    assert not_same(run(root)) == {segment_file(0, "timeindex"): ("differs", "other_entries")}


@pytest.mark.spark
@pytest.mark.slow
def test_spark_writes_the_same_files_as_threads(spark, root, monkeypatch):
    for path in files_in(root / "t-0", "*index"):
        path.unlink()
    alone = run(root, "output")
    monkeypatch.setattr(reindex, "_TASK_BYTES", 0)
    monkeypatch.setattr(reindex, "_WAVE_TASKS", 1)
    report = run(root, "output", output=str(root.parent / "second"), engine="spark")
    assert report.work.tasks and not alone.work.tasks
    assert [p.files for p in report.partitions] == [p.files for p in alone.partitions]
    assert read_tree(root.parent / "output") == read_tree(root.parent / "second")


# -- what real brokers wrote


def _config(case):
    names = ("index.interval.bytes", "segment.index.bytes")
    return parse_config({"defaults": {key: case.settings[key] for key in names if key in case.settings}})


@pytest.mark.parametrize("case", case_names())
def test_intact_files_of_a_broker_have_no_findings(case, cases):
    folders = [cases[case].folder / "input", *(cases[case].folder / f"expected{n}" for n in PASSES)]
    for folder in folders:
        report = run(folder, config=_config(cases[case]))
        assert report.exit_code == DONE, report.to_text()
        assert {f.reason for f in report.files} <= {"", "other_entries"}
        if folder.name == "input" and case not in DIFFER and not case.endswith("-more"):
            assert not_same(report) == {}


@pytest.mark.parametrize("case", case_names())
def test_files_of_a_broker_are_rebuilt_from_its_logs_alone(case, cases, tmp_path):
    for partition in cases[case].partitions:
        shutil.copytree(cases[case].input(partition), tmp_path / "archive" / partition)
    expected = read_tree(tmp_path / "archive")
    for path in expected:
        if not path.endswith((".log", "partition.metadata")):
            (tmp_path / "archive" / path).unlink()
    assert run(tmp_path / "archive", "output", config=_config(cases[case])).exit_code == DONE
    made = read_tree(tmp_path / "output")
    expected = {p: data for p, data in expected.items() if not p.endswith((".log", "partition.metadata"))}
    assert set(made) <= set(expected)
    differ, lost = set(), {path.rpartition(".")[2] for path in set(expected) - set(made)}
    for path, data in made.items():
        kind = path.rpartition(".")[2]
        if kind == "snapshot":
            same = producer_snapshot.same_entries(*(producer_snapshot.read(d, path) for d in (data, expected[path])))
        else:
            same = data == expected[path]
        differ |= set() if same else {kind}
    assert differ == DIFFER.get(case, set())
    assert lost == LOST.get(case, set())


def test_a_time_index_that_ends_early_is_reported_from_its_missing_entry(tmp_path, capsys):
    """The wrong index has as many entries as the right one, which covers the whole log."""
    write_partition(tmp_path / "t-0", "{ts=1} a=1 | {ts=2} b=1")
    index = tmp_path / "t-0" / segment_file(0, "timeindex")
    assert index.read_bytes() == struct.pack(">qi", 2, 1)
    index.write_bytes(struct.pack(">qi", 1, 0))
    assert cli.main(["reindex", str(tmp_path), "--check"]) == PROBLEMS
    assert "stale at byte 12 (entry 1): expected timestamp 2 at offset 1, found no entry" in capsys.readouterr().out


def snapshots(report):
    return {reason for name, reason in not_same(report).items() if name.endswith(".snapshot")}


def test_snapshot_may_have_the_last_batch_of_a_producer_removed_by_retention(tmp_path):
    """The log has only a marker of the producer."""
    folder = tmp_path / "t-0"
    write_partition(folder, "{pid=7 txn} a=1 || {pid=7 commit} | b=1 || c=1 || d=1", index_interval_bytes=0)
    for path in folder.glob("00000000000000000000.*"):
        path.unlink()
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 1\n")
    report = run(tmp_path)
    assert (report.exit_code, snapshots(report)) == (0, {("differs", "other_entries")})


@pytest.mark.parametrize(
    ("emptied", "wrong"), [("{txn control pid=7 epoch=1 base=1 last=1}", False), ("{pid=7 abort}", True)]
)
def test_snapshot_may_have_an_emptied_marker(tmp_path, emptied, wrong):
    """The cleaner keeps the marker's batch, so no offset is missing. With its record the batch has all information."""
    folder, other = tmp_path / "archive" / "t-0", tmp_path / "other" / "t-0"
    write_partition(folder, "a=1 | {pid=7 epoch=1 abort} || b=1 || c=1", index_interval_bytes=0)
    write_partition(other, f"a=1 | {emptied} || b=1 || c=1", index_interval_bytes=0)
    for path in files_in(other, f"{0:020d}.*"):
        shutil.copy(path, folder)
    report = run(tmp_path / "archive")
    assert report.exit_code == (PROBLEMS if wrong else DONE)
    assert snapshots(report) == {("differs", "wrong") if wrong else ("differs", "other_entries")}
