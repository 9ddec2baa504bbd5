"""Rows of the state tables: one frozen dataclass a table, from which its Arrow schema follows.

Field order is column order. A field's type gives the column's: int is a long unless named in INT32; `X | None` is null.
A column that is added later is the last one and has a default, which readers use for older rows.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from lastkey.jobs.errors import CONFLICT, DONE, PARTIAL, PROBLEMS, DataError, Kind
from lastkey.jobs.store.paths import PARTITIONS, RUN_FOLDER, generation_folder
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_TOPIC, partition_folder
from lastkey.udfs.segments import Expired, ReadFile

FORMAT = 3  # version of a store's format; 1 and 2 were never released
INT32 = frozenset({"partition", "last_batch_leader_epoch", "splits"})
STATES = ("clean", "dirty", "uncleanable", "diverged", "gap")
_INTERRUPTED = (130, 143)  # exit codes
_OUTCOMES = {DONE: "done", PROBLEMS: "problems", CONFLICT: "conflict", PARTIAL: "partial"} | dict.fromkeys(
    _INTERRUPTED, "interrupted"
)
_DEAD = ("dead_records", "dead_bytes")  # records and bytes that a segment's sources lost
# Columns that the first stores of this format lack
_LATER = (
    "min_timestamp_ms", "side_files", "applied_to", "superseded", "expected_dead", "facts_bytes", "key_files", "magics"
)  # fmt: skip
_FIELDS = {"applied_to": "deduplicated_through", "anew": "reset"}  # column -> field with another name
_COLUMNS = {field: column for column, field in _FIELDS.items()}
_TYPES = get_type_hints(Segment) | dict.fromkeys(_DEAD, int)
# The facts of a written segment that its row holds: name -> type
SEGMENT_COLUMNS: dict[str, Any] = {
    name: _TYPES[_FIELDS.get(name, name)]
    for name in (
        "base_offset", "root", "path", "size_bytes", "next_offset", "last_offset", "batches", "records", "tombstones",
        "max_timestamp_ms", "mtime_ms", "codecs", "checksum", "source_bytes", "source_records", *_DEAD, "cleaned",
        "txn_index_bytes", "offset_index_bytes", "time_index_bytes", *_LATER,
    )
}  # fmt: skip


@dataclass(frozen=True)
class OfGeneration:
    """Generation of a partition, by its number and the run that made it."""

    topic: str
    partition: int
    generation: int
    run_id: str

    @property
    def key(self) -> Key:
        """(topic, partition)."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """Name of the partition's folder in a log directory."""
        return partition_folder(self.topic, self.partition)


@dataclass(frozen=True)
class Checkpoint(OfGeneration):
    """Row of `compaction_checkpoints`, the switch: one for each partition; it names the current generation."""

    first_dirty_offset: int
    log_start_offset: int
    next_offset: int  # end of the offsets that the generation covers; the archive is read from here on
    topic_id: str | None
    cluster_id: str | None
    archive_uri: str
    last_batch_base_offset: int  # base offset of the last batch before next_offset; -1 where the log is empty
    last_batch_leader_epoch: int
    last_batch_crc: int
    log_end_timestamp_ms: int
    now_ms: int
    gaps: str | None = None  # JSON [[first, last, before, size], ...] (a Gap each): offsets that it lacks
    expired_from: int = 0  # retention deleted all from here ...
    expired_until: int = 0  # ... to here: offsets that the archive still holds there are not missing
    back_to: int = 0  # generation whose files a rollback uses; 0: it has its own
    back_to_run_id: str | None = None
    chain: str = ""  # the run that began its chain from the archive alone: the first one, or a --reset
    read: str = "[]"  # JSON [[first, until], ...]: the offsets that this chain has read (jobs.store.coverage)
    archived_files: str | None = (
        None  # JSON [[base offset, bytes, CRC-32C], ...]: the archive's that its chain has read
    )
    erased: str | None = None  # JSON {erasure: offset}: below it the partition holds none of its keys

    @property
    def folder(self) -> str:
        """Folder below the store that holds the files beside its logs."""
        return _folder(self, self.generation)

    @property
    def own_folder(self) -> str:
        """Folder below the store that holds its manifest."""
        return generation_folder(self.topic, self.partition, self.generation, self.run_id)

    @property
    def places(self) -> str:
        """The partition, and the names of its folders, for `check_places`."""
        return _run_places(self, self.generation)

    @property
    def files_read(self) -> list[ReadFile]:
        """Files of the archive that its chain has read whole, as they were then; None are known of older versions."""
        return [ReadFile(*one) for one in json.loads(self.archived_files or "[]")]


