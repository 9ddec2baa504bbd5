"""The main job: compact the partitions of an archive that are due, and commit each as a new generation of the store.

  archive (names, sizes, small files) + store (checkpoints, manifests) -> a plan for each partition
  waves of partitions: one task each, or several if cores would be idle -> new files, read back -> one Delta commit
COMPACTION.md has the rules, the guarantees and the costs.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import Place, check_apart, check_outside, is_same
from lastkey.jobs.command.config import TopicSettings
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.parse import check_globs, check_topics, some_of, unmatched_tables
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import TO_THE_MINUTE, counted, moment, tells_io
from lastkey.jobs.command.stopping import EarlyEndError
from lastkey.jobs.compact.commit import state_of
from lastkey.jobs.compact.due import Start, is_reset, plans_of
from lastkey.jobs.compact.erasing import Erasures
from lastkey.jobs.compact.needed import ANCHOR, Facts, Kept, Needed, needed, reasons
from lastkey.jobs.compact.report import CompactReport, ScheduleReport, lag_of
from lastkey.jobs.compact.waves import run_waves
from lastkey.jobs.errors import ConflictError, LostRunError, ManifestError, PolicyError, RunningError, UsageError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.jobs.store import writing
from lastkey.jobs.store.announcements import announced, at_work, forget_dead, wait_until_gone
from lastkey.jobs.store.erasures import read_key
from lastkey.jobs.store.folders import check_not_lost
from lastkey.jobs.store.generations import older_generations
from lastkey.jobs.store.paths import PARTITIONS
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.compact.plan import PartitionResult
from lastkey.udfs.steps import step
from lastkey.udfs.storage import normal_uri, open_root

_LOG: Final = logging.getLogger("lastkey")


class _Overtaken(Exception):
    """Signal that another run committed one of our partitions after we had planned and before it heard of us."""


@tells_io
def run(options: CompactOptions, progress: Progress) -> CompactReport:
    """Compact the partitions that are due. RunningError: another run works on them, and this one does not wait."""
    erasures = Erasures() if options.hmac_key is None else Erasures(read_key(options.hmac_key))
    return recorded("compact", options.store, lambda: run_in_turn(options, erasures, progress), dry_run=options.dry_run)


def run_in_turn(options: CompactOptions, erasures: Erasures, progress: Progress) -> CompactReport:
    """Compact, after another run on the same partitions if there is one, and the options say so."""
    ends_at = None if options.max_runtime is None else time.monotonic() + options.max_runtime
    while True:
        try:
            return _run(options, erasures, progress, ends_at)
        except _Overtaken:
            continue  # with a new plan
        except RunningError as error:
            if not options.wait or (ends_at is not None and time.monotonic() >= ends_at):
                raise
            _LOG.warning("waiting for %s", error.fields["found"])
            wait_until_gone(open_root(normal_uri(options.store)), str(error.fields["run_id"]), ends_at)


def _run(options: CompactOptions, erasures: Erasures, progress: Progress, ends_at: float | None) -> CompactReport:
    started = time.perf_counter()
    archive_uri, store_uri = normal_uri(options.archive), normal_uri(options.store)
    _check_options(options, archive_uri, store_uri)
    engine = chosen_engine(options, writes=not options.only_schedule)
    kind = ScheduleReport if options.only_schedule else CompactReport
    report = kind(archive_uri, store_uri, uuid.uuid4().hex, options.now_ms, options.dry_run)
    archive, settings, others = _listed(options, erasures, archive_uri, report)
    archive_uri = report.archive = archive.root.uri
    if erasures.new:
        _add_of_store_alone(options, archive, settings, open_state(store_uri).checkpoints())
    report.seconds["list"] = time.perf_counter() - started
    unmatched = unmatched_tables(options.config.topics, archive.topics, options.config.path)
    outdated = _outdated(options, archive)
    _check_something_is_selected(options, archive, report, unmatched)
    at = time.perf_counter()
    state = open_state(store_uri)
    checkpoints = state.checkpoints()
    if options.reset is not None:
        topics = archive.topics | {topic for topic, _ in checkpoints}
        check_globs("--reset", options.reset.include, topics, archive_uri)
    if not checkpoints:
        check_not_lost(state.root)
    _check_one_archive(options, archive_uri, checkpoints)
    missing = _missing(options, archive, state, checkpoints, report)
    report.notes += _missing_notes(missing, checkpoints)
    if not archive.partitions:
        report.notes += [*state.notes, *others, *unmatched, *outdated]
        start = Start(options, archive, settings, checkpoints, {}, report)
        report.archive_needed = _archive_needed(start, state, missing)
        return report
    known = {
        key: (checkpoints[key].generation, checkpoints[key].run_id) for key in archive.partitions if key in checkpoints
    }
    manifests = state.manifests(known) if known else {}
    turns = None if ends_at is None else _turns(state, checkpoints)
    erasures.begin(store_uri, checkpoints, dry_run=options.dry_run)
    start = Start(options, archive, settings, checkpoints, manifests, report, ends_at, turns, erasures)
    plans = list(plans_of(start))
    if options.only_schedule:
        report.results += [
            PartitionResult(p.input.topic, p.input.partition, "scheduled", bytes_before=p.log_bytes)
            for p in plans
            if not p.policy.partial
        ]
        plans = [p for p in plans if p.policy.partial]
    report.seconds["state"] = time.perf_counter() - at
    of_others: list[str] = []
    due = {(plan.input.topic, plan.input.partition) for plan in plans}
    if due and options.dry_run:
        of_others += at_work(state.root, due, of_others)
    if plans and not options.dry_run and not checkpoints:
        state.check_writable()  # for a store that has committed before, the next commit finds out
    if plans:
        step("partitions planned")
        with nullcontext() if options.dry_run else announced(state.root, report.run_id, due, of_others):
            if not options.dry_run and _is_overtaken(state, checkpoints, due):
                raise _Overtaken
            at = time.perf_counter()
            brief = options.config.job.split_by != "window"
            n_bytes = sum(plan.least_bytes for plan in plans)
            with workers(engine, n_bytes, options.config, report, progress, brief=brief) as made:
                run_waves(made, state, start, plans, progress)
            report.seconds["partitions"] = time.perf_counter() - at - report.seconds.get("session", 0.0)
            _say_if_replaced(state, report, checkpoints)
    elif not options.dry_run:
        forget_dead(state.root)
    if not options.dry_run:
        at = time.perf_counter()
        _say_how_they_stand(state, report, checkpoints, options.now_ms)
        report.seconds["cleaner_state"] = time.perf_counter() - at
    report.lag = lag_of(archive, checkpoints, report)
    report.notes += [*state.notes, *_moved(archive, checkpoints, manifests, report)]
    report.notes += [*others, *of_others, *unmatched, *outdated, *_cut_off(report)]
    if not options.dry_run:
        report.archive_needed = _archive_needed(start, state, missing)
    report.results.sort(key=lambda r: (r.topic, r.partition))
    report.seconds["total"] = time.perf_counter() - started
    if report.ended_early is not None and not report.partial:
        raise _ended_early(report, report.ended_early)
    return report


def _turns(state: State, checkpoints: dict[Key, Checkpoint]) -> dict[Key, tuple[int, int]]:
    """Return when each partition was last looked at, and when it was last cleaned, by the runs' own clocks (-1: never).
    Least comes first: whoever waits longest; of those that were begun in the same run, those that did not get done.
    """
    cleaned = {key: row.now_ms for key, row in checkpoints.items()}
    looked = {key: row.now_ms for key, row in state.states().items()}
    keys = cleaned.keys() | looked.keys()
    return {key: (max(looked.get(key, -1), cleaned.get(key, -1)), cleaned.get(key, -1)) for key in keys}


def _cut_off(report: CompactReport) -> list[str]:
    """Return a note for each partition whose work is lost: if it takes longer than all the time, it never gets done."""
    return [
        f"{partition_folder(*key)}: not finished within --max-runtime; a later run begins it again. If that repeats, "
        "give it more time"
        for key in sorted(report.cut_off)
    ]


def _is_overtaken(state: State, planned: dict[Key, Checkpoint], due: set[Key]) -> bool:
    now = state.checkpoints()
    return any(now.get(key) != planned.get(key) for key in due)


def _ended_early(report: CompactReport, why: EarlyEndError) -> EarlyEndError:
    why.report = report
    why.add_note(report.committed())
    if len(report.generations) < report.n_due():
        why.add_note("run again to continue")
    return why


def _say_if_replaced(state: State, report: CompactReport, checkpoints: dict[Key, Checkpoint]) -> None:
    """Report a conflict instead of damage if another run replaced a generation that this run read: a vacuum without
    grace may then have deleted its files.
    """
    unread = [
        (r.topic, r.partition)
        for r in report.results
        if r.problem is not None and r.problem.kind == "unreadable" and r.problem.path.startswith(f"{PARTITIONS}/")
    ]
    now = state.checkpoints() if unread and not report.conflict else checkpoints
    for key in unread:
        known, found = checkpoints.get(key), now.get(key)
        if known is not None and found is not None and found.run_id != known.run_id:
            report.conflict = ConflictError(
                path=f"{report.store}: {key[0]}-{key[1]}",
                expected=f"generation {known.generation} (run {known.run_id}), which this run read",
                found=f"generation {found.generation} (run {found.run_id})",
            ).line()
            return


def _say_how_they_stand(state: State, report: CompactReport, checkpoints: dict[Key, Checkpoint], now_ms: int) -> None:
    """Write the partitions' states, but of those that were not due only what is new: such a run should cost little."""
    before = state.states() if report.cut_off or any(r.status == "not_due" for r in report.results) else {}
    rows = []
    for r in report.results:
        key = (r.topic, r.partition)
        if r.status == "cleaned" or (r.status == "stopped" and key not in report.cut_off):
            continue  # committed with its generation, or not known; or another run was first, and knows better
        generation = report.generations.get(key, checkpoints[key].generation if key in checkpoints else -1)
        row, old = state_of(r, generation, report.run_id, now_ms), before.get(key)
        if r.status == "stopped":  # as it was, but tried: the next run begins with those that were not
            row = replace(row, state="dirty") if old is None else replace(old, run_id=row.run_id, now_ms=row.now_ms)
        if r.status == "not_due" and old is not None and row == replace(old, run_id=row.run_id, now_ms=row.now_ms):
            continue
        rows.append(row)
    writing.set_states(state, rows)
    writing.write_states(state)


