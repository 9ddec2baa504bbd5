"""Choice between a run that cleans everything, one by yield, and none, for each partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lastkey.jobs.store.rows import Checkpoint
from lastkey.udfs.compact.cleaner import CleanableRange
from lastkey.udfs.compact.one_task.what_pays import pace_of, policy_of, wish_before
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.segment_facts import read_secret
from lastkey.udfs.storage import open_root
from lastkey.udfs.yields.schedule import Pace

_LOG: Final = logging.getLogger("lastkey")


def scheduled(plan: PartitionPlan, before: Checkpoint | None) -> PartitionPlan:
    """Return the plan, by yield if the settings say so. Everything is cleaned, with a new key of the hashes, where
    there is no generation yet, the key is lost, or --force is given.
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
    cleaned = [s.row for s in plan.segments if s.row is not None and s.base_offset < before.first_dirty_offset]
    if any(row.applied_to < 0 for row in cleaned):
        return plan
    return replace(plan, partial=True, secret=known[0], secret_ms=known[1])


def with_shares(io_budget: int | None, plans: Sequence[PartitionPlan]) -> list[PartitionPlan]:
    """Return plans with their shares of the run's budget.

    In equal parts it might suffice for no segment of any partition, for ever. So each gets all that it can use, in
    turn: first those that have waited longest for a run that cleans everything, then those that gain most for each
    byte. The rest is shared by the sizes of the logs.
    """
    if io_budget is None:
        return list(plans)
    left, shares = float(io_budget), [0.0] * len(plans)
    wishes = [wish_before(plan) if plan.partial else (0.0, 0.0, 0.0) for plan in plans]
    policies = [replace(policy_of(plan), io_budget_bytes=None) for plan in plans]
    overdue = [n for n, plan in enumerate(plans) if _is_overdue(plan)]
    for n in sorted(overdue, key=lambda n: plans[n].secret_ms):
        cost = policies[n].cost_of_all(plans[n].log_bytes)
        if cost <= left:
            shares[n], left = cost, left - cost
    for n in sorted(range(len(plans)), key=lambda n: -wishes[n][0] / max(wishes[n][1], 1)):
        _, wanted, largest = wishes[n]
        more = min(max(wanted - shares[n], 0), left)
        shares[n], left = shares[n] + more, left - more
        if largest > io_budget:
            _LOG.warning(
                "%s: a segment waits that --io-budget %d never suffices for: it may take %.0f bytes",
                plans[n].name, io_budget, largest,
            )  # fmt: skip
    total = max(sum(plan.log_bytes for plan in plans), 1)
    rest = [left * plan.log_bytes / total for plan in plans]
    return [
        replace(plan, io_budget_bytes=int(share + more)) for plan, share, more in zip(plans, shares, rest, strict=True)
    ]


def whole_if_overdue(plan: PartitionPlan, secret: tuple[int, int]) -> PartitionPlan:
    """Return the plan; one that cleans everything, with a new key of the hashes, if the last such run is
    `compaction.full.ms` ago and the budget allows it.
    """
    if _is_overdue(plan) and policy_of(plan).affords_all(plan.log_bytes):
        return replace(plan, partial=False, secret=secret, secret_ms=plan.now_ms)
    return plan


def _is_overdue(plan: PartitionPlan) -> bool:
    return plan.partial and plan.now_ms - plan.secret_ms >= plan.settings.compaction_full_ms


def paced(plan: PartitionPlan, cleanable: CleanableRange) -> Pace | None:
    """Return whether a run by yield is worth it now, and whether it had better clean everything, by the files' sizes;
    None for a plan that is not by yield.
    """
    if not plan.partial:
        return None
    dirty, until = cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
    rows = [s.row for s in plan.segments if s.row is not None and s.base_offset < dirty]
    return pace_of(plan, rows, dirty, until, cleanable.cleanable_bytes) if until > dirty else None
