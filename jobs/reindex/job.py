"""`reindex ARCHIVE`: rebuilds index files from the logs alone, compares them with those there, and replaces wrong ones.

First half: a task for each segment, or for consecutive small ones (udfs.reindex.segment). Second half: a fold over each
partition's segments, on the driver, partition by partition (udfs.reindex.side_files). REINDEX.md there has the rules.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from lastkey.jobs.archive.broker_lock import locked
from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed, listed_again
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import Place, check_apart, check_outside
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.options import ReindexOptions
from lastkey.jobs.command.parse import abbreviate_names, check_topics
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, counted, counts, some, with_io_counts
from lastkey.jobs.command.stopping import EarlyEndError, await_result
from lastkey.jobs.command.whole_file import check_empty
from lastkey.jobs.errors import LOG_DIRECTORY_IN_USE, OUTPUT_FULL, UsageError
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION, is_full
from lastkey.logformat.listing import Segment
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.reindex.segment import ReindexTask, SegmentOutcome, reindex_segments
from lastkey.udfs.reindex.side_files import SideFilesPlan, reindex_side_files
from lastkey.udfs.reindex.write import FileReport, Status, Target, impossible, remove_leftovers
from lastkey.udfs.segments import LogSettings
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, is_link, normal_uri, open_root

STATUSES: tuple[Status, ...] = ("same", "differs", "rebuilt", "impossible")
HARMLESS = "other_entries"  # the only reason that misleads no reader


@dataclass
class ReindexedPartition:
    """Files of one partition, and sums of the work on it."""

    facts: ClassVar[str] = "topic partition path files notes segments log_bytes bytes_read bytes_written"

    topic: str
    partition: int
    path: str
    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    segments: int = 0
    log_bytes: int = 0  # size of the logs, as listed
    bytes_read: int = 0
    bytes_written: int = 0
    task_seconds: float = 0.0  # seconds of one core, in the pass over the logs

    @property
    def problems(self) -> list[Problem]:
        """Problems: files that mislead a reader, and files that are impossible to rebuild or cannot be read."""
        return [_problem(f) for f in self.files if _is_wrong(f)]


def _n_files(status: str, p: ReindexedPartition) -> int:
    return sum(file.status == status for file in p.files)


class Totals(TypedDict):
    """Sums of all partitions. reasons: number of files by reason."""

    partitions: int
    segments: int
    files: int
    same: int
    differs: int
    rebuilt: int
    impossible: int
    reasons: dict[str, int]
    log_bytes: int
    bytes_read: int
    bytes_written: int
    megabytes_per_second_per_core: float | None


@dataclass
class ReindexReport(JobReport):
    """Report of all partitions."""

    job = "reindex"
    results_at = "partitions"
    facts = "archive mode output partitions totals"
    text_tables = (
        TextTable(
            "partitions",
            "partition segments log_bytes:log same differs rebuilt impossible bytes_read:read bytes_written:written",
            {status: partial(_n_files, status) for status in STATUSES},
            total="partition",
            needs_attention=lambda p: any(map(_needs_attention, p.files)),
        ),
    )

    archive: str
    mode: str  # check, output, in_place
    output: str | None = None
    partitions: list[ReindexedPartition] = field(default_factory=list)

    @property
    def files(self) -> Iterable[FileReport]:
        """Files of every partition."""
        return (file for partition in self.partitions for file in partition.files)

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        totals = self.totals()
        done = {"read_bytes": totals["bytes_read"], "written_bytes": totals["bytes_written"]}
        states = ("wrong" if any(map(_is_wrong, p.files)) else "right" for p in self.partitions)
        return super().figures() | done | {"partitions": counts(states)}

    def totals(self) -> Totals:
        """Sum the partitions' counts."""
        statuses, reasons = Counter(f.status for f in self.files), Counter(f.reason for f in self.files if f.reason)
        busy = sum(p.task_seconds for p in self.partitions)
        log_bytes = sum(p.log_bytes for p in self.partitions)
        return {
            "partitions": len(self.partitions),
            "segments": sum(p.segments for p in self.partitions),
            "files": sum(statuses.values()),
            "same": statuses["same"],
            "differs": statuses["differs"],
            "rebuilt": statuses["rebuilt"],
            "impossible": statuses["impossible"],
            "reasons": dict(sorted(reasons.items())),
            "log_bytes": log_bytes,
            "bytes_read": sum(p.bytes_read for p in self.partitions),
            "bytes_written": sum(p.bytes_written for p in self.partitions),
            "megabytes_per_second_per_core": round(log_bytes / 1e6 / busy, 1) if busy else None,
        }

    def _problem_texts(self) -> Sequence[object]:
        return self.other_problems  # the rest is in `_lines`

    def _lines(self) -> Iterable[str]:
        return some(map(_line, filter(_needs_attention, self.files)))

    def _outcome(self) -> str:
        totals, wrong = self.totals(), ", ".join(f"{n} {reason}" for reason, n in self.totals()["reasons"].items())
        states = ", ".join(f"{totals[status]:,} {status}" for status in STATUSES if totals[status])
        files = f"{counted(totals['files'], 'file')} of {counted(totals['segments'], 'segment')}"
        return f"{files}: {states or 'none'}" + (f" ({wrong})" if wrong else "")


