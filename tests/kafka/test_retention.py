"""Retention against Kafka's own: UnifiedLog.deleteOldSegments on a copy of the same directory, at the same clock.

All golden partitions, so every codec and magic: by time, by size, by both, after DeleteRecords, and all of it; then
cleaned first, as a broker does with `compact,delete`. A broker loads the result.
"""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.udfs.compact.plan import PartitionPlan
from tests.builders.folders import Outcome, archived_at, compact, golden_plan
from tests.builders.plans import changed
from tests.builders.trees import files_in, tree
from tests.golden import Case, case_names
from tests.kafka_lab import check_served, delete_old_segments, dump, start_restored
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MS_OFF = -1


@dataclass(frozen=True)
class Asked:
    """Settings of a topic, and the start of its log."""

    name: str
    retention_ms: int = MS_OFF
    retention_bytes: int = MS_OFF
    log_start: int = 0
    now_ms: int | None = None
    high_watermark: int | None = None  # None: the log end


@dataclass(frozen=True)
class Held:
    """A segment of a folder."""

    base_offset: int
    size: int
    largest_ms: int  # the file's time where no batch has one
    path: Path


def held(folder: Path) -> list[Held]:
    out = []
    for log in files_in(folder):
        largest = max(timestamps(log.read_bytes()), default=-1)
        mtime_ms = log.stat().st_mtime_ns // 1_000_000
        out.append(Held(int(log.stem), log.stat().st_size, largest if largest >= 0 else mtime_ms, log))
    return out


def timestamps(data: bytes) -> Iterator[int]:
    """Return the largest timestamp of each batch, or of each message of magic 1; messages of magic 0 have none."""
    at = 0
    while at < len(data):
        magic = data[at + 16]
        if magic:
            yield from struct.unpack_from(">q", data, at + (35 if magic == 2 else 18))
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]


def questions(segments: list[Held], now_ms: int) -> Iterator[Asked]:
    """Yield limits around the borders: the first segment, one in the middle, and all."""
    middle, sizes = len(segments) // 2, [s.size for s in segments]
    yield Asked("first", retention_ms=max(now_ms - segments[0].largest_ms - 1, 0))
    yield Asked("not yet", retention_ms=max(now_ms - segments[0].largest_ms, 0))
    yield Asked("middle", retention_ms=max(now_ms - segments[middle].largest_ms - 1, 0))
    yield Asked("bytes", retention_bytes=sum(sizes[middle:]))
    yield Asked("bytes but one", retention_bytes=sum(sizes[middle:]) + 1)
    both = max(now_ms - segments[middle].largest_ms - 1, 0)
    yield Asked("both", retention_ms=both, retention_bytes=sum(sizes[1:]))
    yield Asked("records deleted", retention_bytes=2**40, log_start=segments[middle].base_offset + 1)
    yield Asked("all by time", retention_ms=0, now_ms=max(s.largest_ms for s in segments) + 10_000)
    yield Asked("all by size", retention_bytes=0)


def theirs(folder: Path, asked: Asked, policy: str, now_ms: int, work: Path) -> tuple[int, list[int]]:
    """Return Kafka's log start and segments; files and times of `folder` are copied."""
    copy = work / folder.name
    shutil.copytree(folder, copy)
    settings = {
        "cleanup.policy": policy,
        "retention.ms": asked.retention_ms,
        "retention.bytes": asked.retention_bytes,
        "internal.segment.bytes": 2**31 - 1,
    }
    remaining = delete_old_segments(copy, settings, asked.now_ms or now_ms, asked.log_start, asked.high_watermark)
    shutil.rmtree(copy)
    return remaining


def ours(plan: PartitionPlan, asked: Asked, *, compacts: bool, folder: str, sealed: bool = True) -> Outcome:
    settings = replace(
        plan.policy.settings, compacts=compacts, retention_ms=asked.retention_ms, retention_bytes=asked.retention_bytes
    )
    return compact(
        changed(
            plan,
            settings=settings,
            folder=folder,
            sealed=sealed,
            force=compacts,
            now_ms=asked.now_ms or plan.run.now_ms,
            log_start_offset=asked.log_start,
            log_start_checkpoint=asked.log_start or None,
            high_watermark=asked.high_watermark,
        )
    )


