"""`verify ARCHIVE`, `verify --store STORE`: the invariants, checked apart from the code that compacts.

An archive, or a restored log directory, is checked for what one side allows. A generation is checked against its
manifest, and against what it was made of where those files are still there. What could not be checked is said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from jobs.archive.listing import Archive, ArchivedPartition, archive_at, matching
from jobs.command.config import Config
from jobs.command.options import VerifyOptions
from jobs.command.progress import Progress
from jobs.command.reporting import ShownInNotebooks, count, seconds, size, table
from jobs.errors import DONE, PROBLEMS, MissingPathError, NoGenerationError
from jobs.spark.each import WITHOUT_SPARK_BYTES, each
from jobs.store.rows import Checkpoint, RunRow, Segment
from logformat import names
from udfs.compact.plan import LastBatch, OutputSegment, Problem, SegmentInput, SideFile
from udfs.storage import Root, normal_uri, open_root
from udfs.verify.generation import GenerationPlan, check_generation
from udfs.verify.partition import CheckedSegment, CheckPlan, CheckResult, check_partition
from udfs.verify.side_files import check_log_directory

Key = tuple[str, int]
T = TypeVar("T")

_TEXT_PROBLEMS = 200  # listed in text; JSON has all


@dataclass
class VerifyReport(ShownInNotebooks):
    """What was checked, what is wrong, what could not be checked."""

    side: str  # archive or store
    uri: str
    results: list[CheckResult] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # of no partition that was checked
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    side_files: int = 0
    generations: dict[Key, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def all_problems(self) -> list[Problem]:
        """Every row."""
        return [*self.problems, *(p for r in self.results for p in r.problems)]

    @property
    def exit_code(self) -> int:
        """0, or 3 where anything is wrong."""
        return PROBLEMS if self.all_problems else DONE

    def _total(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """For programs; every problem."""
        totals = ("segments", "batches", "records", "bytes", "compared_records")
        return {
            "job": "verify",
            self.side: self.uri,
            "exit_code": self.exit_code,
            "checked": {"partitions": len(self.results), **{name: self._total(name) for name in totals},
                        "log_directory_files": self.side_files},
            "partitions": [self._partition(r) for r in self.results],
            "problems": [_problem(p) for p in self.problems],
            "notes": self.notes,
            "not_checked": [*self.not_checked, *(n for r in self.results for n in r.not_checked)],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }  # fmt: skip

    def _partition(self, r: CheckResult) -> dict[str, Any]:
        out = asdict(r) | {"problems": [_problem(p) for p in r.problems], "seconds": round(r.seconds, 4)}
        out["generation"] = self.generations.get((r.topic, r.partition))
        return out

    def to_text(self) -> str:
        """For people: what was checked, then every problem."""
        header = ("partition", "generation", "problems", "segments", "batches", "records", "bytes", "compared")
        rows = [
            (f"{r.topic}-{r.partition}", count(self.generations.get((r.topic, r.partition))), count(len(r.problems)),
             count(r.segments), count(r.batches), count(r.records), size(r.bytes),
             count(r.compared_records) if r.compared_records else "")
            for r in self.results
        ]  # fmt: skip
        out = [table(header, rows, left=(0,))] if rows else ["no partition to check"]
        problems = self.all_problems
        out += [f"problem: {p}" for p in problems[:_TEXT_PROBLEMS]]
        if len(problems) > _TEXT_PROBLEMS:
            out.append(f"and {len(problems) - _TEXT_PROBLEMS} more problems: --json lists all")
        out += [f"note: {note}" for note in [*self.notes, *(n for r in self.results for n in r.notes)]]
        out += [f"not checked: {n}" for n in [*self.not_checked, *(n for r in self.results for n in r.not_checked)]]
        compared = self._total("compared_records")
        more = f", {compared:,} of them against what they were made of" if compared else ""
        beside = f", {self.side_files} files of log directories" if self.side_files else ""
        out.append(
            f"checked {len(self.results)} partitions: {self._total('segments'):,} segments, "
            f"{size(self._total('bytes'))}, {self._total('batches'):,} batches, "
            f"{self._total('records'):,} records{more}{beside}"
        )
        out.append(f"{len(problems)} problems" if problems else "no problem found")
        out.append("seconds: " + ", ".join(f"{name} {seconds(value)}" for name, value in self.seconds.items()))
        return "\n".join(out)


def _problem(p: Problem) -> dict[str, Any]:
    out = asdict(p)
    del out["state"]
    return out


def run(options: VerifyOptions, progress: Progress) -> VerifyReport:
    """Check an archive or a store. A small archive is checked without Spark: its start would cost more."""
    started = time.perf_counter()
    if options.store is None:
        report = _verify_archive(options, progress)
    else:
        report = _verify_store(options, normal_uri(options.store), progress)
    report.results.sort(key=lambda r: (r.topic, r.partition))
    report.seconds["total"] = time.perf_counter() - started
    return report


# -- an archive


def _verify_archive(options: VerifyOptions, progress: Progress) -> VerifyReport:
    uri = normal_uri(options.archive or "")
    report = VerifyReport("archive", uri)
    at = time.perf_counter()
    archive = archive_at(uri, matching(options.topics))
    report.notes += archive.notes
    report.seconds["list"] = time.perf_counter() - at
    plans = []
    for archived in archive.partitions.values():
        report.notes += archived.notes
        if archived.problem is not None:
            report.problems.append(archived.problem)
        if archived.segments and (archived.problem is None or archived.problem.kind == "duplicate"):
            plans.append(
                plan_archived(archived, archive.root, options.config, sealed=options.sealed, gaps=options.gaps)
            )
        else:
            report.not_checked.append(f"{archived.path}: its segments")
        if archived.high_watermark is not None and archived.held_by_broker:
            report.notes.append(f"{archived.path}: a running broker may be writing to it: run again on a copy")
    for directory in sorted({path.rpartition("/")[0] for path in (a.path for a in archive.partitions.values())}):
        checked = check_log_directory(uri, directory)
        report.side_files += checked.files
        report.problems += checked.problems
    at = time.perf_counter()
    report.results += _each(check_partition, plans, sum(s.size for p in plans for s in p.segments), progress)
    report.seconds["check"] = time.perf_counter() - at
    return report


def plan_archived(
    archived: ArchivedPartition, root: Root, config: Config, *, sealed: bool, gaps: str | None = None
) -> CheckPlan:
    """What a task is told of an archived partition."""
    settings = config.topic_settings(archived.topic)

    def side_file(path: str | None, offset: int = 0) -> SideFile | None:
        return SideFile("archive", path, offset) if path is not None else None

    segments = []
    for s in archived.segments:
        of = archived.indexes.get(s.base_offset, {})
        segments.append(
            CheckedSegment(
                SideFile("archive", s.path, s.base_offset), s.size, side_file(of.get(names.INDEX), s.base_offset),
                side_file(of.get(names.TIME_INDEX), s.base_offset), side_file(of.get(names.TXN_INDEX), s.base_offset),
            )
        )  # fmt: skip
    return CheckPlan(
        topic=archived.topic, partition=archived.partition, name=archived.path, archive_uri=root.uri, store_uri="",
        segments=tuple(segments),
        snapshots=tuple(SideFile("archive", path, offset) for offset, path in archived.snapshots.items()),
        leader_epochs=side_file(archived.side_files.get(names.LEADER_EPOCH_CHECKPOINT)),
        metadata=side_file(archived.side_files.get(names.PARTITION_METADATA)),
        log_start_offset=archived.log_start_checkpoint, cleaner_checkpoint=archived.cleaner_checkpoint,
        high_watermark=archived.high_watermark, sealed=sealed,
        orphans=tuple(SideFile("archive", path, base) for base, path in archived.orphans.items()),
        gaps_accepted=(gaps or settings.gaps) == "accept",
        index_interval_bytes=settings.index_interval_bytes, max_index_bytes=settings.segment_index_bytes,
        max_batch_bytes=settings.max_decompressed_batch_bytes, chunk_bytes=config.job.chunk_bytes,
    )  # fmt: skip


def _each(
    check: Callable[[T], CheckResult], plans: Sequence[T], total_bytes: int, progress: Progress
) -> Iterator[CheckResult]:
    """Every plan checked."""
    progress.start("verify", len(plans))
    yield from each(check, plans, progress, with_spark=total_bytes > WITHOUT_SPARK_BYTES)
    progress.close()


# -- a store


def _verify_store(options: VerifyOptions, store_uri: str, progress: Progress) -> VerifyReport:
    from jobs.spark import session  # noqa: PLC0415 - an archive may be verified without Spark
    from jobs.store.tables import open_state  # noqa: PLC0415 - as above

    report = VerifyReport("store", store_uri)
    at = time.perf_counter()
    state = open_state(session.start(), store_uri, single_writer=options.config.job.single_writer)
    if not state.exists():
        raise MissingPathError(path=store_uri, expected="a store with generations", found="none")
    checkpoints = {
        key: row
        for key, row in state.checkpoints().items()
        if options.topics is None or fnmatchcase(key[0], options.topics)
    }
    histories = state.histories({topic for topic, _ in checkpoints})
    runs = _runs(options, checkpoints, histories, report)
    manifests = state.manifests({key: (run.generation_after, run.run_id) for key, run in runs.items()})
    parents = {
        key: (r.generation_before, r.parent_run_id)
        for key, r in runs.items() if r.parent_run_id is not None and not r.began_anew
    }  # fmt: skip
    before = state.manifests(parents) if parents else {}
    archives = {uri: _archive_now(uri, options.topics) for uri in {_archive_of(options, r) for r in runs.values()}}
    report.seconds["state"] = time.perf_counter() - at
    store = open_root(store_uri)
    plans = []
    for key, run in sorted(runs.items()):
        report.generations[key] = run.generation_after
        if run.began_anew:
            report.notes.append(
                f"{key[0]}-{key[1]}: generation {run.generation_after} began anew (--reset): compared with the archive "
                f"that it was made of, not with generation {run.generation_before}"
            )
        uri = _archive_of(options, run)
        previous = next((r for r in histories[key] if r.generation_after == run.generation_before), None)
        plans.append(
            plan_generation(
                run, manifests[key], before.get(key), previous, archives[uri], store, uri,
                options.config.job.chunk_bytes, options.config.job.task_memory_bytes,
            )
        )  # fmt: skip
    at = time.perf_counter()
    total = sum(s.size for p in plans for s in p.side.segments) + sum(s.size for p in plans for s in p.parent)
    report.results += _each(check_generation, plans, total, progress)
    report.seconds["check"] = time.perf_counter() - at
    return report


def _archive_of(options: VerifyOptions, run: RunRow) -> str:
    return normal_uri(options.archive_moved) if options.archive_moved is not None else run.archive_uri


def _archive_now(uri: str, topics: str | None) -> Archive | None:
    try:
        return archive_at(uri, matching(topics))
    except (MissingPathError, OSError):
        return None


def _runs(
    options: VerifyOptions,
    checkpoints: Mapping[Key, Checkpoint],
    histories: Mapping[Key, Sequence[RunRow]],
    report: VerifyReport,
) -> dict[Key, RunRow]:
    """The run that made the generation that is asked for, of each partition that has it."""
    out = {}
    for key, checkpoint in checkpoints.items():
        wanted = options.generation or checkpoint.generation
        found = [run for run in histories.get(key, ()) if run.generation_after == wanted]
        if found:
            out[key] = found[0]
        else:
            held = ", ".join(str(r.generation_after) for r in histories.get(key, ())) or "none"
            report.not_checked.append(f"{key[0]}-{key[1]}: it has no generation {wanted}; there are: {held}")
    if not out and options.generation is not None:
        raise NoGenerationError(
            partition="every partition", found=options.generation, reason="never committed",
            expected="one of the generations of the store",
        )  # fmt: skip
    return out


def plan_generation(
    run: RunRow,
    manifest: Sequence[Segment],
    before: Sequence[Segment] | None,
    previous: RunRow | None,
    archive: Archive | None,
    store: Root,
    archive_uri: str,
    chunk_bytes: int,
    task_memory_bytes: int,
) -> GenerationPlan:
    """What a task is told of a generation. `before`: the manifest of the parent; None: the archive alone is."""
    settings: dict[str, Any] = json.loads(run.settings)
    name = names.partition_folder(run.topic, run.partition)
    folder = f"segments/{name}/{run.generation_after}-{run.run_id}"

    def ours(base: int, kind: str) -> SideFile:
        return SideFile("store", f"{folder}/{names.segment_file(base, kind)}", base)

    segments = tuple(
        CheckedSegment(
            SideFile("store" if s.root == "store" else "archive", s.path, s.base_offset), s.size_bytes,
            ours(s.base_offset, names.INDEX), ours(s.base_offset, names.TIME_INDEX),
            ours(s.base_offset, names.TXN_INDEX) if s.txn_index_bytes else None,
        )
        for s in manifest
    )  # fmt: skip
    bases = [s.base_offset for s in manifest if s.base_offset > run.log_start_offset]
    side = CheckPlan(
        topic=run.topic, partition=run.partition, name=name, archive_uri=archive_uri, store_uri=store.uri,
        segments=segments, snapshots=tuple(ours(base, names.SNAPSHOT) for base in [*bases, run.next_offset]),
        leader_epochs=SideFile("store", f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}", 0),
        metadata=SideFile("store", f"{folder}/{names.PARTITION_METADATA}", 0) if run.topic_id else None,
        generation=True, index_interval_bytes=settings["index_interval_bytes"],
        max_index_bytes=settings["segment_index_bytes"],
        max_batch_bytes=settings["max_decompressed_batch_bytes"], chunk_bytes=chunk_bytes,
    )  # fmt: skip
    archived = archive.partitions.get((run.topic, run.partition)) if archive is not None else None
    gone, parent = _parent(run, before, archived, archive_uri, manifest)
    return GenerationPlan(
        side=side, manifest=tuple(_row(s) for s in manifest), folder=folder, log_start_offset=run.log_start_offset,
        next_offset=run.next_offset,
        last_batch=LastBatch(run.last_batch_base_offset, run.last_batch_leader_epoch, run.last_batch_crc),
        first_dirty_offset=run.first_dirty_offset, end_offset=run.end_offset, now_ms=run.now_ms,
        delete_retention_ms=settings["delete_retention_ms"], null_keys=settings["null_keys"], parent=parent,
        parent_log_start_offset=previous.log_start_offset if previous is not None and before is not None else 0,
        parent_gone=gone, task_memory_bytes=task_memory_bytes,
    )  # fmt: skip


def _row(s: Segment) -> OutputSegment:
    return OutputSegment(**{name: getattr(s, name) for name in OutputSegment.__dataclass_fields__})


def _parent(
    run: RunRow,
    before: Sequence[Segment] | None,
    archived: ArchivedPartition | None,
    archive_uri: str,
    manifest: Iterable[Segment],
) -> tuple[str, tuple[SegmentInput, ...]]:
    """(why there is nothing to compare with, else ""; what the run read): the segments of ours that the generation
    before had, and the archive from there on, as far as the run went.
    """
    held = [s for s in before or () if s.root == "store"]
    parent = [SegmentInput("store", s.path, s.base_offset, s.size_bytes, s.mtime_ms) for s in held]
    covered = held[-1].next_offset if held else 0
    if covered < run.next_offset:
        if archived is None or not archived.segments:
            return f"{archive_uri} does not hold this partition any more", ()
        for s, after in zip(archived.segments, [*archived.segments[1:], None], strict=True):
            end = after.base_offset if after is not None else run.next_offset
            if s.base_offset < run.next_offset and end > covered:
                parent.append(
                    SegmentInput(
                        "archive", s.path, max(s.base_offset, covered), s.size, s.mtime_ms,
                        from_offset=covered if s.base_offset < covered else 0,
                    )
                )  # fmt: skip
    first = min((s.base_offset for s in manifest), default=0)
    if parent and parent[0].base_offset > first:
        return f"its first offset is {parent[0].base_offset} now, it was {first}", ()
    return "", tuple(parent)
