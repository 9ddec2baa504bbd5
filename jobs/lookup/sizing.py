"""`lookup --sizing`: what the indexes of an archive cost, by topic, from real counts (udfs.lookup.index_sizes)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, count, labelled, size, table
from lastkey.jobs.spark.engine import each
from lastkey.udfs.lookup.index_sizes import (
    IndexSizes,
    IndexSizesPlan,
    index_sizes,
    offset_index_bytes,
    time_index_bytes_per_day,
)
from lastkey.udfs.lookup.queries import LookupPlan

_HEADERS_ONLY = 16  # a pass over headers alone is at least this many times as fast
_FIELDS = (
    "partitions", "segments", "log_bytes", "batches", "now_bytes", "interval_bytes", "batch_bytes", "minute_bytes",
    "second_bytes",
)  # fmt: skip


@dataclass
class SizingReport(JobReport):
    """Report of counts by topic and in total."""

    uri: str
    side: str
    topics: list[IndexSizes] = field(default_factory=list)

    @property
    def total(self) -> IndexSizes:
        """Sum over all topics."""
        return sum(self.topics, IndexSizes(partitions=0))

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs; sizes in bytes."""
        return {
            "job": "lookup",
            self.side: self.uri,
            "exit_code": self.exit_code,
            "topics": [{"topic": t.topic, **_counts(t)} for t in self.topics],
            "total": _counts(self.total),
            "estimates": {name: value for name, _, value in ESTIMATES},
            "problems": [str(p) for p in self.problems],
            "notes": self.notes,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
        }

    def to_text(self) -> str:
        """Return the report for people."""
        header = (
            "topic",
            "partitions",
            "segments",
            "log",
            "batches",
            "indexes now",
            "each interval",
            "each batch",
            "time: minute",
            "time: second",
        )
        rows = [_row(t.topic, t) for t in self.topics]
        if len(rows) > 1:
            rows.append(_row(f"{len(rows)} topics", self.total))
        out = [table(header, rows, left=(0,), rule_before_last=len(rows) > 1)]
        total = self.total
        if total.days:
            out.append(
                f"time index for each partition and day with data ({total.days:,}): minute "
                f"{size(total.minute_bytes // total.days)}, second {size(total.second_bytes // total.days)}; at most "
                f"{size(time_index_bytes_per_day(60))} and {size(time_index_bytes_per_day(1))}"
            )
        out.append("the same by estimate: " + "; ".join(f"{text} {size(value)}" for _, text, value in ESTIMATES))
        out += labelled("problem", self.problems)
        out += labelled("note", self.notes)
        out.append(f"read {size(total.bytes_read)} of {size(total.log_bytes)}")
        out.append(self.last_lines())
        return "\n".join(out)


# name, text, bytes: the tables of the proposals for these indexes
ESTIMATES = (
    ("time_second_3500_partitions", "3,500 partitions, a day, each second", time_index_bytes_per_day(1, 3500)),
    ("time_minute_3500_partitions", "each minute", time_index_bytes_per_day(60, 3500)),
    ("offset_512_mib_segment", "a segment of 512 MiB, an offset entry each 4 KiB", offset_index_bytes(512 << 20)),
    ("offset_1000_partitions", "1,000 of them", offset_index_bytes(512 << 20, partitions=1000)),
)


def _counts(sizes: IndexSizes) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in (*_FIELDS, "days", "bytes_read")}


def _row(name: str, s: IndexSizes) -> tuple[str, ...]:
    return (
        name,
        count(s.partitions),
        count(s.segments),
        size(s.log_bytes),
        count(s.batches),
        size(s.now_bytes),
        size(s.interval_bytes),
        size(s.batch_bytes),
        size(s.minute_bytes),
        size(s.second_bytes),
    )


def run_sizing(options: LookupOptions, plans: list[LookupPlan], report: SizingReport, progress: Progress) -> None:
    """Count each partition's index sizes and sum them by topic."""
    at = time.perf_counter()
    tasks = []
    for plan in plans:
        settings = options.config.topic_settings(plan.topic)
        tasks.append(IndexSizesPlan(plan, settings.index_interval_bytes, settings.segment_index_bytes))
    sizes = [sum(s.size_bytes for s in plan.segments) for plan in plans]
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
