"""Savings of magic 3 in an archive (`report --format-savings`): bytes a record saved by each change of the format."""

from __future__ import annotations

from collections.abc import Iterator

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.jobs.spark.engine import each
from lastkey.udfs.groups import groups
from lastkey.udfs.report.format_savings import FormatTask, measure_formats, merged

_TASK_BYTES = 64 << 20


def measure(report: ArchiveReport, archive: Archive, options: ReportOptions, progress: Progress) -> None:
    """Measure every segment of the archive, and put the sums into the report."""
    tasks = list(_tasks(archive, options))
    sizes = [sum(segment.size_bytes for segment in task.segments) for task in tasks]
    progress.start("formats", sum(sizes), BYTES)
    parts = each(measure_formats, tasks, "report: formats", options, report, progress, sizes=sizes)
    progress.close()
    report.formats = merged(parts)
    named = {str(problem) for problem in report.problems}
    report.other_problems += [p.problem for p in parts if p.problem is not None and str(p.problem) not in named]


def _tasks(archive: Archive, options: ReportOptions) -> Iterator[FormatTask]:
    for _, one in sorted(archive.partitions.items()):
        most = options.config.topic_settings(one.topic).max_decompressed_batch_bytes
        for group in groups(one.segments, lambda s: s.size_bytes, _TASK_BYTES):
            yield FormatTask(one.path, group, options.config.job.chunk_bytes, most)