def _check_options(options: CompactOptions, archive_uri: str, store_uri: str) -> None:
    if options.cleanup_policy is not None and not options.topics.include:
        raise UsageError(message="--cleanup-policy needs --topics, which names the topics it applies to")
    if options.cleanup_policy not in (None, "compact"):
        raise UsageError(message=f"--cleanup-policy: expected compact, found {options.cleanup_policy}")
    check_apart(Place("the store", store_uri), Place("the archive", archive_uri))


def _check_one_archive(options: CompactOptions, archive_uri: str, checkpoints: dict[Key, Checkpoint]) -> None:
    for key, checkpoint in checkpoints.items():
        if not is_same(checkpoint.archive_uri, archive_uri) and not is_reset(options, key):
            raise UsageError(
                message=f"{options.store}: this store serves the archive {checkpoint.archive_uri}, not {archive_uri}; "
                "give each archive a store of its own, or --reset the topics that have moved"
            )


def _listed(
    options: CompactOptions, erasures: Erasures, archive_uri: str, report: CompactReport
) -> tuple[Archive, dict[str, TopicSettings], list[str]]:
    """List the archive; keep the selected partitions whose cleanup policy leaves something to do. Return the archive,
    the settings by topic, and a note on the other topics.
    """
    archive = Archive(open_root(archive_uri)) if erasures.no_archive else listed(archive_uri, options.topics)
    settings = {topic: _settings(options, topic) for topic in sorted({t for t, _ in archive.partitions})}
    others = sorted(topic for topic, s in settings.items() if not (s.acts or erasures.new))
    archive.partitions = {k: p for k, p in archive.partitions.items() if k[0] not in others}
    report.not_compacted = sorted({*others, *archive.not_wanted})
    report.expired_nothing = sorted(t for t, s in settings.items() if s.compacts and s.expires and not s.has_limit)
    report.notes += archive.notes
    if (options.io_budget, options.min_yield) != (None, None) and all(
        settings[topic].compaction_schedule == "full" for topic, _ in archive.partitions
    ):
        report.notes.append('--io-budget and --min-yield had no effect: no topic has "compaction.schedule" = "yield"')
    report.unreadable += archive.unreadable
    check_outside(Place("the store", report.store), archive)
    names = ", ".join(others)
    return archive, settings, [f"not compacted, because cleanup.policy is not compact: {names}"] if others else []


