"""What verify checks of each partition: the segments of an archive, or a generation and its parent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from jobs.archive.listing import Archive, ArchivedPartition
from jobs.command.config import Config
from jobs.store.paths import generation_folder
from jobs.store.rows import RunRow, Segment
from logformat import names
from logformat.listing import ListedSegment
from udfs.segments import LastBatch, OutputSegment, SegmentInput, SideFile
from udfs.storage import Root
from udfs.verify.blocks import Order
from udfs.verify.findings import CheckPlan
from udfs.verify.generation import GenerationPlan


def plan_archived(
    archived: ArchivedPartition, root: Root, config: Config, *, sealed: bool, gaps: str | None = None
) -> CheckPlan:
    """What a task is told of an archived partition."""
    settings = config.topic_settings(archived.topic)

    def side_file(path: str | None) -> SideFile | None:
        return SideFile(archived.root, path, 0) if path is not None else None

    return CheckPlan(
        topic=archived.topic,
        partition=archived.partition,
        name=archived.path,
        store_uri="",
        segments=tuple(archived.segments),
        snapshots=tuple(archived.located(archived.snapshots)),
        leader_epochs=side_file(archived.side_files.get(names.LEADER_EPOCH_CHECKPOINT)),
        metadata=side_file(archived.side_files.get(names.PARTITION_METADATA)),
        log_start_offset=archived.log_start_checkpoint,
        cleaner_checkpoint=archived.cleaner_checkpoint,
        high_watermark=archived.high_watermark,
        sealed=sealed,
        orphans=tuple(archived.located(archived.orphans)),
        gaps_accepted=(gaps or settings.gaps) == "accept",
        index_interval_bytes=settings.index_interval_bytes,
        max_index_bytes=settings.segment_index_bytes,
        max_batch_bytes=settings.max_decompressed_batch_bytes,
        chunk_bytes=config.job.chunk_bytes,
    )


def plan_generation(
    run: RunRow,
    manifest: Sequence[Segment],
    before: Sequence[Segment] | None,
    previous: RunRow | None,
    archive: Archive | None,
    store: Root,
    archive_uri: str,
    chunk_bytes: int,
    task_memory_bytes: int,
) -> GenerationPlan:
    """What a task is told of a generation. `before`: the manifest of the parent; None: the archive alone is."""
    settings: dict[str, Any] = json.loads(run.settings)
    name = names.partition_folder(run.topic, run.partition)
    folder = generation_folder(run.topic, run.partition, run.generation_after, run.run_id)

    def ours(base: int, kind: str) -> str:
        return f"{folder}/{names.segment_file(base, kind)}"

    segments = tuple(
        ListedSegment(
            store.uri if s.root == "store" else archive_uri,
            s.path,
            s.base_offset,
            s.size_bytes,
            s.mtime_ms,
            ours(s.base_offset, names.INDEX),
            ours(s.base_offset, names.TIME_INDEX),
            ours(s.base_offset, names.TXN_INDEX) if s.txn_index_bytes else None,
            store.uri,
        )
        for s in manifest
    )
    bases = [s.base_offset for s in manifest if s.base_offset > run.log_start_offset]
    archived = archive.partitions.get((run.topic, run.partition)) if archive is not None else None
    side = CheckPlan(
        topic=run.topic,
        partition=run.partition,
        name=name,
        store_uri=store.uri,
        segments=segments,
        snapshots=tuple(SideFile(store.uri, ours(base, names.SNAPSHOT), base) for base in [*bases, run.next_offset]),
        leader_epochs=SideFile(store.uri, f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}", 0),
        metadata=SideFile(store.uri, f"{folder}/{names.PARTITION_METADATA}", 0) if run.topic_id else None,
        archived_epochs=tuple(archived.leader_epochs or ()) if archived is not None else (),
        generation=True,
        index_interval_bytes=settings["index_interval_bytes"],
        max_index_bytes=settings["segment_index_bytes"],
        max_batch_bytes=settings["max_decompressed_batch_bytes"],
        chunk_bytes=chunk_bytes,
    )
    start_before = previous.log_start_offset if previous is not None and before is not None else 0
    gone, parent = _parent(run, before, start_before, archived, store.uri, archive_uri, manifest)
    return GenerationPlan(
        side=side,
        manifest=tuple(_row(s) for s in manifest),
        folder=folder,
        log_start_offset=run.log_start_offset,
        next_offset=run.next_offset,
        last_batch=LastBatch(run.last_batch_base_offset, run.last_batch_leader_epoch, run.last_batch_crc),
        first_dirty_offset=run.first_dirty_offset,
        end_offset=run.end_offset,
        now_ms=run.now_ms,
        delete_retention_ms=settings["delete_retention_ms"],
        null_keys=settings["null_keys"],
        compacts=settings.get("compacts", True) and run.compacted,
        retention_ms=settings.get("retention_ms", -1),
        retention_bytes=settings.get("retention_bytes", -1),
        retention_exact=settings.get("retention_exact", False),
        by=Order(
            settings.get("compaction_strategy", "offset"),
            settings.get("compaction_strategy_header", ""),
            _began_at(run, archived, start_before),
        ),
        expired=tuple((*one,) for one in json.loads(run.expired or "[]")),
        log_start_known=max(start_before, *_log_starts(archived)) if archived is not None else run.log_start_offset,
        parent=parent,
        parent_log_start_offset=start_before,
        parent_gone=gone,
        task_memory_bytes=task_memory_bytes,
    )


def _log_starts(archived: ArchivedPartition) -> tuple[int, int]:
    """By its checkpoint, and by its first segment: a broker's checkpoint does not name a log start that lies there."""
    return archived.log_start_checkpoint or 0, archived.segments[0].base_offset if archived.segments else 0


def _began_at(run: RunRow, archived: ArchivedPartition | None, start_before: int) -> int:
    """The log start that the run found; where it moved it itself, as far as is known."""
    if not run.expired:
        return run.log_start_offset
    return start_before if archived is None else max(start_before, *_log_starts(archived))


def _row(s: Segment) -> OutputSegment:
    return OutputSegment(**{name: getattr(s, name) for name in OutputSegment.__dataclass_fields__})


def _parent(
    run: RunRow,
    before: Sequence[Segment] | None,
    start_before: int,
    archived: ArchivedPartition | None,
    store_uri: str,
    archive_uri: str,
    manifest: Iterable[Segment],
) -> tuple[str, tuple[SegmentInput, ...]]:
    """(why there is nothing to compare with, else ""; what the run read): the segments of ours that the generation
    before had, and the archive from there on, as far as the run went.
    """
    held = [s for s in before or () if s.root == "store"]
    parent = [SegmentInput(ListedSegment(store_uri, s.path, s.base_offset, s.size_bytes, s.mtime_ms)) for s in held]
    first = min([s.base_offset for s in manifest] + [one[1] for one in json.loads(run.expired or "[]")], default=0)
    covered = held[-1].next_offset if held else min(start_before, first)  # what had expired before is no parent
    if covered < run.next_offset:
        if archived is None or not archived.segments:
            return f"{archive_uri} does not hold this partition any more", ()
        for s, after in zip(archived.segments, [*archived.segments[1:], None], strict=True):
            end = after.base_offset if after is not None else run.next_offset
            if s.base_offset < run.next_offset and end > covered:
                parent.append(SegmentInput(s, covered if s.base_offset < covered else 0))
    if parent and parent[0].base_offset > first:
        return f"its first offset is {parent[0].base_offset} now, it was {first}", ()
    return "", tuple(parent)
