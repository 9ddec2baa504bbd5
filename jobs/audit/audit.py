"""Frame of every audit: tables, sources, the reading of what is new, the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.audit.records import Gathered, ReadSettings, gather
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.audit_options import AuditOptions
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.errors import JobError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.store.audits import audit_secret, check_files
from lastkey.jobs.store.minutes import uri_for_spark
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.entries import Cuts

MOST: Final = 20  # rows of a table of the report; the tables of the store have all
_FEW_BYTES: Final = 256 << 20  # size of logs for which the JVM starts only briefly


CutsOf = Callable[[SparkTasks], Callable[[Key], Cuts]]


@dataclass(frozen=True)
class Audit:
    """An audit at work, once everything is read."""

    workers: SparkTasks
    state: State
    found: Gathered
    report: AuditReport


def run_audit(
    kind: str,
    options: AuditOptions,
    sources: Sequence[AuditSource],
    ask: Callable[[Audit], None],
    progress: Progress,
    listed_by: Callable[[AuditReport], list[AuditedLogs]] | None = None,
    tables: Sequence[str] = (),
    cuts: CutsOf = lambda _: lambda _: None,
) -> AuditReport:
    """Read what is new in the sources, let `ask` fill the report, and record the audit in `cleaner_runs`.

    listed_by: lists what is read for the sources; None: themselves. tables: URIs of others that Spark reads, in
    Hadoop's spelling. cuts: returns where versions may be added up; by default nowhere.
    """
    store = options.audits or next(one.store for one in sources if one.store is not None)

    def work() -> AuditReport:
        return _run(kind, options, open_state(store), sources, ask, progress, listed_by, tables, cuts)

    return recorded(f"audit {kind}", store, work, dry_run=False)


def _run(
    kind: str,
    options: AuditOptions,
    state: State,
    sources: Sequence[AuditSource],
    ask: Callable[[Audit], None],
    progress: Progress,
    listed_by: Callable[[AuditReport], list[AuditedLogs]] | None,
    tables: Sequence[str],
    cuts: CutsOf,
) -> AuditReport:
    began = time.perf_counter()
    report = AuditReport(kind=kind, audits=state.root.uri)
    listed = [list_source(one, options.topics) for one in sources] if listed_by is None else listed_by(report)
    report.sources = [one.name for one in listed]
    report.seconds["list"] = time.perf_counter() - began
    roots = {s.root for one in listed for partition in one.partitions for s in partition.segments} - {state.root.uri}
    check_apart(Place("--audits", state.root.uri), *(Place("what is audited", root) for root in sorted(roots)))
    size = sum(s.size_bytes for one in listed for partition in one.partitions for s in partition.segments)
    audits, brief = uri_for_spark(state.root), size < _FEW_BYTES
    with spark_workers(f"audit {kind}", options, report, progress, brief=brief, tables=(audits, *tables)) as workers:
        if not state.root.is_local:  # before hours of reading
            with workers.spark(f"audit {kind}") as spark:
                connector.connect(spark, audits)
        at = time.perf_counter()
        asked = ReadSettings(options.config, audit_secret(state), options.hide_keys, cuts(workers))
        found = gather(state, listed, asked, workers, progress)
        report.seconds["read"] = time.perf_counter() - at
        report.stretches_read, report.bytes_read = found.stretches_read, found.bytes_read
        report.other_problems += found.all_problems
        at = time.perf_counter()
        try:
            ask(Audit(workers, state, found, report))
        except Exception as error:
            if not isinstance(error, JobError):
                check_files(state, found.files)  # raises if a task failed at one of them
            raise
        report.seconds["ask"] = time.perf_counter() - at
    report.seconds["total"] = time.perf_counter() - began
    return report
