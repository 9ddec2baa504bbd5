"""The main job: compact the partitions of an archive that are due, and commit each as a new generation of the store.

  archive (names, sizes, small files) + store (checkpoints, manifests) -> a plan for each partition
  waves of partitions: one task each, or several if cores would be idle -> new files, read back -> one Delta commit
COMPACTION.md has the rules, the guarantees and the costs.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import Place, check_apart, check_outside, is_same
from lastkey.jobs.command.config import TopicSettings
from lastkey.jobs.command.kinds import Engine
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.parse import abbreviate_names, check_globs, check_topics, unmatched_tables
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import TO_THE_MINUTE, counted, moment, with_io_counts
from lastkey.jobs.compact.commit_rows import write_partition_states
from lastkey.jobs.compact.needed import ANCHOR, Facts, Kept, Needed, needed, reasons
from lastkey.jobs.compact.plan_inputs import Erasures
from lastkey.jobs.compact.plan_partitions import is_reset, plan_partitions
from lastkey.jobs.compact.report import CompactReport, measure_lag
from lastkey.jobs.compact.start_outcome import ListedArchive, Outcome, Start, partition_key
from lastkey.jobs.compact.waves import run_waves
from lastkey.jobs.errors import POLICY_CONTRADICTED, ConflictError, GenerationError, RunningError, UsageError
from lastkey.jobs.recorded import record_killed, recorded
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.jobs.store.erasures import read_key
from lastkey.jobs.store.folders import check_not_lost
from lastkey.jobs.store.generations import own_and_older
from lastkey.jobs.store.leases import Lease, describe_conflicting_runs, hold_lease, wait_until_released
from lastkey.jobs.store.paths import PARTITIONS
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult
from lastkey.udfs.steps import step
from lastkey.udfs.storage import normal_uri, open_root

_LOG: Final = logging.getLogger("lastkey")


@with_io_counts
def run(options: CompactOptions, progress: Progress) -> CompactReport:
    """Compact the partitions that are due. RunningError: another run works on them, and this one does not wait."""
    erasures = Erasures() if options.hmac_key is None else Erasures(read_key(options.hmac_key))
    return recorded("compact", options.store, lambda: run_in_turn(options, erasures, progress), dry_run=options.dry_run)


def run_in_turn(options: CompactOptions, erasures: Erasures, progress: Progress) -> CompactReport:
    """Compact. Wait for another run on the same partitions if there is one, and if the options request it."""
    ends_at = None if options.max_runtime is None else time.monotonic() + options.max_runtime
    while True:
        try:
            report = _run(options, erasures, progress, ends_at)
        except RunningError as error:
            if not options.wait or (ends_at is not None and time.monotonic() >= ends_at):
                raise
            _LOG.warning("waiting for %s", error.fields["found"])
            wait_until_released(open_root(normal_uri(options.store)), str(error.fields["run_id"]), ends_at)
        else:
            if report is not None:
                return report  # else with a new plan


def _run(
    options: CompactOptions, erasures: Erasures, progress: Progress, ends_at: float | None
) -> CompactReport | None:
    """Return the report of a run; None if another run committed one of its partitions before the lease."""
    began, outcome = time.perf_counter(), Outcome()
    archive_uri, store_uri = normal_uri(options.archive), normal_uri(options.store)
    _check_options(options, archive_uri, store_uri)
    engine = chosen_engine(options, writes=True)
    listing = _list_archive(options, erasures, archive_uri, store_uri)
    at = time.perf_counter()
    outcome.seconds["list"] = at - began
    start = _read_store(options, listing, erasures, store_uri, ends_at)
    if not start.archive.partitions:
        return _report(start, outcome, _archive_needed(start, outcome))
    erasures.begin(store_uri, start.checkpoints, dry_run=options.dry_run)
    plans, outcome.results = plan_partitions(start)
    outcome.planned = {partition_key(plan.input) for plan in plans}
    outcome.reset = {partition_key(plan.input) for plan in plans if plan.input.reset}
    outcome.seconds["state"] = time.perf_counter() - at
    if plans and not _work(engine, start, plans, outcome, progress):
        return None
    return _finish(start, outcome, began)


def _work(engine: Engine, start: Start, plans: Sequence[PartitionPlan], outcome: Outcome, progress: Progress) -> bool:
    """Work on the plans. Return False, without any work, if another run committed one of the partitions."""
    step("partitions planned")
    options, state = start.options, start.state
    if options.dry_run:
        outcome.notes_on_runs += describe_conflicting_runs(state.root, outcome.planned, outcome.notes_on_runs)
        lease: AbstractContextManager[list[Lease]] = nullcontext([])
    else:
        if not start.checkpoints:
            state.check_writable()  # for a store with earlier commits, the next commit detects the conflict
        lease = hold_lease(state.root, start.run_id, outcome.planned, outcome.notes_on_runs)
    with lease as expired:
        outcome.notes_on_runs += record_killed(options.store, expired)
        now = start.checkpoints if options.dry_run else state.checkpoints()
        if any(now.get(key) != start.checkpoints.get(key) for key in outcome.planned):
            return False
        at = time.perf_counter()
        n_bytes = sum(plan.least_bytes for plan in plans)
        with workers(engine, n_bytes, options.config, outcome, progress) as made:
            run_waves(made, start, plans, outcome, progress)
        outcome.seconds["partitions"] = time.perf_counter() - at - outcome.seconds.get("session", 0.0)
        outcome.conflict = outcome.conflict or _conflict_if_replaced(start, outcome)
    return True


def _finish(start: Start, outcome: Outcome, began: float) -> CompactReport:
    """Write the partitions' states and return the report. Raise EarlyEndError with the report if the run was asked to
    end, but not for --max-runtime.
    """
    needed_because = [Needed("nothing")]
    if not start.options.dry_run:
        at = time.perf_counter()
        write_partition_states(start, outcome)
        outcome.seconds["cleaner_state"] = time.perf_counter() - at
        needed_because = _archive_needed(start, outcome)
    outcome.seconds["total"] = time.perf_counter() - began
    report = _report(start, outcome, needed_because, measure_lag(start, outcome))
    error = report.ended_early
    if error is None or report.partial:
        return report
    error.report = report
    error.add_note(report.committed())
    if len(report.generations) < len(report.due):
        error.add_note("run again to continue")
    raise error


def _report(
    start: Start, outcome: Outcome, archive_needed: list[Needed], lag: dict[str, int] | None = None
) -> CompactReport:
    options, listing, archive = start.options, start.listing, start.archive
    return CompactReport(
        archive.root.uri,
        start.state.root.uri,
        start.run_id,
        options.now_ms,
        options.dry_run,
        results=sorted(outcome.results, key=partition_key),
        generations={key: row.generation for key, row in outcome.committed.items()},
        reset=outcome.reset,
        archive_needed=archive_needed,
        not_compacted=listing.not_compacted,
        expired_nothing=sorted(t for t, s in listing.settings.items() if s.compacts and s.expires and not s.has_limit),
        conflict=outcome.conflict or None,
        due=outcome.due,
        ended_early=outcome.ended_early,
        cut_off=outcome.cut_off,
        other_problems=list(archive.unreadable),
        lag=lag or {},
        notes=[
            *listing.notes,
            *(  # not a problem: a deleted topic may stay so
                f"{partition_folder(*key)}: not in the archive any more; generation "
                f"{start.checkpoints[key].generation} uses {counted(len(segments), 'segment')} of it, from "
                f"{segments[0].path} on"
                for key, segments in start.missing.items()
            ),
            *(note for _, archived in sorted(archive.partitions.items()) for note in archived.notes),
            *outcome.notes,
            *_moved_notes(start, outcome),
            *listing.notes_on_topics,
            *outcome.notes_on_runs,
            *listing.notes_on_settings,
            *(
                f"{partition_folder(*key)}: not finished within --max-runtime; a later run begins it again. If that "
                "repeats, give it more time"
                for key in sorted(outcome.cut_off)
            ),
        ],
        seconds=outcome.seconds,
        work=outcome.work,
    )


def _conflict_if_replaced(start: Start, outcome: Outcome) -> str:
    """Return a conflict instead of damage if another run replaced a generation that this run read: a vacuum without
    grace may then have deleted its files. "": there is no conflict.
    """
    unread = [
        partition_key(r)
        for r in outcome.results
        if r.problem is not None and r.problem.kind == "unreadable" and r.problem.path.startswith(f"{PARTITIONS}/")
    ]
    now = start.state.checkpoints() if unread else {}
    for key in unread:
        read_checkpoint, newest = start.checkpoints.get(key), now.get(key)
        if read_checkpoint is not None and newest is not None and newest.run_id != read_checkpoint.run_id:
            return ConflictError(
                path=f"{start.state.root.uri}: {key[0]}-{key[1]}",
                expected=f"generation {read_checkpoint.generation} (run {read_checkpoint.run_id}), which this run read",
                found=f"generation {newest.generation} (run {newest.run_id})",
            ).line()
    return ""


def _check_options(options: CompactOptions, archive_uri: str, store_uri: str) -> None:
    if options.cleanup_policy is not None and not options.topics.include:
        raise UsageError(message="--cleanup-policy needs --topics, which names the topics it applies to")
    if options.cleanup_policy not in (None, "compact"):
        raise UsageError(message=f"--cleanup-policy: expected compact, found {options.cleanup_policy}")
    check_apart(Place("the store", store_uri), Place("the archive", archive_uri))


def _check_one_archive(options: CompactOptions, archive_uri: str, checkpoints: Mapping[Key, Checkpoint]) -> None:
    for key, checkpoint in checkpoints.items():
        if not is_same(checkpoint.archive_uri, archive_uri) and not is_reset(options, key):
            raise UsageError(
                message=f"{options.store}: this store serves the archive {checkpoint.archive_uri}, not {archive_uri}; "
                "give each archive a store of its own, or --reset the topics that have moved"
            )


def _list_archive(options: CompactOptions, erasures: Erasures, archive_uri: str, store_uri: str) -> ListedArchive:
    """List the archive; keep the selected partitions whose cleanup policy leaves something to do."""
    archive = Archive(open_root(archive_uri)) if erasures.no_archive else listed(archive_uri, options.topics)
    settings = {topic: _settings(options, topic) for topic in sorted({t for t, _ in archive.partitions})}
    others = sorted(topic for topic, s in settings.items() if not (s.acts or erasures.new))
    archive.partitions = {k: p for k, p in archive.partitions.items() if k[0] not in others}
    not_compacted = sorted({*others, *archive.not_wanted})
    notes = list(archive.notes)
    if options.io_budget is not None and all(settings[t].compaction_schedule == "full" for t, _ in archive.partitions):
        notes.append('--io-budget had no effect: no topic has "compaction.schedule" = "yield"')
    check_outside(Place("the store", store_uri), archive)
    if erasures.new:
        _add_of_store_alone(options, archive, settings, open_state(store_uri).checkpoints())
    unmatched = unmatched_tables(options.config.topics, archive.topics, options.config.path)
    outdated = _outdated(options, archive)
    _check_something_is_selected(options, archive, not_compacted, unmatched)
    names = ", ".join(others)
    on_topics = [f"not compacted, because cleanup.policy is not compact: {names}"] if others else []
    return ListedArchive(archive, settings, not_compacted, notes, on_topics, [*unmatched, *outdated])


def _read_store(
    options: CompactOptions, listing: ListedArchive, erasures: Erasures, store_uri: str, ends_at: float | None
) -> Start:
    """Read the state of the store, check that it is one of this archive, and return the inputs of the run."""
    archive, state = listing.archive, open_state(store_uri)
    checkpoints = state.checkpoints()
    if options.reset is not None:
        topics = archive.topics | {topic for topic, _ in checkpoints}
        check_globs("--reset", options.reset.include, topics, archive.root.uri)
    if not checkpoints:
        check_not_lost(state.root)
    _check_one_archive(options, archive.root.uri, checkpoints)
    missing = _missing(options, listing, state, checkpoints)
    generations = [checkpoints[key] for key in archive.partitions if key in checkpoints]
    manifests = state.manifests(generations) if generations else {}
    return Start(uuid.uuid4().hex, options, listing, state, checkpoints, manifests, missing, erasures, ends_at)


def _add_of_store_alone(
    options: CompactOptions, archive: Archive, settings: dict[str, TopicSettings], checkpoints: Mapping[Key, Checkpoint]
) -> None:
    """Add the partitions that the store alone has: an erasure spares none."""
    archive.topics |= {topic for topic, _ in checkpoints}
    for topic, partition in checkpoints:
        if options.topics.takes(topic) and (topic, partition) not in archive.partitions:
            settings.setdefault(topic, _settings(options, topic))
            none = ArchivedPartition(topic, partition, archive.root.uri, partition_folder(topic, partition))
            archive.partitions[topic, partition] = none


def _outdated(options: CompactOptions, archive: Archive) -> list[str]:
    """Return a note if the archive's metadata shows changes since `policies` made the settings file."""
    state, root = options.config.made, archive.root
    if state is None:
        return []
    from lastkey.udfs.cluster_metadata.log_files import newer_changes  # noqa: PLC0415 - 14 ms that only this needs

    folders = [root.full(folder) for folder in sorted(archive.folders)]
    newer = newer_changes(root.filesystem, folders, state.offset, state.time_ms)
    moment_made = moment(state.time_ms, TO_THE_MINUTE)
    return [] if newer is None else [f"{options.config.path}: policies of {moment_made}; {newer}; make them again"]


