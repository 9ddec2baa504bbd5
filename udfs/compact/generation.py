"""The files of a new generation: cleaned segments with their indexes, and the side files of every segment.

A generation's folder holds what a broker needs beside each `.log`, also for the segments whose `.log` stays in the
archive. Nothing here is visible to anybody before `jobs.store.tables` commits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from logformat.batches.chunks import ChunkBuffer
from logformat.errors import LogFormatError, unless_unreadable
from logformat.names import LEADER_EPOCH_CHECKPOINT, segment_file
from logformat.side_files import checkpoints, producer_snapshot, transaction_index
from logformat.side_files.checkpoints import EpochEntry
from udfs.compact.analyse import Analysis, WrittenGeneration
from udfs.compact.clean_batches import OUT_BATCH
from udfs.compact.cleaner import SegmentFacts
from udfs.compact.piece_stack import Group, PieceStack
from udfs.compact.place_segments import (
    check_written,
    make_folder,
    place_one,
    read_side_file,
    write_indexes,
    write_side_files,
)
from udfs.compact.plan import PartitionPlan
from udfs.compact.retention import taken
from udfs.compact.scan_segment import read_again
from udfs.compact.segment_output import SegmentOutput, manifest_row, read_back
from udfs.compact.sources import Source
from udfs.compact.what_expires import expired
from udfs.segments import OutputSegment, SideFile, side_checksums
from udfs.storage import Root, exists, flush, flush_folder, make_private, open_root, opened


def remove_folder(plan: PartitionPlan) -> None:
    """Take away what was written for a generation that will not be; what cannot be removed is vacuum's."""
    if not plan.dry_run:
        store = open_root(plan.store_uri)
        with suppress(OSError):
            if exists(store, plan.folder):
                store.filesystem.delete_dir(store.full(plan.folder))


def write_group(plan: PartitionPlan, analysis: Analysis, group: Group, buffer: ChunkBuffer) -> OutputSegment:
    """Write one cleaned segment with its indexes, flush it, and read it back."""
    if plan.dry_run:
        rows = group.stack.rows()
        return manifest_row(group, "", rows, 0, (0, 0, 0))
    store = make_folder(plan)
    output = SegmentOutput(store, plan.folder, group.base_offset, plan.settings)
    digest = group.stack.digest
    for rows, data in group.stack.drain(analysis.sources):
        output.append(rows, data)
    return finish_segment(plan, analysis.kept_aborts, store, output, group, digest, buffer)


def finish_segment(
    plan: PartitionPlan,
    kept_aborts: np.ndarray,
    store: Root,
    output: SegmentOutput,
    group: Group,
    digest: int,
    buffer: ChunkBuffer,
) -> OutputSegment:
    """Close a written segment, write its indexes, read it back."""
    rows, offset_index, time_index = output.close()
    inside = (kept_aborts["last_offset"] >= group.base_offset) & (kept_aborts["last_offset"] < group.next_offset)
    txn_index = transaction_index.write(kept_aborts[inside])
    checksums = write_indexes(store, plan.folder, group.base_offset, offset_index, time_index, txn_index)
    read_back(store, output.path, rows, output.checksum, digest, plan.settings.max_decompressed_batch_bytes, buffer)
    sizes = (len(offset_index), len(time_index), len(txn_index))
    return manifest_row(group, output.path, rows, output.checksum, sizes, checksums)


