"""The main job: compact the partitions of an archive that are due, and commit each as a new generation of the store.

  archive (names, sizes, small files) + store (checkpoints, manifests) -> a plan for each partition
  waves of partitions: one task each (or several splits) -> new files, read back -> one Delta commit
COMPACTION.md has the rules, the guarantees and what it costs.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from pyspark.sql import SparkSession

from jobs.archive.listing import Archive, ArchivedPartition, listed
from jobs.archive.places import Place, check_apart, check_outside, is_same
from jobs.command.config import Config, TopicSettings
from jobs.command.options import CompactOptions
from jobs.command.progress import Progress
from jobs.compact.commit import check_files, commit_of, state_of
from jobs.compact.plan import NotPlanned, inputs_from_archive, inputs_from_generation
from jobs.compact.report import CompactReport
from jobs.compact.splits import compact_in_splits
from jobs.errors import ConflictError, PolicyError, UsageError
from jobs.spark import session as spark_session
from jobs.spark.tasks import for_this_attempt, run_tasks
from jobs.store import tables as store_state
from jobs.store.paths import generation_folder
from jobs.store.rows import Checkpoint, Commit, Segment
from jobs.store.tables import State
from jobs.topics import matches
from udfs.compact.cleaner import SegmentFacts, cleanable_range, first_dirty_offset, is_due
from udfs.compact.one_task import compact_partition
from udfs.compact.plan import CleanSettings, Limits, PartitionPlan, PartitionResult
from udfs.problem import Problem
from udfs.segments import LastBatch
from udfs.storage import normal_uri, open_root

Key = tuple[str, int]


def run(options: CompactOptions, progress: Progress) -> CompactReport:
    """Compact what is due."""
    started = time.perf_counter()
    archive_uri, store_uri = normal_uri(options.archive), normal_uri(options.store)
    _check_options(options, archive_uri, store_uri)
    run_id = uuid.uuid4().hex
    report = CompactReport(archive_uri, store_uri, run_id, options.now_ms, options.dry_run)
    archive, settings = _listed(options, archive_uri, report)
    report.seconds["list"] = time.perf_counter() - started
    if not archive.partitions:
        return report
    at = time.perf_counter()
    spark = spark_session.start(brief=not _has_large(archive, options.config))
    report.seconds["session"] = time.perf_counter() - at
    at = time.perf_counter()
    state = store_state.open_state(spark, store_uri, single_writer=options.config.job.single_writer)
    checkpoints = state.checkpoints()
    _check_one_archive(options, archive_uri, checkpoints)
    known = {
        key: (checkpoints[key].generation, checkpoints[key].run_id) for key in archive.partitions if key in checkpoints
    }
    manifests = state.manifests(known) if known else {}
    plans = list(_plans(options, archive, settings, checkpoints, manifests, run_id, report))
    report.seconds["state"] = time.perf_counter() - at
    at = time.perf_counter()
    _run_waves(spark, state, options, plans, archive, checkpoints, report, progress)
    report.seconds["partitions"] = time.perf_counter() - at
    if not options.dry_run:
        at = time.perf_counter()
        _say_how_they_stand(state, report, checkpoints, options.now_ms)
        report.seconds["cleaner_state"] = time.perf_counter() - at
    report.archive_needed = _archive_needed(report, checkpoints, manifests)
    report.results.sort(key=lambda r: (r.topic, r.partition))
    report.seconds["total"] = time.perf_counter() - started
    return report


def _say_how_they_stand(state: State, report: CompactReport, checkpoints: dict[Key, Checkpoint], now_ms: int) -> None:
    """Write the partitions' states; of those that were not due only what is new: such a run should cost little."""
    before = state.states() if any(r.status == "not_due" for r in report.results) else {}
    rows = []
    for r in report.results:
        key = (r.topic, r.partition)
        if r.status == "cleaned" and key not in report.generations:
            continue  # another run was first, and knows better
        generation = report.generations.get(key, checkpoints[key].generation if key in checkpoints else -1)
        row, old = state_of(r, generation, report.run_id, now_ms), before.get(key)
        if r.status == "not_due" and old is not None and row == replace(old, run_id=row.run_id, now_ms=row.now_ms):
            continue
        rows.append(row)
    if rows:
        state.set_states(rows)


