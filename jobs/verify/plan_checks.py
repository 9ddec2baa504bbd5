"""Plans of the checks: the segments of an archived partition, or a generation and its parent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lastkey.jobs.archive.listing import Archive, ArchivedPartition
from lastkey.jobs.command.config import Config, JobSettings
from lastkey.jobs.store.coverage import read_by
from lastkey.jobs.store.generations import located_segments
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.problem import Problem
from lastkey.udfs.ranges import Ranges, without
from lastkey.udfs.segments import LastBatch, SideFile
from lastkey.udfs.storage import Root
from lastkey.udfs.verify.blocks import Order
from lastkey.udfs.verify.findings import CheckPlan
from lastkey.udfs.verify.generation import GenerationPlan


def plan_archived(archived: ArchivedPartition, config: Config, *, sealed: bool) -> CheckPlan:
    """Return the checks of an archived partition."""
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
        txn_indexes=names.UPLOADED not in archived.side_files or any(s.txn_index for s in archived.segments),
        log_start_offset=archived.log_start_checkpoint,
        cleaner_checkpoint=archived.cleaner_checkpoint,
        high_watermark=archived.high_watermark,
        sealed=sealed,
        orphans=tuple(archived.located(archived.orphans)),
        gaps_accepted=settings.gaps == "accept",
        index_interval_bytes=settings.index_interval_bytes,
        max_index_bytes=settings.segment_index_bytes,
        max_batch_bytes=settings.max_decompressed_batch_bytes,
        chunk_bytes=config.job.chunk_bytes,
    )


def plan_generation(
    run: RunRow,
    manifest: Sequence[Segment],
    previous: Commit | None,
    archive: Archive | None,
    store: Root,
    archive_uri: str,
    job: JobSettings,
    current: Checkpoint,
) -> GenerationPlan:
    """Return the checks of a generation. `previous`: its parent; None: compare with the archive alone;
    current: the partition's checkpoint, with the offsets that its chain has read, and that retention has deleted.
    """
    settings: dict[str, Any] = json.loads(run.settings)
    erases = settings.get("erases", False)
    if erases:
        settings |= {"retention_ms": -1, "retention_bytes": -1, "retention_exact": False}
    archived = archive.partitions.get((run.topic, run.partition)) if archive is not None else None
    roots = {"store": store.uri, "archive": archive_uri}
    segments = located_segments(run, manifest, roots)
    start_before = _start_before(run, previous, current)
    missing_parent, parent = _parent(run, previous, start_before, archived, roots, manifest)
    starts = _log_starts(archived)
    cleaned = archived.cleaner_checkpoint if archived is not None else 0  # its own broker cleaned below
    parent_known = run.parent_run_id is None or run.reset or previous is not None
    return GenerationPlan(
        side=_plan_side_files(run, segments, archived, settings, store.uri, job.chunk_bytes),
        manifest=tuple(manifest),
        folder=run.folder,
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
        erased=run.dropped_erased if erases else -1,
        expired=tuple(run.went),
        log_start_known=max(start_before, *starts) if archived is not None else run.log_start_offset,
        parent=parent,
        parent_log_start_offset=start_before,
        parent_gone=missing_parent,
        parent_problem=_unlisted(archive, archived, missing_parent, read_by(current)),
        parent_stays_from=max(start_before, cleaned or 0, *starts) if parent_known else MAX_OFFSET,
        task_memory_bytes=job.task_memory_bytes,
    )


def _plan_side_files(
    run: RunRow,
    segments: tuple[Segment, ...],
    archived: ArchivedPartition | None,
    settings: Mapping[str, Any],
    store_uri: str,
    chunk_bytes: int,
) -> CheckPlan:
    bases = [s.base_offset for s in segments if s.base_offset > run.log_start_offset]
    return CheckPlan(
        topic=run.topic,
        partition=run.partition,
        name=names.partition_folder(run.topic, run.partition),
        store_uri=store_uri,
        segments=segments,
        snapshots=tuple(
            SideFile(store_uri, f"{run.folder}/{names.segment_file(base, names.SNAPSHOT)}", base)
            for base in [*bases, run.next_offset]
        ),
        leader_epochs=SideFile(store_uri, f"{run.folder}/{names.LEADER_EPOCH_CHECKPOINT}", 0),
        metadata=SideFile(store_uri, f"{run.folder}/{names.PARTITION_METADATA}", 0) if run.topic_id else None,
        archived_epochs=tuple(archived.leader_epochs or ()) if archived is not None else (),
        log_start_offset=run.log_start_offset,
        generation=True,
        index_interval_bytes=settings["index_interval_bytes"],
        max_index_bytes=settings["segment_index_bytes"],
        max_batch_bytes=settings["max_decompressed_batch_bytes"],
        chunk_bytes=chunk_bytes,
    )


def _start_before(run: RunRow, previous: Commit | None, current: Checkpoint) -> int:
    """Return the log start before the run. If the run's parent is unknown, retention of earlier runs shows it."""
    if previous is not None:
        return previous.checkpoint.log_start_offset
    if run.parent_run_id is None or run.reset:
        return 0
    first: list[int] = [one[1] for one in json.loads(run.expired or "[]")]
    return min(current.expired_until, run.log_start_offset, *first)


