"""`export --latest`: a Delta table for each topic with the last record of each key, kept up to date by each run.

  the offsets of the table (jobs.store.latest) -> a task of each partition reads the log from there to its last stable
  offset, and writes the last record of each key to a file (udfs.export.last_rows) -> Spark merges the files: newer rows
  replace, tombstones delete, also those that a compaction of the store has dropped since; in the same commit the
  offset that comes next

So a run that is killed has committed both or neither. A partition is blocked, and is named, at what cannot be read:
damage, a gap, records that retention took before they were read, a partition that is not there. Damage hides how
transactions ended, so reading stops at the first one that is open in front of the segment with the damage. Rows whose
records retention deleted later are kept: the table has the latest state of each key over all records ever read.

A generation lacks the records that compactions removed. Superseded records are irrelevant, because their successors
exist. A tombstone that was removed before a run read it deletes no row. The manifests of generations show whether runs
since the table's last one removed any; a run without a manifest may have removed some. If so, a key of the table that
the generation does not hold at all was deleted: only a tombstone removes the last record of a key. Retention can also
have removed a key whose row is below the log start, or in a partition where `retention.exact` removed single records.
Then the reason is unknown, and the partition is blocked and reported.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import count, counted
from lastkey.jobs.data_source.plan_tasks import partitions_of_command
from lastkey.jobs.export.output import ExportedTopic, ExportFolder, ExportReport, ends_of_partition, open_notes
from lastkey.jobs.spark.workers import SparkTasks
from lastkey.jobs.store.generations import list_each, open_store
from lastkey.jobs.store.latest import (
    Changed,
    TableOffsets,
    alone,
    merge,
    read_parquet_files,
    read_table,
    read_table_offsets,
    replace_all,
)
from lastkey.jobs.store.minutes import session_for
from lastkey.jobs.store.rows import Commit, RunRow
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.data_source.pieces import EARLIEST, LATEST, Bound, Range, SourcePartition, Wanted
from lastkey.udfs.export.last_rows import ROWS, LastRows, LastRowsTask, first_open, last_rows_schema, write_last_rows
from lastkey.udfs.export.write_files import MALFORMED, TOMBSTONE
from lastkey.udfs.problem import Problem
from lastkey.udfs.steps import step
from lastkey.udfs.storage import normal_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HINT_LOST: Final = "delete the topic's folder in the output to rebuild the table; --set gaps=accept continues"


class Doubts(NamedTuple):
    """Records that runs since the table's last one may have taken before it read them."""

    tombstones: bool = False
    expired: bool = False


@dataclass(frozen=True)
class Origin:
    """Archive or store, with its facts about each partition."""

    uri: str
    logs: Mapping[Key, str | None]  # identity of the log: the topic id; in a store the run that began its chain
    cleaned: Mapping[Key, int | None] = field(default_factory=dict)  # in an archive: how far a broker cleaned it
    generations: Mapping[Key, int] = field(default_factory=dict)
    runs: Mapping[Key, Sequence[RunRow]] = field(default_factory=dict)  # runs of existing generations, newest first

    def doubts(self, key: Key, generation: int | None, offset: int) -> Doubts:
        """Return removals since a generation that was read up to an offset, and whether they are unknown."""
        if key not in self.generations:
            return Doubts()
        last, since = self.generations[key], generation or 0
        runs = [run for run in self.runs.get(key, ()) if since < run.generation_after <= last]
        unknown = generation is None or len(runs) < last - since
        return Doubts(
            unknown or any(run.dropped_tombstones and run.end_offset > offset for run in runs),
            unknown or any(run.dropped_expired and run.next_offset > offset for run in runs),
        )


