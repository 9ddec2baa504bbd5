"""The manifest of a generation, as a file in its folder: from these `state/`, lost, can be made again.

`manifest.json` is written last of a run's files and flushed before the commit, so a folder that has none belongs to a
run that died early, or to a version of before format 2. It holds what the commit brings to the tables:

    {"format": 2, "crc32c": of the text of "generation", as json.dumps writes it with sorted keys,
     "generation": {"checkpoint": {...}, "run": {...}, "segments": [{...}, ...], "standing": {...} or null}}

Nothing reads it as long as the tables are there, but for `rollback`.

`rolled-back.json` lies beside it in a generation that a rollback has undone: which one became current instead, and
whether that is known ("made") or was about to be. It is younger than the rest of the folder, so vacuum's grace begins
with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import google_crc32c
from pyarrow import fs as pafs

from jobs.errors import ConflictError, ManifestError
from jobs.store.paths import MANIFEST, ROLLED_BACK, generation_folder
from jobs.store.rows import (
    FORMAT,
    Checkpoint,
    Commit,
    PartitionState,
    RunRow,
    Segment,
    row_of,
    to_arrow,
    to_checkpoints,
)
from logformat import names
from logformat.locations import text_entries
from udfs.storage import Root, flush, write_file

_WRITERS: Final = 8
MAX_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True)
class Mark:
    """That a generation was rolled back, as its folder says."""

    folder: str  # below the store
    next_offset: int  # how far it reaches
    to_generation: int
    to_run_id: str
    made: bool = False  # False: it was about to be made; whether it was, the tables alone know


def folder_of(commit: Commit) -> str:
    """The folder of a generation, below the store."""
    return generation_folder(*commit.key, commit.run.generation_after, commit.run.run_id)


def to_json(commit: Commit) -> bytes:
    """The file's bytes."""
    generation = {
        "checkpoint": dataclasses.asdict(commit.checkpoint),
        "run": dataclasses.asdict(commit.run),
        "segments": [dataclasses.asdict(row) for row in commit.segments],
        "standing": commit.standing and dataclasses.asdict(commit.standing),
    }
    return json.dumps({"format": FORMAT, "crc32c": _checksum(generation), "generation": generation}).encode()


def from_json(data: bytes, path: str) -> Commit:
    """What a run brought to its commit. ManifestError: torn, damaged, or of a newer format."""
    try:
        told = json.loads(data)
        if told["format"] > FORMAT:
            raise ManifestError(path=path, expected=f"format {FORMAT} at the most", found=told["format"])
        generation = told["generation"]
        if told["crc32c"] != _checksum(generation):
            raise ManifestError(path=path, expected=f"CRC-32C {told['crc32c']}", found=_checksum(generation))
        run = row_of(RunRow, generation["run"])
        commit = Commit(
            topic=run.topic,
            partition=run.partition,
            planned_generation=run.generation_before,
            planned_run_id=run.parent_run_id,
            checkpoint=row_of(Checkpoint, generation["checkpoint"]),
            segments=[row_of(Segment, row) for row in generation["segments"]],
            run=run,
            standing=generation["standing"] and row_of(PartitionState, generation["standing"]),
        )
        to_arrow(RunRow, [commit.run])  # values that its tables can hold
        to_arrow(Segment, commit.segments)
        to_checkpoints([(commit.checkpoint, commit.segments, commit.standing)])
        return commit
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ManifestError(path=path, expected="a manifest of a generation", found=repr(error)) from error


def write_manifests(store: Root, commits: Sequence[Commit]) -> None:
    """The manifests of a wave, each into its generation's folder, on the disk when this returns. ConflictError: a
    folder is gone, which a vacuum without grace took.
    """

    def write(commit: Commit) -> None:
        folder = folder_of(commit)
        try:
            write_file(store, f"{folder}/{MANIFEST}", to_json(commit))
            flush(store, folder)
        except FileNotFoundError as error:
            expected = "the folder that this run wrote"
            raise ConflictError(path=f"{store.uri}/{folder}", expected=expected, found="none") from error

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, commits))


