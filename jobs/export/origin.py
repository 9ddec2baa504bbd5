"""Source of the tables of `export --latest`: an archive, or generations of a store.

A generation lacks the records that compactions removed. Superseded records are irrelevant, because their successors
exist. A tombstone that was removed before a run read it deletes no row. The manifests of generations show whether runs
since the table's last one removed any; a run without a manifest may have removed some. If so, a key of the table that
the generation does not hold at all was deleted: only a tombstone removes the last record of a key. Retention can also
have removed a key whose row is below the log start, or in a partition where `retention.exact` removed single records.
Then the reason is unknown, and the partition is blocked and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.command.reporting import count, counted
from lastkey.jobs.data_source.plan_tasks import partitions_of_command
from lastkey.jobs.store.generations import list_each, open_store
from lastkey.jobs.store.latest import read_table
from lastkey.jobs.store.rows import Commit, RunRow
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.export.write_files import MALFORMED, TOMBSTONE
from lastkey.udfs.problem import Problem
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
