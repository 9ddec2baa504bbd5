"""`export --latest`: a Delta table for each topic with the last record of each key, kept up to date by each run.

  where the table stands (jobs.store.latest) -> the log from there to its last stable offset, by Spark, read once
  -> the last record of each key in it (a window) -> MERGE: newer rows replace, tombstones delete, also those that a
     compaction of the store has dropped since (jobs.export.origin); in the same commit the offset that comes next

So a run that is killed has committed both or nothing. A partition stands still, and is named, in front of what cannot
be read: damage, a gap, records that retention took before they were read, a partition that is not there. Damage hides
how transactions ended, so reading stops at the first one that is open in front of the segment with the damage. Rows
whose records retention took later stay: the table is what all records that ever came say of each key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import count, counted
from lastkey.jobs.export.origin import HINT_LOST, Doubts, Origin, deleted_keys
from lastkey.jobs.export.output import ExportFolder
from lastkey.jobs.export.read import (
    MALFORMED,
    Extent,
    Seen,
    batches_of,
    decoded,
    ends_of_partition,
    observed,
    open_notes,
    records_of,
    seen_by,
)
from lastkey.jobs.export.report import ExportedTopic, ExportReport
from lastkey.jobs.functions import last_per_key
from lastkey.jobs.store.latest import TOMBSTONE, Changed, Stand, alone, merge, replace_all, stand_of
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READINGS: Final = 3  # the first finds damage, the second stops in front of it, the third leaves the partition out
_MARKERS: Final = (0, 1)  # ABORT, COMMIT
_ROW: Final = "partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"


@dataclass
class _PartitionRead:
    """Plan for one partition: offsets to read, and what is in the way."""

    source: SourcePartition
    start: int | None  # None: the table knows nothing of it
    first: int = 0  # log start
    end: int | None = None  # None: not known, or nothing may be read
    cut: int | None = None  # nothing from this offset on may be read: damage
    generation: int | None = None  # of a store
    doubts: Doubts = Doubts()
    problems: list[Problem] = field(default_factory=list)

    @property
    def extent(self) -> Extent | None:
        """Offsets to read; None: nothing."""
        begin = self.first if self.start is None else self.start
        return None if self.end is None or self.end <= begin else Extent(self.start, self.end, self.generation)

    def stop(self, problems: Sequence[Problem]) -> None:
        """Read nothing from the segments on that these problems are in."""
        self.problems += [problem for problem in problems if problem not in self.problems]
        found = [_in_front_of(self.source, problem) for problem in problems]
        if None in found:
            self.end = None
        cuts = [offset for offset in (*found, self.cut) if offset is not None]
        self.cut = min(cuts, default=None)


def _in_front_of(partition: SourcePartition, problem: Problem) -> int | None:
    """Return an offset in front of a problem: the base of its segment, of a gap the one before; None: not known."""
    file = names.parse_segment_file(problem.path.rpartition("/")[2])
    if file is None or (file.kind != names.LOG and problem.kind != "gap"):
        return None
    if problem.kind != "gap":
        return file.base
    return max((s.base_offset for s in partition.segments if s.base_offset < file.base), default=None)


def update(
    spark: SparkSession,
    options: ExportOptions,
    decoders: Mapping[str, str | None],
    topic: str,
    partitions: Sequence[SourcePartition],
    origin: Origin,
    output: ExportFolder,
    report: ExportReport,
) -> ExportedTopic:
    """Bring the table of a topic up to date."""
    made = ExportedTopic(topic, len(partitions))
    stand = stand_of(output.root, topic)
    if isinstance(stand, Problem):
        report.other_problems.append(stand)
        made.problems = 1
        return made
    before = stand
    logs = {n: log for p in partitions if (log := origin.logs.get((topic, n := p.partition or 0))) is not None}
    other = {n for n, known in stand.logs.items() if logs.get(n, known) != known}
    anew = not stand.offsets or bool(other)
    if other:
        why = "the topic was deleted and made again" if options.store is None else "the store began it again (--reset)"
        report.notes.append(f"{topic}: {why}, so its table starts anew")
        stand = Stand()
    _note_cleaned(topic, stand, origin, report)
    parts = {p.partition or 0: _planned(p, stand, origin, options, report) for p in partitions}
    lost = [_vanished(origin, topic, n) for n in sorted(stand.offsets.keys() - parts.keys())]
    rows, seen = _read(spark, options, topic, parts)
    gone = None if rows is None else _deleted(spark, options, decoders, topic, parts, output)
    told = [*lost, *(problem for part in parts.values() for problem in part.problems)]
    report.other_problems += dict.fromkeys(told)
    made.problems = len(set(told))
    if rows is None or seen is None:
        if (other or not stand.run) and not told:  # else the rows of another topic would stay
            stand = Stand(logs=logs, run=uuid.uuid4().hex)
            with alone(output.root, topic, before):
                _commit(_no_rows(spark), decoders, topic, output, stand, anew=True)
        return made
    try:
        made.records, made.tombstones = seen.records, seen.tombstones
        if seen.null_keys:
            report.notes.append(f"{topic}: {counted(seen.null_keys, 'record')} without a key left out")
        ends = {n: part.end for n, part in parts.items() if part.extent is not None and part.end is not None}
        if not ends:
            return made
        known = {n: log for n, log in logs.items() if n in stand.offsets | ends}
        numbers = {n: number for n in ends if (number := parts[n].generation) is not None}
        moved = Stand(stand.offsets | ends, stand.logs | known, stand.generations | numbers, uuid.uuid4().hex)
        read = F.col("partition").isin(list(ends))
        new, gone_now = rows.where(read), None if gone is None else gone.where(read & F.col(TOMBSTONE))
        with alone(output.root, topic, before):
            changed = _commit(new, decoders, topic, output, moved, anew=anew, gone=gone_now)
        made.inserted, made.updated, made.deleted = changed.inserted, changed.updated, changed.deleted
    finally:
        rows.unpersist()
        if gone is not None:
            gone.unpersist()
    return made


def _deleted(
    spark: SparkSession,
    options: ExportOptions,
    decoders: Mapping[str, str | None],
    topic: str,
    parts: Mapping[int, _PartitionRead],
    output: ExportFolder,
) -> DataFrame | None:
    """Return rows to delete, whose tombstones a compaction dropped before this run; None: it dropped none.

    A partition of which that cannot be said stands still.
    """
    doubted = {n: part for n, part in parts.items() if part.extent is not None and part.doubts.tombstones}
    if not doubted:
        return None
    extents = {n: extent for n, part in doubted.items() if (extent := part.extent) is not None}
    firsts = {n: None if part.doubts.expired else part.first for n, part in doubted.items()}
    gone, problems = deleted_keys(spark, options, decoders, topic, extents, firsts, output.uri_of(topic))
    for number, problem in problems:
        if problem.kind != "gap" or not _accepts(options, topic):
            parts[number].problems.append(problem)
            parts[number].end = None
    return gone


def _accepts(options: ExportOptions, topic: str) -> bool:
    return (options.gaps or options.config.topic_settings(topic).gaps) == "accept"


def _no_rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], f"{_ROW}, {TOMBSTONE} BOOLEAN")


def missing_topics(output: ExportFolder, options: ExportOptions, there: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each topic that has a table and is no longer in the archive."""
    for topic in sorted(output.folders() - set(there)):
        if options.topics.takes(topic):
            hint = "bring it back; if it is gone for good, delete this folder"
            place = f"{output.root.uri}/{topic}"
            yield Problem("gap", place, NO_POSITION, "the topic it was read from", "no partition", hint=hint)


