"""The main job: compact the partitions of an archive that are due, and commit each as a new generation of the store.

  archive (names, sizes, small files) + store (checkpoints, manifests) -> a plan for each partition
  waves of partitions: one task each (or several splits) -> new files, read back -> one Delta commit
COMPACTION.md has the rules, the guarantees and what it costs.
"""

from __future__ import annotations

import json
import platform
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

from pyspark.sql import SparkSession

from jobs import state as store_state
from jobs.archive import Archive, ArchivedPartition, list_archive
from jobs.config import Config, TopicSettings
from jobs.errors import ConflictError, MissingPathError, PolicyError, UsageError

from jobs.errors import DONE, PROBLEMS  # isort: skip
from jobs import session as spark_session
from jobs.options import CompactOptions
from jobs.plan_partitions import NotPlanned, inputs_from_archive, inputs_from_generation
from jobs.progress import Progress
from jobs.report import PartitionLine, before_after_table, seconds, size
from jobs.splits import compact_in_splits
from jobs.state import Checkpoint, Commit, PartitionState, RunRow, Segment, State
from jobs.tasks import for_this_attempt, run_tasks
from logformat.names import partition_folder
from udfs.cleaner import SegmentFacts, cleanable_range, first_dirty_offset, is_due
from udfs.compact_partition import compact_partition
from udfs.plan import CleanSettings, Limits, OutputSegment, PartitionPlan, PartitionResult, Problem
from udfs.storage import Root, normal_uri, open_root

import numpy as np  # isort: skip

Key = tuple[str, int]


@dataclass
class CompactReport:
    """What was done, partition by partition."""

    archive: str
    store: str
    run_id: str
    now_ms: int
    dry_run: bool
    results: list[PartitionResult] = field(default_factory=list)
    generations: dict[Key, int] = field(default_factory=dict)
    archive_needed: bool = True
    expired_nothing: list[str] = field(default_factory=list)  # topics of policy compact,delete
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    conflict: str = ""

    @property
    def exit_code(self) -> int:
        """0, or 3 where partitions were set aside, or 4 where another run was first."""
        if self.conflict:
            return ConflictError.exit_code
        return PROBLEMS if any(r.status == "set_aside" for r in self.results) else DONE

    def to_json(self) -> dict[str, Any]:
        """For programs; bytes, seconds, counts by reason for each partition."""
        return {
            "job": "compact",
            "archive": self.archive,
            "store": self.store,
            "run_id": self.run_id,
            "now_ms": self.now_ms,
            "dry_run": self.dry_run,
            "exit_code": self.exit_code,
            "archive_needed": self.archive_needed,
            "conflict": self.conflict or None,
            "partitions": [self._partition(r) for r in self.results],
            "expired_nothing": self.expired_nothing,
            "notes": self.notes,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }

    def _partition(self, r: PartitionResult) -> dict[str, Any]:
        return {
            "topic": r.topic,
            "partition": r.partition,
            "status": r.status,
            "generation": self.generations.get((r.topic, r.partition)),
            "problem": asdict(r.problem) if r.problem else None,
            "first_dirty_offset_before": r.first_dirty_before,
            "first_dirty_offset": r.first_dirty_offset,
            "log_start_offset": r.log_start_offset,
            "next_offset": r.next_offset,
            "dirty_ratio": round(r.dirty_ratio, 6),
            "clean_bytes": r.clean_bytes,
            "dirty_bytes": r.dirty_bytes,
            "bytes_before": r.bytes_before,
            "bytes_after": r.bytes_after,
            "bytes_after_is_estimate": self.dry_run and r.counters.get("batches_rebuilt", 0) > 0 and _compressed(r),
            "bytes_read": r.bytes_read,
            "bytes_written": r.bytes_written,
            "recompressed_bytes": r.recompressed_bytes,
            "segments_before": r.segments_before,
            "segments_after": len(r.segments),
            **r.counters,
            "splits": r.splits,
            "peak_memory_bytes": r.peak_memory_bytes,
            "seconds": {name: round(value, 4) for name, value in r.seconds.items()},
            "notes": list(r.notes),
        }

    def to_text(self) -> str:
        """For people: before -> after, then what they should know."""
        lines = [_line(r, self.dry_run) for r in self.results]
        out = [before_after_table(lines)] if lines else ["no partition of a compacted topic in the archive"]
        cleaned = [r for r in self.results if r.status == "cleaned"]
        dropped = {
            reason: sum(r.counters.get(f"dropped_{key}", 0) for r in cleaned)
            for key, reason in (
                ("superseded", "superseded"), ("tombstones", "expired tombstones"),
                ("aborted", "of aborted transactions"),
                ("null_key", "without a key"), ("markers", "transaction markers"),
            )
        }  # fmt: skip
        said = ", ".join(f"{n:,} {reason}" for reason, n in dropped.items() if n)
        if cleaned:
            verb = "would be dropped" if self.dry_run else "dropped"
            out.append(f"records {verb}: {said or 'none'}")
            out.append(
                f"read {size(sum(r.bytes_read for r in cleaned))}, "
                f"{'would write' if self.dry_run else 'wrote'} {size(sum(r.bytes_written for r in cleaned))}"
            )
        for r in self.results:
            if r.problem is not None:
                out.append(f"set aside: {r.name()}: {r.problem}")
        if self.expired_nothing:
            out.append(f"policy compact,delete: only compacted, nothing was expired: {', '.join(self.expired_nothing)}")
        out += [f"note: {note}" for note in [*self.notes, *(n for r in self.results for n in r.notes)]]
        if self.conflict:
            out.append(f"conflict: {self.conflict}")
        if self.dry_run:
            out.append("dry run: nothing was written; ~ marks sizes that recompression decides")
        elif cleaned or self.generations:
            need = "is still needed: generations use segments of it" if self.archive_needed else "is no longer needed"
            out.append(f"the archive {need}")
        out.append("seconds: " + ", ".join(f"{name} {seconds(value)}" for name, value in self.seconds.items()))
        return "\n".join(out)


