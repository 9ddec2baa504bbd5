"""Choice between a run that cleans everything and one by yield, and the parts of --io-budget, for each partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lastkey.jobs.store.rows import Checkpoint
from lastkey.udfs.compact.one_task.passes import older_segments, policy_of
from lastkey.udfs.compact.plan import CleanPolicy, CleanSettings, Erasing, PartitionInput, PartitionPlan, RunContext
from lastkey.udfs.compact.scan.segment_facts import read_secret
from lastkey.udfs.storage import open_root
from lastkey.udfs.yields.schedule import KEPT, choose, cost_of, cost_of_all

_LOG: Final = logging.getLogger("lastkey")


def plan_of(
    given: PartitionInput, settings: CleanSettings, erasing: Erasing | None, run: RunContext, before: Checkpoint | None
) -> PartitionPlan:
    """Return the plan of a partition, by yield if the settings say so. Everything is cleaned, with a new key of the
    hashes, where there is no generation yet, the key is lost, or --force is given.
    """
    if erasing is not None:
        nothing_else = replace(settings, compacts=False, retention_ms=-1, retention_bytes=-1, retention_exact=False)
        return PartitionPlan(given, CleanPolicy(nothing_else, erasing), run)
    exact = settings.retention_exact and settings.retention_ms >= 0
    if settings.compaction_schedule != "yield" or not settings.compacts or not settings.by_offset or exact:
        return PartitionPlan(given, CleanPolicy(settings), run)
    known = None if before is None or given.anew or run.force else read_secret(open_root(run.store_uri), before.folder)
    dirty = given.checkpoint or 0
    cleaned = [s.row for s in given.segments if s.row is not None and s.base_offset < dirty]
    if known is None or any(row.applied_to < 0 for row in cleaned):
        return PartitionPlan(given, CleanPolicy(settings, by_yield=True), replace(run, secret_ms=run.now_ms))
    run = replace(run, secret=known[0], secret_ms=known[1])
    return PartitionPlan(given, CleanPolicy(settings, by_yield=True, partial=True), run)


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
    for n in sorted((n for n, plan in enumerate(plans) if _is_overdue(plan)), key=lambda n: plans[n].run.secret_ms):
        cost = cost_of_all(plans[n].log_bytes)
        if cost <= left:
            shares[n], left = cost, left - cost
    for n in sorted(range(len(plans)), key=lambda n: -wishes[n][0]):
        more = min(max(wishes[n][1] - shares[n], 0), left)
        shares[n], left = shares[n] + more, left - more
    total = max(sum(plan.log_bytes for plan in plans), 1)
    parts = [share + left * plan.log_bytes // total for plan, share in zip(plans, shares, strict=True)]
    return [
        replace(plan, policy=replace(plan.policy, io_budget_bytes=part))
        for plan, part in zip(plans, parts, strict=True)
    ]


def _wish(plan: PartitionPlan, io_budget: int) -> tuple[float, int]:
    """Return the dead share of what a run by yield would rewrite without a budget, by what is known before it, and the
    bytes that it could move at most.
    """
    if not plan.policy.partial:
        return 0.0, 0
    dirty = plan.input.checkpoint or 0
    rows = [s.row for s in plan.input.segments if s.row is not None and s.base_offset < dirty]
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
        run = replace(plan.run, secret=secret, secret_ms=plan.run.now_ms)
        return PartitionPlan(plan.input, replace(plan.policy, partial=False), run)
    return plan


def _is_overdue(plan: PartitionPlan) -> bool:
    return plan.policy.partial and plan.run.now_ms - plan.run.secret_ms >= plan.policy.settings.compaction_full_ms