@pytest.mark.parametrize("name", case_names())
def test_retention_by_policy_delete_equals_kafka(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = cases[name]
    for partition in case.partitions:
        folder = case.input(partition)
        plan = golden_plan(case, partition, 1, archived_at(folder.parent, partition), tmp_path / "store" / partition)
        plan = changed(plan, first_dirty_offset=None)
        segments, removed = held(folder), 0
        for i, question in enumerate(questions(segments, plan.run.now_ms)):
            start, bases = theirs(folder, question, "delete", plan.run.now_ms, tmp_path)
            done = ours(plan, question, compacts=False, folder=str(i))
            assert done.result.problem is None, question
            if done.result.status == "not_due":
                assert bases == [s.base_offset for s in segments], question
                continue
            removed += 1
            assert [s.base_offset for s in done.result.log.segments] == bases, question
            assert done.result.log.log_start_offset == start, question
        assert removed >= 5


@pytest.mark.parametrize("name", case_names())
def test_retention_below_a_high_watermark_equals_kafka(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """retention.bytes counts the whole log but removes only segments below the high watermark."""
    case = cases[name]
    for partition in case.partitions:
        folder = case.input(partition)
        plan = golden_plan(case, partition, 1, archived_at(folder.parent, partition), tmp_path / "store" / partition)
        plan = changed(plan, first_dirty_offset=None)
        segments, removed = held(folder), 0
        bases, sizes, middle = [s.base_offset for s in segments], [s.size for s in segments], len(segments) // 2
        for watermark, first_left in itertools.product((bases[middle], bases[-1]), (1, middle, len(sizes) - 1)):
            question = Asked("", retention_bytes=sum(sizes[first_left:]), high_watermark=watermark)
            start, theirs_left = theirs(folder, question, "delete", plan.run.now_ms, tmp_path)
            done = ours(plan, question, compacts=False, folder=f"{watermark}-{first_left}", sealed=False).result
            assert done.problem is None, question
            if done.status == "not_due":
                assert theirs_left == bases, question
                continue
            removed += 1
            left = [s.base_offset for s in done.log.segments]
            assert left == [base for base in theirs_left if base <= left[-1]], question  # segments above are not read
            assert done.log.log_start_offset == start, question
        assert removed >= 3


@pytest.mark.parametrize("name", case_names())
def test_retention_by_policy_compact_and_delete_equals_kafka(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """As the cleaner's thread does it: cleaned, then deleted by what the cleaned segments hold.

    Kafka deletes from what we cleaned, which tests/udfs/compact/test_golden.py holds against Kafka's cleaner: of that
    the empty segments, whose file times Kafka would go by, are joined away.
    """
    case = cases[name]
    for partition in case.partitions:
        folder = case.input(partition)
        plan = golden_plan(case, partition, 1, archived_at(folder.parent, partition), tmp_path / "store" / partition)
        cleaned = ours(plan, Asked("nothing"), compacts=True, folder="cleaned", sealed=False)
        left = cleaned.as_archive(tmp_path / "cleaned" / partition, snapshots=True).root / "t-0"
        compared = 0
        for i, question in enumerate(questions(held(left), plan.run.now_ms)):
            if question.log_start:
                continue  # cleaning begins there
            start, bases = theirs(left, question, "compact,delete", plan.run.now_ms, tmp_path)
            if bases[0] > cleaned.result.log.segments[-1].base_offset:
                continue  # the broker deleted the active segment too, which Lastkey does only in a sealed archive
            done = ours(plan, question, compacts=True, folder=str(i), sealed=False)
            assert [s.base_offset for s in done.result.log.segments] == bases, question
            assert done.result.log.log_start_offset == start, question
            files = [(s.base_offset, s.checksum) for s in cleaned.result.log.segments if s.base_offset in bases]
            assert [(s.base_offset, s.checksum) for s in done.result.log.segments] == files, question
            compared += 1
        assert compared >= 3


CONFIG = """
[topics.users]
"cleanup.policy" = "compact,delete"
"retention.ms" = {ms}
[topics.clicks]
"cleanup.policy" = "delete"
"retention.bytes" = {size}
"""


@pytest.mark.spark
def test_broker_loads_generations_with_retention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Archive and generations together: verified, restored, loaded by a broker; a second run has nothing to do."""
    archive, store, config = tmp_path / "archive", tmp_path / "store", tmp_path / "t.toml"
    shutil.copytree(Path(__file__).resolve().parents[2] / "examples" / "archive", archive)
    before = tree(archive)
    clicks, users = held(archive / "clicks-0"), held(archive / "users-0")
    now_ms = max(s.largest_ms for s in users) + 100_000
    config.write_text(CONFIG.format(ms=now_ms - users[1].largest_ms - 1, size=sum(s.size for s in clicks[2:])))
    words = ["compact", str(archive), "--store", str(store), "--config", str(config), "--now", str(now_ms)]
    assert main(words) == 0
    assert "expired: clicks-0: 2 segments by size" in capsys.readouterr().out
    assert main([*words]) == 0
    assert "clicks-0" in capsys.readouterr().out
    assert main(["verify", "--store", str(store)]) == 0, capsys.readouterr().out
    restored = tmp_path / "restored"
    assert main(["restore", "--store", str(store), "--output", str(restored)]) == 0
    bases = [int(log.stem) for log in files_in(restored / "clicks-0")]
    assert bases == [s.base_offset for s in clicks[2:]]
    assert tree(archive) == before
    check_a_broker_serves(restored)


def check_a_broker_serves(restored: Path) -> None:
    with start_restored(restored) as broker:
        problems, _ = check_served(broker.bootstrap, partition_dirs([restored]), strict_times=True)
        assert problems == []


EXACT = """
[topics.users]
"cleanup.policy" = "delete"
"retention.ms" = {ms}
"retention.exact" = true
[topics.clicks]
"cleanup.policy" = "compact,delete"
"retention.ms" = {ms}
"retention.exact" = true
"min.cleanable.dirty.ratio" = 0
"""


@pytest.mark.spark
def test_broker_serves_the_result_of_exact_retention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's dump tool finds no older record and all younger ones; a broker serves the log, also by time."""
    archive, store, config = tmp_path / "archive", tmp_path / "store", tmp_path / "t.toml"
    shutil.copytree(Path(__file__).resolve().parents[2] / "examples" / "archive", archive)
    users = held(archive / "users-0")
    oldest, now_ms = (users[1].largest_ms + users[2].largest_ms) // 2, users[-1].largest_ms + 100_000
    config.write_text(EXACT.format(ms=now_ms - oldest))
    words = ["compact", str(archive), "--store", str(store), "--config", str(config), "--now", str(now_ms)]
    assert main([*words, "--set", "null.keys=keep"]) == 0
    assert "older than retention.ms" in capsys.readouterr().out
    assert main(["verify", "--store", str(store)]) == 0, capsys.readouterr().out
    restored = tmp_path / "restored"
    assert main(["restore", "--store", str(store), "--output", str(restored)]) == 0
    for partition in ("users-0", "users-1"):
        before = [line for log in files_in(archive / partition) for line in dumped(log)]
        active = int(files_in(archive / partition)[-1].stem)
        after = [line for log in files_in(restored / partition) for line in dumped(log)]
        young = [(offset, time) for offset, time in before if offset >= active or time >= oldest]
        assert after == young
        assert 0 < len(young) < len(before)
    check_a_broker_serves(restored)


def dumped(log: Path) -> list[tuple[int, int]]:
    """Return (offset, timestamp) of the records in a segment, by Kafka's dump tool."""
    fields = (line.split("\t") for line in dump([log], "R")[log])
    return [(int(offset), int(timestamp)) for _, offset, timestamp, *_ in fields]