def _planned(
    source: SourcePartition, stand: Stand, origin: Origin, options: ExportOptions, report: ExportReport
) -> _PartitionRead:
    """Return what is new in a partition, up to its last stable offset."""
    topic, number = str(source.topic), source.partition or 0
    part = _PartitionRead(source, stand.offsets.get(number), generation=origin.generations.get((topic, number)))
    ends, problem = ends_of_partition(source)
    if problem is not None:
        part.stop([problem])
    if ends is None or (problem is not None and part.cut is None):
        return part
    part.first, part.end = ends.first, ends.end
    report.notes += open_notes(source, ends)
    if part.start is None:
        return part
    part.doubts = origin.doubts((topic, number), stand.generations.get(number), part.start)
    if part.start < ends.first:
        if _accepts(options, topic):
            part.start = ends.first
        else:
            part.end = None
            found = f"a log that begins at {ends.first}"
            part.problems.append(_not_there(source, f"offset {part.start}, where the table stands", found))
    elif part.start > ends.log_end and ends.certain:
        part.end = None
        found = f"a log that ends at {ends.log_end}: an older copy, or another log"
        part.problems.append(_not_there(source, f"offset {part.start}, where the table stands", found))
    elif part.doubts.expired and part.start < ends.end and not _accepts(options, topic):
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


