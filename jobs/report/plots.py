"""Plots of a report: numbers in, SVG out, by matplotlib.

Matplotlib is well maintained, needs no script in the page and no browser to draw, and leaves text as text. Its SVG is
changed in two ways. Colours become variables of the page's style sheet, so that one drawing serves light and dark; and
each plot is drawn twice, wide and narrow, and the style sheet shows the one that fits: so text has one size on a
telephone too. Each plot comes with the table of its numbers.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator, MultipleLocator

from lastkey.jobs.command.reporting import TO_THE_MINUTE, count, counted, moment, size
from lastkey.logformat.control_characters import visible
from lastkey.udfs.report.partition_profile import DAY_MS, HOUR_MS, MINUTE_MS, Times

WIDE: Final = 560  # points of a drawing, shown at about a pixel each
NARROW: Final = 340
_ROW: Final = 26  # height of a bar with its label
_HEIGHT: Final = 226
_FONT: Final = 11.5
_MAX_BARS: Final = 12  # of a plot with a bar for each label; its table has all
_MAX_COLUMNS: Final = 120  # of a plot along an axis; more are joined

# Colours that a drawing uses, and the variables that take their place
INK, GRID, LIVE, DEAD, OTHER = "#000001", "#000002", "#000003", "#000004", "#000005"
_VARIABLES: Final = {INK: "--ink", GRID: "--grid", LIVE: "--live", DEAD: "--dead", OTHER: "--other"}
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": _FONT, "text.color": INK, "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": GRID, "grid.color": GRID, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False, "path.simplify": True,
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "axes.unicode_minus": True,
}  # fmt: skip

Align = Literal["left", "center", "right"]
Cells = Sequence[str]
Series = tuple[str, str, Sequence[float]]  # name, colour, values


@dataclass(frozen=True)
class Plot:
    """Drawing in two widths, with its message in words and in numbers."""

    name: str  # unique on its page
    title: str
    says: str  # also for people who cannot see it
    wide: Markup  # SVG: ours, and escaped already
    narrow: Markup
    header: Cells
    rows: Sequence[Cells]


def horizontal_bars(
    name: str,
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    says: str,
    label: str,
    stacked: bool = True,
    most: float | None = None,
) -> Plot:
    """Draw a bar for each label, of series that are stacked or below each other; `show`: gives a value as text. Of many
    labels, in order, draw the first different values, and tell in `says`; the table has every one."""
    rows = [(text, *(show(s[2][i]) for s in series)) for i, text in enumerate(labels)]
    names = [(text, "") for text in labels]
    if len(labels) > _MAX_BARS:
        names, series, n_values = _joined_ties(labels, series)
        first = f"the first {len(names)} of {n_values} values, " if len(names) < n_values else ""
        says += f"; {first}equal ones in one bar; the table has all {len(labels)}"

    def draw(figure: Figure, width: int) -> None:
        axes = figure.add_subplot()
        places = range(len(names))
        left = [0.0] * len(names)
        thick = 0.66 if stacked else 0.78 / len(series)
        for i, (title_of, colour, values) in enumerate(series):
            around = [p if stacked else p + (i - (len(series) - 1) / 2) * thick for p in places]
            axes.barh(around, values, height=thick, left=left if stacked else None, color=colour, label=title_of)
            if stacked:
                left = [a + b for a, b in zip(left, values, strict=True)]
        ends = left if stacked else [max(s[2][i] for s in series) for i in places]
        longest = max([most or 0, *ends]) or 1
        marks = (
            list(zip(places, ends, strict=True))
            if stacked
            else [(p + (i - (len(series) - 1) / 2) * thick, s[2][p]) for i, s in enumerate(series) for p in places]
        )
        for p, end in marks:
            axes.text(end + longest * 0.012, p, show(end), va="center", fontsize=_FONT - 1)
        axes.set_yticks(list(places), [_short(*name, 30 if width == WIDE else 18) for name in names])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * (1.2 if width == WIDE else 1.36))
        axes.tick_params(left=False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks([])
        _legend(figure, series)

    height = _ROW * max(len(names), 1) * (1 if stacked else 0.72 * len(series)) + (16 if len(series) == 1 else 40)
    return _plot(name, title, says, draw, height, (label, *(s[0] for s in series)), rows)


def columns(
    name: str,
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    says: str,
    label: str,
    each: str,
) -> Plot:
    """Draw stacked columns along an axis with a few labels; join columns if there are too many, and let `says` tell."""
    step = -(-len(labels) // _MAX_COLUMNS) if labels else 1
    if step > 1:
        says += f"; a column is {step} {each}"
    shown = [labels[i] for i in range(0, len(labels), step)]
    joined = [
        (n, colour, [float(sum(values[i : i + step])) for i in range(0, len(values), step)])
        for n, colour, values in series
    ]

    def draw(figure: Figure, width: int) -> None:
        axes = figure.add_subplot()
        bottom = [0.0] * len(shown)
        for title_of, colour, values in joined:
            axes.add_patch(_bars(bottom, values, colour, title_of))
            bottom = [a + b for a, b in zip(bottom, values, strict=True)]
        n = min(5 if width == WIDE else 3, len(shown))
        step = max(-(-(len(shown) - 1) // max(n - 1, 1)), 1)  # even steps, or labels would run into each other
        ticked = list(range(0, len(shown), step))
        axes.set_xticks(ticked, [shown[i] for i in ticked])
        for tick, align in zip(
            axes.get_xticklabels(), _aligned(len(ticked), ticked[-1:] == [len(shown) - 1]), strict=True
        ):
            tick.set_horizontalalignment(align)
        axes.set_xlabel(label, fontsize=_FONT - 1)
        axes.yaxis.set_major_locator(_steps(max(bottom, default=0), show))
        axes.yaxis.set_major_formatter(lambda value, _: show(value))
        axes.grid(axis="y", linewidth=0.7)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(-0.7, len(shown) - 0.3)
        axes.set_ylim(0, (max(bottom, default=0) or 1) * 1.05)
        _legend(figure, joined)

    counts = [min(step, len(labels) - i) - 1 for i in range(0, len(labels), step)]
    names = [text + (f" and {more} more" if more else "") for text, more in zip(shown, counts, strict=True)]
    rows = [(text, *(show(s[2][i]) for s in joined)) for i, text in enumerate(names)]
    return _plot(name, title, says, draw, _HEIGHT, (label, *(s[0] for s in joined)), rows)


def records_by_time(name: str, times: Times) -> Plot:
    """Draw the number of records in each bucket of time."""
    unit = {MINUTE_MS: "minute", HOUR_MS: "hour", DAY_MS: "day"}.get(times.width_ms, f"{times.width_ms // DAY_MS} days")
    shape = "%Y-%m-%d" if times.width_ms >= DAY_MS else "%m-%d %H:%M"
    labels = [moment((times.first + i) * times.width_ms, shape) for i in range(len(times.counts))]
    total, most = sum(times.counts), max(times.counts)
    busiest = labels[times.counts.index(most)]
    ends = [moment((times.first + i) * times.width_ms, TO_THE_MINUTE) for i in (0, len(times.counts) - 1)]
    return columns(
        name,
        f"Records by time, by {unit} (UTC)",
        labels,
        [("records", LIVE, times.counts)],
        number,
        says=f"{counted(total, 'record')} from {ends[0]} to {ends[1]}, without those of aborted transactions; "
        f"most, {most:,}, from {busiest} on",
        each=f"{unit}s" if times.width_ms <= DAY_MS else f"spans of {unit}",
        label=f"from this {unit} on (UTC)" if times.width_ms <= DAY_MS else "from this day on (UTC)",
    )


def _bars(bottom: Sequence[float], values: Sequence[float], colour: str, label: str) -> PathPatch:
    """Return all columns of a series as one shape: a patch for each would take seconds, and most of the page."""
    at, low = np.arange(len(values)), np.asarray(bottom, float)
    high = low + np.asarray(values, float)
    left, right = at - 0.43, at + 0.43
    corners = np.stack([[left, low], [left, high], [right, high], [right, low], [left, low]])  # [5, 2, n]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(values)
    outline = Path(corners.transpose(2, 0, 1).reshape(-1, 2), codes)
    return PathPatch(outline, facecolor=colour, linewidth=0, label=label)


def _steps(most: float, show: Callable[[float], str]) -> Any:
    """Return the ticks of an axis: round numbers, for bytes powers of two."""
    if show is format_bytes and most > 4:
        return MultipleLocator(2.0 ** max(math.ceil(math.log2(most / 4)), 0))
    return MaxNLocator(4, integer=True)


def number(value: float) -> str:
    """Format 1234.0 as 1,234."""
    return count(round(value))


def format_bytes(value: float) -> str:
    """Format bytes in the unit that fits."""
    return size(round(value))


def percent(value: float) -> str:
    """Format 0.123 as 12.3 %."""
    return f"{100 * value:.1f} %"


def _aligned(n: int, to_the_end: bool) -> list[Align]:
    """Align `n` labels so that those at the ends of an axis stay inside of it."""
    out: list[Align] = ["center"] * n
    if n > 1:
        out[0] = "left"
    if n > 1 and to_the_end:
        out[-1] = "right"
    return out


def short(text: str, most: int) -> str:
    """Return a text in one line, without its middle if it is longer than `most` characters."""
    text = visible(text).replace("\t", " ").replace("\n", " ")
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


def _joined_ties(labels: Sequence[str], series: Sequence[Series]) -> tuple[list[tuple[str, str]], list[Series], int]:
    """Return labels, as (first, " and n more"), and series of the first different values, and how many there are. Equal
    ones share a label, or a plot would show those that the alphabet puts first.
    """
    ties: dict[tuple[float, ...], list[int]] = {}
    for i, values in enumerate(zip(*(values for _, _, values in series), strict=True)):
        ties.setdefault(values, []).append(i)
    drawn = list(ties.values())[:_MAX_BARS]
    names = [(labels[of[0]], f" and {len(of) - 1:,} more" if len(of) > 1 else "") for of in drawn]
    return names, [(name, colour, [values[of[0]] for of in drawn]) for name, colour, values in series], len(ties)


def _short(text: str, more: str, most: int) -> str:
    return short(text, most - len(more)) + more


def _legend(figure: Figure, series: Sequence[Series]) -> None:
    if len(series) > 1:
        # from the left edge of the plot, not of its axes: long labels leave those too little room on a narrow screen
        figure.legend(loc="outside upper left", ncols=len(series), borderaxespad=0.2, handlelength=1.1)


def _plot(
    name: str,
    title: str,
    says: str,
    draw: Callable[[Figure, int], None],
    height: float,
    header: Cells,
    rows: Sequence[Cells],
) -> Plot:
    drawings = []
    for width in (WIDE, NARROW):
        with mpl.rc_context({**_SETTINGS, "svg.hashsalt": f"{name} {width}"}):  # ids are unique on the page
            figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
            draw(figure, width)
            out = io.StringIO()
            none = {"Date": None, "Creator": None, "Format": None, "Type": None}
            with warnings.catch_warnings():  # the font lacks a key's script; the browser has its own fonts
                warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
                figure.savefig(out, format="svg", transparent=True, metadata=none)
        drawings.append(_for_the_page(out.getvalue(), f"{title}. {says}", f"{name}-{width}"))
    return Plot(name, title, says, drawings[0], drawings[1], header, rows)


def _for_the_page(svg: str, says: str, prefix: str) -> Markup:
    """Return the drawing as an element of a page: no prologue, no fixed size, colours by name, the page's font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    svg = re.sub(r'( id=")(?=figure|axes|patch|text|xtick|ytick|line2d|legend|matplotlib)[^"]*"', "", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    box = head[0] if (head := re.search(r'viewBox="[^"]*"', svg)) else ""
    body = svg[svg.index(">") + 1 :]
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box} role="img"'
        f' aria-label="{escape(says)}" data-plot="{escape(prefix)}">{body}'
    )
