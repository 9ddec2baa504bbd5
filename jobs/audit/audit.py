"""Frame of every audit: tables, sources, the reading of what is new, the report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.audit.records import Gathered, ReadSettings, gather
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.store_options import AuditOptions
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
O = TypeVar("O", bound=AuditOptions)  # noqa: E741
R = TypeVar("R", bound=AuditReport)


class Audit(ABC, Generic[O, R]):
    """An audit. A kind defines the listing, the offsets where versions may be added up, and the final questions."""

    workers: SparkTasks
    state: State
    found: Gathered
    spark_tables: tuple[str, ...] = ()  # URIs of other tables that Spark reads, in Hadoop's spelling

    def __init__(self, options: O, report: R) -> None:
        self.options, self.report = options, report

    def list_sources(self) -> list[AuditedLogs]:
        """Return what is read."""
        return [list_source(one, self.options.topics) for one in self.options.sources]

    def cuts(self) -> Callable[[Key], Cuts]:
        """Return a function that returns the cuts of a partition; by default its versions are not added up."""
        return lambda _: None

    @abstractmethod
    def ask(self) -> None:
        """Fill the report, and write the results."""

    def run(self, progress: Progress) -> R:
        """Read what is new in the sources, ask, and record the audit in `cleaner_runs`."""
        store = self.options.audits or next(one.store for one in self.options.sources if one.store is not None)
        return recorded(self.report.job, store, partial(self._run, store, progress), dry_run=False)

    def _run(self, store: str, progress: Progress) -> R:
        began, report, job = time.perf_counter(), self.report, self.report.job
        self.state = open_state(store)
        report.audits, report.keys_hidden = self.state.root.uri, self.options.hide_keys
        listed = self.list_sources()
        report.sources = [one.name for one in listed]
        report.seconds["list"] = time.perf_counter() - began
        segments = [s for one in listed for partition in one.partitions for s in partition.segments]
        roots = {s.root for s in segments} - {report.audits}
        check_apart(Place("--audits", report.audits), *(Place("what is audited", root) for root in sorted(roots)))
        uri, brief = uri_for_spark(self.state.root), sum(s.size_bytes for s in segments) < _FEW_BYTES
        tables = (uri, *self.spark_tables)
        with spark_workers(job, self.options, report, progress, brief=brief, tables=tables) as self.workers:
            if not self.state.root.is_local:  # before hours of reading
                with self.workers.spark(job) as spark:
                    connector.connect(spark, uri)
            at = time.perf_counter()
            settings = ReadSettings(self.options.config, audit_secret(self.state), report.keys_hidden, self.cuts())
            self.found = gather(self.state, listed, settings, self.workers, progress)
            report.seconds["read"] = time.perf_counter() - at
            report.stretches_read, report.bytes_read = self.found.stretches_read, self.found.bytes_read
            report.other_problems += self.found.all_problems
            at = time.perf_counter()
            try:
                self.ask()
            except Exception as error:
                if not isinstance(error, JobError):
                    check_files(self.state, self.found.files)  # raises if a task failed at one of them
                raise
            report.seconds["ask"] = time.perf_counter() - at
        return report
