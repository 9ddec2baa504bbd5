"""Plots of a report and the figures that each is drawn from, and rows of the page's tables.

A plot is HTML that needs no script: bars of CSS, and columns as a path of SVG for each series.

A style sheet gives them their colours, light and dark, and they are as wide as the page. Text is text of the page. Each
plot comes with the table of its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from lastkey.jobs.command.reporting import TO_THE_MINUTE, TextTable, by_rule, count, counted, moment, size
from lastkey.jobs.report.archive_report import ArchiveReport, saved
from lastkey.jobs.runs import JobRun, by_run
from lastkey.logformat.control_characters import visible
from lastkey.logformat.names import KAFKAS_OWN
from lastkey.udfs.report.partition_profile import (
    AGE_NAMES,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    HotKey,
    PartitionProfile,
    SegmentProfile,
    Times,
    join_times,
)

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


_RUNS: Final = 12  # the last ones, in a plot with bars for each
_HOT: Final = 200  # keys
LISTED: Final = 200  # problems, notes and runs
HOT_HEADER: Final = ("partition", "SHA-256, first half", "key", "records", "share")
SEGMENTS: Final = TextTable(
    "segments",
    "segment size_bytes:size dead_bytes records dead_records:dead tombstones out_of_order codecs first_ms:first_record",
)
_SEGMENT_SUMS: Final = ("size_bytes", "dead_bytes", "records", "dead_records", "tombstones", "out_of_order")
_SUMS: Final = ("records_read", "records_left", "bytes_before", "bytes_after")
HISTORY: Final = TextTable(
    "runs",
    "now_ms:run_(UTC) id partitions records_read records_left:kept bytes_before:before bytes_after:after saved",
    {"id": lambda run: run.run_id[:8], "partitions": lambda run: len(run.rows)}
    | {name: partial(JobRun.total, column=name) for name in _SUMS}
    | {"saved": lambda run: saved(run.total("bytes_before"), run.total("bytes_after"))},
)


def overview(report: ArchiveReport) -> list[Plot]:
    """Return the plots of the whole archive."""
    good = [p for p in report.profiles if p.problem is None]
    out = [before_and_after(report), dirty_ratio(good)]
    times = join_times([p.times for p in good])
    if times is not None:
        out.append(records_by_time(times))
    out += [compression(good), tombstones(good), hot_keys(good), history(report)]
    return [plot for plot in out if plot is not None and plot.rows]


def before_and_after(report: ArchiveReport) -> Plot | None:
    """Plot the size of each compacted topic in the archive, with a store now, and after a compaction."""
    by_topic: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for p in report.profiles:
        if p.problem is None and p.compacted:
            row = (
                report.archived_bytes.get((p.topic_label(), p.partition), p.size_bytes),
                p.size_bytes,
                p.total("bytes_after"),
            )
            label = p.topic_label()
            by_topic[label] = [a + b for a, b in zip(by_topic[label], row, strict=True)]
    rows = sorted(by_topic.items(), key=lambda item: item[1], reverse=True)
    if not rows:
        return None
    total = [sum(values[i] for values in by_topic.values()) for i in range(3)]
    series = [("in the archive", OTHER, [v[0] for _, v in rows])] if report.store else []
    series += [("now", DEAD, [v[1] for _, v in rows]), ("after compaction", LIVE, [v[2] for _, v in rows])]
    return horizontal_bars(
        "Size before and after a compaction",
        [name for name, _ in rows],
        series,
        format_bytes,
        says=f"{counted(len(rows), 'compacted topic')}, largest first: {size(total[1])} now, {size(total[2])} after",
        label="topic",
    )


def dirty_ratio(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot the dirty ratio of the partitions, most dirty bytes first."""
    rows = sorted((p for p in profiles if p.compacted), key=lambda p: (p.dirty_bytes, p.dirty_ratio), reverse=True)
    if not rows:
        return None
    return horizontal_bars(
        "Dirty ratio",
        [p.name() for p in rows],
        [("dirty ratio", DEAD, [p.dirty_ratio for p in rows])],
        percent,
        says=f"{counted(len(rows), 'partition')}, most dirty bytes first",
        label="partition",
        most=1.0,
    )


def dead_by_segment(profiles: Sequence[PartitionProfile]) -> Plot:
    """Plot live and dead bytes of the segments of some partitions, in order."""
    segments = [(p, s) for p in profiles for s in p.segments]
    several = len(profiles) > 1
    labels = [f"{p.partition}: {s.base_offset:,}" if several else f"{s.base_offset:,}" for p, s in segments]
    live, dead = [s.live_bytes for _, s in segments], [s.dead_bytes for _, s in segments]
    return columns(
        "Live and dead bytes by segment",
        labels,
        [("live", LIVE, live), ("dead", DEAD, dead)],
        format_bytes,
        says=f"{counted(len(segments), 'segment')}: {size(sum(live))} live, {size(sum(dead))} dead",
        label="segment (partition: base offset)" if several else "segment (base offset)",
        each="segments",
    )


