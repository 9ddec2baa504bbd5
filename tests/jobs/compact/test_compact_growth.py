"""An archive that changes between runs: it grows, loses compacted segments, or is replaced by another log.

Each scenario is a topic of its own in one archive, so that few runs show them all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest

from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import (
    COMPACT,
    HOUR,
    Lab,
    borders,
    by_topic,
    contents,
    cut,
    offset_checkpoint,
    only_input,
    put,
)
from tests.builders.trees import files_in, tree, tree_without_runs
from tests.reference.log import decode_log

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# topic -> (golden case, whole segments at first, batches of the next one): read once in two steps, once whole
GROWN = {
    "g-none": ("none-tomb", 2, 3),
    "g-txn": ("txn-none", 1, 57),
    "g-zstd": ("txn-zstd", 2, 33),
    "g-idem": ("idem-active", 3, 2),
    "g-old": ("v1-gzip-append", 1, 11),
    "g-gone": ("snappy-zipf", 2, 2),  # compacted segments are deleted from the archive
    "g-still": ("zstd-headers", 3, 1),  # grows not at all
    "s-none": ("none-tomb", 1, 3),  # --sealed at first: the generation ends inside a segment
    "s-txn": ("txn-none", 2, 40),
    "s-gone": ("lz4-append", 1, 5),
}
SET_ASIDE = {
    "d-gap": "gap",
    "d-lost": "gap",  # the segment that the generation uses
    "d-back": "diverged",
    "d-short": "diverged",
    "d-recreated": "diverged",
    "d-cluster": "diverged",
    "d-other": "diverged",
}


@dataclass
class Seen:
    """Actions of one run, and the store that it left."""

    report: object
    found: dict
    checkpoints: dict
    manifests: dict
    states: dict


def _seen(lab, report):
    state = lab.state()
    return Seen(report, by_topic(report), *state.current(), state.states())


@contextlib.contextmanager
def _broker(lock):
    """Start another process that holds a log directory as a broker does."""
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True);"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        yield
    finally:
        process.communicate()


def _replace_last_batch(log, before):
    """Put another last batch below a position: same length and offsets, another value, a valid checksum."""
    import google_crc32c

    data, stat = bytearray(log.read_bytes()), log.stat()
    start, end = ([0, *borders(bytes(data))][-2:]) if before is None else before
    data[end - 3] ^= 0x01
    data[start + 17 : start + 21] = google_crc32c.value(bytes(data[start + 21 : end])).to_bytes(4, "big")
    log.write_bytes(data)
    os.utime(log, ns=(stat.st_mtime_ns, stat.st_mtime_ns))


@pytest.fixture(scope="module")
def grown(spark, cases, now_ms, tmp_path_factory):
    lab = Lab(spark, tmp_path_factory.mktemp("grown"))
    lab.settings = {"defaults": COMPACT, "topics": {"g-*": {"segment.bytes": 65536}}}
    top = lab.archive / "disk"

    def source(topic):
        return only_input(cases[GROWN[topic][0]])

    # -- before the first run
    for topic, (_, segments, batches) in GROWN.items():
        put(source(topic), top / f"{topic}-0", segments=segments, batches=batches)
    small, idem = only_input(cases["two-parts"]), only_input(cases["idem-active"])
    for topic in ("d-gap", "d-lost", "d-back", "d-short", "d-recreated", "d-other"):
        put(idem, top / f"{topic}-0", segments=4, batches=3)
    directories = {
        name: lab.archive / name for name in ("cluster", "start", "start2", "marked", "held", "heldmute", "late")
    }
    put(idem, directories["cluster"] / "d-cluster-0", segments=4, batches=3)
    (directories["cluster"] / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    put(idem, directories["start"] / "h-covered-0", segments=4, batches=3)
    put(idem, directories["start2"] / "h-covered2-0", segments=4, batches=3)
    put(idem, directories["marked"] / "h-marked-0")
    bases = [int(log.stem) for log in files_in(idem)]
    mark = bases[4] + 130  # inside a batch of the fifth segment
    offset_checkpoint(directories["marked"] / "replication-offset-checkpoint", {"h-marked-0": mark})
    put(idem, directories["held"] / "h-held-0")
    offset_checkpoint(directories["held"] / "replication-offset-checkpoint", {"h-held-0": mark})
    put(idem, directories["heldmute"] / "h-mute-0")
    put(idem, directories["late"] / "h-late-0", segments=4, batches=3)
    put(idem, top / "h-torn-0", segments=4, batches=3)
    cut(files_in(top / "h-torn-0")[-1], 3)
    data = files_in(idem)[4].read_bytes()
    torn = files_in(top / "h-torn-0")[-1]
    torn.write_bytes(data[: borders(data)[2] + 40])
    put(idem, top / "s-torn-0", segments=2, batches=2)
    torn = files_in(top / "s-torn-0")[-1]
    torn.write_bytes(torn.read_bytes() + b"\x00" * 25)

    before = tree(lab.archive)
    with _broker(directories["held"] / ".lock"), _broker(directories["heldmute"] / ".lock"):
        held = tree(lab.archive)
        first = _seen(lab, lab.run(now_ms, topics=TopicFilter(("[!s]*",))))
        assert tree(lab.archive) == held
        locked = lab.run(now_ms, topics=TopicFilter(("h-held",)), sealed=True)
    sealed = _seen(lab, lab.run(now_ms, topics=TopicFilter(("s-*",)), sealed=True))
    for name in ("held", "heldmute"):
        (directories[name] / ".lock").unlink()
    assert {k: v[0] for k, v in tree(lab.archive).items()} == {k: v[0] for k, v in before.items()}

    # -- between the runs
    for topic in GROWN:
        if topic == "g-still":
            continue
        folder = put(source(topic), top / f"{topic}-0")
        if topic.endswith("gone"):
            kept = GROWN[topic][1]
            for log in files_in(folder)[:kept]:
                for path in files_in(folder, f"{log.stem}.*"):
                    path.unlink()
        put(source(topic), top / f"w{topic}-0")  # the same log whole, seen for the first time
        if topic.endswith("gone"):
            assert int(files_in(folder)[0].stem) > 0
    still = files_in(top / "g-still-0")[0]  # a reader would report this damage
    times = still.stat()
    still.write_bytes(b"\xff" * times.st_size)
    os.utime(still, ns=(times.st_mtime_ns, times.st_mtime_ns))

    for topic in SET_ASIDE:
        if topic != "d-cluster":
            put(idem, top / f"{topic}-0")
    put(idem, directories["cluster"] / "d-cluster-0")
    for number in (4, 5):  # the generation has segments 0 to 3, and three batches of segment 4
        _remove(files_in(top / "d-gap-0")[number if number == 4 else 4])
    _remove(files_in(top / "d-lost-0")[4])
    cut(files_in(top / "d-back-0")[4], 2)
    for log in files_in(top / "d-back-0")[5:]:
        _remove(log)
    for log in files_in(top / "d-short-0")[3:]:
        _remove(log)
    (top / "d-recreated-0" / "partition.metadata").write_text("version: 0\ntopic_id: BBBBBBBBBBBBBBBBBBBBBA")
    (directories["cluster"] / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=CCCCCCCCCCCCCCCCCCCCCA\n")
    fourth = files_in(top / "d-other-0")[4]
    at = borders(fourth.read_bytes())
    _replace_last_batch(fourth, (at[1], at[2]))
    for name, topic in (("start", "h-covered"), ("start2", "h-covered2")):
        folder = put(idem, directories[name] / f"{topic}-0")
        for log in files_in(folder)[:6]:  # retention took them, the active segment of the first run among them
            _remove(log)
        offset_checkpoint(directories[name] / "log-start-offset-checkpoint", {f"{topic}-0": bases[6] + 10})
    offset_checkpoint(directories["start2"] / "log-start-offset-checkpoint", {"h-covered2-0": bases[6] - 10})
    for name in ("marked", "held"):
        offset_checkpoint(directories[name] / "replication-offset-checkpoint", {f"h-{name}-0": bases[-1] + 1})
    put(idem, directories["late"] / "h-late-0")  # a high watermark below what was taken when nothing was known of it
    offset_checkpoint(directories["late"] / "replication-offset-checkpoint", {"h-late-0": bases[2]})
    shutil.copy2(files_in(idem)[4], files_in(top / "h-torn-0")[-1])
    put(idem, top / "h-torn-0")
    put(idem, top / "wh-idem-0")
    put(small, top / "new-0")

    grown_before = tree(lab.archive)
    asked = []
    real = SparkTasks.run

    def counting(self, function, items, *more):
        asked.extend(item.input.topic for item in items)
        return real(self, function, items, *more)

    SparkTasks.run = counting
    try:
        second = _seen(lab, lab.run(now_ms))
    finally:
        SparkTasks.run = real
    assert tree(lab.archive) == grown_before
    return lab, first, locked, sealed, second, asked


def _remove(log):
    for path in files_in(log.parent, f"{log.stem}.*"):
        path.unlink()


@pytest.mark.parametrize("topic", [t for t in GROWN if t != "g-still"])
def test_two_runs_leave_the_same_as_one(grown, topic):
    """A reader finds the same batches with records and the same ranges. Not the same: in which segment a batch
    lies (segments are grouped by their sizes before the run), and horizons of batches that hold no tombstone any more.
    Empty batches are those of producers' last ones in both.
    """
    lab, first, _, sealed, second, _ = grown
    begun = sealed if topic.startswith("s-") else first
    key, whole = (topic, 0), (f"w{topic}", 0)
    assert begun.found[topic].status == second.found[topic].status == "cleaned", begun.found[topic].problem
    assert (begun.checkpoints[key].generation, second.checkpoints[key].generation) == (1, 2)
    assert second.found[topic].cleanable.first_dirty_offset == begun.checkpoints[key].first_dirty_offset
    assert begun.checkpoints[key].first_dirty_offset > 0
    one, two = second.checkpoints[whole], second.checkpoints[key]
    assert (one.next_offset, one.first_dirty_offset, one.log_start_offset) == (
        two.next_offset, two.first_dirty_offset, two.log_start_offset,
    )  # fmt: skip
    assert (one.last_batch_base_offset, one.last_batch_crc) == (two.last_batch_base_offset, two.last_batch_crc)
    for each in (key, whole):
        lab.check_whole(second.manifests[each])
    cleaned = [[s for s in second.manifests[each] if s.cleaned] for each in (key, whole)]
    in_steps, at_once = (lab.batches(segments) for segments in cleaned)
    if topic == "g-old":  # magic 0 and 1 lose their range of offsets when they are converted, and so in each step some
        assert [b.records for b in in_steps if b.records] == [b.records for b in at_once if b.records]
    else:
        assert contents(in_steps) == contents(at_once)
        assert [(b.base_offset, b.last_offset) for b in in_steps] == [(b.base_offset, b.last_offset) for b in at_once]
    tombstones = [
        [(r.offset, b.delete_horizon) for b in batches for r in b.records if r.value is None]
        for batches in (in_steps, at_once)
    ]
    assert tombstones[0] == tombstones[1]
    snapshots = [_snapshot(lab, second.checkpoints[each]) for each in (key, whole)]
    assert snapshots[0] == snapshots[1]


def _snapshot(lab, checkpoint):
    """Return the producers at the log end."""
    from lastkey.logformat.side_files import producer_snapshot

    folder = lab.store / "segments" / f"{checkpoint.topic}-{checkpoint.partition}"
    path = folder / f"{checkpoint.generation}-{checkpoint.run_id}" / f"{checkpoint.next_offset:020d}.snapshot"
    return sorted(producer_snapshot.read(path.read_bytes(), str(path)).tolist())


def test_next_run_continues_inside_a_segment(grown):
    """--sealed, then the segment grows: its rest is cut off where the generation ends, and becomes ours."""
    lab, _, _, sealed, second, _ = grown
    for topic in ("s-none", "s-gone"):
        border = sealed.checkpoints[topic, 0].next_offset
        assert border == sealed.checkpoints[topic, 0].first_dirty_offset
        assert {s.root for s in sealed.manifests[topic, 0]} == {"store"}
        named = {int(log.stem) for log in files_in(lab.archive / "disk" / f"{topic}-0")}
        assert border not in named
        assert second.found[topic].cleanable.first_dirty_offset == border
    # a transaction was open at the end: its segment was not cleaned, and is the archive's still
    assert sealed.checkpoints["s-txn", 0].first_dirty_offset < sealed.checkpoints["s-txn", 0].next_offset
    assert sealed.manifests["s-txn", 0][-1].root == "archive"


def test_generation_keeps_records_removed_from_the_archive(grown):
    lab, _, _, _, second, _ = grown
    manifest = second.manifests["g-gone", 0]
    assert manifest[0].base_offset == 0
    assert lab.batches(manifest)[0].base_offset < int(files_in(lab.archive / "disk" / "g-gone-0")[0].stem)


def test_unchanged_partition_is_not_read(grown):
    _, first, _, _, second, asked = grown
    assert second.found["g-still"].status == "not_due"
    assert "g-still" not in asked
    assert second.checkpoints["g-still", 0] == first.checkpoints["g-still", 0]
    assert second.states["g-still", 0].generation == 1
    assert second.states["g-still", 0].state == "clean"


@pytest.mark.parametrize("topic", SET_ASIDE)
def test_replaced_log_is_uncleanable(grown, topic):
    _, first, _, _, second, _ = grown
    result = second.found[topic]
    assert first.found[topic].status == "cleaned"
    assert result.status == "uncleanable", result
    assert result.problem.state == SET_ASIDE[topic], result.problem
    assert result.problem.expected and result.problem.found
    assert "--reset" in result.problem.hint
    assert (second.states[topic, 0].state, second.states[topic, 0].generation) == (SET_ASIDE[topic], 1)
    assert second.checkpoints[topic, 0] == first.checkpoints[topic, 0]
    assert second.report.exit_code == 3


def test_offsets_below_the_log_start_are_no_gap(grown):
    lab, first, _, _, second, _ = grown
    result = second.found["h-covered"]
    assert result.status == "cleaned", result.problem
    before, after = first.checkpoints["h-covered", 0], second.checkpoints["h-covered", 0]
    assert before.log_start_offset == 0
    assert after.log_start_offset > before.next_offset
    lab.check_whole(second.manifests["h-covered", 0])
    assert second.found["h-covered2"].problem.state == "gap"  # the checkpoint lies below the first segment


def test_high_watermark_limits_the_run(grown, cases):
    lab, first, _, _, second, _ = grown
    idem = only_input(cases["idem-active"])
    fifth = files_in(idem)[4]
    mark = int(fifth.stem) + 130
    below = [b for b in decode_log(fifth.read_bytes()) if b.last_offset < mark]
    for topic in ("h-marked", "h-held"):
        checkpoint = first.checkpoints[topic, 0]
        assert checkpoint.next_offset == below[-1].last_offset + 1
        assert checkpoint.first_dirty_offset == int(fifth.stem)  # its segment counts as the active one
        assert any("high watermark" in note for note in first.found[topic].notes)
        assert second.found[topic].status == "cleaned", second.found[topic].problem
        want = second.checkpoints["wh-idem", 0]
        got = second.checkpoints[topic, 0]
        assert (got.next_offset, got.first_dirty_offset) == (want.next_offset, want.first_dirty_offset)
        cleaned = [[s for s in second.manifests[t, 0] if s.cleaned] for t in (topic, "wh-idem")]
        assert contents(lab.batches(cleaned[0])) == contents(lab.batches(cleaned[1]))


def test_decreased_high_watermark_leaves_the_generation_unchanged(grown):
    """The checkpoint is older than the log beside it: the run reads nothing new, and the generation remains valid."""
    _, first, _, _, second, _ = grown
    assert first.found["h-late"].status == "cleaned"
    assert second.found["h-late"].status == "not_due", second.found["h-late"].problem
    assert second.checkpoints["h-late", 0] == first.checkpoints["h-late", 0]


def test_archive_of_a_running_broker_is_read_up_to_the_high_watermark(grown):
    """A running broker holds `.lock`. Only data below a high watermark checkpoint is read; with `--sealed` the
    partition is uncleanable.
    """
    _, first, locked, _, second, _ = grown
    assert any("a running broker holds it" in note for note in first.report.notes)
    assert first.found["h-mute"].status == "not_due"
    assert first.found["h-mute"].work.bytes_read == 0
    assert ("h-mute", 0) not in first.checkpoints
    assert second.found["h-mute"].status == "cleaned"
    assert [(r.status, r.problem.kind) for r in locked.results] == [("uncleanable", "unreadable")]
    assert "broker" in locked.results[0].problem.found


def test_torn_tail_ends_the_log(grown):
    lab, first, _, sealed, second, _ = grown
    result = first.found["h-torn"]
    assert result.status == "cleaned"
    assert any("torn tail, the last 40 bytes" in note for note in result.notes)
    assert second.found["h-torn"].status == "cleaned", second.found["h-torn"].problem
    cleaned = [[s for s in second.manifests[t, 0] if s.cleaned] for t in ("h-torn", "wh-idem")]
    assert contents(lab.batches(cleaned[0])) == contents(lab.batches(cleaned[1]))
    problem = sealed.found["s-torn"].problem
    assert (problem.kind, problem.found) == ("torn_tail", "25 bytes that are not a whole batch")


def test_reset_starts_over_only_diverged_partitions(grown, now_ms):
    """A reset affects only partitions that have diverged. A partition whose compacted segments have left the archive
    would lose all of them.
    """
    lab, first, _, _, second, _ = grown
    histories = lab.state().histories()
    third = _seen(
        lab,
        lab.run(
            now_ms, topics=TopicFilter(("[dg]*",)), reset=TopicFilter(("*",)), overrides={"gaps": "accept"}, force=True
        ),
    )
    assert third.found["g-gone"].status == "cleaned"
    assert third.manifests["g-gone", 0][0].base_offset == 0
    assert contents(lab.batches(third.manifests["g-gone", 0])) == contents(lab.batches(second.manifests["g-gone", 0]))
    again = lab.state().histories()
    whole = second.manifests["wh-idem", 0]
    for topic in SET_ASIDE:
        assert third.found[topic].status == "cleaned", (topic, third.found[topic].problem)
        assert third.checkpoints[topic, 0].generation == 2
        assert third.states[topic, 0].state == "clean"
        assert bool(third.checkpoints[topic, 0].gaps) == (topic in ("d-gap", "d-lost"))  # gaps in the present archive
        before = first.checkpoints[topic, 0].run_id
        assert [(run.parent_run_id, run.reset) for run in again[topic, 0]] == [(before, True), (None, False)]
        assert f"started over: {topic}-0: generation 2" in third.report.to_text()
        assert len(histories[topic, 0]) == 1
        lab.check_whole(third.manifests[topic, 0])
    for topic in ("d-recreated", "d-cluster"):  # the same bytes under another name: the same result
        assert contents(lab.batches(third.manifests[topic, 0])) == contents(lab.batches(whole))
    assert third.checkpoints["d-recreated", 0].topic_id == "BBBBBBBBBBBBBBBBBBBBBA"
    assert third.checkpoints["d-cluster", 0].cluster_id == "CCCCCCCCCCCCCCCCCCCCCA"
    assert third.checkpoints["d-back", 0].next_offset < first.checkpoints["d-back", 0].next_offset


def test_force_cleans_tombstones_past_their_horizon(cases, now_ms, tmp_path):
    """The same clock keeps the same batches (without transactions); a later one lets go what its horizon held, as the
    broker's cleaner does; time passes 25 hours between the passes there too.
    """
    lab = Lab(None, tmp_path)
    names = ("none-tomb", "txn-none", "v0-none")
    for name in names:
        put(only_input(cases[name]), lab.archive / f"{name}-0")
    own = {name: {"segment.bytes": cases[name].settings["segment.bytes"]} for name in names}
    lab.settings = {"defaults": COMPACT, "topics": own}
    lab.run(now_ms)
    before, manifests = lab.state().current()
    nothing = lab.run(now_ms + HOUR)  # a later clock alone makes nothing due
    assert {r.status for r in nothing.results} == {"not_due"}
    lab.run(now_ms, topics=TopicFilter(("none-*",)), force=True)
    after, again = lab.state().current()
    assert after["none-tomb", 0].generation == 2
    assert lab.batches(again["none-tomb", 0]) == lab.batches(manifests["none-tomb", 0])
    assert replace(after["none-tomb", 0], generation=1, run_id="") == replace(before["none-tomb", 0], run_id="")
    report = lab.run(now_ms + 25 * HOUR, force=True)
    assert {r.status for r in report.results} == {"cleaned"}
    _, last = lab.state().current()
    for name in names:
        partition = cases[name].partitions[0]
        want = [b for log in files_in(cases[name].expected(2, partition))[:-1] for b in decode_log(log.read_bytes())]
        got = lab.batches([s for s in last[name, 0] if s.cleaned])
        assert contents(got) == contents(want)
        assert [(b.base_offset, b.last_offset) for b in got] == [(b.base_offset, b.last_offset) for b in want]
    assert by_topic(report)["none-tomb"].work.counters["dropped_tombstones"] > 0


def test_run_without_new_records_reads_few_bytes(spark, cases, now_ms, tmp_path, monkeypatch):
    lab = Lab(spark, tmp_path)
    put(only_input(cases["two-parts"]), lab.archive / "t-0")
    lab.run(now_ms)
    before = tree_without_runs(lab.store)

    def none(*_arguments, **_options):
        raise AssertionError("nothing is due, and Spark is started")

    monkeypatch.setattr("lastkey.jobs.spark.session.start", none)
    began = time.perf_counter()
    report = lab.run(now_ms)
    assert [(r.status, r.work.bytes_read) for r in report.results] == [("not_due", 0)]
    assert tree_without_runs(lab.store) == before  # not even the partition's state is written again
    assert time.perf_counter() - began < 60
