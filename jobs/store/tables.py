"""The tables under STORE/state, without Spark, and `commit_wave`, the one write that matters.

`compaction_checkpoints` decides: a row a partition, with its current generation, that generation's manifest, and how
the partition stands. One commit of it is the switch; nothing has to be joined to it. It is made by compare-and-swap
(`jobs.store.table`): the head is read, our partitions are still where the run planned on, the files of the wave are
there, and version n + 1 is put; who was second reads again, and goes on where its partitions are as they were.

`log_segments` and `cleaner_runs` are history: written before the switch, never needed for what is current.
`cleaner_state` is a copy of how the partitions stand, for those who look into it.

`vacuum` and a run need no lock between them: vacuum puts a version that names the folders that it will delete, and a
run looks, on the head that it commits on, whether one of its own was named since it began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyarrow import fs as pafs

from jobs.errors import ConflictError, DamagedTableError, ManifestError, NoGenerationError
from jobs.store import commit_file, history, table
from jobs.store.exclusive import check_exclusive
from jobs.store.folders import folders_of
from jobs.store.formats import check_format, check_newest, columns_of, format_of
from jobs.store.local_lock import local_lock
from jobs.store.manifests import read_manifest
from jobs.store.paths import (
    CHECKPOINTS,
    RUNS,
    SEGMENTS,
    STATES,
    TABLES,
    generation_folder,
    table_folder,
)
from jobs.store.rows import (
    Checkpoint,
    Commit,
    PartitionState,
    RunRow,
    Segment,
    arrow_schema,
    checkpoint_schema,
    from_arrow,
    from_checkpoints,
    histories,
    manifests_in,
    to_arrow,
    to_checkpoints,
    undecided,
)
from jobs.store.table import Change, Held, Version
from logformat import names
from logformat.s3_access import in_one_line
from udfs.storage import Root, normal_uri, open_root

Key = tuple[str, int]
Run = tuple[Key, int, str]  # partition, generation, run id

_KEY: Final = ("topic", "partition")
_LOCK_SECONDS: Final = 300.0
_TABLE_HOURS: Final = 720  # no table keeps files longer
_MOST_FILES: Final = 64  # of a history: more are joined


def open_state(store: str) -> State:
    """The state of a store. Reads and writes nothing yet. UsageError: a path that no table can lie under."""
    root = open_root(normal_uri(store))
    table.check_fit(root)
    return State(root)


@dataclass
class State:
    """The tables of one store, as one run sees them."""

    root: Root
    notes: list[str] = field(default_factory=list)
    began: int | None = None  # version of `compaction_checkpoints` that was read first
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # decides which history is old, nothing else
    _newest: int = -1  # version of it that was seen
    _held: dict[str, Held] = field(default_factory=dict)
    _checked: bool = False  # that commits can be made there

    # -- reading

    def has(self, name: str) -> bool:
        """Whether a table was ever written."""
        info = self.root.filesystem.get_file_info(self.root.full(f"{table_folder(name)}/_delta_log"))
        return bool(info.type == pafs.FileType.Directory)

    def exists(self) -> bool:
        """Whether any partition has a generation here."""
        found = table.rows(self._head(CHECKPOINTS), pa.schema([("generation", pa.int64())]))
        return bool(pc.any(pc.greater(found["generation"], 0)).as_py())

    def checkpoints(self) -> dict[Key, Checkpoint]:
        """Every partition's current generation."""
        return from_checkpoints(self._decided())

    def states(self) -> dict[Key, PartitionState]:
        """How every partition stands."""
        found = self._decided()
        standing = found["standing"].combine_chunks()
        keyed = pa.table([found["topic"], found["partition"], *standing.flatten()], names=[*_KEY, *_STANDING])
        return {
            (row.topic, row.partition): row for row in from_arrow(PartitionState, keyed.filter(standing.is_valid()))
        }

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
        """The segments of many partitions' (generation, run id), each list by base offset. NoGenerationError: those of
        one are not known any more.
        """
        found = self.known_manifests(wanted)
        for key in wanted.keys() - found.keys():
            raise NoGenerationError(
                partition=names.partition_folder(*key), found=wanted[key][0],
                reason="its segments are not in the store's tables, and its folder has no manifest",
                expected="another generation",
            )  # fmt: skip
        return found

    def known_manifests(self, wanted: Mapping[Key, tuple[int, str]]) -> dict[Key, list[Segment]]:
        """The same of those that are known."""
        found = manifests_in(self._decided(), wanted)
        older = {(key, *run): key for key, run in wanted.items() if key not in found}
        for run, segments in self.segments_of(older).items():
            found[older[run]] = segments
        return {key: sorted(found[key], key=lambda row: row.base_offset) for key in wanted if key in found}

    def segments_of(self, runs: Collection[Run]) -> dict[Run, list[Segment]]:
        """The segments of runs, committed or not, in no order: by the history, else by the manifests in their folders.
        Runs of which neither knows anything, or whose manifest is damaged, are not in it.
        """
        found: dict[Run, list[Segment]] = {}
        for row in self._of_runs({run_id for _, _, run_id in runs}) if runs else ():
            found.setdefault(((row.topic, row.partition), row.generation, row.run_id), []).append(row)
        found = {run: found[run] for run in runs if run in found}
        for key, generation, run_id in set(runs) - found.keys():
            with contextlib.suppress(FileNotFoundError, ManifestError):
                manifest = read_manifest(self.root, generation_folder(*key, generation, run_id))
                found[key, generation, run_id] = list(manifest.segments)
        return found

    def current(self) -> tuple[dict[Key, Checkpoint], dict[Key, list[Segment]]]:
        """Checkpoints and the manifests that they name: where a run begins."""
        found = self._decided()
        checkpoints = from_checkpoints(found)
        wanted = {key: (row.generation, row.run_id) for key, row in checkpoints.items()}
        return checkpoints, manifests_in(found, wanted)

    def history(self, topic: str, partition: int) -> list[RunRow]:
        """The committed runs of one partition, newest first."""
        return self.histories([topic]).get((topic, partition), [])

    def histories(self, topics: Iterable[str] | None = None) -> dict[Key, list[RunRow]]:
        """The committed runs of every partition, newest first: the chain of parents from its checkpoint."""
        names = None if topics is None else set(topics)
        checkpoints = {key: row for key, row in self.checkpoints().items() if names is None or key[0] in names}
        runs = self._rows(RUNS, arrow_schema(RunRow))
        if names is not None:
            runs = runs.filter(pc.is_in(runs["topic"], pa.array(sorted(names), pa.string())))
        return histories(checkpoints, from_arrow(RunRow, runs))

    # -- writing

    def check_writable(self) -> None:
        """That commits can be made there; done before the first one, or earlier, before work is done for it.
        NotExclusiveError.
        """
        if not self._checked:
            check_exclusive(self.root, rounds=1 if self.has(CHECKPOINTS) else 3)
            self._checked = True

    def commit_wave(self, commits: Sequence[Commit], verify_files: Callable[[], None] | None = None) -> None:
        """Make a wave's generations current, all or none. ConflictError: another run moved a partition of it.

        `verify_files` lists the sizes of the wave's files once more and raises when one is not as written.
        """
        if not commits:
            return
        self._append(SEGMENTS, to_arrow(Segment, (row for commit in commits for row in commit.segments)))
        self._append(RUNS, to_arrow(RunRow, (commit.run for commit in commits)))
        self._switch(commits, verify_files, self._began)  # before this nobody sees the new files

    def roll_back(self, commits: Sequence[Commit], verify_files: Callable[[], None]) -> None:
        """Make older generations current, all or none; `planned_*` of each is the one that is current now.

        ConflictError: another run moved a partition meanwhile, or a vacuum has said that it takes one of the folders.
        """
        self._switch(commits, verify_files, table.before_record)

    def rebuild(self, decided: Sequence[Commit], runs: Sequence[RunRow], segments: Sequence[Segment]) -> None:
        """Make the tables of a store that has lost them. ConflictError: somebody else makes them."""
        new = to_checkpoints([(c.checkpoint, c.segments, c.standing) for c in decided])

        def plan(rows: pa.Table, version: Version) -> Change:
            if version.number >= 0:
                raise ConflictError(
                    path=f"{self.root.uri}/{version.folder}", expected="no table", found=f"version {version.number}"
                )
            return Change(added=table.in_files(rows))

        for name, rows in ((SEGMENTS, to_arrow(Segment, segments)), (RUNS, to_arrow(RunRow, runs)), (CHECKPOINTS, new)):
            self._swap(name, rows.schema, partial(plan, rows))
        self.write_states()

    def _began(self, version: Version) -> int:
        return self.began if self.began is not None else version.number

    def _switch(
        self, commits: Sequence[Commit], verify_files: Callable[[], None] | None, since: Callable[[Version], int]
    ) -> None:
        """Put the checkpoints of generations whose files no vacuum took since a version."""
        new = to_checkpoints([(c.checkpoint, c.segments, c.standing) for c in commits])

        def plan(version: Version) -> Change | None:
            now = from_checkpoints(self._rows_at(version, {c.key for c in commits}))
            if all(_is_at(now.get(c.key), c.checkpoint.generation, c.checkpoint.run_id) for c in commits):
                return None
            if not all(_is_at(now.get(c.key), c.planned_generation, c.planned_run_id) for c in commits):
                raise self._conflict(commits, now)
            self._refuse_vacuumed(version, commits, since(version))
            if verify_files is not None:
                verify_files()
            return table.replaced(version, _KEY, new, self._held_of(CHECKPOINTS))

        self._swap(CHECKPOINTS, checkpoint_schema(), plan)

    def set_states(self, rows: Sequence[PartitionState]) -> None:
        """Say how partitions stand; of those that another run has moved meanwhile nothing: it knows better."""
        said = {(row.topic, row.partition): row for row in rows}

        def plan(version: Version) -> Change | None:
            found = self._rows_at(version, said.keys())
            now = {(row["topic"], row["partition"]): row for row in found.drop_columns([table.FILE]).to_pylist()}
            new = []
            for key, row in said.items():
                old = now.get(key) or undecided(*key)
                if old["generation"] == max(row.generation, 0):
                    new.append(old | {"standing": _standing(row)})
            if not new:
                return None
            changed = pa.Table.from_pylist(new, schema=checkpoint_schema())
            return table.replaced(version, _KEY, changed, self._held_of(CHECKPOINTS))

        if said:
            self._swap(CHECKPOINTS, checkpoint_schema(), plan)

    def write_states(self) -> None:
        """Make `cleaner_state` what `compaction_checkpoints` says: a copy, for those who look into it."""
        rows = to_arrow(PartitionState, self.states().values())

        def plan(version: Version) -> Change | None:
            there = table.rows(version, rows.schema, self._held_of(STATES)).drop_columns([table.FILE])
            order = [(name, "ascending") for name in _KEY]
            if there.sort_by(order).equals(rows.sort_by(order)):
                return None
            return Change(added=table.in_files(rows), removed=version.files())

        self._swap(STATES, rows.schema, plan)

    def version(self) -> int:
        """Of `compaction_checkpoints`; -1 where there is none."""
        return self._head(CHECKPOINTS).number

    def mark(self, folders: Collection[str], seen: int) -> bool:
        """Say that these folders of runs are about to go: a run that wrote one of them cannot commit any more.

        False: version `seen`, by which they were chosen, is not the head any more, and nothing was said.
        """
        told = {commit_file.MARK: json.dumps(sorted(folders))}
        as_seen = True

        def plan(version: Version) -> Change | None:
            nonlocal as_seen
            as_seen = version.number == seen
            return Change(added=(), metadata=told) if as_seen else None

        self._swap(CHECKPOINTS, checkpoint_schema(), plan)
        return as_seen

    def vacuum_state(self, *, dry_run: bool = False, ahead_hours: int = 0) -> int:
        """Files of the tables that no version needs any more, deleted; how many. ahead_hours: of this machine's clock,
        which delta-rs asks, before the store's.
        """
        found = 0
        hours = _TABLE_HOURS + ahead_hours if ahead_hours else None  # None: as the table says
        for name in filter(self.has, TABLES):
            version = self._head(name)
            if version.delta is not None:
                try:
                    found += len(version.delta.vacuum(hours, dry_run=dry_run))
                except DeltaError as error:
                    if not self.root.is_local:
                        raise
                    path = f"{self.root.uri}/{table_folder(name)}"
                    raise DamagedTableError(path=path, expected="Delta's log", found=in_one_line(str(error))) from error
        return found

    @contextlib.contextmanager
    def lock(self, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
        """One vacuum, one refresh of `time_index` at a time, on a local disk. Commits need none."""
        with local_lock(self.root, seconds) if self.root.is_local else contextlib.nullcontext():
            yield

    # -- inside

    def _head(self, name: str) -> Version:
        version = table.head(self.root, name)
        self.notes += version.notes
        if name == CHECKPOINTS:
            check_format(version)
            check_newest(version)
            self._check_goes_on(version)
            if self.began is None:
                self.began = version.number
        return version

    def _check_goes_on(self, version: Version) -> None:
        """That the table was not taken away since it was read. Without it every generation would look as though nobody
        had committed it: to a vacuum, and to a run that commits new partitions alone. ConflictError.
        """
        if version.number < self._newest:
            raise ConflictError(
                path=f"{self.root.uri}/{version.folder}",
                expected=f"version {self._newest}, which was there, or one after it",
                found="no table" if version.number < 0 else f"version {version.number}",
            )
        self._newest = version.number

    def _swap(self, name: str, schema: pa.Schema, plan: Callable[[Version], Change | None]) -> None:
        """Change a table, which is brought to this version's columns first."""

        def checked(version: Version) -> Change | None:
            if name == CHECKPOINTS:
                check_format(version)  # a newer version may have taken the store over since we began
                self._check_goes_on(version)
            change = plan(version)
            if change is not None:
                self.check_writable()
            return change

        at = self._head(name)
        if set(schema.names) - set(columns_of(at) or schema.names):
            self._upgrade(name, schema)
            at = self._head(name)
        made = table.swap(self.root, name, schema, checked, at)
        if name == CHECKPOINTS:
            self._newest = max(self._newest, made)

    def _upgrade(self, name: str, schema: pa.Schema) -> None:
        """A table as an older version wrote it, in one commit that keeps its rows. That version locks, so do we."""

        def plan(version: Version) -> Change | None:
            if not set(schema.names) - set(columns_of(version)):
                return None
            found = self._decided_at(version) if name == CHECKPOINTS else table.rows(version, schema)
            return Change(added=[found.drop_columns([table.FILE])], whole=True)

        with self.lock():
            table.swap(self.root, name, schema, plan)

    def _held_of(self, name: str) -> Held:
        return self._held.setdefault(name, {})

    def _rows(self, name: str, schema: pa.Schema) -> pa.Table:
        return table.rows(self._head(name), schema, self._held_of(name))

    def _decided(self) -> pa.Table:
        """`compaction_checkpoints` as it is now."""
        return self._decided_at(self._head(CHECKPOINTS))

    def _decided_at(self, version: Version) -> pa.Table:
        """The same at a version; one of format 1 with what lay in the other tables then."""
        if format_of(version) > 1:
            return table.rows(version, checkpoint_schema(), self._held_of(CHECKPOINTS))
        found = table.rows(version, checkpoint_schema())
        checkpoints = from_arrow(Checkpoint, found)
        manifests: dict[tuple[Key, int, str], list[Segment]] = {}
        for s in self._of_runs({row.run_id for row in checkpoints}):
            manifests.setdefault(((s.topic, s.partition), s.generation, s.run_id), []).append(s)
        stood = from_arrow(PartitionState, self._rows(STATES, arrow_schema(PartitionState)))
        states = {(row.topic, row.partition): row for row in stood}
        bare = []
        for row in checkpoints:
            key = row.topic, row.partition
            bare.append((row, manifests.get((key, row.generation, row.run_id), []), states.pop(key, None)))
        decided = to_checkpoints(bare).append_column(table.FILE, found[table.FILE])
        others = [undecided(*key) | {"standing": _standing(row)} for key, row in states.items()]
        return pa.concat_tables([decided, pa.Table.from_pylist(others, schema=decided.schema)])

    def _rows_at(self, version: Version, keys: Collection[Key]) -> pa.Table:
        found = table.rows(version, checkpoint_schema(), self._held_of(CHECKPOINTS))
        wanted = pa.table(
            [pa.array([key[0] for key in keys], pa.string()), pa.array([key[1] for key in keys], pa.int32())],
            names=list(_KEY),
        )
        numbered = found.select(_KEY).append_column("_row", pa.array(range(len(found)), pa.int64()))
        return found.take(numbered.join(wanted, list(_KEY), join_type="left semi")["_row"])

    def _of_runs(self, run_ids: Collection[str]) -> list[Segment]:
        found = self._rows(SEGMENTS, arrow_schema(Segment))
        return from_arrow(Segment, found.filter(pc.is_in(found["run_id"], pa.array(sorted(run_ids), pa.string()))))

    def _needed(self, name: str, found: pa.Table) -> pa.Table:
        """Of a history the rows that `jobs.store.history` keeps."""
        checkpoints = self.checkpoints()
        runs = from_arrow(RunRow, found if name == RUNS else self._rows(RUNS, arrow_schema(RunRow)))
        chains = histories(checkpoints, runs)
        stay = history.needed(checkpoints, chains, partial(folders_of, self.root), self.now_ms())
        number = "generation_after" if name == RUNS else "generation"
        columns = [*_KEY, number, "run_id"]
        gone = [
            made
            for made in found.group_by(columns).aggregate([]).to_pylist()
            if chains.get(key := (made["topic"], made["partition"]))  # else the table of runs is lost, or not all there
            and made[number] <= history.horizon(checkpoints[key])
            and tuple(made[column] for column in columns) not in stay
        ]
        schema = pa.schema([found.schema.field(column) for column in columns])
        return found.join(pa.Table.from_pylist(gone, schema), columns, join_type="left anti").select(found.column_names)

    def _append(self, name: str, new: pa.Table) -> None:
        """Rows of history; many small files are joined now and then, and what is old goes."""

        def plan(version: Version) -> Change:
            files = version.files()
            if len(files) < _MOST_FILES:
                return Change(added=table.in_files(new))
            found = table.rows(version, new.schema).drop_columns([table.FILE])
            return Change(added=[pa.concat_tables([self._needed(name, found), new])], removed=files)

        self._swap(name, new.schema, plan)

    def _refuse_vacuumed(self, version: Version, commits: Sequence[Commit], since: int) -> None:
        ours = {generation_folder(c.topic, c.partition, c.checkpoint.generation, c.checkpoint.run_id) for c in commits}
        for mark in table.marks(version, since):
            if gone := ours.intersection(json.loads(mark)):
                raise ConflictError(
                    path=f"{self.root.uri}/{min(gone)}",
                    expected="the files that this run wrote",
                    found="a vacuum that took them",
                )

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


_STANDING: Final = tuple(f.name for f in dataclasses.fields(PartitionState) if f.name not in _KEY)


def _standing(row: PartitionState) -> dict[str, Any]:
    """The column `standing` of a partition."""
    return {name: getattr(row, name) for name in _STANDING}


def _is_at(row: Checkpoint | None, generation: int, run_id: str | None) -> bool:
    if row is None:
        return generation == 0
    return (row.generation, row.run_id) == (generation, run_id)


def _listed(generations: Iterable[int]) -> str:
    return "one of " + ", ".join(map(str, sorted(generations))) if generations else "none: nothing was committed"