def compression(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot stored and decompressed bytes by codec."""
    by_codec: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for p in profiles:
        for s in p.segments:
            for codec, c in s.codecs.items():
                row = (c.stored_bytes, c.uncompressed_bytes, c.batches)
                by_codec[codec] = [a + b for a, b in zip(by_codec[codec], row, strict=True)]
    rows = sorted(by_codec.items(), key=lambda item: -item[1][0])
    if not rows:
        return None
    summary = ", ".join(
        f"{codec} {b / max(a, 1):.2f} to 1 in {counted(n, 'batch', 'batches')}" for codec, (a, b, n) in rows
    )
    series = [("stored", LIVE, [v[0] for _, v in rows]), ("decompressed", OTHER, [v[1] for _, v in rows])]
    return horizontal_bars(
        "Compression by codec", [codec for codec, _ in rows], series, format_bytes, says=summary, label="codec"
    )


def tombstones(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot tombstones by age."""
    compacted = [s for p in profiles if p.compacted for s in p.segments]
    ages = [sum(s.tombstone_ages[i] for s in compacted) for i in range(len(AGE_NAMES))]
    if not sum(ages):
        return None
    horizons = sum(s.tombstones_with_horizon for s in compacted)
    return horizontal_bars(
        "Tombstones by age",
        AGE_NAMES,
        [("tombstones", LIVE, ages)],
        number,
        says=f"{sum(ages):,} last records of their keys; {horizons:,} have a delete horizon already",
        label="age",
    )


def hot_keys(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot the keys with the most records: as text, or by hash if the text is hidden or too long."""
    rows = hottest(profiles)
    if not rows:
        return None
    hidden = all(key.text is None for _, key in rows)
    return horizontal_bars(
        "Hot keys, by hash" if hidden else "Hot keys",
        [f"{p.name()} {key.sha256[:8] if key.text is None else key.text}" for p, key in rows],
        [("records", LIVE, [key.records for _, key in rows])],
        number,
        says="the keys with the most records" + ("; first digits of their SHA-256" if hidden else ""),
        label="partition and key",
    )


def history(report: ArchiveReport) -> Plot | None:
    """Plot the bytes before and after each of the last runs."""
    runs = committed_runs(report)[-_RUNS:]
    if not runs:
        return None
    return horizontal_bars(
        "Cleaning history",
        [moment(run.now_ms, TO_THE_MINUTE) for run in runs],
        [
            ("before", DEAD, [run.total("bytes_before") for run in runs]),
            ("after", LIVE, [run.total("bytes_after") for run in runs]),
        ],
        format_bytes,
        says="the last runs that committed, all their partitions together",
        label="run (UTC)",
    )


def committed_runs(report: ArchiveReport) -> list[JobRun]:
    """Return the committed compactions, oldest first; all partitions of a run together."""
    return by_run(row for rows in report.history.values() for row in rows if not row.back_to)


def hottest(profiles: Sequence[PartitionProfile]) -> list[tuple[PartitionProfile, HotKey]]:
    """Return the keys with the most records of all partitions. Kafka's own topics count only if there are no others."""
    users = [p for p in profiles if p.topic not in KAFKAS_OWN] or profiles
    rows = [(p, key) for p in users for key in p.hot_keys if key.records > 1]
    return sorted(rows, key=lambda row: (-row[1].records, row[0].name()))[:_HOT]


def history_rows(report: ArchiveReport) -> list[tuple[str, ...]]:
    """Return rows of HISTORY, newest first."""
    return [HISTORY.cells(run) for run in reversed(committed_runs(report)[-LISTED:])]


def hot_rows(profiles: Sequence[PartitionProfile]) -> list[tuple[str, ...]]:
    """Return rows under HOT_HEADER, most records first."""
    return [
        (p.name(), k.sha256, k.text or "", count(k.records), f"{100 * k.records / max(p.total('records'), 1):.2f} %")
        for p, k in hottest(profiles)
    ]


def partition_facts(p: PartitionProfile) -> list[tuple[str, str]]:
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
    lag = max((s.max_lag_ms for s in p.segments), default=0)
    out.append(("out of order", counted(p.total("out_of_order"), "record") + (f", by up to {lag:,} ms" if lag else "")))
    for label, column in (
        ("without a key", "null_keys"),
        ("aborted", "aborted"),
        ("without timestamp", "without_timestamp"),
        ("tombstones with a horizon", "tombstones_with_horizon"),
    ):
        if p.total(column):
            out.append((label, count(p.total(column))))
    return out


def segment_rows(segments: Sequence[SegmentProfile], most: int) -> list[tuple[str, ...]]:
    """Return rows of SEGMENTS, consecutive ones joined if there are more than `most`."""
    step = -(-len(segments) // most) if segments else 1
    return [SEGMENTS.cells(_joined(segments[i : i + step])) for i in range(0, len(segments), step)]


def _joined(part: Sequence[SegmentProfile]) -> dict[str, object]:
    start = min((s.min_timestamp_ms for s in part if s.min_timestamp_ms is not None), default=None)
    return {
        "segment": count(part[0].base_offset) + (f" and {len(part) - 1} more" if len(part) > 1 else ""),
        **{name: sum(getattr(s, name) for s in part) for name in _SEGMENT_SUMS},
        "codecs": ", ".join(sorted({codec for s in part for codec in s.codecs})),
        "first_ms": "" if start is None else start,
    }
