"""`lookup`: offsets and times -> positions, records, segments, without a broker. udfs/lookup/LOOKUP.md explains how.

A few queries need no Spark. A table of them does (`--queries`), and so does the table `time_index`
(jobs.lookup.tables). `--sizing` shows what the indexes of an archive cost, by topic, from real counts
(udfs.lookup.index_sizes).
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np

from lastkey.jobs.command.parse import parse_time
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, TextTable, moment, pick, size
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.lookup.partitions import list_partitions
from lastkey.jobs.spark.engine import each
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.lookup.index_sizes import (
    COUNTS,
    IndexSizes,
    IndexSizesPlan,
    index_sizes,
    offset_index_bytes,
    time_index_bytes_per_day,
)
from lastkey.udfs.lookup.queries import SPECIAL_TIMES, Lookup, Queries, lookup


@dataclass(frozen=True)
class Query:
    """Query as the user typed it: an offset, or a time in ms (or one of SPECIAL_TIMES)."""

    offset: int | None = None
    time: int | None = None
    text: str = ""


class Answered(TypedDict):
    """Query, an offset or a time, and its answer: the columns of ANSWER."""

    topic: str
    partition: int
    offset: NotRequired[int]
    time: NotRequired[str]
    status: str
    answer_offset: int | None
    answer_timestamp: int | None
    leader_epoch: int | None
    segment: str | None
    position: int | None
    batch_size: int | None
    batch_base_offset: int | None
    batch_last_offset: int | None


@dataclass(frozen=True)
class Looked:
    """Answers of one partition; a row of `lookup.answers` for each query."""

    facts: ClassVar[str] = (
        "topic=lookup.topic partition=lookup.partition log_start_offset=lookup.log_start_offset "
        "log_end_offset=lookup.log_end_offset answers problem=lookup.problem"
    )
    lookup: Lookup
    queries: list[Query]

    @property
    def answers(self) -> list[Answered]:
        """Each query, then its answer."""
        out = []
        for query, answer in zip(self.queries, self.lookup.answers.to_pylist(), strict=True):
            asked: dict[str, Any] = {"topic": self.lookup.topic, "partition": self.lookup.partition}
            asked |= {"offset": query.offset} if query.offset is not None else {"time": query.text}
            out.append(asked | answer)
        return out


@dataclass
class LookupReport(JobReport):
    """Report of all answers."""

    job = "lookup"
    done = "{rows:answer} of {partitions:partition}"
    facts = "archive store partitions"
    text_tables = (
        TextTable(
            "rows",
            "partition query status answer_offset:offset timestamp segment position batch",
            {
                "query": lambda row: f"offset {row['offset']}" if "offset" in row else row["time"],
                "status": lambda row: row["status"].replace("_", " "),
                "timestamp": lambda row: moment(row["answer_timestamp"]),
                "segment": lambda row: row["segment"] or "",
                "position": lambda row: "" if row["position"] is None else str(row["position"]),
                "batch": lambda row: _batch(row["batch_base_offset"], row["batch_last_offset"]),
            },
        ),
    )

    archive: str | None = None
    store: str | None = None
    partitions: list[Looked] = field(default_factory=list)

    @property
    def rows(self) -> list[Answered]:
        """Answers of all partitions."""
        return [row for p in self.partitions for row in p.answers]

    @property
    def problems(self) -> list[Any]:
        """Folders that cannot be listed, and partitions whose files are bad; an offset out of range is an answer."""
        return self.other_problems + [p.lookup.problem for p in self.partitions if p.lookup.problem is not None]

    def _lines(self) -> Iterable[str]:
        for p in self.partitions:
            if any(row["status"] == "out_of_range" for row in p.answers):
                offsets = f"{p.lookup.log_start_offset:,} to {p.lookup.log_end_offset:,}"
                yield f"out of range: {p.lookup.topic}-{p.lookup.partition} has {offsets}"


def _batch(first: int | None, last: int | None) -> str:
    return "" if last is None else f"{'?' if first is None else first} to {last}"


def run(options: LookupOptions, progress: Progress) -> JobReport:
    """Answer the queries that the options ask."""
    started = time.perf_counter()
    kind: type[LookupReport | SizingReport] = SizingReport if options.sizing else LookupReport
    report = kind(archive=options.archive, store=options.store if options.archive is None else None)
    if options.at is not None:
        from lastkey.jobs.lookup.tables import run_at  # noqa: PLC0415 - few queries need no Spark

        return run_at(options, progress)
    partitions = list_partitions(options, report)
    report.seconds["list"] = time.perf_counter() - started
    if options.queries is not None:
        from lastkey.jobs.lookup.tables import run_table  # noqa: PLC0415 - as above

        return run_table(options, partitions, report, progress)
    if isinstance(report, SizingReport):
        run_sizing(options, partitions, report, progress)
    else:
        _run_queries(options, partitions, report, progress)
    return report


def _run_queries(
    options: LookupOptions, partitions: list[SourcePartition], report: LookupReport, progress: Progress
) -> None:
    at = time.perf_counter()
    queries = [*(Query(offset=offset) for offset in options.offsets), *map(query_of_time, options.times)]
    asked = Queries(
        np.array([q.offset if q.offset is not None else q.time for q in queries], np.int64),
        np.array([q.offset is None for q in queries], np.bool_),
    )
    progress.start("lookup", len(partitions))
    sizes = [1] * len(partitions)  # an index and a few batches of each
    answer = partial(lookup, queries=asked, committed=options.isolation == "read_committed")
    for found in each(answer, partitions, "lookup: partitions", options, report, progress, sizes=sizes):
        report.partitions.append(Looked(found, queries))
        report.notes += found.notes
    progress.close()
    report.seconds["lookup"] = time.perf_counter() - at


def query_of_time(text: str) -> Query:
    """Parse a time that a user typed: a moment, earliest, latest or max-timestamp. UsageError for anything else."""
    if text in SPECIAL_TIMES:
        return Query(time=SPECIAL_TIMES[text], text=text)
    near = difflib.get_close_matches(text, SPECIAL_TIMES)
    if near:
        raise UnknownNameError(message=f"no such time: {text}", near=f"did you mean {near[0]}?")
    moment = parse_time(text)
    if moment < 0:
        raise UsageError(
            message=f"no such time: {text}; expected a moment from 1970 on, earliest, latest, max-timestamp"
        )
    return Query(time=moment, text=text)


_HEADERS_ONLY = 16  # a pass over headers alone is at least this many times as fast


@dataclass
class SizingReport(JobReport):
    """Report of counts by topic and in total."""

    job = "lookup"
    done = "read {total.bytes_read:size} of {total.log_bytes:size}"
    facts = "archive store topics=_by_topic total=_total estimates=_estimates"
    text_tables = (
        TextTable(
            "topics",
            "topic partitions segments log_bytes:log batches now_bytes:indexes_now interval_bytes:each_interval "
            "batch_bytes:each_batch minute_bytes:by_minute second_bytes:by_second",
            total="topic",
        ),
    )

    archive: str | None = None
    store: str | None = None
    topics: list[IndexSizes] = field(default_factory=list)

    @property
    def total(self) -> IndexSizes:
        """Sum over all topics."""
        return sum(self.topics, IndexSizes(partitions=0))

    @property
    def _total(self) -> dict[str, int]:
        return pick(self.total, " ".join(COUNTS))

    @property
    def _by_topic(self) -> list[dict[str, Any]]:
        return [pick(sizes, f"topic {' '.join(COUNTS)}") for sizes in self.topics]

    @property
    def _estimates(self) -> dict[str, int]:
        return {name: value for name, _, value in ESTIMATES}

    def _lines(self) -> Iterable[str]:
        if days := self.total.days:
            yield (
                f"time index for each partition and day with data ({days:,}): minute "
                f"{size(self.total.minute_bytes // days)}, second {size(self.total.second_bytes // days)}; at most "
                f"{size(time_index_bytes_per_day(60))} and {size(time_index_bytes_per_day(1))}"
            )
        yield "the same by estimate: " + "; ".join(f"{text} {size(value)}" for _, text, value in ESTIMATES)


# name, text, bytes: the tables of the proposals for these indexes
ESTIMATES = (
    ("time_second_3500_partitions", "3,500 partitions, a day, each second", time_index_bytes_per_day(1, 3500)),
    ("time_minute_3500_partitions", "each minute", time_index_bytes_per_day(60, 3500)),
    ("offset_512_mib_segment", "a segment of 512 MiB, an offset entry each 4 KiB", offset_index_bytes(512 << 20)),
    ("offset_1000_partitions", "1,000 of them", offset_index_bytes(512 << 20, partitions=1000)),
)


def run_sizing(
    options: LookupOptions, partitions: list[SourcePartition], report: SizingReport, progress: Progress
) -> None:
    """Count each partition's index sizes and sum them by topic."""
    at = time.perf_counter()
    tasks = []
    for partition in partitions:
        settings = options.config.topic_settings(partition.key[0])
        tasks.append(IndexSizesPlan(partition, settings.index_interval_bytes, settings.segment_index_bytes))
    sizes = [sum(s.size_bytes for s in partition.segments) for partition in partitions]
    progress.start("sizing", sum(sizes), BYTES)
    n_bytes = sum(sizes) // _HEADERS_ONLY
    by_topic: dict[str, IndexSizes] = {}
    name = "lookup --sizing: partitions"
    for found in each(index_sizes, tasks, name, options, report, progress, sizes=sizes, n_bytes=n_bytes):
        known = by_topic.get(found.topic)
        by_topic[found.topic] = found if known is None else known + found
        if found.problem is not None:
            report.other_problems.append(found.problem)
    progress.close()
    report.topics = [by_topic[topic] for topic in sorted(by_topic)]
    report.seconds["count"] = time.perf_counter() - at