def read_manifest(store: Root, folder: str) -> Commit:
    """The manifest of a run's folder. FileNotFoundError: there is none; ManifestError: it is not what was written."""
    path = f"{folder}/{MANIFEST}"
    commit = from_json(read_small(store, path), path)
    if folder_of(commit) != folder:
        raise ManifestError(path=path, expected=f"the manifest of {folder}", found=f"that of {folder_of(commit)}")
    return commit


def whole_run(store: Root, folder: str) -> RunRow | None:
    """The run that wrote a folder to its end; None: there is no manifest, or none that can be read."""
    try:
        return read_manifest(store, folder).run
    except (FileNotFoundError, ManifestError):
        return None


def mark_rolled_back(store: Root, marks: Iterable[Mark]) -> None:
    """Write the marks, each into its folder, on the disk when this returns. A folder that is gone needs none: a run
    takes its own away where it stops before a problem.
    """
    for mark in marks:
        with contextlib.suppress(FileNotFoundError):
            write_file(store, f"{mark.folder}/{ROLLED_BACK}", json.dumps(dataclasses.asdict(mark)).encode())
            flush(store, mark.folder)


def read_mark(store: Root, folder: str) -> Mark | None:
    """The mark of a folder; None: it has none. One that cannot be made out says that nothing is known."""
    try:
        data = read_small(store, f"{folder}/{ROLLED_BACK}")
        return Mark(**(json.loads(data) | {"folder": folder}))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return Mark(folder, MAX_OFFSET, 0, "")


def read_small(store: Root, path: str) -> bytes:
    """A file of ours, whole. FileNotFoundError."""
    with store.filesystem.open_input_stream(store.full(path), compression=None) as stream:
        return bytes(stream.read())


def other_files(store: Root, commit: Commit) -> Iterator[tuple[str, int | None, int | None]]:
    """The files of a generation that are not as its manifest says: path below the store, bytes expected (None: some),
    bytes found (None: no such file). All are as they were where this yields nothing.
    """
    folder = folder_of(commit)
    listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(folder), allow_not_found=True))
    found = {f"{folder}/{info.base_name}": info.size for info in text_entries(listed)[0]}  # None: a folder
    wanted = dict(_files(commit, folder))
    older = [path for path in wanted if not path.startswith(f"{folder}/")]  # .log files that it takes over
    infos = store.filesystem.get_file_info([store.full(path) for path in older])
    found |= {path: info.size for path, info in zip(older, infos, strict=True)}
    for path, size in wanted.items():
        seen = found.get(path)
        if seen != size if size is not None else not seen:
            yield path, size, seen


def check_files(store: Root, commits: Iterable[Commit], expected: str) -> None:
    """That all files of these generations are there still. ConflictError: a vacuum took one; expected: what it is."""
    for commit in commits:
        for path, _, _ in other_files(store, commit):
            raise ConflictError(path=f"{store.uri}/{path}", expected=expected, found="that it is gone")


def _files(commit: Commit, folder: str) -> Iterator[tuple[str, int | None]]:
    """Every file of a generation below the store, and its size; None: above 0."""
    for s in commit.segments:
        if s.root == "store":
            yield s.path, s.size_bytes
        yield f"{folder}/{names.segment_file(s.base_offset, names.INDEX)}", s.offset_index_bytes
        yield f"{folder}/{names.segment_file(s.base_offset, names.TIME_INDEX)}", s.time_index_bytes
        if s.txn_index_bytes:
            yield f"{folder}/{names.segment_file(s.base_offset, names.TXN_INDEX)}", s.txn_index_bytes
        if s.base_offset != commit.run.log_start_offset:
            yield f"{folder}/{names.segment_file(s.base_offset, names.SNAPSHOT)}", None
    yield f"{folder}/{names.segment_file(commit.run.next_offset, names.SNAPSHOT)}", None
    yield f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}", None
    if commit.run.topic_id is not None:
        yield f"{folder}/{names.PARTITION_METADATA}", None
    yield f"{folder}/{MANIFEST}", None


def _checksum(generation: object) -> int:
    return int(google_crc32c.value(json.dumps(generation, sort_keys=True).encode()))
