"""Records of sources: what no audit has read yet is read by tasks, once, into `audit_versions`.

A stretch of a log that was read counts as long as its file has the same size and time. If the file has grown, and the
last batch that was read is still there, only what came after it is read. So a nightly audit reads what is new; and a
segment that several generations share, or a generation and the archive, is read once. `jobs.audit.known_reads` says
which reads count.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

from lastkey.jobs.audit.known_reads import NO_PROBLEMS, absent_reads, doubled, replaced, that_count
from lastkey.jobs.audit.sources import AuditedLogs
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.data_source.plan_tasks import each
from lastkey.jobs.spark.workers import Workers
from lastkey.jobs.store.audits import AuditRead, audit_reads, commit_reads, lost_files, secret_id
from lastkey.jobs.store.paths import AUDIT_VERSIONS, table_folder
from lastkey.jobs.store.tables import State
from lastkey.logformat.listing import Segment
from lastkey.udfs.audit.versions import FileRead, ReadTask, Secret, Stretch, StretchRead, read_task
from lastkey.udfs.data_source.pieces import Piece, Range, Wanted, listed_logs
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog

_TASK_BYTES: Final = 128 << 20
_WHOLE: Final = 1 << 62  # a segment is one stretch
Place = tuple[str, str, int]  # source, topic, partition


@dataclass(frozen=True)
class ReadRange:
    """Offsets [start_offset, end_offset) of a partition of a source, and the read that holds their records."""

    source: str
    read: AuditRead
    start_offset: int
    end_offset: int


@dataclass
class Gathered:
    """Parts that the sources hold, and problems of what could not be read."""

    parts: list[ReadRange] = field(default_factory=list)
    problems: dict[Place, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    unlisted: list[Problem] = field(default_factory=list)  # folders whose partitions are unknown
    n_partitions: dict[tuple[str, str], int] = field(default_factory=dict)  # by source and topic
    stretches_read: int = 0
    bytes_read: int = 0

    @property
    def files(self) -> set[str]:
        """Files of `audit_versions` that hold the records."""
        return {part.read.file for part in self.parts if part.read.records}

    @property
    def all_problems(self) -> list[Problem]:
        """All that could not be read, each once."""
        return list(dict.fromkeys([*self.unlisted, *(problem for each in self.problems.values() for problem in each)]))


@dataclass(frozen=True)
class ReadSettings:
    """Settings of an audit that decide how it reads."""

    config: Config
    secret: Secret
    hide_keys: bool = False


@dataclass
class _ReadPlan:
    """Work to do: stretches to read, by read_id; rows of the table that change or go; logs that tasks may look into."""

    new: dict[int, Stretch] = field(default_factory=dict)
    listed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # root -> paths
    logs: list[list[ListedLog]] = field(default_factory=list)
    reads: list[AuditRead] = field(default_factory=list)  # all rows of the table
    lost: set[int] = field(default_factory=set)  # of these, whose records are lost
    known: dict[tuple[str, str], list[AuditRead]] = field(default_factory=lambda: defaultdict(list))  # others, and new


def gather(
    state: State, sources: Sequence[AuditedLogs], asked: ReadSettings, workers: Workers, progress: Progress
) -> Gathered:
    """Read what is new in the sources."""
    plan, found = _ReadPlan(reads=audit_reads(state)), Gathered()
    lost = lost_files(state, {read.file for read in plan.reads if read.records})
    for read in plan.reads:
        if read.file in lost:
            plan.lost.add(read.read_id)
        else:
            plan.known[read.root, read.path].append(read)
    for source in sources:
        _plan(plan, found, source, asked)
    files = _read(state, plan, asked, workers, progress) if plan.new else []
    found.stretches_read, found.bytes_read = len(plan.new), sum(map(_size, plan.new.values()))
    made = {one.read_id: _filled(one, file) for file in files for one in file.stretches}
    found.parts = [replace(part, read=replace(part.read, **made.get(part.read.read_id, {}))) for part in found.parts]
    _commit(state, plan, found, files)
    for part in found.parts:
        told = [Problem(**problem) for problem in json.loads(part.read.problems)]
        place = part.source, part.read.topic, part.read.partition
        found.problems[place] += _counting(told, part.read.topic, asked)
    return found


def _plan(plan: _ReadPlan, found: Gathered, source: AuditedLogs, asked: ReadSettings) -> None:
    """Add what a source shows, and the stretches that have to be read for it."""
    counts = source.n_partitions
    found.n_partitions |= {(source.name, topic): n for topic, n in counts.items()}
    numbers = {(one.topic, one.partition): len(plan.logs) + i for i, one in enumerate(source.partitions)}
    plan.logs += map(listed_logs, source.partitions)
    for one in source.partitions:
        for segment in one.segments:
            plan.listed[segment.root].add(segment.path)
    for piece, listed in _pieces(source, asked, found):
        n_partitions = counts[str(piece.topic)]
        known = plan.known[piece.root, piece.path]
        reads = [read for read in known if _is_alike(read, asked, n_partitions)]
        begin, end = _offsets(piece)
        position = piece.start
        for read in sorted(that_count(reads, listed), key=lambda read: (read.start_offset, -read.end_offset)):
            if read.start_offset <= begin < read.end_offset:
                until = min(read.end_offset, end)
                found.parts.append(ReadRange(source.name, read, begin, until))
                begin, position = until, max(position, read.end_position)
                if begin >= end:
                    break
        if begin < end:
            rest = replace(piece, start=position, start_offset=begin)
            stretch = Stretch(secrets.randbits(62), rest, n_partitions, numbers[piece.topic, piece.partition])
            known.append(read := _read_of(stretch, listed, end, asked))  # another source that has it need not read it
            found.parts.append(ReadRange(source.name, read, begin, end))
            plan.new[stretch.read_id] = stretch


def _pieces(source: AuditedLogs, asked: ReadSettings, found: Gathered) -> Iterator[tuple[Piece, Segment]]:
    """Yield the stretches of a source's logs that a consumer sees; note what cannot be read."""
    ranges = [
        Range(
            wanted=Wanted(committed=True),
            split_bytes=_WHOLE,
            fail_on_data_loss=False,
            quarantine=True,
        )
        for _ in source.partitions
    ]
    listed = {(s.root, s.path): s for one in source.partitions for s in one.segments}
    for piece in each(source.partitions, ranges):
        if piece.problem is None:
            yield piece, listed[piece.root, piece.path]
        elif piece.topic is None or piece.partition is None:
            found.unlisted.append(piece.problem)
        else:
            found.problems[source.name, piece.topic, piece.partition] += _counting([piece.problem], piece.topic, asked)


