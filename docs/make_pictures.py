"""Maker of the pages' pictures, each light and dark: `python -m docs.make_pictures`, half a minute.

batch: the field table of logformat/layout.py, to scale. tombstone: the two passes of docs/worked_example.py, as read
back from its files. generations: vacuum's grace period. report: the page of examples/archive in Chromium. A test
compares the drawings with the output of this module. It checks only the file size of screenshots, because browsers
differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from docs.worked_example import Passes, batches, run, text
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.store_options import VacuumOptions
from lastkey.logformat.layout import BATCH_HEADER, CRC_START, field_offset
from tests.builders.folders import Outcome
from tests.reference.log import Batch

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
REPORT_NOW_MS = 1_795_305_600_000  # 2026-11-22: fixed, so that ages on the page do not depend on the day
WIDTH = 960


@dataclass(frozen=True)
class Colours:
    """Colours of one version: GitHub's own around the picture, and three fills that keep text readable."""

    paper: str
    ink: str
    faint: str
    line: str
    plain: str
    good: str
    gone: str


THEMES: Mapping[str, Colours] = {
    "light": Colours("#ffffff", "#1f2328", "#59636e", "#8c959f", "#eef1f4", "#c6ecd0", "#ffd8d3"),
    "dark": Colours("#0d1117", "#f0f6fc", "#9198a1", "#656c76", "#212830", "#1c4a2c", "#67211d"),
}


@dataclass
class Drawing:
    """An SVG that grows: boxes, text and lines, in pixels from the upper left corner."""

    colours: Colours
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str, *, dashed: bool = False) -> None:
        """Draw a rectangle."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}"'
            f' stroke="{self.colours.line}"{dash}/>'
        )

    def text(
        self, x: float, y: float, content: str, *, size: int = 13, faint: bool = False, anchor: str = "start"
    ) -> None:
        """Draw a line of text; anchor: start, middle, end."""
        fill = self.colours.faint if faint else self.colours.ink
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">'
            f"{escape(content)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """Draw a straight line."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{self.colours.line}"{dash}/>')

    def svg(self, height: int) -> str:
        """Return the file's text."""
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="{WIDTH}" height="{height}" fill="{self.colours.paper}"/>\n{body}\n</svg>\n'
        )


def batch(colours: Colours) -> str:
    """Draw the header of a batch, to scale, in three rows, and a record below it."""
    d = Drawing(colours, "A batch: 61 bytes of header, then its records")
    left, scale, tall = 12.0, 40.0, 54.0
    y, row_start = 30.0, 0
    for name in BATCH_HEADER.names or ():
        start, size = field_offset(BATCH_HEADER, name), BATCH_HEADER[name].itemsize
        if name in ("last_offset_delta", "producer_id"):  # a new row
            y, row_start = y + tall + 26, start
        x = left + (start - row_start) * scale
        d.box(x, y, size * scale, tall, colours.good if start >= CRC_START else colours.plain)
        d.text(x + 2, y - 5, str(start), size=11, faint=True)
        words = name.split("_") if len(name) * 7 > size * scale - 6 else [name]
        for i, word in enumerate(words):
            middle = y + tall / 2 + 4 + (i - (len(words) - 1) / 2) * 14
            d.text(x + size * scale / 2, middle, word, size=12 if size > 1 else 11, anchor="middle")
    end = left + (BATCH_HEADER.itemsize - row_start) * scale
    d.box(end, y, WIDTH - 12 - end, tall, colours.good, dashed=True)
    d.text(end + 2, y - 5, str(BATCH_HEADER.itemsize), size=11, faint=True)
    d.text((end + WIDTH - 12) / 2, y + tall / 2 + 4, "records ...", size=12, anchor="middle")
    y += tall + 42
    d.text(left, y - 10, "one record; the lengths and deltas are varints of 1 to 10 bytes", size=12, faint=True)
    names = (
        "length",
        "attributes",
        "timestamp delta",
        "offset delta",
        "key length",
        "key",
        "value length",
        "value",
        "headers",
    )
    widths = [len(name) * 6.6 + 22 for name in names]
    stretch, x = (WIDTH - 24) / sum(widths), left
    for name, width in zip(names, widths, strict=True):
        d.box(x, y, width * stretch, 34, colours.good)
        d.text(x + width * stretch / 2, y + 21, name, size=12, anchor="middle")
        x += width * stretch
    y += 58
    d.box(left, y - 12, 22, 14, colours.good)
    d.text(left + 30, y, "the checksum covers these bytes", size=12)
    d.box(left + 260, y - 12, 22, 14, colours.plain)
    d.text(left + 290, y, "the checksum does not cover these", size=12)
    d.text(WIDTH - 12, y, "numbers: position in the batch, in bytes", size=12, faint=True, anchor="end")
    return d.svg(int(y) + 16)


