"""Records of sources: what no audit has read yet is read by tasks, once, into `audit_entries`.

A stretch of a log that was read counts as long as its file has the same size and time. If the file has grown, and the
last batch that was read is still there, only what came after it is read. So a nightly audit reads what is new; and a
segment that several generations share, or a generation and the archive, is read once. A read counts as a whole: all of
its records are in the offsets that the source shows. Reads whose versions were added up (`udfs.audit.entries`) count
together, if no cut of this audit is between them.

A read that failed because of another file, a permission or a setting does not count: each audit repeats it, even if the
file does not change. Nor does one with a gap after it, which may be filled by now, beyond its last batch.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np

from lastkey.jobs.audit.sources import AuditedLogs
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.data_source.plan_tasks import each
from lastkey.jobs.spark.workers import Workers
from lastkey.jobs.store.audits import APART, AuditRead, audit_reads, commit_reads, lost_files, secret_id
from lastkey.jobs.store.paths import AUDIT_ENTRIES, table_folder
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.udfs.audit.entries import Cuts, FileRead, Group, ReadTask, Secret, StretchRead, batch_end, read_task
from lastkey.udfs.data_source.pieces import Piece, Range, Wanted, limited, listed_logs
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import ListedLog
from lastkey.udfs.storage import absent, open_root

_TASK_BYTES: Final = 128 << 20
_MOST_BYTES: Final = 4 << 30  # about so many are read again if one of their segments changes
_WHOLE: Final = 1 << 62  # a segment is one stretch
NO_PROBLEMS: Final = "[]"
_OF_BYTES: Final = frozenset({"crc", "codec", "compressed", "varint", "record", "count"})  # damage in the file
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
        """Files of `audit_entries` that hold the records."""
        return {part.read.file for part in self.parts} - {""}

    @property
    def all_problems(self) -> list[Problem]:
        """All that could not be read, each once."""
        return list(dict.fromkeys([*self.unlisted, *(problem for each in self.problems.values() for problem in each)]))


@dataclass(frozen=True)
class ReadSettings:
    """Settings of an audit that decide how it reads. cuts: of each partition."""

    config: Config
    secret: Secret
    hide_keys: bool = False
    cuts: Callable[[Key], Cuts] = lambda _: None


@dataclass
class _ReadPlan:
    """Work to do: stretches to read; rows of the table that change or go; logs that tasks may look into."""

    new: list[Group] = field(default_factory=list)  # stretches next to each other in a folder: generations share files
    listed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # root -> paths
    logs: list[list[ListedLog]] = field(default_factory=list)
    reads: list[AuditRead] = field(default_factory=list)  # all rows of the table
    lost: set[int] = field(default_factory=set)  # reads whose records are lost
    known: dict[tuple[str, str], list[AuditRead]] = field(default_factory=lambda: defaultdict(list))  # others, and new
    unread: set[int] = field(default_factory=set)  # reads of new segments
    together: dict[int, list[AuditRead]] = field(default_factory=lambda: defaultdict(list))  # by entries_id


def gather(
    state: State, sources: Sequence[AuditedLogs], asked: ReadSettings, workers: Workers, progress: Progress
) -> Gathered:
    """Read what is new in the sources."""
    plan, found = _ReadPlan(reads=audit_reads(state)), Gathered()
    lost = lost_files(state, {read.file for read in plan.reads} - {""})
    for read in plan.reads:
        if read.file in lost:
            plan.lost.add(read.read_id)
        else:
            plan.known[read.root, read.path].append(read)
        if read.file:
            plan.together[read.entries_id].append(read)
    for source in sources:
        _plan(plan, found, source, asked)
    groups_ = _groups(plan, workers) if plan.new else []
    files = _read(state, plan, groups_, asked, workers, progress) if groups_ else []
    found.stretches_read, found.bytes_read = len(plan.unread), sum(group.size for group in groups_)
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
    for (topic, partition), pieces in groupby(
        _pieces(source, asked, found), lambda one: (str(one[0].topic), one[0].partition or 0)
    ):
        n_partitions, cuts = counts[topic], asked.cuts((topic, partition))
        there = []
        for piece, listed in pieces:
            known = plan.known[piece.root, piece.path]
            alike = _that_count([read for read in known if _is_alike(read, asked, cuts, n_partitions)], listed)
            there.append((piece, listed, sorted(alike, key=lambda read: (read.start_offset, -read.end_offset))))
        refused = set[int]()
        parts, rest = _cover(plan, source.name, there, refused)
        while torn := _torn(plan, parts, cuts):
            refused |= torn
            parts, rest = _cover(plan, source.name, there, refused)
        found.parts += parts
        for follows, piece, listed, end in rest:
            if not follows:
                plan.new.append(Group(0, n_partitions, numbers[topic, partition], cuts, []))
            read_id = secrets.randbits(62)
            read = _new_read(read_id, piece, listed, end, n_partitions, asked)
            plan.new[-1].stretches.append((read_id, piece))
            plan.known[piece.root, piece.path].append(read)  # another source that has it need not read it
            plan.unread.add(read_id)
            found.parts.append(ReadRange(source.name, read, piece.start_offset, end))


def _cover(
    plan: _ReadPlan, source: str, there: Sequence[tuple[Piece, Segment, Sequence[AuditRead]]], refused: Collection[int]
) -> tuple[list[ReadRange], list[tuple[bool, Piece, Segment, int]]]:
    """Return the reads that hold the pieces, and the stretches that are left to read: whether each is next to the one
    before, and its end offset. refused: entries that do not count.
    """
    parts, rest = list[ReadRange](), list[tuple[bool, Piece, Segment, int]]()
    last: tuple[str, str] | None = None  # folder of the stretch before, if that is to be read
    for piece, listed, reads in there:
        shown, position = limited(piece), piece.start
        begin, end = shown.start_offset, shown.end_offset
        for read in reads:
            until = min(read.end_offset, end)
            if (
                read.start_offset <= begin < until
                and read.entries_id not in refused
                and _is_inside(plan, read, begin, until)
            ):
                parts.append(ReadRange(source, read, begin, until))
                begin, position, last = until, max(position, read.end_position), None
        if begin < end:
            here = piece.root, piece.path.rpartition("/")[0]
            rest.append((last == here, replace(piece, start=position, start_offset=begin), listed, end))
            last = here
    return parts, rest


def _is_inside(plan: _ReadPlan, read: AuditRead, begin: int, until: int) -> bool:
    """Return whether all records of a read are in [begin, until)."""
    if read.read_id in plan.unread:
        return (read.start_offset, read.end_offset) == (begin, until)
    return read.last_offset < 0 or (begin <= read.first_offset and read.last_offset < until)


def _torn(plan: _ReadPlan, parts: Sequence[ReadRange], cuts: Cuts) -> set[int]:
    """Return the ids of entries that do not count: other reads belong to them, or they have versions on both sides of
    a cut.
    """
    used = {part.read.read_id for part in parts}
    torn = set[int]()
    for entries_id in {part.read.entries_id for part in parts if part.read.file and part.read.cuts != APART}:
        reads = plan.together[entries_id]
        first, last = min(read.first_offset for read in reads), max(read.last_offset for read in reads)
        between = {cut for cut in cuts or () if first < cut <= last}
        if not used.issuperset(read.read_id for read in reads) or not between.issubset(json.loads(reads[0].cuts)):
            torn.add(entries_id)
    return torn


def _pieces(source: AuditedLogs, asked: ReadSettings, found: Gathered) -> Iterator[tuple[Piece, Segment]]:
    """Yield the stretches of a source's logs that a consumer sees; note what cannot be read."""
    every = Range(wanted=Wanted(committed=True), split_bytes=_WHOLE, fail_on_data_loss=False, quarantine=True)
    listed = {(s.root, s.path): s for one in source.partitions for s in one.segments}
    for piece in each(source.partitions, [every] * len(source.partitions)):
        if piece.problem is None:
            yield piece, listed[piece.root, piece.path]
        elif piece.topic is None or piece.partition is None:
            found.unlisted.append(piece.problem)
        else:
            found.problems[source.name, piece.topic, piece.partition] += _counting([piece.problem], piece.topic, asked)