def _offsets(piece: Piece) -> tuple[int, int]:
    end = piece.end_offset if piece.next_base_offset is None else min(piece.end_offset, piece.next_base_offset)
    return max(piece.start_offset, piece.base_offset), end


def _is_alike(read: AuditRead, asked: ReadSettings, n_partitions: int) -> bool:
    """Return whether a read holds keys and digests as this audit needs them."""
    same = read.keys_hidden == asked.hide_keys and read.secret_id == secret_id(asked.secret)
    return same and (not read.keys_hidden or read.n_partitions == n_partitions)


def _read_of(stretch: Stretch, listed: Segment, end_offset: int, asked: ReadSettings) -> AuditRead:
    """Return the row of a stretch before it is read."""
    piece = stretch.piece
    return AuditRead(
        stretch.read_id, piece.root, piece.path, listed.size_bytes, listed.mtime_ms, str(piece.topic),
        piece.partition or 0, piece.start_offset, end_offset, piece.start, -1, -1, stretch.n_partitions,
        asked.hide_keys, secret_id(asked.secret), 0, NO_PROBLEMS, "",
    )  # fmt: skip


def _read(state: State, plan: _ReadPlan, asked: ReadSettings, workers: Workers, progress: Progress) -> list[FileRead]:
    """Read the new stretches in tasks."""
    folder = table_folder(AUDIT_VERSIONS)
    tasks = [
        ReadTask(group, state.root.uri, folder, asked.secret, asked.hide_keys, _most_bytes(group, asked.config))
        for group in groups(plan.new.values(), _size, _TASK_BYTES)
    ]
    sizes = [sum(map(_size, task.stretches)) for task in tasks]
    progress.start("read", sum(sizes), BYTES)
    function: Callable[[ReadTask], FileRead] = partial(read_task, plan.logs)
    files = workers.run(function, tasks, "audit: records", CountedBytes(progress, sizes))
    progress.close()
    workers.count(bytes_read=sum(sizes))
    return files


def _commit(state: State, plan: _ReadPlan, found: Gathered, files: Sequence[FileRead]) -> None:
    """Put what was read into the tables, and remove what does not count any more."""
    used: dict[int, AuditRead] = {}
    for read in sorted((part.read for part in found.parts), key=lambda read: -read.end_offset):
        used[read.read_id] = read  # sources may know other sizes of a file: what counts for all of them
    new = [read for read_id, read in used.items() if read_id in plan.new]
    gone = plan.lost | replaced(plan.reads, new, used.keys()) | doubled(plan.reads, used)
    gone |= absent_reads(plan.reads, plan.listed)
    cut = [used[read.read_id] for read in plan.reads if used.get(read.read_id, read) != read] if new else []
    if new or gone:
        commit_reads(state, files, [*new, *cut], gone | {read.read_id for read in cut})


def _filled(made: StretchRead, file: FileRead) -> dict[str, Any]:
    """Return the columns of a stretch's row that are known once it was read."""
    return {
        "end_position": made.end_position,
        "last_position": made.last_position,
        "last_crc": made.last_crc,
        "records": made.records,
        "problems": json.dumps([asdict(problem) for problem in made.problems]),
        "file": file.path if made.records else "",
    }


def _size(stretch: Stretch) -> int:
    return stretch.piece.end - stretch.piece.start


def _most_bytes(stretches: Sequence[Stretch], config: Config) -> int:
    return max(config.topic_settings(str(s.piece.topic)).max_decompressed_batch_bytes for s in stretches)


def _counting(problems: Sequence[Problem], topic: str, asked: ReadSettings) -> list[Problem]:
    """Return the problems that count: gaps are always looked for, because what was read may serve either way."""
    accepts = asked.config.topic_settings(topic).gaps == "accept"
    return [problem for problem in problems if not (accepts and problem.kind == "gap")]