def _check_options(options: CompactOptions, archive_uri: str, store_uri: str) -> None:
    if options.cleanup_policy is not None and options.topics is None:
        raise UsageError(message="--cleanup-policy needs --topics: it applies to the topics that are named there")
    if options.cleanup_policy not in (None, "compact"):
        raise UsageError(message=f"--cleanup-policy: expected compact, found {options.cleanup_policy}")
    check_apart(Place("the store", store_uri), Place("the archive", archive_uri))


def _check_one_archive(options: CompactOptions, archive_uri: str, checkpoints: dict[Key, Checkpoint]) -> None:
    for key, checkpoint in checkpoints.items():
        if not is_same(checkpoint.archive_uri, archive_uri) and not _is_reset(options, key):
            raise UsageError(
                message=f"{options.store}: this store serves the archive {checkpoint.archive_uri}, not {archive_uri}; "
                "give each archive a store of its own, or --reset the topics that have moved"
            )


def _is_reset(options: CompactOptions, key: Key) -> bool:
    return options.reset is not None and matches(options.reset, key[0])


def _begins_anew(options: CompactOptions, key: Key, problem: Problem | None) -> bool:
    """Whether --reset is meant: a healthy generation goes on, for the archive may not hold any more what is in it."""
    return problem is not None and problem.state in ("diverged", "gap") and _is_reset(options, key)


def _listed(
    options: CompactOptions, archive_uri: str, report: CompactReport
) -> tuple[Archive, dict[str, TopicSettings]]:
    """The partitions whose topic is named and whose policy says compact, and the settings of their topics."""
    archive = listed(archive_uri, options.topics)
    settings = {topic: _settings(options, topic) for topic in sorted({t for t, _ in archive.partitions})}
    others = sorted(topic for topic, s in settings.items() if not s.compacts)
    archive.partitions = {k: p for k, p in archive.partitions.items() if settings[k[0]].compacts}
    if others:
        report.notes.append(f"left alone, cleanup.policy is not compact: {', '.join(others)}")
    report.not_compacted = sorted({*others, *archive.not_wanted})
    report.expired_nothing = sorted(t for t, s in settings.items() if s.compacts and s.expires)
    report.notes += archive.notes
    check_outside(Place("the store", report.store), archive)
    return archive, settings


def _settings(options: CompactOptions, topic: str) -> TopicSettings:
    settings = options.config.topic_settings(topic)
    if options.cleanup_policy is not None and not settings.compacts:
        if settings.named:
            raise PolicyError(topic=topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy))
        settings = replace(settings, cleanup_policy=("compact",))
    return replace(settings, null_keys=options.null_keys or settings.null_keys, gaps=options.gaps or settings.gaps)


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
        checkpoint = checkpoints.get(key)
        report.notes += archived.notes
        try:
            if archived.problem is not None:
                raise NotPlanned(archived.problem)
            if archived.high_watermark_problem is not None:
                raise NotPlanned(archived.high_watermark_problem)
            if options.sealed and archived.held_by_broker:
                raise NotPlanned(_held(archived))
            if checkpoint is None:
                inputs = inputs_from_archive(archived)
            else:
                inputs = inputs_from_generation(
                    archived, checkpoint, manifests[key], archive.root.uri, settings[key[0]].gaps
                )
        except NotPlanned as reason:
            if checkpoint is None or not _begins_anew(options, key, reason.problem):
                report.results.append(PartitionResult(*key, "set_aside", problem=reason.problem))
                continue
            report.anew.add(key)
            inputs = inputs_from_archive(archived) | {"anew": True}
        previous = checkpoint.generation if checkpoint else 0
        folder = generation_folder(*key, previous + 1, run_id)
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


def _anew(plan: PartitionPlan, archived: ArchivedPartition, *, checkpoints: bool) -> PartitionPlan:
    """The plan of a partition that turned out to be another log, from what the archive holds alone; without its
    checkpoints where they contradict the log.
    """
    return replace(
        plan, known_until=None, known_last_batch=LastBatch(), identity_segment=None, known_gaps=(),
        anew=plan.known_until is not None or plan.anew,
        **inputs_from_archive(archived, checkpoints=checkpoints),  # type: ignore[arg-type]
    )  # fmt: skip