def write_generation(plan: PartitionPlan, analysis: Analysis, cleaned: Sequence[OutputSegment]) -> WrittenGeneration:
    """All other files of the generation, of which retention takes the oldest segments. cleaned: what replaces the first
    `analysis.head` sources.
    """
    by_rule = expired(plan, _facts(analysis, cleaned), analysis.sealed)
    n_gone = sum(by_rule.values())
    untouched = analysis.untouched
    kept_from = untouched.start + max(n_gone - len(cleaned), 0)
    gone = [*cleaned[:n_gone], *(untouched_row(plan, analysis, n) for n in range(untouched.start, kept_from))]
    segments = [*cleaned[n_gone:], *(_untouched(plan, analysis, n) for n in range(kept_from, untouched.stop))]
    if not segments:
        segments = [_empty_at_end(plan, analysis)]
    log_start = max(plan.log_start_offset, segments[0].base_offset) if n_gone else plan.log_start_offset
    notes: tuple[str, ...] = ()
    if plan.dry_run and plan.settings.retention_bytes >= 0 and any(s.codecs not in ("", "none") for s in cleaned):
        notes = (f"{plan.topic}-{plan.partition}: retention.bytes goes by estimated sizes in a dry run",)
    generation = WrittenGeneration(
        tuple(segments),
        log_start,
        taken(by_rule, [(s.base_offset, s.next_offset, s.records, s.size_bytes) for s in gone]),
        tuple(gone),
        notes,
    )
    if plan.dry_run:
        return generation
    store = make_folder(plan)
    for segment in cleaned[:n_gone]:
        if segment.cleaned:
            _remove_segment(plan, store, segment)
    side_files = _snapshots(plan, analysis, [s.base_offset for s in segments], log_start)
    epochs, note = _epochs(plan, analysis)
    if n_gone or plan.expired_until or plan.known_epochs is not None:
        epochs = checkpoints.truncate_from_start(epochs, log_start)
    side_files[LEADER_EPOCH_CHECKPOINT] = checkpoints.write_leader_epochs(epochs)
    if plan.topic_id is not None:
        topic_id = checkpoints.parse_uuid(plan.topic_id, f"{plan.topic}-{plan.partition}")
        side_files["partition.metadata"] = checkpoints.write_partition_metadata(topic_id)
    segments = _with_checksums(segments, write_side_files(store, plan.folder, side_files))
    if store.is_local:
        flush_folder(store, plan.folder)
    return replace(generation, segments=tuple(segments), notes=generation.notes + note)


def _with_checksums(segments: Sequence[OutputSegment], checksums: dict[str, int]) -> list[OutputSegment]:
    """The rows, each with what is known of the files of its base; the last one with the rest, of the generation."""
    out = []
    for segment in segments:
        own = segment_file(segment.base_offset, "snapshot")
        more = checksums if segment is segments[-1] else {own: checksums.pop(own)} if own in checksums else {}
        known = side_checksums([segment.side_files]) | more
        out.append(replace(segment, side_files=json.dumps(known)))
    return out


def _facts(analysis: Analysis, cleaned: Sequence[OutputSegment]) -> SegmentFacts:
    """What retention asks of the segments that there would be."""
    sources = [analysis.sources[n] for n in analysis.untouched]
    rows = [(s.base_offset, s.size_bytes, s.max_timestamp_ms, s.mtime_ms) for s in cleaned]
    rows += [(s.scan.base_offset, s.scan.size, s.scan.max_timestamp, s.mtime_ms) for s in sources]
    base, size, largest, mtime = np.array(rows, np.int64).reshape(-1, 4).T
    return SegmentFacts(base, size, largest, np.full(len(rows), -1, np.int64), mtime)


def _empty_at_end(plan: PartitionPlan, analysis: Analysis) -> OutputSegment:
    """What is left where retention took all: an empty segment at the log end, as the one that a broker rolls first."""
    end, mtime_ms = analysis.log_end_offset, analysis.sources[-1].mtime_ms
    group = Group(end, end, mtime_ms, source_bytes=0, source_records=0, stack=PieceStack(0))
    return place_one(plan, manifest_row(group, "", np.empty(0, OUT_BATCH), 0, (0, 0, 0)))


def _remove_segment(plan: PartitionPlan, store: Root, segment: OutputSegment) -> None:
    """Take away a cleaned segment that retention took: nobody knows it yet."""
    for kind in ("log", "index", "timeindex", *(("txnindex",) if segment.txn_index_bytes else ())):
        store.filesystem.delete_file(store.full(f"{plan.folder}/{segment_file(segment.base_offset, kind)}"))


def _untouched(plan: PartitionPlan, analysis: Analysis, number: int) -> OutputSegment:
    """The manifest's row, and the side files, of a segment that is not cleaned."""
    source, scan = analysis.sources[number], analysis.sources[number].scan
    row, txn_index = untouched_row(plan, analysis, number), _txn_index(analysis, number)
    if plan.dry_run:
        return row
    store = make_folder(plan)
    if plan.segments[number].from_offset:
        row = replace(row, root="store", path=f"{plan.folder}/{segment_file(scan.base_offset, 'log')}")
        _copy_rest(source, store, row.path)
    checksums = write_indexes(store, plan.folder, scan.base_offset, scan.offset_index, scan.time_index, txn_index)
    return replace(row, side_files=json.dumps(checksums))


