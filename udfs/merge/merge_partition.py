"""Several copies of a partition -> one log: survey, lineage, choice, segments, side files.

  each copy is read once, all checksums are compared        survey.py
  leader epochs decide which batches belong to the log      lineage.py
  the best batch for each range of offsets                  choose.py
  byte ranges of the copies become segments                 write_log.py
  the segments are read back, with checksums; from them come indexes, transactions and producer snapshots (udfs.reindex)

Cost: each copy is read once. The chosen bytes are read again when they are copied (on a disk inside the kernel), and
once more when they are read back. Memory: a chunk of each copy, windows of batch headers, and the ranges of
_WAITING planned segments; the headers of all batches are in temporary files, 96 bytes a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.logformat.side_files import checkpoints, producer_snapshot
from lastkey.logformat.storage.io_counts import listener_of_thread, listening
from lastkey.udfs.merge.aborted import AbortedTransactions
from lastkey.udfs.merge.choose import ChoiceFindings, Stream, choose, losing_ranges
from lastkey.udfs.merge.copies import MOST_RANGES, CopyFacts, LogCopy, MergedPartition, MergeTask, Reason, TakenRange
from lastkey.udfs.merge.lineage import Chain, Lineage, build_chain, confirmed_epochs, decide, is_of_another_log
from lastkey.udfs.merge.survey import Survey, survey
from lastkey.udfs.merge.write_log import NewSegment, SegmentPlanner
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.ranges import Ranges, without
from lastkey.udfs.reindex.segment import ReindexTask, SegmentOutcome, reindex_segments
from lastkey.udfs.reindex.side_files import SideFilesPlan, reindex_side_files
from lastkey.udfs.reindex.write import FileReport, Target
from lastkey.udfs.storage import Root, exists, flush_whole, flushing, make_folder, open_root, read_file, write_file

_THREADS = 4  # copies, or written segments, that are read at a time
_WAITING = 8  # segments that are planned and not yet written
_SAMPLE = 200  # batches that are looked for in other copies
_MOST_NAMED = 20  # conflicts that become problems


def merge_partition(task: MergeTask) -> MergedPartition:
    """Merge the copies of a partition. A failure becomes a problem; only a full disk raises OSError."""
    started = time.perf_counter()
    out = MergedPartition(task.topic, task.partition)
    done = attempt(task.folder, lambda: _merge(task, out))
    if isinstance(done, Problem):
        out.problems.append(done)
        out.refused = True
    out.seconds = time.perf_counter() - started
    return out


@dataclass(frozen=True)
class _Decisions:
    """Decisions that are made before batches are chosen."""

    surveys: list[Survey]
    lineage: Lineage
    streams: list[Stream]
    ranks: list[int]  # rank of each copy


def _merge(task: MergeTask, out: MergedPartition) -> None:
    surveys = _surveys(task, out)
    if not surveys:
        raise LogFormatError("gap", task.folder, NO_POSITION, "a copy that can be read", "none")
    plan = _plan(surveys, out)
    _report_losers(plan, out)
    if out.refused:
        return
    if not task.output_uri:
        _choose(task, plan, None, out)
        return
    output = make_folder(open_root(task.output_uri), task.folder)
    with ThreadPoolExecutor(_THREADS) as pool:
        writes = _Writes(task, output, pool)
        primary, segment_bytes = plan.ranks.index(0), task.settings.segment_bytes
        planner = SegmentPlanner(output, task.folder, plan.streams, primary, segment_bytes, writes.submit)
        with closing(planner), closing(writes):
            _choose(task, plan, planner, out)
            if out.refused:
                return
            bases = planner.finish(out.next_offset)
            outcomes = writes.outcomes()
    out.segments = len(bases)
    out.log_start_offset = max(out.log_start_offset, bases[0])
    _write_side_files(task, plan, output, outcomes, out)


def _choose(task: MergeTask, plan: _Decisions, planner: SegmentPlanner | None, out: MergedPartition) -> None:
    """Choose batches, and hand them to the planner in order."""
    found, taken = ChoiceFindings(), _Taken(plan, out)
    for rows in choose(plan.streams, plan.lineage.chain, plan.ranks, task.settings.window_batches, found):
        if found.conflicts:
            break
        epochs = taken.add(rows)
        if planner is not None:
            planner.add(rows, epochs)
    _report_found(plan, found, out)
    if not out.refused:
        taken.finish()


class _Writes:
    """Writes segments while others are planned, several at a time, and reads each back: checks it, makes its indexes,
    flushes the files.
    """

    def __init__(self, task: MergeTask, output: Root, pool: ThreadPoolExecutor) -> None:
        self.output, self.pool, self.folder = output, pool, task.folder
        self.target = Target("output", output.uri, output.uri)
        self.settings = task.settings
        self.listener = listener_of_thread()
        self.jobs: list[tuple[NewSegment, Future[list[SegmentOutcome]]]] = []

    def submit(self, new: NewSegment, following: int | None) -> None:
        """Begin with a segment; wait if too many are not done. following: base offset of the next one."""
        self.jobs.append((new, self.pool.submit(self._write, new, following)))
        if len(self.jobs) > _WAITING:
            self.jobs[-1 - _WAITING][1].result()

    def _write(self, new: NewSegment, following: int | None) -> list[SegmentOutcome]:
        if self.listener is not None:
            self.listener(0)  # raises if the run has ended
        segment = new.write()
        with flushing(self.output, segment.path):
            return reindex_segments(ReindexTask(self.target, self.folder, (segment,), self.settings, following))

    def outcomes(self) -> list[SegmentOutcome]:
        """Wait for all segments; return what was found in them."""
        return [outcome for _, job in self.jobs for outcome in job.result()]

    def close(self) -> None:
        """Begin with no more segments, and close the files of those that wait."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for new, job in self.jobs:
            if job.cancelled():
                new.close()


