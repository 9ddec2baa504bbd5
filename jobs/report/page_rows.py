"""Rows of the page's tables: runs, hot keys, segments, and the facts about a partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from lastkey.jobs.command.reporting import TO_THE_MINUTE, TextTable, by_rule, count, counted, moment, size
from lastkey.jobs.report.archive_report import ArchiveReport, saved
from lastkey.jobs.report.figures import committed_runs, hottest
from lastkey.jobs.runs import JobRun
from lastkey.udfs.report.partition_profile import PartitionProfile, SegmentProfile

LISTED: Final = 200  # problems, notes and runs
HOT_HEADER: Final = ("partition", "SHA-256, first half", "key", "records", "share")
SEGMENT_HEADER: Final = (
    "segment", "size", "dead bytes", "records", "dead", "tombstones", "out of order", "codecs", "first record",
)  # fmt: skip


_SUMS: Final = ("records_read", "records_left", "bytes_before", "bytes_after")
HISTORY: Final = TextTable(
    "runs",
    "now_ms:run_(UTC) id partitions records_read records_left:kept bytes_before:before bytes_after:after saved",
    {"id": lambda run: run.run_id[:8], "partitions": lambda run: len(run.rows)}
    | {name: partial(JobRun.total, column=name) for name in _SUMS}
    | {"saved": lambda run: saved(run.total("bytes_before"), run.total("bytes_after"))},
)


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
