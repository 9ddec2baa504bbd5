"""Report of `merge`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lastkey.jobs.command.reporting import JobReport, TextTable, counted, labelled, size, some
from lastkey.udfs.merge.copies import CopyFacts, MergedPartition

_REASONS: Final = {
    "largest": "the copy with the most sound batches",
    "damaged": "damaged in the copy that is preferred",
    "missing": "missing in the copy that is preferred",
    "begins later": "the copy that is preferred begins later",
    "ends": "the copy that is preferred ends before",
    "other lineage": "the copy that is preferred has another leader's batches",
    "more records": "has more records than the copy that is preferred",
}


@dataclass
class MergeReport(JobReport):
    """Report of all partitions. Problems: partitions that are refused, gaps, and copies that cannot be read where no
    other copy covers them.
    """

    job = "merge"
    done = "{partitions:partition} {dry_run:would}merged to {output}"
    facts = "archives output dry_run partitions"
    results_at = "partitions"
    text_tables = (
        TextTable(
            "partitions",
            "partition copies offsets segments batches records bytes",
            {
                "copies": lambda p: sum(c.first_offset is not None for c in p.copies),
                "offsets": lambda p: "refused" if p.refused else f"{p.log_start_offset}..{p.next_offset}",
            },
            total="partition",
            needs_attention=lambda p: p.refused or bool(p.gaps) or any(map(_needs_attention, p.copies)),
        ),
    )

    archives: list[str]
    output: str
    dry_run: bool = False
    partitions: list[MergedPartition] = field(default_factory=list)

    def _lines(self) -> Iterable[str]:
        for p in self.partitions:
            name = f"{p.topic}-{p.partition}"
            if not p.refused and (len(p.ranges) > 1 or p.ranges_omitted):
                yield from some(labelled(f"{name}: taken", _ranges(p)))
            for copy in p.copies:
                yield from some(labelled(f"{name}: {copy.copy}", _copy_lines(copy)))
            yield from labelled(f"{name}: no copy has", (f"offsets {a} to {b - 1}" for a, b in p.gaps))


def _needs_attention(copy: CopyFacts) -> bool:
    return bool(copy.lacks or copy.losing or copy.notes or copy.problem or copy.first_offset is None)


def _ranges(p: MergedPartition) -> Iterator[str]:
    for one in p.ranges:
        yield f"offsets {one.first} to {one.last} from {one.copy}: {_REASONS[one.reason]}"
    if p.ranges_omitted:
        yield f"and {p.ranges_omitted:,} more ranges"


def _copy_lines(copy: CopyFacts) -> Iterator[str]:
    if copy.problem is not None:
        yield f"not read: {copy.problem}"
    elif copy.first_offset is None:
        yield "no such partition"
    for lack in copy.lacks:
        until = f"to {lack.until - 1}" if lack.until < 2**63 - 1 else "on"
        yield f"offsets {lack.first} {until} {lack.reason}" + (f": {lack.problem}" if lack.problem is not None else "")
    for lost in copy.losing:
        what = f"{counted(lost.batches, 'batch', 'batches')} of leader epoch {lost.leader_epoch}"
        yield f"left out: offsets {lost.first} to {lost.last}, {what}, which the winning leaders never had"
    if copy.damaged_bytes:
        yield f"{size(copy.damaged_bytes)} damaged"
    yield from copy.notes
