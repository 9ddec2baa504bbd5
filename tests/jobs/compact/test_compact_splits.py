"""All ways of finding the last offset of each key, in one task, in stages and in several, leave the same bytes."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from functools import partial

import google_crc32c
import numpy as np
import pytest

from lastkey.jobs.compact.large import compact_large, on_spark
from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.store.paths import MANIFEST
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import COMPACT, HOUR, Lab, by_topic, only_input, put
from tests.builders.faults import Fault, faults, happened
from tests.builders.folders import archived_at, golden_plan
from tests.builders.plans import changed
from tests.builders.trees import files_in
from tests.reference.log import data_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Magic 0, 1 and 2, all kinds of transactions, groups of several segments, and groups of which nothing stays (few-keys)
CASES = ("few-keys", "none-tomb", "txn-none", "txn-hang", "v0-none", "v1-gzip-append", "zstd-headers")

LARGE = {"split.bytes": 1, "split.by": "always"}


def files(lab, checkpoints):
    """Return the current generation's files of every partition, without the manifests, which name the run."""
    out = {}
    for (topic, partition), at in checkpoints.items():
        folder = lab.store / "segments" / f"{topic}-{partition}" / f"{at.generation}-{at.run_id}"
        out |= {(topic, partition, path.name): path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}
    return out


def rows(manifests):
    """Return the manifests without what names their run."""
    return {key: [replace(s, path=s.path.rpartition("/")[2]) for s in segments] for key, segments in manifests.items()}


def folders(lab):
    return sorted(str(path.relative_to(lab.store / "segments")) for path in files_in(lab.store / "segments", "*/*"))


def test_several_tasks_write_the_same_bytes_as_one(spark, cases, now_ms, tmp_path):
    one, many = Lab(spark, tmp_path), Lab(spark, tmp_path, store_at=tmp_path / "other")
    for name in CASES:
        put(only_input(cases[name]), one.archive / f"{name}-0")
        segments = cases[name].settings["segment.bytes"]
        size = segments if name in ("few-keys", "txn-hang") else 2 * segments  # 1: no joining; 2: groups of some
        one.settings.setdefault("topics", {})[name] = {"segment.bytes": size}
    whole = one.run(now_ms)
    several = many.run(now_ms, settings={**one.settings, "job": LARGE})
    assert whole.exit_code == several.exit_code == 0
    for a, b in zip(whole.results, several.results, strict=True):
        assert (a.work.splits, b.work.splits > 1) == (1, True), a.name()
        assert a.work.counters == b.work.counters, a.name()
        assert (a.notes, a.log.first_dirty_offset) == (b.notes, b.log.first_dirty_offset), a.name()
        same = ("bytes_before", "bytes_after", "bytes_written", "recompressed_bytes")
        assert [getattr(a.work, name) for name in same] == [getattr(b.work, name) for name in same], a.name()
    (at_once, manifest), (in_splits, manifest_of_splits) = one.state().current(), many.state().current()
    assert rows(manifest) == rows(manifest_of_splits)
    ours, theirs = files(one, at_once), files(many, in_splits)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert any(name.endswith(".txnindex") for _, _, name in ours)
    assert len(manifest["few-keys", 0]) < whole.results[0].log.segments_before  # empty groups gave their base away
    # nothing but the generations' folders is left
    assert folders(one) == sorted(f"{t}-{p}/1-{row.run_id}" for (t, p), row in at_once.items())
    assert folders(many) == sorted(f"{t}-{p}/1-{row.run_id}" for (t, p), row in in_splits.items())

    # again, over clean and dirty, at a clock at which horizons have passed; the dry run says the same
    later = now_ms + 25 * HOUR
    names = "[ftvn]*"
    options = {"topics": TopicFilter((names,)), "force": True}
    dry = many.run(later, **options, dry_run=True, settings={**one.settings, "job": LARGE})
    whole = one.run(later, **options)
    several = many.run(later, **options, settings={**one.settings, "job": LARGE})
    for a, b, c in zip(whole.results, several.results, dry.results, strict=True):
        assert a.work.counters == b.work.counters == c.work.counters, a.name()
        assert [(s.base_offset, s.records, s.batches) for s in a.log.segments] == [
            (s.base_offset, s.records, s.batches) for s in c.log.segments
        ]
    assert sum(r.work.counters["dropped_tombstones"] for r in several.results) > 0
    (at_once, manifest), (in_splits, manifest_of_splits) = one.state().current(), many.state().current()
    assert rows(manifest) == rows(manifest_of_splits)
    ours, theirs = files(one, at_once), files(many, in_splits)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_uncleanable_partitions_are_also_uncleanable_when_split(spark, cases, now_ms, tmp_path):
    lab = Lab(spark, tmp_path, settings={"defaults": COMPACT, "job": LARGE})
    put(only_input(cases["few-keys"]), lab.archive / "good-0")
    bad = put(only_input(cases["few-keys"]), lab.archive / "flipped-0")
    log = files_in(bad)[3]
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    nulls = lab.archive / "nulls-0"
    nulls.mkdir()
    records = [(1_000_000, None if i % 2 else b"k%d" % i, b"v") for i in range(10)]
    (nulls / f"{0:020d}.log").write_bytes(data_batch(0, records).data)
    (nulls / f"{10:020d}.log").write_bytes(data_batch(10, [(1_000_000, b"k0", b"v")]).data)
    report = lab.run(now_ms)
    results = by_topic(report)
    assert report.exit_code == 3
    assert results["good"].status == "cleaned"
    assert (results["flipped"].problem.kind, results["flipped"].problem.path) == ("crc", f"flipped-0/{log.name}")
    assert results["nulls"].problem.found == "5 records without one"
    assert [name.partition("/")[0] for name in folders(lab)] == ["good-0"]


