"""Plans of the partitions of an archive that may be due: where each of them begins, and its share of --io-budget."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.compact.plan_inputs import clean_settings, input_from_archive, input_from_generation, run_context
from lastkey.jobs.compact.start_outcome import Start, partition_key
from lastkey.jobs.errors import LINKED_FOLDER
from lastkey.jobs.store.paths import PARTITIONS, generation_folder
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.compact.cleaner import cleanable_range, first_dirty_offset, is_due
from lastkey.udfs.compact.passes import older_segments, schedule_limits
from lastkey.udfs.compact.plan import (
    CleanPolicy,
    CleanSettings,
    Erasing,
    PartitionInput,
    PartitionPlan,
    PartitionResult,
    RunContext,
)
from lastkey.udfs.compact.scan.due import (
    dirt_held_back,
    known_end,
    listed_times,
    may_expire,
    not_due,
    unread_result,
    with_first,
)
from lastkey.udfs.compact.scan.facts_files import read_secret
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import exists, links_in, open_root
from lastkey.udfs.yields.schedule import KEPT, choose, cost_of_all, estimate_cost

_LOG: Final = logging.getLogger("lastkey")
_PASSING: Final = ("changed", "unwritable", "memory", "defect")  # problems without information about a file's bytes


def _is_overdue(plan: PartitionPlan) -> bool:
    """Return whether the last run that cleaned the whole partition is `compaction.full.ms` ago."""
    return plan.policy.partial and plan.run.now_ms - plan.run.secret_ms >= plan.policy.settings.compaction_full_ms


def _draft_plan(
    given: PartitionInput, settings: CleanSettings, erasing: Erasing | None, run: RunContext, before: Checkpoint | None
) -> PartitionPlan:
    """Return a partition's plan, but for its share of --io-budget; by yield if the settings select it. The whole
    partition is cleaned, with a new key of the hashes, if it has no generation, the key is lost, or --force is given.
    """
    if erasing is not None:
        settings = replace(settings, compacts=False, retention_ms=-1, retention_bytes=-1, retention_exact=False)
    exact = settings.retention_exact and settings.retention_ms >= 0
    if settings.compaction_schedule != "yield" or not settings.compacts or not settings.by_offset or exact:
        return PartitionPlan(given, CleanPolicy(settings, erasing), run)
    secret = (
        None if before is None or given.reset or run.force else read_secret(open_root(run.store_uri), before.folder)
    )
    if secret is None or any(row.deduplicated_through < 0 for row in cleaned_rows(given)):
        run = replace(run, secret_ms=run.secret_ms or run.now_ms)
        return PartitionPlan(given, CleanPolicy(settings, by_yield=True), run)
    run = replace(run, secret=secret[0], secret_ms=secret[1])
    return PartitionPlan(given, CleanPolicy(settings, by_yield=True, partial=True), run)


def _with_budget(plan: PartitionPlan, run: RunContext, io_budget_bytes: int | None) -> PartitionPlan:
    """Return the plan of a partition. The whole partition is cleaned if the last such run is too long ago and the
    budget allows it. The plan then has the run's new key of the hashes.
    """
    policy, context = replace(plan.policy, io_budget_bytes=io_budget_bytes), plan.run
    limits = schedule_limits(policy.settings, io_budget_bytes)
    if _is_overdue(plan) and limits.affords_all(plan.log_bytes):
        policy, context = replace(policy, partial=False), replace(context, secret=run.secret, secret_ms=run.now_ms)
    return PartitionPlan(plan.input, policy, context)


def cleaned_rows(given: PartitionInput) -> list[Segment]:
    """Return the rows of the last generation's segments below the first dirty offset."""
    dirty = given.first_dirty_offset or 0
    return [s for s in given.segments if s.has_facts and s.base_offset < dirty]


def is_reset(options: CompactOptions, key: Key) -> bool:
    """Return whether --reset names the partition's topic."""
    return options.reset is not None and options.reset.takes(key[0])


def begins_anew(start: Start, key: Key, problem: Problem | None) -> bool:
    """Return whether --reset applies: the partition diverged or has a gap, or a file of its generation is damaged or
    missing. A healthy generation is continued, because the archive may no longer hold all that is in it.
    """
    if problem is None or not is_reset(start.options, key):
        return False
    if problem.state in ("diverged", "gap"):
        return True
    if not problem.path.startswith(f"{PARTITIONS}/") or problem.kind in _PASSING:
        return False
    return problem.kind != "unreadable" or not exists(start.state.root, problem.path)


