"""The partitions that a look-up asks: of an archive, or of an archive and what a store holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from jobs.archive.listing import ArchivedPartition, listed
from jobs.command.options import LookupOptions
from jobs.command.reporting import JobReport
from jobs.command.typed import check_topics, nearest
from jobs.errors import UsageError
from jobs.lookup.store import generation_plans
from logformat import names
from udfs.lookup.queries import LookupPlan
from udfs.storage import Root, normal_uri


def list_plans(options: LookupOptions, report: JobReport) -> list[LookupPlan]:
    """The logs that are asked for, by topic and partition. The report gets notes, and folders that cannot be listed."""
    if options.archive is None:
        plans = generation_plans(options, report.notes)
    else:
        plans = archive_plans(normal_uri(options.archive or ""), options.topics, report.notes, report.problems)
    chosen = [
        replace(plan, max_batch_bytes=options.config.topic_settings(plan.topic).max_decompressed_batch_bytes)
        for plan in _chosen(plans, options.partitions, all_known=not report.problems)
    ]
    return [replace(plan, read_committed=True) for plan in chosen] if options.isolation == "read_committed" else chosen


def archive_plans(
    uri: str, topics: str | None, notes: list[str], problems: list[Any] | None = None
) -> list[LookupPlan]:
    """The logs of an archive; problems: gets the folders of it that cannot be listed."""
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
    """What a look-up is told of an archived partition."""
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
    )


def _chosen(plans: Iterable[LookupPlan], wanted: Sequence[str], *, all_known: bool) -> list[LookupPlan]:
    """Those that are wanted; UsageError where there is no such partition, unless it may lie where nobody could look."""
    by_name = {plan.name: plan for plan in sorted(plans, key=lambda plan: (plan.topic, plan.partition))}
    if not by_name and all_known:
        raise UsageError(message="no partition to look into")
    for name in wanted:
        if name not in by_name and all_known:
            raise UsageError(message=f"no such partition: {name}{nearest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(wanted) if name in by_name] if wanted else list(by_name.values())
