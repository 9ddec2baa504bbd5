"""The Delta tables under STORE/state, and `commit_wave`, the one write that matters.

A wave of partitions becomes visible in this order; what is written before the last step is seen by nobody:
1. their rows are appended to `log_segments` and to `cleaner_runs` (both at once; a retry adds nothing: txnAppId);
2. the sizes of their files are listed once more;
3. one MERGE moves `compaction_checkpoints`. It raises when a row is not at the generation and run id that the run
   planned on, so a wave is all or nothing. On a new store that step is the commit that creates the table instead: it
   fails where another process created it first, and costs a third of a MERGE.

Delta's commit is atomic between processes on HDFS only. On a local disk every write holds an exclusive flock on
`state/.lock`; on other stores a second writer cannot be seen, and none is allowed unless `single.writer` says so.

Spark's share of it: the tables are small, so this module works in a session of its own (same Spark, own settings) with
one partition, no code generation and no adaptive planning. Processor seconds of a commit of 64 partitions, measured in
a warm JVM: both appends 2 to 3, MERGE 1.5 to 2.5, the creating commit 1, `cleaner_state` 1.5 to 2, a read 1.5 to 2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from delta.exceptions.base import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyarrow import fs as pafs
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs.errors import (
    ConflictError,
    NoGenerationError,
    NoLockError,
)
from jobs.store.paths import CHECKPOINTS, RUNS, SEGMENTS, STATES, TABLES
from jobs.store.rows import (
    Checkpoint,
    Commit,
    PartitionState,
    Row,
    RunRow,
    Segment,
    arrow_schema,
    from_arrow,
    histories,
    to_arrow,
)
from udfs.storage import Root, normal_uri, open_root

__all__ = ["Checkpoint", "Commit", "PartitionState", "RunRow", "Segment", "State", "open_state"]

Key = tuple[str, int]

# Delta's conflicts between writers. In delta-spark 4.4 the first is not the root of the others, whatever its name says
_CONCURRENT = (
    DeltaConcurrentModificationException,
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
_RETRIES = 5
_MARK = "lastkey: not as planned"
_MAX_IN = 200  # run ids in one IN (...); more are joined
_LOCK_SECONDS = 300.0
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",  # VACUUM's listing: 10000 tasks by default
    "spark.databricks.delta.merge.materializeSource": "none",  # the source is a local relation: always the same
    "spark.databricks.delta.properties.defaults.checkpointInterval": "20",
    "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration": "interval 30 days",
    "spark.databricks.delta.properties.defaults.deletedFileRetentionDuration": "interval 30 days",
    "spark.databricks.delta.properties.defaults.logRetentionDuration": "interval 30 days",
}


def open_state(
    spark: SparkSession, store: str, *, single_writer: bool = False, lock_seconds: float = _LOCK_SECONDS
) -> State:
    """The state of a store. Reads and writes nothing yet."""
    own = spark.newSession()
    for key, value in _SETTINGS.items():
        own.conf.set(key, value)
    return State(own, open_root(normal_uri(store)), single_writer, lock_seconds)


@dataclass
class State:
    """The four tables of one store."""

    spark: SparkSession
    root: Root
    single_writer: bool = False
    lock_seconds: float = _LOCK_SECONDS
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _depth: int = 0

    # -- reading

    def load(self, name: str) -> DataFrame:
        """A table, lazily."""
        return self.spark.read.format("delta").load(self.uri(name))

    def has(self, name: str) -> bool:
        """Whether a table was ever written."""
        info = self.root.filesystem.get_file_info(self.root.full(f"state/{name}/_delta_log"))
        return bool(info.type == pafs.FileType.Directory)

    def uri(self, name: str) -> str:
        """Where a table lies, as Spark wants it."""
        uri = f"file://{self.root.base}" if self.root.is_local else self.root.uri
        return f"{uri.replace('s3://', 's3a://', 1)}/state/{name}"

    def exists(self) -> bool:
        """Whether anything was ever committed here."""
        return self.has(CHECKPOINTS)

    def checkpoints(self) -> dict[Key, Checkpoint]:
        """Every partition's current generation."""
        return {(row.topic, row.partition): row for row in self._rows(CHECKPOINTS, Checkpoint)}

    def states(self) -> dict[Key, PartitionState]:
        """How every partition stands."""
        return {(row.topic, row.partition): row for row in self._rows(STATES, PartitionState)}

    def manifest(self, topic: str, partition: int, generation: int | None = None) -> list[Segment]:
        """The segments of one generation (None: the current one), by base offset; empty where there is none."""
        current = self.checkpoints().get((topic, partition))
        if current is None:
            return []
        run_id = current.run_id
        if generation is not None and generation != current.generation:
            runs = {run.generation_after: run for run in self.history(topic, partition)}
            if generation not in runs:
                raise NoGenerationError(
                    partition=f"{topic}-{partition}", found=generation, reason="never committed",
                    expected=_listed(runs),
                )  # fmt: skip
            run_id = runs[generation].run_id
        return self.manifests({(topic, partition): (generation or current.generation, run_id)})[topic, partition]

    def manifests(self, wanted: Mapping[Key, tuple[int, str]]) -> dict[Key, list[Segment]]:
        """The segments of many partitions' (generation, run id), each list by base offset: one query."""
        found: dict[Key, list[Segment]] = {key: [] for key in wanted}
        for row in self._of_runs(SEGMENTS, Segment, {run_id for _, run_id in wanted.values()}):
            key = row.topic, row.partition
            if wanted.get(key) == (row.generation, row.run_id):
                found[key].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: row.base_offset)
        return found

    def segments_of_runs(self, run_ids: Iterable[str]) -> list[Segment]:
        """Every row that these runs appended, committed or not, in no order."""
        return self._of_runs(SEGMENTS, Segment, set(run_ids))

    def current(self) -> tuple[dict[Key, Checkpoint], dict[Key, list[Segment]]]:
        """Checkpoints and the manifests that they name: where a run begins."""
        checkpoints = self.checkpoints()
        wanted = {key: (row.generation, row.run_id) for key, row in checkpoints.items()}
        return checkpoints, self.manifests(wanted) if wanted else {}

    def history(self, topic: str, partition: int) -> list[RunRow]:
        """The committed runs of one partition, newest first."""
        return self.histories().get((topic, partition), [])

    def histories(self, topics: Iterable[str] | None = None) -> dict[Key, list[RunRow]]:
        """The committed runs of every partition, newest first: the chain of parents from its checkpoint."""
        names = None if topics is None else set(topics)
        checkpoints = {key: row for key, row in self.checkpoints().items() if names is None or key[0] in names}
        return histories(checkpoints, self._rows(RUNS, RunRow))

    # -- writing

    def commit_wave(self, commits: Sequence[Commit], wave: int, verify_files: Callable[[], None] | None = None) -> None:
        """Make a wave's generations current, all or none. `wave` counts up within a run.

        `verify_files` lists the sizes of the wave's files once more and raises when one is not as written.
        """
        if not commits:
            return
        with self.lock():
            self._append_all(commits, wave)
            if verify_files is not None:
                verify_files()
            self._switch(commits)  # the order matters for a crash: before this line nobody sees the new files

    def set_states(self, rows: Sequence[PartitionState]) -> None:
        """Say how partitions stand."""
        if not rows:
            return
        table = to_arrow(PartitionState, rows)
        with self.lock():
            if not self.has(STATES):
                self._create(STATES, table)
                return
            values: dict[str, str | Column] = {name: f"s.{name}" for name in table.column_names}
            merge = (
                DeltaTable.forPath(self.spark, self.uri(STATES))
                .alias("t")
                .merge(self._frame(table).alias("s"), "t.topic = s.topic AND t.partition = s.partition")
                .whenMatchedUpdate(set={k: v for k, v in values.items() if k not in ("topic", "partition")})
                .whenNotMatchedInsert(values=values)
            )
            _retrying(merge.execute)

    def vacuum_state(self, *, dry_run: bool = False) -> int:
        """Delta's own VACUUM of every table, which spares what is younger than `deletedFileRetentionDuration`.

        Returns how many files a dry run found; Delta does not say how many it deleted.
        """
        found = 0
        with contextlib.nullcontext() if dry_run else self.lock():
            for name in filter(self.has, TABLES):
                if dry_run:
                    found += self.spark.sql(f"VACUUM delta.`{self.uri(name)}` DRY RUN").count()
                else:
                    DeltaTable.forPath(self.spark, self.uri(name)).vacuum()
        return found

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The commit lock of the store: one process writes. Re-entrant within this State; threads take turns."""
        with self._lock:
            if self._depth or not self.root.is_local:
                self._refuse_unlockable()
                with self._counted():
                    yield
                return
            with _flock(self.root.full("state/.lock"), self.lock_seconds), self._counted():
                yield

    # -- inside

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _refuse_unlockable(self) -> None:
        kind = self.root.filesystem.type_name
        if not (self.root.is_local or self.single_writer or kind == "hdfs"):
            raise NoLockError(path=self.root.uri, found=kind)

    def _append_all(self, commits: Sequence[Commit], wave: int) -> None:
        """Both appends at once. Their identity is (run, table, wave), so the same wave again adds nothing."""
        run_id = commits[0].checkpoint.run_id
        tables = {
            SEGMENTS: to_arrow(Segment, (row for commit in commits for row in commit.segments)),
            RUNS: to_arrow(RunRow, (commit.run for commit in commits)),
        }
        with ThreadPoolExecutor(len(tables)) as pool:
            jobs = [pool.submit(self._append, name, table, run_id, wave) for name, table in tables.items()]
            for job in jobs:
                job.result()

    def _append(self, name: str, table: pa.Table, run_id: str, wave: int) -> None:
        write = self._frame(table).write.format("delta").mode("append").option("mergeSchema", "true")
        write = write.option("txnAppId", f"lastkey-{name}-{run_id}").option("txnVersion", str(wave))
        _retrying(lambda: write.save(self.uri(name)))

    def _switch(self, commits: Sequence[Commit]) -> None:
        if not self.has(CHECKPOINTS):
            unplanned = [c.key for c in commits if c.planned_generation]
            if unplanned:
                raise self._conflict(commits, {})
            try:
                self._create(CHECKPOINTS, to_arrow(Checkpoint, (c.checkpoint for c in commits)))
                return
            except (PySparkException, Py4JJavaError):
                if not self.has(CHECKPOINTS):
                    raise  # no race: this is what it looks like
        for attempt in range(_RETRIES):
            try:
                self._merge(commits)
                return
            except _CONCURRENT:
                if self._settled(commits):
                    return
                time.sleep(0.2 * 2**attempt)
            except (PySparkException, Py4JJavaError) as error:
                if _MARK not in str(error):
                    raise
                if self._settled(commits):
                    return
        raise self._conflict(commits, self.checkpoints())

    def _settled(self, commits: Sequence[Commit]) -> bool:
        """Whether the switch is already ours; raises when a partition of ours was moved by another run."""
        now = self.checkpoints()
        if all(_is_at(now.get(c.key), c.checkpoint.generation, c.checkpoint.run_id) for c in commits):
            return True
        if not all(_is_at(now.get(c.key), c.planned_generation, c.planned_run_id) for c in commits):
            raise self._conflict(commits, now)
        return False

    def _conflict(self, commits: Sequence[Commit], now: Mapping[Key, Checkpoint]) -> ConflictError:
        moved = [c for c in commits if not _is_at(now.get(c.key), c.planned_generation, c.planned_run_id)]
        first = (moved or list(commits))[0]
        found = now.get(first.key)
        return ConflictError(
            path=f"{self.root.uri}: {first.topic}-{first.partition}",
            expected=f"generation {first.planned_generation} (run {first.planned_run_id})",
            found=f"generation {found.generation} (run {found.run_id})" if found else "no generation",
            partitions=[list(c.key) for c in moved],
        )

    def _merge(self, commits: Sequence[Commit]) -> None:
        schema = arrow_schema(Checkpoint)
        table = to_arrow(Checkpoint, (c.checkpoint for c in commits))
        table = table.append_column("planned_generation", pa.array([c.planned_generation for c in commits], pa.int64()))
        table = table.append_column("planned_run_id", pa.array([c.planned_run_id for c in commits], pa.string()))
        raised = f"CAST(raise_error(concat('{_MARK} ', s.topic, '-', s.partition)) AS BIGINT)"
        as_planned = "t.generation = s.planned_generation AND t.run_id <=> s.planned_run_id"
        updated = {name: f"s.{name}" for name in schema.names if name not in ("topic", "partition")}
        inserted = {name: f"s.{name}" for name in schema.names}
        updated["generation"] = f"CASE WHEN {as_planned} THEN s.generation ELSE {raised} END"
        inserted["generation"] = f"CASE WHEN s.planned_generation = 0 THEN s.generation ELSE {raised} END"
        (
            DeltaTable.forPath(self.spark, self.uri(CHECKPOINTS))
            .alias("t")
            .merge(self._frame(table).alias("s"), "t.topic = s.topic AND t.partition = s.partition")
            .whenMatchedUpdate(set=dict(updated))
            .whenNotMatchedInsert(values=dict(inserted))
            .withSchemaEvolution()  # a store of an older version has fewer columns
            .execute()
        )

    def _create(self, name: str, table: pa.Table) -> None:
        self._frame(table).write.format("delta").mode("errorifexists").save(self.uri(name))

    def _frame(self, table: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(table).coalesce(1)

    def _rows(self, name: str, kind: type[Row]) -> list[Row]:
        return from_arrow(kind, self.load(name).toArrow()) if self.has(name) else []

    def _of_runs(self, name: str, kind: type[Row], run_ids: set[str]) -> list[Row]:
        if not run_ids or not self.has(name):
            return []
        frame = self.load(name)
        if len(run_ids) <= _MAX_IN:
            frame = frame.where(F.col("run_id").isin(sorted(run_ids)))
        else:
            wanted = self.spark.createDataFrame(pa.table({"run_id": sorted(run_ids)}))
            frame = frame.join(F.broadcast(wanted), "run_id", "left_semi")
        return from_arrow(kind, frame.toArrow())


def _is_at(row: Checkpoint | None, generation: int, run_id: str | None) -> bool:
    if row is None:
        return generation == 0
    return (row.generation, row.run_id) == (generation, run_id)


def _retrying(write: Callable[[], object]) -> None:
    """Appends and state rows conflict with nothing of ours: another writer's commit only means once more."""
    for attempt in range(_RETRIES):
        try:
            write()
            return
        except _CONCURRENT:
            if attempt == _RETRIES - 1:
                raise
            time.sleep(0.2 * 2**attempt)


def _listed(generations: Iterable[int]) -> str:
    return "one of " + ", ".join(map(str, sorted(generations))) if generations else "none: nothing was committed"


@contextlib.contextmanager
def _flock(path: str, seconds: float) -> Iterator[None]:
    """An exclusive lock on a local file, for as long as the process lives at most."""
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ConflictError(
                        path=path, expected=f"the commit lock within {seconds:.0f} s", found="another process holds it"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)  # gives the lock back