@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_too_many_keys_for_a_task_are_cleaned_in_stages(spark, now_ms, tmp_path, engine):
    """64 MiB for a task (the least) are half of it a table of keys: 1.4 million; this partition has more."""
    n, per_batch = 1_700_000, 100_000
    folder = tmp_path / "archive" / "many-0"
    folder.mkdir(parents=True)
    first, second = folder / f"{0:020d}.log", folder / f"{n:020d}.log"
    with first.open("wb") as out:
        for start in range(0, n, per_batch):
            out.write(_numbered(start, per_batch))
    second.write_bytes(data_batch(n, [(1_000_000, b"x", b"y")]).data)
    job = {"task.memory.bytes": 64 << 20, "engine": engine}
    small = Lab(spark, tmp_path, settings={"defaults": COMPACT, "job": job})
    large = Lab(
        spark, tmp_path, settings={"defaults": COMPACT, "job": {"engine": engine}},
        store_at=tmp_path / "other",
    )  # fmt: skip
    dry = small.run(now_ms, dry_run=True)
    assert not small.store.exists()
    report = small.run(now_ms)
    assert [r.status for r in report.results] == ["cleaned"]
    assert all("stages" in r.work.seconds for r in (*dry.results, *report.results))
    assert dry.results[0].work.counters == report.results[0].work.counters
    assert [s.size_bytes for s in dry.results[0].log.segments] == [s.size_bytes for s in report.results[0].log.segments]
    assert all("stages" not in r.work.seconds for r in large.run(now_ms).results)
    (small_at, a), (large_at, b) = small.state().current(), large.state().current()
    assert rows(a) == rows(b)
    assert files(small, small_at) == files(large, large_at)
    assert folders(small) == [f"many-0/1-{small_at['many', 0].run_id}"]
    assert json.loads(small.state().histories()["many", 0][0].seconds)["scan"] > 0


def _numbered(start, n):
    """Return a batch of n records with different keys, made by columns: a loop over records takes half a minute."""
    keys = np.char.zfill(np.arange(start, start + n).astype("S8"), 8)
    # length, attributes, timestamp delta, offset delta (3 bytes), key length, key, value length, value, no headers
    delta = np.arange(n, dtype=np.int64) * 2  # zigzag of a number that is not negative
    record = np.zeros((n, 18), np.uint8)
    record[:, 0] = 17 * 2  # length of what follows
    record[:, 3] = (delta & 0x7F) | 0x80
    record[:, 4] = (delta >> 7 & 0x7F) | 0x80
    record[:, 5] = delta >> 14
    record[:, 6] = 8 * 2
    record[:, 7:15] = np.frombuffer(keys.tobytes(), np.uint8).reshape(n, 8)
    record[:, 15] = 1 * 2
    record[:, 16] = ord("v")
    body = record.tobytes()
    tail = struct.pack(">hiqqqhii", 0, n - 1, 1_000_000, 1_000_000, -1, -1, -1, n) + body
    head = struct.pack(">qiibI", start, 49 + len(body), 0, 2, google_crc32c.value(tail))
    return head + tail


def test_disk_full_at_the_end_discards_the_partition(spark, cases, now_ms, tmp_path):
    """Least of all the segments that wait in folders of their own."""
    lab = Lab(spark, tmp_path, settings={"defaults": COMPACT, "job": LARGE})
    put(only_input(cases["few-keys"]), lab.archive / "t-0")
    full = Fault("create", "*/leader-epoch-checkpoint", error="ENOSPC", times=None)
    with faults(tmp_path, full), pytest.raises(OSError, match="No space left"):
        lab.run(now_ms)
    assert happened(tmp_path) == [1]
    assert list((lab.store / "segments").glob("*/*")) == []


def test_failed_run_starts_no_more_partitions(spark, cases, now_ms, tmp_path):
    """The disk is full for the first of six, two are at work at once. None of the others would be committed."""
    lab = Lab(spark, tmp_path, settings={"defaults": COMPACT, "job": {"split.by": "always"}})
    for number in range(6):
        put(only_input(cases["few-keys"]), lab.archive / f"t-{number}")
    full = Fault("create", "*/leader-epoch-checkpoint", error="ENOSPC")
    with faults(tmp_path, full), pytest.raises(OSError, match="No space left"):
        lab.run(now_ms)
    assert happened(tmp_path) == [1]
    assert lab.state().checkpoints() == {}
    assert 0 < len(list((lab.store / "segments").iterdir())) < 6


class ReadCounter:
    """Watcher that adds up what each task reads."""

    wants_results = False

    def __init__(self):
        self.reads = Counter()

    def read(self, item, n):
        self.reads[item] += n

    def ended(self, item, result):
        pass


def test_each_task_of_a_large_partition_counts_what_it_reads(spark, cases, tmp_path):
    case = cases["few-keys"]
    plan = golden_plan(case, case.partitions[0], 1, archived_at(case.folder / "input", case.partitions[0]), tmp_path)
    settings, limits = replace(plan.policy.settings, segment_bytes=1), replace(plan.run.limits, split_bytes=1)
    plan, workers, heard = changed(plan, settings=settings, limits=limits), SparkTasks(lambda: spark), ReadCounter()
    result = compact_large(workers, plan, ReadCounter(), partial(on_spark, workers, heard))
    assert result.status == "cleaned"
    n_groups = len(heard.reads) - result.work.splits
    assert sorted(heard.reads) == list(range(result.work.splits + n_groups)) and n_groups > 1