def _surveys(task: MergeTask, out: MergedPartition) -> list[Survey]:
    out.copies = [CopyFacts(copy.name, copy.place, problem=copy.problem) for copy in task.copies]
    readable = [
        (copy, facts)
        for copy, facts in zip(task.copies, out.copies, strict=True)
        if copy.problem is None and copy.segments
    ]
    listener = listener_of_thread()

    def read(copy: LogCopy, facts: CopyFacts) -> Survey:
        with listening(listener) if listener is not None else nullcontext():
            return survey(copy, facts, task.settings)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, *zip(*readable, strict=True))) if readable else []


def _plan(surveys: list[Survey], out: MergedPartition) -> _Decisions:
    files = []
    for one in surveys:
        file = one.copy.leader_epochs
        if file is not None and is_of_another_log(one.rows, file):
            path = f"{one.copy.place}/{names.LEADER_EPOCH_CHECKPOINT}"
            one.facts.notes.append(f"{path}: contradicts the batches beside it; not used")
            file = None
        files.append(file)
    confirmed = confirmed_epochs([one.runs for one in surveys], files)
    chains = [build_chain(one.runs, file, confirmed) for one, file in zip(surveys, files, strict=True)]
    lineage = decide(chains, [one.end for one in surveys], [one.rows for one in surveys])
    out.leader_epochs = lineage.chain.entries
    streams, counts = [], []
    for number, one in enumerate(surveys):
        lacks = tuple((lack.first, lack.until) for lack in one.facts.lacks)
        of_copy = (lineage.truncation[number], lacks, one.copy.segments)
        main = Stream(number, one.rows, *of_copy, one.segment_rows)
        counts.append(main.find(main.until) if main.until != NO_END else len(one.rows))
        streams.append(main)
        if len(one.overlapping):
            streams.append(Stream(number, one.overlapping, *of_copy, one.overlapping_rows))
    order = sorted(range(len(surveys)), key=lambda i: (-counts[i], i))
    return _Decisions(surveys, lineage, streams, [order.index(i) for i in range(len(surveys))])


