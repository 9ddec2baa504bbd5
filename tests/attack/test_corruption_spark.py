"""The same damage through code that only Spark runs: Spark's window, and the streaming source.

Each case is a partition of one archive beside others and an undamaged one: a problem in one stops no other.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact import job as compact
from lastkey.udfs.compact.plan import PartitionResult
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root
from tests.attack.batches import HANG_SECONDS, Member, attack, judge_each, lay_out
from tests.attack.corrupting import all_cases
from tests.attack.damages import Case, is_noticed
from tests.attack.forked import Failed
from tests.attack.judge import EQUAL, NAMED, TWIN, Row, to_row
from tests.attack.readers import STREAMED, Seen, check_named, compact_listed, rows_streamed
from tests.attack.readers import compact as compact_one
from tests.attack.specimens import CONFIG, Specimen, put
from tests.builders.damage import NOW_MS
from tests.builders.trees import read_tree

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.spark]

T = TypeVar("T")

FEW = 8  # damages: partitions of one archive
_LARGE = replace(CONFIG, job=replace(CONFIG.job, split_by="always", engine="spark"))


def test_damaged_large_partition_equals_the_result_of_one_task(
    request: pytest.FixtureRequest, spark: SparkSession, specimens: dict[str, Specimen], tmp_path: Path
) -> None:
    """Each partition gives a problem, or byte for byte the files that one task makes."""
    healthy = _run_on_each(specimens, tmp_path / "healthy", lambda folder: _left_by(compact_one(folder, tmp_path)))

    def work(cases: list[Case]) -> list[str | Failed]:
        root, store, twins = (_emptied(tmp_path / name) for name in ("archive", "store", "twins"))
        members = lay_out(root, specimens, cases)
        before = read_tree(root)
        report = compact.run(CompactOptions(str(root), str(store), now_ms=NOW_MS, config=_LARGE), Silent())
        if read_tree(root) != before:
            raise Failed("the archive changed")
        results, listed = {r.topic: r for r in report.results}, list_archive(open_root(str(root)), lambda _: True)

        def verdict(member: Member) -> str:
            result = results[member.topic]
            if (result.status == "cleaned") != ((member.topic, 0) in report.generations):
                raise Failed(f"{result.status}, and committed: {sorted(report.generations)}")
            twin = compact_listed(listed.partitions[member.topic, 0], root, twins / member.topic)
            return _judged(member, result, store, twin, healthy[member.specimen.name])

        return judge_each(members, verdict)

    cases, of = all_cases(specimens, request.config.getoption("--attack-seed"))
    attack(request, "large partitions", cases, of, FEW, work)


def test_stream_over_damage_equals_the_reader_without_spark(
    request: pytest.FixtureRequest, spark: SparkSession, specimens: dict[str, Specimen], tmp_path: Path
) -> None:
    """Spark's own stream gives the same rows, partition by partition, as our reader without Spark, which
    `test_corruption` judges.
    """
    healthy = _run_on_each(specimens, tmp_path / "healthy", lambda folder: _records(rows_streamed(folder), "t"))

    def work(cases: list[Case]) -> list[str | Failed]:
        root = _emptied(tmp_path / "archive")
        members = lay_out(root, specimens, cases)
        before = read_tree(root)
        rows_by_spark, expected = _by_spark(spark, root, _emptied(tmp_path / "checkpoint")), rows_streamed(root)
        if read_tree(root) != before:
            raise Failed("the archive changed")

        def verdict(member: Member) -> str:
            rows, problems = _records(rows_by_spark, member.topic), _problems(rows_by_spark, member.topic)
            if (rows, problems) != (_records(expected, member.topic), _problems(expected, member.topic)):
                raise Failed(f"{rows}, {problems}; without Spark {_problems(expected, member.topic)}")
            check_named(problems)
            return NAMED if problems else EQUAL if rows == healthy[member.specimen.name] else TWIN

        return judge_each(members, verdict)

    cases, of = all_cases(specimens, request.config.getoption("--attack-seed"))
    attack(request, "Spark's stream", cases, of, FEW, work)


def _run_on_each(specimens: dict[str, Specimen], folder: Path, work: Callable[[Path], T]) -> dict[str, T]:
    """Return the result of the work on each undamaged specimen."""
    made = {}
    for name, specimen in specimens.items():
        put(specimen.files, folder / name)
        made[name] = work(folder / name)
    return made


def _by_spark(spark: SparkSession, root: Path, work: Path) -> list[dict[str, Any]]:
    """Return all rows of a stream."""
    source = spark.readStream.format("kafka_log").options(**STREAMED, badRecords="quarantine").load(str(root))
    query = (
        source.withColumn("timestamp", F.unix_micros("timestamp"))
        .writeStream.format("memory")
        .queryName(f"stream_{uuid.uuid4().hex}")
        .option("checkpointLocation", str(work))
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(HANG_SECONDS):
            raise TimeoutError(f"the stream is still going after {HANG_SECONDS:g} s")
        rows = spark.table(query.name).toArrow().to_pylist()
    finally:
        query.stop()
        spark.catalog.dropTempView(query.name)
    return rows


def _records(rows: list[dict[str, Any]], topic: str) -> list[Row]:
    return sorted(to_row(row) for row in rows if row["topic"] == topic and row["offset"] is not None)


def _problems(rows: list[dict[str, Any]], topic: str) -> list[Problem]:
    problems = [row["problem"] for row in rows if row["topic"] == topic and row["problem"] is not None]
    return [Problem(p["kind"], p["path"], p["position"], p["expected"], p["found"]) for p in problems]


Left = tuple[str, list[tuple[str, int, int]], dict[str, bytes]]  # status, segments, files of the generation


def _judged(member: Member, result: PartitionResult, store: Path, twin: Seen, healthy: Left) -> str:
    if result.problem is not None:
        check_named([result.problem])
        if not result.problem.path.startswith(f"{member.topic}/"):
            raise Failed(f"a problem of {member.folder} in {result.problem}")
        if left := read_tree(store / "segments" / f"{member.topic}-0"):
            raise Failed(f"uncleanable, and left {sorted(left)}")
        return NAMED
    if member.case is not None and is_noticed(member.specimen, member.case):
        raise Failed("a wrong checksum, and nothing is said of it")
    files = _left(result, store)
    if twin.outcome is None or files != (expected := _left_by(twin)):
        raise Failed(f"{str(files)[:1000]}, by one task {twin.problems or str(expected)[:1000]}")
    return EQUAL if files == healthy else TWIN


def _left_by(seen: Seen) -> Left:
    assert seen.outcome is not None, seen.problems
    return _left(seen.outcome.result, Path(seen.outcome.plan.run.store_uri))


def _left(result: PartitionResult, store: Path) -> Left:
    files = read_tree(store / result.log.folder) if result.status == "cleaned" else {}
    for name in ("manifest.json", "committed"):  # the job writes them, not the task
        files.pop(name, None)
    return result.status, [(s.root, s.base_offset, s.size_bytes) for s in result.log.segments], files


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
