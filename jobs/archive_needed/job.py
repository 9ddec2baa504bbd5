"""`archive-needed ARCHIVE --store STORE`: which segments of the archive may be deleted, and why the others may not.

  listing of the archive + store (checkpoints, states, generations that are still there) -> an answer for each partition
  (jobs.compact.needed) -> every byte of what may go, and of the generation that replaces it, is read and compared with
  its checksum; what differs, and all above it, is needed

The command only reads. A concurrent commit only reduces the needed segments, and the answer covers every generation
that a rollback can select.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.archive.no_partitions import check_holds_partitions
from lastkey.jobs.archive.places import is_same
from lastkey.jobs.command.options import ArchiveNeededOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, counted, partition_name
from lastkey.jobs.compact.needed import ANCHOR, Answer, Facts, Kept, Needed, Reason, answer, needed, summary_lines
from lastkey.jobs.errors import GenerationError, UsageError
from lastkey.jobs.spark.engine import each
from lastkey.jobs.store.generations import open_store, own_and_older
from lastkey.jobs.store.leases import list_leases
from lastkey.jobs.store.manifests import other_files
from lastkey.jobs.store.rows import Checkpoint, Commit, PartitionState
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem
from lastkey.udfs.read_back import FilesPlan, FilesResult, KnownFile, compare_files
from lastkey.udfs.storage import Root, list_objects, normal_uri


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
    """Report of the segments of an archive that a store still needs."""

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


_AT_ONCE: Final = 16  # partitions; in a bucket each takes some requests


@dataclass(frozen=True)
class _Stored:
    """Knowledge of the store about its partitions."""

    state: State
    checkpoints: Mapping[Key, Checkpoint]
    manifests: Mapping[Key, list[Segment]]
    states: Mapping[Key, PartitionState]
    at_work: Mapping[Key, str]  # partitions that a run works on, and which run


def run(options: ArchiveNeededOptions, progress: Progress) -> ArchiveNeededReport:
    """Report the archived segments of each partition that are still needed."""
    began = time.perf_counter()
    uri = normal_uri(options.archive)
    archive = listed(uri, options.topics)
    check_holds_partitions(archive)
    check_topics(options.topics, archive.topics, uri)
    stored = _stored(options, archive)
    report = ArchiveNeededReport(
        archive.root, stored.state.root.uri, paths_only=options.format == "paths", bytes_read=not options.skip_crc
    )
    report.notes += archive.notes
    report.other_problems += archive.unreadable
    report.seconds["list"] = time.perf_counter() - began
    at = time.perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        partitions = [archived for _, archived in sorted(archive.partitions.items())]
        report.answers = list(pool.map(lambda archived: answer(_facts(options, archived, stored)), partitions))
    report.seconds["state"] = time.perf_counter() - at
    if not options.skip_crc:
        at = time.perf_counter()
        _read(options, stored, report, progress)
        report.seconds["read"] = time.perf_counter() - at
    report.notes += [*_only_in_store(options, archive, stored), *_afterwards(options, report)]
    report.entries = [*archive.not_read, *(path for a in report.answers for path in a.archived.not_read)]
    report.archive_needed = _archive_needed(options, archive, stored, report)
    return report


def _archive_needed(
    options: ArchiveNeededOptions, archive: Archive, stored: _Stored, report: ArchiveNeededReport
) -> list[Needed]:
    """Return the reasons why the archive as a whole is needed."""
    used = {key for key, segments in stored.manifests.items() if any(s.root == "archive" for s in segments)}
    absent = [key for key in used - archive.partitions.keys() if options.topics.takes(key[0])]
    unless_compared = ["not_compared"] if options.skip_crc else []
    first_reasons = [
        (a.archived, next(iter([*(r.kind for r in a.reasons if r.kind != ANCHOR), *unless_compared]), None))
        for a in report.answers
    ]
    return needed(archive, first_reasons, absent, sorted(archive.not_wanted))


def _stored(options: ArchiveNeededOptions, archive: Archive) -> _Stored:
    state = open_store(options.store)
    checkpoints, manifests = state.current()
    for key, row in sorted(checkpoints.items()):
        if options.topics.takes(key[0]) and not is_same(row.archive_uri, archive.root.uri):
            raise UsageError(
                message=f"{state.root.uri}: {partition_folder(*key)} was made from the archive {row.archive_uri}, not "
                f"from {archive.root.uri}"
            )
    working: dict[Key, str] = {}
    unseen: list[str] = []
    for lease in list_leases(state.root, unseen):
        if lease.is_valid(time.time_ns()):
            working |= dict.fromkeys(lease.common(archive.partitions), lease.label())
    working |= dict.fromkeys(archive.partitions if unseen else (), "; ".join(unseen))
    return _Stored(state, checkpoints, manifests, state.states(), working)


def _facts(options: ArchiveNeededOptions, archived: ArchivedPartition, stored: _Stored) -> Facts:
    """Return the facts of one partition for `needed`; read the manifests of its older generations."""
    key, at = archived.key, stored.checkpoints.get(archived.key)
    current = Kept(at, stored.manifests[key]) if at is not None else None
    gaps = options.config.topic_settings(key[0]).gaps
    facts = Facts(archived, current, stored.state.root.uri, gaps, uncleanable=_why_uncleanable(stored.states.get(key)))
    wrong = archived.problem or archived.high_watermark_problem or archived.unread
    if wrong is None and key in stored.at_work:
        wrong = _at_work(archived, stored.at_work[key])
    if wrong is not None or current is None or facts.uncleanable or archived.held_by_broker:
        return replace(facts, problem=wrong)
    try:
        own, commits = own_and_older(stored.state.root, current.checkpoint)
    except GenerationError as error:
        problem = Problem("unreadable", str(error.fields["path"]), 0, "a manifest", "another", hint=error.advice)
        return replace(facts, problem=problem)
    if (wrong := _damage(replace(own, segments=stored.manifests[key]), stored)) is not None:
        return replace(facts, problem=wrong)
    older = [Kept(commit.checkpoint, commit.segments) for commit in commits]
    return replace(facts, sealed=own.run.sealed, older=lambda: older)


def _why_uncleanable(row: PartitionState | None) -> str:
    """Return why the last run that looked at a partition could not clean it; "" if it could."""
    return "" if row is None or row.state in ("clean", "dirty") else row.reason or row.state


def _damage(commit: Commit, stored: _Stored) -> Problem | None:
    """Return the first missing or resized file of the current generation as a Problem; None: all exist."""
    for path, size, seen in other_files(stored.state.root, commit):
        expected = "a file of the generation" if size is None else f"{size} bytes"
        return Problem("unreadable", path, 0, expected, "no such file" if seen is None else f"{seen} bytes")
    return None


def _at_work(archived: ArchivedPartition, label: str) -> Problem:
    return Problem(
        "changed", archived.path, NO_POSITION, "no run at work on it", label, hint="ask again when it is done"
    )


def _read(options: ArchiveNeededOptions, stored: _Stored, report: ArchiveNeededReport, progress: Progress) -> None:
    """Read the removable segments and the generations that replace them; any difference from the store makes a segment
    needed.
    """
    answers = [a for a in report.answers if a.replaced]
    plans = [_files_plan(a, stored) for a in answers]
    sizes = [sum(file.size for file in (*p.stored, *p.archived)) for p in plans]
    progress.start("archive-needed", sum(sizes), BYTES)
    if plans:
        found = each(compare_files, plans, "archive-needed: partitions", options, report, progress, sizes=sizes)
        at = {id(a): result for a, result in zip(answers, found, strict=True)}
        report.answers = [_with_files(a, at[id(a)]) if id(a) in at else a for a in report.answers]
    progress.close()


def _files_plan(answer: Answer, stored: _Stored) -> FilesPlan:
    key, archived = answer.archived.key, answer.archived
    own = (KnownFile(s.path, s.size_bytes, s.checksum) for s in stored.manifests[key] if s.root == "store")
    read = {one.base_offset: one for one in stored.checkpoints[key].files_read}
    listed = ((s, read[s.base_offset]) for s in answer.replaced if s.base_offset in read)
    known = tuple(KnownFile(s.path, s.size_bytes, file.checksum) for s, file in listed)
    return FilesPlan(archived.path, stored.state.root.uri, tuple(own), archived.root, known)


def _with_files(answer: Answer, result: FilesResult) -> Answer:
    """Return the answer after its files were read."""
    if result.store_problem is not None:
        return replace(answer, reasons=[]).with_problem("not_judged", 0, result.store_problem)
    if result.archive_problem is not None:
        return answer.with_problem("changed", result.n_same, result.archive_problem)
    return answer


def _only_in_store(options: ArchiveNeededOptions, archive: Archive, stored: _Stored) -> Iterator[str]:
    """Yield a note for each partition that the store has and the archive lacks."""
    for key in sorted(stored.checkpoints.keys() - archive.partitions.keys()):
        if options.topics.takes(key[0]):
            used = sum(s.root == "archive" for s in stored.manifests[key])
            more = f"; its generation uses {counted(used, 'segment')} of it" if used else ""
            yield f"{partition_folder(*key)}: not in the archive{more}"


def _afterwards(options: ArchiveNeededOptions, report: ArchiveNeededReport) -> Iterator[str]:
    """Yield notes on what deleting means."""
    if not any(a.not_needed for a in report.answers):
        return
    yield (
        f"once the files are deleted, {report.store} alone holds what was in them: compact --reset would start without "
        "them, and lost tables come back from the store's own manifests alone (rebuild-state); verify --store first, "
        "and keep a copy of the store"
    )
    if options.skip_crc:
        yield "sizes alone were compared, no byte was read (--skip-crc)"