def _report_losers(plan: _Decisions, out: MergedPartition) -> None:
    """List batches of losing lineages. Refuse copies that have no batch in common with the winning one."""
    for number, one in enumerate(plan.surveys):
        facts = one.facts
        facts.losing = [lost for stream in plan.streams if stream.copy == number for lost in losing_ranges(stream)]
        first = int(one.rows["base_offset"][0]) if len(one.rows) else NO_END
        if facts.losing and plan.lineage.truncation[number] <= first and _is_another_log(plan, number):
            winner = next(s for i, s in enumerate(plan.surveys) if plan.lineage.truncation[i] == NO_END)
            expected = f"the log of {winner.copy.place}, with leader epochs {_shown(plan.lineage.chain)}"
            found = f"another log, with leader epochs {_shown(plan.lineage.chains[number])}"
            hint = "copies of different logs are not merged: leave out one of the two"
            out.problems.append(Problem("duplicate", one.copy.place, NO_POSITION, expected, found, hint=hint))
            out.refused = True


def _is_another_log(plan: _Decisions, number: int) -> bool:
    """Return whether batches of a copy are where others have batches, and none of a sample is equal to one of those."""
    rows, meets = plan.surveys[number].rows, False
    for i in np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64)).tolist():
        for other in plan.streams:
            at = other.find(int(rows["base_offset"][i]))
            around = other.rows[max(at - 1, 0) : at + 1] if other.copy != number else other.rows[:0]
            if any(_is_equal(rows[i], one) for one in around):
                return False
            meets |= any(
                one["base_offset"] <= rows[i]["last_offset"] and rows[i]["base_offset"] <= one["last_offset"]
                for one in around
            )
    return meets


def _is_equal(one: np.void, other: np.void) -> bool:
    return all(one[name] == other[name] for name in ("base_offset", "size", "crc"))


def _shown(chain: Chain) -> str:
    shown = ", ".join(f"{epoch} from offset {start}" for epoch, start in chain.entries[-3:])
    return ("..., " if len(chain.entries) > 3 else "") + shown


def _report_found(plan: _Decisions, found: ChoiceFindings, out: MergedPartition) -> None:
    for conflict in found.conflicts[:_MOST_NAMED]:
        sides = [plan.surveys[copy].copy.place for copy in conflict.copies]
        expected = f"the batch of offsets {conflict.first} to {conflict.last} as in {sides[0]}"
        what = f"another one of leader epoch {conflict.leader_epoch}; both have a right checksum"
        hint = "nothing tells which of them belongs to the log: leave out the copy that you trust less"
        out.problems.append(Problem("duplicate", sides[1], NO_POSITION, expected, what, conflict.first, hint))
    out.refused |= bool(found.conflicts)
    for copy, offsets in found.displaced.items():
        one = plan.surveys[copy]
        shown = ", ".join(map(str, offsets[:5])) + (", ..." if len(offsets) > 5 else "")
        one.facts.notes.append(
            f"{one.copy.place}: batches with a wrong base offset, as another copy shows: {shown}; left out"
        )


