"""`report ARCHIVE... --output FILE`: one page with the contents of archives and what a compaction would save.

Every partition is profiled (`udfs.report.measure_partition`), in threads, or by Spark if the archive is large. With a
store, the profile of a partition with a generation covers that generation and the archive after it, as `compact` would.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.places import is_same
from lastkey.jobs.command.config import Config, TopicSettings
from lastkey.jobs.command.parse import check_topics, unmatched_tables
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.whole_file import checked_output, write_page
from lastkey.jobs.compact.plan_inputs import input_from_archive, input_from_generation, run_context, whole_plan
from lastkey.jobs.errors import POLICY_CONTRADICTED, UsageError
from lastkey.jobs.report.archive_report import ArchiveReport, SeveralArchives, check_distinct, match_stores, short_names
from lastkey.jobs.report.page import render_page
from lastkey.jobs.spark.engine import each
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key, select_topics
from lastkey.logformat.listing import Segment
from lastkey.udfs.problem import Problem
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.storage import normal_uri


@dataclass
class _Begun:
    """Archive that is listed, its store if it has one, and its report so far."""

    report: ArchiveReport
    archive: Archive
    checkpoints: dict[Key, Checkpoint] = field(default_factory=dict)
    manifests: dict[Key, list[Segment]] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return self.archive.topics | {topic for topic, _ in self.checkpoints}


def run(options: ReportOptions, progress: Progress) -> ArchiveReport:
    """Profile the archives and write the page."""
    output = checked_output(options.output, options.archives, options.stores)
    one = len(options.archives) == 1 and len(options.stores) <= 1
    report = profile_archive(options, progress) if one else profile_archives(options, progress)
    at = time.perf_counter()
    report.output = output
    write_page(output, render_page(report).encode())
    report.seconds["page"] = time.perf_counter() - at
    return report


def profile_archive(options: ReportOptions, progress: Progress, partition: int | None = None) -> ArchiveReport:
    """Return the report of one archive without its page. `partition`: only the partitions of this number."""
    begun = _begin(options, partition)
    _profile([begun], options, begun.report, progress)
    return begun.report


def profile_archives(options: ReportOptions, progress: Progress) -> SeveralArchives:
    """Return the report of several archives without its page."""
    uris = [normal_uri(uri) for uri in options.archives]
    check_distinct(uris)
    stores = match_stores(uris, [normal_uri(uri) for uri in options.stores])
    begun = [_begin(replace(options, archives=uri, stores=stores.get(uri))) for uri in uris]
    parts = {name: one.report for name, one in zip(short_names(uris), begun, strict=True)}
    report = SeveralArchives(", ".join(uris), options.now_ms, ", ".join(stores.values()) or None, parts=parts)
    _profile(begun, options, report, progress)
    report.join()
    return report


def _begin(options: ReportOptions, partition: int | None = None) -> _Begun:
    """List an archive, and read the tables of its store."""
    at = time.perf_counter()
    uri = normal_uri(options.archive)
    report = ArchiveReport(uri, options.now_ms, normal_uri(options.store) if options.store is not None else None)
    archive = listed(uri, options.topics)
    if partition is not None:
        archive.partitions = {key: found for key, found in archive.partitions.items() if key[1] == partition}
    report.notes += archive.notes
    report.other_problems += archive.unreadable
    report.seconds["list"] = time.perf_counter() - at
    begun = _Begun(report, archive)
    if report.store is not None:
        at = time.perf_counter()
        begun.checkpoints, begun.manifests = _read_store(report, options)
        report.seconds["state"] = time.perf_counter() - at
    for key in sorted(begun.checkpoints.keys() - archive.partitions.keys()) if partition is None else ():
        held = f"the store holds its generation {begun.checkpoints[key].generation}"
        report.notes.append(f"{key[0]}-{key[1]}: no longer in the archive, but {held}; left out")
    return begun


def _profile(begun: Sequence[_Begun], options: ReportOptions, whole: ArchiveReport, progress: Progress) -> None:
    """Profile the partitions of all archives, each into its report. whole: the report that records who worked."""
    known = set().union(*(part.topics for part in begun))
    check_topics(options.topics, known, whole.archive)
    whole.notes += unmatched_tables(options.config.topics, known, options.config.path)
    plans = [list(plan_profiles(part, options)) for part in begun]
    together = [plan for of in plans for plan in of]
    at = time.perf_counter()
    sizes = [sum(s.size_bytes for s in p.plan.input.segments) for p in together]
    progress.start("report", sum(sizes), BYTES)
    profiles_left = iter(
        each(profile_partition, together, "report: partitions", options, whole, progress, sizes=sizes, passes=2)
    )
    progress.close()
    for part, of in zip(begun, plans, strict=True):
        profiles = list(islice(profiles_left, len(of)))
        if options.hide_keys:
            profiles = [replace(p, hot_keys=tuple(replace(key, text=None) for key in p.hot_keys)) for p in profiles]
        part.report.profiles = sorted(profiles, key=lambda p: (p.topic, p.partition))
        part.report.notes += [f"{p.name()}: {note}" for p in part.report.profiles for note in p.notes]
    whole.seconds["profile"] = time.perf_counter() - at


def _read_store(
    report: ArchiveReport, options: ReportOptions
) -> tuple[dict[Key, Checkpoint], dict[Key, list[Segment]]]:
    """Return checkpoints and manifests of the current generations; put the history into the report."""
    state = open_store(report.store or "")
    checkpoints = state.checkpoints()
    others = sorted({c.archive_uri for c in checkpoints.values() if not is_same(c.archive_uri, report.archive)})
    if others:
        raise UsageError(message=f"{state.root.uri}: this store serves the archive {others[0]}, not {report.archive}")
    wanted = select_topics(options.topics, checkpoints)
    report.history = state.histories({topic for topic, _ in wanted})
    report.notes += [
        f"{run.topic}-{run.partition}: generation {run.generation_after} started over (--reset); the store keeps "
        f"generation {run.generation_before} from before until vacuum --give-up deletes it"
        for _, chain in sorted(report.history.items())
        for run in chain
        if run.reset
    ]
    return wanted, state.manifests(wanted.values())


def plan_profiles(begun: _Begun, options: ReportOptions) -> Iterable[ProfilePlan]:
    """Yield the plan of each task; add what is wrong with partitions to the report."""
    report, archive, checkpoints = begun.report, begun.archive, begun.checkpoints
    run = run_context(options.config, report.store or "", report.now_ms, dry_run=True)
    for key, archived in sorted(archive.partitions.items()):
        report.notes += archived.notes
        report.archived_bytes[key] = sum(s.size_bytes for s in archived.segments)
        settings = _settings(options, archived, has_generation=key in checkpoints)
        if archived.problem is not None:
            report.other_problems.append(archived.problem)
            continue
        if not archived.segments:
            report.notes.append(f"{archived.path}: no segments")
            continue
        given = input_from_archive(archived)
        if key in checkpoints:
            of_store = input_from_generation(
                archived, checkpoints[key], begun.manifests[key], report.store or "", settings.gaps
            )
            if isinstance(of_store, Problem):
                report.other_problems.append(of_store)
            else:
                given = of_store
        yield ProfilePlan(whole_plan(run, given, settings), settings.compacts)


def _settings(options: ReportOptions, archived: ArchivedPartition, *, has_generation: bool) -> TopicSettings:
    """Return the settings of a topic, with its cleanup policy as far as it is known."""
    settings = options.config.topic_settings(archived.topic)
    if settings.compacts:
        return settings
    if options.cleanup_policy is not None:
        if settings.named:
            raise POLICY_CONTRADICTED(
                topic=archived.topic, found=options.cleanup_policy, expected=",".join(settings.cleanup_policy)
            )
        return replace(settings, cleanup_policy=("compact",))
    if is_compacted(options.config, archived) or (has_generation and not settings.named):
        return replace(settings, cleanup_policy=("compact",))
    return settings


def is_compacted(config: Config, archived: ArchivedPartition) -> bool:
    """Return whether settings select compact; for a topic that none names, whether its broker's cleaner was at work."""
    settings = config.topic_settings(archived.topic)
    return settings.compacts or (not settings.named and archived.cleaner_checkpoint is not None)
