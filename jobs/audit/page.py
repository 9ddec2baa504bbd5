"""The page of an audit, by the templates and plots of `report`."""

from __future__ import annotations

from typing import Final

from lastkey.jobs.command.reporting import TO_THE_MINUTE, moment
from lastkey.jobs.report import plots
from lastkey.jobs.report.page import fragment_of, rendered, shown
from lastkey.jobs.report.parts import Bars, PageReport
from lastkey.jobs.report.plots import DEAD, LIVE, OTHER, Plot

_LISTED: Final = 200  # problems and notes
_BARS: Final = 12
_COLOURS: Final = (LIVE, DEAD, OTHER)
_SHOWN: Final = {"count": plots.number, "bytes": plots.bytes_of, "ms": plots.span_of}


def page_of(report: PageReport, at_ms: int) -> str:
    """Return the page."""
    problems = [str(problem) for problem in report.problems]
    return rendered(
        "audit.html",
        title=f"Audit of {report.kind}: {', '.join(report.sources)}",
        kind=report.kind,
        sources=report.sources,
        at=moment(at_ms, TO_THE_MINUTE),
        cards=report.cards,
        problems=problems[:_LISTED],
        more_problems=max(len(problems) - _LISTED, 0),
        plots=[shown(plot_of(bars)) for bars in report.bars if bars.labels],
        tables=report.tables,
        notes=report.notes[:_LISTED],
    )


def fragment(report: PageReport) -> str:
    """Return the report for a notebook."""
    return fragment_of(
        title=f"audit {report.kind}: {', '.join(report.sources)}",
        cards=report.cards,
        problems=[str(problem) for problem in report.problems[:_LISTED]],
        tables=[table for table in report.tables if table.rows],
        plots=[plot_of(bars) for bars in report.bars if bars.labels],
    )


def plot_of(bars: Bars) -> Plot:
    """Draw bars."""
    series = [(name, colour, values[:_BARS]) for (name, values), colour in zip(bars.series, _COLOURS, strict=False)]
    return plots.horizontal_bars(
        bars.name, bars.title, bars.labels[:_BARS], series, _SHOWN[bars.unit], says=bars.says, label="", stacked=False
    )
