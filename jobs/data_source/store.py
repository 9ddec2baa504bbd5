"""Partitions of a store's generations, read from its Delta tables without a Spark session.

Spark plans a Python source in a process that has no session; the tables are small, and delta-rs reads them in
milliseconds. A generation is one commit: the one that is read here stays as it is while the next one is written, until
vacuum deletes its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lastkey.jobs.data_source.options import ReadOptions
from lastkey.jobs.errors import NO_GENERATION, UsageError
from lastkey.jobs.store.generations import (
    file_names,
    list_generations,
    located_segments,
    open_store,
    readable_at,
    snapshots,
)
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.logformat.listing import Segment
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import Root, absent, normal_uri, same_kind


def generation_partitions(options: ReadOptions) -> list[SourcePartition]:
    """Return the wanted partitions, each at the generation that the options name, or at its current one.

    A path in the options is the present place of the archive. Raise MissingPathError without a store, NO_GENERATION for
    a generation that no wanted partition has, or whose files are missing.
    """
    state = open_store(options.store or "")
    store = state.root
    if len(options.paths) > 1:
        raise UsageError(message="store: expected at most one path with it (where the archive is now)")
    current = state.checkpoints()
    wanted = {key: row for key, row in current.items() if options.selection.partition(*key)}
    options.selection.check((topic for topic, _ in current), f"the store {store.uri}", some=bool(wanted))
    generations = list(wanted.values()) if options.generation is None else _at(state, wanted, options.generation)
    manifests = state.manifests(generations)
    archive = normal_uri(options.paths[0]) if options.paths else None
    partitions = []
    for row in sorted(generations, key=lambda row: row.key):
        files, manifest = file_names(store, row), manifests[row.key]
        # after a run by yield, its logs are in the folders of earlier generations too
        missing = absent(store, [(segment.path, segment.size_bytes) for segment in manifest if segment.root == "store"])
        if missing:
            raise NO_GENERATION(
                partition=row.name,
                found=row.generation,
                reason=f"its files are gone ({missing[0]})",
                expected="a generation that vacuum has not deleted",
            )
        partitions.append(generation_partition(store, row, manifest, archive, files))
    return partitions


def _at(state: State, wanted: Mapping[Key, Checkpoint], generation: int) -> list[Checkpoint]:
    """Return the generation of each partition that has it. Raise NO_GENERATION if none has."""
    rows = readable_at(state.root, wanted, generation)
    if gone := sorted(key for key, row in wanted.items() if row.generation > generation and key not in rows):
        raise NO_GENERATION(
            partition=names.partition_folder(*gone[0]),
            found=generation,
            reason="its files are gone",
            expected="a generation that vacuum has not deleted",
        )
    if not rows:
        numbers = sorted({number for row in wanted.values() for number, _ in list_generations(state.root, row)})
        raise NO_GENERATION(
            partition="every partition",
            found=generation,
            reason="never committed",
            expected=f"one of {', '.join(map(str, numbers))}",
        )
    return list(rows.values())


def generation_partition(
    store: Root, checkpoint: Checkpoint, manifest: Iterable[Segment], archive: str | None, files: Collection[str]
) -> SourcePartition:
    """Return a generation to read. archive: where it is, if it moved; files: the names in the generation's folder."""
    before = normal_uri(checkpoint.archive_uri)
    roots = {"store": store.uri, "archive": before if archive is None else same_kind(archive, before)}
    has_epochs = names.LEADER_EPOCH_CHECKPOINT in files
    return SourcePartition(
        *checkpoint.key,
        located_segments(checkpoint, manifest, roots, files),
        checkpoint.log_start_offset,
        checkpoint.next_offset,
        store.uri,
        snapshots(checkpoint, files),
        f"{checkpoint.folder}/{names.LEADER_EPOCH_CHECKPOINT}" if has_epochs else None,
        sealed=True,
    )
