"""Choice between a run that cleans everything, one by yield, and none, for each partition."""

from __future__ import annotations

from dataclasses import replace

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key
from lastkey.udfs.compact.cleaner import CleanableRange
from lastkey.udfs.compact.one_task.what_pays import pace_of, policy_of
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.segment_facts import read_secret
from lastkey.udfs.storage import open_root
from lastkey.udfs.yields.schedule import Pace


def shares_of_budget(io_budget: int | None, archive: Archive) -> dict[Key, int | None]:
    """Return each partition's share of the run's budget: as much as its share of the archive's bytes."""
    held = {key: sum(s.size for s in archived.segments) for key, archived in archive.partitions.items()}
    total = max(sum(held.values()), 1)
    return {key: None if io_budget is None else io_budget * n // total for key, n in held.items()}


def scheduled(plan: PartitionPlan, before: Checkpoint | None) -> PartitionPlan:
    """Return the plan, by yield if the settings say so. Everything is cleaned, with a new key of the hashes, where
    there is no generation yet, the key is lost, or --force is given; and if the last such run is `compaction.full.ms`
    ago and the budget allows it.
    """
    settings = plan.settings
    plan = replace(plan, yields=before.yields if before is not None and not plan.anew else None)
    if settings.compaction_schedule != "yield" or not settings.compacts:
        return plan
    if not settings.by_offset or plan.oldest_ms >= 0:
        return plan
    plan = replace(plan, by_yield=True, secret_ms=plan.now_ms)
    if before is None or plan.anew or plan.force:
        return plan
    known = read_secret(open_root(plan.store_uri), before.folder)
    if known is None:
        return plan
    if plan.now_ms - known[1] >= settings.compaction_full_ms and policy_of(plan).affords_all(plan.log_bytes):
        return plan
    cleaned = [s.row for s in plan.segments if s.row is not None and s.base_offset < before.first_dirty_offset]
    if any(row.applied_to < 0 for row in cleaned):
        return plan
    return replace(plan, partial=True, secret=known[0], secret_ms=known[1])


def paced(plan: PartitionPlan, cleanable: CleanableRange) -> Pace | None:
    """Return whether a run by yield is worth it now, and whether it had better clean everything, by the files' sizes;
    None for a plan that is not by yield.
    """
    if not plan.partial:
        return None
    dirty, until = cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
    rows = [s.row for s in plan.segments if s.row is not None and s.base_offset < dirty]
    return pace_of(plan, rows, dirty, until, cleanable.cleanable_bytes) if until > dirty else None
