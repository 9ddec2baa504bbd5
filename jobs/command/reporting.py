"""Reports of jobs: text for a person, JSON for a program, an exit code for a script."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lastkey.jobs.errors import DONE, PROBLEMS
from lastkey.logformat.control_characters import visible
from lastkey.logformat.storage import io_counts
from lastkey.logformat.storage.io_counts import READ, WRITTEN

if TYPE_CHECKING:
    from lastkey.udfs.compact.retention import Expired, Reason
    from lastkey.udfs.problem import Problem

T = TypeVar("T")
MOST_ROWS: Final = 20  # of a table; a longer one shows only rows that tell something
_LOG = logging.getLogger("lastkey")


class Report(Protocol):
    """Report that `run(options, progress)` of a job returns."""

    notes: list[str]
    work: Work | None
    show_all: bool

    @property
    def exit_code(self) -> int:
        """Exit code, one of those in `jobs.errors`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings."""

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run."""

    def to_text(self) -> str:
        """Return the text for people, without a newline at its end."""

    def aside(self) -> list[str]:
        """Return lines for stderr, beside a text that only programs read."""


class Phases(dict[str, float]):
    """Seconds by phase. With --verbose each is logged when the phase is over."""

    def __setitem__(self, phase: str, value: float) -> None:
        super().__setitem__(phase, value)
        _LOG.debug("%s: %s", phase, seconds(value))


@dataclass(frozen=True)
class Work:
    """Workers that did a job's work: threads of its own process, tasks of a Spark session, or both."""

    threads: int = 0
    spark: str = ""  # Spark's version; "": no Spark
    master: str = ""
    application: str = ""
    tasks: int = 0

    def __str__(self) -> str:
        of_spark = f"Spark {self.spark}, {self.master}, application {self.application}"
        if not self.spark:
            return f"{counted(self.threads, 'thread')}, no Spark"
        if self.threads:
            return f"{counted(self.threads, 'thread')}, and {of_spark}, for what needs its window"
        return of_spark + (f", {counted(self.tasks, 'task')}" if self.tasks else "")


