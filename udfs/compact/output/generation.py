"""The files of a new generation, and the partition's result: cleaned segments with their indexes, and the side files of
every segment.

A generation's folder holds all files that a broker needs beside each `.log`, also for the segments whose `.log` stays
in the archive. These files are not visible before `jobs.store.writing` commits.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from pyarrow import fs as pafs

from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail
from lastkey.logformat.batches.reader import read_headers
from lastkey.logformat.errors import LogFormatError, unless_unreadable
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import LEADER_EPOCH_CHECKPOINT, segment_file
from lastkey.logformat.side_files import checkpoints, producer_snapshot, transaction_index
from lastkey.logformat.side_files.checkpoints import EpochEntry
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.deciders import PendingKeys, list_pending_keys, with_pending
from lastkey.udfs.compact.cleaner import first_dirty_offset, summarize_expired
from lastkey.udfs.compact.output.piece_stack import PieceStack
from lastkey.udfs.compact.output.segment_output import (
    GroupOutput,
    make_generation_folder,
    place_one,
    write_indexes,
    write_side_files,
    written_segment,
)
from lastkey.udfs.compact.plan import (
    MOST_RANGES,
    CleanedLog,
    PartitionPlan,
    PartitionResult,
    ScheduledSegment,
    Work,
    chunk_buffer,
)
from lastkey.udfs.compact.scan.analyse import Analysis
from lastkey.udfs.compact.scan.due import expired, listed_times
from lastkey.udfs.compact.scan.facts_files import write_secret
from lastkey.udfs.compact.scan.scan_segment import read_again
from lastkey.udfs.compact.scan.transactions import open_at, producers_with_unknown_outcome
from lastkey.udfs.read_back import check_written
from lastkey.udfs.segments import (
    ReadFile,
    SegmentScan,
    SideFile,
    new_segment,
    read_side_file,
    side_checksums,
    written_kinds,
)
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, await_flushes, exists, flush_whole, make_private, open_output, open_root


def remove_folder(plan: PartitionPlan) -> None:
    """Delete the files of a generation that will not be committed; `vacuum` deletes what this cannot."""
    if not plan.run.dry_run:
        store = open_root(plan.run.store_uri)
        await_flushes(store, plan.run.folder)  # another try may use the folder again
        remove_folder_at(store, plan.run.folder)


def remove_folder_at(store: Root, folder: str) -> None:
    """Delete a generation's folder, given its path; leave it on OSError."""
    with suppress(OSError):
        if exists(store, folder):
            store.filesystem.delete_dir(store.full(folder))


def remove_attempts(plan: PartitionPlan) -> None:
    """Delete all folders named after the generation's folder, with a suffix; `vacuum` deletes what this cannot."""
    store = open_root(plan.run.store_uri)
    above, _, name = plan.run.folder.rpartition("/")
    with suppress(OSError):
        for info in store.filesystem.get_file_info(pafs.FileSelector(store.full(above), allow_not_found=True)):
            if info.type == pafs.FileType.Directory and info.base_name.startswith(f"{name}."):
                store.filesystem.delete_dir(info.path)


def write_group(
    plan: PartitionPlan, analysis: Analysis, group: Segment, stack: PieceStack, buffer: ChunkBuffer
) -> list[Segment]:
    """Write the segments of a group with their indexes, and read them back; a group without survivors becomes an empty
    one. A dry run returns only the manifest's rows.
    """
    output = GroupOutput(plan, plan.run.folder, group, analysis.kept_aborts)
    digest = stack.digest
    for rows, data in stack.drain(analysis.sources, dry_run=plan.run.dry_run):
        output.append(rows, data)
    segments = output.finish(digest, buffer)
    return segments if segments[0].size_bytes else [place_one(plan, segments[0])]


@dataclass(frozen=True)
class Cleaned:
    """Result of a cleaning, before the other files of the generation are written."""

    analysis: Analysis  # with the sources that are replaced, and the counts of the filters for the others
    segments: Sequence[Segment]  # segments that replace them, in order
    tally: Tally
    keys: PendingKeys | None = None  # keys of the new records, if older segments are not deduplicated against all
    schedule: tuple[ScheduledSegment, ...] = ()
    work: Work = field(default_factory=Work)  # beside the bytes of segments that are cleaned


