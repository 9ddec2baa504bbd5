"""Choice between a run that cleans everything and one by yield, for each partition."""

from __future__ import annotations

from dataclasses import replace

from lastkey.jobs.store.rows import Checkpoint
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.segment_facts import read_secret
from lastkey.udfs.storage import open_root


def scheduled(plan: PartitionPlan, before: Checkpoint | None) -> PartitionPlan:
    """Return the plan, by yield if the settings say so. Everything is cleaned, with a new key of the hashes, where
    there is no generation yet, the last such run is `compaction.full.ms` ago, the key is lost, or --force is given.
    """
    settings = plan.settings
    if settings.compaction_schedule != "yield" or not settings.compacts:
        return plan
    if not settings.by_offset or plan.oldest_ms >= 0:
        return plan
    plan = replace(plan, by_yield=True, secret_ms=plan.now_ms)
    if before is None or plan.anew or plan.force:
        return plan
    known = read_secret(open_root(plan.store_uri), before.folder)
    if known is None or plan.now_ms - known[1] >= settings.compaction_full_ms:
        return plan
    cleaned = [s.row for s in plan.segments if s.row is not None and s.base_offset < before.first_dirty_offset]
    if any(row.applied_to < 0 for row in cleaned):
        return plan
    return replace(plan, partial=True, secret=known[0], secret_ms=known[1])