def _txn_index(analysis: Analysis, number: int) -> bytes:
    base, end = analysis.sources[number].scan.base_offset, analysis.end_of(number)
    inside = (analysis.aborted["last_offset"] >= base) & (analysis.aborted["last_offset"] < end)
    return transaction_index.write(analysis.aborted[inside])


def untouched_row(plan: PartitionPlan, analysis: Analysis, number: int) -> OutputSegment:
    """The manifest's row of a source that is not rewritten."""
    scan, segment = analysis.sources[number].scan, plan.segments[number]
    return OutputSegment(
        base_offset=scan.base_offset,
        root="store" if plan.is_ours(segment.listed) else "archive",
        path=segment.listed.path,
        size_bytes=scan.size,
        next_offset=analysis.end_of(number),
        last_offset=scan.last_offset,
        batches=scan.n_batches,
        records=scan.n_records,
        tombstones=-1,
        max_timestamp_ms=scan.max_timestamp,
        mtime_ms=segment.listed.mtime_ms,
        codecs=scan.codecs,
        checksum=scan.checksum,
        source_bytes=scan.size,
        source_records=scan.n_records,
        cleaned=False,
        offset_index_bytes=len(scan.offset_index),
        time_index_bytes=len(scan.time_index),
        txn_index_bytes=len(_txn_index(analysis, number)),
        min_timestamp_ms=analysis.least.get(number, segment.min_timestamp_ms),
    )


def _copy_rest(source: Source, store: Root, path: str) -> None:
    """An archived segment whose beginning is in the generation already: its rest becomes a file of ours, flushed to the
    disk as all of them are, and read back.
    """
    scan = source.scan
    make_private(store, path)
    with (
        opened(source.root, source.path) as file,
        store.filesystem.open_output_stream(store.full(path), compression=None) as stream,
    ):
        for chunk in scan.chunks:
            part = np.empty(chunk.size, np.uint8)
            read_again(file, source.path, chunk, part)
            stream.write(part.data)
    flush(store, path)
    check_written(store, path, scan.size, scan.checksum)


def _snapshots(
    plan: PartitionPlan, analysis: Analysis, bases: Sequence[int], log_start_offset: int
) -> dict[str, bytes]:
    """Producer snapshots at the base of every segment, and at the end; the archive's own where it has one there."""
    files = {}
    number = {s.scan.base_offset: i for i, s in enumerate(analysis.sources)}
    given = {s.offset: s for s in plan.snapshots}
    for base in bases:
        if base == log_start_offset:
            continue
        data = None
        if base in given and base != analysis.log_end_offset:
            data = _valid_snapshot(given[base])
        if data is None:
            data = producer_snapshot.write(analysis.producers[number[base]])
        files[segment_file(base, "snapshot")] = data
    end = analysis.log_end_offset
    return files | {segment_file(end, "snapshot"): producer_snapshot.write(analysis.producers[-1])}


def _valid_snapshot(file: SideFile) -> bytes | None:
    with unless_unreadable():
        data = read_side_file(file)
        producer_snapshot.read(data, file.path)
        return data
    return None


def _epochs(plan: PartitionPlan, analysis: Analysis) -> tuple[list[EpochEntry], tuple[str, ...]]:
    """Leader epochs up to the log end, and a note where the last generation's cannot be used.

    The archive's file may have given up what the archive did, or be lost; what the last generation covers stays, and a
    cleaned log does not say where its epochs began. What lies behind it and before the archive's first epoch, the
    batches say: a broker's retention may have overtaken the store.
    """
    known: list[EpochEntry] = []
    notes: tuple[str, ...] = ()
    file = plan.known_epochs
    if file is not None:
        try:
            known = checkpoints.read_leader_epochs(read_side_file(file), file.path)
        except LogFormatError as error:
            if error.kind == "unreadable":
                raise
            notes = (f"{error}; the archive's, or the log, is used",)
    given, epochs = plan.leader_epochs, known
    if given is None or known:
        until = given[0][0] if given else np.iinfo(np.int32).max
        for source in analysis.sources:
            epochs = epochs + [e for e in source.scan.epochs if e[0] <= until and (not epochs or e[0] > epochs[-1][0])]
    if given is not None:
        epochs = checkpoints.with_earlier(given, epochs)
    return checkpoints.truncate_from_end(epochs, analysis.log_end_offset), notes