def tombstone(colours: Colours, passes: Passes) -> str:
    """Draw the log of the worked example before, after the first pass, and after the second."""
    d = Drawing(colours, "A tombstone takes two passes")
    before = [b for path in passes.logs for b in batches(path)]
    active = before[-1].base_offset
    rows = (
        ("the log", "bob=- says: delete the key bob", before),
        (
            "first pass",
            "the tombstone's batch gets a delete horizon: now + delete.retention.ms",
            _batches(passes.first),
        ),
        (
            "second pass",
            "now is after the horizon: the tombstone goes; the batch keeps its offsets",
            _batches(passes.second),
        ),
    )
    left, cell, y = 130.0, 100.0, 44.0
    for title, said, found in rows:
        d.text(12, y + 22, title, size=14)
        d.text(left, y - 12, said, size=12, faint=True)
        for b, old in zip(found, before, strict=True):
            x, width = left + b.base_offset * cell, (b.last_offset - b.base_offset + 1) * cell
            d.box(x + 2, y - 4, width - 4, 44, colours.paper, dashed=old.base_offset >= active)
            there = {r.offset: r for r in b.records}
            for r in old.records:
                at = left + r.offset * cell
                if r.offset in there:
                    kept = found is not before and old.base_offset < active
                    fill = colours.gone if r.value is None else colours.good if kept else colours.plain
                    d.box(at + 8, y + 2, cell - 16, 32, fill)
                    d.text(at + cell / 2, y + 22, text(r), size=13, anchor="middle")
            if b.delete_horizon is not None:
                d.text(x + width / 2, y + 56, "horizon", size=12, anchor="middle")
        y += 100
    for offset in range(before[-1].last_offset + 1):
        d.text(left + (offset + 0.5) * cell, y - 28, str(offset), size=11, faint=True, anchor="middle")
    d.text(12, y - 28, "offset", size=11, faint=True)
    d.text(
        WIDTH - 12,
        y - 4,
        "outer boxes: batches; dashed: the active segment, which no pass touches",
        size=12,
        faint=True,
        anchor="end",
    )
    return d.svg(int(y) + 10)


def _batches(outcome: Outcome) -> list[Batch]:
    return [b for s in outcome.segments() for b in s.batches]


def generations(colours: Colours) -> str:
    """Draw three generations on a time line, and the times from which vacuum may take each."""
    grace = VacuumOptions("").grace_hours
    d = Drawing(colours, "Generations on a time line, with vacuum")
    left, day, tall = 130.0, 50.0, 34.0
    commits, now = (0.0, 3.0, 12.0), 14.5  # days
    days = float(grace) / 24
    y = 52.0
    for i, begin in enumerate(commits):
        replaced = commits[i + 1] if i + 1 < len(commits) else None
        x = left + begin * day
        d.text(12, y + 22, f"generation {i + 1}", size=14)
        d.box(x, y, ((now if replaced is None else replaced) - begin) * day, tall, colours.good)
        d.text(x + 10, y + 22, "current", size=12)
        if replaced is not None:
            past = replaced + days < now
            start, end = left + replaced * day, left + (replaced + days if past else now) * day
            d.box(start, y, end - start, tall, colours.plain, dashed=True)
            d.text(start + 10, y + 22, f"grace{': restore and rollback still reach it' * past}", size=12)
            if past:
                d.box(end, y, left + now * day - end, tall, colours.gone)
                d.text(end + 10, y + 22, "vacuum may delete it", size=12)
        y += tall + 22
    for i, begin in enumerate(commits):
        d.line(left + begin * day, 40, left + begin * day, y, dashed=True)
        d.text(left + begin * day, 32, f"commit {i + 1}", size=12, anchor="middle" if i else "start")
    d.line(left + now * day, 40, left + now * day, y)
    d.text(left + now * day, 32, "now", size=12, anchor="middle")
    d.line(left, y, left + now * day, y)
    for at in range(0, int(now) + 1, 2):
        d.text(left + at * day, y + 16, f"day {at}", size=11, faint=True, anchor="middle" if at else "start")
    d.text(
        WIDTH - 12,
        y + 38,
        f"grace: {grace:g} hours from the commit that replaced it (--grace-hours)",
        size=12,
        faint=True,
        anchor="end",
    )
    return d.svg(int(y) + 52)


def drawings(passes: Passes) -> dict[str, str]:
    """Return the drawings: file name -> SVG."""
    made: dict[str, Callable[[Colours], str]] = {
        "batch": batch, "generations": generations, "tombstone": lambda colours: tombstone(colours, passes),
    }  # fmt: skip
    return {f"{name}-{theme}.svg": draw(c) for name, draw in made.items() for theme, c in THEMES.items()}


def screenshots(folder: Path) -> None:
    """Write the top of the report's page to `report-light.png` and `report-dark.png`."""
    # ruff: noqa: PLC0415 - drawings need neither a report nor a browser
    from lastkey.jobs.command.config import load_config
    from lastkey.jobs.command.progress import Silent
    from lastkey.jobs.report.job import profile_archive
    from lastkey.jobs.report.page import render_page
    from tests.browser.chromium import chromium, look

    config = load_config(str(EXAMPLES / "topics.toml"))
    given = ReportOptions(str(EXAMPLES / "archive"), "", now_ms=REPORT_NOW_MS, config=config)
    report = profile_archive(given, Silent())
    report.archive = "examples/archive"  # the picture names no folder of the machine that made it
    page = folder / "report.html"
    page.write_text(render_page(report), encoding="utf-8")
    with chromium() as chrome:
        for theme in THEMES:
            look(chrome, page, width=1100, dark=theme == "dark")
            chrome.save_screenshot(str(HERE / f"report-{theme}.png"))


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        for name, svg in drawings(run(Path(folder))).items():
            (HERE / name).write_text(svg, encoding="utf-8")
        screenshots(Path(folder))


if __name__ == "__main__":
    main()
