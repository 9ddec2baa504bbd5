"""The rows of the state tables: one frozen dataclass a table, from which its Arrow schema follows.

Field order is column order. A field's type gives the column's: int is a long unless named in INT32; `X | None` is null.
A column that is added later goes at the end and gets a default, so that older rows read as that.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from logformat.locations import without_secrets
from udfs.compact.retention import Expired

FORMAT = 2  # of a store. 1: manifests lay in `log_segments` alone, commits were Spark's
INT32 = frozenset({"partition", "last_batch_leader_epoch", "splits"})
STATES = ("clean", "dirty", "uncleanable", "diverged", "gap")


@dataclass(frozen=True)
class Checkpoint:
    """`compaction_checkpoints`: the switch. One row a partition; it names the generation that counts."""

    topic: str
    partition: int
    generation: int
    run_id: str
    first_dirty_offset: int
    log_start_offset: int
    next_offset: int  # end of what the generation covers; the archive is read from here on
    topic_id: str | None
    cluster_id: str | None
    archive_uri: str
    last_batch_base_offset: int  # of the last batch before next_offset; -1 where the log is empty
    last_batch_leader_epoch: int
    last_batch_crc: int
    log_end_timestamp_ms: int
    now_ms: int
    gaps: str | None = None  # JSON [[first, last, before, size], ...] (a Gap each): offsets that it passes over
    expired_from: int = 0  # retention gave up all from here ...
    expired_until: int = 0  # ... to here: what the archive still holds of it is not missing


@dataclass(frozen=True)
class Segment:
    """`log_segments`: the manifest. The rows of a generation are those with its (generation, run_id)."""

    topic: str
    partition: int
    generation: int
    run_id: str
    base_offset: int
    root: str  # store or archive
    path: str  # of the .log, relative to its root
    size_bytes: int  # bytes of the .log that belong to it: an archived active segment may grow later
    next_offset: int  # end of the range that this segment covers
    last_offset: int  # -1 when empty
    batches: int
    records: int
    tombstones: int
    max_timestamp_ms: int
    mtime_ms: int
    codecs: str  # comma list
    checksum: int  # CRC-32C of the first size_bytes of the .log
    source_bytes: int  # what the group held before this cleaning
    source_records: int
    dead_records: int
    dead_bytes: int
    cleaned: bool
    txn_index_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    min_timestamp_ms: int = -1  # of its records; 2**63 - 1: none has a timestamp; -1: not known
    side_files: str | None = None  # JSON {name: CRC-32C}: indexes, snapshot; last row: others of the generation


@dataclass(frozen=True)
class PartitionState:
    """`cleaner_state`: how a partition stands after the last run that looked at it, and why."""

    topic: str
    partition: int
    state: str  # one of STATES
    reason: str | None
    path: str | None
    position: int | None
    expected: str | None
    found: str | None
    dirty_ratio: float
    clean_bytes: int
    dirty_bytes: int
    first_dirty_offset: int
    generation: int
    run_id: str | None
    now_ms: int


@dataclass(frozen=True)
class RunRow:
    """`cleaner_runs`: append only, before the switch. Rows off the chain of parents belong to runs that died."""

    run_id: str
    topic: str
    partition: int
    generation_before: int
    generation_after: int
    parent_run_id: str | None
    now_ms: int
    started_ms: int
    first_dirty_offset: int
    end_offset: int  # the new first dirty offset
    log_start_offset: int
    next_offset: int
    topic_id: str | None
    cluster_id: str | None
    archive_uri: str
    last_batch_base_offset: int
    last_batch_leader_epoch: int
    last_batch_crc: int
    settings: str  # JSON
    records_read: int
    records_kept: int
    dropped_superseded: int
    dropped_tombstones: int
    dropped_aborted: int
    dropped_null_key: int
    dropped_markers: int
    batches_read: int
    batches_copied: int
    batches_rebuilt: int
    batches_emptied: int
    batches_dropped: int
    bytes_read: int
    bytes_before: int
    bytes_after: int
    bytes_written: int
    seconds: str  # JSON: phase -> seconds
    splits: int
    versions: str  # JSON: what ran
    anew: bool = False  # --reset: made of the archive alone; the generation before may be the only copy of its records
    expired: str | None = None  # JSON [[reason, first, until, segments, records, bytes], ...]: what went by retention
    compacted: bool = True  # else retention alone was done
    dropped_expired: int = 0  # records older than retention.ms inside segments that stay, by retention.exact

    @property
    def began_anew(self) -> bool:
        """Whether nothing of the generation before is in it. Runs of before the column `anew` named no parent then."""
        return self.anew or (self.parent_run_id is None and self.generation_before > 0)

    @property
    def went(self) -> list[Expired]:
        """What went by retention."""
        return [Expired(*one) for one in json.loads(self.expired or "[]")]

    @property
    def records_left(self) -> int:
        """Of those that were cleaned: what went by retention after it, the oldest of them, is not left."""
        return max(self.records_kept - sum(one.records for one in self.went), 0)


@dataclass(frozen=True)
class JobRun:
    """One run of the job, with its rows of `cleaner_runs`, by topic and partition."""

    run_id: str
    now_ms: int
    rows: tuple[RunRow, ...]

    def total(self, column: str) -> int:
        """Sum of a column of all partitions."""
        return sum(getattr(row, column) for row in self.rows)


def by_run(rows: Iterable[RunRow]) -> list[JobRun]:
    """Rows of runs that committed, put together by run; oldest first."""
    of_run: dict[str, list[RunRow]] = {}
    for row in rows:
        of_run.setdefault(row.run_id, []).append(row)
    runs = [
        JobRun(run_id, of[0].now_ms, tuple(sorted(of, key=lambda r: (r.topic, r.partition))))
        for run_id, of in of_run.items()
    ]
    return sorted(runs, key=lambda run: (run.now_ms, run.run_id))


@dataclass(frozen=True)
class Commit:
    """What one partition brings to a wave. `planned_*`: what its checkpoint said to the plan; 0 and None: none."""

    topic: str
    partition: int
    planned_generation: int
    planned_run_id: str | None
    checkpoint: Checkpoint
    segments: list[Segment]
    run: RunRow
    standing: PartitionState | None = None  # how the partition stands with it

    @property
    def key(self) -> tuple[str, int]:
        """(topic, partition)."""
        return self.topic, self.partition


Row = TypeVar("Row", Checkpoint, Segment, PartitionState, RunRow)
_ARROW = {int: pa.int64(), str: pa.string(), float: pa.float64(), bool: pa.bool_()}
_SCHEMAS: dict[type[Any], pa.Schema] = {}  # by kind of row: type hints are read slowly


def histories(
    checkpoints: Mapping[tuple[str, int], Checkpoint], runs: Iterable[RunRow]
) -> dict[tuple[str, int], list[RunRow]]:
    """The committed runs of every partition, newest first: the chain of parents from its checkpoint, past resets, and
    past rows that `jobs.store.history` has let go: then with the next older one, which is on the chain too.
    """
    rows: dict[tuple[str, int, int], dict[str, RunRow]] = {}
    for row in runs:
        rows.setdefault((row.topic, row.partition, row.generation_after), {})[row.run_id] = row
    numbers: dict[tuple[str, int], list[int]] = {}
    for topic, partition, number in rows:
        numbers.setdefault((topic, partition), []).append(number)
    chains: dict[tuple[str, int], list[RunRow]] = {}
    for key, checkpoint in checkpoints.items():
        chain: list[RunRow] = []
        step = rows.get((*key, checkpoint.generation), {}).get(checkpoint.run_id)
        while step is not None:
            chain.append(step)
            before = _before(step, rows.get((*key, step.generation_before), {}))
            if before is None and step.parent_run_id is not None:
                older = [n for n in numbers.get(key, ()) if n < step.generation_before]
                left = rows[*key, max(older)].values() if older else ()
                before = min(left, key=lambda row: row.started_ms, default=None)
            step = before
        chains[key] = chain
    return chains


def _before(row: RunRow, runs: Mapping[str, RunRow]) -> RunRow | None:
    """The parent of a run, among the runs by id that made the generation before, committed or not."""
    if row.parent_run_id is not None:
        return runs.get(row.parent_run_id)
    return next(iter(runs.values())) if row.began_anew and len(runs) == 1 else None  # two: one died, which is not known


def arrow_schema(kind: type[Any]) -> pa.Schema:
    """The columns of a row's dataclass."""
    if kind not in _SCHEMAS:
        fields = []
        for name, hint in get_type_hints(kind).items():
            base = next(arg for arg in (*getattr(hint, "__args__", ()), hint) if arg in _ARROW)
            fields.append(pa.field(name, pa.int32() if name in INT32 else _ARROW[base], nullable=True))
        _SCHEMAS[kind] = pa.schema(fields)
    return _SCHEMAS[kind]


