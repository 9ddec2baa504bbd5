"""The report as one HTML page that needs no other file: no font, no request, and one script of its own.

The template escapes all text that stems from the archive (names, keys, notes; jinja2, autoescape), and control
characters are made visible. The page's policy names its script by hash, so that a browser runs no other one. The script
only sorts and searches; the page shows all content without it, folded by <details>.

The page joins what grows with the archive: tables of segments and plots hold a bounded number of rows, so 1,000
partitions with 100,000 segments give a few MB; `--json` has every segment.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from lastkey.jobs.command.reporting import TO_THE_MINUTE, Card, Table, count, counted, moment, size
from lastkey.jobs.report import plots
from lastkey.jobs.report.archive_report import CODECS, PARTITIONS, ArchiveReport, most_to_gain, saved
from lastkey.jobs.report.plots import (
    HISTORY,
    HOT_HEADER,
    LISTED,
    SEGMENTS,
    Plot,
    compression,
    dead_by_segment,
    history_rows,
    hot_keys,
    hot_rows,
    overview,
    partition_facts,
    segment_rows,
    tombstones,
)
from lastkey.logformat.control_characters import visible
from lastkey.logformat.names import KAFKAS_OWN
from lastkey.udfs.report.partition_profile import PartitionProfile, join_times

_TOPICS_WITH_PLOTS: Final = 12  # the topics with the most bytes
_SEGMENT_ROWS: Final = 4000  # in all partitions together
_CELL: Final = 120  # characters of a name or a key: Kafka's keys may have megabytes; --json has all of them
_PRINTED_OPEN: Final = 40  # partitions: paper shows the details of so many, of more only those that the reader opened

_FOLDER: Final = Path(__file__).with_name("templates")
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["short"] = lambda text: text if isinstance(text, Markup) else plots.short(text, _CELL)  # no link


def render_fragment(
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
        plots=[plot for plot in plots if plot],
    )


def rendered(template: str, **values: Any) -> str:
    """Render a template with control characters made visible: escaping leaves them as they are."""
    return visible(_TEMPLATES.get_template(template).render(**values))


def report_fragment(report: ArchiveReport) -> str:
    """Return the report for a notebook."""
    rows = [PARTITIONS.cells(p) for p in report.good]
    return render_fragment(
        title=report.archive,
        cards=cards(report),
        problems=[str(p) for p in report.problems[:LISTED]],
        tables=[Table("Partitions", PARTITIONS.headers(), rows[:LISTED], (1,))],
        plots=overview(report),
    )


def partition_fragment(p: PartitionProfile) -> str:
    """Return one partition for a notebook."""
    if p.problem is not None:
        return render_fragment(title=p.name(), problems=[str(p.problem)])
    drawn = [dead_by_segment([p])]
    if p.times is not None:
        drawn.append(plots.records_by_time(p.times))
    more = [tombstones([p]), compression([p]), hot_keys([p])]
    return render_fragment(
        title=p.name(),
        cards=[Card(name, value) for name, value in partition_facts(p)],
        tables=[
            Table("Partition", PARTITIONS.headers(), [PARTITIONS.cells(p)], (1,)),
            Table("Segments", SEGMENTS.headers(), segment_rows(p.segments, LISTED), (7,)),
        ],
        plots=[*drawn, *more],
    )


def render_page(report: ArchiveReport) -> str:
    """Return the page."""
    good = report.good
    topics = _topics(good)
    ids = {p.name(): f"p{i}" for i, p in enumerate(good)}
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return rendered(
        "page.html",
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        title=f"Archive report: {report.archive}",
        places=report.places,
        at=moment(report.now_ms, TO_THE_MINUTE),
        cards=cards(report),
        most_to_gain=most_to_gain(report),
        problems=[str(p) for p in report.problems[:LISTED]],
        more_problems=max(len(report.problems) - LISTED, 0),
        plots=overview(report),
        partition_header=PARTITIONS.headers(),
        partitions=[(_link(p.name(), ids[p.name()]), *PARTITIONS.cells(p)[1:]) for p in good],
        print_open=len(good) <= _PRINTED_OPEN,
        segment_header=SEGMENTS.headers(),
        topics=[_topic(name, of, i, report, ids) for i, (name, of) in enumerate(topics)],
        plotted=_TOPICS_WITH_PLOTS,
        history=history_rows(report),
        history_header=HISTORY.headers(),
        notes=report.notes[:LISTED],
        more_notes=max(len(report.notes) - LISTED, 0),
        hot=hot_rows(good),
        hot_header=HOT_HEADER,
        codecs=[CODECS.cells(row) for row in report.codec_bytes[:LISTED]],
        codec_header=CODECS.headers(),
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


def _link(text: str, to: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(to, text)


def _about(p: PartitionProfile) -> list[str]:
    """Return the text of a partition's section, far below its row of the table."""
    before, after, about = p.size_bytes, p.total("bytes_after"), "~" if p.bytes_after_is_estimate else ""
    out = [counted(len(p.segments), "segment"), size(before), counted(p.total("records"), "record")]
    if p.compacted and after < before:
        out += [f"would be {about}{size(after)}", f"saves {about}{saved(before, after)}"]
    return out


def _topics(profiles: Sequence[PartitionProfile]) -> list[tuple[str, list[PartitionProfile]]]:
    """Return the partitions by topic, the largest topic first, of equal ones that with more dead bytes; Kafka's own
    after all others.
    """
    topics = [(name, list(of)) for name, of in groupby(profiles, key=lambda p: p.topic_label())]
    return sorted(
        topics,
        key=lambda item: (
            item[1][0].topic in KAFKAS_OWN,
            -sum(p.size_bytes for p in item[1]),
            -sum(p.total("dead_bytes") for p in item[1]),
        ),
    )


def _topic(
    name: str, of: Sequence[PartitionProfile], number: int, report: ArchiveReport, ids: dict[str, str]
) -> dict[str, Any]:
    drawn = []
    if number < _TOPICS_WITH_PLOTS:
        drawn.append(dead_by_segment(of))
        times = join_times([p.times for p in of])
        if times is not None:
            drawn.append(plots.records_by_time(times))
    allowed = max(4, min(40, _SEGMENT_ROWS // max(len(report.profiles), 1)))
    before, after = sum(p.size_bytes for p in of), sum(p.total("bytes_after") for p in of)
    possible = sum(p.size_bytes if p.bytes_if_compacted is None else p.bytes_if_compacted for p in of)
    return {
        "name": name,
        "own": of[0].topic in KAFKAS_OWN,
        "compacted": of[0].compacted,
        "size": size(before),
        "after": size(after),
        "saved": saved(before, after),
        "if_compacted": f"would be {size(possible)} if it were" if possible < before else "",
        "records": count(sum(p.total("records") for p in of)),
        "plots": drawn,
        "partitions": [
            {
                "id": ids[p.name()],
                "name": p.name(),
                "facts": partition_facts(p),
                "segments": segment_rows(p.segments, allowed),
                "about": ", ".join(_about(p)),
            }
            for p in of
        ],
    }