def listed_for_latest(options: ExportOptions) -> tuple[list[SourcePartition], Origin]:
    """Return the partitions that the options name, and where they come from."""
    if options.store is None:
        archive = listed(normal_uri(options.archive_place or ""), options.topics)
        found = archive.partitions.items()
        logs, cleaned = {key: one.topic_id for key, one in found}, {key: one.cleaner_checkpoint for key, one in found}
        return partitions_of_command(options), Origin(archive.root.uri, logs, cleaned)
    state = open_store(options.store)
    while True:
        version, partitions = state.version(), partitions_of_command(options)
        current = state.checkpoints()
        if version == state.version():  # no run has committed meanwhile
            break
    keys = [(str(one.topic), one.partition or 0) for one in partitions]
    generations = {key: options.generation or current[key].generation for key in keys}
    held = list_each(state.root, {key: current[key] for key in keys})
    commits = {key: [one for _, one in of if isinstance(one, Commit)] for key, of in held.items()}
    rows = [row for key in keys for row in (current[key], *(one.checkpoint for one in commits[key]))]
    chains = {row.key: row.chain or None for row in rows if row.generation == generations[row.key]}
    logs = {key: chains.get(key) for key in keys}
    runs = {key: [one.run for one in of] for key, of in commits.items()}
    return partitions, Origin(state.root.uri, logs, {}, generations, runs)


def deleted_rows(spark: SparkSession, uri: str, held: DataFrame, firsts: Mapping[int, int | None]) -> DataFrame:
    """Return the rows of a table whose keys generations do not hold at all, persisted.

    held: the keys of the partitions in `firsts`. firsts: partition -> offset from which on TOMBSTONE is true: the row's
    key was deleted. Below that offset, and for None, TOMBSTONE is false: the row may have expired.
    """
    table = read_table(spark, uri).where(F.col("partition").isin(list(firsts)))
    names = ["partition", *(name for name in ("key", f"key{MALFORMED}") if name in table.columns)]
    same = [table[name].eqNullSafe(held[name]) for name in names]
    known = F.create_map(*(F.lit(value) for n, first in firsts.items() for value in (n, first)))
    deleted = F.coalesce(F.col("offset") >= known[F.col("partition")], F.lit(False))
    return table.join(held, same, "left_anti").withColumn(TOMBSTONE, deleted).persist()


def unclear_problems(deleted: DataFrame, place: str) -> Iterator[tuple[int, Problem]]:
    """Yield a problem for each partition that has rows without TOMBSTONE. place: in the problem, without the number."""
    unclear = deleted.where(~F.col(TOMBSTONE)).groupBy("partition")
    for row in unclear.agg(F.count("*").alias("n"), F.min("offset").alias("least")).collect():
        expected = "records of all keys of the table, or the tombstones that deleted them"
        found = f"neither for {counted(row['n'], 'row')}, the first of offset {count(row['least'])}: expired"
        path = f"{place}-{row['partition']}"
        yield row["partition"], Problem("gap", path, NO_POSITION, expected, found, hint=HINT_LOST)


_KEY: Final = ("partition", "key")
_READINGS: Final = 3  # passes: detect damage, stop before the damage, exclude the partition


@dataclass
class _PartitionRead:
    """Plan for one partition: offsets to read, and the problems that block it."""

    source: SourcePartition
    start: int | None  # None: the table has no offset of it
    first: int = 0  # log start
    end: int | None = None  # None: not known, or no offset may be read
    cut: int | None = None  # no record from this offset on may be read: damage
    generation: int | None = None  # generation of a store; None: an archive
    doubts: Doubts = Doubts()
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """True if there is anything to read."""
        return self.end is not None and self.end > (self.first if self.start is None else self.start)

    def asked(self, *, accept_gaps: bool, whole: bool = False) -> Range:
        """Return the range to read: from the table's offsets or, with `whole`, from the log's start."""
        start = EARLIEST if self.start is None or whole else Bound("offset", self.start)
        end = LATEST if self.end is None else Bound("offset", self.end)
        return Range(start, end, wanted=Wanted(committed=True), quarantine=True, accept_gaps=accept_gaps)

    def block(self, problems: Sequence[Problem]) -> None:
        """Leave the partition out of this run if there are problems."""
        if problems:
            self.problems += problems
            self.end = None

    def stop(self, problems: Sequence[Problem]) -> None:
        """Read no record from the segments on that these problems are in."""
        self.problems += [problem for problem in problems if problem not in self.problems]
        offsets = [_offset_before(self.source, problem) for problem in problems]
        if None in offsets:
            self.end = None
        cuts = [offset for offset in (*offsets, self.cut) if offset is not None]
        self.cut = min(cuts, default=None)


