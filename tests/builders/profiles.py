"""Profiles of partitions: real ones, whose sums are checked, and large invented ones, for pages."""

from __future__ import annotations

from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.report.partition_profile import DAY_MS, Codec, HotKey, PartitionProfile, SegmentProfile, Times
from tests.builders.logs import START_MS

DROPPED = ("superseded", "aborted", "expired_tombstones")
HOSTILE = "<script>alert('&\"$x^$')</script>"


def profile(plan: PartitionPlan, *, compacted: bool = True) -> PartitionProfile:
    out = profile_partition(ProfilePlan(plan, compacted))
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
