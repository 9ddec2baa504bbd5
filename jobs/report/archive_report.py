"""What a report says, as JSON, as text and as rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.command.reporting import JobReport, by_rule, count, said, size, table
from jobs.store.rows import RunRow
from jobs.topics import Key
from udfs.problem import Problem
from udfs.report.partition_profile import PartitionProfile


@dataclass
class ArchiveReport(JobReport):
    """What was found, partition by partition."""

    archive: str
    now_ms: int
    store: str | None = None
    output: str = ""
    profiles: list[PartitionProfile] = field(default_factory=list)  # by topic and partition
    archived_bytes: dict[Key, int] = field(default_factory=dict)  # of `.log` files in the archive, by listing
    history: dict[Key, list[RunRow]] = field(default_factory=dict)  # of the store, newest first

    @property
    def all_problems(self) -> list[Problem]:
        """Those of partitions that were profiled too."""
        return [*self.problems, *(p.problem for p in self.profiles if p.problem is not None)]

    def total(self, column: str) -> int:
        """Sum of a column of all segments."""
        return sum(p.total(column) for p in self.profiles)

    def to_json(self) -> dict[str, Any]:
        """For programs; everything that was found."""
        return {
            "job": "report",
            "archive": self.archive,
            "store": self.store,
            "output": self.output,
            "now_ms": self.now_ms,
            "exit_code": self.exit_code,
            "partitions": [asdict(p) for p in self.profiles],
            "problems": [asdict(p) for p in self.problems],
            "history": [asdict(run) for key in sorted(self.history) for run in self.history[key]],
            "notes": self.notes,
            "seconds": self.seconds_json(),
        }

    def to_text(self) -> str:
        """For people: a row a partition."""
        header = ("partition", "policy", "records", "keys", "dead", "tombstones", "dirty", "size", "would be", "saved")
        rows = [partition_row(p) for p in self.profiles if p.problem is None]
        none = "no partition that could be read" if self.all_problems else "no partition in the archive"
        out = [table(header, rows, left=(0, 1))] if rows else [none]
        out += said("would expire", (f"{p.name()}: {by_rule(p.expiring)}" for p in self.profiles if p.expiring))
        out += said("problem", self.all_problems)
        out += said("note", self.notes)
        if self.output:
            out.append(f"the page: {self.output}")
        out.append(self.seconds_line())
        return "\n".join(out)


def partition_row(p: PartitionProfile) -> tuple[str, ...]:
    """A partition's line of a table: name, policy, records, keys, dead, tombstones, dirty, size, would be, saved."""
    after, about = p.total("bytes_after"), "~" if p.bytes_after_is_estimate else ""
    return (
        p.name(),
        "compact" if p.compacted else "delete",
        count(p.total("records")),
        count(p.distinct_keys),
        count(p.total("dead_records")),
        count(p.total("tombstones")),
        f"{100 * p.dirty_ratio:.0f} %" if p.compacted else "",
        size(p.size_bytes),
        about + size(after) if p.compacted else "",
        about + saved(p.size_bytes, after) if p.compacted else "",
    )


def most_to_gain(report: ArchiveReport) -> str:
    """The partition for which a compaction would save the most bytes, in a sentence; "": none would."""
    gains = [(p.size_bytes - p.total("bytes_after"), p) for p in report.profiles if p.problem is None and p.compacted]
    gain, best = max(gains, key=lambda one: one[0], default=(0, None))
    if best is None or gain <= 0:
        return ""
    about = "about " if best.bytes_after_is_estimate else ""
    share = saved(best.size_bytes, best.total("bytes_after"))
    would_save = f"A compaction would save {about}{size(gain)} of {size(best.size_bytes)} ({share})."
    return f"Most to gain: {best.name()}. {would_save}"


def saved(before: int, after: int) -> str:
    """Share that is saved."""
    return f"{100 * (before - after) / before:.1f} %" if before else ""