def _offset_before(partition: SourcePartition, problem: Problem) -> int | None:
    """Return the base offset of the segment with the problem, or of the segment before a gap; None if it is unknown."""
    file = names.parse_segment_file(problem.path.rpartition("/")[2])
    if file is None or (file.kind != names.LOG and problem.kind != "gap"):
        return None
    if problem.kind != "gap":
        return file.base
    return max((s.base_offset for s in partition.segments if s.base_offset < file.base), default=None)


@dataclass(frozen=True)
class Topic:
    """A topic that is brought up to date."""

    name: str
    options: ExportOptions
    decoders: Mapping[str, str | None]
    workers: SparkTasks
    output: ExportFolder

    @property
    def accepts_gaps(self) -> bool:
        """True if offsets that are lost are passed over."""
        return self.options.config.topic_settings(self.name).gaps == "accept"

    def last_rows(
        self, parts: Sequence[_PartitionRead], *, columns: tuple[str, ...] = ROWS, whole: bool = False
    ) -> list[LastRows]:
        """Write a file for each partition, and return the results of the tasks."""
        limit = self.options.config.topic_settings(self.name).max_decompressed_batch_bytes
        memory = self.options.config.job.task_memory_bytes
        tasks = [
            LastRowsTask(
                part.source,
                part.asked(accept_gaps=self.accepts_gaps, whole=whole),
                self.output.root.uri,
                self.output.new_file(),
                self.decoders,
                limit,
                memory,
                columns,
            )
            for part in parts
        ]
        return self.workers.run(write_last_rows, tasks, f"export {self.name}")

    def frame(self, spark: SparkSession, files: Sequence[LastRows], columns: Sequence[str] = ROWS) -> DataFrame:
        """Return the rows of files."""
        uris = [self.output.topic_uri(one.path) for one in files]
        return read_parquet_files(spark, last_rows_schema(self.decoders, columns), uris)


def update(topic: Topic, partitions: Sequence[SourcePartition], origin: Origin, report: ExportReport) -> ExportedTopic:
    """Bring the table of a topic up to date."""
    exported, output, options = ExportedTopic(topic.name, len(partitions)), topic.output, topic.options
    before = read_table_offsets(output.root, topic.name)
    if isinstance(before, Problem):
        report.other_problems.append(before)
        exported.problems = 1
        return exported
    stand = before
    logs = {n: log for p in partitions if (log := origin.logs.get((topic.name, n := p.partition or 0))) is not None}
    other = {n for n, logs_known in stand.logs.items() if logs.get(n, logs_known) != logs_known}
    starts_over = not stand.offsets or bool(other)
    if other:
        why = "the topic was deleted and made again" if options.store is None else "the store began it again (--reset)"
        report.notes.append(f"{topic.name}: {why}, so its table starts over")
        stand = TableOffsets()
    _note_cleaned(topic.name, stand, origin, report)
    parts = {p.partition or 0: _planned(p, stand, origin, topic, report) for p in partitions}
    lost = [_vanished(origin, topic.name, n) for n in sorted(stand.offsets.keys() - parts.keys())]
    row_files = _read(topic, parts)
    held = _held(topic, parts, row_files)
    with topic.workers.spark("export") as whole:
        spark = session_for(whole, sum(s.size_bytes for n in row_files for s in parts[n].source.segments))
        deleted_keys = _deleted(spark, topic, parts, held)
        try:
            problems = [*lost, *(problem for part in parts.values() for problem in part.problems)]
            report.other_problems += dict.fromkeys(problems)
            exported.problems = len(set(problems))
            exported.records = sum(one.records for one in row_files.values())
            exported.tombstones = sum(one.tombstones for one in row_files.values())
            if null_keys := sum(one.null_keys for one in row_files.values()):
                report.notes.append(f"{topic.name}: {counted(null_keys, 'record')} without a key left out")
            ends = {n: end for n in row_files if (end := parts[n].end) is not None}
            if not ends and (
                row_files or problems or (stand.run and not other)
            ):  # otherwise rows of another topic remain
                return exported
            logs_known = {n: log for n, log in logs.items() if not ends or n in stand.offsets | ends}
            numbers = {n: number for n in ends if (number := parts[n].generation) is not None}
            moved = TableOffsets(
                stand.offsets | ends, stand.logs | logs_known, stand.generations | numbers, uuid.uuid4().hex
            )
            rows = topic.frame(spark, [row_files[n] for n in ends])
            deleted = (
                None
                if deleted_keys is None
                else deleted_keys.where(F.col("partition").isin(list(ends)) & F.col(TOMBSTONE))
            )
            step("last rows written")
            with alone(output.root, topic.name, before):
                changed = _commit(topic, rows, moved, starts_over=starts_over, deleted=deleted)
            exported.inserted, exported.updated, exported.deleted = changed.inserted, changed.updated, changed.deleted
        finally:
            if deleted_keys is not None:
                deleted_keys.unpersist()
    return exported


