"""Waves of partitions: their tasks, and a commit for each wave while the next one works.

One task for each partition is the cheapest way, but a large partition among few leaves cores idle. So the cost of both
ways is counted, in bytes of log that one task works through: several tasks share a partition among all cores, at
`_MORE` times the work and the fixed cost of the stages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lastkey.jobs.command.config import JobSettings
from lastkey.jobs.command.failures import is_disk_full
from lastkey.jobs.command.progress import BYTES, CountedBytes, PartOf, Progress
from lastkey.jobs.command.stopping import (
    LOOK_SECONDS,
    EarlyEndError,
    OutOfTimeError,
    Stop,
    await_result,
    begin,
    ended_in_time,
    stoppable,
)
from lastkey.jobs.compact.commit_rows import make_commit
from lastkey.jobs.compact.large import compact_large, on_spark, one_partition
from lastkey.jobs.compact.plan_partitions import begins_anew, restart_plan
from lastkey.jobs.compact.report import describe_committed
from lastkey.jobs.compact.start_outcome import Outcome, Start, partition_key
from lastkey.jobs.errors import ConflictError
from lastkey.jobs.spark.workers import SparkTasks, Workers
from lastkey.jobs.store import writing
from lastkey.jobs.store.folders import list_run_folders
from lastkey.jobs.store.manifests import check_files, write_manifests
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.udfs.compact.output.generation import remove_folder_at
from lastkey.udfs.compact.plan import CleanedLog, PartitionPlan, PartitionResult
from lastkey.udfs.problem import Problem
from lastkey.udfs.steps import step

_AT_ONCE: Final = 2  # partitions in several tasks: the stages of one fill the gaps between those of the other
_MORE: Final = 2.8  # work of several tasks, relative to one: they read each record twice (measured: BENCHMARKS.md)
_STAGES_BYTES: Final = 1536 << 20  # fixed cost of a job's stages: bytes of log that a core cleans in that time
_PASSES: Final = 2  # a task's passes over its input; several tasks make a third, and so does reading back


def run_waves(
    workers: Workers, start: Start, plans: Sequence[PartitionPlan], outcome: Outcome, progress: Progress
) -> None:
    """Compact the partitions in waves, the largest first. If time is limited, those that wait longest come first, so
    that each has its turn. The commit of one wave runs while the next one works.

    If the run is asked to end, it commits the partitions that are finished and removes what it wrote of the others; the
    outcome has the reason.
    """
    todo = sorted(plans, key=lambda p: -p.log_bytes)
    if start.ends_at is not None:
        attempts = _last_attempts(start)
        todo.sort(key=lambda p: attempts.get(partition_key(p.input), (-1, -1)))
    progress.start("compact", sum(p.log_bytes for p in todo), BYTES)
    try:
        workers.start()  # pyspark takes SIGINT's handler when it starts
        with stoppable() as stop, ended_in_time(stop, start.ends_at):
            _work_through(workers, start, todo, outcome, progress, stop)
    except EarlyEndError as error:  # by the second signal, or by another cause without a delay
        committed = describe_committed(outcome.committed, outcome.due)
        error.add_note(f"stopped at once: at least {committed}; vacuum deletes what this run left")
        error.add_note("run again to continue")
        raise
    progress.close()


def _last_attempts(start: Start) -> dict[Key, tuple[int, int]]:
    """Return when each partition was last looked at, and when it was last cleaned, by the runs' own clocks (-1: never).

    Sort key: the partition that has waited longest comes first; among those begun in one run, the unfinished ones.
    """
    cleaned = {key: row.now_ms for key, row in start.checkpoints.items()}
    looked = {key: row.now_ms for key, row in start.state.states().items()}
    keys = cleaned.keys() | looked.keys()
    return {key: (max(looked.get(key, -1), cleaned.get(key, -1)), cleaned.get(key, -1)) for key in keys}


def _work_through(
    workers: Workers, start: Start, todo: list[PartitionPlan], outcome: Outcome, progress: Progress, stop: Stop
) -> None:
    begun, choice, commit_seconds = list[PartitionPlan](), Ways(), 0.0
    committing: Future[float] | None = None
    try:
        while todo and not outcome.conflict and not stop.is_asked:
            begun, todo = _next_wave(todo, start.options.config.job, outcome.results)
            choice = choose_ways(begun, workers)
            step("wave planned")
            results, again = _restarted(start, begun, _in_tasks(workers, choice, progress, stop))
            todo += again
            outcome.reset |= {partition_key(plan.input) for plan in again}
            outcome.results += results
            commit_seconds += _await_commit(committing, outcome)
            committing = _begin_commit(start, results, outcome, str(workers.work()))
        if committing is not None:
            progress.doing("committing")
        commit_seconds += _await_commit(committing, outcome)
        if stop.is_asked:
            outcome.ended_early = stop.asked.result()
            out_of_time = isinstance(outcome.ended_early, OutOfTimeError)
            if out_of_time:
                outcome.cut_off = _at_work(choice, outcome, workers.cores)
            progress.doing("removing unfinished output")
            _cancel(workers, start, [*begun, *todo], outcome)
            if out_of_time and not any(r.status == "stopped" for r in outcome.results):
                outcome.ended_early = None  # all partitions were finished within the limit
    except BaseException as error:
        if committing is not None and isinstance(error, Exception):  # a second signal terminates without waiting
            wait([committing])
        if is_disk_full(error):  # leftovers of tasks that still write would fill the disk
            _cancel(workers, start, [*begun, *todo], outcome)
        raise
    outcome.seconds["commit"] = commit_seconds


def _restarted(
    start: Start, plans: Sequence[PartitionPlan], results: Sequence[PartitionResult]
) -> tuple[list[PartitionResult], list[PartitionPlan]]:
    """Return the results of a wave, and instead of some of them plans that start their partitions over, by --reset."""
    of_keys = {partition_key(plan.input): plan for plan in plans}
    out, not_planned, again = list[PartitionResult](), list[PartitionResult](), list[PartitionPlan]()
    for result in results:
        key = partition_key(result)
        wrong = result.problem is not None and result.problem.kind == "side_file"
        is_first = of_keys[key].input.generation.next_offset is None
        if (is_first and not wrong) or not begins_anew(start, key, result.problem):
            out.append(result)
            continue
        plan = restart_plan(start, of_keys[key], checkpoints=not wrong)
        if isinstance(plan, Problem):
            not_planned.append(replace(result, problem=plan))
        else:
            again.append(plan)
    return out + not_planned, again


def _cancel(workers: Workers, start: Start, plans: Sequence[PartitionPlan], outcome: Outcome) -> None:
    """Add a result `stopped` for each partition without one, and remove what this run wrote of it."""
    step("run stopped")
    workers.cancel([])
    ended, store = workers.await_end(), start.state.root
    for key in sorted({partition_key(plan.input) for plan in plans} - {partition_key(r) for r in outcome.results}):
        outcome.results.append(PartitionResult(*key, "stopped", log=CleanedLog(next_offset=-1)))
        if start.options.dry_run:
            continue
        for path, (_, run_id) in list_run_folders(store, *key):
            if run_id.startswith(start.run_id):  # folders of every attempt, and those of keys
                remove_folder_at(store, path)
                if not ended:
                    outcome.notes.append(
                        f"{path}: something may still have written there when the run ended; vacuum deletes it"
                    )


def _at_work(choice: Ways, outcome: Outcome, cores: int) -> set[Key]:
    """Return the partitions of a wave that were being processed when time was over: the first ones without a result,
    because workers take partitions in order. These count as attempted, so all others come first in the next run;
    otherwise a partition that never finishes in time would block the others.
    """
    done = {partition_key(r) for r in outcome.results}
    ways = ((choice.one_task, cores), (choice.several, _AT_ONCE))
    left = [([key for p in of if (key := partition_key(p.input)) not in done], n) for of, n in ways]
    return {key for keys, n in left for key in keys[:n]}


def _next_wave(
    todo: list[PartitionPlan], job: JobSettings, results: Sequence[PartitionResult]
) -> tuple[list[PartitionPlan], list[PartitionPlan]]:
    """Split off as many partitions as the settings allow: in number, and in bytes by the speed of the waves so far."""
    done = sum(r.work.bytes_before for r in results)
    spent = sum(sum(r.work.seconds.values()) for r in results)
    wave: list[PartitionPlan] = []
    held = 0
    for plan in todo[: job.wave_partitions]:
        held += plan.log_bytes
        if wave and done and held * spent / done > job.wave_minutes * 60:
            break
        wave.append(plan)
    return wave, todo[len(wave) :]


class _Partitions(CountedBytes):
    """Progress and metrics of a wave's partitions, and the results of those that have ended."""

    wants_results = True

    def __init__(self, progress: Progress, plans: Sequence[PartitionPlan], workers: Workers) -> None:
        super().__init__(progress, [plan.log_bytes for plan in plans], _PASSES)
        self._workers = workers
        self._results: dict[int, PartitionResult] = {}

    def ended(self, item: int, result: PartitionResult | None = None) -> None:
        """Keep the result of a partition."""
        if result is None or item in self._results:
            return
        self._results[item] = result
        super().ended(item)
        kept = result.work.counters.get("records_kept", 0)
        self._workers.count(
            bytes_read=result.work.bytes_read, bytes_written=result.work.bytes_written, records_kept=kept
        )

    def results(self) -> list[PartitionResult]:
        """Return the results in the order of the partitions."""
        return [result for _, result in sorted(self._results.copy().items())]