def _compressed(r: PartitionResult) -> bool:
    return any(codec != "none" for s in r.segments for codec in s.codecs.split(",") if codec)


def _line(r: PartitionResult, dry_run: bool) -> PartitionLine:
    state = {"cleaned": "clean", "not_due": "not due", "set_aside": r.problem.state if r.problem else "set aside"}
    if r.status != "cleaned":
        return PartitionLine(r.topic, r.partition, state.get(r.status, r.status))
    dropped = sum(r.counters[k] for k in r.counters if k.startswith("dropped_"))
    kept = r.counters["records_kept"]
    return PartitionLine(
        r.topic, r.partition, "clean" if not dry_run else "would clean",
        records_before=kept + dropped, records_after=kept,
        bytes_before=r.bytes_before, bytes_after=r.bytes_after,
        segments_before=r.segments_before, segments_after=len(r.segments),
        estimate=dry_run and _compressed(r),
    )  # fmt: skip


def run(options: CompactOptions, progress: Progress) -> CompactReport:
    """Compact what is due. The Spark session starts while the archive is listed."""
    started = time.perf_counter()
    archive_uri, store_uri = normal_uri(options.archive), normal_uri(options.store)
    _check_options(options, archive_uri, store_uri)
    run_id = uuid.uuid4().hex
    report = CompactReport(archive_uri, store_uri, run_id, options.now_ms, options.dry_run)
    with ThreadPoolExecutor(1) as pool:
        session: Future[SparkSession] = pool.submit(spark_session.start)
        archive, settings = _listed(options, archive_uri, report)
        report.seconds["list"] = time.perf_counter() - started
        spark = session.result()
    report.seconds["session"] = time.perf_counter() - started
    at = time.perf_counter()
    state = store_state.open_state(spark, store_uri, single_writer=options.config.job.single_writer)
    checkpoints = state.checkpoints()
    _check_one_archive(options, archive_uri, checkpoints)
    known = [key for key in archive.partitions if key in checkpoints and not _is_reset(options, key)]
    manifests = state.manifests(known) if known else {}
    plans = list(_plans(options, archive, settings, checkpoints, manifests, run_id, report))
    report.seconds["state"] = time.perf_counter() - at
    at = time.perf_counter()
    _run_waves(spark, state, options, plans, archive, checkpoints, report, progress)
    report.seconds["partitions"] = time.perf_counter() - at
    if not options.dry_run:
        at = time.perf_counter()
        states = [_state_of(r, report, options.now_ms) for r in report.results]
        if states:
            state.set_states(states)
        report.seconds["cleaner_state"] = time.perf_counter() - at
    report.archive_needed = _archive_needed(report, checkpoints, manifests)
    report.results.sort(key=lambda r: (r.topic, r.partition))
    report.seconds["total"] = time.perf_counter() - started
    return report


