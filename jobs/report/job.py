"""`report ARCHIVE --output FILE`: one page with the contents of an archive and what a compaction would save.

Every partition is profiled (`udfs.report.measure_partition`), in threads, or by Spark if the archive is large. With a
store, the profile of a partition with a generation covers that generation and the archive after it, as `compact` would.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.places import Place, is_same
from lastkey.jobs.command.config import Config, TopicSettings
from lastkey.jobs.command.options import ReportOptions
from lastkey.jobs.command.parse import check_topics, unmatched_tables
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.compact.plan_partition import (
    NotPlanned,
    RunPlan,
    inputs_from_archive,
    inputs_from_generation,
    plan_partition,
)
from lastkey.jobs.errors import PolicyError, UsageError
from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.jobs.report.formats import measure
from lastkey.jobs.report.write_page import checked_output, write_page
from lastkey.jobs.report.yields import yields_of
from lastkey.jobs.spark.engine import each
from lastkey.jobs.store.generations import generation_of, manifests_of, open_store
from lastkey.jobs.store.rows import Checkpoint, Segment
from lastkey.jobs.topics import Key, of_topics
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.storage import normal_uri


def run(options: ReportOptions, progress: Progress) -> ArchiveReport:
    """Profile the archive and write the page."""
    started = time.perf_counter()
    output = checked_output(
        options.output, Place("the archive", options.archive), Place("the store", options.store or "")
    )
    from lastkey.jobs.report.page import page_of  # noqa: PLC0415 - the plot library takes a second to load

    report = profile_archive(options, progress)
    at = time.perf_counter()
    report.output = output
    write_page(output, page_of(report).encode())
    report.seconds["page"] = time.perf_counter() - at
    report.seconds["total"] = time.perf_counter() - started
    return report


def profile_archive(options: ReportOptions, progress: Progress, partition: int | None = None) -> ArchiveReport:
    """Return the report without its page. `partition`: only the partitions of this number."""
    at = time.perf_counter()
    uri = normal_uri(options.archive)
    report = ArchiveReport(uri, options.now_ms, normal_uri(options.store) if options.store is not None else None)
    archive = listed(uri, options.topics)
    if partition is not None:
        archive.partitions = {key: found for key, found in archive.partitions.items() if key[1] == partition}
    report.notes += archive.notes
    report.other_problems += archive.unreadable
    report.seconds["list"] = time.perf_counter() - at
    checkpoints: dict[Key, Checkpoint] = {}
    manifests: dict[Key, list[Segment]] = {}
    if report.store is not None:
        at = time.perf_counter()
        checkpoints, manifests = _of_the_store(report, options)
        report.seconds["state"] = time.perf_counter() - at
    known = archive.topics | {topic for topic, _ in checkpoints}
    check_topics(options.topics, known, uri)
    report.notes += unmatched_tables(options.config.topics, known, options.config.path)
    for key in sorted(checkpoints.keys() - archive.partitions.keys()) if partition is None else ():
        held = f"the store holds its generation {checkpoints[key].generation}"
        report.notes.append(f"{key[0]}-{key[1]}: no longer in the archive, but {held}; left out")
    plans = list(plans_of(archive, options, checkpoints, manifests, report))
    at = time.perf_counter()
    sizes = [sum(s.listed.size for s in p.plan.segments) for p in plans]
    progress.start("report", sum(sizes), BYTES)
    report.profiles += each(
        profile_partition, plans, "report: partitions", options, report, progress, sizes=sizes, passes=2
    )
    progress.close()
    if options.hide_keys:
        report.profiles = [
            replace(p, hot_keys=tuple(replace(key, text=None) for key in p.hot_keys)) for p in report.profiles
        ]
    report.profiles.sort(key=lambda p: (p.topic, p.partition))
    report.notes += [f"{p.name()}: {note}" for p in report.profiles for note in p.notes]
    report.seconds["profile"] = time.perf_counter() - at
    if options.format_savings:
        at = time.perf_counter()
        measure(report, archive, options, progress)
        report.seconds["formats"] = time.perf_counter() - at
    return report


def _of_the_store(
    report: ArchiveReport, options: ReportOptions
) -> tuple[dict[Key, Checkpoint], dict[Key, list[Segment]]]:
    """Return checkpoints and manifests of the current generations; put the history into the report."""
    state = open_store(report.store or "")
    report.notes += state.notes
    checkpoints = state.checkpoints()
    others = sorted({c.archive_uri for c in checkpoints.values() if not is_same(c.archive_uri, report.archive)})
    if others:
        raise UsageError(message=f"{state.root.uri}: this store serves the archive {others[0]}, not {report.archive}")
    wanted = of_topics(options.topics, checkpoints)
    report.history = state.histories({topic for topic, _ in wanted})
    report.notes += [
        f"{run.topic}-{run.partition}: generation {run.generation_after} started over (--reset); the store keeps "
        f"generation {run.generation_before} from before until vacuum --give-up deletes it"
        for _, chain in sorted(report.history.items())
        for run in chain
        if run.anew
    ]
    manifests = manifests_of(state, map(generation_of, wanted.values()))
    report.yields = yields_of(state, report.history, manifests)
    return wanted, manifests


def plans_of(
    archive: Archive,
    options: ReportOptions,
    checkpoints: dict[Key, Checkpoint],
    manifests: dict[Key, list[Segment]],
    report: ArchiveReport,
) -> Iterable[ProfilePlan]:
    """Yield the plan of each task; add what is wrong with partitions to the report."""
    run = RunPlan.of(options.config, archive.root.uri, report.store or "", report.now_ms, dry_run=True)
    for key, archived in sorted(archive.partitions.items()):
        report.notes += archived.notes
        report.archived_bytes[key] = sum(s.size for s in archived.segments)
        settings = _settings(options, archived, has_generation=key in checkpoints)
        if archived.problem is not None:
            report.other_problems.append(archived.problem)
            continue
        if not archived.segments:
            report.notes.append(f"{archived.path}: no segments")
            continue
        inputs = inputs_from_archive(archived)
        if key in checkpoints:
            try:
                inputs = inputs_from_generation(
                    archived, checkpoints[key], manifests[key], report.store or "", settings.gaps
                )
            except NotPlanned as reason:
                report.other_problems.append(reason.problem)
        yield ProfilePlan(plan_partition(run, archived, settings, inputs), settings.compacts)


def _settings(options: ReportOptions, archived: ArchivedPartition, *, has_generation: bool) -> TopicSettings:
    """Return the settings of a topic, with its cleanup policy as far as it is known."""
    settings = options.config.topic_settings(archived.topic)
    settings = replace(settings, gaps=options.gaps or settings.gaps)
    if settings.compacts:
        return settings
    if options.cleanup_policy is not None:
        if settings.named:
            raise PolicyError(
                topic=archived.topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy)
            )
        return replace(settings, cleanup_policy=("compact",))
    if is_compacted(options.config, archived) or (has_generation and not settings.named):
        return replace(settings, cleanup_policy=("compact",))
    return settings


def is_compacted(config: Config, archived: ArchivedPartition) -> bool:
    """Return whether settings say compact; for a topic that none names, whether its broker's cleaner was at work."""
    settings = config.topic_settings(archived.topic)
    return settings.compacts or (not settings.named and archived.cleaner_checkpoint is not None)
