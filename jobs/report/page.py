"""The report as one HTML page that needs nothing else: no script, no font, no request; its policy forbids them too.

Everything that stems from the archive (names, keys, notes) is escaped by the template (jinja2, autoescape), and its
control characters are made visible. What grows with the archive is joined: tables of segments and plots hold a bounded
number of rows, so 1,000 partitions with 100,000 segments give a few MB; `--json` has every segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from jobs.command.reporting import TO_THE_MINUTE, count, moment, size
from jobs.report import plots
from jobs.report.archive_report import ArchiveReport, partition_row, saved
from jobs.report.plots import DEAD, LIVE, OTHER, Plot
from logformat.control_characters import visible
from udfs.report.partition_profile import AGE_NAMES, HotKey, PartitionProfile, SegmentProfile, join_times

_BARS: Final = 12  # of a plot with a bar for each topic, partition, run
_HOT: Final = 20
_TOPICS_WITH_PLOTS: Final = 12  # those with the most bytes
_SEGMENT_ROWS: Final = 4000  # of all partitions together
_LISTED: Final = 200  # problems and notes


@dataclass(frozen=True)
class Card:
    """A figure that is seen first."""

    label: str
    value: str
    more: str = ""
    kind: str = ""  # good, bad or nothing


@dataclass(frozen=True)
class Table:
    """Rows under a header; `text`: numbers of the columns that are no figures."""

    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: tuple[int, ...] = ()


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
PARTITION_HEADER: Final = (
    "partition", "policy", "records", "keys", "dead", "tombstones", "dirty", "size", "would be", "saved",
)  # fmt: skip
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
    """An output of a notebook: what a page has, without one around it."""
    return _rendered(
        "fragment.html", title=title, cards=cards, problems=problems, tables=tables,
        plots=[_drawn(plot) for plot in plots if plot],
    )  # fmt: skip


def _rendered(template: str, **values: Any) -> str:
    """HTML in which control characters are visible: escaping leaves them as they are."""
    return visible(_TEMPLATES.get_template(template).render(**values))


def report_fragment(report: ArchiveReport) -> str:
    """The report in a notebook."""
    rows = [partition_row(p) for p in report.profiles if p.problem is None]
    return fragment_of(
        title=report.archive, cards=cards(report), problems=[str(p) for p in report.all_problems[:_LISTED]],
        tables=[Table("Partitions", PARTITION_HEADER, rows[:_LISTED], (1,))], plots=overview(report),
    )  # fmt: skip


def partition_fragment(p: PartitionProfile) -> str:
    """One partition in a notebook."""
    if p.problem is not None:
        return fragment_of(title=p.name(), problems=[str(p.problem)])
    drawn = [dead_by_segment("segments", "Live and dead bytes by segment", [p])]
    if p.times is not None:
        drawn.append(plots.records_by_time("times", "Records by time", p.times))
    more = [tombstones("tombstones", [p]), compression("codec", [p]), hot_keys("hot", [p])]
    return fragment_of(
        title=p.name(), cards=[Card(name, value) for name, value in _facts(p)],
        tables=[Table("Partition", PARTITION_HEADER, [partition_row(p)], (1,)),
                Table("Segments", SEGMENT_HEADER, segment_rows(p.segments, _LISTED), (7,))],
        plots=[*drawn, *more],
    )  # fmt: skip


def page_of(report: ArchiveReport) -> str:
    """The page."""
    good = [p for p in report.profiles if p.problem is None]
    return _rendered(
        "page.html",
        title=f"Archive report: {report.archive}",
        archive=report.archive,
        store=report.store,
        at=moment(report.now_ms, TO_THE_MINUTE),
        cards=cards(report),
        problems=[str(p) for p in report.all_problems[:_LISTED]],
        more_problems=max(len(report.all_problems) - _LISTED, 0),
        plots=[_drawn(plot) for plot in overview(report)],
        partition_header=PARTITION_HEADER,
        segment_header=SEGMENT_HEADER,
        topics=[_topic(name, of, i, report) for i, (name, of) in enumerate(_topics(good))],
        history=_history_rows(report),
        notes=report.notes[:_LISTED],
        more_notes=max(len(report.notes) - _LISTED, 0),
        hot=_hot_rows(good),
    )


def cards(report: ArchiveReport) -> list[Card]:
    """The summary."""
    good = [p for p in report.profiles if p.problem is None]
    before, after = sum(p.size_bytes for p in good), report.total("bytes_after")
    about = "~" if any(p.bytes_after_is_estimate for p in good) else ""
    dead, records = report.total("dead_records"), report.total("records")
    archived = sum(report.archived_bytes.values())
    problems = len(report.all_problems)
    due = sum(p.due for p in good)
    return [
        Card("size", size(archived), f"{count(len(report.archived_bytes))} partitions, "
             f"{count(sum(len(p.segments) for p in good))} segments"),
        *([Card("now, by the store", size(before), f"{saved(archived, before)} saved so far")] if report.store else []),
        Card("compaction would save", about + size(before - after), f"{saved(before, after)} of {size(before)}",
             "good" if before > after else ""),
        Card("records", count(records), f"{count(sum(p.distinct_keys for p in good))} keys"),
        Card("dead records", count(dead), f"{100 * dead / max(records, 1):.1f} % of all; superseded, aborted, expired"),
        Card("due now", count(due), "partitions that a compaction would take"),
        Card("problems", count(problems), "see below" if problems else "none found", "bad" if problems else "good"),
    ]  # fmt: skip


def overview(report: ArchiveReport) -> list[Plot]:
    """Plots of the whole archive."""
    good = [p for p in report.profiles if p.problem is None]
    out = [before_and_after(report), dirty_ratio(good)]
    times = join_times([p.times for p in good])
    if times is not None:
        out.append(plots.records_by_time("time", "Records by time", times))
    out += [compression("codec", good), tombstones("tombstones", good), hot_keys("hot", good), history(report)]
    return [plot for plot in out if plot is not None and plot.rows]


def before_and_after(report: ArchiveReport) -> Plot | None:
    """Size of each compacted topic in the archive, with a store now, and after a compaction."""
    by_topic: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for p in report.profiles:
        if p.problem is None and p.compacted:
            row = (
                report.archived_bytes.get((p.topic, p.partition), p.size_bytes),
                p.size_bytes,
                p.total("bytes_after"),
            )
            by_topic[p.topic] = [a + b for a, b in zip(by_topic[p.topic], row, strict=True)]
    rows = _largest(by_topic.items(), lambda item: item[1][0])
    if not rows:
        return None
    total = [sum(values[i] for values in by_topic.values()) for i in range(3)]
    series = [("in the archive", OTHER, [v[0] for _, v in rows])] if report.store else []
    series += [("now", DEAD, [v[1] for _, v in rows]), ("after compaction", LIVE, [v[2] for _, v in rows])]
    return plots.horizontal_bars(
        "before-after", "Size before and after a compaction", [name for name, _ in rows], series, plots.bytes_of,
        says=f"compacted topics: {size(total[1])} now, {size(total[2])} after", label="topic", stacked=False,
    )  # fmt: skip


def dirty_ratio(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Dirty ratio of the partitions with the most dirty bytes."""
    rows = _largest([p for p in profiles if p.compacted], lambda p: p.dirty_bytes)
    if not rows:
        return None
    return plots.horizontal_bars(
        "dirty", "Dirty ratio", [p.name() for p in rows], [("dirty ratio", DEAD, [p.dirty_ratio for p in rows])],
        plots.percent, says=f"of the {len(rows)} partitions with the most dirty bytes", label="partition", most=1.0,
    )  # fmt: skip