def _held(topic: Topic, parts: Mapping[int, _PartitionRead], row_files: Mapping[int, LastRows]) -> dict[int, LastRows]:
    """Write all keys of the generations of partitions from which compactions may have dropped unread tombstones. Block
    a partition whose keys cannot be read.
    """
    doubted = [n for n in row_files if parts[n].doubts.tombstones]
    held = dict(zip(doubted, topic.last_rows([parts[n] for n in doubted], columns=_KEY, whole=True), strict=True))
    for number, one in held.items():
        parts[number].block(one.problems)
    return {number: one for number, one in held.items() if not one.problems}


def _deleted(
    spark: SparkSession, topic: Topic, parts: Mapping[int, _PartitionRead], held: Mapping[int, LastRows]
) -> DataFrame | None:
    """Return rows of the table, persisted, whose keys generations do not hold; None if no row is of that kind.

    TOMBSTONE: whether a row's key was deleted. If it may have expired too, its partition is blocked.
    """
    if not held:
        return None
    firsts = {n: None if parts[n].doubts.expired else parts[n].first for n in held}
    rows = deleted_rows(spark, topic.output.topic_uri(topic.name), topic.frame(spark, [*held.values()], _KEY), firsts)
    for number, problem in unclear_problems(rows, f"{topic.options.store}: {topic.name}"):
        if not topic.accepts_gaps:
            parts[number].block([problem])
    return rows


