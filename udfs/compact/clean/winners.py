"""The winner of each key if `compaction.strategy` is timestamp or header: a pass before the one that cleans.

From the end backwards the first record of a key is its last one, but not the one with the highest version. So this
strategy reads the cleanable range twice, and the table takes 32 bytes a key.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.udfs.compact.clean.key_table import TooManyKeys, grown
from lastkey.udfs.compact.clean.winner_kernels import (
    NO_VERSION,
    WINNER,
    enter_winners,
    mark_winners,
    versions_by_header,
    versions_by_time,
)
from lastkey.udfs.compact.cleaner import key_candidates
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.read_again import CHANGED_HINT, chunks_again
from lastkey.udfs.problem import Problem, SetAside


class Winners:
    """A table of winners that grows as keys come; `max_bytes` bounds its memory (with the old slots while it grows)."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.slots = np.zeros(1 << 15, WINNER)
        self.used = 0

    def enter(self, run: Run, versions: np.ndarray, wins: np.ndarray, left: int) -> int:
        """Enter the first `left` records of a run, from last to first, and mark in `wins` those that win so far
        (`enter_winners`).

        Returns how many records are left: 0, unless the table is full and may not grow. Then clear() makes room.
        """
        while left:
            self.used, left = enter_winners(
                run.batches, run.bodies, run.wanted, run.spans, versions, self.slots, self.used, wins, left
            )
            if left and not self._grow():
                break
        return left

    def mark(self, run: Run, is_last: np.ndarray) -> None:
        """Mark the records of a run that win, in is_last: bool[len(run.spans)]. Raises LogFormatError kind "changed"
        for a key that the pass before did not meet.
        """
        if not mark_winners(run.batches, run.bodies, run.wanted, run.spans, self.slots, is_last):
            raise LogFormatError(
                "changed",
                "",
                int(run.batches["position"][0]),
                "the keys of the first pass",
                "another key",
                hint=CHANGED_HINT,
            )

    def _grow(self) -> bool:
        larger = grown(self.slots, self.max_bytes)
        self.slots = self.slots if larger is None else larger
        return larger is not None


def versions_of(run: Run, plan: PartitionPlan) -> np.ndarray:
    """Return int64[len(run.spans)]: the version of each record of the wanted batches. NO_VERSION: no version, or no
    key. Records below the log start get less, so that they never supersede readable ones.
    """
    versions, settings = np.full(len(run.spans), NO_VERSION, np.int64), plan.policy.settings
    if settings.compaction_strategy == "timestamp":
        versions_by_time(run.batches, run.bodies, run.wanted, run.spans, versions)
    else:
        name = np.frombuffer(settings.compaction_strategy_header.encode(), np.uint8)
        versions_by_header(run.raw, run.scratch, run.bodies, run.wanted, run.spans, name, versions)
    versions[run.spans["null_key"]] = NO_VERSION
    if len(run.batches) and run.batches["base_offset"][0] < plan.input.log_start_offset:
        offsets = np.repeat(run.bodies["base_offset"], run.bodies["n_records"]) + run.spans["offset_delta"]
        versions[offsets < plan.input.log_start_offset] = NO_VERSION - 1
    return versions


def find_winners(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer) -> Winners:
    """Find the winners in everything that will be cleaned. Raises TooManyKeys, and SetAside if no record has the
    header.
    """
    table = Winners(plan.run.limits.task_memory_bytes // 2)
    loader = BodyLoader(
        max_batch_bytes=plan.policy.settings.max_decompressed_batch_bytes,
        secret=plan.run.secret,
        keys_only=plan.policy.settings.compaction_strategy != "header",
    )
    highest = NO_VERSION
    for numbers in analysis.groups:
        for source in (analysis.sources[number] for number in numbers):
            with source.open_log() as file:
                for chunk in chunks_again(file, source.path, source.chunks, buffer):
                    wanted = key_candidates(chunk.batches, analysis.rules)
                    for run in loader.runs(
                        chunk.raw, chunk.position, chunk.batches, wanted, source.path, backwards=False,
                        before=chunk.before,
                    ):  # fmt: skip
                        versions = versions_of(run, plan)
                        if table.enter(run, versions, np.empty(len(versions), np.bool_), len(versions)):
                            raise TooManyKeys
                        highest = max(highest, int(versions.max(initial=NO_VERSION)))
    check_versions(plan, highest, bool(table.used))
    return table


def check_versions(plan: PartitionPlan, highest: int, any_keys: bool) -> None:
    """Raise SetAside if no record of a partition has the header: offsets alone would decide, which nobody asked for."""
    settings = plan.policy.settings
    if settings.compaction_strategy == "header" and any_keys and highest <= NO_VERSION:
        raise SetAside(
            Problem(
                "version",
                plan.name,
                NO_POSITION,
                f"a header {settings.compaction_strategy_header!r} of eight bytes, not negative, in some record",
                "none",
                hint="compaction.strategy.header names it: without one, offsets alone would decide",
            )
        )
