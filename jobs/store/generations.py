"""Generations of a store: which there are, and which of them is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyarrow import fs as pafs

from jobs.errors import LostRunError, MissingPathError, NoGenerationError
from jobs.store.paths import CHECKPOINTS, generation_folder, table_folder
from jobs.store.rows import Checkpoint, RunRow, Segment
from jobs.store.tables import State, open_state
from jobs.topics import Key
from logformat import names
from logformat.locations import text_entries
from logformat.s3_access import check_bucket
from udfs.storage import Root


@dataclass(frozen=True)
class Generation:
    """One generation of one partition: where its files are, and which offsets it covers."""

    topic: str
    partition: int
    generation: int
    run_id: str
    first_dirty_offset: int
    log_start_offset: int
    next_offset: int
    archive_uri: str

    @property
    def key(self) -> Key:
        """(topic, partition)."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """The partition's folder in a log directory."""
        return names.partition_folder(self.topic, self.partition)

    @property
    def folder(self) -> str:
        """The run's folder, below the store."""
        return generation_folder(self.topic, self.partition, self.generation, self.run_id)

    def files(self, store: Root) -> set[str]:
        """Names of the files in it; none if vacuum has taken it."""
        listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(self.folder), allow_not_found=True))
        return {info.base_name for info in text_entries(listed)[0] if info.type == pafs.FileType.File}

    def snapshots(self, files: Iterable[str]) -> tuple[tuple[int, str], ...]:
        """(offset, path) of its producer snapshots, rising; files: names in its folder."""
        found = (file for name in files if (file := names.parse_segment_file(name)) and file.kind == names.SNAPSHOT)
        return tuple(sorted((f.base, f"{self.folder}/{names.segment_file(f.base, names.SNAPSHOT)}") for f in found))


def current_generation(row: Checkpoint) -> Generation:
    """The generation that a checkpoint names."""
    return Generation(
        row.topic,
        row.partition,
        row.generation,
        row.run_id,
        row.first_dirty_offset,
        row.log_start_offset,
        row.next_offset,
        row.archive_uri,
    )


def made_by(run: RunRow) -> Generation:
    """The generation that a committed run made."""
    return Generation(
        run.topic,
        run.partition,
        run.generation_after,
        run.run_id,
        run.end_offset,
        run.log_start_offset,
        run.next_offset,
        run.archive_uri,
    )


def runs_at(
    current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]], generation: int | None
) -> dict[Key, RunRow]:
    """The committed run that made a generation (None: the current one), of each partition that has it.

    LostRunError: one of an older generation cannot be looked for.
    """
    if generation is not None:
        check_runs(current, chains)
    found = {}
    for key, checkpoint in current.items():
        wanted = generation or checkpoint.generation
        run = next((run for run in chains.get(key, ()) if run.generation_after == wanted), None)
        if run is not None:
            found[key] = run
    return found


def lost_runs(current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]]) -> dict[Key, LostRunError]:
    """Of each partition that has a generation, but no run: what to say. Nor are its older generations known."""
    lost = [key for key, row in sorted(current.items()) if row.generation > 0 and not chains.get(key)]
    return {key: LostRunError(partition=names.partition_folder(*key)) for key in lost}


def check_runs(current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]]) -> None:
    """That older generations can be looked for. LostRunError: not those of one partition."""
    for error in lost_runs(current, chains).values():
        raise error


def manifests_of(tables: State, generations: Iterable[Generation]) -> dict[Key, list[Segment]]:
    """The segments of generations, by partition, each list by base offset."""
    return tables.manifests({one.key: (one.generation, one.run_id) for one in generations})


def nobody_has(generation: int) -> NoGenerationError:
    """Of a generation that no partition has."""
    return NoGenerationError(
        partition="every partition",
        found=generation,
        reason="never committed",
        expected="one of the generations of the store",
    )


def open_store(uri: str, notes: list[str], expected: str = f"a store, with {table_folder(CHECKPOINTS)}") -> Root:
    """The root of a store that holds a generation; notes: gets what was set aside in it. MissingPathError: it holds
    none; AccessError.
    """
    state = open_state(uri)
    store = state.root
    found = store.filesystem.get_file_info(store.full(table_folder(CHECKPOINTS)))
    if found.type != pafs.FileType.Directory or not state.exists():
        check_bucket(store.uri, store.filesystem)
        raise MissingPathError(path=store.uri, expected=expected, found="none")
    notes += state.notes
    return store
