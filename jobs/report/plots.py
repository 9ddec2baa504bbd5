"""Plots of a report, as HTML that needs no script: bars of CSS, and columns as a path of SVG for each series.

A style sheet gives them their colours, light and dark, and they are as wide as the page. Text is text of the page. Each
plot comes with the table of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lastkey.jobs.command.reporting import TO_THE_MINUTE, count, counted, moment, size
from lastkey.logformat.control_characters import visible
from lastkey.udfs.report.partition_profile import DAY_MS, HOUR_MS, MINUTE_MS, Times

LIVE, DEAD, OTHER = "live", "dead", "other"  # classes of the style sheet
_MAX_BARS: Final = 12  # limit for a plot with a bar for each label; its table has all
_MAX_COLUMNS: Final = 120  # limit for a plot along an axis; more are joined
_NAME: Final = 30  # characters of a bar's label

Cells = Sequence[str]
Series = tuple[str, str, Sequence[float]]  # name, class, values


@dataclass(frozen=True)
class BarRow:
    """Label with a line for each series: its class, its width in percent, and its value."""

    label: str
    lines: Sequence[tuple[str, float, str]]


@dataclass(frozen=True)
class Columns:
    """Columns along an axis, in a box of `width` by 100: the class and the path of each series."""

    width: int
    paths: Sequence[tuple[str, str]]
    most: str  # value at the top
    ticks: Cells
    label: str  # label of the axis


@dataclass(frozen=True)
class Plot:
    """Bars or columns, with their message in words and in numbers."""

    title: str
    says: str  # also for people who cannot see it
    header: Cells
    rows: Sequence[Cells]
    legend: Sequence[tuple[str, str]]  # class and name of each series, if there are several
    bars: Sequence[BarRow] = ()
    columns: Columns | None = None


def horizontal_bars(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    says: str,
    label: str,
    most: float = 0.0,
) -> Plot:
    """Draw a bar of each series for each label; `show`: gives a value as text. Of many labels, in order, draw the first
    different values, and note it in `says`; the table has every one.
    """
    rows = [(text, *(show(values[i]) for _, _, values in series)) for i, text in enumerate(labels)]
    names, drawn = [(text, "") for text in labels], list(series)
    if len(labels) > _MAX_BARS:
        names, drawn, n_values = _joined_ties(labels, series)
        first = f"the first {len(names)} of {n_values} values, " if len(names) < n_values else ""
        says += f"; {first}equal ones in one bar; the table has all {len(labels)}"
    longest = max([most, *(value for _, _, values in drawn for value in values)]) or 1
    bars = [
        BarRow(
            short(text, _NAME - len(more)) + more,
            [(kind, round(100 * values[i] / longest, 2), show(values[i])) for _, kind, values in drawn],
        )
        for i, (text, more) in enumerate(names)
    ]
    return Plot(title, says, (label, *(name for name, _, _ in series)), rows, _legend(series), bars)


def columns(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    says: str,
    label: str,
    each: str,
) -> Plot:
    """Draw stacked columns along an axis with a few labels. Join too many columns, and note it in `says`."""
    step = -(-len(labels) // _MAX_COLUMNS) if labels else 1
    if step > 1:
        says += f"; a column is {step} {each}"
    starts = range(0, len(labels), step)
    joined = [(name, kind, [float(sum(values[i : i + step])) for i in starts]) for name, kind, values in series]
    tops = [sum(values[i] for _, _, values in joined) for i in range(len(starts))]
    bottom, paths = [0.0] * len(starts), []
    for _, kind, values in joined:
        top = [a + b for a, b in zip(bottom, values, strict=True)]
        paths.append((kind, _path(bottom, top, max(tops, default=0) or 1)))
        bottom = top
    ticks = [labels[starts[i]] for i in sorted({0, (len(starts) - 1) // 2, len(starts) - 1})] if starts else []
    names = [labels[i] + (f" and {more} more" if (more := min(step, len(labels) - i) - 1) else "") for i in starts]
    rows = [(text, *(show(values[i]) for _, _, values in joined)) for i, text in enumerate(names)]
    drawn = Columns(len(starts), paths, show(max(tops, default=0)), ticks, label)
    return Plot(title, says, (label, *(name for name, _, _ in joined)), rows, _legend(joined), columns=drawn)


def records_by_time(times: Times) -> Plot:
    """Draw the number of records in each bucket of time."""
    unit = {MINUTE_MS: "minute", HOUR_MS: "hour", DAY_MS: "day"}.get(times.width_ms, f"{times.width_ms // DAY_MS} days")
    shape = "%Y-%m-%d" if times.width_ms >= DAY_MS else "%m-%d %H:%M"
    labels = [moment((times.first + i) * times.width_ms, shape) for i in range(len(times.counts))]
    total, most = sum(times.counts), max(times.counts)
    busiest = labels[times.counts.index(most)]
    ends = [moment((times.first + i) * times.width_ms, TO_THE_MINUTE) for i in (0, len(times.counts) - 1)]
    return columns(
        f"Records by time, by {unit} (UTC)",
        labels,
        [("records", LIVE, times.counts)],
        number,
        says=f"{counted(total, 'record')} from {ends[0]} to {ends[1]}, without those of aborted transactions; "
        f"most, {most:,}, from {busiest} on",
        each=f"{unit}s" if times.width_ms <= DAY_MS else f"spans of {unit}",
        label=f"from this {unit} on (UTC)" if times.width_ms <= DAY_MS else "from this day on (UTC)",
    )


def number(value: float) -> str:
    """Format 1234.0 as 1,234."""
    return count(round(value))


def format_bytes(value: float) -> str:
    """Format bytes in the unit that fits."""
    return size(round(value))


def percent(value: float) -> str:
    """Format 0.123 as 12.3 %."""
    return f"{100 * value:.1f} %"


def short(text: str, most: int) -> str:
    """Return a text in one line, without its middle if it is longer than `most` characters."""
    text = visible(text).replace("\t", " ").replace("\n", " ")
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


def _path(bottom: Sequence[float], top: Sequence[float], most: float) -> str:
    """Return the outline of a series' columns; the y axis of SVG points down."""
    low, high = ([round(100 - 100 * value / most, 2) for value in values] for values in (bottom, top))
    return "".join(f"M{i}.07 {a:g}V{b:g}h.86V{a:g}z" for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)


def _joined_ties(labels: Sequence[str], series: Sequence[Series]) -> tuple[list[tuple[str, str]], list[Series], int]:
    """Return labels, as (first, " and n more"), and series of the first different values, and how many there are. Equal
    ones share a label, or a plot would show those that the alphabet puts first.
    """
    ties: dict[tuple[float, ...], list[int]] = {}
    for i, values in enumerate(zip(*(values for _, _, values in series), strict=True)):
        ties.setdefault(values, []).append(i)
    drawn = list(ties.values())[:_MAX_BARS]
    names = [(labels[of[0]], f" and {len(of) - 1:,} more" if len(of) > 1 else "") for of in drawn]
    return names, [(name, kind, [values[of[0]] for of in drawn]) for name, kind, values in series], len(ties)


def _legend(series: Sequence[Series]) -> list[tuple[str, str]]:
    return [(kind, name) for name, kind, _ in series] if len(series) > 1 else []