def _in_tasks(workers: Workers, choice: Ways, progress: Progress, stop: Stop) -> list[PartitionResult]:
    """Run the tasks of both ways at once, so that those of one fill the gaps between the stages of the other. If the
    run is asked to end, return the results there are.
    """
    plans = [*choice.one_task, *choice.several]
    partitions = _Partitions(progress, plans, workers)

    large = iter(list(enumerate(choice.several, len(choice.one_task))))

    def several(spark: SparkTasks) -> None:
        for item, plan in large:  # other threads process items of these partitions too
            spark.set_pool(plan.name)
            part = PartOf(partitions, item)
            partitions.ended(item, compact_large(spark, plan, part, partial(on_spark, spark, part)))

    def one_task() -> None:
        done = workers.run(one_partition, choice.one_task, "compact: a partition in each task", partitions)
        for item, result in enumerate(done):
            partitions.ended(item, result)

    working: list[Future[Any]] = [begin(one_task, "compact")]
    if isinstance(workers, SparkTasks):
        n_threads = min(_AT_ONCE, len(choice.several))
        working += [begin(partial(several, workers), f"compact-large-{number}") for number in range(n_threads)]
    try:
        while pending := [future for future in working if not future.done()]:
            wait([*pending, stop.asked], LOOK_SECONDS, FIRST_COMPLETED)
            if stop.is_asked:
                deque(large, maxlen=0)  # threads start no further item
                known = {result.name() for result in partitions.results()}
                workers.cancel(working)  # and ignore later problems: this may be their cause
                return [r for r in partitions.results() if r.status != "uncleanable" or r.name() in known]
            for future in working:
                if future.done():
                    future.result()  # raises: if one fails, the wave is not committed, and the others end too
        for future in working:
            future.result()
        return partitions.results()
    except BaseException:
        deque(large, maxlen=0)
        workers.cancel(working)
        raise