def _check_options(options: CompactOptions, archive_uri: str, store_uri: str) -> None:
    if options.cleanup_policy is not None and options.topics is None:
        raise UsageError(message="--cleanup-policy needs --topics: it applies to the topics that are named there")
    if options.cleanup_policy not in (None, "compact"):
        raise UsageError(message=f"--cleanup-policy: expected compact, found {options.cleanup_policy}")
    inside = f"{store_uri}/".startswith(f"{archive_uri}/") or f"{archive_uri}/".startswith(f"{store_uri}/")
    if inside:
        raise UsageError(message=f"the store {store_uri} and the archive {archive_uri} must not lie in one another")


def _check_one_archive(options: CompactOptions, archive_uri: str, checkpoints: dict[Key, Checkpoint]) -> None:
    for key, checkpoint in checkpoints.items():
        if checkpoint.archive_uri != archive_uri and not _is_reset(options, key):
            raise UsageError(
                message=f"{options.store}: this store serves the archive {checkpoint.archive_uri}, not {archive_uri}; "
                "give each archive a store of its own, or --reset the topics that have moved"
            )


def _is_reset(options: CompactOptions, key: Key) -> bool:
    return options.reset is not None and fnmatchcase(key[0], options.reset)


def _listed(
    options: CompactOptions, archive_uri: str, report: CompactReport
) -> tuple[Archive, dict[str, TopicSettings]]:
    """The partitions whose topic is named and whose policy says compact, and the settings of their topics."""
    root = open_root(archive_uri)
    try:
        archive = list_archive(root, lambda topic: options.topics is None or fnmatchcase(topic, options.topics))
    except FileNotFoundError:
        raise MissingPathError(path=archive_uri, expected="a folder with Kafka log directories", found="none") from None
    settings = {topic: _settings(options, topic) for topic in sorted({t for t, _ in archive.partitions})}
    others = sorted(topic for topic, s in settings.items() if not s.compacts)
    archive.partitions = {k: p for k, p in archive.partitions.items() if settings[k[0]].compacts}
    if others:
        report.notes.append(f"left alone, cleanup.policy is not compact: {', '.join(others)}")
    report.expired_nothing = sorted(t for t, s in settings.items() if s.compacts and s.expires)
    report.notes += archive.notes
    return archive, settings


def _settings(options: CompactOptions, topic: str) -> TopicSettings:
    settings = options.config.topic_settings(topic)
    if options.cleanup_policy is not None and not settings.compacts:
        if settings.named:
            raise PolicyError(topic=topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy))
        settings = replace(settings, cleanup_policy=("compact",))
    return settings if options.null_keys is None else replace(settings, null_keys=options.null_keys)


