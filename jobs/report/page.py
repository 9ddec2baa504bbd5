"""The report as one HTML page that needs nothing else: no script, no font, no request; its policy forbids them too.

The template escapes everything that stems from the archive (names, keys, notes; jinja2, autoescape), and control
characters are made visible. The page joins what grows with the archive: tables of segments and plots hold a bounded
number of rows, so 1,000 partitions with 100,000 segments give a few MB; `--json` has every segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from lastkey.jobs.command.reporting import TO_THE_MINUTE, by_rule, count, counted, moment, size
from lastkey.jobs.report import plots
from lastkey.jobs.report.archive_report import PARTITION_HEADER, ArchiveReport, most_to_gain, partition_row, saved
from lastkey.jobs.report.figures import (
    compression,
    dead_by_segment,
    formats,
    hot_keys,
    hottest,
    overview,
    runs_of,
    segments_by_age,
    tombstones,
)
from lastkey.jobs.report.format_table import FORMAT_HEADER, format_rows
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.report.plots import Plot
from lastkey.logformat.control_characters import visible
from lastkey.logformat.names import KAFKAS_OWN
from lastkey.udfs.report.partition_profile import PartitionProfile, SegmentProfile, join_times

_TOPICS_WITH_PLOTS: Final = 12  # the topics with the most bytes
_SEGMENT_ROWS: Final = 4000  # in all partitions together
_LISTED: Final = 200  # problems and notes
_CELL: Final = 120  # characters of a name or a key: Kafka's keys may have megabytes; --json has all of them


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["short"] = lambda text: plots.short(text, _CELL)
SEGMENT_HEADER: Final = (
    "segment", "size", "dead bytes", "records", "dead", "tombstones", "out of order", "codecs", "first record",
)  # fmt: skip


def fragment_of(
    *,
    title: str = "",
    cards: Sequence[Card] = (),
    problems: Sequence[str] = (),
    tables: Sequence[Table] = (),
    plots: Sequence[Plot | None] = (),
) -> str:
    """Return an output of a notebook: the contents of a page without the page."""
    return rendered(
        "fragment.html",
        title=title,
        cards=cards,
        problems=problems,
        tables=tables,
        plots=[shown(plot) for plot in plots if plot],
    )


def rendered(template: str, **values: Any) -> str:
    """Render a template with control characters made visible: escaping leaves them as they are."""
    return visible(_TEMPLATES.get_template(template).render(**values))


def report_fragment(report: ArchiveReport) -> str:
    """Return the report for a notebook."""
    rows = [partition_row(p) for p in report.profiles if p.problem is None]
    return fragment_of(
        title=report.archive,
        cards=cards(report),
        problems=[str(p) for p in report.problems[:_LISTED]],
        tables=[Table("Partitions", PARTITION_HEADER, rows[:_LISTED], (1,))],
        plots=overview(report),
    )


def partition_fragment(p: PartitionProfile) -> str:
    """Return one partition for a notebook."""
    if p.problem is not None:
        return fragment_of(title=p.name(), problems=[str(p.problem)])
    drawn = [dead_by_segment("segments", "Live and dead bytes by segment", [p])]
    if p.times is not None:
        drawn.append(plots.records_by_time("times", "Records by time", p.times))
    more = [tombstones("tombstones", [p]), compression("codec", [p]), hot_keys("hot", [p])]
    return fragment_of(
        title=p.name(),
        cards=[Card(name, value) for name, value in _facts(p)],
        tables=[
            Table("Partition", PARTITION_HEADER, [partition_row(p)], (1,)),
            Table("Segments", SEGMENT_HEADER, segment_rows(p.segments, _LISTED), (7,)),
        ],
        plots=[*drawn, *more],
    )


def page_of(report: ArchiveReport) -> str:
    """Return the page."""
    good = [p for p in report.profiles if p.problem is None]
    return rendered(
        "page.html",
        title=f"Archive report: {report.archive}",
        archive=report.archive,
        store=report.store,
        at=moment(report.now_ms, TO_THE_MINUTE),
        cards=cards(report),
        most_to_gain=most_to_gain(report),
        problems=[str(p) for p in report.problems[:_LISTED]],
        more_problems=max(len(report.problems) - _LISTED, 0),
        plots=[shown(plot) for plot in overview(report)],
        partition_header=PARTITION_HEADER,
        segment_header=SEGMENT_HEADER,
        topics=[_topic(name, of, i, report) for i, (name, of) in enumerate(_topics(good))],
        own=KAFKAS_OWN,
        history=_history_rows(report),
        notes=report.notes[:_LISTED],
        more_notes=max(len(report.notes) - _LISTED, 0),
        hot=_hot_rows(good),
        formats=format_rows(report.formats.rows) if report.formats else [],
        format_header=FORMAT_HEADER,
        format_plot=shown(drawn) if (drawn := formats(report.formats)) else None,
    )


def cards(report: ArchiveReport) -> list[Card]:
    """Return the summary."""
    good = report.good
    before, gain = report.savings(by_settings=True)
    _, possible = report.savings(by_settings=False)
    dead, records = report.total("dead_records"), report.total("records")
    archived = sum(report.archived_bytes.values())
    problems = len(report.problems)
    due = sum(p.due for p in good)
    return [
        Card(
            "size",
            size(archived),
            ", ".join(
                (
                    counted(len(report.archived_bytes), "partition"),
                    counted(sum(len(p.segments) for p in good), "segment"),
                )
            ),
        ),
        *([Card("now, by the store", size(before), f"{saved(archived, before)} saved so far")] if report.store else []),
        _saving("compaction would save", "by the settings: ", gain, before, report),
        *(
            [_saving("if every topic were compacted", "", possible, before, report)]
            if not all(p.compacted for p in good)
            else []
        ),
        Card("records", count(records), counted(sum(p.distinct_keys for p in good), "key")),
        Card("dead records", count(dead), f"{100 * dead / max(records, 1):.1f} % of all; superseded, aborted, expired"),
        Card("due now", count(due), "partitions that a compaction would take"),
        Card("problems", count(problems), "see below" if problems else "none found", "bad" if problems else "good"),
    ]


def _saving(label: str, more: str, gain: int, before: int, report: ArchiveReport) -> Card:
    share = f"{more}{saved(before, before - gain)} of {size(before)}"
    return Card(label, (report.about() if gain else "") + size(gain), share, "good" if gain > 0 else "")


def _history_rows(report: ArchiveReport) -> list[tuple[str, ...]]:
    return [
        (
            moment(run.now_ms, TO_THE_MINUTE),
            run.run_id[:8],
            count(len(run.rows)),
            count(run.total("records_read")),
            count(run.total("records_left")),
            size(run.total("bytes_before")),
            size(run.total("bytes_after")),
            saved(run.total("bytes_before"), run.total("bytes_after")),
        )
        for run in reversed(runs_of(report)[-_LISTED:])
    ]


def _hot_rows(profiles: Sequence[PartitionProfile]) -> list[tuple[str, ...]]:
    return [
        (
            p.name(),
            key.sha256,
            "" if key.text is None else key.text,
            count(key.records),
            f"{100 * key.records / max(p.total('records'), 1):.2f} %",
        )
        for p, key in hottest(profiles)
    ]


def _topics(profiles: Sequence[PartitionProfile]) -> list[tuple[str, list[PartitionProfile]]]:
    """Return the partitions by topic, the largest topic first; Kafka's own after all others."""
    topics = [(name, list(of)) for name, of in groupby(profiles, key=lambda p: p.topic)]
    return sorted(topics, key=lambda item: (item[0] in KAFKAS_OWN, -sum(p.size_bytes for p in item[1])))