def _is_wrong(file: FileReport) -> bool:
    return file.status == "impossible" or (file.status == "differs" and file.reason != HARMLESS)


def _problem(file: FileReport) -> Problem:
    """Return the file of a report as a problem, of the log if that is at fault."""
    log = file.status == "impossible" and bool(file.log)
    return Problem(file.reason, file.log if log else file.path, file.position, file.expected, file.found)


def _needs_attention(file: FileReport) -> bool:
    return file.status != "same" or bool(file.reason)


def _line(file: FileReport) -> str:
    """Return `rebuilt: path: wrong at byte 16 (entry 2): expected ..., found ...`."""
    at = f" at byte {file.position}" if file.position >= 0 else ""
    if file.log and file.log != file.path:
        at += f" of {file.log}"
    if file.entry >= 0:
        at += f" (entry {file.entry})"
    expected = f": expected {file.expected}, found {file.found}" if file.expected or file.found else ""
    return f"{file.status}: {file.path}: {file.reason}{at}{expected}"


_TASK_BYTES = 64 << 20  # consecutive segments of a partition up to this size make up one task
_WAVE_TASKS = 4096  # tasks whose results the driver holds at a time
_FOLDS = 8  # partitions whose small files are read and written at a time


@with_io_counts
def run(options: ReindexOptions, progress: Progress) -> ReindexReport:
    """Check, or rebuild, the index files of an archive."""
    started = time.perf_counter()
    uri = normal_uri(options.archive)
    target = _target(options, uri)
    report = ReindexReport(uri, target.mode, target.output_uri or None)
    archive = listed(uri, options.topics)
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, uri)
    if archive.root.is_tiered:
        if target.mode == "in_place":
            raise UsageError(message=f"--in-place: {uri} holds tiered storage, which only Kafka writes: use --output")
        target = replace(target, archive_uri=archive.root.uri)
    if target.mode == "output":
        check_outside(Place("--output", target.output_uri), archive)
    report.notes += archive.notes
    report.other_problems += archive.unreadable
    wanted = [
        archived
        for _, archived in sorted(archive.partitions.items())
        if options.partitions is None or any(archived.partition in part for part in options.partitions)
    ]
    report.seconds["list"] = time.perf_counter() - started
    if archive.partitions and not wanted:
        numbers = sorted({partition for _, partition in archive.partitions})
        there = abbreviate_names([str(number) for number in numbers])
        raise UsageError(message=f"--partition: no partition has one of these numbers; there are {there}")
    with locked(_directories(archive.root, wanted)) if target.mode == "in_place" else nullcontext():
        if target.mode == "in_place":
            wanted = [listed_again(archive, archived) for archived in wanted]
        try:
            _reindex(options, target, archive, wanted, report, progress)
        except OSError as error:
            if is_full(error):
                where = error.filename or target.output_uri or uri
                raise OUTPUT_FULL(path=where, found=error.strerror or "disk full") from error
            raise
    return report