def missing_topics(output: ExportFolder, options: ExportOptions, present: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each topic that has a table and is no longer in the archive."""
    for topic in sorted(output.folders() - set(present)):
        if options.topics.takes(topic):
            hint = "bring it back; if it is gone for good, delete this folder"
            place = f"{output.root.uri}/{topic}"
            yield Problem("gap", place, NO_POSITION, "the topic it was read from", "no partition", hint=hint)


def _planned(
    source: SourcePartition, stand: TableOffsets, origin: Origin, topic: Topic, report: ExportReport
) -> _PartitionRead:
    """Return the plan of a partition's new records, up to its last stable offset."""
    number = source.partition or 0
    key = topic.name, number
    part = _PartitionRead(source, stand.offsets.get(number), generation=origin.generations.get(key))
    ends, problem = ends_of_partition(source)
    if problem is not None:
        part.stop([problem])
    if ends is None or (problem is not None and part.cut is None):
        return part
    part.first, part.end = ends.first, ends.end
    report.notes += open_notes(source, ends)
    if part.start is None:
        return part
    part.doubts = origin.doubts(key, stand.generations.get(number), part.start)
    if part.start < ends.first:
        if topic.accepts_gaps:
            part.start = ends.first
        else:
            part.end = None
            found = f"a log that begins at {ends.first}"
            part.problems.append(_not_there(source, f"offset {part.start}, the table's position", found))
    elif part.start > ends.log_end and ends.certain:
        part.end = None
        found = f"a log that ends at {ends.log_end}: an older copy, or another log"
        part.problems.append(_not_there(source, f"offset {part.start}, the table's position", found))
    elif part.doubts.expired and part.start < ends.end and not topic.accepts_gaps:
        part.end = None
        found = "a generation of which retention.exact may have taken some since then"
        part.problems.append(_not_there(source, f"all records from offset {part.start} on", found))
    return part


def _not_there(source: SourcePartition, expected: str, found: str) -> Problem:
    place = source.segments[0] if source.segments else None
    path = source.name if place is None else f"{place.root}/{place.path}".rpartition("/")[0]
    return Problem("gap", path, NO_POSITION, expected, found, hint=HINT_LOST)


def _vanished(origin: Origin, topic: str, number: int) -> Problem:
    path = f"{origin.uri}/{names.partition_folder(topic, number)}"
    hint = "bring it back; its rows stay as they are"
    return Problem("gap", path, NO_POSITION, "a partition that the table has read from", "none", hint=hint)


def _note_cleaned(topic: str, stand: TableOffsets, origin: Origin, report: ExportReport) -> None:
    """Note partitions that a cleaner has cleaned beyond the table's offsets: it may have removed tombstones that no run
    has read.
    """
    for number, offset in sorted(stand.offsets.items()):
        cleaned = origin.cleaned.get((topic, number))
        if cleaned is not None and cleaned > offset:
            report.notes.append(
                f"{names.partition_folder(topic, number)}: a broker cleaned it up to {count(cleaned)}, and the table "
                f"stood at {count(offset)}: if that was longer ago than delete.retention.ms, keys that were deleted "
                "meanwhile may stay in the table"
            )


def _read(topic: Topic, parts: Mapping[int, _PartitionRead]) -> dict[int, LastRows]:
    """Write the last records of what is new, and return the files of the partitions that could be read."""
    row_files: dict[int, LastRows] = {}
    for reading in range(_READINGS):
        _end_before_open(topic, [part for n, part in parts.items() if n not in row_files])
        rest = [n for n, part in parts.items() if n not in row_files and part.is_wanted]
        for number, part_rows in zip(rest, topic.last_rows([parts[n] for n in rest]), strict=True):
            if not part_rows.problems:
                row_files[number] = part_rows
                continue
            parts[number].stop(part_rows.problems)
            if reading >= _READINGS - 2:
                parts[number].end = None
    return row_files


def _end_before_open(topic: Topic, parts: Sequence[_PartitionRead]) -> None:
    """Let partitions that stop in front of damage end where the first transaction that is open there begins."""
    cut = [part for part in parts if part.cut is not None and part.is_wanted]
    for part in cut:
        part.end = min(part.end or 0, part.cut or 0)
    cut = [part for part in cut if part.is_wanted]
    asked = [
        (part.source, replace(part.asked(accept_gaps=True), end=LATEST, as_stored=True), part.cut or 0) for part in cut
    ]
    opened = topic.workers.run(_first_open, asked, f"export {topic.name}: transactions")
    for part, first in zip(cut, opened, strict=True):
        part.end = part.end if first is None else min(part.end or 0, first)


def _first_open(asked: tuple[SourcePartition, Range, int]) -> int | None:
    return first_open(*asked)


def _commit(
    topic: Topic, rows: DataFrame, stand: TableOffsets, *, starts_over: bool, deleted: DataFrame | None = None
) -> Changed:
    """Commit the last records of keys, and the table's new offsets. deleted: rows of the table to delete."""
    root, uri = topic.output.root, topic.output.topic_uri(topic.name)
    if starts_over:
        return replace_all(root, topic.name, rows, uri, stand)
    rows = rows if deleted is None else rows.unionByName(deleted)
    key = ["partition", *(name for name in ("key", f"key{MALFORMED}") if name in rows.columns)]
    return merge(root, topic.name, rows, uri, key, stand)