def write_generation(plan: PartitionPlan, done: Cleaned) -> PartitionResult:
    """Apply retention to the oldest segments, write all other files of the generation, and return the result."""
    analysis = done.analysis
    cleaned = [_with_sources(analysis, row) for row in done.segments]
    untouched = {(row := untouched_row(plan, analysis, n)).base_offset: (n, row) for n in analysis.untouched}
    members = sorted([*cleaned, *(row for _, row in untouched.values())], key=lambda row: row.base_offset)
    facts = listed_times(members, analysis.sources[-1].bytes_above)
    by_rule = expired(plan, facts, analysis.sealed)
    n_gone = sum(by_rule.values())
    deleted, segments = members[:n_gone], list[Segment]()
    for row in members[n_gone:]:
        if row.cleaned:
            segments.append(row)
            continue
        number = untouched[row.base_offset][0]
        # do not depend on the archive for an empty file, unless archived segments precede it: segments of the store
        # come first
        empty = not row.size_bytes and all(s.root == "store" for s in segments[-1:])
        segments.append(_empty(plan, analysis, number) if empty else _untouched(plan, analysis, number, row))
    if not segments:
        segments = [_empty(plan, analysis)]
    log_start = max(plan.input.log_start_offset, segments[0].base_offset) if n_gone else plan.input.log_start_offset
    notes = analysis.notes
    if not plan.run.dry_run:
        segments, note = _write_beside(plan, done, segments, [s for s in deleted if s.cleaned], log_start)
        notes += note
    elif plan.policy.settings.retention_bytes >= 0 and any(s.codecs not in ("", "none") for s in cleaned):
        notes += (f"{plan.name}: retention.bytes goes by estimated sizes in a dry run",)
    clean_end = analysis.cleanable.first_uncleanable_offset
    if not analysis.cleans:
        clean_end = first_dirty_offset(plan.input.first_dirty_offset, log_start, analysis.log_end_offset)
    log = CleanedLog(
        folder=plan.run.folder,
        first_dirty_offset=max(clean_end, log_start),
        log_start_offset=log_start,
        next_offset=analysis.log_end_offset,
        last_batch=analysis.last_batch,
        log_end_timestamp_ms=analysis.sources[-1].segment.max_timestamp_ms,
        segments=tuple(segments),
        segments_before=len(analysis.sources),
        gaps=analysis.gaps,  # also those below the log start: restored files there were never read
        compacted=analysis.cleans,
        erases=plan.policy.erasing is not None,
        expired=summarize_expired(
            by_rule, [(s.base_offset, s.next_offset, s.records, s.size_bytes) for s in deleted], facts.bytes_above
        ),
        archived_files=tuple(_read_whole(plan, analysis)),
    )
    written = [s for s in (*deleted, *segments) if s.cleaned]
    return PartitionResult(
        topic=plan.input.topic,
        partition=plan.input.partition,
        status="cleaned",
        notes=notes,
        cleanable=analysis.cleanable,
        log=log,
        work=_count_work(done, written, sum(s.size_bytes for s in segments)),
        erased_offsets=() if done.tally.erased is None else tuple(map(tuple, done.tally.erased[:MOST_RANGES].tolist())),
        schedule=done.schedule,
    )


def _write_beside(
    plan: PartitionPlan, done: Cleaned, segments: list[Segment], deleted: Sequence[Segment], log_start: int
) -> tuple[list[Segment], tuple[str, ...]]:
    """Write the generation's other files; delete the cleaned segments that retention removes. Return the rows with
    checksums and key files, and a note about leader epochs.
    """
    store = make_generation_folder(plan)
    for segment in deleted:
        for kind in written_kinds(segment):
            store.filesystem.delete_file(store.full(f"{segment.path.removesuffix('.log')}.{kind}"))
    side_files, note = _side_files(plan, done.analysis, segments, log_start)
    rows = () if plan.policy.erasing else (s.segment for s in done.analysis.sources)  # a run by yield starts over then
    pending = [*list_pending_keys(rows), *([] if done.keys is None else [done.keys])]
    segments = with_pending(_with_checksums(segments, write_side_files(store, plan.run.folder, side_files)), pending)
    if plan.policy.by_yield:
        write_secret(store, plan)
    step("generation written")
    flush_whole(store, plan.run.folder)
    return segments, note


def _count_work(done: Cleaned, written: Sequence[Segment], bytes_after: int) -> Work:
    sources, work = done.analysis.sources, done.work
    read = sum(s.facts_bytes or s.size for s in sources) + sum(s.source_bytes for s in written)
    return replace(
        work,
        counters=done.tally.by_name(),
        bytes_read=read + work.bytes_read,
        bytes_written=sum(s.size_bytes + s.facts_bytes for s in written) + work.bytes_written,
        bytes_before=sum(s.size for s in sources),
        bytes_after=bytes_after,
        recompressed_bytes=done.tally.recompressed_bytes,
    )


