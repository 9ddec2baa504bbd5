"""Plots of a report, the figures that each one is drawn from, and rows of the page's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from lastkey.jobs.command.reporting import TO_THE_MINUTE, TextTable, by_rule, count, counted, moment, size
from lastkey.jobs.report import plots
from lastkey.jobs.report.archive_report import ArchiveReport, saved
from lastkey.jobs.report.plots import DEAD, LIVE, OTHER, Plot
from lastkey.jobs.runs import JobRun, by_run
from lastkey.logformat.names import KAFKAS_OWN
from lastkey.udfs.report.partition_profile import AGE_NAMES, HotKey, PartitionProfile, SegmentProfile, join_times

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
        out.append(plots.records_by_time(times))
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
    return plots.horizontal_bars(
        "Size before and after a compaction",
        [name for name, _ in rows],
        series,
        plots.format_bytes,
        says=f"{counted(len(rows), 'compacted topic')}, largest first: {size(total[1])} now, {size(total[2])} after",
        label="topic",
    )


def dirty_ratio(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot the dirty ratio of the partitions, most dirty bytes first."""
    rows = sorted((p for p in profiles if p.compacted), key=lambda p: (p.dirty_bytes, p.dirty_ratio), reverse=True)
    if not rows:
        return None
    return plots.horizontal_bars(
        "Dirty ratio",
        [p.name() for p in rows],
        [("dirty ratio", DEAD, [p.dirty_ratio for p in rows])],
        plots.percent,
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
    return plots.columns(
        "Live and dead bytes by segment",
        labels,
        [("live", LIVE, live), ("dead", DEAD, dead)],
        plots.format_bytes,
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
    return plots.horizontal_bars(
        "Compression by codec",
        [codec for codec, _ in rows],
        series,
        plots.format_bytes,
        says=summary,
        label="codec",
    )


def tombstones(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot tombstones by age."""
    compacted = [s for p in profiles if p.compacted for s in p.segments]
    ages = [sum(s.tombstone_ages[i] for s in compacted) for i in range(len(AGE_NAMES))]
    if not sum(ages):
        return None
    horizons = sum(s.tombstones_with_horizon for s in compacted)
    return plots.horizontal_bars(
        "Tombstones by age",
        AGE_NAMES,
        [("tombstones", LIVE, ages)],
        plots.number,
        says=f"{sum(ages):,} last records of their keys; {horizons:,} have a delete horizon already",
        label="age",
    )


def hot_keys(profiles: Sequence[PartitionProfile]) -> Plot | None:
    """Plot the keys with the most records: as text, or by hash if the text is hidden or too long."""
    rows = hottest(profiles)
    if not rows:
        return None
    hidden = all(key.text is None for _, key in rows)
    return plots.horizontal_bars(
        "Hot keys, by hash" if hidden else "Hot keys",
        [f"{p.name()} {key.sha256[:8] if key.text is None else key.text}" for p, key in rows],
        [("records", LIVE, [key.records for _, key in rows])],
        plots.number,
        says="the keys with the most records" + ("; first digits of their SHA-256" if hidden else ""),
        label="partition and key",
    )


def history(report: ArchiveReport) -> Plot | None:
    """Plot the bytes before and after each of the last runs."""
    runs = committed_runs(report)[-_RUNS:]
    if not runs:
        return None
    return plots.horizontal_bars(
        "Cleaning history",
        [moment(run.now_ms, TO_THE_MINUTE) for run in runs],
        [
            ("before", DEAD, [run.total("bytes_before") for run in runs]),
            ("after", LIVE, [run.total("bytes_after") for run in runs]),
        ],
        plots.format_bytes,
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
