"""`inspect PATH...`: log files, indexes and side files as the lines of kafka-dump-log, or as JSON.

Without `--output` the lines go to stdout, file after file, and Spark is not started. With it there is a text for each
file, made in parallel: in threads where there is little, else in Spark tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs as pafs

from jobs.each import WITHOUT_SPARK_BYTES, each
from jobs.errors import DONE, PROBLEMS, NotEmptyError, UsageError
from jobs.options import InspectOptions
from jobs.progress import Progress
from jobs.report import size
from udfs.dump_files import (
    Dumped,
    DumpSpec,
    dump_files,
    dump_options,
    dump_to_file,
    file_size,
    list_dump_tasks,
    wanted_of,
)
from udfs.storage import normal_uri, open_root


@dataclass
class InspectReport:
    """What is said beside the lines: findings, and damage."""

    output: str | None
    files: list[Dumped] = field(default_factory=list)
    said: Iterable[str] = ()  # whole lines for stderr, many at a time
    n_problems: int = 0
    n_mismatches: int = 0
    verified: bool = False  # indexes were asked to be right

    @property
    def exit_code(self) -> int:
        """3 where a file is damaged; with --verify-index-only also where an index contradicts its log."""
        return PROBLEMS if self.n_problems or (self.verified and self.n_mismatches) else DONE

    def to_json(self) -> dict[str, Any]:
        """Of a run with --output."""
        return {
            "job": "inspect", "output": self.output, "exit_code": self.exit_code,
            "files": [
                {"path": f.path, "text": f.name, "bytes": f.bytes_written, "problems": f.n_problems, "said": f.said}
                for f in self.files
            ],
        }  # fmt: skip

    def to_text(self) -> str:
        """Of a run with --output."""
        total = sum(f.bytes_written for f in self.files)
        return "\n".join(
            [*(f"{f.path}: {line}" for f in self.files for line in f.said),
             f"{len(self.files)} files as text in {self.output}, {size(total)}"]
        )  # fmt: skip


def run(options: InspectOptions, progress: Progress, write: Callable[[Any], object]) -> InspectReport:
    """Dump files and folders with `write`, or into files."""
    spec = _spec(options)
    report = InspectReport(options.output, verified=options.verify_index_only)
    if options.output is None:
        findings = dump_files(options.paths, spec, options.topics, write)
        unknown = (f"Ignoring unknown file {path}\n" for path in findings.unknown)
        report.said = itertools.chain(unknown, findings.text())
        report.n_problems, report.n_mismatches = len(findings.all_problems), findings.n_mismatches
        return report
    output = report.output = normal_uri(options.output)
    _check_output(output)
    tasks = list_dump_tasks(options.paths, spec, options.topics, output)
    progress.start("inspect", len(tasks), "file")
    n_bytes = sum(file_size(task.path) for task in tasks)
    report.files += each(dump_to_file, tasks, progress, with_spark=n_bytes > WITHOUT_SPARK_BYTES)
    progress.close()
    report.n_problems = sum(f.n_problems for f in report.files)
    report.n_mismatches = sum(f.n_mismatches for f in report.files)
    return report


def _spec(options: InspectOptions) -> DumpSpec:
    wanted = wanted_of(options.start_offset, options.end_offset, options.start_ms, options.end_ms, options.key)
    decoders = (options.key_decoder or "string", options.value_decoder or "string")
    spec = DumpSpec(
        deep=options.deep_iteration,
        print_data=options.print_data_log or options.key_decoder is not None or options.value_decoder is not None,
        metadata=not options.skip_record_metadata, max_bytes=options.max_bytes,
        verify_index_only=options.verify_index_only, index_sanity_check=options.index_sanity_check,
        as_json=options.as_json, key_decoder=decoders[0], value_decoder=decoders[1], records=options.records,
        wanted=wanted,
    )  # fmt: skip
    try:
        dump_options(spec)
    except ValueError as error:
        raise UsageError(message=str(error)) from error
    return spec


def _check_output(output: str) -> None:
    root = open_root(output)
    info = root.filesystem.get_file_info(root.full(""))
    if info.type == pafs.FileType.File:
        raise NotEmptyError(path=output, found="a file")
    if info.type == pafs.FileType.Directory:
        inside = root.filesystem.get_file_info(pafs.FileSelector(root.full("")))
        if inside:
            raise NotEmptyError(path=output, found=f"{inside[0].base_name} and {len(inside) - 1} more")
