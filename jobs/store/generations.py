"""Generations of a store: current ones, older ones, and those that a rollback makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pyarrow import fs as pafs

from lastkey.jobs.errors import LOST_RUN, NO_GENERATION, GenerationError, MissingPathError, UsageError
from lastkey.jobs.store.manifests import other_files, read_manifest
from lastkey.jobs.store.paths import CHECKPOINTS, table_folder
from lastkey.jobs.store.rows import Checkpoint, Commit, OfGeneration, RunRow
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import Root, sizes_in


@dataclass(frozen=True)
class Generation(OfGeneration):
    """Generation of one partition: its files and the offsets that it covers."""

    first_dirty_offset: int
    log_start_offset: int
    next_offset: int
    archive_uri: str
    folder: str  # below the store; holds the files beside its logs
    of: int  # the generation whose files it uses: itself, or the one that a rollback goes back to

    @property
    def name(self) -> str:
        """Name of the partition's folder in a log directory."""
        return names.partition_folder(self.topic, self.partition)

    def files(self, store: Root) -> set[str]:
        """Return the names of the files in its folder; none if vacuum has deleted it."""
        return set(sizes_in(store, self.folder))

    def snapshots(self, files: Iterable[str]) -> tuple[tuple[int, str], ...]:
        """Return (offset, path) of its producer snapshots, rising; files: the names in its folder."""
        found = (file for name in files if (file := names.parse_segment_file(name)) and file.kind == names.SNAPSHOT)
        return tuple(sorted((f.base, f"{self.folder}/{names.segment_file(f.base, names.SNAPSHOT)}") for f in found))


def generation_of(row: Checkpoint | RunRow) -> Generation:
    """Return the generation that a checkpoint names, or that a committed run made."""
    if isinstance(row, Checkpoint):
        number, first_dirty = row.generation, row.first_dirty_offset
    else:
        number, first_dirty = row.generation_after, row.end_offset
    of, offsets = row.back_to or number, (first_dirty, row.log_start_offset, row.next_offset)
    return Generation(row.topic, row.partition, number, row.run_id, *offsets, row.archive_uri, row.folder, of)


def going_back(old: Commit, number: int, run_id: str, parent_run_id: str, now_ms: int, erased: str | None) -> Commit:
    """Return the commit of generation `number`, which uses the files of an older one; parent_run_id: the run of the
    previous generation, on which the commit is planned; erased: the bounds that hold now.
    """
    run, did = old.run, ("records_", "dropped_", "batches_", "bytes_", "splits")
    new: dict[str, Any] = {"generation": number, "run_id": run_id}
    files: dict[str, Any] = {
        "back_to": run.back_to or run.generation_after,
        "back_to_run_id": run.back_to_run_id or run.run_id,
    }
    made: dict[str, Any] = {f.name: 0 for f in fields(RunRow) if f.name.startswith(did)} | files
    made |= {"run_id": run_id, "parent_run_id": parent_run_id, "now_ms": now_ms, "started_ms": now_ms}
    made |= {"generation_before": number - 1, "generation_after": number, "erased": erased}
    made |= {"erased_offsets": None}
    return replace(
        old,
        checkpoint=replace(old.checkpoint, **new, **files, erased=erased),
        run=replace(run, seconds="{}", anew=False, expired=None, **made),
        partition_state=old.partition_state and replace(old.partition_state, **new),
    )


def runs_at(
    current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]], generation: int | None
) -> dict[Key, RunRow]:
    """Return the committed run that made a generation (None: the current one), of each partition that has it.

    Raises LOST_RUN if a generation is given, and the runs of a partition are lost.
    """
    if generation is not None:
        check_runs(current, chains)
    made = {(key, run.generation_after): run for key, chain in chains.items() for run in chain}
    return {key: made[at] for key, row in current.items() if (at := (key, generation or row.generation)) in made}


def lost_runs(current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]]) -> dict[Key, GenerationError]:
    """Return an error for each partition that has a generation, but no run; its older generations are unknown too."""
    lost = [key for key, row in sorted(current.items()) if row.generation > 0 and not chains.get(key)]
    return {key: LOST_RUN(partition=names.partition_folder(*key)) for key in lost}


def check_runs(current: Mapping[Key, Checkpoint], chains: Mapping[Key, Sequence[RunRow]]) -> None:
    """Raise LOST_RUN if the runs of a partition, and so its older generations, are unknown."""
    for error in lost_runs(current, chains).values():
        raise error


def manifests_of(tables: State, generations: Iterable[Generation]) -> dict[Key, list[Segment]]:
    """Return the segments of generations, by partition, each list by base offset."""
    return tables.manifests({one.key: (one.generation, one.run_id) for one in generations})


def nobody_has(generation: int) -> UsageError:
    """Return the error for a generation that no partition has."""
    return NO_GENERATION(
        partition="every partition",
        found=generation,
        reason="never committed",
        expected="one of the generations of the store",
    )


def older_generations(state: State, chain: Sequence[RunRow]) -> Iterator[Commit]:
    """Yield the older generations whose files are still in the store. chain: the committed runs of one partition, by
    time, the newest first. Raise BAD_MANIFEST for a damaged manifest.
    """
    for folder in dict.fromkeys(run.folder for run in chain[1:]):
        try:
            commit = read_manifest(state.root, folder)
        except FileNotFoundError:
            continue
        if not any(other_files(state.root, commit)):
            yield commit


def open_store(uri: str) -> State:
    """Return the state of a store that holds a generation. Raise MissingPathError if it holds none, AccessError."""
    state = open_state(uri)
    store = state.root
    found = store.filesystem.get_file_info(store.full(table_folder(CHECKPOINTS)))  # tells why a bucket does not answer
    if found.type != pafs.FileType.Directory or not state.exists():
        raise MissingPathError(path=store.uri, expected=f"a store, with {table_folder(CHECKPOINTS)}", found="none")
    return state
