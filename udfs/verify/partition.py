"""The invariants of one side: a partition in an archive or a restored log directory, or the files of a generation.

Every byte of every `.log` is read once: checksums, counts, varints, offsets in order, bodies decompressed, records that
fill their batches; then the indexes against the log, and the side files. This module shares no code with the cleaner;
files are read through `logformat`. Each fault is a row, and one bad batch does not hide the next.

Harmless findings are notes: a torn tail of a log that was being written; zeros of preallocated files; offsets removed
by a cleaner; indexes of an older broker; falling leader epochs (a log restored into another cluster).

Text files beside the partitions' folders of a log directory must be readable, and right about the partitions there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lastkey.logformat import names
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.layout import CODEC_MASK, CONTROL_MASK, TIMESTAMP_TYPE_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files import checkpoints, producer_snapshot
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import LastBatch, SideFile
from lastkey.udfs.storage import file_size, log_file, open_root, read_file
from lastkey.udfs.verify.batch_order import Epochs, Placed, Producers, Thinned, gap_problems
from lastkey.udfs.verify.findings import CheckedSegment, CheckPlan, CheckResult, Findings, make_result
from lastkey.udfs.verify.indexes import Expected, IndexCheck, IndexFile
from lastkey.udfs.verify.transactions import (
    TXN_ROW,
    check_snapshot,
    check_txn_index,
    completed_transactions,
    lost_markers,
    open_transactions,
    previous_markers,
    transaction_rows,
)
from lastkey.udfs.verify.walk import LogWalk

_MOST_LISTED: Final = 20  # transactions without a marker


def check_partition(plan: CheckPlan) -> CheckResult:
    """Check one side. Each problem, and a failure of the check, becomes a row."""
    started = time.perf_counter()
    found = Findings()
    found.attempt(lambda: check_side(plan, found), plan.name, logged=True)
    return make_result(plan, found, time.perf_counter() - started)


def check_side(plan: CheckPlan, findings: Findings) -> None:
    """Run all checks of one side, into `findings`."""
    reader = LogReader(plan.chunk_bytes, plan.max_batch_bytes)
    rows: list[np.ndarray] = []
    epochs, producers = Epochs(plan, findings), Producers()
    for number in range(len(plan.segments)):
        rows.append(_check_segment(plan, number, findings, epochs, producers, reader))
    _check_gaps(plan, epochs.first, findings)
    last = findings.facts[-1] if findings.facts else None
    findings.log_end_offset = 0 if last is None else max(last.base_offset, last.last_offset + 1)
    findings.transactions = np.concatenate([np.empty(0, TXN_ROW), *rows])
    _check_markers(plan, findings)
    _state_open_transaction(plan, findings)
    _check_txn_indexes(plan, findings)
    _check_snapshots(plan, findings)
    _check_text_files(plan, findings)


def _check_segment(
    plan: CheckPlan, number: int, findings: Findings, epochs: Epochs, producers: Producers, reader: LogReader
) -> np.ndarray:
    """Walk one `.log` and check its indexes; return TXN_ROW[m] of its batches."""
    segment = plan.segments[number]
    base, path = segment.base_offset, segment.path
    after = plan.segments[number + 1].base_offset if number + 1 < len(plan.segments) else None
    active = after is None and not plan.sealed and not plan.generation
    facts = CheckedSegment(path, base)
    findings.facts.append(facts)
    index = segment.index or _side_file_path(path, "index")
    times = segment.time_index or _side_file_path(path, "timeindex")
    indexes = IndexCheck(
        base,
        IndexFile("offset", index, _data(plan, segment, segment.index, findings, segment.size_bytes)),
        IndexFile("time", times, _data(plan, segment, segment.time_index, findings, segment.size_bytes)),
        IndexBuilder(base, plan.index_interval_bytes, plan.max_index_bytes, path),
    )
    log = log_file(open_root(segment.root), path, segment.size_bytes)
    walk = LogWalk(log, reader, indexes.positions, base_offset=base)
    placed, thinned = Placed(path, base, after), Thinned(base)
    rows = []
    try:
        for chunk in walk.chunks():
            placed.check(chunk.batches, walk)
            thinned.see(chunk.batches)
            epochs.check(path, chunk.batches)
            indexes.feed(chunk.batches, chunk.position, len(chunk.raw))
            producers.check(chunk.batches, walk)
            rows.append(transaction_rows(chunk.batches))
            _count(facts, chunk.batches, chunk.raw)
            for run in walk.runs(chunk):
                _count_records(facts, run)
                if plan.generation:  # its manifest may state the smallest timestamp
                    _see_times(facts, run)
    except LogFormatError as error:
        walk.add(error)
    facts.damaged, facts.thinned_offset = walk.n_problems > 0, thinned.last
    damaged = facts.damaged or walk.torn_bytes > 0
    problems, notes = indexes.finish(Expected(active=active, exact=plan.generation, damaged=damaged))
    findings.problems += walk.problems
    if walk.n_problems > len(walk.problems):
        findings.notes.append(
            f"{path}: {walk.n_problems - len(walk.problems)} more problems in this file are not listed"
        )
    _check_tail(walk, active, findings)
    for problem in problems:
        findings.add(problem)
    findings.notes += notes
    if walk.unread_bytes:
        findings.not_checked.append(f"{path}: {walk.unread_bytes} bytes after damage, where no batch could be found")
    return np.concatenate([np.empty(0, TXN_ROW), *rows])


def _side_file_path(log_path: str, kind: str) -> str:
    return f"{log_path.partition('.log')[0]}.{kind}"


def _data(plan: CheckPlan, segment: Segment, path: str | None, findings: Findings, log_bytes: int = 0) -> bytes | None:
    """Return the bytes of a segment's index; None if missing.

    An unreadable file is a row; a generation's missing file is not, as other checks report it.
    """
    if path is None:
        return None
    try:
        return read_file(open_root(segment.beside), path, log_bytes)
    except LogFormatError as error:
        if not (plan.generation and isinstance(error.__cause__, FileNotFoundError)):
            findings.add(error)
        return None


def _count(facts: CheckedSegment, batches: np.ndarray, raw: np.ndarray) -> None:
    facts.batches += len(batches)
    facts.size += len(raw)
    facts.headers_records += int(np.abs(batches["records_count"]).sum(dtype=np.int64))
    ends = np.concatenate([[max(facts.last_offset, facts.base_offset - 1)], batches["last_offset"]])
    facts.dense = facts.dense and bool((batches["base_offset"] == ends[:-1] + 1).all())
    facts.last_offset = max(facts.last_offset, int(batches["last_offset"].max()))
    facts.max_timestamp_ms = max(facts.max_timestamp_ms, int(batches["max_timestamp"].max()))
    facts.codecs |= int(np.bitwise_or.reduce(1 << (batches["attributes"] & CODEC_MASK)))
    facts.magics |= int(np.bitwise_or.reduce(1 << batches["magic"]))
    facts.checksum = crc32c_extend(facts.checksum, raw)
    last = batches[-1]
    offset = last["base_offset"] if last["magic"] >= 2 else last["last_offset"]
    facts.last_batch = LastBatch(int(offset), int(last["partition_leader_epoch"]), int(last["crc"]))


def _count_records(facts: CheckedSegment, run: Run) -> None:
    facts.records += len(run.spans)
    data = np.repeat((run.batches["attributes"] & CONTROL_MASK) == 0, run.bodies["n_records"])
    facts.tombstones += int((run.spans["null_value"] & data).sum())


def _see_times(facts: CheckedSegment, run: Run) -> None:
    batches, bodies, n = run.batches, run.bodies, run.bodies["n_records"]
    data = np.repeat((batches["attributes"] & CONTROL_MASK) == 0, n)
    append_time = (batches["magic"] > 0) & ((batches["attributes"] & TIMESTAMP_TYPE_MASK) != 0)
    times = np.repeat(bodies["base_timestamp"], n) + run.spans["timestamp_delta"]
    times = np.where(np.repeat(append_time, n), np.repeat(batches["max_timestamp"], n), times)
    facts.min_timestamp_ms = min(facts.min_timestamp_ms, int(times[data & (times >= 0)].min(initial=2**63 - 1)))


def _check_tail(walk: LogWalk, active: bool, findings: Findings) -> None:
    if not walk.torn_bytes:
        return
    what = "zeros of a preallocated file" if walk.zeros else "not a whole batch"
    if active:
        findings.notes.append(f"{walk.path}: the last {walk.torn_bytes} bytes are {what}; the log ends before them")
    else:
        expected, found = "whole batches up to the end of the file", f"{walk.torn_bytes} bytes that are {what}"
        findings.add(LogFormatError("torn_tail", walk.path, walk.end_position, expected, found))


def _check_gaps(plan: CheckPlan, first_epoch: tuple[str, int] | None, findings: Findings) -> None:
    if plan.generation:
        return
    rows = [
        (f.path, f.base_offset, max(f.base_offset, f.last_offset + 1), f.thinned_offset, not f.damaged)
        for f in findings.facts
    ]
    for gap in gap_problems(plan, rows, first_epoch):
        if isinstance(gap, str) or plan.gaps_accepted:
            findings.notes.append(str(gap))
        else:
            findings.problems.append(replace(Problem.of(gap), state="gap"))


def _check_markers(plan: CheckPlan, findings: Findings) -> None:
    """Add a row for each transaction whose marker is lost. In a generation it is a note, because a compaction keeps
    what it cannot decide.
    """
    if any(f.damaged for f in findings.facts):
        return  # the marker may be in the damage
    rows, bases = findings.transactions, np.array([f.base_offset for f in findings.facts], np.int64)
    lost, following = lost_markers(rows, plan.log_start_offset or 0)
    _, first = np.unique(following, return_index=True)
    for i in np.sort(first)[:_MOST_LISTED]:
        batch, other = rows[lost[i]], rows[following[i]]
        error = LogFormatError(
            "transaction",
            findings.facts[int(np.searchsorted(bases, batch["base_offset"], "right")) - 1].path,
            int(batch["position"]),
            f"a marker of producer {batch['producer_id']} behind this batch of epoch {batch['producer_epoch']}",
            f"a batch of epoch {other['producer_epoch']} at offset {other['base_offset']}, and no marker before it",
            base_offset=int(batch["base_offset"]),
            hint="the outcome of this transaction is unknown: look for its marker in another replica or an older copy; "
            "compact keeps the batch, and readers of committed records take the outcome of the next marker",
        )
        if plan.generation:
            findings.notes.append(str(error))
        else:
            findings.add(error)
    if len(first) > _MOST_LISTED:
        more = len(first) - _MOST_LISTED
        findings.notes.append(f"{plan.name}: {more} more transactions without a marker are not listed")


def _state_open_transaction(plan: CheckPlan, findings: Findings) -> None:
    """State the oldest open transaction if it begins below the active segment: it holds cleaning back."""
    rows, bases = findings.transactions, np.array([f.base_offset for f in findings.facts], np.int64)
    end = findings.log_end_offset
    opened = open_transactions(rows, np.array([end]), plan.log_start_offset or 0)
    opened = opened[opened["first_offset"] < (end if plan.sealed else max(bases.tolist(), default=0))]
    if plan.generation or not len(opened):
        return
    oldest = opened[np.argmin(opened["first_offset"])]
    offset, producer_id = int(oldest["first_offset"]), int(oldest["producer_id"])
    first = rows[(rows["base_offset"] == offset) & (rows["producer_id"] == producer_id)]
    path = findings.facts[int(np.searchsorted(bases, offset, "right")) - 1].path
    since = int(first["max_timestamp"][0])
    findings.held_back = HeldBack("open_transaction", offset, path, since, producer_id=producer_id)


def _check_txn_indexes(plan: CheckPlan, findings: Findings) -> None:
    rows = findings.transactions
    if not plan.txn_indexes:
        if len(rows):
            findings.not_checked.append(f"{plan.name}: transaction indexes, because uploads of its kind have none")
        return
    if any(f.damaged for f in findings.facts) and len(rows):
        findings.not_checked.append(f"{plan.name}: transaction indexes, because not every batch could be read")
        return
    completed, aborted = completed_transactions(rows)
    by_marker = np.argsort(completed["last_offset"], kind="stable")
    completed, aborted = completed[by_marker], aborted[by_marker]
    markers = rows[rows["marker"] >= 0]
    previous, _ = previous_markers(markers, markers[:0])
    dense_from = (
        findings.facts[0].base_offset if all(f.dense for f in findings.facts) and _joined(findings.facts) else None
    )
    for i, segment in enumerate(plan.segments):
        low = segment.base_offset
        high = plan.segments[i + 1].base_offset if i + 1 < len(plan.segments) else findings.log_end_offset
        inside = (completed["last_offset"] >= low) & (completed["last_offset"] < high)
        here = (markers["base_offset"] >= low) & (markers["base_offset"] < high)
        data = _data(plan, segment, segment.txn_index, findings)
        path = segment.txn_index or _side_file_path(segment.path, "txnindex")
        ended = completed[inside & aborted]
        for error in check_txn_index(data or b"", path, ended, markers[here], previous[here], dense_from):
            findings.add(error)


def _joined(facts: list[CheckedSegment]) -> bool:
    """Return whether each segment begins where the one before it ends."""
    ends = [max(f.base_offset, f.last_offset + 1) for f in facts]
    return all(f.base_offset == end for f, end in zip(facts[1:], ends[:-1], strict=True))


def _check_snapshots(plan: CheckPlan, findings: Findings) -> None:
    files, log_start = sorted(plan.snapshots, key=lambda file: file.offset), plan.log_start_offset or 0
    whole = not any(f.damaged for f in findings.facts)  # else a marker may be in the damage
    offsets = np.array([file.offset for file in files], np.int64)
    opened = open_transactions(findings.transactions if whole else findings.transactions[:0], offsets, log_start)
    for i, file in enumerate(files):
        rows = opened[(opened["row"] == i) & (file.offset > log_start)]  # no broker loads one at the log start or below
        findings.attempt(lambda file=file, rows=rows: _check_snapshot(file, rows), file.path)  # type: ignore[misc]


def _check_snapshot(file: SideFile, opened: np.ndarray) -> None:
    entries = producer_snapshot.read(read_file(open_root(file.root), file.path), file.path)
    wrong = (entries["last_offset"] >= file.offset) | (entries["current_txn_first_offset"] >= file.offset)
    if wrong.any():
        entry = entries[wrong][0]
        largest = max(int(entry["last_offset"]), int(entry["current_txn_first_offset"]))
        found = f"{largest} of producer {int(entry['producer_id'])}"
        raise LogFormatError("side_file", file.path, 0, f"offsets below {file.offset}, as its name says", found)
    check_snapshot(entries, file.path, opened)


def _check_text_files(plan: CheckPlan, findings: Findings) -> None:
    if plan.metadata is not None:
        root, path = open_root(plan.metadata.root), plan.metadata.path
        findings.attempt(lambda: checkpoints.read_partition_metadata(read_file(root, path), path), path)
    if any(f.damaged for f in findings.facts):
        return  # the log's end is not certain
    end = findings.log_end_offset
    for what, offset in (
        ("log start", plan.log_start_offset), ("cleaner", plan.cleaner_checkpoint),
        ("high watermark", plan.high_watermark),
    ):  # fmt: skip
        if offset is not None and offset > end:
            expected = f"a checkpoint of the {what} of at most {end}, the log end"
            findings.add(LogFormatError("side_file", plan.name, NO_POSITION, expected, str(offset)))


def check_log_directory(uri: str, path: str) -> tuple[int, list[Problem]]:
    """Read the checkpoints and meta.properties of the log directory `path` below a root; return how many there are, and
    a row for each bad one.

    A high watermark below the log start that another file states is a row too.
    """
    root = open_root(uri)
    problems: list[Problem] = []
    offsets: dict[str, Mapping[tuple[str, int], int]] = {}
    files = 0
    for name in (*names.OFFSET_CHECKPOINTS, names.META_PROPERTIES):
        full = f"{path}/{name}" if path else name
        if file_size(root, full) is None:
            continue
        files += 1
        try:
            data = read_file(root, full)
            if name == names.META_PROPERTIES:
                checkpoints.read_meta_properties(data, full)
            else:
                offsets[name] = checkpoints.read_offset_checkpoint(data, full)
        except LogFormatError as error:
            problems.append(Problem.of(error))
    starts = offsets.get(names.LOG_START_OFFSET_CHECKPOINT, {})
    full = f"{path}/{names.HIGH_WATERMARK_CHECKPOINT}" if path else names.HIGH_WATERMARK_CHECKPOINT
    for (topic, partition), offset in offsets.get(names.HIGH_WATERMARK_CHECKPOINT, {}).items():
        start = starts.get((topic, partition), 0)
        if offset < start:
            expected = f"a high watermark of {topic}-{partition} at or above its log start, {start}"
            problems.append(Problem("side_file", full, 0, expected, str(offset)))
    return files, problems