def _topic(name: str, of: Sequence[PartitionProfile], number: int, report: ArchiveReport) -> dict[str, Any]:
    drawn = []
    if number < _TOPICS_WITH_PLOTS:
        drawn.append(dead_by_segment(f"segments-{number}", "Live and dead bytes by segment", of))
        times = join_times([p.times for p in of])
        by_age = segments_by_age(f"ages-{number}", report.yields, name)
        drawn += [by_age] if by_age is not None else []
        if times is not None:
            drawn.append(plots.records_by_time(f"times-{number}", "Records by time", times))
    allowed = max(4, min(40, _SEGMENT_ROWS // max(len(report.profiles), 1)))
    before, after = sum(p.size_bytes for p in of), sum(p.total("bytes_after") for p in of)
    possible = sum(p.size_bytes if p.bytes_if_compacted is None else p.bytes_if_compacted for p in of)
    return {
        "name": name,
        "compacted": of[0].compacted,
        "size": size(before),
        "after": size(after),
        "saved": saved(before, after),
        "if_compacted": f"would be {size(possible)} if it were" if possible < before else "",
        "records": count(sum(p.total("records") for p in of)),
        "rows": [partition_row(p) for p in of],
        "plots": [shown(plot) for plot in drawn],
        "partitions": [
            {"name": p.name(), "facts": _facts(p), "segments": segment_rows(p.segments, allowed), "n": len(p.segments)}
            for p in of
        ],
    }


def _facts(p: PartitionProfile) -> list[tuple[str, str]]:
    """Return the facts about a partition that are in none of its tables, as (label, value)."""
    out = [("offsets", f"{count(p.log_start_offset)} to {count(p.log_end_offset - 1)}")]
    if p.compacted:
        out += [
            ("dirty from", count(p.first_dirty_offset)),
            ("cleanable to", count(p.first_uncleanable_offset)),
            ("clean, dirty", f"{size(p.clean_bytes)}, {size(p.dirty_bytes)}"),
            ("due", "yes" if p.due else "no"),
        ]
    if p.expiring:
        out.append(("would expire", by_rule(p.expiring)))
    lag = max((s.largest_lag_ms for s in p.segments), default=0)
    out.append(("out of order", counted(p.total("out_of_order"), "record") + (f", by up to {lag:,} ms" if lag else "")))
    for label, column in (
        ("without a key", "null_keys"),
        ("aborted", "aborted"),
        ("without a time", "without_time"),
        ("tombstones with a horizon", "tombstones_with_horizon"),
    ):
        if p.total(column):
            out.append((label, count(p.total(column))))
    return out


def segment_rows(segments: Sequence[SegmentProfile], most: int) -> list[tuple[str, ...]]:
    """Return rows of a table of segments, consecutive ones joined if there are more than `most`."""
    step = -(-len(segments) // most) if segments else 1
    out: list[tuple[str, ...]] = []
    for i in range(0, len(segments), step):
        part = segments[i : i + step]
        name = count(part[0].base_offset) + (f" and {len(part) - 1} more" if len(part) > 1 else "")
        sums = {n: sum(getattr(s, n) for s in part) for n in _SEGMENT_COLUMNS}
        start = min((s.min_timestamp_ms for s in part if s.min_timestamp_ms is not None), default=None)
        out.append(
            (
                name,
                size(sums["size_bytes"]),
                size(sums["dead_bytes"]),
                count(sums["records"]),
                count(sums["dead_records"]),
                count(sums["tombstones"]),
                count(sums["out_of_order"]),
                ", ".join(sorted({codec for s in part for codec in s.codecs})),
                "" if start is None else moment(start, TO_THE_MINUTE),
            )
        )
    return out


_SEGMENT_COLUMNS: Final = ("size_bytes", "dead_bytes", "records", "dead_records", "tombstones", "out_of_order")


def shown(plot: Plot) -> dict[str, Any]:
    """Return a plot for the template. Its SVG is ours and escaped already; the template escapes the rest."""
    return {
        "title": plot.title,
        "says": plot.says,
        "wide": Markup(plot.wide),
        "narrow": Markup(plot.narrow),
        "header": plot.header,
        "rows": plot.rows,
    }