def _plans(
    options: CompactOptions,
    archive: Archive,
    settings: dict[str, TopicSettings],
    checkpoints: dict[Key, Checkpoint],
    manifests: dict[Key, list[Segment]],
    run_id: str,
    report: CompactReport,
) -> Iterator[PartitionPlan]:
    """Plans of the partitions that may be due; the others go into the report at once."""
    secret = (secrets.randbits(64), secrets.randbits(64))
    for key, archived in sorted(archive.partitions.items()):
        checkpoint = None if _is_reset(options, key) else checkpoints.get(key)
        report.notes += archived.notes
        try:
            if archived.problem is not None:
                raise NotPlanned(archived.problem)
            if options.sealed and archived.held_by_broker:
                raise NotPlanned(_held(archived))
            if checkpoint is None:
                inputs = inputs_from_archive(archived)
            else:
                inputs = inputs_from_generation(archived, checkpoint, manifests[key], archive.root.uri)
        except NotPlanned as reason:
            report.results.append(PartitionResult(*key, "set_aside", problem=reason.problem))
            continue
        previous = checkpoints[key].generation if key in checkpoints else 0
        folder = f"segments/{partition_folder(*key)}/{previous + 1}-{run_id}"
        plan = PartitionPlan(
            topic=archived.topic, partition=archived.partition, archive_uri=archive.root.uri, store_uri=report.store,
            folder=folder, high_watermark=archived.high_watermark, sealed=options.sealed, force=options.force,
            dry_run=options.dry_run, now_ms=options.now_ms, settings=_clean_settings(settings[key[0]]),
            limits=_limits(options.config), secret=secret, **inputs,  # type: ignore[arg-type]
        )  # fmt: skip
        not_due = _surely_not_due(plan)
        if not_due is not None:
            report.results.append(not_due)
        else:
            yield plan


def _held(archived: ArchivedPartition) -> Problem:
    return Problem(
        "unreadable", archived.path, 0, "an archive that nothing writes to, as --sealed says", "a broker's lock",
        hint="leave --sealed out, or stop the broker",
    )  # fmt: skip


def _clean_settings(settings: TopicSettings) -> CleanSettings:
    names = CleanSettings.__dataclass_fields__
    return CleanSettings(**{name: getattr(settings, name) for name in names})


def _limits(config: Config) -> Limits:
    return Limits(config.job.chunk_bytes, config.job.task_memory_bytes, config.job.split_bytes)


def _surely_not_due(plan: PartitionPlan) -> PartitionResult | None:
    """Not due by the listing alone: high watermark, open transactions and lags could only make less cleanable."""
    if plan.force or plan.settings.max_compaction_lag_ms < 2**63 - 1 or not plan.segments:
        return None
    n = len(plan.segments)
    none = np.full(n, -1, np.int64)
    facts = SegmentFacts(
        np.array([s.base_offset for s in plan.segments], np.int64),
        np.array([s.size for s in plan.segments], np.int64),
        none, none, np.array([s.mtime_ms for s in plan.segments], np.int64),
    )  # fmt: skip
    last = plan.segments[-1].base_offset
    end = max(last + 1, plan.known_until or 0)
    active = end if plan.sealed else last
    dirty = first_dirty_offset(plan.checkpoint, plan.log_start_offset, 2**63 - 1)
    if plan.sealed and any(s.from_offset for s in plan.segments):
        return None  # whether the rest of a cut segment holds anything is seen only in it
    cleanable = cleanable_range(
        facts, first_dirty=dirty, log_end_offset=end, active_base_offset=active, last_stable_offset=2**63 - 1,
        min_compaction_lag_ms=0, now_ms=plan.now_ms,
    )  # fmt: skip
    if is_due(cleanable, 0, plan.settings.min_cleanable_dirty_ratio, plan.settings.min_dirty_bytes, False):
        return None
    return PartitionResult(
        plan.topic, plan.partition, "not_due", first_dirty_before=dirty, first_dirty_offset=dirty,
        log_start_offset=plan.log_start_offset, next_offset=plan.known_until or -1, dirty_ratio=cleanable.ratio,
        clean_bytes=cleanable.clean_bytes, dirty_bytes=cleanable.cleanable_bytes,
    )  # fmt: skip


def _one_partition(plan: PartitionPlan) -> PartitionResult:
    return compact_partition(for_this_attempt(plan))


