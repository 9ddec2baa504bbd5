"""Report of `reindex`: each side file with what was wrong with it, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypedDict

from lastkey.jobs.command.reporting import JobReport, TextTable, counted, counts, some
from lastkey.udfs.problem import Problem
from lastkey.udfs.reindex.write import FileReport, Status

STATUSES: tuple[Status, ...] = ("same", "differs", "rebuilt", "impossible")
HARMLESS = "other_entries"  # the only reason that misleads no reader


@dataclass
class ReindexedPartition:
    """Files of one partition, and sums of the work on it."""

    facts: ClassVar[str] = "topic partition path files notes segments log_bytes bytes_read bytes_written"

    topic: str
    partition: int
    path: str
    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    segments: int = 0
    log_bytes: int = 0  # size of the logs, as listed
    bytes_read: int = 0
    bytes_written: int = 0
    task_seconds: float = 0.0  # seconds of one core, in the pass over the logs

    @property
    def problems(self) -> list[Problem]:
        """Problems: files that mislead a reader, and files that are impossible to rebuild or cannot be read."""
        return [_problem(f) for f in self.files if _is_wrong(f)]


def _n_files(status: str, p: ReindexedPartition) -> int:
    return sum(file.status == status for file in p.files)


class Totals(TypedDict):
    """Sums of all partitions. reasons: number of files by reason."""

    partitions: int
    segments: int
    files: int
    same: int
    differs: int
    rebuilt: int
    impossible: int
    reasons: dict[str, int]
    log_bytes: int
    bytes_read: int
    bytes_written: int
    megabytes_per_second_per_core: float | None


@dataclass
class ReindexReport(JobReport):
    """Report of all partitions."""

    job = "reindex"
    results_at = "partitions"
    facts = "archive mode output partitions totals"
    text_tables = (
        TextTable(
            "partitions",
            "partition segments log_bytes:log same differs rebuilt impossible bytes_read:read bytes_written:written",
            {status: partial(_n_files, status) for status in STATUSES},
            total="partition",
            needs_attention=lambda p: any(map(_needs_attention, p.files)),
        ),
    )

    archive: str
    mode: str  # check, output, in_place
    output: str | None = None
    partitions: list[ReindexedPartition] = field(default_factory=list)

    @property
    def files(self) -> Iterable[FileReport]:
        """Files of every partition."""
        return (file for partition in self.partitions for file in partition.files)

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        totals = self.totals()
        done = {"read_bytes": totals["bytes_read"], "written_bytes": totals["bytes_written"]}
        states = ("wrong" if any(map(_is_wrong, p.files)) else "right" for p in self.partitions)
        return super().figures() | done | {"partitions": counts(states)}

    def totals(self) -> Totals:
        """Sum the partitions' counts."""
        statuses, reasons = Counter(f.status for f in self.files), Counter(f.reason for f in self.files if f.reason)
        busy = sum(p.task_seconds for p in self.partitions)
        log_bytes = sum(p.log_bytes for p in self.partitions)
        return {
            "partitions": len(self.partitions),
            "segments": sum(p.segments for p in self.partitions),
            "files": sum(statuses.values()),
            "same": statuses["same"],
            "differs": statuses["differs"],
            "rebuilt": statuses["rebuilt"],
            "impossible": statuses["impossible"],
            "reasons": dict(sorted(reasons.items())),
            "log_bytes": log_bytes,
            "bytes_read": sum(p.bytes_read for p in self.partitions),
            "bytes_written": sum(p.bytes_written for p in self.partitions),
            "megabytes_per_second_per_core": round(log_bytes / 1e6 / busy, 1) if busy else None,
        }

    def _problem_texts(self) -> Sequence[object]:
        return self.other_problems  # the rest is in `_lines`

    def _lines(self) -> Iterable[str]:
        return some(map(_line, filter(_needs_attention, self.files)))

    def _outcome(self) -> str:
        totals, wrong = self.totals(), ", ".join(f"{n} {reason}" for reason, n in self.totals()["reasons"].items())
        states = ", ".join(f"{totals[status]:,} {status}" for status in STATUSES if totals[status])
        files = f"{counted(totals['files'], 'file')} of {counted(totals['segments'], 'segment')}"
        return f"{files}: {states or 'none'}" + (f" ({wrong})" if wrong else "")


def _is_wrong(file: FileReport) -> bool:
    return file.status == "impossible" or (file.status == "differs" and file.reason != HARMLESS)


def _problem(file: FileReport) -> Problem:
    """Return the file of a report as a problem, of the log if that is at fault."""
    log = file.status == "impossible" and bool(file.log)
    return Problem(file.reason, file.log if log else file.path, file.position, file.expected, file.found)


def _needs_attention(file: FileReport) -> bool:
    return file.status != "same" or bool(file.reason)


def _line(file: FileReport) -> str:
    """Return `rebuilt: path: wrong at byte 16 (entry 2): expected ..., found ...`."""
    at = f" at byte {file.position}" if file.position >= 0 else ""
    if file.log and file.log != file.path:
        at += f" of {file.log}"
    if file.entry >= 0:
        at += f" (entry {file.entry})"
    expected = f": expected {file.expected}, found {file.found}" if file.expected or file.found else ""
    return f"{file.status}: {file.path}: {file.reason}{at}{expected}"