def _side_files(
    plan: PartitionPlan, analysis: Analysis, segments: Sequence[Segment], log_start: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files of a generation beside those of single segments, by name; and a note about leader epochs."""
    files = _snapshots(plan, analysis, [s.base_offset for s in segments], log_start)
    epochs, note = _epochs(plan, analysis)
    epochs = checkpoints.truncate_from_start(epochs, log_start)  # also where remote storage has the offsets below
    files[LEADER_EPOCH_CHECKPOINT] = checkpoints.write_leader_epochs(epochs)
    if plan.input.topic_id is not None:
        topic_id = checkpoints.parse_uuid(plan.input.topic_id, plan.name)
        files["partition.metadata"] = checkpoints.write_partition_metadata(topic_id)
    return files, note


def _with_sources(analysis: Analysis, row: Segment) -> Segment:
    """Return the completed row of a cleaned segment: the size of its sources, its deduplication bound, and the dead
    records that filters expected in its sources. A source that became several segments counts for the one that holds
    its base.
    """
    starts, superseded = [s.first_offset for s in analysis.sources], analysis.superseded
    numbers = range(bisect_left(starts, row.base_offset), bisect_left(starts, row.next_offset))
    sources = analysis.sources[numbers.start : numbers.stop]
    row = replace(
        row, source_bytes=sum(s.size for s in sources), source_records=sum(s.segment.records for s in sources)
    )
    if not analysis.cleans:
        return row
    begun = bisect_right(starts, row.base_offset) - 1
    counted = any(n in superseded for n in (begun, *numbers))
    expected = sum(superseded.get(n, 0) for n in numbers) if counted else -1
    return replace(row, deduplicated_through=analysis.cleanable.first_uncleanable_offset, expected_dead=expected)


def _with_checksums(segments: Sequence[Segment], checksums: dict[str, int]) -> list[Segment]:
    """Return the rows, each with the checksums of the files at its base; the last row also has those of the
    generation's other files.
    """
    out = []
    for segment in segments:
        own = segment_file(segment.base_offset, "snapshot")
        more = checksums if segment is segments[-1] else {own: checksums.pop(own)} if own in checksums else {}
        known = side_checksums([segment.side_files]) | more
        out.append(replace(segment, side_files=json.dumps(known)))
    return out


def _empty(plan: PartitionPlan, analysis: Analysis, number: int = -1) -> Segment:
    """Write an empty segment of ours in place of a source. Without a number: write it at the log end, as a broker rolls
    one first if retention removes all segments.
    """
    base = analysis.sources[number].first_offset if number >= 0 else analysis.log_end_offset
    end = analysis.source_end(number) if number >= 0 else base
    segment = analysis.sources[number].segment
    empty = written_segment(new_segment(base, end, segment.mtime_ms))
    return place_one(plan, replace(empty, deduplicated_through=segment.deduplicated_through) if number >= 0 else empty)


def _untouched(plan: PartitionPlan, analysis: Analysis, number: int, row: Segment) -> Segment:
    """Write the indexes of a segment that is not cleaned; return its row in the manifest."""
    if plan.run.dry_run:
        return row
    source, store, txn_index = analysis.sources[number], make_generation_folder(plan), _txn_index(analysis, number)
    if source.segment.from_offset:
        row = replace(row, root="store", path=f"{plan.run.folder}/{segment_file(source.first_offset, 'log')}")
        _copy_rest(source, store, row.path)
    checksums = write_indexes(
        store, plan.run.folder, source.first_offset, source.offset_index, source.time_index, txn_index
    )
    return replace(row, side_files=json.dumps(checksums))


def _txn_index(analysis: Analysis, number: int) -> bytes:
    base, end = analysis.sources[number].first_offset, analysis.source_end(number)
    inside = (analysis.aborted["last_offset"] >= base) & (analysis.aborted["last_offset"] < end)
    return transaction_index.write(analysis.aborted[inside])


def untouched_row(plan: PartitionPlan, analysis: Analysis, number: int) -> Segment:
    """Return the manifest's row of a source that is not rewritten."""
    source = analysis.sources[number]
    segment = source.segment
    return replace(
        segment,
        root="store" if plan.is_ours(segment) else "archive",
        base_offset=source.first_offset,
        size_bytes=source.size,
        next_offset=analysis.source_end(number),
        source_bytes=source.size,
        source_records=segment.records,
        cleaned=False,
        offset_index_bytes=len(source.offset_index),
        time_index_bytes=len(source.time_index),
        txn_index_bytes=len(_txn_index(analysis, number)),
        min_timestamp_ms=analysis.min_timestamps.get(number, segment.min_timestamp_ms),
        superseded=analysis.superseded.get(number, segment.superseded),
        expected_dead=-1,
        key_files=None,
        facts_bytes=0 if plan.policy.erasing else segment.facts_bytes,
    )


def _copy_rest(source: SegmentScan, store: Root, path: str) -> None:
    """Copy the rest of an archived segment whose beginning is already in the generation into a file of ours; read it
    back.
    """
    make_private(store, path)
    with source.open_log() as file, open_output(store, path) as stream:
        for chunk in source.chunks:
            part = np.empty(chunk.size, np.uint8)
            read_again(file, source.path, chunk, part)
            stream.write(part.data)
    check_written(store, path, source.size, source.segment.checksum)


def _snapshots(
    plan: PartitionPlan, analysis: Analysis, bases: Sequence[int], log_start_offset: int
) -> dict[str, bytes]:
    """Return producer snapshots, by file name, at the base of every segment and at the log end. Use the archive's own
    snapshot unless it contradicts an open transaction: a broker trusts its snapshot and would clean past that
    transaction.
    """
    files = {}
    starts = [s.first_offset for s in analysis.sources]
    given = {s.offset: s for s in plan.input.snapshots}
    for base in bases:
        if base == log_start_offset:
            continue
        data = None
        number = bisect_right(starts, base) - 1
        if base > starts[number]:  # a segment that begins inside a source
            data = producer_snapshot.write(_producers_inside(plan, analysis, number, base))
        elif base in given and base != analysis.log_end_offset:
            data = _valid_snapshot(given[base], open_at(analysis.open_transactions, base))
        if data is None:
            data = producer_snapshot.write(analysis.producers[number])
        files[segment_file(base, "snapshot")] = data
    end = analysis.log_end_offset
    return files | {segment_file(end, "snapshot"): producer_snapshot.write(analysis.producers[-1])}


def _producers_inside(plan: PartitionPlan, analysis: Analysis, number: int, offset: int) -> np.ndarray:
    """Return the producers at an offset inside a source, producer_snapshot.ENTRY[n]; read the source up to there."""
    source, state, tail = analysis.sources[number], ProducerState.from_snapshot(analysis.producers[number]), Tail()
    wanted = LogRange(source.start_position, source.end_position, end_offset=offset)
    with source.open_log() as file:
        for headers in read_headers(file, source.path, wanted, chunk_buffer(plan), tail):
            state.append(headers.batches, source.path)
    return state.entries()


def _valid_snapshot(file: SideFile, opened: np.ndarray) -> bytes | None:
    with unless_unreadable():
        data = read_side_file(file)
        return None if len(producers_with_unknown_outcome(producer_snapshot.read(data, file.path), opened)) else data
    return None


def _epochs(plan: PartitionPlan, analysis: Analysis) -> tuple[list[EpochEntry], tuple[str, ...]]:
    """Return leader epochs up to the log end, and a note if the last generation's file is damaged or lost.

    The archive's file may be lost, or lack the epochs of removed segments. So the epochs of the last generation stay,
    because a cleaned log does not show where its epochs began. The batches give the epochs between the last generation
    and the archive's first epoch: a broker's retention may have overtaken the store. If the last generation's file is
    damaged or lost, they also give the epochs before the archive's first one.
    """
    epochs_of_archive: list[EpochEntry] = []
    notes: tuple[str, ...] = ()
    file = plan.input.generation.epochs
    if file is not None:
        try:
            epochs_of_archive = checkpoints.read_leader_epochs(read_side_file(file), file.path)
        except LogFormatError as error:
            if error.kind == "unreadable" and not isinstance(error.__cause__, FileNotFoundError):
                raise
            notes = (
                f"{error}; the epochs of the archive's file and of the batches are used instead: "
                "an epoch of which the log holds no batch may be missing",
            )
    given, epochs = plan.input.leader_epochs, epochs_of_archive
    if given is None or epochs_of_archive or notes:
        until = given[0][0] if given else np.iinfo(np.int32).max
        for source in analysis.sources:
            epochs = epochs + [e for e in source.epochs if e[0] <= until and (not epochs or e[0] > epochs[-1][0])]
    if given is not None:
        epochs = checkpoints.with_earlier(given, epochs)
    return checkpoints.truncate_from_end(epochs, analysis.log_end_offset), notes


def _read_whole(plan: PartitionPlan, analysis: Analysis) -> Iterator[ReadFile]:
    """Yield the archived files that consist only of batches that this run has read."""
    for s in analysis.sources:
        listed = s.segment
        if not plan.is_ours(listed) and s.start_position == 0 and s.end_position == listed.size_bytes:
            yield ReadFile(listed.base_offset, listed.size_bytes, s.segment.checksum)
