"""Report of `plan`: the segments that the next compaction would rewrite, and what that should yield."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lastkey.jobs.command.reporting import count, counted, labelled, size, table
from lastkey.jobs.compact.report import CompactReport
from lastkey.udfs.compact.plan import PartitionResult, ScheduledSegment


class ScheduleReport(CompactReport):
    """Report of a plan, partition by partition."""

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with every older segment of a run by yield."""
        told = super().to_json()
        return {key: told[key] for key in _KEPT} | {"job": "plan", "partitions": [_partition(r) for r in self.results]}

    def to_text(self) -> str:
        """Return the report for people: for each partition what a run would read, write and free."""
        out = []
        for r in self.results:
            if r.status == "scheduled":
                out.append(f"{r.name()}: {_summary(r)}")
                rows = [s for s in r.schedule if self.show_all or s.reason != "kept"]
                if rows:
                    out.append(table(_HEAD, [_row(s) for s in rows]))
        if rest := [r for r in self.results if r.status == "not_due"]:
            out.append(f"not due: {counted(len(rest), 'partition')}")
        out += labelled("set aside", (f"{r.name()}: {r.problem}" for r in self.results if r.problem is not None))
        out += labelled("note", [*self.notes, *(n for r in self.results for n in r.notes)])
        out.append("plan: nothing was written")
        out.append(self.last_lines())
        return "\n".join(out)


_KEPT = ("archive", "store", "now_ms", "exit_code", "problems", "notes", "engine", "seconds")
_HEAD = ("offset", "size", "records", "dead", "share", "why")


def _partition(r: PartitionResult) -> dict[str, Any]:
    read, written, freed = _moved(r.schedule)
    return {
        "topic": r.topic,
        "partition": r.partition,
        "status": r.status,
        "run": ("yield" if r.schedule else "full") if r.status == "scheduled" else None,
        "problem": asdict(r.problem) if r.problem else None,
        "log_bytes": r.bytes_before,
        "new_bytes": r.dirty_bytes,
        "rewritten_bytes": read,
        "expected_bytes_written": written,
        "expected_bytes_freed": freed,
        "segments": [asdict(s) for s in r.schedule],
        "notes": list(r.notes),
    }


def _moved(schedule: tuple[ScheduledSegment, ...]) -> tuple[int, int, int]:
    """Return the bytes that the rewrites read, and that they should write and free."""
    read = [s.size_bytes for s in schedule if s.reason != "kept"]
    freed = [s.size_bytes * s.dead_records // max(s.records, 1) for s in schedule if s.reason != "kept"]
    return sum(read), sum(read) - sum(freed), sum(freed)


def _summary(r: PartitionResult) -> str:
    if not r.schedule:
        return f"cleans everything, {size(r.bytes_before)}, unless its log shows that nothing is due"
    read, written, freed = _moved(r.schedule)
    n = sum(s.reason != "kept" for s in r.schedule)
    return (
        f"cleans {size(r.dirty_bytes)} that are new, and rewrites {n:,} of {counted(len(r.schedule), 'segment')}: "
        f"{size(read)} to read, about {size(written)} to write, {size(freed)} to free"
    )


def _row(s: ScheduledSegment) -> tuple[str, ...]:
    share = f"{100 * s.dead_records / max(s.records, 1):.0f} %"
    counts = count(s.records), count(s.dead_records), share
    return str(s.base_offset), size(s.size_bytes), *counts, s.reason