def plan_partitions(start: Start) -> tuple[list[PartitionPlan], list[PartitionResult]]:
    """Return the plans of the partitions that may be due by the listing, and results for the others."""
    options = start.options
    flags = {name: getattr(options, name) for name in ("sealed", "force", "dry_run")}
    run = run_context(options.config, start.state.root.uri, options.now_ms, **flags)
    links = links_in(start.state.root, PARTITIONS)
    drafts, plans, results = list[PartitionPlan](), list[PartitionPlan](), list[PartitionResult]()
    for key in sorted(start.archive.partitions):
        draft = _draft(start, key, run, links)
        if isinstance(draft, Problem):
            results.append(PartitionResult(*key, "uncleanable", problem=draft))
        else:
            drafts.append(draft)
    for draft, share in zip(drafts, share_budget(options.io_budget, drafts), strict=True):
        plan = _with_budget(draft, run, share)
        plan_or_result = _if_due(plan, start.manifests.get(partition_key(plan.input), ()))
        if isinstance(plan_or_result, PartitionResult):
            results.append(plan_or_result)
        else:
            plans.append(plan_or_result)
    return plans, results


def _draft(start: Start, key: Key, run: RunContext, links: Collection[str]) -> PartitionPlan | Problem:
    """Return the draft of a partition's plan, or the problem that prevents it. The partition's input is its generation
    and what follows, or the archive if there is no generation.
    """
    archived, checkpoint = start.archive.partitions[key], start.checkpoints.get(key)
    uri, gaps = start.state.root.uri, start.listing.settings[key[0]].gaps
    given: PartitionInput | Problem = _listing_problem(start, key, links) or (
        input_from_archive(archived)
        if checkpoint is None
        else input_from_generation(archived, checkpoint, start.manifests[key], uri, gaps)
    )
    if isinstance(given, Problem) and checkpoint and archived.segments and begins_anew(start, key, given):
        given = input_from_archive(archived, reset=True)
    if isinstance(given, Problem):
        return given
    generation = (checkpoint.generation if checkpoint else 0) + 1
    return _drafted(start, given, replace(run, folder=generation_folder(*key, generation, start.run_id)))


def _listing_problem(start: Start, key: Key, links: Collection[str]) -> Problem | None:
    """Return the problem for which a partition cannot be read at all. links: symbolic links among the store's folders
    of partitions.
    """
    archived, folder = start.archive.partitions[key], partition_folder(*key)
    if folder in links:
        path, expected, hint = f"{PARTITIONS}/{folder}", "a folder of the store", LINKED_FOLDER.hint
        return Problem("unreadable", path, NO_POSITION, expected, "a symbolic link", hint=hint)
    held = None
    if start.options.sealed and archived.held_by_broker:
        expected, hint = "no writer, because --sealed was given", "leave --sealed out, or stop the broker"
        held = Problem("unreadable", archived.path, NO_POSITION, expected, "a broker's lock", hint=hint)
    return archived.problem or archived.high_watermark_problem or archived.unread or held


def _drafted(start: Start, given: PartitionInput, run: RunContext) -> PartitionPlan | Problem:
    """Return the draft of a partition's plan, or the problem if the plan needs a key that was not given."""
    before = start.checkpoints.get(partition_key(given))
    erasing = start.erasures.plan_erasure(given, before, dry_run=run.dry_run)
    if isinstance(erasing, Problem):
        return erasing
    return _draft_plan(given, clean_settings(start.listing.settings[given.topic]), erasing, run, before)


def restart_plan(start: Start, plan: PartitionPlan, *, checkpoints: bool) -> PartitionPlan | Problem:
    """Return a plan that starts a partition over from what the archive holds; without the archive's `checkpoints` if
    they contradict the log. Return the problem if the plan needs a key that was not given.
    """
    archived = start.archive.partitions[partition_key(plan.input)]
    reset = plan.input.generation.next_offset is not None or plan.input.reset
    given = input_from_archive(archived, checkpoints=checkpoints, reset=reset)
    draft = _drafted(start, given, plan.run)
    return draft if isinstance(draft, Problem) else _with_budget(draft, plan.run, None)


