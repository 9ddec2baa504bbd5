"""Reports of jobs: dataclasses of facts. One renderer makes text for people of them, one JSON for programs."""

from __future__ import annotations

import logging
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from lastkey.jobs.errors import DONE, PROBLEMS
from lastkey.logformat.control_characters import visible
from lastkey.logformat.storage import io_counts
from lastkey.logformat.storage.io_counts import READ, WRITTEN
from lastkey.udfs.problem import Problem

if TYPE_CHECKING:
    from lastkey.udfs.segments import Expired, Reason

WIDTH: Final = 80  # columns of a text
MOST_ROWS: Final = 20  # limit for a table; a longer table shows only rows that need attention
_MOST_LISTED: Final = 200  # problems or files of a text; JSON has all
_LOG = logging.getLogger("lastkey")


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


@dataclass(frozen=True)
class TextTable:
    """Table in a report's text.

    columns: "name" or "name:header" each; a name is `computed` of the row, or a path, "log.segments". It decides how
    values are shown: "bytes" are sizes, "_ms" times, a float is a share, an offset or generation a plain number.
    """

    rows: str  # path from the report
    columns: str
    computed: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    title: str = ""
    total: str = ""  # noun of the last row, which sums up all others if there are several
    needs_attention: Callable[[Any], bool] = lambda row: True  # rows that the text shows in long tables

    def headers(self) -> tuple[str, ...]:
        """Return the header of each column."""
        pairs = (column.partition(":") for column in self.columns.split())
        return tuple((header or name.rpartition(".")[2]).replace("_", " ") for name, _, header in pairs)

    def cells(self, row: Any) -> tuple[str, ...]:
        """Return a row's values as text."""
        return tuple(map(_cell, self.columns.split(), self._values(row)))

    def sums(self, rows: Sequence[Any]) -> tuple[str, ...]:
        """Return the last row."""
        columns, values = self.columns.split(), zip(*map(self._values, rows), strict=True)
        sums = (_cell(column, _sum(column, of)) for column, of in zip(columns, values, strict=True))
        return (counted(len(rows), self.total), *list(sums)[1:])

    def _values(self, row: Any) -> list[object]:
        names = (column.partition(":")[0] for column in self.columns.split())
        return [self.computed.get(name, _COMPUTED.get(name, partial(_reach, path=name)))(row) for name in names]