@dataclass(frozen=True)
class PartitionState:
    """Row of `cleaner_state`: the state of a partition after the last run that looked at it, and the reason."""

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
class RunOrigin:
    """Run on a partition: its generation, the parent generation, and the log that it read."""

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


@dataclass(frozen=True)
class RunWork(RunOrigin):
    """Work of a run on a partition."""

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
    versions: str  # JSON: versions of the software that ran


@dataclass(frozen=True)
class RunRow(RunWork):
    """Row of `cleaner_runs` about a partition, appended before the switch. Rows off the chain of parents belong to runs
    that died.
    """

    reset: bool = False  # --reset: made of the archive alone; the generation before may be the only copy of its records
    expired: str | None = None  # JSON an Expired each: what retention deleted
    compacted: bool = True  # False: retention alone ran
    dropped_expired: int = 0  # records older than retention.ms inside segments that stay, by retention.exact
    back_to: int = 0  # generation whose files a rollback uses; 0: it is a compaction
    engine: str = ""  # execution engine: "Spark 4.2.0, local[2], ...", "2 threads, no Spark"
    back_to_run_id: str | None = None
    dropped_erased: int = 0  # records of erased keys
    erased: str | None = None  # as in Checkpoint
    erased_offsets: str | None = None  # JSON [[first, last], ...] of the records that the run erased: the first 1,000

    @property
    def folder(self) -> str:
        """Folder below the store that holds the files beside the logs of the generation that it made."""
        return _folder(self, self.generation_after)

    @property
    def places(self) -> str:
        """The partition, and the names of its folders, for `check_places`."""
        return _run_places(self, self.generation_after)

    @property
    def sealed(self) -> bool:
        """True if the run read the archive as one that no writer extends any more (--sealed)."""
        return bool(json.loads(self.settings).get("sealed"))

    @property
    def went(self) -> list[Expired]:
        """Segments that retention deleted, by rule."""
        return [Expired(*one) for one in json.loads(self.expired or "[]")]

    @property
    def records_left(self) -> int:
        """Number of kept records, without those that retention deleted after the cleaning."""
        return max(self.records_kept - sum(one.records for one in self.went), 0)


@dataclass(frozen=True)
class JobRow:
    """Row of `cleaner_runs` about a run of a job as a whole, with any outcome. It has no topic and no partition."""

    run_id: str
    job: str  # compact, erase, erase --check, rollback, vacuum
    started_ms: int  # by the host's clock
    ended_ms: int
    exit_code: int | None  # None: killed
    user: str = ""
    host: str = ""
    pid: int = 0
    application: str = ""  # Spark's; "": no Spark
    version: str = ""  # version of Lastkey
    error: str = ""  # one line; "": it ended with a report
    figures: str = "{}"  # JSON: amounts by name, and counts by state or kind

    @property
    def amounts(self) -> dict[str, Any]:
        """Figures of the run."""
        found: dict[str, Any] = json.loads(self.figures)
        return found

    @property
    def outcome(self) -> str:
        """Outcome of the run in one or two words."""
        if self.exit_code is None:
            return "killed"
        if self.exit_code == DONE and self.amounts.get("committed_partitions") == 0:
            return "nothing to do"
        return _OUTCOMES.get(self.exit_code, "failed")


@dataclass(frozen=True)
class Commit:
    """Part of one partition in a wave's commit, planned on the generation that its run names as the one before."""

    facts: ClassVar[str] = (
        "topic=checkpoint.topic partition=checkpoint.partition generation=checkpoint.generation "
        "run_id=checkpoint.run_id next_offset=checkpoint.next_offset"
    )
    checkpoint: Checkpoint
    segments: list[Segment]
    run: RunRow
    partition_state: PartitionState | None = None  # the state of the partition with it

    @property
    def key(self) -> Key:
        """(topic, partition)."""
        return self.checkpoint.key

    @property
    def folder(self) -> str:
        """Folder below the store that holds its manifest."""
        return self.checkpoint.own_folder

    @property
    def parent(self) -> str:
        """Folder of the generation that was current before it; that of generation 0 if there was none."""
        return generation_folder(*self.key, self.run.generation_before, self.run.parent_run_id or "")


