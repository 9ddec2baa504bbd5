"""Profiles of partitions: real ones, whose sums are checked, and large invented ones, for pages."""

from __future__ import annotations

import random
from dataclasses import replace

from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.report.partition_profile import DAY_MS, Codec, HotKey, PartitionProfile, SegmentProfile, Times
from tests.builders.logs import START_MS
from tests.builders.plans import changed

DROPPED = ("superseded", "aborted", "expired_tombstones")
HOSTILE = "<script>alert('&\"$x^$')</script>"


def profile(plan: PartitionPlan, *, compacted: bool = True) -> PartitionProfile:
    out = profile_partition(ProfilePlan(changed(plan, dry_run=True), compacted))
    assert out.problem is None, str(out.problem)
    assert out.total("live_bytes") + out.total("dead_bytes") == out.total("size_bytes") == out.size_bytes
    assert out.total("live_records") + out.total("dead_records") == out.total("records")
    assert sum(out.total(name) for name in DROPPED) <= out.total("dead_records")
    return out


def a_segment(base: int) -> SegmentProfile:
    ages = (0, 3, 0, 0, 0, 0, 0, 0)
    return SegmentProfile(
        base, 1 << 20, 100, 1000, True, 400, 400_000, 600, 648_576, 500, 100, 0, 400_000, 3, 0, ages,
        0, 0, 5, 17, 0, START_MS, START_MS + DAY_MS, {"zstd": Codec(100, 1 << 20, 1 << 22)},
    )  # fmt: skip


def large(partitions: int, segments: int) -> ArchiveReport:
    rows = tuple(a_segment(i * 1000) for i in range(segments))
    keys = tuple(HotKey(100 - i, f"{i:016x}", HOSTILE) for i in range(20))
    times = Times(DAY_MS, START_MS // DAY_MS, (1000,) * 700)
    profiles = [
        PartitionProfile(
            f"a-topic-with-a-name-of-some-length-{i // 20}", i % 20, True, segments << 20, segments=rows, hot_keys=keys,
            times=times, dirty_ratio=0.5, dirty_bytes=1 << 20, distinct_keys=1000, due=True,
        )
        for i in range(partitions)
    ]  # fmt: skip
    sizes = {(p.topic, p.partition): p.size_bytes for p in profiles}
    return ArchiveReport("/archive", START_MS, profiles=profiles, archived_bytes=sizes)


def many(topics: int = 100, partitions: int = 3, seed: int = 32) -> ArchiveReport:
    """Return a report of many topics: sizes from bytes to TiB, some equal; names of all lengths, some hostile."""
    rng = random.Random(seed)
    names = {"users", "a" * 249, HOSTILE.replace("/", ""), "two words", "t-10", "t-9"}
    words = ("orders", "payments", "audit", "sessions", "prices", "eu", "us", "v2", "by-customer", "DLQ")
    while len(names) < topics:
        names.add("_.-"[rng.randrange(3)].join(rng.sample(words, rng.randint(2, 5))))
    profiles = []
    for number, topic in enumerate(sorted(names)):
        compacted, scale = number % 4 != 3, 10 ** rng.randint(0, 6) if number % 5 else 1000
        for partition in range(partitions):
            n, factor = rng.randint(1, 40), rng.random() if number % 5 else 0.5
            live = int(1000 * scale * (1 - factor))
            rows = tuple(
                replace(
                    a_segment(i * 1000), cleaned=compacted, size_bytes=1000 * scale, dead_records=int(1000 * factor),
                    live_bytes=live, dead_bytes=1000 * scale - live, bytes_after=live if compacted else 1000 * scale,
                )
                for i in range(n)
            )  # fmt: skip
            size = sum(row.size_bytes for row in rows)
            keys = tuple(HotKey(50 if number % 5 else 9, f"{i:016x}", f"key {i}") for i in range(3))
            times = Times(DAY_MS, START_MS // DAY_MS, tuple(rng.randrange(1000) for _ in range(200)))
            dirty = rng.choice((1.0, factor))
            profiles.append(
                PartitionProfile(
                    topic, partition, compacted, size, segments=rows, hot_keys=keys, times=times,
                    log_end_offset=n * 1000, dirty_ratio=dirty, dirty_bytes=int(size * dirty), due=dirty > 0.5,
                    distinct_keys=rng.randrange(10**6), bytes_after_is_estimate=number % 7 == 0,
                    bytes_if_compacted=int(size * (1 - factor)),
                )
            )  # fmt: skip
    sizes = {(p.topic, p.partition): p.size_bytes for p in profiles}
    return ArchiveReport("/backups/kafka/2026-11-24", START_MS, profiles=profiles, archived_bytes=sizes)