@dataclass(kw_only=True)
class JobReport:
    """Base of the reports of all jobs: `facts` for programs, tables and sentences for people.

    A notebook's cell that ends with a report displays its text.
    """

    job: ClassVar[str] = ""
    facts: ClassVar[str] = ""  # fields of the JSON, in order: "name", "name=path", "*=path" for each of a mapping
    text_tables: ClassVar[Sequence[TextTable]] = ()
    done: ClassVar[str] = ""  # summary in one line: `{output}`, `{n_bytes:size}`, `{at_ms:time}`, `{files:file}`
    results_at: ClassVar[str] = (
        ""  # path to results of partitions: their `problem` or `problems`, and `notes`, count too
    )

    other_problems: list[Any] = field(default_factory=list)  # a Problem each, or its text: of no partition here
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=Phases)
    work: Work | None = None  # None: there was no work, or the job needs neither threads nor Spark
    show_all: bool = False  # --all: also table rows that need no attention
    io: dict[str, Any] = field(default_factory=dict)  # requests and bytes, of jobs that `with_io_counts`

    @property
    def problems(self) -> list[Any]:
        """Problems with data, of partitions and of the rest: a Problem each, or its text."""
        of = ((*getattr(one, "problems", ()), getattr(one, "problem", None)) for one in self._results())
        return [*self.other_problems, *(problem for problems in of for problem in problems if problem is not None)]

    @property
    def exit_code(self) -> int:
        """Exit code: 0, or 3 if there are problems."""
        return PROBLEMS if self.problems else DONE

    @property
    def last_line(self) -> str:
        """Last line of the text: what was done, and the exit code."""
        return f"{self._outcome()}; exit code {self.exit_code}"

    @property
    def raw(self) -> str | None:
        """Text for other programs that takes the report's place."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring: amounts by name, and counts by state or kind."""
        return {"problems": counts(getattr(p, "kind", "other") for p in self.problems)}

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs: plain dicts, lists, numbers and strings.

        `problems` are never empty at exit code 3, but of an audit with findings.
        """
        return {
            "job": self._name(),
            "exit_code": self.exit_code,
            **pick(self, self.facts),
            "problems": plain(self.problems),
            "notes": self.notes,
            "engine": plain(self.work),
            "seconds": {phase: round(value, 3) for phase, value in self.seconds.items()},
            **({"io": self.io} if self.io else {}),
        }

    def to_text(self, width: int = 0) -> str:
        """Return the report for people: tables, sentences, problems, notes, who worked, and the last line.

        width: sentences are wrapped to so many columns; 0: each stays one line, for other programs.
        """
        if (raw := self.raw) is not None:
            return raw
        out = [line for of in self.text_tables for line in self._table(of)]
        out += [
            *self._lines(),
            *some(labelled("problem", self._problem_texts())),
            *labelled(
                "note", [*self.notes, *(note for part in self._results() for note in getattr(part, "notes", ()))]
            ),
        ]
        if requests := ", ".join(f"{n:,} {kind}" for kind, n in self.io.get("requests", {}).items()):
            amounts = f"{size(self.io.get(READ, 0))} read, {size(self.io.get(WRITTEN, 0))} written"
            out.append(f"in all {amounts}; requests to buckets: {requests}")
        out += labelled("engine", filter(None, [self.work]))
        took = ", ".join(f"{phase} {seconds(value)}" for phase, value in self.seconds.items())
        out += [f"seconds: {took}"] if took else []
        lines = "\n".join((*out, self.last_line)).split("\n")
        return "\n".join(_wrapped(line, width) if 0 < width < len(line) else line for line in lines)

    def stderr_lines(self) -> list[str]:
        """Return lines for stderr beside a text that only programs read."""
        return [] if self.raw is None else [*labelled("problem", self.problems), *labelled("note", self.notes)]

    def _name(self) -> str:
        return self.job

    def _outcome(self) -> str:
        return re.sub(r"\{([\w.]+):?(\w*)\}", lambda of: _fact_text(_reach(self, of[1]), of[2]), self.done)

    def _lines(self) -> Iterable[str]:
        return ()  # between the tables and the problems; a table is one of them

    def _problem_texts(self) -> Sequence[object]:
        return self.problems

    def _results(self) -> Sequence[Any]:
        return _reach(self, self.results_at) if self.results_at else ()

    def _table(self, of: TextTable) -> Iterator[str]:
        rows = list(_reach(self, of.rows) or ())
        shown = rows if self.show_all or len(rows) <= MOST_ROWS else [row for row in rows if of.needs_attention(row)]
        if shown:
            sums = [of.sums(rows)] if of.total and len(rows) > 1 else []
            yield from filter(None, [of.title])
            yield table(of.headers(), [*map(of.cells, shown), *sums], total=bool(sums))
        if len(shown) < len(rows):
            yield f"and {len(rows) - len(shown):,} more, which need no attention: --all lists them"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(visible(self.to_text()))}</pre>"


def pick(of: Any, names: str) -> dict[str, Any]:
    """Return facts for JSON: "name", "name=path", "name=?path" (is there any?), or "*=path" for all of a mapping."""
    out: dict[str, Any] = {}
    for name, _, path in (fact.partition("=") for fact in names.split()):
        value: Any = bool(_reach(of, path[1:])) if path.startswith("?") else plain(_reach(of, path or name))
        out |= value if name == "*" else {name: value}
    return out


def plain(value: Any) -> Any:
    """Return a value for JSON. A dataclass gives its `facts`, or all fields; a Problem all but its state."""
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    if isinstance(value, Problem):
        return {name: of for name, of in vars(value).items() if name != "state"}
    if is_dataclass(value):
        return pick(value, getattr(value, "facts", "") or " ".join(f.name for f in fields(value)))
    if isinstance(value, Mapping):
        return {name: plain(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return round(value, 6) if isinstance(value, float) else value


def partition_name(row: Any) -> str:
    """Return `<topic>-<partition>` of a row."""
    name = getattr(row, "name", None)
    return str(name()) if callable(name) else f"{_reach(row, 'topic')}-{_reach(row, 'partition')}"


_COMPUTED: Final = {"partition": partition_name}


def _reach(of: Any, path: str) -> Any:
    """Return the value at a dotted path of attributes, methods or keys; None if one is None or a key is missing."""
    for name in path.split("."):
        of = of.get(name) if isinstance(of, Mapping) else None if of is None else getattr(of, name)
        of = of() if callable(of) else of
    return of


def _fact_text(value: Any, how: str) -> str:
    """Return a fact in a sentence: a size, a time, how many of something, or text; of `dry_run`: "would be "."""
    if how == "size":
        return size(value)
    if how == "time":
        return moment(value)
    if how == "would":
        return "would be " if value else ""
    return counted(value if isinstance(value, int) else len(value), how) if how else str(value)


def _cell(column: str, value: object) -> str:
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if isinstance(value, float):
        return f"{100 * value:.1f} %"
    number = int(value)  # type: ignore[call-overload]
    if "bytes" in column:
        return size(number)
    if "_ms" in column:
        return moment(number, TO_THE_MINUTE)
    return str(number) if "offset" in column or "generation" in column else count(number)


def _sum(column: str, values: Iterable[Any]) -> object:
    known = [value for value in values if value is not None]
    is_amount = not any(word in column for word in ("offset", "generation", "_ms"))
    return sum(known) if is_amount and all(isinstance(value, int) for value in known) else ""


def some(lines: Iterable[str]) -> list[str]:
    """Return the first lines of many, and how many more there are."""
    listed = list(lines)
    more = len(listed) - _MOST_LISTED
    return listed[:_MOST_LISTED] + ([f"and {more:,} more: --json lists all"] if more > 0 else [])


def _wrapped(line: str, width: int, indent: str = "  ") -> str:
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


J = TypeVar("J", bound=JobReport)


def with_io_counts(run: Callable[[Any, Any], J]) -> Callable[[Any, Any], J]:
    """Return a job's `run(options, progress)` whose report states the bytes and requests of all tasks."""

    @wraps(run)
    def counting(options: Any, progress: Any) -> J:
        with io_counts.counted() as counts:
            report = run(options, progress)
        bytes_of = {kind: counts.pop(kind, 0) for kind in (READ, WRITTEN)}
        report.io = {**bytes_of, "requests": dict(sorted(counts.items()))}
        return report

    return counting


