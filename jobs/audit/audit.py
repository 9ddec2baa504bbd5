"""Frame of every audit: tables, sources, the reading of what is new, the answers to a question, the report.

Tasks answer a question from `audit_entries`: one commit puts the files of a result table. The fingerprint of a unit
covers all inputs that its rows depend on: the reads of its sources, the options, and other inputs that an audit names.
Rows of units whose fingerprint has not changed are kept.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.audit.records import Gathered, ReadRange, ReadSettings, gather
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.store_options import AuditOptions
from lastkey.jobs.errors import JobError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.spark.engine import chosen_engine, spark_workers, workers
from lastkey.jobs.spark.workers import Workers
from lastkey.jobs.store.audits import audit_secret, check_files, commit_results, result_files, results_folder
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.paths import AUDIT_ENTRIES, table_folder
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.answers import AnswerFile, Asked, Fingerprints, Question, answer, fingerprints_in, keep
from lastkey.udfs.audit.entries import Cuts
from lastkey.udfs.audit.runs import ALL_PARTITIONS, Shown, Sides, Unit, ranges
from lastkey.udfs.storage import delete_folder, exists

MOST: Final = 20  # rows of a table of the report; the tables of the store have all
_MOST_ROWS: Final = 2_000_000  # rows of a task, which needs 200 bytes for each
O = TypeVar("O", bound=AuditOptions)  # noqa: E741
R = TypeVar("R", bound=AuditReport)
Part = tuple[int, ReadRange]  # side, and what its source shows
Parts = Mapping[Unit, Sequence[Part]]
Side = tuple[str, Mapping[str, str] | None]  # a source, and its topics -> their names among the units; None: their own


More = Callable[[Asked, Sequence[AnswerFile]], list[AnswerFile]]


class Audit(ABC, Generic[O, R]):
    """An audit. A kind defines the listing, the offsets where versions may be added up, and the final questions."""

    workers: Workers
    state: State
    found: Gathered
    spark_tables: tuple[str, ...] = ()  # URIs of tables that only Spark reads, in Hadoop's spelling

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
        began, report = time.perf_counter(), self.report
        self.state = open_state(store)
        report.audits, report.keys_hidden = self.state.root.uri, self.options.hide_keys
        listed = self.list_sources()
        report.sources = [one.name for one in listed]
        report.seconds["list"] = time.perf_counter() - began
        segments = [s for one in listed for partition in one.partitions for s in partition.segments]
        roots = {s.root for s in segments} - {report.audits}
        check_apart(Place("--audits", report.audits), *(Place("what is audited", root) for root in sorted(roots)))
        with self._made_workers(sum(s.size_bytes for s in segments), progress) as self.workers:
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

    def _made_workers(self, n_bytes: int, progress: Progress) -> AbstractContextManager[Workers]:
        options, report = self.options, self.report
        # Arrow reads tables in a bucket through Python, which a thread cannot do while the process ends
        if self.spark_tables or not self.state.root.is_local:
            brief = not self.spark_tables
            return spark_workers(report.job, options, report, progress, brief=brief, tables=self.spark_tables)
        return workers(chosen_engine(options, writes=True), n_bytes, options.config, report, progress)

    # -- answers

    @contextmanager
    def work_folder(self, table: str, name: str) -> Iterator[str]:
        """Yield a new folder below a table's, for files that tasks pass on; delete it in the end."""
        root, folder = self.state.root, f"{table_folder(table)}/{name}-{uuid.uuid4().hex}"
        try:
            yield folder
        finally:
            if exists(root, folder):
                delete_folder(root, folder)

    def parts_by_unit(self, sides: Sequence[Side], spread: Collection[str] = ()) -> dict[Unit, list[Part]]:
        """Return what the sources show of each unit. spread: topics that are compared as a whole."""
        out: dict[Unit, list[Part]] = {}
        for part in self.found.parts:
            for number, (source, names) in enumerate(sides):
                topic = part.read.topic if names is None else names.get(part.read.topic)
                if part.source == source and topic is not None:
                    unit = topic, ALL_PARTITIONS if topic in spread else part.read.partition
                    out.setdefault(unit, []).append((number, part))
        return out

    def answer(
        self, table: str, question: Question, parts: Parts, extra: Mapping[Unit, object], more: More = lambda *_: []
    ) -> tuple[Any, list[Any]]:
        """Answer a question, and put the files in place of those of the last audit. Return the summary of all rows, and
        what else the tasks returned.

        extra: other inputs of a unit's rows. more: writes more rows of the units that are answered.
        """
        root, below = self.state.root.uri, f"{table_folder(table)}/"
        fingerprints = {unit: _fingerprint(parts.get(unit, ()), extra.get(unit)) for unit in sorted({*parts, *extra})}
        every = Asked(_sides(root, {}), question, below + results_folder(question.source), fingerprints)
        same, kept = self._kept(below, result_files(self.state, table, question.source), every)
        new = {unit: text for unit, text in fingerprints.items() if unit not in same}
        asked = replace(every, sides=_sides(root, {unit: parts.get(unit, ()) for unit in new}), fingerprints=new)
        self.report.partitions_answered, self.report.partitions_kept = len(new), len(same)
        fresh = list[AnswerFile]()
        if new or not kept:
            n_rows = sum(part.read.entries for unit in new for _, part in parts.get(unit, ()))
            bounds = ranges(n_rows, _MOST_ROWS, self.workers.cores)
            fresh = self.workers.run(partial(answer, asked), bounds, self.report.job)
        files = [*fresh, *kept, *more(asked, fresh)]
        written = [DataFile.counted(one.path.removeprefix(below), one.size, one.rows) for one in files if one.size]
        old = {one.path.removeprefix(below) for one in files if not one.size}
        commit_results(self.state, table, question.source, question.schema, written, old)
        return question.merged([one.summary for one in files]), [one.more for one in fresh]

    def _kept(self, below: str, names: Sequence[str], every: Asked) -> tuple[Fingerprints, list[AnswerFile]]:
        """Keep the rows of units that have not changed, unless a file of the last answer is lost or damaged. Return
        these units, and the files.
        """
        earlier = {below + name: fingerprints_in(self.state.root.uri, below + name) for name in names}
        known = defaultdict[Unit, set[str]](set)
        for units in earlier.values():
            if units is None:
                return {}, []
            for unit, text in units.items():
                known[unit].add(text)
        same = {unit: text for unit, text in every.fingerprints.items() if known[unit] == {text}}
        paths = [path for path, units in earlier.items() if not same.keys().isdisjoint(units or ())]
        task = partial(keep, replace(every, fingerprints=same))
        kept = self.workers.run(task, paths, "audit: unchanged results")
        files = [one for one in kept if one is not None]
        return (same, files) if len(files) == len(kept) else ({}, [])


def _fingerprint(parts: Sequence[Part], extra: object) -> str:
    shown = sorted((side, one.read.read_id, one.start_offset, one.end_offset) for side, one in parts)
    return hashlib.sha256(json.dumps([shown, extra], sort_keys=True).encode()).hexdigest()[:32]


def _sides(root: str, parts: Parts) -> Sides:
    files: tuple[dict[str, list[Shown]], ...] = {}, {}
    for number, of in enumerate(parts.values()):
        for side, part in of:
            if part.read.file:
                shown = files[side].setdefault(f"{table_folder(AUDIT_ENTRIES)}/{part.read.file}", [])
                shown.append(Shown(part.read.entries_id, number, part.read.partition))
    return Sides(root, tuple(parts), tuple({path: sorted(set(of)) for path, of in side.items()} for side in files))