def share_budget(io_budget: int | None, drafts: Sequence[PartitionPlan]) -> list[int | None]:
    """Return the shares of the run's budget, in bytes.

    Equal parts could be too small for every segment in every run. So a partition gets the bytes that it can use
    according to the dead records found by the last run: first the partitions that have waited longest for a full run,
    then those with the largest dead share. The rest is divided by the sizes of the logs.
    """
    if io_budget is None:
        return [None] * len(drafts)
    left, shares = io_budget, [0] * len(drafts)
    wishes = [_wish(draft, io_budget) for draft in drafts]
    overdue = (n for n, draft in enumerate(drafts) if _is_overdue(draft))
    for n in sorted(overdue, key=lambda n: drafts[n].run.secret_ms):
        cost = cost_of_all(drafts[n].log_bytes)
        if cost <= left:
            shares[n], left = cost, left - cost
    for n in sorted(range(len(drafts)), key=lambda n: -wishes[n][0]):
        more = min(max(wishes[n][1] - shares[n], 0), left)
        shares[n], left = shares[n] + more, left - more
    total = max(sum(draft.log_bytes for draft in drafts), 1)
    return [share + left * draft.log_bytes // total for draft, share in zip(drafts, shares, strict=True)]


def _wish(draft: PartitionPlan, io_budget: int) -> tuple[float, int]:
    """Return two estimates for a run by yield without a budget, from facts known before the run: the share of dead
    bytes in the segments to rewrite, and the maximum of bytes to move.
    """
    if not draft.policy.partial:
        return 0.0, 0
    rows = cleaned_rows(draft.input)
    older = older_segments(rows, [row.superseded for row in rows])
    taken = choose(older, schedule_limits(draft.policy.settings, None)).reason != KEPT
    cost = estimate_cost(older.size_bytes[taken])
    if cost.max(initial=0) > io_budget:
        _LOG.warning(
            "%s: a segment waits that --io-budget %d never suffices for: it may take %d bytes",
            draft.name, io_budget, cost.max(),
        )  # fmt: skip
    return float(older.dead_records[taken].sum() / max(older.records[taken].sum(), 1)), int(cost.sum())


def _may_expire(plan: PartitionPlan, manifest: Sequence[Segment]) -> bool:
    """Return whether retention may delete the first segment, as far as is known without reading it."""
    if not plan.policy.settings.has_limit or not plan.input.segments:
        return False
    row = _first_row(plan, manifest)
    return row is None or may_expire(plan, with_first(plan, row))


def _first_row(plan: PartitionPlan, manifest: Sequence[Segment]) -> Segment | None:
    first = plan.input.segments[0].first_offset if plan.input.segments else -1
    return next((row for row in manifest if row.base_offset == first), None)


def _is_touched(plan: PartitionPlan, manifest: Sequence[Segment]) -> bool:
    """Return whether the archived segment at the end of the last generation may be another file now, by its listing."""
    until = plan.input.generation.next_offset or 0
    theirs = [s for s in plan.input.segments if not plan.is_ours(s) and s.base_offset < until]
    known = [(row.size_bytes, row.mtime_ms) for row in manifest if theirs and row.base_offset == theirs[-1].base_offset]
    return bool(theirs) and (theirs[-1].size_bytes, theirs[-1].mtime_ms) not in known


def _if_due(plan: PartitionPlan, manifest: Sequence[Segment]) -> PartitionPlan | PartitionResult:
    """Return a result if the listing shows that the partition is not due: other facts can only reduce the cleanable
    range. Else return the plan.
    """
    if plan.is_due_anyway or plan.policy.erasing is not None or _may_expire(plan, manifest):
        return plan
    settings = plan.policy.settings
    if not settings.compacts and _is_touched(plan, manifest):
        return plan  # only the log itself shows whether the log is the same
    if not settings.compacts:
        row = _first_row(plan, manifest)
        return unread_result(plan, with_first(plan, row) if row else listed_times(plan.input.segments))
    if plan.run.force or settings.max_compaction_lag_ms < 2**63 - 1 or not plan.input.segments:
        return plan
    facts = listed_times(plan.input.segments)
    last = plan.input.segments[-1].first_offset
    end = max(last + 1, plan.input.generation.next_offset or 0)
    active = end if plan.run.sealed else last
    if max(plan.cleaned_until, plan.input.log_start_offset, plan.input.log_start_checkpoint or 0) > end:
        return plan  # only the log itself shows its end
    dirty = first_dirty_offset(plan.clean_from(plan.extent), plan.input.log_start_offset, end)
    if plan.run.sealed and any(s.from_offset for s in plan.input.segments):
        return plan  # only the log itself shows if the rest of a cut segment holds anything
    cleanable = cleanable_range(
        facts,
        first_dirty=dirty,
        log_end_offset=end,
        active_base_offset=active,
        last_stable_offset=2**63 - 1,
        min_compaction_lag_ms=0,
        now_ms=plan.run.now_ms,
    )
    if is_due(cleanable, 0, settings.min_cleanable_dirty_ratio, settings.min_dirty_bytes, False):
        return plan
    paths = [s.path for s in plan.input.segments]
    held_back = dirt_held_back(plan, facts, paths, cleanable, log_end=end, active=active)
    return not_due(plan, dirty, known_end(plan), cleanable, (held_back,))
