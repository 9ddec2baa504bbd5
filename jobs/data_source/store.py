"""The partitions of a store's generations, read from its Delta tables without a Spark session.

Spark plans a Python source in a process that has no session; the tables are small, and delta-rs reads them in
milliseconds. A generation is one commit: what is read here stays as it is while the next one is written, until vacuum
takes its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyarrow import fs as pafs

from jobs.command.typed import nearest
from jobs.data_source.options import ReadOptions
from jobs.errors import MissingPathError, NoGenerationError, UsageError
from jobs.store.paths import CHECKPOINTS, RUNS, SEGMENTS, generation_folder, table_folder
from jobs.store.reader import table_rows
from jobs.store.rows import Checkpoint, RunRow, Segment, histories
from logformat import names
from logformat.locations import text_entries
from udfs.data_source.plan import SourcePartition, SourceSegment
from udfs.storage import Root, normal_uri, open_root

Key = tuple[str, int]
_Run = tuple[int, str, str, int, int]  # generation, run id, archive, log start, next offset


def generation_partitions(options: ReadOptions) -> list[SourcePartition]:
    """The wanted partitions, each at the generation that is asked for, or at its current one.

    With a path the archive is there now. MissingPathError: no store; NoGenerationError: a generation that no wanted
    partition has, or whose files are gone.
    """
    store = open_root(normal_uri(options.store or ""))
    found = store.filesystem.get_file_info(store.full(table_folder(CHECKPOINTS)))
    if found.type != pafs.FileType.Directory:
        raise MissingPathError(path=store.uri, expected=f"a store, with {table_folder(CHECKPOINTS)}", found="none")
    if len(options.paths) > 1:
        raise UsageError(message="store: at most one path beside it, where the archive is now")
    current: dict[Key, Checkpoint] = {
        (row.topic, row.partition): row for row in table_rows(store, CHECKPOINTS, Checkpoint)
    }
    wanted = {key: row for key, row in current.items() if options.selection.partition(*key)}
    if not wanted:
        asked = ", ".join(options.selection.globs or ()) or options.selection.pattern or "what is asked for"
        hint = nearest(asked, sorted({topic for topic, _ in current}))
        raise UsageError(message=f"no partition of the store {store.uri} matches {asked}{hint}")
    runs = {key: _as_run(row, row.generation) for key, row in wanted.items()}
    if options.generation is not None:
        runs = _at(store, wanted, options.generation)
    manifests: dict[Key, list[Segment]] = {key: [] for key in runs}
    run_ids = sorted({run[1] for run in runs.values()})
    for segment in table_rows(store, SEGMENTS, Segment, [("run_id", "in", run_ids)]):
        run = runs.get((segment.topic, segment.partition))
        if run is not None and run[:2] == (segment.generation, segment.run_id):
            manifests[segment.topic, segment.partition].append(segment)
    archive = normal_uri(options.paths[0]) if options.paths else None
    return [_partition(store, key, run, manifests[key], archive) for key, run in sorted(runs.items())]


def _as_run(row: Checkpoint | RunRow, generation: int) -> _Run:
    return generation, row.run_id, row.archive_uri, row.log_start_offset, row.next_offset


def _at(store: Root, wanted: Mapping[Key, Checkpoint], generation: int) -> dict[Key, _Run]:
    """The committed run of each partition that made a generation: along the chain of parents."""
    chains = histories(wanted, table_rows(store, RUNS, RunRow))
    made = {(key, run.generation_after): run for key, chain in chains.items() for run in chain}
    known = {number for _, number in made}
    runs = {key: _as_run(run, generation) for (key, number), run in made.items() if number == generation}
    if not runs:
        raise NoGenerationError(
            partition="every partition", found=generation, reason="never committed",
            expected=f"one of {', '.join(map(str, sorted(known)))}",
        )  # fmt: skip
    return runs


def _partition(store: Root, key: Key, run: _Run, manifest: list[Segment], archive: str | None) -> SourcePartition:
    generation, run_id, archive_uri, log_start, next_offset = run
    folder = generation_folder(*key, generation, run_id)
    listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(folder), allow_not_found=True))
    beside = {info.base_name for info in text_entries(listed)[0] if info.type == pafs.FileType.File}
    for segment in manifest:
        if segment.root == "store" and segment.path.rpartition("/")[2] not in beside:
            raise NoGenerationError(
                partition=names.partition_folder(*key), found=generation, reason=f"its files are gone ({segment.path})",
                expected="a generation that vacuum has not taken",
            )  # fmt: skip
    roots = {"store": store.uri, "archive": archive or normal_uri(archive_uri)}
    segments = [
        SourceSegment(
            roots[s.root], s.path, s.base_offset, s.size_bytes, s.mtime_ms,
            _side_file(folder, s.base_offset, names.INDEX, beside),
            _side_file(folder, s.base_offset, names.TIME_INDEX, beside),
            _side_file(folder, s.base_offset, names.TXN_INDEX, beside), store.uri,
        )
        for s in sorted(manifest, key=lambda s: s.base_offset)
    ]  # fmt: skip
    files = [file for name in beside if (file := names.parse_segment_file(name)) and file.kind == names.SNAPSHOT]
    snapshots = sorted((f.base, f"{folder}/{names.segment_file(f.base, names.SNAPSHOT)}") for f in files)
    epochs = f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}" if names.LEADER_EPOCH_CHECKPOINT in beside else None
    whole = SourcePartition(*key, tuple(segments), log_start, next_offset, store.uri, tuple(snapshots), epochs)
    return replace(whole, sealed=True)


def _side_file(folder: str, base_offset: int, kind: str, there: set[str]) -> str | None:
    name = names.segment_file(base_offset, kind)
    return f"{folder}/{name}" if name in there else None