def _note_cleaned(topic: str, stand: Stand, origin: Origin, report: ExportReport) -> None:
    """Say where a cleaner was sooner than this run: it may have taken tombstones that the table has not seen."""
    for number, offset in sorted(stand.offsets.items()):
        cleaned = origin.cleaned.get((topic, number))
        if cleaned is not None and cleaned > offset:
            report.notes.append(
                f"{names.partition_folder(topic, number)}: a broker cleaned it up to {count(cleaned)}, and the table "
                f"stood at {count(offset)}: if that was longer ago than delete.retention.ms, keys that were deleted "
                "meanwhile may stay in the table"
            )


def _read(
    spark: SparkSession, options: ExportOptions, topic: str, parts: Mapping[int, _PartitionRead]
) -> tuple[DataFrame | None, Seen | None]:
    """Read what is new, and return the last record of each key, persisted; None: nothing is new, or may be read."""
    for reading in range(_READINGS):
        _end_before_open(spark, options, topic, parts)
        extents = {n: extent for n, part in parts.items() if (extent := part.extent) is not None}
        if not extents:
            return None, None
        records = records_of(spark, options, topic, extents)
        good, watch = observed(records)
        rows = last_per_key(good).select("partition", "offset", "timestamp", "key", "value", TOMBSTONE).persist()
        rows.count()
        seen = seen_by(watch)
        if not seen.problems:
            return rows, seen
        rows.unpersist()
        for number in extents:
            met = [problem for n, problem in seen.problems if n in (number, None)]
            if met:
                parts[number].stop(met)
                if reading == _READINGS - 2:
                    parts[number].end = None
    return None, None


def _end_before_open(
    spark: SparkSession, options: ExportOptions, topic: str, parts: Mapping[int, _PartitionRead]
) -> None:
    """Let partitions that stop in front of damage end where the first transaction that is open there begins."""
    for part in parts.values():
        if part.cut is not None and part.end is not None:
            part.end = min(part.end, part.cut)
    cut = {n: part.extent for n, part in parts.items() if part.cut is not None}
    extents = {n: replace(extent, end=None) for n, extent in cut.items() if extent is not None}
    if not extents:
        return
    batches = batches_of(spark, options, topic, extents)
    cuts = F.create_map(*(F.lit(value) for n in extents for value in (n, parts[n].cut)))
    in_front = F.col("problem").isNull() & (F.col("base_offset") < cuts[F.col("partition")])
    marker = F.when(F.col("control_type").isin(*_MARKERS), F.col("base_offset"))
    ended = F.max(marker).over(Window.partitionBy("partition", "producer_id"))
    is_open = F.col("transactional") & ~F.col("control") & (F.col("base_offset") > F.coalesce("ended", F.lit(-1)))
    found = batches.where(in_front).withColumn("ended", ended).where(is_open)
    for row in found.groupBy("partition").agg(F.min("base_offset").alias("first")).toArrow().to_pylist():
        part = parts[row["partition"]]
        part.end = None if part.end is None else min(part.end, row["first"])


def _commit(
    rows: DataFrame,
    decoders: Mapping[str, str | None],
    topic: str,
    output: ExportFolder,
    stand: Stand,
    *,
    anew: bool,
    gone: DataFrame | None = None,
) -> Changed:
    """Commit the last records of keys, and where the table stands then. gone: rows of the table to delete."""
    shown = decoded(rows, decoders)
    uri = output.uri_of(topic)
    if anew:
        return replace_all(output.root, topic, shown, uri, stand)
    shown = shown if gone is None else shown.unionByName(gone)
    key = ["partition", *(name for name in ("key", f"key{MALFORMED}") if name in shown.columns)]
    return merge(output.root, topic, shown, uri, key, stand)