def _target(options: ReindexOptions, uri: str) -> Target:
    if options.mode == "in_place" and not open_root(uri).is_local:
        raise UsageError(message=f"--in-place: {uri} is not on a local disk: use --output")
    if options.mode != "output":
        return Target("in_place" if options.mode == "in_place" else "check", uri)
    output = normal_uri(options.output or "")
    check_apart(Place("--output", output), Place("the archive", uri))
    check_empty(open_root(output))
    return Target("output", uri, output)


def _directories(root: Root, wanted: Sequence[ArchivedPartition]) -> set[Path]:
    """Return the log directories to be locked. Raise LOG_DIRECTORY_IN_USE if a broker holds one."""
    for archived in wanted:
        if archived.held_by_broker:
            raise LOG_DIRECTORY_IN_USE(path=_directory(root, archived), found="a running broker that holds it")
    return {_directory(root, archived) for archived in wanted}


def _directory(root: Root, archived: ArchivedPartition) -> Path:
    return Path(root.full(archived.path)).parent


@dataclass(frozen=True)
class _Planned:
    """Partition with its tasks."""

    archived: ArchivedPartition
    segments: Sequence[Segment]
    tasks: Sequence[ReindexTask]
    report: ReindexedPartition


def _reindex(
    options: ReindexOptions,
    target: Target,
    archive: Archive,
    wanted: Sequence[ArchivedPartition],
    report: ReindexReport,
    progress: Progress,
) -> None:
    at = time.perf_counter()
    planned = [_plan(options, target, archive.root, archived) for archived in wanted]
    n_bytes = sum(s.size_bytes for p in planned for s in p.segments)
    progress.start("reindex", sum(map(_size, (task for p in planned for task in p.tasks))), BYTES)
    engine = chosen_engine(options, writes=True)
    folds: list[Future[ReindexedPartition]] = []
    try:
        with (
            workers(engine, n_bytes, options.config, report, progress) as engine_workers,
            ThreadPoolExecutor(_FOLDS) as pool,
        ):
            for wave in groups(planned, lambda p: len(p.tasks), _WAVE_TASKS):
                tasks = [task for p in wave for task in p.tasks]
                watcher = CountedBytes(progress, [*map(_size, tasks)])
                results = iter(engine_workers.run(reindex_segments, tasks, "reindex: segments", watcher))
                for p in wave:
                    outcomes = [outcome for _ in p.tasks for outcome in next(results)]
                    folds.append(pool.submit(_finish, target, p, outcomes, options.config))
                report.partitions = [await_result(fold) for fold in folds]
            engine_workers.count(
                bytes_read=sum(p.bytes_read for p in report.partitions),
                bytes_written=sum(p.bytes_written for p in report.partitions),
            )
    except (KeyboardInterrupt, EarlyEndError) as error:
        done = len([fold for fold in folds if fold.done()])
        error.add_note(f"{done} of {counted(len(planned), 'partition')} done")
        error.add_note(_left(target))
        raise
    progress.close()
    report.seconds["reindex"] = time.perf_counter() - at


def _left(target: Target) -> str:
    """Return the hint after a run that ended early: the state of its files, and the next step."""
    if target.mode == "in_place":
        return "each file is the old one or the new one; run again to continue"
    if target.mode == "output":
        return f"remove {target.output_uri}, or give another --output, and run again"
    return "run again"


def _size(task: ReindexTask) -> int:
    return sum(s.size_bytes for s in task.segments)