def _add_of_store_alone(
    options: CompactOptions, archive: Archive, settings: dict[str, TopicSettings], checkpoints: dict[Key, Checkpoint]
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
    made, root = options.config.made, archive.root
    if made is None:
        return []
    from lastkey.udfs.cluster_metadata.newer import newer_changes  # noqa: PLC0415 - 14 ms that other runs do not need

    folders = [root.full(folder) for folder in sorted(archive.folders)]
    newer = newer_changes(root.filesystem, folders, made.offset, made.time_ms)
    moment_made = moment(made.time_ms, TO_THE_MINUTE)
    return [] if newer is None else [f"{options.config.path}: policies of {moment_made}; {newer}; make them again"]


def _missing(
    options: CompactOptions, archive: Archive, state: State, checkpoints: dict[Key, Checkpoint], report: CompactReport
) -> dict[Key, list[Segment]]:
    """Return the archived segments that the generations of partitions use that are not in the archive: a disk may not
    be mounted, or the topic was deleted.
    """
    absent = {
        key: (checkpoint.generation, checkpoint.run_id)
        for key, checkpoint in checkpoints.items()
        if key not in archive.partitions and key[0] not in report.not_compacted and options.topics.takes(key[0])
    }
    used = (
        (key, [s for s in segments if s.root == "archive"])
        for key, segments in (state.known_manifests(absent) if absent else {}).items()
    )
    return {key: segments for key, segments in sorted(used) if segments}


def _missing_notes(missing: dict[Key, list[Segment]], checkpoints: dict[Key, Checkpoint]) -> list[str]:
    """Return a note for each partition that is not in the archive: only a note, because a deleted topic may stay so."""
    return [
        f"{partition_folder(*key)}: not in the archive any more; generation {checkpoints[key].generation} uses "
        f"{counted(len(segments), 'segment')} of it, from {segments[0].path} on"
        for key, segments in missing.items()
    ]


def _moved(
    archive: Archive, checkpoints: dict[Key, Checkpoint], manifests: dict[Key, list[Segment]], report: CompactReport
) -> list[str]:
    """Return a note for each partition without a new generation whose current one uses segments that have moved in the
    archive: a broker moved them to another disk, or they got another name at the end of a swap.
    """
    out = []
    for r in report.results:
        key = (r.topic, r.partition)
        if key in manifests and key not in report.generations and r.problem is None:
            now = {s.base_offset: s.path for s in archive.partitions[key].segments}
            uses = [s for s in manifests[key] if s.root == "archive"]
            for s in [s for s in uses if now.get(s.base_offset, s.path) != s.path][:1]:
                out.append(
                    f"{s.path}: generation {checkpoints[key].generation} uses it, but it has moved to "
                    f"{now[s.base_offset]}; jobs that read the store cannot find it until the partition is due, "
                    "or compacted with --force"
                )
    return out


def _check_something_is_selected(
    options: CompactOptions, archive: Archive, report: CompactReport, unmatched: Sequence[str]
) -> None:
    """Raise UsageError if no topic of the archive is to be compacted: a nightly run would do nothing, for ever."""
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, report.archive)
    if archive.topics and len(report.not_compacted) == len(archive.topics):
        raise UsageError(
            message="; ".join(
                (
                    f"{report.archive}: no partition of a compacted topic in the archive",
                    *unmatched,
                    'set "cleanup.policy" = "compact" for a topic in --config FILE, or give --topics GLOB '
                    f"--cleanup-policy compact; there are {some_of(sorted(archive.topics))}",
                )
            )
        )


