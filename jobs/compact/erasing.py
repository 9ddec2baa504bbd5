"""Runs that erase: each partition's plan, and the bounds that its new generation has.

`erase` is such a run. A later run is one for a partition as far as it reads again, from the archive, what was erased:
after --reset, or where the archive had ended below a bound. Such a run only erases; the next one compacts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lastkey.jobs.compact.plan_partition import NotPlanned
from lastkey.jobs.store.erasures import (
    bounds_of,
    check_key,
    erasure_path,
    in_log,
    secret_of,
    to_text,
    write_erasure,
)
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.plan import Erasing, PartitionPlan
from lastkey.udfs.erased_keys import id_of
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastkey.jobs.archive.listing import ArchivedPartition


@dataclass(frozen=True)
class Erasures:
    """Knowledge of a run about erasures: the user's key, and the keys that it erases itself."""

    key: bytes = field(default=b"", repr=False)  # b"": none was given
    new: bytes = field(default=b"", repr=False)  # the file of a new erasure; b"": the run compacts
    no_archive: bool = False  # of a new erasure: there is no archive any more

    def begin(self, store: str, checkpoints: Mapping[Key, Checkpoint], *, dry_run: bool) -> None:
        """Write the file of a new erasure. Raise UsageError for another key than that of the store's erasures."""
        if not self.key:
            return
        root = open_root(store)
        check_key(root, (one for row in checkpoints.values() for one in bounds_of(row)), self.key)
        if self.new and not dry_run:
            write_erasure(root, self.new)

    @property
    def id(self) -> str:
        """Name of the new erasure; "": there is none."""
        return id_of(self.new) if self.new else ""

    def applied(self, plan: PartitionPlan, before: Checkpoint | None) -> PartitionPlan:
        """Return the plan; one that erases, if this run does, or if it reads again what was erased. Raise NotPlanned
        if it needs the user's key for that.
        """
        known, ours = 0 if plan.anew else plan.known_until or 0, self.id
        bounds = _bounds_in(before, plan.topic_id)
        again = {one: until for one, until in bounds.items() if until > known}
        if not again and not self.new:
            return plan
        if not self.key:
            raise NotPlanned(_no_key(plan, again))
        files = {erasure_path(one): until for one, until in again.items()}
        if self.new and not plan.dry_run:
            files[erasure_path(ours)] = MAX_OFFSET
        erasing = Erasing(
            secret_of(self.key),
            tuple(sorted(files.items())),
            self.new if plan.dry_run else b"",
            noted=not plan.anew and MAX_OFFSET not in again.values() and (not self.new or bounds.get(ours, 0) >= known),
        )
        nothing_else = replace(
            plan.settings, compacts=False, retention_ms=-1, retention_bytes=-1, retention_exact=False
        )
        return replace(plan, erasing=erasing, settings=nothing_else, by_yield=False, partial=False)

    def bounds_after(
        self, before: Checkpoint | None, archived: ArchivedPartition, next_offset: int, *, anew: bool
    ) -> str | None:
        """Return the column `erased` of a partition's new generation: the bounds of the one before, and those of its
        own log, from which the keys of erasures of other logs went up to where it ends now.
        """
        bounds = bounds_of(before)
        own = {
            one: next_offset if until == MAX_OFFSET else until
            for one, until in _bounds_in(before, archived.topic_id).items()
        }
        if self.new:
            own[self.id] = max(next_offset, own.get(self.id, 0))
        log = archived.topic_id or (before.topic_id if before and not anew else None) or ""
        for one, until in own.items():
            others = {other: n for other, n in bounds.get(one, {}).items() if other}  # one without an id is this one
            bounds[one] = others | {log: until}
        return to_text(bounds)


def _bounds_in(before: Checkpoint | None, topic_id: str | None) -> dict[str, int]:
    """Return the bound of each erasure in the log that the archive holds; MAX_OFFSET if only other logs have one."""
    return in_log(bounds_of(before), topic_id or (before.topic_id if before else None), MAX_OFFSET)


def _no_key(plan: PartitionPlan, bounds: Mapping[str, int]) -> Problem:
    erasure, until = max(bounds.items(), key=lambda one: one[1])
    return Problem(
        "erased",
        plan.name,
        NO_POSITION,
        f"--hmac-key, the key of erasure {erasure}, for this run reads offsets below {until} again",
        "none",
        hint="give the file that erase was given: without it, records that were erased would come back",
    )
