"""The main job: compact the partitions of an archive that are due, and commit each as a new generation of the store.

  archive (names, sizes, small files) + store (checkpoints, manifests) -> a plan for each partition
  waves of partitions: one task each (or several, where cores would be idle) -> new files, read back -> one Delta commit
COMPACTION.md has the rules, the guarantees and what it costs.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from pyspark.sql import SparkSession

from jobs.archive.listing import Archive, check_holds_partitions, listed
from jobs.archive.places import Place, check_apart, check_outside, is_same
from jobs.command.config import TopicSettings
from jobs.command.options import CompactOptions
from jobs.command.progress import Progress
from jobs.command.reporting import counted
from jobs.command.typed import check_topics, some_of, unmatched_tables
from jobs.compact.commit import state_of
from jobs.compact.due import Start, is_reset, plans_of
from jobs.compact.report import CompactReport
from jobs.compact.waves import run_waves
from jobs.errors import ConflictError, PolicyError, UsageError
from jobs.spark import session as spark_session
from jobs.store.folders import check_not_lost
from jobs.store.paths import PARTITIONS
from jobs.store.rows import Checkpoint, Segment
from jobs.store.tables import State, open_state
from jobs.topics import Key, matches
from udfs.compact.plan import PartitionResult
from udfs.storage import normal_uri


def run(options: CompactOptions, progress: Progress) -> CompactReport:
    """Compact what is due."""
    started = time.perf_counter()
    archive_uri, store_uri = normal_uri(options.archive), normal_uri(options.store)
    _check_options(options, archive_uri, store_uri)
    report = CompactReport(archive_uri, store_uri, uuid.uuid4().hex, options.now_ms, options.dry_run)
    archive, settings = _listed(options, archive_uri, report)
    report.seconds["list"] = time.perf_counter() - started
    unmatched = unmatched_tables(options.config.topics, archive.topics, options.config.path)
    _check_something_is_selected(options, archive, report, unmatched)
    at = time.perf_counter()
    state = open_state(store_uri)
    checkpoints = state.checkpoints()
    if not checkpoints:
        begins = {key: part.segments[0].base_offset for key, part in archive.partitions.items() if part.segments}
        check_not_lost(state.root, begins)
    _check_one_archive(options, archive_uri, checkpoints)
    report.notes += _gone(options, archive, state, checkpoints, report)
    if not archive.partitions:
        report.notes += [*state.notes, *unmatched]
        return report
    known = {
        key: (checkpoints[key].generation, checkpoints[key].run_id) for key in archive.partitions if key in checkpoints
    }
    manifests = state.manifests(known) if known else {}
    start = Start(options, archive, settings, checkpoints, manifests, report)
    plans = list(plans_of(start))
    report.seconds["state"] = time.perf_counter() - at
    if plans and not options.dry_run and not checkpoints:
        state.check_writable()  # of a store that has committed before the next commit asks
    if plans:
        at = time.perf_counter()
        run_waves(cache(partial(_started_spark, options, progress, report)), state, start, plans, progress)
        report.seconds["partitions"] = time.perf_counter() - at - report.seconds.get("session", 0.0)
        _say_if_replaced(state, report, checkpoints)
    if not options.dry_run:
        at = time.perf_counter()
        _say_how_they_stand(state, report, checkpoints, options.now_ms)
        report.seconds["cleaner_state"] = time.perf_counter() - at
    report.notes += [*state.notes, *_moved(archive, checkpoints, manifests, report)]
    report.archive_needed = _archive_needed(report, checkpoints, manifests)
    report.notes += unmatched  # last: they do not say that something of the archive is still needed
    report.results.sort(key=lambda r: (r.topic, r.partition))
    report.seconds["total"] = time.perf_counter() - started
    return report


def _started_spark(options: CompactOptions, progress: Progress, report: CompactReport) -> SparkSession:
    at = time.perf_counter()
    progress.doing("starting Spark")
    spark = spark_session.start(brief=options.config.job.engine != "window")
    progress.doing("")
    report.seconds["session"] = time.perf_counter() - at
    return spark


def _say_if_replaced(state: State, report: CompactReport, checkpoints: dict[Key, Checkpoint]) -> None:
    """Another run may have replaced a generation that this one read, and a vacuum without grace have taken its files:
    that is a conflict, and no damage.
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
    """Write the partitions' states; of those that were not due only what is new: such a run should cost little."""
    before = state.states() if any(r.status == "not_due" for r in report.results) else {}
    rows = []
    for r in report.results:
        key = (r.topic, r.partition)
        if r.status == "cleaned":
            continue  # committed with its generation; or another run was first, and knows better
        generation = report.generations.get(key, checkpoints[key].generation if key in checkpoints else -1)
        row, old = state_of(r, generation, report.run_id, now_ms), before.get(key)
        if r.status == "not_due" and old is not None and row == replace(old, run_id=row.run_id, now_ms=row.now_ms):
            continue
        rows.append(row)
    state.set_states(rows)
    state.write_states()


