"""Runs that erase: each partition's plan, and the bounds that its new generation has.

`erase` is such a run. A later run is one for a partition as far as it reads again, from the archive, what was erased:
after --reset, or where the archive had ended below a bound. Such a run only erases; the next one compacts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lastkey.jobs.compact.plan_partition import NotPlanned
from lastkey.jobs.store.erasures import (
    Bounds,
    bounds_of,
    check_key,
    erasure_path,
    is_another_log,
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
        bounds, known = bounds_of(before), 0 if plan.anew else plan.known_until or 0
        again = {one: until for one, until in bounds.items() if until > known}
        if not again and not self.new:
            return plan
        if not self.key:
            raise NotPlanned(_no_key(plan, again))
        ours = self.id
        apart = plan.anew and before is not None and is_another_log(plan.topic_id, before.topic_id)
        files = {erasure_path(one): MAX_OFFSET if apart else until for one, until in again.items()}
        if self.new and not plan.dry_run:
            files[erasure_path(ours)] = MAX_OFFSET
        erasing = Erasing(
            secret_of(self.key),
            tuple(sorted(files.items())),
            self.new if plan.dry_run else b"",
            noted=not plan.anew and (not self.new or bounds.get(ours, 0) >= known),
        )
        nothing_else = replace(
            plan.settings, compacts=False, retention_ms=-1, retention_bytes=-1, retention_exact=False
        )
        return replace(plan, erasing=erasing, settings=nothing_else, by_yield=False, partial=False)

    def bounds_after(
        self, before: Checkpoint | None, archived: ArchivedPartition, next_offset: int, *, anew: bool
    ) -> str | None:
        """Return the column `erased` of a partition's new generation. A topic that was made anew is another log: its
        keys went up to where it ends now.
        """
        bounds: Bounds = bounds_of(before)
        if anew and before is not None and is_another_log(archived.topic_id, before.topic_id):
            bounds = dict.fromkeys(bounds, max(next_offset, 1))
        if self.new:
            bounds[self.id] = max(next_offset, bounds.get(self.id, 0))
        return to_text(bounds)


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
