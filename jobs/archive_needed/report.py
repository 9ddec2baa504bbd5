"""Report of `archive-needed`: a line for each partition, every segment for programs, or paths alone for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from lastkey.jobs.command.reporting import JobReport, TextTable, partition_name
from lastkey.jobs.compact.needed import Answer, Needed, Reason, summary_lines
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import Root, list_objects


class Amount(TypedDict):
    """Number of segments, and their bytes."""

    segments: int
    bytes: int


# Reason, with the offset from which on it needs a partition's segments
Because = TypedDict("Because", {"kind": str, "message": str, "from": int | None})


class JudgedSegment(TypedDict):
    """Segment of the archive, and the kinds of reasons why it is needed."""

    base_offset: int
    path: str
    bytes: int
    needed: bool
    because: list[str]


class JudgedPartition(TypedDict):
    """Answer for one partition. files: paths that may be deleted."""

    topic: str
    partition: int
    path: str
    generation: int | None
    judged: bool
    needed_from: int | None
    needed: Amount
    not_needed: Amount
    because: list[Because]
    segments: list[JudgedSegment]
    files: list[str]


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
            "name:partition generation n_deletable:not_needed deletable_bytes:bytes n:needed n_bytes:bytes from_offset "
            "because",
            {
                "name": lambda a: partition_name(a.archived),
                "n_deletable": lambda a: len(a.not_needed),
                "deletable_bytes": lambda a: _sum(a.not_needed)["bytes"],
                "n": lambda a: len(a.needed),
                "n_bytes": lambda a: _sum(a.needed)["bytes"],
                "from_offset": lambda a: a.needed[0].base_offset if a.needed else "",
                "because": lambda a: "; ".join(dict.fromkeys(map(str, a.deciding))),
            },
            needs_attention=lambda a: a.problem is not None or not a.not_needed,
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
    def _needed(self) -> Amount:
        return _sum([s for a in self.answers for s in a.needed])

    @property
    def _not_needed(self) -> Amount:
        return _sum([s for a in self.answers for s in a.not_needed])

    @property
    def _partitions(self) -> list[JudgedPartition]:
        return list(map(self._partition, self.answers))

    def _partition(self, a: Answer) -> JudgedPartition:
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
            "files": [found for path in a.files() for found in list_objects(self.archive, path)],
        }

    @property
    def raw(self) -> str | None:
        """Paths of the files that may go, for --paths."""
        files = (path for a in self.answers for path in a.files())
        return (
            "\n".join(found for path in files for found in list_objects(self.archive, path))
            if self.paths_only
            else None
        )

    def _lines(self) -> Iterable[str]:
        return summary_lines(self.archive_needed)


def _base(a: Answer, reason: Reason) -> int | None:
    return a.archived.segments[reason.segment].base_offset if a.archived.segments else None


def _sum(segments: Sequence[Segment]) -> Amount:
    return {"segments": len(segments), "bytes": sum(s.size_bytes for s in segments)}