def _missing(
    options: CompactOptions, listing: ListedArchive, state: State, checkpoints: Mapping[Key, Checkpoint]
) -> dict[Key, list[Segment]]:
    """Return the archived segments that the generations of partitions use that are not in the archive: a disk may not
    be mounted, or the topic was deleted.
    """
    absent = [
        (key, checkpoint.generation, checkpoint.run_id)
        for key, checkpoint in checkpoints.items()
        if key not in listing.archive.partitions
        and key[0] not in listing.not_compacted
        and options.topics.takes(key[0])
    ]
    found = state.read_segments(absent) if absent else {}
    used = ((run[0], [s for s in segments if s.root == "archive"]) for run, segments in found.items())
    return {key: segments for key, segments in sorted(used) if segments}


def _moved_notes(start: Start, outcome: Outcome) -> list[str]:
    """Return a note for each partition without a new generation whose current one uses segments that have moved in the
    archive: a broker moved them to another disk, or they got another name at the end of a swap.
    """
    out = []
    for r in outcome.results:
        key = partition_key(r)
        if key in start.manifests and key not in outcome.committed and r.problem is None:
            now = {s.base_offset: s.path for s in start.archive.partitions[key].segments}
            uses = [s for s in start.manifests[key] if s.root == "archive"]
            for s in [s for s in uses if now.get(s.base_offset, s.path) != s.path][:1]:
                out.append(
                    f"{s.path}: generation {start.checkpoints[key].generation} uses it, but it has moved to "
                    f"{now[s.base_offset]}; jobs that read the store cannot find it until the partition is due, "
                    "or compacted with --force"
                )
    return out