def _log_starts(archived: ArchivedPartition | None) -> tuple[int, int]:
    """Return the log start by checkpoint, and by the first segment: a checkpoint names none that is there."""
    if archived is None:
        return 0, 0
    return archived.log_start_checkpoint or 0, archived.segments[0].base_offset if archived.segments else 0


def _unlisted(
    archive: Archive | None, archived: ArchivedPartition | None, missing: str, read: Ranges
) -> Problem | None:
    """Return the problem that hides a partition in an archive that is there; None if it is not hidden."""
    if not missing or archive is None:
        return None
    if archived is None:
        return next(iter(archive.unreadable), None)  # the partition may be in a folder that cannot be listed
    return archived.problem or _lost_beginning(archived, read)


def _lost_beginning(archived: ArchivedPartition, read: Ranges) -> Problem | None:
    """Return the gap before the first segment, unless the log start, the first leader epoch or remote storage explains
    it. Return None also if the store has read all of it: then it may be deleted (`archive-needed`).
    """
    traces = archived.traces
    if not archived.segments or traces.first_epoch is None or archived.begins_elsewhere:
        return None
    begins, epochs = traces.first_epoch
    first = archived.segments[0].base_offset
    if max(begins, traces.log_start) >= first or not without([(begins, first)], read):
        return None
    expected, found = f"a segment at offset {begins}, where the first leader epoch begins", f"the first one at {first}"
    hint = "a file is missing: a broker that deletes the beginning of a log moves its first leader epoch too"
    return Problem("gap", epochs, NO_POSITION, expected, found, hint=hint, state="gap")


def _began_at(run: RunRow, archived: ArchivedPartition | None, start_before: int) -> int:
    """Return the log start that the run found; if retention then moved it, the one before, as far as known. A run with
    a parent holds what the archive's first segment no longer does; the archive may have given up more since.
    """
    if not run.expired:
        return run.log_start_offset
    by_checkpoint, by_segment = _log_starts(archived)
    known = [start_before, by_checkpoint, by_segment if run.parent_run_id is None or run.reset else 0]
    return max(start for start in known if start <= run.log_start_offset)


def _parent(
    run: RunRow,
    previous: Commit | None,
    start_before: int,
    archived: ArchivedPartition | None,
    roots: Mapping[str, str],
    manifest: Iterable[Segment],
) -> tuple[str, tuple[Segment, ...]]:
    """Return (the reason if there are no segments to compare with, else ""; the segments that the run read). The run
    read the previous generation's segments in the store, and the archive from their end on, as far as it went.
    """
    before = sorted(previous.segments, key=lambda s: s.base_offset) if previous is not None else []
    held = [s for s in before if s.root == "store"]
    parent = [replace(s, root=roots["store"]) for s in held]
    first = min([s.base_offset for s in manifest] + [one[1] for one in json.loads(run.expired or "[]")], default=0)
    covered = held[-1].next_offset if held else min(start_before, first)  # earlier expiry is not compared
    if covered < run.next_offset:
        if archived is None or not archived.segments:
            return f"{roots['archive']} no longer holds this partition", ()
        for s, after in zip(archived.segments, [*archived.segments[1:], None], strict=True):
            end = after.base_offset if after is not None else run.next_offset
            if s.base_offset < run.next_offset and end > covered:
                parent.append(replace(s, from_offset=covered) if s.base_offset < covered else s)
    if parent and parent[0].first_offset > first:
        return f"its first offset was {first}, and is now {parent[0].first_offset}", ()
    return "", tuple(parent)
