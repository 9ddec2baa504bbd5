"""Report of `archive-needed`: a line for each partition, every segment for programs, or paths alone for scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, count, counted, labelled, size, table
from lastkey.jobs.compact.needed import Answer, Needed, Reason, summary_lines
from lastkey.logformat.listing import Segment
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, objects_of


@dataclass
class ArchiveNeededReport(JobReport):
    """Report of which segments of an archive a store still needs."""

    archive: Root
    store: str
    paths_only: bool = False
    bytes_read: bool = True
    answers: list[Answer] = field(default_factory=list)
    archive_needed: list[Needed] = field(default_factory=list)  # reasons, the worst first
    entries: list[str] = field(default_factory=list)  # paths in the archive that no job reads

    @property
    def problems(self) -> list[Problem]:
        """Problems of the archive, and of partitions that could not be judged."""
        return [*self.other_problems, *(a.problem for a in self.answers if a.problem is not None)]

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs, with every segment and file."""
        return self.json_of(
            "archive-needed",
            archive=self.archive.uri,
            store=self.store,
            bytes_read=self.bytes_read,
            partitions=[self._partition(a) for a in self.answers],
            needed=_sums(self.answers, lambda a: a.needed),
            not_needed=_sums(self.answers, lambda a: a.not_needed),
            archive_needed=bool(self.archive_needed),
            archive_needed_because=[reason.to_json() for reason in self.archive_needed],
            entries=self.entries,
            problems=self.problems_json(),
            engine=self.work_json(),
        )

    def _partition(self, a: Answer) -> dict[str, Any]:
        gone = a.first_needed
        return {
            "topic": a.archived.topic,
            "partition": a.archived.partition,
            "path": a.archived.path,
            "generation": a.generation,
            "judged": a.problem is None,
            "needed_from": a.needed[0].base_offset if a.needed else None,
            "needed": _sum(a.needed),
            "not_needed": _sum(a.not_needed),
            "because": [
                {"kind": r.kind, "message": str(r), "from": _base(a, r)}
                for r in sorted(a.reasons, key=lambda reason: reason.segment)
            ],
            "segments": [
                {
                    "base_offset": s.base_offset,
                    "path": s.path,
                    "bytes": s.size_bytes,
                    "needed": i >= gone,
                    "because": sorted({r.kind for r in a.reasons if r.segment <= i}) if i >= gone else [],
                }
                for i, s in enumerate(a.archived.segments)
            ],
            "files": [found for path in a.files() for found in objects_of(self.archive, path)],
        }

    def to_text(self) -> str:
        """Return the report for people, or only the paths of files that may go."""
        if self.paths_only:
            files = (path for a in self.answers for path in a.files())
            return "\n".join(found for path in files for found in objects_of(self.archive, path))
        header = ("partition", "generation", "not needed", "", "needed", "", "from offset", "because")
        rows = [
            (
                f"{a.archived.topic}-{a.archived.partition}",
                count(a.generation),
                counted(len(a.not_needed), "segment"),
                size(_sum(a.not_needed)["bytes"]),
                counted(len(a.needed), "segment"),
                size(_sum(a.needed)["bytes"]),
                str(a.needed[0].base_offset) if a.needed else "",
                "; ".join(dict.fromkeys(map(str, a.deciding))),
            )
            for a in self.shown(self.answers, lambda a: a.problem is not None or not a.not_needed)
        ]
        out = [table(header, rows, left=(0, 7))] if rows else []
        if len(rows) < len(self.answers):
            out.append(f"and {counted(len(self.answers) - len(rows), 'partition')} of which a part is not needed: "
                       "--all lists them")  # fmt: skip
        out += labelled("problem", self.problems) + labelled("note", self.notes)
        out += summary_lines(self.archive_needed)
        gone = _sums(self.answers, lambda a: a.not_needed)
        kept = _sums(self.answers, lambda a: a.needed)
        out.append(self.last_lines())
        out.append(
            f"{counted(gone['segments'], 'segment')}, {size(gone['bytes'])} not needed; "
            f"{counted(kept['segments'], 'segment')}, {size(kept['bytes'])} needed, in {self.archive.uri}"
        )
        return "\n".join(out)

    def aside(self) -> list[str]:
        """Return problems and notes for stderr if stdout has paths alone."""
        return [*labelled("problem", self.problems), *labelled("note", self.notes)] if self.paths_only else []


def _base(a: Answer, reason: Reason) -> int | None:
    return a.archived.segments[reason.segment].base_offset if a.archived.segments else None


def _sum(segments: Sequence[Segment]) -> dict[str, int]:
    return {"segments": len(segments), "bytes": sum(s.size_bytes for s in segments)}


def _sums(answers: Sequence[Answer], part: Callable[[Answer], Sequence[Segment]]) -> dict[str, int]:
    return _sum([s for a in answers for s in part(a)])