def _check_something_is_selected(
    options: CompactOptions, archive: Archive, not_compacted: Sequence[str], unmatched: Sequence[str]
) -> None:
    """Raise UsageError if no topic of the archive is to be compacted: a nightly run would never do any work."""
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, archive.root.uri)
    if archive.topics and len(not_compacted) == len(archive.topics):
        none = f"{archive.root.uri}: no partition of a compacted topic in the archive"
        advice = (
            'set "cleanup.policy" = "compact" for a topic in --config FILE, or give --topics GLOB --cleanup-policy '
            f"compact; there are {abbreviate_names(sorted(archive.topics))}"
        )
        raise UsageError(message="; ".join((none, *unmatched, advice)))


def _settings(options: CompactOptions, topic: str) -> TopicSettings:
    settings = options.config.topic_settings(topic)
    if options.cleanup_policy is not None and settings.cleanup_policy != ("compact",):
        if settings.named:
            raise POLICY_CONTRADICTED(
                topic=topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy)
            )
        settings = replace(settings, cleanup_policy=("compact",))
    return settings


def _archive_needed(start: Start, outcome: Outcome) -> list[Needed]:
    """Return the reasons why the archive is still needed, the worst first."""
    archive = start.archive
    first_reasons = [
        (archive.partitions[partition_key(r)], _first_reason(start, outcome.committed, r))
        for r in sorted(outcome.results, key=partition_key)
    ]
    conflict = start.state.root.uri if outcome.conflict else ""
    return needed(archive, first_reasons, start.missing, start.listing.not_compacted, conflict)


