"""Manifest of a generation, as a file in its folder: a lost `state/` can be made again from the manifests.

`manifest.json` is written last of a run's files and flushed before the commit, so a folder without it belongs to a run
that died early. It holds the rows that the commit brings to the tables:

    {"format": 3, "crc32c": of the text of "generation", as json.dumps writes it with sorted keys,
     "generation": {"checkpoint": {...}, "segments": [{...}, ...], "run": {...}, "partition_state": {...} or null}}

The row of `compaction_checkpoints` decides which generation is current; the manifest is what the store knows of an
older one. The folder of a rollback holds no segments.

An empty file `committed` next to it marks a completed commit. It is written after the commit. If a crash comes between
the two, a vacuum, or the commit that replaces this generation, writes it, since the table names the generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import google_crc32c
from pyarrow import fs as pafs

from lastkey.jobs.errors import BAD_MANIFEST, LINKED_FOLDER, ConflictError, GenerationError
from lastkey.jobs.store import rows
from lastkey.jobs.store.paths import COMMITTED, MANIFEST, partition_folder
from lastkey.jobs.store.rows import Checkpoint, Commit, PartitionState, RunRow
from lastkey.logformat import names
from lastkey.udfs.storage import Root, flush, flush_all, is_link, make_folder, put_file, sizes_in

_AT_ONCE: Final = 8


def to_json(commit: Commit) -> bytes:
    """Return the manifest as bytes."""
    run, segments = rows.columns(commit.run), rows.segment_rows(commit)
    generation = dataclasses.asdict(commit) | {"segments": segments, "run": run}
    return json.dumps({"format": rows.FORMAT, "crc32c": _checksum(generation), "generation": generation}).encode()


def from_json(data: bytes, path: str) -> Commit:
    """Parse a manifest into the commit that it was written for. Raise BAD_MANIFEST for a torn or damaged one, or
    another format.
    """
    try:
        content = json.loads(data)
        if content["format"] != rows.FORMAT:
            raise BAD_MANIFEST(path=path, expected=f"format {rows.FORMAT}", found=content["format"])
        generation = content["generation"]
        if content["crc32c"] != _checksum(generation):
            raise BAD_MANIFEST(path=path, expected=f"CRC-32C {content['crc32c']}", found=_checksum(generation))
        state = generation["partition_state"]
        commit = Commit(
            checkpoint=rows.parse_row(Checkpoint, generation["checkpoint"]),
            segments=[rows.parse_segment(row) for row in generation["segments"]],
            run=rows.parse_row(RunRow, generation["run"]),
            partition_state=state and rows.parse_row(PartitionState, state),
        )
        rows.to_arrow(RunRow, [commit.run])  # raises for values that the tables cannot hold
        rows.to_checkpoints([commit])
        keys = {(one["topic"], one["partition"]) for one in (generation["run"], *generation["segments"])}
        if foreign := keys - {commit.key}:
            raise BAD_MANIFEST(path=path, expected=f"rows of {commit.key}", found=f"rows of {min(foreign)}")
        places = (rows.segment_places(commit.key, segment) for segment in commit.segments)
        rows.check_places([commit.checkpoint.places, commit.run.places, *places], path, BAD_MANIFEST)
        return commit
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BAD_MANIFEST(path=path, expected="a manifest of a generation", found=repr(error)) from error


def write_manifests(store: Root, commits: Sequence[Commit]) -> None:
    """Write the manifests of a wave, each into its generation's folder, and flush all. Raise ConflictError if a folder
    is missing: a vacuum without grace deleted it.
    """

    def write(commit: Commit) -> None:
        put_file(store, f"{commit.folder}/{MANIFEST}", to_json(commit))

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(write, commits))
        flush_all(store, [path for one in commits for path in (f"{one.folder}/{MANIFEST}", one.folder)])
    except FileNotFoundError as error:
        path = min((one.folder for one in commits if one.folder in str(error)), default="")
        expected = "the folder that this run wrote"
        raise ConflictError(path=f"{store.uri}/{path}", expected=expected, found="none") from error


def make_folders(store: Root, commits: Sequence[Commit]) -> None:
    """Make the folders of generations that have no files of their own, and flush them. Raise LINKED_FOLDER before
    that if a partition's folder is a symbolic link.
    """
    for folder in {partition_folder(*commit.key) for commit in commits}:
        if is_link(store, folder):
            raise LINKED_FOLDER(path=f"{store.uri}/{folder}")
    for commit in commits:
        make_folder(store, commit.folder)
        flush(store, partition_folder(*commit.key))


def write_committed_files(store: Root, folders: Sequence[str]) -> None:
    """Write the file `committed` into the folders of committed generations that lack it, but not through a link."""
    folders = [
        each
        for each in folders
        if not any(is_link(store, path) for path in (each.rpartition("/")[0], each, f"{each}/{COMMITTED}"))
    ]
    paths = [store.full(f"{folder}/{COMMITTED}") for folder in folders]
    infos = store.filesystem.get_file_info(paths) if paths else []
    write_committed(
        store, [each for each, info in zip(folders, infos, strict=True) if info.type == pafs.FileType.NotFound]
    )


def write_committed(store: Root, folders: Sequence[str]) -> None:
    """Write the file `committed` into the folders of committed generations."""

    def write(folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):  # a deleted folder cannot be mistaken for a current generation
            put_file(store, f"{folder}/{COMMITTED}", b"")
            return [f"{folder}/{COMMITTED}", folder]
        return []

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        written = list(pool.map(write, folders))
    with contextlib.suppress(FileNotFoundError):
        flush_all(store, itertools.chain.from_iterable(written))


def read_manifests(store: Root, folders: Collection[str]) -> dict[str, Commit]:
    """Return the manifests of folders, without those that are missing or damaged."""

    def read(folder: str) -> tuple[str, Commit] | None:
        with contextlib.suppress(GenerationError):
            return folder, read_manifest(store, folder)
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(filter(None, pool.map(read, folders)))


def read_manifest(store: Root, folder: str) -> Commit:
    """Return the manifest of a run's folder. Raise GenerationError if there is none, or if it has changed."""
    path = f"{folder}/{MANIFEST}"
    try:
        with store.filesystem.open_input_stream(store.full(path), compression=None) as stream:
            commit = from_json(bytes(stream.read()), path)
    except FileNotFoundError:
        raise BAD_MANIFEST(path=path, expected="a manifest of a generation", found="no such file") from None
    if commit.folder != folder:
        raise BAD_MANIFEST(path=path, expected=f"the manifest of {folder}", found=f"that of {commit.folder}")
    return commit