class _Taken:
    """Ranges of the result, and the copies that they come from."""

    def __init__(self, plan: _Decisions, out: MergedPartition) -> None:
        self.plan, self.out = plan, out
        self.facts = [one.facts for one in plan.surveys]
        self.first: int | None = None
        self.end = 0
        self.last_epoch = -1
        self.has_magic_3 = False
        copies = [one.copy for one in plan.surveys]
        self.aborted = AbortedTransactions(list(zip(copies, plan.lineage.truncation, strict=True)))
        self._primary = plan.ranks.index(0)

    def add(self, rows: np.ndarray) -> np.ndarray:
        """Count chosen batches, CANDIDATE[n]; return the leader epochs to write, int64[n], -1: as they are."""
        batch, copies, out = rows["batch"], rows["copy"], self.out
        if self.first is None:
            self.first = int(batch["base_offset"][0])
        self.aborted.add(batch)
        self.has_magic_3 |= bool((batch["magic"] == 3).any())
        out.batches += len(rows)
        out.records += int(np.maximum(batch["records_count"], 0).sum())
        out.bytes += int(batch["size"].sum())
        for number, facts in enumerate(self.facts):
            mine = copies == number
            facts.batches_taken += int(mine.sum())
            facts.bytes_taken += int(batch["size"][mine].sum())
        borders = [0, *(np.flatnonzero(copies[1:] != copies[:-1]) + 1).tolist(), len(rows)]
        for a, b in pairwise(borders):
            self._add_range(int(copies[a]), int(batch["base_offset"][a]), int(batch["last_offset"][b - 1]), b - a)
        self.end = int(batch["last_offset"][-1]) + 1
        return self._epochs(rows)

    def _epochs(self, rows: np.ndarray) -> np.ndarray:
        chain, stored = self.plan.lineage.chain, rows["batch"]["partition_leader_epoch"].astype(np.int64)
        epochs = np.where(rows["epoch_fits"], -1, chain.epochs_at(rows["batch"]["base_offset"]))
        if len(rows) and stored[-1] > chain.last_epoch:  # perhaps the first batch of another leader
            epochs[-1] = -1
        self.last_epoch = int(stored[-1])
        self.out.epochs_corrected += int((epochs >= 0).sum())
        return epochs

    def _add_range(self, copy: int, first: int, last: int, batches: int) -> None:
        ranges, name = self.out.ranges, self.facts[copy].copy
        reason = self._reason(copy, first, last)
        if ranges and ranges[-1].copy == name and ranges[-1].reason == reason and not self.out.ranges_omitted:
            ranges[-1].last, ranges[-1].batches = last, ranges[-1].batches + batches
        elif len(ranges) < MOST_RANGES:
            ranges.append(TakenRange(first, last, name, reason, batches))
        else:
            self.out.ranges_omitted += 1

    def _reason(self, copy: int, first: int, last: int) -> Reason:
        """Return why a range does not come from the first choice among the copies."""
        if copy == self._primary:
            return "largest"
        best = self.plan.surveys[self._primary]
        lack = next((lack for lack in best.facts.lacks if lack.first <= last and first < lack.until), None)
        if lack is not None:
            return "missing" if lack.reason == "missing" else "damaged"
        if first >= self.plan.lineage.truncation[self._primary]:
            return "other lineage"
        if first < best.begin:
            return "begins later"
        return "ends" if first >= best.end else "more records"

    def finish(self) -> None:
        """Add what is known when all batches are chosen: the ends of the log, and its gaps."""
        out, surveys = self.out, self.plan.surveys
        starts = [max(one.copy.log_start, one.begin) for one in surveys]
        out.first_base_offset = min(one.begin for one in surveys)
        out.log_start_offset = min(starts)
        for one in surveys:
            if one.copy.log_start > out.log_start_offset:
                out.notes.append(
                    f"{one.copy.place}: {names.LOG_START_OFFSET_CHECKPOINT} says {one.copy.log_start}; retention or "
                    "DeleteRecords deleted what lies below, and the result has it from another copy: "
                    f"kafka-delete-records with offset {one.copy.log_start} deletes it again"
                )
        last = [one.copy.segments[-1].base_offset for one in surveys]  # the log reached these offsets
        valid = [base for base, until in zip(last, self.plan.lineage.truncation, strict=True) if base <= until]
        out.next_offset = max(self.end, *valid)
        out.gaps = _gaps(self.plan, out.first_base_offset, out.next_offset)
        ends = [
            one.copy.known_end
            for one, until in zip(surveys, self.plan.lineage.truncation, strict=True)
            if until == NO_END  # another lineage may have been longer
        ]
        if max(ends) > out.next_offset:
            out.gaps.append((out.next_offset, max(ends)))
        if self.has_magic_3:
            out.notes.append("some batches have magic 3, which a broker does not read: convert --to v2 rewrites them")
        if self.last_epoch > self.plan.lineage.chain.last_epoch and out.batches:
            out.notes.append(f"leader epoch {self.last_epoch} is that of the last batch alone; no checkpoint names it")
        out.problems += self.aborted.problems(names.partition_folder(out.topic, out.partition))
        used = [one.copy.cleaned_until for one, facts in zip(surveys, self.facts, strict=True) if facts.batches_taken]
        out.cleaned_until = min(used, default=0)
        if out.epochs_corrected:
            out.notes.append(
                f"{out.epochs_corrected} batches have another leader epoch than the log around them, which their "
                "checksum does not cover; it was corrected"
            )