def _plan(options: ReindexOptions, target: Target, root: Root, archived: ArchivedPartition) -> _Planned:
    notes = [note for note in archived.notes if names.REBUILT not in note]  # each of these files has a row of its own
    report = ReindexedPartition(archived.topic, archived.partition, archived.path, notes=notes)
    if archived.problem is not None:
        report.files.append(_nothing_done(archived.path, archived.problem))
        return _Planned(archived, (), (), report)
    if target.mode == "in_place":
        if linked := _linked(root, archived.path):
            found = "a symbolic link, through which nothing is written"
            why = Problem("unreadable", linked, NO_POSITION, "a folder in the archive", found)
            report.files.append(_nothing_done(archived.path, why))
            return _Planned(archived, (), (), report)
        try:
            removed = remove_leftovers(root, archived.path)
        except OSError as error:
            report.notes.append(f"{archived.path}: what a killed run left could not be removed: {error}")
        else:
            report.notes += (
                [f"{archived.path}: removed {counted(removed, 'file')} that a killed run left"] if removed else []
            )
    segments = _safe(archived, report)
    report.segments, report.log_bytes = len(segments), sum(s.size_bytes for s in segments)
    settings = LogSettings.of(options.config.topic_settings(archived.topic), options.config.job.chunk_bytes)
    bases = [*(s.base_offset for s in archived.segments), None]
    tasks = [
        ReindexTask(
            target,
            archived.path,
            tuple(segments[i] for i in group),
            settings,
            bases[group[-1] + 1],
            check_crc=not options.skip_crc,
        )
        for group in groups(range(len(segments)), lambda i: segments[i].size_bytes, _TASK_BYTES)
    ]
    return _Planned(archived, segments, tasks, report)


def _linked(root: Root, path: str) -> str:
    """Return the first symbolic link on the way from the archive to a partition's folder; "" without a link."""
    parts = path.split("/") if path else []
    above = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((folder for folder in above if is_link(root, folder)), "")


def _nothing_done(path: str, problem: Problem) -> FileReport:
    return impossible(problem.path, "folder" if problem.path == path else "log", problem)


def _safe(archived: ArchivedPartition, report: ReindexedPartition) -> Sequence[Segment]:
    """Return the segments that may be judged: if a broker holds the log, those that end below its high watermark."""
    if not archived.held_by_broker:
        return archived.segments
    end = archived.high_watermark or 0
    below = [s for s, after in zip(archived.segments, archived.segments[1:], strict=False) if after.base_offset <= end]
    report.notes.append(
        f"{archived.path}: a running broker holds it; looked at {len(below)} of "
        f"{counted(len(archived.segments), 'segment')}, those that end below the high watermark {end}"
    )
    return below


def _finish(target: Target, p: _Planned, outcomes: Sequence[SegmentOutcome], config: Config) -> ReindexedPartition:
    """Do the second half of a partition, and return its row of the report."""
    archived, report = p.archived, p.report
    for outcome in outcomes:
        report.files += outcome.files
        report.bytes_read += outcome.bytes_read
        report.bytes_written += outcome.bytes_written
        report.task_seconds += outcome.seconds
        if outcome.torn_bytes:
            report.notes.append(
                f"{outcome.log}: the last {outcome.torn_bytes} bytes are not a whole batch; its indexes cover what is "
                "before them, and a broker truncates it there"
            )
    if not outcomes:
        return report
    plan = SideFilesPlan(
        target,
        archived.path,
        archived.log_start_checkpoint,
        archived.snapshots,
        {s.base_offset: s.txn_index for s in archived.segments if s.txn_index is not None},
        archived.leader_epochs,
        archived.side_files.get(names.LEADER_EPOCH_CHECKPOINT),
        config.topic_settings(archived.topic).producer_id_expiration_ms,
        ends_here=not archived.held_by_broker,
    )
    step("segments reindexed")
    done = attempt(archived.path, lambda: reindex_side_files(plan, outcomes))
    step("partition reindexed")
    if isinstance(done, Problem):
        report.files.append(_nothing_done(archived.path, done))
        return report
    report.files += done.files
    report.files.sort(key=lambda file: file.path.rpartition("/")[2])
    report.notes += done.notes
    report.bytes_read += done.bytes_read
    report.bytes_written += done.bytes_written
    return report
