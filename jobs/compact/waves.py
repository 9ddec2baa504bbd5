"""Waves of partitions: their tasks, and a commit for each wave while the next one works."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any, Final

from jobs.command.progress import BYTES, BySize, Progress, Silent
from jobs.compact.choose import KEYS, Choice, choose
from jobs.compact.commit import check_files, commit_of
from jobs.compact.due import Start, begins_anew, begun_anew
from jobs.compact.plan import clean_settings
from jobs.compact.report import CompactReport
from jobs.compact.splits import compact_in_splits
from jobs.errors import ConflictError
from jobs.spark.session import local_cores
from jobs.spark.tasks import for_this_attempt
from jobs.spark.workers import SparkTasks, StartSpark, Threads, Workers
from jobs.store.manifests import write_manifests
from jobs.store.rows import Commit
from jobs.store.tables import State
from udfs.compact.one_task import compact_partition
from udfs.compact.plan import PartitionPlan, PartitionResult
from udfs.storage import open_root

_AT_ONCE: Final = 2  # partitions in several tasks: one's stages fill the gaps between those of the other


def _one_partition(plan: PartitionPlan) -> PartitionResult:
    return compact_partition(for_this_attempt(plan))


def run_waves(
    start_spark: StartSpark, state: State, start: Start, plans: Sequence[PartitionPlan], progress: Progress
) -> None:
    """Waves of partitions, the largest first; the commit of one runs while the next one works."""
    job = start.options.config.job
    todo = sorted(plans, key=lambda p: -_size(p))
    n_bytes = sum(map(_size, todo))
    progress.start("compact", n_bytes, BYTES)
    cores = local_cores() if job.engine != "window" and n_bytes <= job.without_spark_bytes else None
    workers: Workers = SparkTasks(start_spark()) if cores is None else Threads(start_spark, cores)
    try:
        _work_through(workers, state, start, todo, progress)
    finally:
        workers.close()
    progress.close()


def _work_through(workers: Workers, state: State, start: Start, todo: list[PartitionPlan], progress: Progress) -> None:
    options, report = start.options, start.report
    job, commit_seconds = options.config.job, 0.0
    with ThreadPoolExecutor(1) as pool:
        committing: Future[float] | None = None
        while todo and not report.conflict:
            batch, todo = _next_wave(todo, job.wave_partitions, job.wave_minutes, report)
            results = _in_tasks(workers, choose(batch, workers), progress)
            for plan in batch:
                result = next(r for r in results if (r.topic, r.partition) == (plan.topic, plan.partition))
                key = (plan.topic, plan.partition)
                wrong = result.problem is not None and result.problem.kind == "side_file"
                if (plan.known_until is not None or wrong) and begins_anew(options, key, result.problem):
                    report.anew.add(key)
                    results.remove(result)
                    todo.append(begun_anew(plan, start.archive.partitions[key], checkpoints=not wrong))
            report.results += results
            if committing is not None:
                commit_seconds += _committed(committing, report)
                committing = None
            cleaned = [r for r in results if r.status == "cleaned"]
            if cleaned and not options.dry_run and not report.conflict:
                commits = [_commit_of(start, r) for r in cleaned]
                committing = pool.submit(_timed, _wave_committer(state, commits, report))
        if committing is not None:
            progress.doing("committing")
            commit_seconds += _committed(committing, report)
    report.seconds["commit"] = commit_seconds


def _commit_of(start: Start, r: PartitionResult) -> Commit:
    key, report = (r.topic, r.partition), start.report
    return commit_of(
        r,
        start.archive.partitions[key],
        start.checkpoints.get(key),
        report.archive,
        start.options.now_ms,
        clean_settings(start.settings[r.topic]),
        anew=key in report.anew,
        job_run_id=report.run_id,
    )


def _next_wave(
    todo: list[PartitionPlan], most: int, minutes: int, report: CompactReport
) -> tuple[list[PartitionPlan], list[PartitionPlan]]:
    """As many partitions as the settings allow: in number, and in bytes by the speed of the waves so far."""
    done = sum(r.bytes_before for r in report.results)
    spent = sum(sum(r.seconds.values()) for r in report.results)
    batch: list[PartitionPlan] = []
    held = 0
    for plan in todo[:most]:
        held += sum(s.listed.size for s in plan.segments)
        if batch and done and held * spent / done > minutes * 60:
            break
        batch.append(plan)
    return batch, todo[len(batch) :]


def _size(plan: PartitionPlan) -> int:
    return sum(s.listed.size for s in plan.segments)


def _in_tasks(workers: Workers, choice: Choice, progress: Progress) -> list[PartitionResult]:
    """The tasks of both ways at once, so that those of one fill the gaps between the stages of the other."""

    def several(plan: PartitionPlan, because: str, told: bool) -> PartitionResult:
        workers.named(f"{plan.topic}-{plan.partition}")
        part = _Counted(progress, told)
        result = replace(compact_in_splits(workers, plan, part), several_because=because)
        part.advance(_size(plan) - part.done)
        return result

    def one_task() -> list[PartitionResult]:
        counted = BySize(progress, [_size(p) for p in choice.one_task])
        done = workers.run(_one_partition, choice.one_task, counted.advance)
        counted.finish()
        for plan, result in zip(choice.one_task, done, strict=True):
            if result.status == "too_large":  # another try of that task may still write to its folder, or remove it
                elsewhere = replace(plan, folder=f"{plan.folder}.0")
                in_several.append(pool.submit(several, elsewhere, KEYS, True))
        return [r for r in done if r.status != "too_large"]

    pool, other_pool = ThreadPoolExecutor(_AT_ONCE), ThreadPoolExecutor(1)
    in_several = [pool.submit(several, plan, choice.because, False) for plan in choice.several]
    in_one = other_pool.submit(one_task)
    try:
        first: list[Future[Any]] = [in_one, *in_several]
        for futures in (first, in_several):  # to which in_one may have added some
            for ended in as_completed(futures):
                ended.result()  # of a wave of which one fails nothing is committed: the others end too
        return in_one.result() + [future.result() for future in in_several]
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        workers.end([in_one, *in_several])
        raise
    finally:
        pool.shutdown(wait=False)
        other_pool.shutdown(wait=False)


class _Counted(Silent):
    """Progress of one large partition, to know what is left to say at its end; `told`: it was counted already."""

    def __init__(self, progress: Progress, told: bool) -> None:
        self.progress, self.told, self.done = progress, told, 0

    def advance(self, n: int = 1) -> None:
        """More bytes are done."""
        self.done += n
        self.progress.advance(0 if self.told else n)


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


def _wave_committer(state: State, commits: list[Commit], report: CompactReport) -> Callable[[], None]:
    store = open_root(report.store)

    def work() -> None:
        write_manifests(store, commits)  # before the commit: what counts can be found without the tables
        state.commit_wave(commits, lambda: check_files(store, commits))
        for commit in commits:
            report.generations[commit.topic, commit.partition] = commit.checkpoint.generation

    return work
