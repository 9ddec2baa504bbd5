"""The model over time with one more step: delete exactly the files that `archive-needed` reports as not needed.

Afterwards all commands must work as if these files existed: the model judges each later command as before. No run may
find a partition uncleanable for this reason or skip unread offsets, and every generation that was restorable before is
still restorable. Before the deletion the model checks the files by its own records: they hold records of the log of the
current generation, below its end, and a run of its chain has read each of them.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Final

from tests.attack.forked import Failed
from tests.attack.model import World
from tests.attack.model_judge import Contents, Generation, read_folder
from tests.attack.model_log import Log

_MOST: Final = 3  # older generations that are restored before and after


class Deleting(World):
    """A world that deletes the archive files that are not needed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gone: dict[int, list[tuple[int, int]]] = {}  # life of a log -> ranges of offsets that were deleted

    def weights(self, step: int) -> dict[str, int]:
        """Return the possible next steps, with their weights."""
        weights = super().weights(step)
        return weights if step < 4 else weights | {"delete": 25}

    def delete(self, rng: random.Random) -> None:
        """Delete the files that are not needed."""
        if not self.current or self.has_moved():
            return
        before = self.restorable(rng)
        words = ["archive-needed", self.archive, "--store", self.store]
        output = self.command(*words, codes=(0, 3))
        for p in output.report["partitions"]:
            log, made = self.logs[p["topic"]], self.current.get(p["topic"])
            bases = {s["base_offset"] for s in p["segments"] if not s["needed"]}
            if not bases:
                continue
            self.check_needless(log, made, bases)
            for path in p["files"]:
                Path(path).unlink()
            if left := [s.base for s in log.segments if s.base in bases and log._files(s.base)]:
                raise Failed(f"{log.topic}: files of segments {left} are left")
            ends = [s.base for s in log.segments[1:]]
            ranges = [(s.base, end - 1) for s, end in zip(log.segments, ends, strict=False) if s.base in bases]
            self.gone.setdefault(log.life, []).extend(ranges)
            log.segments = [s for s in log.segments if s.base not in bases]
            self.tally.deleted += len(bases)
        self.tell(
            ", ".join(f"{p['topic']} from {p['needed_from']} on {p['because']}" for p in output.report["partitions"])
        )
        after = self.restorable(rng, before)
        if after != before:
            raise Failed(f"restored before: {before.keys()}, after: {after.keys()}")
        self.look()

    def check_needless(self, log: Log, made: Generation | None, bases: set[int]) -> None:
        """Check that the store has read all records of these segments."""
        if made is None or not log.is_same_as(made.log.life, made.next):
            raise Failed(f"{log.topic}: not needed: segments of a log that the store never read")
        if bases != {s.base for s in log.segments[: len(bases)]} or log.segments[-1].base in bases:
            raise Failed(f"{log.topic}: not needed: {sorted(bases)}, not the beginning of the log, or all of it")
        known = {record for ancestor in made.chain() for record in ancestor.given}
        for segment in log.segments[: len(bases)]:
            for record in (r for b in segment.batches for r in b.records):
                if record not in known or record.offset >= made.next or record.offset in made.in_archive:
                    raise Failed(
                        f"{log.topic}: not needed: segment {segment.base} with {record}, which no run has read"
                    )

    def restorable(
        self, rng: random.Random, again: dict[tuple[str, int], Contents] | None = None
    ) -> dict[tuple[str, int], Contents]:
        """Restore some older generations, or the same ones again; return those that can be."""
        numbers = [(topic, n) for topic, made in self.current.items() for n in range(1, made.number + 1)]
        files = {}
        for topic, number in rng.sample(numbers, min(_MOST, len(numbers))) if again is None else again:
            output = self.root / "older"
            shutil.rmtree(output, ignore_errors=True)
            words = ["restore", "--store", self.store, "--output", output, "--topics", topic, "--generation", number]
            if self.command(*words, codes=(0, 2, 3)).code == 0:
                files[topic, number] = read_folder(output / f"{topic}-0")
        return files

    def gaps(self) -> str:
        """Let readers of the archive accept the deleted beginning."""
        return "accept" if any(log.life in self.gone for log in self.logs.values()) else "fail"

    def hole(self, log: Log, parent: Generation | None, until: int) -> list[tuple[int, int]]:
        """Return the offsets of lost and deleted segments that this run needed and must have reported as missing."""
        first = max(parent.next if parent is not None else log.segments[0].base, log.start_known or 0)
        removed = [(a, b) for a, b in self.gone.get(log.life, []) if b >= first and b < until]
        return super().hole(log, parent, until) + removed
