"""Report of an archive, as JSON, as text and as rows of tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from lastkey.jobs.command.reporting import JobReport, by_rule, count, counted, labelled, size, table
from lastkey.jobs.report.format_table import FORMAT_HEADER, format_rows
from lastkey.jobs.report.yields import HEADER, Yields
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.topics import Key
from lastkey.udfs.report.format_savings import FormatSavings
from lastkey.udfs.report.partition_profile import PartitionProfile


@dataclass
class ArchiveReport(JobReport):
    """Report of an archive, partition by partition."""

    archive: str
    now_ms: int
    store: str | None = None
    output: str = ""
    profiles: list[PartitionProfile] = field(default_factory=list)  # by topic and partition
    archived_bytes: dict[Key, int] = field(default_factory=dict)  # of `.log` files in the archive, by listing
    history: dict[Key, list[RunRow]] = field(default_factory=dict)  # of the store, newest first
    yields: Yields = Yields()  # of the store
    formats: FormatSavings | None = None  # --format-savings

    @property
    def places(self) -> list[tuple[str, str, str | None]]:
        """Short name, URI and store of each archive."""
        return [("", self.archive, self.store)]

    @property
    def problems(self) -> list[Any]:
        """Problems of the report, including those of partitions that were profiled."""
        return [*self.other_problems, *(p.problem for p in self.profiles if p.problem is not None)]

    def total(self, column: str) -> int:
        """Sum a column over all segments."""
        return sum(p.total(column) for p in self.profiles)

    @property
    def good(self) -> list[PartitionProfile]:
        """Profiles of the partitions that could be read."""
        return [p for p in self.profiles if p.problem is None]

    def savings(self, *, by_settings: bool) -> tuple[int, int]:
        """Return the bytes of all partitions, and how many of them a compaction would save: in the topics that the
        settings compact, or in every topic.
        """
        size, after = sum(p.size_bytes for p in self.good), self.total("bytes_after")
        if not by_settings:
            after = sum(p.size_bytes if p.bytes_if_compacted is None else p.bytes_if_compacted for p in self.good)
        return size, size - after

    def about(self) -> str:
        """Return ~ if the report has estimates, else ""."""
        return "~" if any(p.bytes_after_is_estimate for p in self.good) else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with everything that was found."""
        return {
            "job": "report",
            "archive": self.archive,
            "store": self.store,
            "output": self.output,
            "now_ms": self.now_ms,
            "exit_code": self.exit_code,
            "savings": self.savings_json(),
            "partitions": [asdict(p) for p in self.profiles],
            "problems": self.problems_json(),
            "history": [asdict(run) for key in sorted(self.history) for run in self.history[key]],
            "yields": self.yields.to_json(),
            "formats": None if self.formats is None else asdict(self.formats),
            "notes": self.notes,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
        }

    def savings_json(self) -> dict[str, int]:
        """Return for programs what a compaction would save."""
        return {
            "bytes": self.savings(by_settings=True)[0],
            "by_settings_bytes": self.savings(by_settings=True)[1],
            "if_all_compacted_bytes": self.savings(by_settings=False)[1],
        }

    def _savings_lines(self) -> list[str]:
        """Say what a compaction would save by the settings; and of every topic, unless they say compact for all."""
        out, compacted = [], sum(p.compacted for p in self.good)
        for by_settings, what in ((True, "by the settings"), (False, "if every topic were compacted")):
            before, gain = self.savings(by_settings=by_settings)
            share = f" ({saved(before, before - gain)})" if before else ""
            out.append(
                f"a compaction would save, {what}: {self.about() if gain else ''}{size(gain)} of {size(before)}{share}"
            )
            if compacted == len(self.good):
                return out
        others = counted(len(self.good) - compacted, "partition")
        out.append(
            f"no settings say cleanup.policy compact for {others}: give --config FILE, or --topics GLOB with "
            "--cleanup-policy compact"
        )
        return out

    def to_text(self) -> str:
        """Return the report for people, with a row for each partition."""
        rows = [partition_row(p) for p in self.good]
        none = "no partition that could be read" if self.problems else "no partition in the archive"
        out = [table(PARTITION_HEADER, rows, left=(0, 1))] if rows else [none]
        out += self._savings_lines() if rows else []
        out += ["runs by yield:", table(HEADER, self.yields.rows(), left=(0, 1))] if self.yields.generations else []
        if self.formats:
            out += ["bytes a record by message format (convert --to v3):"]
            out += [table(FORMAT_HEADER, format_rows(self.formats.rows), left=(0, 1))]
        out += labelled("would expire", (f"{p.name()}: {by_rule(p.expiring)}" for p in self.profiles if p.expiring))
        out += labelled("problem", self.problems)
        out += labelled("note", self.notes)
        if self.output:
            out.append(f"the page: {self.output}")
        out.append(self.last_lines())
        return "\n".join(out)


PARTITION_HEADER: Final = (
    "partition", "policy", "records", "keys", "dead", "tombstones", "dirty", "size", "would be", "saved",
    "if compacted", "saved",
)  # fmt: skip


def partition_row(p: PartitionProfile) -> tuple[str, ...]:
    """Return a partition's row under PARTITION_HEADER; the last two columns are for topics that are not compacted."""
    after, about = p.total("bytes_after"), "~" if p.bytes_after_is_estimate else ""
    other = None if p.compacted else p.bytes_if_compacted
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
        "" if other is None else about + size(other),
        "" if other is None else about + saved(p.size_bytes, other),
    )


def most_to_gain(report: ArchiveReport) -> str:
    """Say for which partition a compaction would save the most bytes, one of a compacted topic if there is any; "" if
    none would.
    """
    gains = [
        (p.compacted, p.size_bytes - p.bytes_if_compacted, p) for p in report.good if p.bytes_if_compacted is not None
    ]
    compacted, gain, best = max((one for one in gains if one[1] > 0), key=lambda one: one[:2], default=(True, 0, None))
    if best is None:
        return ""
    about = "about " if best.bytes_after_is_estimate else ""
    share = saved(best.size_bytes, best.size_bytes - gain)
    condition = "" if compacted else " if cleanup.policy of its topic were compact"
    would_save = f"A compaction would save {about}{size(gain)} of {size(best.size_bytes)} ({share}){condition}."
    return f"Most to gain: {best.name()}. {would_save}"


def saved(before: int, after: int) -> str:
    """Return the share that is saved."""
    return f"{100 * (before - after) / before:.1f} %" if before else ""
