"""Report of `reindex`: each side file with what was wrong with it, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, counts, labelled, size, table
from lastkey.udfs.problem import Problem
from lastkey.udfs.reindex.write import FileReport

HARMLESS = "other_entries"  # the only reason that misleads no reader
_TEXT_FILES = 200  # listed in text; JSON has all


@dataclass
class ReindexedPartition:
    """Files of one partition, and sums of the work on it."""

    topic: str
    partition: int
    path: str
    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    segments: int = 0
    log_bytes: int = 0  # of the logs, as listed
    bytes_read: int = 0
    bytes_written: int = 0
    task_seconds: float = 0.0  # of one core, in the pass over the logs

    def counts(self) -> Counter[str]:
        """Count the files by status."""
        return Counter(file.status for file in self.files)


@dataclass
class ReindexReport(JobReport):
    """Report of all partitions."""

    archive: str
    mode: str  # check, output, in_place
    output: str | None = None
    partitions: list[ReindexedPartition] = field(default_factory=list)
    unreadable: list[Problem] = field(default_factory=list)  # folders of the archive whose contents are not known

    @property
    def files(self) -> Iterable[FileReport]:
        """Files of every partition."""
        return (file for partition in self.partitions for file in partition.files)

    @property
    def problems(self) -> list[Problem]:
        """Problems: files that mislead a reader, and files that are impossible to rebuild or cannot be read."""
        return [*self.unreadable, *(_problem(f) for f in self.files if _is_wrong(f))]

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run."""
        totals = self.totals()
        done = {"read_bytes": totals["bytes_read"], "written_bytes": totals["bytes_written"]}
        states = ("wrong" if any(map(_is_wrong, p.files)) else "right" for p in self.partitions)
        return super().figures() | done | {"partitions": counts(states)}

    def totals(self) -> dict[str, Any]:
        """Sum the partitions' counts."""
        statuses, reasons = Counter(f.status for f in self.files), Counter(f.reason for f in self.files if f.reason)
        busy = sum(p.task_seconds for p in self.partitions)
        log_bytes = sum(p.log_bytes for p in self.partitions)
        return {
            "partitions": len(self.partitions),
            "segments": sum(p.segments for p in self.partitions),
            "files": sum(statuses.values()),
            **{name: statuses[name] for name in ("same", "differs", "rebuilt", "impossible")},
            "reasons": dict(sorted(reasons.items())),
            "log_bytes": log_bytes,
            "bytes_read": sum(p.bytes_read for p in self.partitions),
            "bytes_written": sum(p.bytes_written for p in self.partitions),
            "megabytes_per_second_per_core": round(log_bytes / 1e6 / busy, 1) if busy else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with every file."""
        return {
            "job": "reindex",
            "archive": self.archive,
            "mode": self.mode,
            "output": self.output,
            "exit_code": self.exit_code,
            "partitions": [
                {
                    "topic": p.topic,
                    "partition": p.partition,
                    "path": p.path,
                    "files": [asdict(file) for file in p.files],
                    "notes": p.notes,
                    "segments": p.segments,
                    "log_bytes": p.log_bytes,
                    "bytes_read": p.bytes_read,
                    "bytes_written": p.bytes_written,
                }
                for p in self.partitions
            ],
            "totals": self.totals(),
            "problems": self.problems_json(),
            "notes": self.notes,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
            **self.io_json(),
        }

    def to_text(self) -> str:
        """Return the report for people: counts of each partition, then every file that is not as it should be."""
        done = "differs" if self.mode == "check" else "rebuilt"
        header = ("partition", "segments", "log", "same", done, "impossible", "read", "written")
        rows = [
            (
                f"{p.topic}-{p.partition}",
                count(p.segments),
                size(p.log_bytes),
                *(str(p.counts()[status] or "") for status in ("same", done, "impossible")),
                size(p.bytes_read),
                size(p.bytes_written) if p.bytes_written else "",
            )
            for p in self.shown(self.partitions, lambda p: any(map(_tells, p.files)))
        ]
        out = [table(header, rows, left=(0,))] if rows or self.partitions else ["no partition to reindex"]
        if len(rows) < len(self.partitions):
            same = counted(len(self.partitions) - len(rows), "partition")
            out.append(f"and {same} in which every file is the same: --all lists them")
        listed = [f for f in self.files if _tells(f)]
        out += [_line(f) for f in listed[:_TEXT_FILES]]
        if len(listed) > _TEXT_FILES:
            out.append(f"and {counted(len(listed) - _TEXT_FILES, 'more file')}: --json lists all")
        out += labelled("note", [*self.notes, *(n for p in self.partitions for n in p.notes)])
        totals = self.totals()
        reasons = ", ".join(f"{n} {reason}" for reason, n in totals["reasons"].items())
        out.append(
            f"{counted(totals['files'], 'file')} of {counted(totals['segments'], 'segment')} in "
            f"{counted(len(self.partitions), 'partition')}: {totals['same']} same, "
            f"{counted(totals[done], done, 'differ' if done == 'differs' else done)}, {totals['impossible']} impossible"
            + (f" ({reasons})" if reasons else "")
        )
        rate = totals["megabytes_per_second_per_core"]
        out.append(
            f"logs {size(totals['log_bytes'])}, read {size(totals['bytes_read'])}, written "
            f"{size(totals['bytes_written'])}" + (f", {rate:,.0f} MB/s per core" if rate and rate >= 1 else "")
        )
        out.append(self.last_lines())
        return "\n".join(out)


def _is_wrong(file: FileReport) -> bool:
    return file.status == "impossible" or (file.status == "differs" and file.reason != HARMLESS)


def _problem(file: FileReport) -> Problem:
    """Return the file of a report as a problem, of the log if that is at fault."""
    log = file.status == "impossible" and bool(file.log)
    return Problem(file.reason, file.log if log else file.path, file.position, file.expected, file.found)


def _tells(file: FileReport) -> bool:
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
