"""`lookup`: offsets and times -> positions, records, segments, without a broker. udfs/lookup/LOOKUP.md explains how.

A few queries need no Spark. A table of them does (`--queries`), and so does the table `time_index`
(jobs.lookup.minute_table).
"""

from __future__ import annotations

import difflib
import time
from functools import partial

import numpy as np

from lastkey.jobs.command.parse import parse_time
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.lookup.plans import list_plans
from lastkey.jobs.lookup.report import Looked, LookupReport, Query
from lastkey.jobs.lookup.sizing import SizingReport, run_sizing
from lastkey.jobs.spark.engine import each
from lastkey.udfs.lookup.queries import SPECIAL_TIMES, LookupPlan, Queries, lookup


def run(options: LookupOptions, progress: Progress) -> JobReport:
    """Answer the queries that the options ask."""
    started = time.perf_counter()
    kind: type[LookupReport | SizingReport] = SizingReport if options.sizing else LookupReport
    report = kind(archive=options.archive, store=options.store if options.archive is None else None)
    if options.at is not None:
        from lastkey.jobs.lookup.minute_table import run_at  # noqa: PLC0415 - few queries need no Spark

        return run_at(options, progress)
    plans = list_plans(options, report)
    report.seconds["list"] = time.perf_counter() - started
    if options.queries is not None:
        from lastkey.jobs.lookup.query_table import run_table  # noqa: PLC0415 - as above

        return run_table(options, plans, report, progress)
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
    sizes = [1] * len(plans)  # an index and a few batches of each
    answer = partial(lookup, queries=asked)
    for found in each(answer, plans, "lookup: partitions", options, report, progress, sizes=sizes):
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
