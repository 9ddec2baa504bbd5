"""Choice between a run that cleans everything and one by yield, and the parts of --io-budget, for each partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lastkey.jobs.store.rows import Checkpoint
from lastkey.udfs.compact.one_task.what_pays import older_segments, policy_of
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.segment_facts import read_secret
from lastkey.udfs.storage import open_root
from lastkey.udfs.yields.schedule import KEPT, choose, cost_of, cost_of_all

_LOG: Final = logging.getLogger("lastkey")


def scheduled(plan: PartitionPlan, before: Checkpoint | None) -> PartitionPlan:
    """Return the plan, by yield if the settings say so. Everything is cleaned, with a new key of the hashes, where
    there is no generation yet, the key is lost, or --force is given.
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
    if known is None:
        return plan
    cleaned = [s.row for s in plan.segments if s.row is not None and s.base_offset < before.first_dirty_offset]
    if any(row.applied_to < 0 for row in cleaned):
        return plan
    return replace(plan, partial=True, secret=known[0], secret_ms=known[1])


def with_shares(io_budget: int | None, plans: Sequence[PartitionPlan]) -> list[PartitionPlan]:
    """Return plans with their shares of the run's budget.

    In equal parts it might suffice for no segment of any partition, for ever. So each gets all that it can use by what
    the last run has found dead: first those that have waited longest for a run that cleans everything, then those of
    which the largest share is dead. The rest is shared by the sizes of the logs.
    """
    if io_budget is None:
        return list(plans)
    left, shares = io_budget, [0] * len(plans)
    wishes = [_wish(plan, io_budget) for plan in plans]
    for n in sorted((n for n, plan in enumerate(plans) if _is_overdue(plan)), key=lambda n: plans[n].secret_ms):
        cost = cost_of_all(plans[n].log_bytes)
        if cost <= left:
            shares[n], left = cost, left - cost
    for n in sorted(range(len(plans)), key=lambda n: -wishes[n][0]):
        more = min(max(wishes[n][1] - shares[n], 0), left)
        shares[n], left = shares[n] + more, left - more
    total = max(sum(plan.log_bytes for plan in plans), 1)
    return [
        replace(plan, io_budget_bytes=share + left * plan.log_bytes // total)
        for plan, share in zip(plans, shares, strict=True)
    ]


def _wish(plan: PartitionPlan, io_budget: int) -> tuple[float, int]:
    """Return the dead share of what a run by yield would rewrite without a budget, by what is known before it, and the
    bytes that it could move at most.
    """
    if not plan.partial:
        return 0.0, 0
    dirty = plan.checkpoint or 0
    rows = [s.row for s in plan.segments if s.row is not None and s.base_offset < dirty]
    older = older_segments(rows, [row.superseded for row in rows])
    taken = choose(older, replace(policy_of(plan), io_budget_bytes=None)).reason != KEPT
    cost = cost_of(older.size_bytes[taken])
    if cost.max(initial=0) > io_budget:
        _LOG.warning(
            "%s: a segment waits that --io-budget %d never suffices for: it may take %d bytes",
            plan.name, io_budget, cost.max(),
        )  # fmt: skip
    return float(older.dead_records[taken].sum() / max(older.records[taken].sum(), 1)), int(cost.sum())


def whole_if_overdue(plan: PartitionPlan, secret: tuple[int, int]) -> PartitionPlan:
    """Return the plan; one that cleans everything, with a new key of the hashes, if the last such run is
    `compaction.full.ms` ago and the budget allows it.
    """
    if _is_overdue(plan) and policy_of(plan).affords_all(plan.log_bytes):
        return replace(plan, partial=False, secret=secret, secret_ms=plan.now_ms)
    return plan


def _is_overdue(plan: PartitionPlan) -> bool:
    return plan.partial and plan.now_ms - plan.secret_ms >= plan.settings.compaction_full_ms