def to_arrow(kind: type[Row], rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table."""
    schema = arrow_schema(kind)
    held = list(rows)
    return pa.table([pa.array([getattr(row, f.name) for row in held], f.type) for f in schema], schema=schema)


def checkpoint_schema() -> pa.Schema:
    """The columns of `compaction_checkpoints`: those of Checkpoint, the manifest, and how the partition stands.

    Where a partition has no generation yet, `generation` is 0 and the rest of it null. `manifest_of` is the run whose
    manifest `segments` is, and Delta refuses a row in which that is not `run_id`: an older version, which knows of no
    manifest here, would move the one and leave the other.
    """
    manifest = [f for f in arrow_schema(Segment) if f.name not in ("topic", "partition", "generation", "run_id")]
    standing = [f for f in arrow_schema(PartitionState) if f.name not in ("topic", "partition")]
    rule = {"expression": {"expression": "manifest_of IS NOT NULL AND manifest_of = coalesce(run_id, '')"}}
    told = {"delta.invariants": json.dumps(rule), "lastkey.format": str(FORMAT)}
    return pa.schema(
        [
            *arrow_schema(Checkpoint),
            pa.field("manifest_of", pa.string(), metadata=told),
            pa.field("segments", pa.list_(pa.struct(manifest))),
            pa.field("standing", pa.struct(standing)),
        ]
    )


def to_checkpoints(
    decided: Sequence[tuple[Checkpoint, Sequence[Segment], PartitionState | None]],
) -> pa.Table:
    """Rows of `compaction_checkpoints`: each partition's checkpoint, the manifest of its generation, how it stands."""
    schema = checkpoint_schema()
    manifest = [field.name for field in schema.field("segments").type.value_type]
    standing = [field.name for field in schema.field("standing").type]
    columns = to_arrow(Checkpoint, (checkpoint for checkpoint, _, _ in decided)).columns
    segments = [
        [{name: getattr(row, name) for name in manifest} for row in sorted(rows, key=lambda row: row.base_offset)]
        for _, rows, _ in decided
    ]
    standings = [state and {name: getattr(state, name) for name in standing} for _, _, state in decided]
    columns += [
        pa.array([checkpoint.run_id for checkpoint, _, _ in decided], pa.string()),
        pa.array(segments, schema.field("segments").type),
        pa.array(standings, schema.field("standing").type),
    ]
    return pa.table(columns, schema=schema)


def from_checkpoints(found: pa.Table) -> dict[tuple[str, int], Checkpoint]:
    """Rows of `compaction_checkpoints`: the current generation of each partition that has one."""
    has = found.filter(pc.greater(found["generation"], 0))
    return {(row.topic, row.partition): row for row in from_arrow(Checkpoint, has)}


def manifests_in(
    found: pa.Table, wanted: Mapping[tuple[str, int], tuple[int, str]]
) -> dict[tuple[str, int], list[Segment]]:
    """The segments of those wanted generations (generation, run id) that are current; found: of the same table."""
    names = ["topic", "partition", "generation", "run_id"]
    manifests: dict[tuple[str, int], list[Segment]] = {}
    for row in found.select([*names, "segments"]).to_pylist():
        key = row["topic"], row["partition"]
        if wanted.get(key) == (row["generation"], row["run_id"]):
            shared = {name: row[name] for name in names}
            manifests[key] = [row_of(Segment, shared | segment) for segment in row["segments"]]
    return manifests


def undecided(topic: str, partition: int) -> dict[str, Any]:
    """The row of `compaction_checkpoints` of a partition that has no generation yet."""
    found = {"topic": topic, "partition": partition, "generation": 0, "manifest_of": ""}
    return dict.fromkeys(checkpoint_schema().names) | found


def from_arrow(kind: type[Row], table: pa.Table) -> list[Row]:
    """An Arrow table of these columns, and perhaps others, as rows. Where a column is missing, or null as in rows that
    are older than it, its default counts. URIs that older versions took with credentials come without them: they are
    shown, and compared with those that are given now.
    """
    names = [f.name for f in dataclasses.fields(kind) if f.name in table.column_names]
    rows = table.select(names).to_pylist()
    for row in rows:
        if "archive_uri" in row:
            row["archive_uri"] = without_secrets(row["archive_uri"])
    return [row_of(kind, row) for row in rows]


def row_of(kind: type[Row], told: Mapping[str, Any]) -> Row:
    """A row of what a table or a file tells of it: where that is older than a column, or null, its default counts; what
    is younger than this version is passed over.
    """
    fields = dataclasses.fields(kind)
    late = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING and told.get(f.name) is None}
    return kind(**{f.name: told[f.name] for f in fields if f.name in told} | late)