class _Dataclass(Protocol):
    """Protocol of a dataclass's instances."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Row = TypeVar("Row", bound=_Dataclass)
_SCHEMAS: dict[type[Any], pa.Schema] = {}  # by kind of row: type hints are read slowly
_STORED = rf"{PARTITIONS}/(?P=topic)-(?P=partition)/{RUN_FOLDER}/[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*"
_PLACES = re.compile(  # the partition and what a row names: (generations and runs) or (root, path, key files)
    rf"(?P<topic>(?!\.\.?-[0-9]+ )[a-zA-Z0-9._-]{{1,{MAX_TOPIC}}})-(?P<partition>[0-9]+) "
    rf"(?:run {RUN_FOLDER} {RUN_FOLDER}"
    rf"|(?:store {_STORED}|archive (?:(?!\.\.?/)[^/]*/)*(?P=topic)-0*(?P=partition)/[0-9]{{20}}\.log) "
    rf'(?:\[(?:\[-?[0-9]+, -?[0-9]+, "{_STORED}", [0-9]+, [0-9]+\](?:, )?)*\])?)'
)
OF_GENERATION = ("topic", "partition", "generation", "run_id")
_ARROW = {int: pa.int64(), str: pa.string(), float: pa.float64(), bool: pa.bool_()}


def histories(checkpoints: Mapping[Key, Checkpoint], runs: Iterable[RunRow]) -> dict[Key, list[RunRow]]:
    """Return the committed runs of every partition, newest first: the chain of parents from its checkpoint, past
    resets. Where `jobs.store.history` has removed a parent's row, the chain continues with the next older row, which is
    on it too.
    """
    rows: dict[Key, list[RunRow]] = {key: [] for key in checkpoints}
    for row in runs:
        rows.get((row.topic, row.partition), []).append(row)
    chains: dict[Key, list[RunRow]] = {}
    for key, checkpoint in checkpoints.items():
        chain: list[RunRow] = chains.setdefault(key, [])
        number, run_id = checkpoint.generation, checkpoint.run_id
        newest_first = sorted(rows[key], key=lambda row: (-row.generation_after, row.started_ms))
        for row in newest_first:
            is_next = row.generation_after == number and row.run_id == run_id
            if is_next or (chain and row.generation_after < number):
                chain.append(row)
                number, run_id = row.generation_before, row.parent_run_id or ""
    return chains


def _run_places(row: Checkpoint | RunRow, generation: int) -> str:
    folders = f"{generation}-{row.run_id} {row.back_to or generation}-{row.back_to_run_id or row.run_id}"
    return f"{row.topic}-{row.partition} run {folders}"


def segment_places(key: Key, segment: Segment) -> str:
    """Return the partition, and the paths of a segment's files, for `check_places`."""
    return f"{key[0]}-{key[1]} {segment.root} {segment.path} {segment.key_files or ''}"


def _folder(row: Checkpoint | RunRow, generation: int) -> str:
    return generation_folder(row.topic, row.partition, row.back_to or generation, row.back_to_run_id or row.run_id)


def arrow_schema(kind: type[Any]) -> pa.Schema:
    """Return the columns of a row's dataclass."""
    if kind not in _SCHEMAS:
        hints = get_type_hints(kind).items()
        _SCHEMAS[kind] = pa.schema([(_COLUMNS.get(name, name), _arrow_type(name, hint)) for name, hint in hints])
    return _SCHEMAS[kind]


def _arrow_type(name: str, hint: Any) -> pa.DataType:
    base = next(arg for arg in (*getattr(hint, "__args__", ()), hint) if arg in _ARROW)
    return pa.int32() if name in INT32 else _ARROW[base]


def field_name(column: str) -> str:
    """Return the field of a row's dataclass that holds a column."""
    return _FIELDS.get(column, column)


def columns(row: _Dataclass) -> dict[str, Any]:
    """Return the values of a row by column."""
    return {_COLUMNS.get(name, name): value for name, value in vars(row).items()}


