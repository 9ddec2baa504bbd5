"""`lookup --sizing`: what the indexes of an archive cost, by topic, from real counts (udfs.lookup.index_sizes)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport, TextTable, pick, size
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
_COUNTS = (
    "partitions segments log_bytes batches now_bytes interval_bytes batch_bytes minute_bytes second_bytes days "
    "bytes_read"
)


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
        return pick(self.total, _COUNTS)

    @property
    def _by_topic(self) -> list[dict[str, Any]]:
        return [pick(sizes, f"topic {_COUNTS}") for sizes in self.topics]

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
