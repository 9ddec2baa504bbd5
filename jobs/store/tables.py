"""Tables under STORE/state, read without Spark; `jobs.store.writing` changes them.

`compaction_checkpoints` decides: one row for each partition, with its current generation, that generation's manifest
and the partition's state. One commit of it is the switch; no other table is joined. A change is made by
compare-and-swap (`jobs.store.table`).

`cleaner_runs` is history for people, and `cleaner_state` a copy of the partitions' states: no decision reads them. An
older generation is described by the manifest in its folder.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs

from lastkey.jobs.errors import DAMAGED_TABLE, NO_GENERATION, ConflictError, UsageError
from lastkey.jobs.store import rows, table
from lastkey.jobs.store.exclusive import LOCK_SECONDS, check_exclusive, local_lock
from lastkey.jobs.store.folders import Run, check_no_archive, check_no_links, check_not_inside
from lastkey.jobs.store.manifests import read_manifests
from lastkey.jobs.store.paths import CHECKPOINTS, RUNS, generation_folder, table_folder
from lastkey.jobs.store.rows import Checkpoint, PartitionState, RunRow
from lastkey.jobs.store.table import Change, Held, Version
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import Root, normal_uri, open_root

KEY_COLUMNS: Final = ("topic", "partition")


def open_state(store: str) -> State:
    """Return the state of a store, without reading or writing. Raise UsageError if no table can be under the path."""
    root = open_root(normal_uri(store))
    table.check_fit(root)
    return State(root)


@dataclass
class State:
    """Tables of one store, as one run sees them."""

    root: Root
    began: int | None = None  # version of `compaction_checkpoints` that was read first
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # decides only which history is old
    _newest: int = -1  # highest version of it that was seen
    _whole: int = -1  # highest version of it whose commit was checked, in a bucket
    held: dict[str, Held] = field(default_factory=lambda: defaultdict(dict))  # files that were read, by table and path
    _checked: bool = False  # commits can be made there

    # -- reading

    def table_exists(self, name: str) -> bool:
        """Return whether a table was ever written."""
        info = self.root.filesystem.get_file_info(self.root.full(f"{table_folder(name)}/_delta_log"))
        return bool(info.type == pafs.FileType.Directory)

    def checkpoints(self) -> dict[Key, Checkpoint]:
        """Return every partition's current generation."""
        return self._checkpoints_in(self.checkpoint_rows())

    def states(self) -> dict[Key, PartitionState]:
        """Return the state of every partition."""
        found = self.checkpoint_rows().select([*KEY_COLUMNS, "partition_state"]).to_pylist()
        states = [
            rows.parse_row(PartitionState, row | row["partition_state"]) for row in found if row["partition_state"]
        ]
        return {(row.topic, row.partition): row for row in states}

    def manifests(self, wanted: Iterable[Checkpoint]) -> dict[Key, list[Segment]]:
        """Return the segments of generations, by partition, each list by base offset. Raise NO_GENERATION if those of a
        partition are not known any more.
        """
        by_key = {row.key: row for row in wanted}
        runs = self.read_segments([(row.key, row.generation, row.run_id) for row in by_key.values()])
        segments_by_key = {run[0]: segments for run, segments in runs.items()}
        for row in (by_key[key] for key in by_key.keys() - segments_by_key.keys()):
            reason, expected = "its folder has no manifest that can be read", "another generation"
            raise NO_GENERATION(partition=row.name, found=row.generation, reason=reason, expected=expected)
        return segments_by_key

    def read_segments(self, runs: Collection[Run]) -> dict[Run, list[Segment]]:
        """Return the segments of runs, committed or not, by base offset: from the checkpoints, else from the manifests
        in their folders. Runs with a missing or damaged manifest are omitted.
        """
        segments_by_run = self._manifests_in(self.checkpoint_rows(), set(runs))
        older = {generation_folder(*run[0], *run[1:]): run for run in set(runs) - segments_by_run.keys()}
        segments_by_run |= {
            older[folder]: commit.segments for folder, commit in read_manifests(self.root, older).items()
        }
        return {
            run: sorted(segments_by_run[run], key=lambda row: row.base_offset) for run in runs if run in segments_by_run
        }

    def current(self) -> tuple[dict[Key, Checkpoint], dict[Key, list[Segment]]]:
        """Return the checkpoints and the manifests that they name: a run begins with them."""
        rows_now = self.checkpoint_rows()
        checkpoints = self._checkpoints_in(rows_now)
        runs = {(key, row.generation, row.run_id) for key, row in checkpoints.items()}
        return checkpoints, {run[0]: segments for run, segments in self._manifests_in(rows_now, runs).items()}

    def _checkpoints_in(self, found: pa.Table) -> dict[Key, Checkpoint]:
        checkpoints = rows.from_checkpoints(found)
        self._check_places(row.places for row in checkpoints.values())
        return checkpoints

    def _manifests_in(self, found: pa.Table, runs: Collection[Run]) -> dict[Run, list[Segment]]:
        """Return the segments of those runs whose generations are current in checkpoint rows."""
        manifests: dict[Run, list[Segment]] = {}
        for row in found.select([*rows.OF_GENERATION, "segments"]).to_pylist():
            run = ((row["topic"], row["partition"]), row["generation"], row["run_id"])
            if run in runs:
                manifests[run] = [rows.parse_segment(segment) for segment in row["segments"]]
        self._check_places(rows.segment_places(run[0], s) for run, held in manifests.items() for s in held)
        return manifests

    def _check_places(self, places: Iterable[str]) -> None:
        rows.check_places(places, f"{self.root.uri}/{table_folder(CHECKPOINTS)}", DAMAGED_TABLE)

    def histories(self, topics: Iterable[str] | None = None) -> dict[Key, list[RunRow]]:
        """Return the committed runs of each partition (topics: of these), newest first, by the chain of parents. They
        are for reports alone.
        """
        names = None if topics is None else set(topics)
        checkpoints = {key: row for key, row in self.checkpoints().items() if names is None or key[0] in names}
        runs = self.rows(RUNS, rows.run_schema())
        if names is not None:
            runs = runs.filter(pc.is_in(runs["topic"], pa.array(sorted(names), pa.string())))
        return rows.histories(checkpoints, rows.runs_in(runs))

    # -- changing

    def check_writable(self) -> None:
        """Raise NOT_EXCLUSIVE if the file system cannot refuse a second commit, and LINKED_FOLDER if a folder is a
        link. Raise UsageError if a new store would be inside another store or an archive. The first commit does this;
        so does a job before it works for one.
        """
        if not self._checked:
            check_no_links(self.root)
            if not self.table_exists(CHECKPOINTS):
                check_not_inside("the store", self.root)
                check_no_archive(self.root)
            check_exclusive(self.root)
            self._checked = True

    def version(self) -> int:
        """Return the version of `compaction_checkpoints`; -1 if missing."""
        return self.head(CHECKPOINTS).number

    def lock(self, seconds: float = LOCK_SECONDS) -> AbstractContextManager[None]:
        """Hold a store's lock on a local disk: one vacuum, one refresh of `time_index` at a time. Commits need none."""
        return local_lock(self.root, seconds) if self.root.is_local else contextlib.nullcontext()

    def head(self, name: str) -> Version:
        """Return the head of a table, after checks of its format and that it continues what was read before."""
        version = table.head(self.root, name)
        if name == CHECKPOINTS:
            if version.number > self._whole and not self.root.is_local:  # on a disk `table.head` checks
                # raises if the commit is damaged; no other check detects this
                table.commit_info(self.root, name, version.number)
                self._whole = version.number
            self._check(version)
            if self.began is None:
                self.began = version.number
        return version

    def _check(self, version: Version) -> None:
        """Raise UsageError unless the store has the format that this version of Lastkey knows; ConflictError if the
        table was taken away since it was read. Otherwise every generation would look uncommitted: to a vacuum, and to a
        run that commits only new partitions.
        """
        fields = version.delta.schema().fields if version.delta else ()
        store_format = max(
            (int(f.metadata["lastkey.format"]) for f in fields if "lastkey.format" in f.metadata), default=1
        )
        if version.delta and store_format != rows.FORMAT:
            how = (
                "or a newer one" if store_format > rows.FORMAT else "or let this one begin a new store from the archive"
            )
            raise UsageError(
                message=f"{self.root.uri}: this store has format {store_format}, and this version of Lastkey reads "
                f"only format {rows.FORMAT}: use the version that wrote it, {how}"
            )
        if version.number < self._newest:
            raise ConflictError(
                path=f"{self.root.uri}/{version.folder}",
                expected=f"version {self._newest}, which was there, or a later one",
                found="no table" if version.number < 0 else f"version {version.number}",
            )
        self._newest = version.number

    def swap(self, name: str, schema: pa.Schema, plan: Callable[[Version], Change | None]) -> None:
        """Change a table, after checks of format and place."""

        def checked(version: Version) -> Change | None:
            if name == CHECKPOINTS:
                self._check(version)  # a newer version of Lastkey may have converted the store since this run began
            change = plan(version)
            if change is not None:
                self.check_writable()
            return change

        made = table.swap(self.root, name, schema, checked, self.head(name))
        if name == CHECKPOINTS:
            self._newest = max(self._newest, made)

    def rows(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return the rows of a table as they are now."""
        return self.rows_in(self.head(name), schema)

    def rows_in(self, version: Version, schema: pa.Schema) -> pa.Table:
        """Return the rows of a version of a table."""
        return table.rows(version, schema, self.held[version.name])

    def checkpoint_rows(self) -> pa.Table:
        """Return the rows of `compaction_checkpoints` as they are now."""
        return self.rows(CHECKPOINTS, rows.checkpoint_schema())

    def rows_at(self, version: Version, keys: Collection[Key]) -> pa.Table:
        """Return the rows of partitions in a version of `compaction_checkpoints`."""
        all_rows = table.rows(version, rows.checkpoint_schema(), self.held[CHECKPOINTS])
        schema = pa.schema([all_rows.schema.field(name) for name in KEY_COLUMNS])
        wanted = pa.Table.from_pylist([dict(zip(KEY_COLUMNS, key, strict=True)) for key in keys], schema)
        return table.joined(all_rows, wanted, "left semi")