@dataclass(kw_only=True)
class JobReport:
    """Base of the reports of all jobs. A notebook's cell that ends with a report displays its text."""

    other_problems: list[Any] = field(default_factory=list)  # a Problem each, or its text: of no partition here
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=Phases)
    work: Work | None = None  # who did it; None: there was nothing to do, or the job needs neither
    show_all: bool = False  # --all: also table rows that tell nothing
    io: dict[str, Any] = field(default_factory=dict)  # of jobs that `tells_io`

    @property
    def problems(self) -> list[Any]:
        """Problems with data, of partitions and of the rest: a Problem each, or its text."""
        return self.other_problems

    @property
    def exit_code(self) -> int:
        """Exit code: 0, or 3 if there are problems."""
        return PROBLEMS if self.problems else DONE

    def to_text(self) -> str:
        """Return the text for people; every job's report has its own."""
        raise NotImplementedError

    def aside(self) -> list[str]:
        """Return lines for stderr, beside a text that only programs read."""
        return []

    def json_of(self, job: str, **fields: Any) -> dict[str, Any]:
        """Return the report for programs, with a job's own fields in the middle."""
        return {
            "job": job,
            "exit_code": self.exit_code,
            **fields,
            "notes": self.notes,
            "seconds": self.seconds_json(),
            **self.io_json(),
        }

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run: amounts by name, and counts by state or kind."""
        return {"problems": counts(getattr(p, "kind", "other") for p in self.problems)}

    def problems_json(self) -> list[Any]:
        """Return every problem for programs: never empty at exit code 3, but of an audit with findings."""
        return [p if isinstance(p, str) else problem_json(p) for p in self.problems]

    def shown(self, rows: Sequence[T], tells: Callable[[T], bool]) -> Sequence[T]:
        """Return the rows to show of a table: all of a few, of many only those that tell something."""
        return rows if self.show_all or len(rows) <= MOST_ROWS else [row for row in rows if tells(row)]

    def seconds_json(self) -> dict[str, float]:
        """Return seconds by phase for programs."""
        return {name: round(value, 3) for name, value in self.seconds.items()}

    def work_json(self) -> dict[str, Any] | None:
        """Return who did the work for programs."""
        return None if self.work is None else asdict(self.work)

    def last_lines(self) -> str:
        """Return for people who did the work, and the seconds by phase."""
        lines = self.io_lines() + ([] if self.work is None else [f"engine: {self.work}"])
        lines.append("seconds: " + ", ".join(f"{name} {seconds(value)}" for name, value in self.seconds.items()))
        return "\n".join(lines)

    def io_json(self) -> dict[str, Any]:
        """Return bytes and requests for programs."""
        return {"io": self.io} if self.io else {}

    def io_lines(self) -> list[str]:
        """Return for people what a job on a bucket read, wrote and asked for."""
        requests = ", ".join(f"{n:,} {kind}" for kind, n in self.io.get("requests", {}).items())
        amounts = f"{size(self.io.get(READ, 0))} read, {size(self.io.get(WRITTEN, 0))} written"
        return [f"in all {amounts}; requests to buckets: {requests}"] if requests else []

    def _repr_html_(self) -> str:
        return f"<pre>{escape(visible(self.to_text()))}</pre>"


J = TypeVar("J", bound=JobReport)


def tells_io(run: Callable[[Any, Any], J]) -> Callable[[Any, Any], J]:
    """Return a job's `run(options, progress)` with a report that tells bytes and requests, of all tasks."""

    @wraps(run)
    def counting(options: Any, progress: Any) -> J:
        with io_counts.counted() as counts:
            report = run(options, progress)
        bytes_of = {kind: counts.pop(kind, 0) for kind in (READ, WRITTEN)}
        report.io = {**bytes_of, "requests": dict(sorted(counts.items()))}
        return report

    return counting


def counts(kinds: Iterable[str]) -> dict[str, int]:
    """Return how often each kind comes, in the order of their names."""
    return dict(sorted(Counter(kinds).items()))


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem for programs, without the state of its partition: the problem may concern none."""
    out = asdict(problem)
    del out["state"]
    return out


def labelled(what: str, lines: Iterable[object]) -> list[str]:
    """Return lines of a report's text: `note: ...`, `problem: ...`."""
    return [f"{what}: {line}" for line in lines]


@dataclass(frozen=True)
class PartitionLine:
    """Row for one partition before -> after. None: unknown, shown as "-". `estimate`: bytes_after is an estimate."""

    topic: str
    partition: int
    state: str  # clean, dirty, uncleanable, diverged, gap, ...
    records_before: int | None = None
    records_after: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    segments_before: int | None = None
    segments_after: int | None = None
    estimate: bool = False
    note: str = ""


def before_after_table(lines: Iterable[PartitionLine], total: str = "") -> str:
    """Return the table of a compaction: a row a partition, in order, and a total if there are several.

    total: name of the last row, if there are more partitions than rows.
    """
    lines = sorted(lines, key=lambda line: (line.topic, line.partition))
    has_total = bool(total) or len(lines) > 1
    header = ("partition", "state", "records", "", "", "bytes", "", "", "saved", "segments", "note")
    rows = [_row(f"{line.topic}-{line.partition}", line) for line in lines]
    if has_total:
        rows.append(_row(total or counted(len(lines), "partition"), _total(lines)))
    return table(header, rows, left=(0, 1, 10), rule_before_last=has_total)


