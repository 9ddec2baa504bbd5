"""Plans of a look-up: the partitions that it asks, of an archive or of a store's generations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from lastkey.jobs.archive.listing import ArchivedPartition, listed
from lastkey.jobs.command.parse import check_topics, nearest
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.lookup.store import generation_plans
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat import names
from lastkey.udfs.lookup.queries import LookupPlan
from lastkey.udfs.storage import Root, normal_uri


def list_plans(options: LookupOptions, report: JobReport) -> list[LookupPlan]:
    """Return the plans of the wanted logs in order. Add notes, and folders that cannot be listed, to the report."""
    if options.archive is None:
        plans = generation_plans(options, report.notes)
    else:
        plans = archive_plans(normal_uri(options.archive or ""), options.topics, report.notes, report.other_problems)
    chosen = [
        _with_settings(plan, options)
        for plan in _chosen(plans, options.partitions, all_known=not report.other_problems)
    ]
    return [replace(plan, read_committed=True) for plan in chosen] if options.isolation == "read_committed" else chosen


def _with_settings(plan: LookupPlan, options: LookupOptions) -> LookupPlan:
    settings = options.config.topic_settings(plan.topic)
    accepted = settings.gaps == "accept"
    most = settings.max_decompressed_batch_bytes
    return replace(plan, max_batch_bytes=most, traces=None if accepted else plan.traces)


def archive_plans(
    uri: str, topics: TopicFilter, notes: list[str], problems: list[Any] | None = None
) -> list[LookupPlan]:
    """Return the plans of an archive's logs; add folders that cannot be listed to `problems`."""
    archive = listed(uri, topics)
    notes += archive.notes
    if problems is not None:
        problems += map(str, archive.unreadable)
    check_topics(topics, archive.topics, uri)
    plans = []
    for archived in archive.partitions.values():
        notes += [note for note in archived.notes if names.REBUILT not in note]
        plans.append(archived_plan(archived, archive.root))
    return plans


def archived_plan(archived: ArchivedPartition, root: Root) -> LookupPlan:
    """Return the plan of an archived partition."""
    return LookupPlan(
        archived.topic,
        archived.partition,
        root.uri,
        tuple(archived.segments),
        archived.log_start_checkpoint,
        archived.high_watermark if archived.held_by_broker else None,
        archived.leader_epochs or (),
        tuple((offset, root.uri, path) for offset, path in sorted(archived.snapshots.items())),
        problem=archived.problem,
        traces=archived.traces,
    )


def _chosen(plans: Iterable[LookupPlan], wanted: Sequence[str], *, all_known: bool) -> list[LookupPlan]:
    """Return the wanted plans. UsageError for an unknown partition, unless it may lie in an unreadable folder."""
    by_name = {plan.name: plan for plan in sorted(plans, key=lambda plan: (plan.topic, plan.partition))}
    if not by_name and all_known:
        raise UsageError(message="no partition to look into")
    for name in wanted:
        if name not in by_name and all_known:
            raise UnknownNameError(message=f"no such partition: {name}", near=nearest(name, by_name))
    return [by_name[name] for name in dict.fromkeys(wanted) if name in by_name] if wanted else list(by_name.values())