def _first_reason(start: Start, committed: Mapping[Key, Checkpoint], r: PartitionResult) -> str | None:
    """Return the kind of the first reason why a partition still needs the archive; None without a reason."""
    try:
        return next((reason.kind for reason in reasons(_facts(start, committed, r)) if reason.kind != ANCHOR), None)
    except GenerationError:  # the older generation is unreadable
        return "not_judged"


def _facts(start: Start, committed: Mapping[Key, Checkpoint], r: PartitionResult) -> Facts:
    """Return this run's facts of a partition for `needed`, the rule for segments that are still needed."""
    key = partition_key(r)
    row = committed.get(key) or start.checkpoints.get(key)
    segments = r.log.segments if key in committed else start.manifests.get(key, ())

    def older() -> Sequence[Kept]:
        return [] if row is None else [Kept(c.checkpoint, c.segments) for c in own_and_older(start.state.root, row)[1]]

    return Facts(
        start.archive.partitions[key],
        Kept(row, segments) if row is not None else None,
        start.state.root.uri,
        replace(start.options.config, overrides={}).topic_settings(r.topic).gaps,  # --set holds for this run alone
        uncleanable=str(r.problem) if r.problem is not None else "",
        sealed=start.options.sealed,
        older=older,
        compared={file.base_offset for file in r.log.archived_files},
    )