def to_arrow(kind: type[Row], rows: Iterable[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    return pa.Table.from_pylist([columns(row) for row in rows], arrow_schema(kind))


def run_schema() -> pa.Schema:
    """Return the columns of `cleaner_runs`: those of RunRow, and those of JobRow."""
    runs = arrow_schema(RunRow)
    return pa.schema([*runs, *(column for column in arrow_schema(JobRow) if column.name not in runs.names)])


def runs_to_arrow(runs: Iterable[RunRow | JobRow]) -> pa.Table:
    """Return rows of `cleaner_runs`."""
    return pa.Table.from_pylist([columns(run) for run in runs], run_schema())


def runs_in(table: pa.Table) -> list[RunRow]:
    """Return the rows about partitions in rows of `cleaner_runs`."""
    return from_arrow(RunRow, table.filter(pc.is_valid(table["topic"])))


def checkpoint_schema() -> pa.Schema:
    """Return the columns of `compaction_checkpoints`: those of Checkpoint, the manifest, and the partition's state.

    For a partition without a generation `generation` is 0 and the rest of it null.
    """
    partition_state = [f for f in arrow_schema(PartitionState) if f.name not in ("topic", "partition")]
    segment = pa.struct([pa.field(name, _arrow_type(name, hint)) for name, hint in SEGMENT_COLUMNS.items()])
    segments = pa.field("segments", pa.list_(segment), metadata={"lastkey.format": str(FORMAT)})
    return pa.schema([*arrow_schema(Checkpoint), segments, pa.field("partition_state", pa.struct(partition_state))])


def to_checkpoints(commits: Iterable[Commit]) -> pa.Table:
    """Return rows of `compaction_checkpoints`: each partition's checkpoint, its generation's manifest, its state."""
    rows = [
        vars(c.checkpoint)
        | {
            "segments": [manifest_row(row) for row in sorted(c.segments, key=lambda row: row.base_offset)],
            "partition_state": c.partition_state and vars(c.partition_state),
        }
        for c in commits
    ]
    return pa.Table.from_pylist(rows, checkpoint_schema())


def from_checkpoints(table: pa.Table) -> dict[Key, Checkpoint]:
    """Return the current generation of each partition that has one, from rows of `compaction_checkpoints`."""
    has = table.filter(pc.greater(table["generation"], 0))
    return {row.key: row for row in from_arrow(Checkpoint, has)}


def manifest_row(segment: Segment) -> dict[str, Any]:
    """Return the values of SEGMENT_COLUMNS of a segment."""
    return {name: getattr(segment, field_name(name)) for name in SEGMENT_COLUMNS}


def segment_rows(commit: Commit) -> list[dict[str, Any]]:
    """Return the segments of a generation as its manifest holds them."""
    of = {name: getattr(commit.checkpoint, name) for name in OF_GENERATION}
    return [of | manifest_row(segment) for segment in commit.segments]


def parse_segment(entry: Mapping[str, Any]) -> Segment:
    """Return the segment of a row, and no field that is no column. Raise KeyError for a missing column; those of _LATER
    take their defaults, also where they are null.
    """
    columns = (name for name in SEGMENT_COLUMNS if name not in _DEAD)
    given: dict[str, Any] = {name: entry.get(name) if name in _LATER else entry[name] for name in columns}
    return Segment(**{field_name(name): given[name] for name in given if given[name] is not None or name not in _LATER})


def check_places(places: Iterable[str], path: str, kind: Kind[DataError]) -> None:
    """Raise an error about a manifest or table, `path`, if a row names anything but runs and files of its partition: a
    command would serve another partition's file, or a file outside of the store and the archive. places: of each row.
    """
    for named in places:
        if _PLACES.fullmatch(named) is None:
            raise kind(path=path, expected="each row to name runs and files of its own partition", found=named)


def from_arrow(kind: type[Row], table: pa.Table) -> list[Row]:
    """Return the rows of an Arrow table with these columns, and perhaps others. A column that is missing or null, as in
    rows that are older than it, takes its default.
    """
    names = [column for column in _column_defaults(kind) if column in table.column_names]
    return [parse_row(kind, row) for row in table.select(names).to_pylist()]


def parse_row(kind: type[Row], values: Mapping[str, Any]) -> Row:
    """Return a row from the values in a table or file. A column that is missing or null, as in older rows, takes its
    default; columns of newer versions are ignored.
    """
    defaults, missing = _column_defaults(kind).items(), dataclasses.MISSING
    given = {c: values[c] for c, default in defaults if c in values and (values[c] is not None or default is missing)}
    return kind(**{field_name(column): value for column, value in given.items()})


@cache
def _column_defaults(kind: type) -> dict[str, Any]:
    """Return the columns of a kind of rows, with their defaults: dataclasses lists them again for each row."""
    return {_COLUMNS.get(f.name, f.name): f.default for f in dataclasses.fields(kind) if f.init}