def _is_alike(read: AuditRead, asked: ReadSettings, cuts: Cuts, n_partitions: int) -> bool:
    """Return whether a read holds keys and digests as this audit needs them."""
    same = read.keys_hidden == asked.hide_keys and read.secret_id == secret_id(asked.secret)
    has_digests = read.cuts == APART or cuts is not None
    return same and has_digests and (not read.keys_hidden or read.n_partitions == n_partitions)


def _new_read(
    read_id: int, piece: Piece, listed: Segment, end_offset: int, n_partitions: int, asked: ReadSettings
) -> AuditRead:
    """Return the row of a stretch before it is read."""
    return AuditRead(
        read_id, piece.root, piece.path, listed.size_bytes, listed.mtime_ms, str(piece.topic), piece.partition or 0,
        piece.start_offset, end_offset, piece.start, -1, -1, n_partitions, asked.hide_keys, secret_id(asked.secret),
        NO_PROBLEMS, "",
    )  # fmt: skip


def _groups(plan: _ReadPlan, workers: Workers) -> list[Group]:
    """Return what is new in groups: stretches that are added up together, as large as keeps all workers busy."""
    total = sum(new.size for new in plan.new)
    share = min(max(total / workers.cores, _TASK_BYTES), _MOST_BYTES)
    out = []
    for new in plan.new:
        for part in [[stretch] for stretch in new.stretches] if new.cuts is None else _even_parts(new, share):
            (entries_id, first), (_, last) = part[0], part[-1]
            cuts = new.cuts
            if cuts is not None:
                cuts = tuple(cut for cut in cuts if first.start_offset < cut < last.end_offset)
            out.append(replace(new, entries_id=entries_id, cuts=cuts, stretches=part))
    return out


