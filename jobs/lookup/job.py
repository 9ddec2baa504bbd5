"""`lookup`: offsets and times to positions, records, segments, without a broker. udfs/lookup/LOOKUP.md says how.

A few queries need no Spark. A table of them does (`--queries`), and so do a store's generation and the table
`time_index` (jobs.lookup.minute_table), which lie in Delta tables.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from jobs.archive.listing import ArchivedPartition, archive_at, matching
from jobs.command.nearest import nearest, no_such_topic
from jobs.command.options import LookupOptions
from jobs.command.progress import Progress
from jobs.command.reporting import Report
from jobs.command.times import parse_time
from jobs.errors import UsageError
from jobs.lookup.report import Looked, LookupReport, Query
from jobs.lookup.sizing import SizingReport, run_sizing
from logformat import names
from udfs.lookup.queries import SPECIAL_TIMES, LogSegment, LookupPlan, Queries, lookup
from udfs.storage import Root, normal_uri


def run(options: LookupOptions, progress: Progress) -> Report:
    """Answer what is asked."""
    started = time.perf_counter()
    uri, side = (options.archive, "archive") if options.archive is not None else (options.store or "", "store")
    report: LookupReport | SizingReport = SizingReport(uri, side) if options.sizing else LookupReport(uri, side)
    if options.at is not None:
        from jobs.lookup.minute_table import run_at  # noqa: PLC0415 - few queries need no Spark

        return run_at(options, progress)
    plans = list_plans(options, report.notes)
    report.seconds["list"] = time.perf_counter() - started
    if options.queries is not None:
        from jobs.lookup.query_table import run_table  # noqa: PLC0415 - as above

        return run_table(options, plans, report.notes, progress)
    if isinstance(report, SizingReport):
        run_sizing(options, plans, report, progress)
    else:
        _run_queries(options, plans, report, progress)
    report.seconds["total"] = time.perf_counter() - started
    return report


def _run_queries(options: LookupOptions, plans: list[LookupPlan], report: LookupReport, progress: Progress) -> None:
    at = time.perf_counter()
    queries = [*(Query(offset=offset) for offset in options.offsets), *map(query_of_time, options.times)]
    asked = Queries(
        np.array([q.offset if q.offset is not None else q.time for q in queries], np.int64),
        np.array([q.offset is None for q in queries], np.bool_),
    )
    progress.start("lookup", len(plans))
    with ThreadPoolExecutor(min(len(plans), os.cpu_count() or 1) or 1) as pool:
        for found in pool.map(lambda plan: lookup(plan, asked), plans):
            progress.advance()
            report.partitions.append(Looked(found, queries))
            report.notes += found.notes
    progress.close()
    report.seconds["lookup"] = time.perf_counter() - at


def query_of_time(text: str) -> Query:
    """A time that a user typed; also earliest, latest, max-timestamp."""
    if text in SPECIAL_TIMES:
        return Query(time=SPECIAL_TIMES[text], text=text)
    near = difflib.get_close_matches(text, SPECIAL_TIMES)
    if near:
        raise UsageError(message=f"no such time: {text}; did you mean {near[0]}?")
    moment = parse_time(text)
    if moment < 0:
        raise UsageError(
            message=f"no such time: {text}; expected a moment from 1970 on, earliest, latest, max-timestamp"
        )
    return Query(time=moment, text=text)


def list_plans(options: LookupOptions, notes: list[str]) -> list[LookupPlan]:
    """The logs that are asked for, by topic and partition."""
    if options.archive is None:
        from jobs.lookup.store import generation_plans  # noqa: PLC0415 - an archive is looked up without Spark

        plans = generation_plans(options, notes)
    else:
        plans = archive_plans(normal_uri(options.archive or ""), options.topics, notes)
    chosen = [
        replace(plan, max_batch_bytes=options.config.topic_settings(plan.topic).max_decompressed_batch_bytes)
        for plan in _chosen(plans, options.partitions)
    ]
    return [replace(plan, read_committed=True) for plan in chosen] if options.isolation == "read_committed" else chosen


def archive_plans(uri: str, topics: str | None, notes: list[str]) -> list[LookupPlan]:
    """The logs of an archive."""
    archive = archive_at(uri, matching(topics))
    notes += archive.notes
    if not archive.partitions and archive.not_wanted:
        raise no_such_topic(topics or "", archive.not_wanted, uri)
    plans = []
    for archived in archive.partitions.values():
        notes += [note for note in archived.notes if names.REBUILT not in note]
        plans.append(archived_plan(archived, archive.root))
    return plans


def archived_plan(archived: ArchivedPartition, root: Root) -> LookupPlan:
    """What a look-up is told of an archived partition."""
    segments = []
    for s in archived.segments:
        of = archived.indexes.get(s.base_offset, {})
        segments.append(
            LogSegment(
                s.base_offset, s.size, s.mtime_ms, "archive", s.path, "archive", of.get(names.INDEX),
                of.get(names.TIME_INDEX),
            )
        )  # fmt: skip
    return LookupPlan(
        archived.topic, archived.partition, root.uri, "", tuple(segments), archived.log_start_checkpoint,
        archived.high_watermark if archived.held_by_broker else None, archived.leader_epochs or (),
        problem=archived.problem,
    )  # fmt: skip


def _chosen(plans: Iterable[LookupPlan], wanted: Sequence[str]) -> list[LookupPlan]:
    by_name = {plan.name: plan for plan in sorted(plans, key=lambda plan: (plan.topic, plan.partition))}
    if not by_name:
        raise UsageError(message="no partition to look into")
    for name in wanted:
        if name not in by_name:
            raise UsageError(message=f"no such partition: {name}{nearest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(wanted)] if wanted else list(by_name.values())