def _run_waves(
    spark: SparkSession,
    state: State,
    options: CompactOptions,
    plans: Sequence[PartitionPlan],
    archive: Archive,
    checkpoints: dict[Key, Checkpoint],
    report: CompactReport,
    progress: Progress,
) -> None:
    """Waves of partitions, the largest first; the commit of one runs while the next one works."""
    job = options.config.job
    todo = sorted(plans, key=lambda p: -sum(s.size for s in p.segments))
    progress.start("compact", len(todo))
    commit_seconds = 0.0
    with ThreadPoolExecutor(1) as pool:
        committing: Future[float] | None = None
        wave = 0
        while todo and not report.conflict:
            batch, todo = _next_wave(todo, job.wave_partitions, job.wave_minutes, report)
            results = _run_wave(spark, batch)
            progress.advance(len(batch))
            report.results += results
            if committing is not None:
                commit_seconds += _committed(committing, report)
                committing = None
            cleaned = [r for r in results if r.status == "cleaned"]
            if cleaned and not options.dry_run and not report.conflict:
                commits = [_commit(r, options, archive, checkpoints, report) for r in cleaned]
                committing = pool.submit(_timed, _wave_committer(state, commits, wave, report))
                wave += 1
        if committing is not None:
            commit_seconds += _committed(committing, report)
    report.seconds["commit"] = commit_seconds
    progress.close()


def _next_wave(
    todo: list[PartitionPlan], most: int, minutes: int, report: CompactReport
) -> tuple[list[PartitionPlan], list[PartitionPlan]]:
    """As many partitions as the settings allow: in number, and in bytes by the speed of the waves so far."""
    done = sum(r.bytes_before for r in report.results)
    spent = sum(sum(r.seconds.values()) for r in report.results)
    batch: list[PartitionPlan] = []
    held = 0
    for plan in todo[:most]:
        held += sum(s.size for s in plan.segments)
        if batch and done and held * spent / done > minutes * 60:
            break
        batch.append(plan)
    return batch, todo[len(batch) :]


def _run_wave(spark: SparkSession, plans: Sequence[PartitionPlan]) -> list[PartitionResult]:
    large = [p for p in plans if sum(s.size for s in p.segments) > p.limits.split_bytes]
    small = [p for p in plans if p not in large]
    results = []
    for plan, result in zip(small, run_tasks(spark, _one_partition, small), strict=True):
        if result.status == "too_large":
            large.append(plan)
        else:
            results.append(result)
    return results + [compact_in_splits(spark, plan) for plan in large]


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _committed(future: Future[float], report: CompactReport) -> float:
    try:
        return future.result()
    except ConflictError as error:
        report.conflict = error.line()
        return 0.0


def _wave_committer(state: State, commits: list[Commit], wave: int, report: CompactReport) -> Callable[[], None]:
    store = open_root(report.store)

    def work() -> None:
        state.commit_wave(commits, wave, lambda: _check_files(store, commits))
        for commit in commits:
            report.generations[commit.topic, commit.partition] = commit.checkpoint.generation

    return work


def _check_files(store: Root, commits: Sequence[Commit]) -> None:
    """The wave's files, listed once more: each is there with the size that the manifest says."""
    for commit in commits:
        for segment in commit.segments:
            if segment.root != "store":
                continue
            info = store.filesystem.get_file_info(store.full(segment.path))
            if info.size != segment.size_bytes:
                raise RuntimeError(
                    f"{segment.path}: before the commit: expected {segment.size_bytes} bytes, found {info}"
                )


