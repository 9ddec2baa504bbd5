"""Generations of a store: current ones, older ones, and those that a rollback makes.

The row of `compaction_checkpoints` decides which generation is current. Older ones are known by the manifests in their
folders: no table of history is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, Final

from pyarrow import fs as pafs

from lastkey.jobs.errors import NO_GENERATION, GenerationError, MissingPathError, UsageError
from lastkey.jobs.store.erasures import check_nothing_comes_back
from lastkey.jobs.store.folders import list_run_folders
from lastkey.jobs.store.manifests import other_files, read_manifest
from lastkey.jobs.store.paths import CHECKPOINTS, COMMITTED, table_folder
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import Root, exists, sizes_in

_AT_ONCE: Final = 8  # partitions


def file_names(store: Root, row: Checkpoint) -> set[str]:
    """Return the names of the files in a generation's folder; none if vacuum has deleted it."""
    return set(sizes_in(store, row.folder))


def snapshots(row: Checkpoint, files: Iterable[str]) -> tuple[tuple[int, str], ...]:
    """Return (offset, path) of a generation's producer snapshots, rising; files: the names in its folder."""
    found = (file for name in files if (file := names.parse_segment_file(name)) and file.kind == names.SNAPSHOT)
    return tuple(sorted((f.base, f"{row.folder}/{names.segment_file(f.base, names.SNAPSHOT)}") for f in found))


def located_segments(
    row: Checkpoint | RunRow,
    manifest: Iterable[Segment],
    roots: Mapping[str, str],
    files: Collection[str] | None = None,
) -> tuple[Segment, ...]:
    """Return a generation's segments with `roots` in place of "store" and "archive", and their indexes in its folder.

    files: the names in that folder, to leave out indexes that are not there; None: name those that there should be.
    """

    def index(segment: Segment, kind: str) -> str | None:
        name = names.segment_file(segment.base_offset, kind)
        expected = kind != names.TXN_INDEX or segment.txn_index_bytes > 0 if files is None else name in files
        return f"{row.folder}/{name}" if expected else None

    return tuple(
        replace(
            s,
            root=roots[s.root],
            index=index(s, names.INDEX),
            time_index=index(s, names.TIME_INDEX),
            txn_index=index(s, names.TXN_INDEX),
            side_root=roots["store"],
        )
        for s in manifest
    )


def make_rollback(old: Commit, number: int, run_id: str, parent_run_id: str, now_ms: int, erased: str | None) -> Commit:
    """Return the commit of generation `number`, which uses the files of an older one; parent_run_id: the run of the
    previous generation, on which the commit is planned; erased: the bounds that hold now.
    """
    run, did = old.run, ("records_", "dropped_", "batches_", "bytes_", "splits")
    new: dict[str, Any] = {"generation": number, "run_id": run_id}
    files: dict[str, Any] = {
        "back_to": run.back_to or run.generation_after,
        "back_to_run_id": run.back_to_run_id or run.run_id,
    }
    values: dict[str, Any] = {f.name: 0 for f in fields(RunRow) if f.name.startswith(did)} | files
    values |= {"run_id": run_id, "parent_run_id": parent_run_id, "now_ms": now_ms, "started_ms": now_ms}
    values |= {"generation_before": number - 1, "generation_after": number, "erased": erased}
    values |= {"erased_offsets": None}
    return replace(
        old,
        checkpoint=replace(old.checkpoint, **new, **files, erased=erased),
        run=replace(run, seconds="{}", reset=False, expired=None, **values),
        partition_state=old.partition_state and replace(old.partition_state, **new),
    )


def list_generations(root: Root, row: Checkpoint) -> Iterator[tuple[int, Commit | GenerationError]]:
    """Yield the generations of a partition that its folders hold, newest first, from the current one (row) on: number,
    and commit, or the error of a manifest that cannot be read.

    A manifest names its parent, and no other folder of that number is a parent. If the parent is missing, the next
    older folder that has a file `committed` follows. Costs one listing and a read for each generation.
    """
    older = ((number, path) for path, (number, _) in list_run_folders(root, *row.key) if number < row.generation)
    parent = row.generation, row.own_folder
    for number, path in (parent, *sorted(older, reverse=True)):
        if (number, path) != parent and (number >= parent[0] or not exists(root, f"{path}/{COMMITTED}")):
            continue  # the run died, or older tables replaced its history
        try:
            commit = read_manifest(root, path)
        except GenerationError as error:
            if number == row.generation or exists(root, f"{path}/{COMMITTED}"):  # else vacuum has deleted it
                yield number, error
        else:
            yield number, commit
            parent = commit.run.generation_before, commit.parent


def list_each(root: Root, current: Mapping[Key, Checkpoint]) -> dict[Key, list[tuple[int, Commit | GenerationError]]]:
    """Return `list_generations` of partitions."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda row: list(list_generations(root, row)), current.values())
        return dict(zip(current, found, strict=True))


def checkpoint_at(root: Root, row: Checkpoint, generation: int) -> Checkpoint | None:
    """Return the checkpoint of a generation of a partition (row: of the current one); None if it is not there. Raise
    GenerationError if its manifest cannot be read.
    """
    if row.generation <= generation:
        return row if row.generation == generation else None
    number, commit = next((each for each in list_generations(root, row) if each[0] <= generation), (0, None))
    if number == generation and isinstance(commit, GenerationError):
        raise commit
    return commit.checkpoint if number == generation and isinstance(commit, Commit) else None


def readable_at(root: Root, current: Mapping[Key, Checkpoint], generation: int) -> dict[Key, Checkpoint]:
    """Return `checkpoint_at` of each partition that still has the generation. Raise ERASED_RECORDS for one that may
    hold records erased since.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = pool.map(lambda row: checkpoint_at(root, row, generation), current.values())
        readable = {key: row for key, row in zip(current, rows, strict=True) if row is not None}
    for key, row in readable.items():
        check_nothing_comes_back(row, current[key])
    return readable


def nobody_has(generation: int) -> UsageError:
    """Return the error for a generation that no partition has."""
    return NO_GENERATION(
        partition="every partition",
        found=generation,
        reason="never committed",
        expected="one of the generations of the store",
    )


def current_commits(root: Root, rows: Iterable[Checkpoint]) -> list[Commit]:
    """Return the commits of partitions' current generations. Raise GenerationError if one cannot be read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda row: read_manifest(root, row.own_folder), rows))


def own_and_older(root: Root, row: Checkpoint) -> tuple[Commit, list[Commit]]:
    """Return the commit of a partition's current generation (row), and of the older ones whose files in the store are
    all there, newest first. Raise GenerationError for a manifest that cannot be read.
    """
    commits = []
    for _, commit in list_generations(root, row):
        if isinstance(commit, GenerationError):
            raise commit
        commits.append(commit)
    return commits[0], [commit for commit in commits[1:] if not any(other_files(root, commit))]


def open_store(uri: str) -> State:
    """Return the state of a store that holds a generation. Raise MissingPathError if it holds none, AccessError."""
    state = open_state(uri)
    store = state.root
    found = store.filesystem.get_file_info(store.full(table_folder(CHECKPOINTS)))  # shows why a bucket does not answer
    if found.type != pafs.FileType.Directory or not state.checkpoints():
        raise MissingPathError(path=store.uri, expected=f"a store, with {table_folder(CHECKPOINTS)}", found="none")
    return state