def read_whole(store: Root, folder: str) -> tuple[Commit | None, str]:
    """Return the commit of a run's folder (None: its manifest cannot be read), and what is wrong with it, or ""."""
    try:
        commit = read_manifest(store, folder)
    except GenerationError as error:
        return None, str(error)
    for path, size, seen in other_files(store, commit):
        expected, found = "some" if size is None else size, "none" if seen is None else seen
        return commit, f"{path}: expected {expected} bytes, found {found}"
    return commit, ""


def other_files(store: Root, commit: Commit) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the files of a generation that differ from its manifest: path below the store, bytes expected (None: more
    than 0), bytes found (None: no such file).
    """
    folder = commit.checkpoint.folder  # a rollback's files are in an older one
    sizes: dict[str, int | None] = {f"{folder}/{name}": size for name, size in sizes_in(store, folder).items()}
    wanted = dict(_files(commit, folder))
    older = [path for path in wanted if not path.startswith(f"{folder}/")]
    infos = store.filesystem.get_file_info([store.full(path) for path in older])
    sizes |= {path: info.size for path, info in zip(older, infos, strict=True)}
    for path, size in wanted.items():
        seen = sizes.get(path)
        if seen != size if size is not None else not seen:
            yield path, size, seen


def check_files(store: Root, commits: Iterable[Commit]) -> None:
    """List the files of generations once more. Raise ConflictError if one differs from its manifest: another process
    changed it, such as a vacuum without grace.
    """
    for commit in commits:
        for path, size, seen in other_files(store, commit):
            raise ConflictError(
                path=f"{store.uri}/{path}",
                expected=f"{'a non-empty file' if size is None else f'{size} bytes'}, just before the commit",
                found="no such file" if seen is None else f"{seen} bytes",
            )


def _files(commit: Commit, folder: str) -> Iterator[tuple[str, int | None]]:
    """Yield every file of a generation, as a path below the store, and its size; None: more than 0."""
    for s in commit.segments:
        if s.root == "store":
            yield s.path, s.size_bytes
        yield f"{folder}/{names.segment_file(s.base_offset, names.INDEX)}", s.offset_index_bytes
        yield f"{folder}/{names.segment_file(s.base_offset, names.TIME_INDEX)}", s.time_index_bytes
        if s.txn_index_bytes:
            yield f"{folder}/{names.segment_file(s.base_offset, names.TXN_INDEX)}", s.txn_index_bytes
        if s.base_offset != commit.checkpoint.log_start_offset:
            yield f"{folder}/{names.segment_file(s.base_offset, names.SNAPSHOT)}", None
    yield f"{folder}/{names.segment_file(commit.checkpoint.next_offset, names.SNAPSHOT)}", None
    yield f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}", None
    if commit.checkpoint.topic_id is not None:
        yield f"{folder}/{names.PARTITION_METADATA}", None
    yield f"{commit.folder}/{MANIFEST}", None


def _checksum(generation: object) -> int:
    return int(google_crc32c.value(json.dumps(generation, sort_keys=True).encode()))