def _gaps(plan: _Decisions, begin: int, end: int) -> Ranges:
    """Return the offsets that every copy lacks."""
    held = Ranges()
    for one, until in zip(plan.surveys, plan.lineage.truncation, strict=True):
        held += without([(one.begin, min(one.end, until))], ((lack.first, lack.until) for lack in one.facts.lacks))
    return without([(begin, end)], held)


def _write_side_files(
    task: MergeTask, plan: _Decisions, output: Root, outcomes: Sequence[SegmentOutcome], out: MergedPartition
) -> None:
    """Write what a broker keeps beside the segments."""
    target = Target("output", output.uri, output.uri)
    epochs = checkpoints.truncate_from_start(_result_epochs(plan, out, outcomes), out.log_start_offset)
    out.leader_epochs = tuple(epochs)
    path = f"{task.folder}/{names.LEADER_EPOCH_CHECKPOINT}"
    write_file(output, path, checkpoints.write_leader_epochs(epochs))
    side_files = SideFilesPlan(
        target, task.folder, out.log_start_offset, {}, {}, tuple(epochs), path, task.settings.producer_id_expiration_ms
    )
    done = reindex_side_files(side_files, outcomes)
    out.notes += [*done.notes, *_open_transactions(output, task.folder, out)]
    unread = [outcome.problem for outcome in outcomes if outcome.problem is not None]
    written = [*(file for outcome in outcomes for file in outcome.files), *done.files]
    files = [file for file in written if file.status == "impossible"]
    out.problems += [*unread, *map(_problem, files)]
    out.refused = bool(unread) or any(file.reason == "unwritable" for file in files)
    ids = sorted({one.copy.topic_id for one in plan.surveys if one.copy.topic_id is not None})
    if ids:
        out.topic_id = ids[0]
        metadata = checkpoints.write_partition_metadata(checkpoints.parse_uuid(ids[0], names.PARTITION_METADATA))
        write_file(output, f"{task.folder}/{names.PARTITION_METADATA}", metadata)
    flush_whole(output, task.folder)


def _open_transactions(output: Root, folder: str, out: MergedPartition) -> Iterator[str]:
    """Yield a note on transactions that no marker ends."""
    path = f"{folder}/{names.segment_file(out.next_offset, names.SNAPSHOT)}"
    if not exists(output, path):
        return
    first = producer_snapshot.read(read_file(output, path), path)["current_txn_first_offset"]
    first = first[first >= 0]
    if len(first):
        yield (
            f"{len(first)} transactions have no marker; a consumer of committed records stops at offset {first.min()} "
            "until a broker ends them"
        )


def _result_epochs(plan: _Decisions, out: MergedPartition, outcomes: Sequence[SegmentOutcome]) -> list[tuple[int, int]]:
    """Return the leader epochs of the result: those of the lineage, and of its last batch."""
    found = list(plan.lineage.chain.entries)
    last = max((epoch for outcome in outcomes for epoch in outcome.epochs), default=(-1, 0))
    if last[0] > plan.lineage.chain.last_epoch:
        found = checkpoints.assign(found, *last)
    return [entry for entry in found if entry[1] <= out.next_offset]


def _problem(file: FileReport) -> Problem:
    return Problem(file.reason or "side_file", file.log or file.path, file.position, file.expected, file.found)