def _even_parts(new: Group, share: float) -> list[list[tuple[int, Piece]]]:
    """Return the stretches in parts that are even, and each about a share: a small rest would repeat most keys."""
    sizes = np.array([piece.end - piece.start for _, piece in new.stretches])
    n = max(round(new.size / share), 1)
    part = (np.cumsum(sizes) - sizes / 2) * n // max(new.size, 1)  # part of each middle
    return [new.stretches[first:stop] for first, stop in pairwise([0, *np.flatnonzero(np.diff(part)) + 1, len(part)])]


def _read(
    state: State, plan: _ReadPlan, new: Sequence[Group], asked: ReadSettings, workers: Workers, progress: Progress
) -> list[FileRead]:
    """Read the new stretches in tasks."""
    folder, tasks = table_folder(AUDIT_ENTRIES), list[ReadTask]()
    for apart in (False, True):
        same = [group for group in new if (group.cuts is None) is apart]
        for part in groups(same, lambda group: group.size, _TASK_BYTES):
            tasks.append(
                ReadTask(part, state.root.uri, folder, asked.secret, asked.hide_keys, _most_bytes(part, asked))
            )
    sizes = [sum(group.size for group in task.groups) for task in tasks]
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
    new = [read for read_id, read in used.items() if read_id in plan.unread]
    gone = plan.lost | _replaced(plan.reads, new, used.keys()) | _doubled(plan.reads, used)
    gone |= _absent_reads(plan.reads, plan.listed)
    torn = {read.entries_id for read in plan.reads if read.read_id in gone and read.cuts != APART and read.file}
    gone |= {read.read_id for read in plan.reads if read.entries_id in torn}
    cut = [used[read.read_id] for read in plan.reads if used.get(read.read_id, read) != read] if new else []
    if new or gone:
        commit_reads(state, files, [*new, *cut], gone | {read.read_id for read in cut})