def _has_large(archive: Archive, config: Config) -> bool:
    """Whether a partition will be taken in several splits: then the JVM has rows to shuffle."""
    return any(sum(s.size for s in p.segments) > config.job.split_bytes for p in archive.partitions.values())


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
    if max(plan.cleaned_until, plan.log_start_offset, plan.log_start_checkpoint or 0) > end:
        return None  # whether the log reaches that far is seen only in it
    dirty = first_dirty_offset(plan.checkpoint, plan.log_start_offset, end)
    if plan.sealed and any(s.from_offset for s in plan.segments):
        return None  # whether the rest of a cut segment holds anything is seen only in it
    cleanable = cleanable_range(
        facts, first_dirty=dirty, log_end_offset=end, active_base_offset=active, last_stable_offset=2**63 - 1,
        min_compaction_lag_ms=0, now_ms=plan.now_ms,
    )  # fmt: skip
    if is_due(cleanable, 0, plan.settings.min_cleanable_dirty_ratio, plan.settings.min_dirty_bytes, False):
        return None
    unread = any(s.root == "archive" and s.size for s in plan.segments)  # how far it goes is seen only in it
    return PartitionResult(
        plan.topic, plan.partition, "not_due", first_dirty_before=dirty, first_dirty_offset=dirty,
        log_start_offset=plan.log_start_offset, next_offset=-1 if unread else plan.known_until or -1,
        dirty_ratio=cleanable.ratio, clean_bytes=cleanable.clean_bytes, dirty_bytes=cleanable.cleanable_bytes,
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
            counted = _Counted(progress)
            results = _run_wave(spark, batch, counted.advance)
            progress.advance(len(batch) - counted.done)
            for plan in batch:
                result = next(r for r in results if (r.topic, r.partition) == (plan.topic, plan.partition))
                key = (plan.topic, plan.partition)
                wrong = result.problem is not None and result.problem.kind == "side_file"
                if (plan.known_until is not None or wrong) and _begins_anew(options, key, result.problem):
                    report.anew.add(key)
                    results.remove(result)
                    todo.append(_anew(plan, archive.partitions[key], checkpoints=not wrong))
            report.results += results
            if committing is not None:
                commit_seconds += _committed(committing, report)
                committing = None
            cleaned = [r for r in results if r.status == "cleaned"]
            if cleaned and not options.dry_run and not report.conflict:
                commits = [
                    commit_of(
                        r, archive.partitions[r.topic, r.partition], checkpoints.get((r.topic, r.partition)),
                        report.archive, options.now_ms, _clean_settings(_settings(options, r.topic)),
                        anew=(r.topic, r.partition) in report.anew,
                    )
                    for r in cleaned
                ]  # fmt: skip
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


class _Counted:
    """Progress of one wave, to know what is left to say at its end."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.done = progress, 0

    def advance(self, n: int) -> None:
        """More tasks have ended."""
        self.done += n
        self.progress.advance(n)


def _run_wave(
    spark: SparkSession, plans: Sequence[PartitionPlan], on_done: Callable[[int], None]
) -> list[PartitionResult]:
    large = [p for p in plans if sum(s.size for s in p.segments) > p.limits.split_bytes]
    small = [p for p in plans if p not in large]
    results = []
    for plan, result in zip(small, run_tasks(spark, _one_partition, small, on_done), strict=True):
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
        state.commit_wave(commits, wave, lambda: check_files(store, commits))
        for commit in commits:
            report.generations[commit.topic, commit.partition] = commit.checkpoint.generation

    return work


def _archive_needed(
    report: CompactReport, checkpoints: dict[Key, Checkpoint], manifests: dict[Key, list[Segment]]
) -> str:
    """Why the archive is still needed; "": all that it holds is in the store, and there was nothing to note."""
    if report.not_compacted:
        return "it holds other topics"
    if not report.results:
        return "nothing was compacted"
    reasons = [_needed_for(report, r, checkpoints.get((r.topic, r.partition)), manifests) for r in report.results]
    if report.notes or any(r.notes for r in report.results):
        reasons.append("see the notes")
    return next(filter(None, reasons), "")


def _needed_for(
    report: CompactReport, r: PartitionResult, checkpoint: Checkpoint | None, manifests: dict[Key, list[Segment]]
) -> str:
    key = (r.topic, r.partition)
    committed = key in report.generations
    if r.problem is not None or (checkpoint is None and not committed):
        return "partitions have no generation, or were set aside"
    segments = r.segments if committed else manifests.get(key, [])
    if any(s.root == "archive" and s.size_bytes for s in segments):
        return "generations use segments of it"
    if checkpoint is not None and not committed and r.next_offset != checkpoint.next_offset:
        return "it may hold more than the generations"
    if r.gaps or (checkpoint is not None and not committed and checkpoint.gaps):
        return "generations pass over offsets that may still come back"
    return ""
