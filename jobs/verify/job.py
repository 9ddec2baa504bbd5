"""`verify ARCHIVE`, `verify --store STORE`: checks the invariants with code apart from the code that compacts.

An archive, or a restored log directory, is checked as far as one side allows. A generation is checked against its
manifest, and against the files it was made of if those are still there. The report lists the checks that were not
possible.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lastkey.jobs.archive.listing import Archive, listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, counted, counts, labelled, with_io_counts
from lastkey.jobs.errors import GenerationError, MissingPathError
from lastkey.jobs.spark.engine import each
from lastkey.jobs.store.generations import checkpoint_at, list_generations, nobody_has, open_store
from lastkey.jobs.store.manifests import read_manifest, read_manifests
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.jobs.topics import Key, select_topics
from lastkey.jobs.verify.plan_checks import plan_archived, plan_generation
from lastkey.logformat.errors import NO_POSITION, unreadable
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, normal_uri, same_kind
from lastkey.udfs.verify.findings import CheckResult
from lastkey.udfs.verify.generation import check_generation
from lastkey.udfs.verify.partition import check_log_directory, check_partition


@dataclass
class VerifyReport(JobReport):
    """Report of what was checked, what is wrong, and what could not be checked."""

    job = "verify"
    results_at = "results"
    facts = "archive store checked partitions=results not_checked=all_not_checked"
    text_tables = (
        TextTable(
            "results",
            "partition generation n_problems:problems segments batches records bytes compared_records:compared",
            {"n_problems": lambda r: len(r.problems)},
            total="partition",
            needs_attention=lambda r: bool(r.problems or r.not_checked),
        ),
    )

    archive: str | None = None
    store: str | None = None
    results: list[CheckResult] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    side_files: int = 0

    @property
    def all_not_checked(self) -> list[str]:
        """Items that could not be checked, including those of partitions."""
        return [*self.not_checked, *(n for r in self.results for n in r.not_checked)]

    @property
    def checked(self) -> dict[str, int]:
        """Sums of what was checked."""
        names = ("segments", "batches", "records", "bytes", "compared_records")
        sums = {name: sum(getattr(r, name) for r in self.results) for name in names}
        return {"partitions": len(self.results), **sums, "log_directory_files": self.side_files}

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        states = ("problems" if r.problems else "not_checked" if r.not_checked else "checked" for r in self.results)
        read = {"read_bytes": self.checked["bytes"], "read_records": self.checked["records"]}
        return super().figures() | read | {"partitions": counts(states)}

    def _lines(self) -> Iterable[str]:
        held_back = [r.held_back for r in self.results if r.held_back]
        return [*labelled("held back", held_back), *labelled("not checked", self.all_not_checked)]

    def _outcome(self) -> str:
        n, problems = self.checked, len(self.problems)
        beside = f", {counted(self.side_files, 'file')} of log directories" if self.side_files else ""
        what = f"checked {counted(n['partitions'], 'partition')}, {counted(n['records'], 'record')}{beside}"
        return f"{what}: {counted(problems, 'problem') if problems else 'no problem found'}"


_AT_ONCE: Final = 8  # manifests


@with_io_counts
def run(options: VerifyOptions, progress: Progress) -> VerifyReport:
    """Check an archive or a store."""
    if options.store is None:
        report = _verify_archive(options, progress)
    else:
        report = _verify_store(options, normal_uri(options.store), progress)
    report.results.sort(key=lambda r: (r.topic, r.partition))
    return report


# -- an archive


def _verify_archive(options: VerifyOptions, progress: Progress) -> VerifyReport:
    uri = normal_uri(options.archive or "")
    report = VerifyReport(archive=uri)
    at = time.perf_counter()
    archive = listed(uri, options.topics)
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, uri)
    report.notes += archive.notes
    report.other_problems += archive.unreadable
    report.seconds["list"] = time.perf_counter() - at
    plans = []
    for archived in archive.partitions.values():
        report.notes += archived.notes
        if archived.problem is not None:
            report.other_problems.append(archived.problem)
        if archived.segments and (archived.problem is None or archived.problem.kind == "duplicate"):
            plans.append(plan_archived(archived, options.config, sealed=options.sealed))
        else:
            report.not_checked.append(f"{archived.path}: its segments")
        if archived.high_watermark is not None and archived.held_by_broker:
            report.notes.append(f"{archived.path}: a running broker may be writing to it: run again on a copy")
    named = {archived.path for archived in archive.partitions.values()}
    others = (left.path for left in archive.without_segments if left.path not in named)
    report.not_checked += [f"{path}: a partition's folder without a segment" for path in sorted(others)]
    for directory in sorted({path.rpartition("/")[0] for path in (a.path for a in archive.partitions.values())}):
        n_files, problems = check_log_directory(uri, directory)
        report.side_files += n_files
        report.other_problems += problems
    at = time.perf_counter()
    sizes = [sum(s.size_bytes for s in p.segments) for p in plans]
    progress.start("verify", sum(sizes), BYTES)
    report.results += each(check_partition, plans, "verify: partitions", options, report, progress, sizes=sizes)
    progress.close()
    report.seconds["check"] = time.perf_counter() - at
    return report


# -- a store


def _verify_store(options: VerifyOptions, store_uri: str, progress: Progress) -> VerifyReport:
    report = VerifyReport(store=store_uri)
    at = time.perf_counter()
    tables = open_store(store_uri)
    store = tables.root
    current = tables.checkpoints()
    check_topics(options.topics, (topic for topic, _ in current), store_uri)
    checkpoints = select_topics(options.topics, current)
    commits = _commits(options, store, checkpoints, report)
    manifests = tables.manifests(commit.checkpoint for commit in commits.values())
    parents = read_manifests(store, [commit.parent for commit in commits.values() if not commit.run.reset])
    runs = {key: commit.run for key, commit in commits.items()}
    uris = {_choose_archive(options, r) for r in runs.values()}
    archives = {uri: _archive_now(uri, options, report) for uri in sorted(uris)}
    report.seconds["state"] = time.perf_counter() - at
    plans = []
    for key, run in sorted(runs.items()):
        if run.reset:
            report.notes.append(
                f"{key[0]}-{key[1]}: generation {run.generation_after} started over (--reset); compared with the "
                f"archive that it was made from, not with generation {run.generation_before}"
            )
        uri, previous, row = _choose_archive(options, run), parents.get(commits[key].parent), checkpoints[key]
        plans.append(plan_generation(run, manifests[key], previous, archives[uri], store, uri, options.config.job, row))
    at = time.perf_counter()
    sizes = [sum(s.size_bytes for s in p.side.segments) + sum(s.size_bytes for s in p.parent) for p in plans]
    progress.start("verify", sum(sizes), BYTES)
    results = each(check_generation, plans, "verify: partitions", options, report, progress, sizes=sizes)
    progress.close()
    generations = {key: options.generation or row.generation for key, row in checkpoints.items()}
    report.results = [replace(r, generation=generations[r.topic, r.partition]) for r in results]
    report.seconds["check"] = time.perf_counter() - at
    return report


def _commits(
    options: VerifyOptions, store: Root, current: Mapping[Key, Checkpoint], report: VerifyReport
) -> dict[Key, Commit]:
    """Return the commit that made the files of the wanted generation, of each partition that has it: a rollback's are
    those of the generation that it goes back to.
    """
    wanted = {key: options.generation or row.generation for key, row in current.items()}

    def find(key: Key) -> Commit | GenerationError | None:
        try:
            row = checkpoint_at(store, current[key], wanted[key])
            return read_manifest(store, row.folder) if row is not None else None
        except GenerationError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        commit_by_key = dict(zip(current, pool.map(find, current), strict=True))
    for key, commit in commit_by_key.items():
        if isinstance(commit, GenerationError):
            path, expected, other = (str(commit.fields[name]) for name in ("path", "expected", "found"))
            problem = Problem("unreadable", path, NO_POSITION, expected, other, hint=commit.advice)
            report.other_problems.append(problem)
        elif commit is None:
            held = ", ".join(str(number) for number, _ in list_generations(store, current[key]))
            report.not_checked.append(
                f"{partition_folder(*key)}: it has no generation {wanted[key]}; there are: {held}"
            )
    if not any(commit_by_key.values()) and options.generation is not None:
        raise nobody_has(options.generation)
    return {key: commit for key, commit in commit_by_key.items() if isinstance(commit, Commit)}


def _choose_archive(options: VerifyOptions, run: RunRow) -> str:
    if options.archive_moved is None:
        return run.archive_uri
    return same_kind(normal_uri(options.archive_moved), run.archive_uri)


def _archive_now(uri: str, options: VerifyOptions, report: VerifyReport) -> Archive | None:
    """List the archive that generations were made of. Return None if it cannot be read, which is a problem, or is
    missing. A missing archive is no problem, because it may no longer be needed. Raise MissingPathError if it is
    missing and the user named it.
    """
    try:
        return listed(uri, options.topics)
    except MissingPathError:
        if options.archive_moved is not None:
            raise
    except OSError as error:
        report.other_problems.append(Problem.of(unreadable(uri, error)))
    return None