def _filled(made: StretchRead, file: FileRead) -> dict[str, Any]:
    """Return the columns of a stretch's row that are known once it was read."""
    return vars(made) | {
        "problems": json.dumps([asdict(problem) for problem in made.problems]),
        "cuts": APART if made.cuts is None else json.dumps(made.cuts),
        "file": file.path if made.first_offset >= 0 else "",
    }


def _most_bytes(parts: Sequence[Group], asked: ReadSettings) -> int:
    topics = {str(piece.topic) for group in parts for _, piece in group.stretches}
    return max(asked.config.topic_settings(topic).max_decompressed_batch_bytes for topic in topics)


def _counting(problems: Sequence[Problem], topic: str, asked: ReadSettings) -> list[Problem]:
    """Return the problems that count: gaps are always looked for, because what was read may serve either way."""
    accepts = asked.config.topic_settings(topic).gaps == "accept"
    return [problem for problem in problems if not (accepts and problem.kind == "gap")]


# -- what earlier audits read


def _that_count(reads: Sequence[AuditRead], listed: Segment) -> list[AuditRead]:
    """Return a file's reads that are valid for its current state, each limited to its valid offsets."""
    same = [read for read in reads if (read.size_bytes, read.mtime_ms) == (listed.size_bytes, listed.mtime_ms)]
    problems = {read.read_id: json.loads(read.problems) for read in same}
    path = f"{listed.root}/{listed.path}"
    whole = [r for r in same if all(p["kind"] in _OF_BYTES and p["path"] == path for p in problems[r.read_id])]
    begun = [read for read in reads if read.size_bytes < listed.size_bytes and read.problems == NO_PROBLEMS]
    if any(read.size_bytes >= listed.size_bytes and read not in same for read in reads):
        begun = []  # it has not only grown since then: it was rewritten
    begun += [r for r in same if r not in whole and all(p["kind"] == "gap" for p in problems[r.read_id])]
    newest = max(begun, key=lambda read: read.last_position, default=None)
    if newest is None or newest.last_position < 0:
        return whole
    end = batch_end(listed.root, listed.path, listed.size_bytes, newest.last_position, newest.last_crc) or 0
    there = [read for read in begun if read.start_offset < end]
    return [*whole, *(replace(read, end_offset=min(read.end_offset, end), problems=NO_PROBLEMS) for read in there)]


def _replaced(reads: Sequence[AuditRead], new: Sequence[AuditRead], used: Collection[int]) -> set[int]:
    """Return the ids of unused reads whose offsets later reads cover."""
    by_file: dict[tuple[str, str], list[AuditRead]] = defaultdict(list)
    for read in new:
        by_file[read.root, read.path].append(read)
    return {
        old.read_id
        for old in reads
        for one in by_file.get((old.root, old.path), ())
        if old.read_id not in used
        and (old.start_offset < one.end_offset and one.start_offset < old.end_offset)
        and (old.keys_hidden == one.keys_hidden or old.secret_id != one.secret_id)
    }


def _doubled(reads: Sequence[AuditRead], used: Mapping[int, AuditRead]) -> set[int]:
    """Return the ids of reads that are unused because two concurrent audits read the same. used: by id."""
    same = {_without_id(read) for read in used.values()}
    return {read.read_id for read in reads if read.read_id not in used and _without_id(read) in same}


def _without_id(read: AuditRead) -> AuditRead:
    return replace(read, read_id=0, entries_id=0, file="")


def _absent_reads(reads: Sequence[AuditRead], listed: Mapping[str, Collection[str]]) -> set[int]:
    """Return the ids of reads whose files are missing. listed: paths that are there, by root; others are looked for."""
    out = set[int]()
    for root, paths in listed.items():
        others = [read for read in reads if read.root == root and read.path not in paths]
        gone = set(absent(open_root(root), [(read.path, 0) for read in others]))
        out |= {read.read_id for read in others if read.path in gone}
    return out