def _commit(
    r: PartitionResult,
    options: CompactOptions,
    archive: Archive,
    checkpoints: dict[Key, Checkpoint],
    report: CompactReport,
) -> Commit:
    key = (r.topic, r.partition)
    archived, before = archive.partitions[key], checkpoints.get(key)
    generation = (before.generation if before else 0) + 1
    run_id = r.folder.rpartition("/")[2].partition("-")[2]
    identity = {
        "topic_id": archived.topic_id or (before.topic_id if before else None),
        "cluster_id": archived.cluster_id or (before.cluster_id if before else None),
        "archive_uri": report.archive,
        "last_batch_base_offset": r.last_batch.base_offset,
        "last_batch_leader_epoch": r.last_batch.leader_epoch,
        "last_batch_crc": r.last_batch.crc,
    }
    counters = {name: n for name, n in r.counters.items() if name in RunRow.__dataclass_fields__}
    return Commit(
        topic=r.topic,
        partition=r.partition,
        planned_generation=before.generation if before else 0,
        planned_run_id=before.run_id if before else None,
        checkpoint=Checkpoint(
            topic=r.topic, partition=r.partition, generation=generation, run_id=run_id,
            first_dirty_offset=r.first_dirty_offset, log_start_offset=r.log_start_offset, next_offset=r.next_offset,
            log_end_timestamp_ms=r.log_end_timestamp_ms, now_ms=options.now_ms, **identity,
        ),
        segments=[_segment(s, r, generation, run_id) for s in r.segments],
        run=RunRow(
            run_id=run_id, topic=r.topic, partition=r.partition, generation_before=generation - 1,
            generation_after=generation, parent_run_id=before.run_id if before else None, now_ms=options.now_ms,
            started_ms=time.time_ns() // 1_000_000, first_dirty_offset=r.first_dirty_before,
            end_offset=r.first_dirty_offset, log_start_offset=r.log_start_offset, next_offset=r.next_offset,
            settings=json.dumps(asdict(_clean_settings(_settings(options, r.topic)))),
            bytes_read=r.bytes_read, bytes_before=r.bytes_before, bytes_after=r.bytes_after,
            bytes_written=r.bytes_written, seconds=json.dumps(r.seconds), splits=r.splits,
            versions=json.dumps(_versions()), **identity, **counters,
        ),
    )  # fmt: skip


def _segment(s: OutputSegment, r: PartitionResult, generation: int, run_id: str) -> Segment:
    fields = asdict(s)
    return Segment(
        topic=r.topic, partition=r.partition, generation=generation, run_id=run_id,
        dead_records=s.source_records - s.records, dead_bytes=s.source_bytes - s.size_bytes, **fields,
    )  # fmt: skip


def _versions() -> dict[str, str]:
    packages = ("pyspark", "delta-spark", "pyarrow", "numpy", "numba", "google-crc32c", "zstandard", "cramjam")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _state_of(r: PartitionResult, report: CompactReport, now_ms: int) -> PartitionState:
    problem = r.problem
    committed = (r.topic, r.partition) in report.generations
    name = problem.state if problem else ("clean" if committed else "dirty" if r.dirty_bytes else "clean")
    return PartitionState(
        topic=r.topic, partition=r.partition, state=name,
        reason=str(problem) if problem else "", path=problem.path if problem else "",
        position=problem.position if problem else -1, expected=problem.expected if problem else "",
        found=problem.found if problem else "", dirty_ratio=0.0 if committed else r.dirty_ratio,
        clean_bytes=r.clean_bytes, dirty_bytes=0 if committed else r.dirty_bytes,
        first_dirty_offset=r.first_dirty_offset, generation=report.generations.get((r.topic, r.partition), -1),
        run_id=report.run_id, now_ms=now_ms,
    )  # fmt: skip


def _archive_needed(
    report: CompactReport, checkpoints: dict[Key, Checkpoint], manifests: dict[Key, list[Segment]]
) -> bool:
    """Whether any partition that the archive holds lives in it still, wholly or in part."""
    fresh = {(r.topic, r.partition): r for r in report.results}
    for key, r in fresh.items():
        if key in report.generations:
            if any(s.root == "archive" and s.size_bytes for s in r.segments):
                return True
        elif key not in checkpoints or any(s.root == "archive" and s.size_bytes for s in manifests.get(key, [])):
            return True
    return not fresh