def _check_options(options: CompactOptions, archive_uri: str, store_uri: str) -> None:
    if options.cleanup_policy is not None and options.topics is None:
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
    options: CompactOptions, archive_uri: str, report: CompactReport
) -> tuple[Archive, dict[str, TopicSettings]]:
    """The partitions whose topic is named and whose policy says compact, and the settings of their topics."""
    archive = listed(archive_uri, options.topics)
    settings = {topic: _settings(options, topic) for topic in sorted({t for t, _ in archive.partitions})}
    others = sorted(topic for topic, s in settings.items() if not s.acts)
    archive.partitions = {k: p for k, p in archive.partitions.items() if settings[k[0]].acts}
    if others:
        report.notes.append(f"not compacted, because cleanup.policy is not compact: {', '.join(others)}")
    report.not_compacted = sorted({*others, *archive.not_wanted})
    report.expired_nothing = sorted(t for t, s in settings.items() if s.compacts and s.expires and not s.has_limit)
    report.notes += archive.notes
    report.unreadable += archive.unreadable
    check_outside(Place("the store", report.store), archive)
    return archive, settings


def _gone(
    options: CompactOptions, archive: Archive, state: State, checkpoints: dict[Key, Checkpoint], report: CompactReport
) -> list[str]:
    """Of partitions that the archive does not have any more, as where a disk is not mounted: a note, if their
    generations use segments of it. A deleted topic's may stay so, hence no more than a note.
    """
    gone = {
        key: (checkpoint.generation, checkpoint.run_id)
        for key, checkpoint in checkpoints.items()
        if key not in archive.partitions and key[0] not in report.not_compacted and matches(options.topics, key[0])
    }
    used = {
        key: [s for s in segments if s.root == "archive" and s.size_bytes]
        for key, segments in (state.known_manifests(gone) if gone else {}).items()
    }
    return [
        f"{key[0]}-{key[1]}: not in the archive any more; generation {gone[key][0]} uses {counted(len(of), 'segment')} "
        f"of it, from {of[0].path} on"
        for key, of in sorted(used.items())
        if of
    ]


def _moved(
    archive: Archive, checkpoints: dict[Key, Checkpoint], manifests: dict[Key, list[Segment]], report: CompactReport
) -> list[str]:
    """Of partitions without a new generation: a note, if segments that the current one uses lie in another folder of
    the archive now, as where a broker moved them to another disk, or have another name, as at the end of a swap.
    """
    out = []
    for r in report.results:
        key = (r.topic, r.partition)
        if key in manifests and key not in report.generations and r.problem is None:
            now = {s.base_offset: s.path for s in archive.partitions[key].segments}
            uses = [s for s in manifests[key] if s.root == "archive" and s.size_bytes]
            for s in [s for s in uses if now.get(s.base_offset, s.path) != s.path][:1]:
                out.append(
                    f"{s.path}: generation {checkpoints[key].generation} uses it, and it is {now[s.base_offset]} now; "
                    "jobs that read the store do not find it until the partition is due, or compacted with --force"
                )
    return out


def _check_something_is_selected(
    options: CompactOptions, archive: Archive, report: CompactReport, unmatched: Sequence[str]
) -> None:
    """UsageError if no topic of the archive is to be compacted: a nightly run would do nothing, for ever."""
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
    return replace(settings, null_keys=options.null_keys or settings.null_keys, gaps=options.gaps or settings.gaps)


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