def _row(name: str, line: PartitionLine) -> tuple[str, ...]:
    saved = ""
    if line.bytes_before and line.bytes_after is not None:
        saved = f"{100 * (line.bytes_before - line.bytes_after) / line.bytes_before:.1f} %"
    estimate = "~" if line.estimate else ""
    segments = ""
    if line.segments_before is not None:
        segments = f"{count(line.segments_before)} -> {count(line.segments_after)}"
    return (
        name,
        line.state,
        *_before_after(count, line.records_before, line.records_after),
        *_before_after(size, line.bytes_before, line.bytes_after, estimate),
        saved and estimate + saved,
        segments,
        line.note,
    )


def _before_after(
    show: Callable[[int | None], str], before: int | None, after: int | None, mark: str = ""
) -> tuple[str, str, str]:
    return ("", "", "") if before is None and after is None else (show(before), "->", mark + show(after))


def _total(lines: Sequence[PartitionLine]) -> PartitionLine:
    def add(name: str) -> int | None:
        values = [getattr(line, name) for line in lines if getattr(line, name) is not None]
        return sum(values) if values else None

    names = ("records_before", "records_after", "bytes_before", "bytes_after", "segments_before", "segments_after")
    estimate = any(line.estimate for line in lines)
    return PartitionLine("", 0, "", **{name: add(name) for name in names}, estimate=estimate)  # type: ignore[arg-type]


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (), rule_before_last: bool = False
) -> str:
    """Return columns under their header, right aligned except those in `left`; an empty column is left out."""
    body = [tuple(row) for row in rows]
    columns = [i for i in range(len(header)) if header[i] == "" or any(row[i].strip("-~ ") for row in body) or i == 0]
    columns = [i for i in columns if any(row[i] for row in body)] or [0]
    widths = {i: max(len(row[i]) for row in [tuple(header), *body]) for i in columns}

    def render(row: Sequence[str]) -> str:
        cells = (row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in columns)
        return "  ".join(cells).rstrip()

    rule = "-" * max(len(render(row)) for row in [tuple(header), *body])
    out = [render(header), rule, *map(render, body)]
    if rule_before_last and body:
        out.insert(len(out) - 1, rule)
    return "\n".join(out)


def count(n: int | None) -> str:
    """Format a number: 1234567 -> 1,234,567."""
    return "-" if n is None else f"{n:,}"


def counted(n: int, one: str, several: str = "") -> str:
    """Format a number with its noun: `1 segment`, `2,000 segments`."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def size(n: int | None) -> str:
    """Format bytes in the unit that fits: 1536 -> 1.5 KiB."""
    if n is None:
        return "-"
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


TO_THE_MINUTE = "%Y-%m-%d %H:%M"


def moment(ms: int | None, shape: str = "") -> str:
    """Format a time for people, in UTC; as a number if no calendar has it.

    shape: strftime's format; without one to the millisecond.
    """
    if ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(ms // 1000, UTC)
        return at.strftime(shape) if shape else at.strftime("%Y-%m-%d %H:%M:%S") + f".{ms % 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return str(ms)


def seconds(value: float) -> str:
    """Format a duration: 75.2 -> 1 min 15 s; 0.123 -> 0.12 s."""
    return f"{int(value) // 60} min {int(value) % 60} s" if value >= 60 else f"{value:.2f} s"


_SPANS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def duration(ms: int | None) -> str:
    """Format a time span for people: 90061000 -> 1.0 d."""
    if ms is None:
        return "-"
    unit, name = next((pair for pair in _SPANS if ms >= pair[0]), (1, "ms"))
    return f"{ms} ms" if unit == 1 else f"{ms / unit:.1f} {name}"


_RULES: dict[Reason, str] = {"log_start": "DeleteRecords", "size": "size", "time": "time"}


def by_rule(expired: Iterable[Expired]) -> str:
    """Format what retention takes, by rule: "2 segments by time (1,930 records, 139.0 KiB)"."""
    return ", ".join(
        f"{counted(one.segments, 'segment')} by {_RULES[one.reason]}"
        f" ({counted(one.records, 'record')}, {size(one.bytes)})"
        for one in expired
    )