def counts(kinds: Iterable[str]) -> dict[str, int]:
    """Return the count of each kind, sorted by kind."""
    return dict(sorted(Counter(kinds).items()))


def labelled(what: str, lines: Iterable[object]) -> list[str]:
    """Return lines of a report's text: `note: ...`, `problem: ...`."""
    return [f"{what}: {line}" for line in lines]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, total: bool = False) -> str:
    """Return columns under their header, numbers right aligned. An empty column, or one of zeros, is left out. A row
    that is wider than WIDTH continues in an indented line. total: the last row sums up.
    """
    body = [tuple(row) for row in rows]
    columns = [i for i in range(len(header)) if i == 0 or any(row[i].strip("-~ ") not in _NOTHING for row in body)]
    widths = {i: max(len(row[i]) for row in [tuple(header), *body]) for i in columns}
    left = {i for i in columns if i == 0 or any(row[i] and row[i][0] not in "~-0123456789" for row in body)}
    lines: list[list[int]] = [[]]
    for i in columns:
        indent = 2 * (len(lines) > 1)
        if lines[-1] and indent + sum(widths[j] + 2 for j in lines[-1]) + widths[i] > WIDTH:
            lines.append([])
        lines[-1].append(i)

    def render(row: Sequence[str]) -> str:
        cells = [[row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in line] for line in lines]
        shown = [("  " * (n > 0) + "  ".join(line)).rstrip() for n, line in enumerate(cells)]
        return "\n".join(_wrapped(line, WIDTH, "    ") if len(line) > WIDTH else line for line in filter(None, shown))

    made = list(map(render, [header, *body]))
    rule = "-" * min(max(len(line) for row in made for line in row.split("\n")), WIDTH)
    out = [made[0], rule, *made[1:]]
    if total:
        out.insert(len(out) - 1, rule)
    return "\n".join(out)


_NOTHING: Final = ("", "0", "0 B")


def count(n: int | None) -> str:
    """Format a number: 1234567 -> 1,234,567."""
    return "-" if n is None else f"{n:,}"


def counted(n: int, singular: str, several: str = "") -> str:
    """Format a number with its noun: `1 segment`, `2,000 segments`."""
    return f"{n:,} {singular if n == 1 else several or singular + 's'}"


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


@dataclass(frozen=True)
class Card:
    """Figure in the summary at the top."""

    label: str
    value: str
    more: str = ""
    kind: str = ""  # good, bad or empty


@dataclass(frozen=True)
class Table:
    """Rows under a header; `text`: numbers of the columns that hold text, not figures."""

    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: tuple[int, ...] = ()