def _settings(options: CompactOptions, topic: str) -> TopicSettings:
    settings = options.config.topic_settings(topic)
    if options.cleanup_policy is not None and settings.cleanup_policy != ("compact",):
        if settings.named:
            raise PolicyError(topic=topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy))
        settings = replace(settings, cleanup_policy=("compact",))
    return replace(
        settings,
        null_keys=options.null_keys or settings.null_keys,
        gaps=options.gaps or settings.gaps,
        compaction_min_yield=settings.compaction_min_yield if options.min_yield is None else options.min_yield,
    )


def _archive_needed(start: Start, state: State, missing: Collection[Key]) -> list[Needed]:
    """Return the reasons why the archive is still needed, the worst first. missing: partitions of the store that are
    not in the archive, and whose generations use segments of it.
    """
    archive, report = start.archive, start.report
    of_archive: dict[str, list[str]] = {
        "unreadable": [p.path for p in report.unreadable],
        "conflict": [report.store] if report.conflict else [],
        "missing": [partition_folder(*key) for key in sorted(missing)],
        "entries": archive.not_read,
        "other_topics": report.not_compacted,
        "nothing": [] if report.results else [archive.root.uri],
    }
    results = sorted(report.results, key=lambda r: (r.topic, r.partition))
    kinds = ((archive.partitions[r.topic, r.partition], _first_reason(start, state, r)) for r in results)
    return needed(of_archive, ((archived, kind) for archived, kind in kinds if kind is not None))


def _first_reason(start: Start, state: State, r: PartitionResult) -> str | None:
    """Return the kind of the first reason why a partition still needs the archive; None if there is none."""
    try:
        return next((reason.kind for reason in reasons(_facts(start, state, r)) if reason.kind != ANCHOR), None)
    except (LostRunError, ManifestError):  # of an older generation
        return "not_judged"


def _facts(start: Start, state: State, r: PartitionResult) -> Facts:
    """Return what this run has found out about a partition, for the rule that says which segments are needed."""
    key = (r.topic, r.partition)
    row = start.committed.get(key) or start.checkpoints.get(key)
    segments = r.segments if key in start.committed else start.manifests.get(key, ())

    def older() -> Sequence[Kept]:
        chain = state.histories({r.topic}).get(key)
        if not chain:
            raise LostRunError(partition=r.name())
        return [Kept.of(one) for one in older_generations(state, chain)]

    return Facts(
        start.archive.partitions[key],
        Kept(row, segments) if row is not None else None,
        start.report.store,
        start.options.config.topic_settings(r.topic).gaps,
        uncleanable=str(r.problem) if r.problem is not None else "",
        sealed=start.options.sealed,
        older=older,
        compared={file.base_offset for file in r.archived_files},
    )
