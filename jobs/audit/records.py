"""Records of sources as one DataFrame: what no audit has read yet is read by tasks, once, into `audit_records`.

A stretch of a log that was read counts as long as its file has the same size and time. If the file has grown, and the
last batch that was read is still there, only what came after it is read. So a nightly audit reads what is new; and a
segment that several generations share, or a generation and the archive, is read once.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.audit.sources import Source
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.data_source.plan_tasks import each
from lastkey.jobs.spark.workers import Workers
from lastkey.jobs.store.audits import AuditRead, audit_reads, commit_reads, secret_id
from lastkey.jobs.store.audits import records as all_records
from lastkey.jobs.store.paths import AUDIT_RECORDS, table_folder
from lastkey.jobs.store.tables import State
from lastkey.logformat.listing import ListedSegment
from lastkey.udfs.audit.rows import FileRead, ReadTask, Secret, Stretch, StretchRead, read_task
from lastkey.udfs.audit.same_log import has_batch
from lastkey.udfs.data_source.pieces import Piece, Range, Wanted
from lastkey.udfs.groups import groups
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import absent, open_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES: Final = 128 << 20
_WHOLE: Final = 1 << 62  # a segment is one stretch
NO_PROBLEMS: Final = "[]"
Place = tuple[str, str, int]  # source, topic, partition
# Which records a source shows: those of a read with offsets in [start_offset, end_offset)
_VISIBLE: Final = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("read_id", pa.int64()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("mtime_ms", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Part:
    """Offsets [start_offset, end_offset) of a partition of a source, and the read that holds their records."""

    source: str
    read: AuditRead
    start_offset: int
    end_offset: int


@dataclass
class Gathered:
    """Parts that the sources hold, and problems of what could not be read."""

    parts: list[Part] = field(default_factory=list)
    problems: dict[Place, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    unlisted: list[Problem] = field(default_factory=list)  # folders whose partitions nobody knows
    n_partitions: dict[tuple[str, str], int] = field(default_factory=dict)  # by source and topic
    stretches_read: int = 0
    bytes_read: int = 0

    @property
    def all_problems(self) -> list[Problem]:
        """All that could not be read, each once."""
        return list(dict.fromkeys([*self.unlisted, *(problem for each in self.problems.values() for problem in each)]))


@dataclass(frozen=True)
class Asked:
    """Settings of an audit that decide how it reads."""

    config: Config
    secret: Secret
    hide_keys: bool = False
    gaps: str | None = None  # wins over the setting


def gather(state: State, sources: Sequence[Source], asked: Asked, workers: Workers, progress: Progress) -> Gathered:
    """Read what is new in the sources."""
    found, new = _plan(state, sources, asked)
    if new:
        _read(state, found, new, asked, workers, progress)
    for part in found.parts:
        told = [Problem(**problem) for problem in json.loads(part.read.problems)]
        place = part.source, part.read.topic, part.read.partition
        found.problems[place] += _counting(told, part.read.topic, asked)
    return found


def _plan(state: State, sources: Sequence[Source], asked: Asked) -> tuple[Gathered, dict[int, Stretch]]:
    """Return what the sources show, and the stretches that have to be read for it, by read_id."""
    known: dict[tuple[str, str], list[AuditRead]] = defaultdict(list)
    for read in audit_reads(state):
        known[read.root, read.path].append(read)
    found, new = Gathered(), dict[int, Stretch]()
    for source in sources:
        counts = source.n_partitions
        found.n_partitions |= {(source.name, topic): n for topic, n in counts.items()}
        for piece, listed in _pieces(source, asked, found):
            n_partitions = counts[str(piece.topic)]
            reads = [read for read in known[piece.root, piece.path] if _is_alike(read, asked, n_partitions)]
            begin, end = _offsets(piece)
            position = piece.start
            for read in sorted(_unchanged(reads, listed), key=lambda read: (read.start_offset, -read.end_offset)):
                if read.start_offset <= begin < read.end_offset:
                    until = min(read.end_offset, end)
                    found.parts.append(Part(source.name, read, begin, until))
                    begin, position = until, max(position, read.end_position)
                    if begin >= end:
                        break
            if begin < end:
                stretch = Stretch(
                    secrets.randbits(62), replace(piece, start=position, start_offset=begin), n_partitions
                )
                read = _read_of(stretch, listed, end, asked)
                known[piece.root, piece.path].append(read)  # another source that has it too need not read it
                found.parts.append(Part(source.name, read, begin, end))
                new[read.read_id] = stretch
    return found, new


def _pieces(source: Source, asked: Asked, found: Gathered) -> Iterator[tuple[Piece, ListedSegment]]:
    """Yield the stretches of a source's logs that a consumer sees; note what cannot be read."""
    ranges = [
        Range(
            wanted=Wanted(committed=True),
            split_bytes=_WHOLE,
            fail_on_data_loss=False,
            set_aside=True,
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


def _is_alike(read: AuditRead, asked: Asked, n_partitions: int) -> bool:
    """Return whether a read holds keys and digests as this audit needs them."""
    same = read.keys_hidden == asked.hide_keys and read.secret_id == secret_id(asked.secret)
    return same and (not read.keys_hidden or read.n_partitions == n_partitions)


def _unchanged(reads: Sequence[AuditRead], listed: ListedSegment) -> list[AuditRead]:
    """Return the reads of the file as it is now: of the same size and time, or of the beginning of what has grown."""
    same = [read for read in reads if (read.size_bytes, read.mtime_ms) == (listed.size, listed.mtime_ms)]
    smaller = [read for read in reads if read.size_bytes < listed.size and read.problems == NO_PROBLEMS]
    newest = max(smaller, key=lambda read: read.last_position, default=None)
    if newest is None or newest.last_position < 0:
        return same
    grown = has_batch(listed.root, listed.path, listed.size, newest.last_position, newest.last_crc)
    return [*same, *smaller] if grown else same


def _read_of(stretch: Stretch, listed: ListedSegment, end_offset: int, asked: Asked) -> AuditRead:
    """Return the row of a stretch before it is read."""
    piece = stretch.piece
    return AuditRead(
        stretch.read_id, piece.root, piece.path, listed.size, listed.mtime_ms, str(piece.topic), piece.partition or 0,
        piece.start_offset, end_offset, piece.start, -1, -1, stretch.n_partitions, asked.hide_keys,
        secret_id(asked.secret), 0, NO_PROBLEMS, "",
    )  # fmt: skip


def _read(
    state: State, found: Gathered, new: dict[int, Stretch], asked: Asked, workers: Workers, progress: Progress
) -> None:
    """Read stretches in tasks, commit them, and put the rows of the table into `found`."""
    folder = table_folder(AUDIT_RECORDS)
    tasks = [
        ReadTask(group, state.root.uri, folder, asked.secret, asked.hide_keys, _most_bytes(group, asked.config))
        for group in groups(new.values(), _size, _TASK_BYTES)
    ]
    sizes = [sum(map(_size, task.stretches)) for task in tasks]
    progress.start("read", sum(sizes), BYTES)
    files = workers.run(read_task, tasks, "audit: records", CountedBytes(progress, sizes))
    progress.close()
    workers.count(bytes_read=sum(sizes))
    made = {one.read_id: (one, file) for file in files for one in file.stretches}
    planned = {part.read.read_id: part.read for part in found.parts if part.read.read_id in new}
    reads = {read_id: _filled(read, *made[read_id]) for read_id, read in planned.items()}
    commit_reads(state, files, list(reads.values()), _replaced(state, reads.values()))
    found.parts = [replace(part, read=reads.get(part.read.read_id, part.read)) for part in found.parts]
    found.stretches_read, found.bytes_read = len(new), sum(sizes)


def _filled(read: AuditRead, made: StretchRead, file: FileRead) -> AuditRead:
    """Return the row of a stretch that was read."""
    return replace(
        read,
        end_position=made.end_position,
        last_position=made.last_position,
        last_crc=made.last_crc,
        records=made.records,
        problems=json.dumps([asdict(problem) for problem in made.problems]),
        file=file.path if made.records else "",
    )


def _size(stretch: Stretch) -> int:
    return stretch.piece.end - stretch.piece.start


def _most_bytes(stretches: Sequence[Stretch], config: Config) -> int:
    return max(config.topic_settings(str(s.piece.topic)).max_decompressed_batch_bytes for s in stretches)


def _replaced(state: State, reads: Collection[AuditRead]) -> set[int]:
    """Return the ids of older reads that cannot count any more: the new ones overlap them, or their file is gone."""
    by_file: dict[tuple[str, str], list[AuditRead]] = defaultdict(list)
    for read in reads:
        by_file[read.root, read.path].append(read)
    places = {(read.root, read.topic, read.partition) for read in reads}
    out, elsewhere = set[int](), dict[str, list[AuditRead]]()
    for old in audit_reads(state):
        for new in by_file.get((old.root, old.path), ()):
            overlaps = old.start_offset < new.end_offset and new.start_offset < old.end_offset
            if overlaps and (old.keys_hidden == new.keys_hidden or old.secret_id != new.secret_id):
                out.add(old.read_id)
        if (old.root, old.topic, old.partition) in places and (old.root, old.path) not in by_file:
            elsewhere.setdefault(old.root, []).append(old)
    for root, olds in elsewhere.items():
        gone = set(absent(open_root(root), [(old.path, 0) for old in olds]))
        out |= {old.read_id for old in olds if old.path in gone}
    return out


def _counting(problems: Sequence[Problem], topic: str, asked: Asked) -> list[Problem]:
    """Return the problems that count: gaps are always looked for, because what was read may serve either way."""
    accepts = (asked.gaps or asked.config.topic_settings(topic).gaps) == "accept"
    return [problem for problem in problems if not (accepts and problem.kind == "gap")]


def records_of(spark: SparkSession, state: State, found: Gathered) -> DataFrame:
    """Return a row for each record that the sources show: source, the columns of AUDIT_RECORDS without read_id, and
    mtime_ms of its file.
    """
    rows = [
        (part.source, part.read.read_id, part.start_offset, part.end_offset, part.read.mtime_ms)
        for part in found.parts
        if part.read.records
    ]
    visible = pa.Table.from_pylist([dict(zip(_VISIBLE.names, row, strict=True)) for row in rows], _VISIBLE)
    shown = F.broadcast(spark.createDataFrame(visible))
    inside = (F.col("offset") >= F.col("start_offset")) & (F.col("offset") < F.col("end_offset"))
    joined = (
        all_records(spark, state, {part.read.file for part in found.parts if part.read.records})
        .join(shown, "read_id")
        .where(inside)
    )
    return joined.drop("read_id", "start_offset", "end_offset")