def dead_by_segment(name: str, title: str, profiles: Sequence[PartitionProfile]) -> Plot:
    """Live and dead bytes of the segments of some partitions, in order."""
    segments = [(p, s) for p in profiles for s in p.segments]
    labels = [f"{p.partition}: {s.base_offset}" for p, s in segments]
    live, dead = [s.live_bytes for _, s in segments], [s.dead_bytes for _, s in segments]
    return plots.columns(
        name, title, labels, [("live", LIVE, live), ("dead", DEAD, dead)], plots.bytes_of,
        says=f"{len(segments):,} segments: {size(sum(live))} live, {size(sum(dead))} dead",
        label="partition: base offset", each="segments",
    )  # fmt: skip


def compression(name: str, profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Stored and decompressed bytes by codec."""
    by_codec: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for p in profiles:
        for s in p.segments:
            for codec, c in s.codecs.items():
                row = (c.stored_bytes, c.plain_bytes, c.batches)
                by_codec[codec] = [a + b for a, b in zip(by_codec[codec], row, strict=True)]
    rows = sorted(by_codec.items(), key=lambda item: -item[1][0])
    if not rows:
        return None
    said = ", ".join(f"{codec} {b / max(a, 1):.2f} to 1 in {n:,} batches" for codec, (a, b, n) in rows)
    series = [("stored", LIVE, [v[0] for _, v in rows]), ("decompressed", OTHER, [v[1] for _, v in rows])]
    return plots.horizontal_bars(
        name, "Compression by codec", [codec for codec, _ in rows], series, plots.bytes_of, says=said, label="codec",
        stacked=False,
    )  # fmt: skip


def tombstones(name: str, profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Tombstones by age."""
    compacted = [s for p in profiles if p.compacted for s in p.segments]
    ages = [sum(s.tombstone_ages[i] for s in compacted) for i in range(len(AGE_NAMES))]
    if not sum(ages):
        return None
    horizons = sum(s.tombstones_with_horizon for s in compacted)
    return plots.horizontal_bars(
        name, "Tombstones by age", AGE_NAMES, [("tombstones", LIVE, ages)], plots.number,
        says=f"{sum(ages):,} last records of their keys; {horizons:,} have a delete horizon already", label="age",
    )  # fmt: skip


def hot_keys(name: str, profiles: Sequence[PartitionProfile]) -> Plot | None:
    """The keys with the most records, by hash."""
    rows = _hot(profiles)
    if not rows:
        return None
    return plots.horizontal_bars(
        name, "Hot keys, by hash", [f"{p.name()} {key.sha256[:8]}" for p, key in rows[:_BARS]],
        [("records", LIVE, [key.records for _, key in rows[:_BARS]])], plots.number,
        says="the keys with the most records; first digits of their SHA-256", label="partition and key",
    )  # fmt: skip


def history(report: ArchiveReport) -> Plot | None:
    """Bytes before and after each of the last runs."""
    runs = _runs(report)[-_BARS:]
    if not runs:
        return None
    return plots.horizontal_bars(
        "history", "Cleaning history", [moment(row["now_ms"], TO_THE_MINUTE) for row in runs],
        [("before", DEAD, [r["bytes_before"] for r in runs]), ("after", LIVE, [r["bytes_after"] for r in runs])],
        plots.bytes_of, says="the last runs that committed, all their partitions together",
        label="run (UTC)", stacked=False,
    )  # fmt: skip


def _runs(report: ArchiveReport) -> list[dict[str, Any]]:
    """Committed runs, oldest first; all partitions of a run together."""
    by_run: dict[str, dict[str, Any]] = {}
    names = ("records_read", "records_kept", "bytes_before", "bytes_after")
    for row in (row for rows in report.history.values() for row in rows):
        one = by_run.setdefault(
            row.run_id, {"run_id": row.run_id, "now_ms": row.now_ms, "partitions": 0, **dict.fromkeys(names, 0)}
        )
        one["partitions"] += 1
        for name in names:
            one[name] += getattr(row, name)
    return sorted(by_run.values(), key=lambda row: (row["now_ms"], row["run_id"]))


def _history_rows(report: ArchiveReport) -> list[tuple[str, ...]]:
    return [
        (moment(r["now_ms"], TO_THE_MINUTE), r["run_id"][:8], count(r["partitions"]),
         count(r["records_read"]), count(r["records_kept"]), size(r["bytes_before"]), size(r["bytes_after"]),
         saved(r["bytes_before"], r["bytes_after"]))
        for r in reversed(_runs(report)[-_LISTED:])
    ]  # fmt: skip


def _hot(profiles: Sequence[PartitionProfile]) -> list[tuple[PartitionProfile, HotKey]]:
    rows = [(p, key) for p in profiles for key in p.hot_keys if key.records > 1]
    return sorted(rows, key=lambda row: (-row[1].records, row[0].name()))[:_HOT]


def _hot_rows(profiles: Sequence[PartitionProfile]) -> list[tuple[str, ...]]:
    return [(p.name(), key.sha256, "" if key.text is None else key.text, count(key.records),
             f"{100 * key.records / max(p.total('records'), 1):.2f} %") for p, key in _hot(profiles)]  # fmt: skip


def _largest(rows: Any, by: Any) -> list[Any]:
    return sorted(rows, key=by, reverse=True)[:_BARS]


def _topics(profiles: Sequence[PartitionProfile]) -> list[tuple[str, list[PartitionProfile]]]:
    """Topics, the largest first."""
    topics = [(name, list(of)) for name, of in groupby(profiles, key=lambda p: p.topic)]
    return sorted(topics, key=lambda item: -sum(p.size_bytes for p in item[1]))


def _topic(name: str, of: Sequence[PartitionProfile], number: int, report: ArchiveReport) -> dict[str, Any]:
    drawn = []
    if number < _TOPICS_WITH_PLOTS:
        drawn.append(dead_by_segment(f"segments-{number}", "Live and dead bytes by segment", of))
        times = join_times([p.times for p in of])
        if times is not None:
            drawn.append(plots.records_by_time(f"times-{number}", "Records by time", times))
    allowed = max(4, min(40, _SEGMENT_ROWS // max(len(report.profiles), 1)))
    before, after = sum(p.size_bytes for p in of), sum(p.total("bytes_after") for p in of)
    return {
        "name": name,
        "compacted": of[0].compacted,
        "size": size(before),
        "after": size(after),
        "saved": saved(before, after),
        "records": count(sum(p.total("records") for p in of)),
        "rows": [partition_row(p) for p in of],
        "plots": [_drawn(plot) for plot in drawn],
        "partitions": [
            {"name": p.name(), "facts": _facts(p), "segments": segment_rows(p.segments, allowed), "n": len(p.segments)}
            for p in of
        ],
    }


def _facts(p: PartitionProfile) -> list[tuple[str, str]]:
    """What a partition's tables do not say, in pairs."""
    out = [("offsets", f"{count(p.log_start_offset)} to {count(p.log_end_offset - 1)}")]
    if p.compacted:
        out += [
            ("dirty from", count(p.first_dirty_offset)), ("cleanable to", count(p.first_uncleanable_offset)),
            ("clean, dirty", f"{size(p.clean_bytes)}, {size(p.dirty_bytes)}"), ("due", "yes" if p.due else "no"),
        ]  # fmt: skip
    lag = max((s.largest_lag_ms for s in p.segments), default=0)
    out.append(
        ("out of order", f"{count(p.total('out_of_order'))} records" + (f", by up to {lag:,} ms" if lag else ""))
    )
    for label, column in (("without a key", "null_keys"), ("aborted", "aborted"), ("without a time", "without_time"),
                          ("tombstones with a horizon", "tombstones_with_horizon")):  # fmt: skip
        if p.total(column):
            out.append((label, count(p.total(column))))
    return out


def segment_rows(segments: Sequence[SegmentProfile], most: int) -> list[tuple[str, ...]]:
    """Rows of a table of segments, consecutive ones joined where there are more than `most`."""
    step = -(-len(segments) // most) if segments else 1
    out: list[tuple[str, ...]] = []
    for i in range(0, len(segments), step):
        part = segments[i : i + step]
        name = count(part[0].base_offset) + (f" and {len(part) - 1} more" if len(part) > 1 else "")
        sums = {n: sum(getattr(s, n) for s in part) for n in _SEGMENT_COLUMNS}
        start = min((s.min_timestamp_ms for s in part if s.min_timestamp_ms is not None), default=None)
        out.append(
            (name, size(sums["size_bytes"]), size(sums["dead_bytes"]), count(sums["records"]),
             count(sums["dead_records"]), count(sums["tombstones"]), count(sums["out_of_order"]),
             ", ".join(sorted({codec for s in part for codec in s.codecs})),
             "" if start is None else moment(start, TO_THE_MINUTE))
        )  # fmt: skip
    return out


_SEGMENT_COLUMNS: Final = ("size_bytes", "dead_bytes", "records", "dead_records", "tombstones", "out_of_order")


def _drawn(plot: Plot) -> dict[str, Any]:
    """A plot for the template: its SVG is ours, escaped where it was made; the rest the template escapes."""
    return {
        "title": plot.title, "says": plot.says, "wide": Markup(plot.wide), "narrow": Markup(plot.narrow),
        "header": plot.header, "rows": plot.rows,
    }  # fmt: skip
