"""Runs that erase: each partition's plan, and the bounds that its new generation has.

`erase` is such a run. A later run is one for a partition as far as it reads again, from the archive, what was erased:
after --reset, or where the archive had ended below a bound. Such a run only erases; the next one compacts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastkey.jobs.store.erasures import (
    Bounds,
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
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.compact.plan import Erasing, PartitionInput
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

    def erasing_of(
        self, given: PartitionInput, before: Checkpoint | None, *, dry_run: bool
    ) -> Erasing | Problem | None:
        """Return what a partition's run erases, if this run does, or if it reads again what was erased; else None.
        Return the problem if the run needs the user's key for that, or the log's topic id.
        """
        known, bounds = 0 if given.anew else given.before.until or 0, bounds_of(before)
        if given.anew and given.topic_id is None and any(_differ(logs) for logs in bounds.values()):
            return _no_topic_id(given)
        here = in_log(bounds, given.topic_id, MAX_OFFSET)
        again = {one: until for one, until in here.items() if until > known}
        if not again and not self.new:
            return None
        if not self.key:
            return _no_key(given, again)
        files = {erasure_path(one): until for one, until in again.items()}
        if self.new and not dry_run:
            files[erasure_path(self.id)] = MAX_OFFSET
        return Erasing(
            secret_of(self.key),
            tuple(sorted(files.items())),
            self.new if dry_run else b"",
            noted=not given.anew and _bounds_after(bounds, given.topic_id, known, self.id) == bounds,
        )

    def bounds_after(
        self, before: Checkpoint | None, archived: ArchivedPartition, next_offset: int, *, anew: bool
    ) -> str | None:
        """Return the column `erased` of a partition's new generation."""
        topic_id = topic_id_of(archived, before, anew=anew)
        return to_text(_bounds_after(bounds_of(before), topic_id, next_offset, self.id))


def topic_id_of(archived: ArchivedPartition, before: Checkpoint | None, *, anew: bool) -> str | None:
    """Return the topic id of a new generation: the archive's, or if it has none that of the generation before."""
    return archived.topic_id or (before.topic_id if before and not anew else None)


def _bounds_after(bounds: Bounds, topic_id: str | None, next_offset: int, new: str) -> Bounds:
    """Return the bounds of a generation that ends at next_offset: those of the one before, and those of its own log,
    from which the keys of erasures of other logs went up to there. new: an erasure that is made now; "": none.
    """
    own = {
        one: next_offset if until == MAX_OFFSET else until
        for one, until in in_log(bounds, topic_id, MAX_OFFSET).items()
    }
    if new:
        own[new] = max(next_offset, own.get(new, 0))
    out, log = {}, topic_id or ""
    for one, until in own.items():
        others = {other: n for other, n in bounds.get(one, {}).items() if other}  # one without an id is this one
        if one == new and log:
            others = dict.fromkeys(others, MAX_OFFSET)  # records that came to them since the last erasure go too
        out[one] = others | {log: until}
    return out


def _differ(logs: Mapping[str, int]) -> bool:
    """Return whether an erasure has several bounds, and none of a log without topic id."""
    return "" not in logs and len(set(logs.values())) > 1


def _no_topic_id(given: PartitionInput) -> Problem:
    return Problem(
        "erased",
        f"{given.name}/{names.PARTITION_METADATA}",
        NO_POSITION,
        "a topic id: the topic was made again, and keys were erased up to another offset of each log",
        "none",
        hint="bring the file back: nobody knows which records of these keys came after the erasure",
    )


def _no_key(given: PartitionInput, bounds: Mapping[str, int]) -> Problem:
    erasure, until = max(bounds.items(), key=lambda one: one[1])
    read = "a log that was not searched for its keys since" if until == MAX_OFFSET else f"offsets below {until} again"
    return Problem(
        "erased",
        given.name,
        NO_POSITION,
        f"--hmac-key, the key of erasure {erasure}, for this run reads {read}",
        "none",
        hint="give the file that erase was given: without it, records that were erased would come back",
    )