@dataclass(frozen=True)
class Ways:
    """Partitions of a wave by number of tasks (one or several), in the wave's order."""

    one_task: tuple[PartitionPlan, ...] = ()
    several: tuple[PartitionPlan, ...] = ()


def choose_ways(plans: Sequence[PartitionPlan], workers: Workers) -> Ways:
    """Choose one task or several for each partition. All plans of a run have the same setting."""
    split = plans[0].run.limits.split_by
    if split == "none" or not isinstance(workers, SparkTasks):
        return Ways(tuple(plans))
    # the others read few bytes, or hold no keys
    can_share = [p for p in plans if not p.policy.partial and p.policy.erasing is None and p.policy.settings.compacts]
    by_size = sorted(can_share, key=lambda plan: -plan.log_bytes)
    n = len(by_size) if split == "always" else count_large_partitions([p.log_bytes for p in by_size], workers.cores)
    large = set(map(id, by_size[:n]))
    return Ways(tuple(p for p in plans if id(p) not in large), tuple(p for p in plans if id(p) in large))


def count_large_partitions(sizes: Sequence[int], cores: int) -> int:
    """Return the number of largest partitions to clean in several tasks. A partition counts if one task would take
    longer for it than the whole wave takes on all cores. sizes: bytes, descending.
    """
    n, shared, rest = 0, 0.0, sum(sizes)
    while n < len(sizes):
        shared, rest = shared + _MORE * sizes[n], rest - sizes[n]
        if sizes[n] <= (shared + rest) / cores + _STAGES_BYTES:
            break
        n += 1
    return n


def _begin_commit(
    start: Start, results: Sequence[PartitionResult], outcome: Outcome, engine: str
) -> Future[float] | None:
    cleaned = [r for r in results if r.status == "cleaned"]
    if not cleaned or start.options.dry_run or outcome.conflict:
        return None
    commits = [make_commit(start, r, reset=partition_key(r) in outcome.reset, engine=engine) for r in cleaned]
    return begin(partial(_commit_wave, start.state, commits, outcome.committed), "commit")


def _commit_wave(state: State, commits: list[Commit], committed: dict[Key, Checkpoint]) -> float:
    """Commit a wave, add its checkpoints to those that are `committed`, and return the seconds that it took."""
    began = time.perf_counter()
    write_manifests(state.root, commits)  # before the commit, so that generations can be found without the tables
    writing.commit_wave(state, commits, lambda: check_files(state.root, commits))
    committed |= {commit.key: commit.checkpoint for commit in commits}
    return time.perf_counter() - began


def _await_commit(committing: Future[float] | None, outcome: Outcome) -> float:
    """Return the seconds that a commit took. If another run committed first, the outcome is a conflict."""
    if committing is None:
        return 0.0
    try:
        return await_result(committing)
    except ConflictError as error:
        outcome.conflict = error.line()
        return 0.0
