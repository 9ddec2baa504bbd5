"""Report of `archive-needed`: a line for each partition, every segment for programs, or paths alone for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, TextTable, partition_name, pick
from lastkey.jobs.compact.needed import Answer, Needed, Reason, summary_lines
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import Root, objects_of


@dataclass
class ArchiveNeededReport(JobReport):
    """Report of which segments of an archive a store still needs."""

    job = "archive-needed"
    results_at = "answers"
    done = (
        "{_not_needed.segments:segment}, {_not_needed.bytes:size} not needed; {_needed.segments:segment}, "
        "{_needed.bytes:size} needed, in {archive.uri}"
    )
    facts = (
        "archive=archive.uri store bytes_read partitions=_partitions needed=_needed not_needed=_not_needed "
        "archive_needed=?archive_needed archive_needed_because=archive_needed entries"
    )
    text_tables = (
        TextTable(
            "answers",
            "name:partition generation gone:not_needed gone_bytes:bytes n:needed n_bytes:bytes from_offset because",
            {
                "name": lambda a: partition_name(a.archived),
                "gone": lambda a: len(a.not_needed),
                "gone_bytes": lambda a: _sum(a.not_needed)["bytes"],
                "n": lambda a: len(a.needed),
                "n_bytes": lambda a: _sum(a.needed)["bytes"],
                "from_offset": lambda a: a.needed[0].base_offset if a.needed else "",
                "because": lambda a: "; ".join(dict.fromkeys(map(str, a.deciding))),
            },
            tells=lambda a: a.problem is not None or not a.not_needed,
        ),
    )

    archive: Root
    store: str
    paths_only: bool = False
    bytes_read: bool = True
    answers: list[Answer] = field(default_factory=list)
    archive_needed: list[Needed] = field(default_factory=list)  # reasons, the worst first
    entries: list[str] = field(default_factory=list)  # paths in the archive that no job reads

    @property
    def _needed(self) -> dict[str, int]:
        return _sum([s for a in self.answers for s in a.needed])

    @property
    def _not_needed(self) -> dict[str, int]:
        return _sum([s for a in self.answers for s in a.not_needed])

    @property
    def _partitions(self) -> list[dict[str, Any]]:
        return list(map(self._partition, self.answers))

    def _partition(self, a: Answer) -> dict[str, Any]:
        gone = a.first_needed
        return {
            **pick(a, "topic=archived.topic partition=archived.partition path=archived.path generation"),
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

    @property
    def raw(self) -> str | None:
        """Paths of the files that may go, for --paths."""
        files = (path for a in self.answers for path in a.files())
        return (
            "\n".join(found for path in files for found in objects_of(self.archive, path)) if self.paths_only else None
        )

    def _lines(self) -> Iterable[str]:
        return summary_lines(self.archive_needed)


def _base(a: Answer, reason: Reason) -> int | None:
    return a.archived.segments[reason.segment].base_offset if a.archived.segments else None


def _sum(segments: Sequence[Segment]) -> dict[str, int]:
    return {"segments": len(segments), "bytes": sum(s.size_bytes for s in segments)}
