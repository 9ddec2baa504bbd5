"""Reindex, second half: what a partition's producers decide, folded over its segments in order.

        the state is empty

    for each segment:
        as long as the log start is not passed, a broker starts without state; above it, the state at the base is a
        `.snapshot`
        the state takes the segment's summary; the transactions that it aborts are its `.txnindex`

    the state at the log end is the last `.snapshot`; the first batch of each leader epoch the leader-epoch-checkpoint

After a damaged log the state is unknown. A valid archived snapshot at a later base offset restores it, as when a broker
loads the log. The same holds for a log without evidence that it begins at its log start: no replay can tell which
transactions are open there, and a broker believes a snapshot that knows none. Archived files can have more facts than
the log, because the cleaner removed batches or the log start moved up. Additional facts are accepted, but no
contradiction to an existing batch. Rules: KAFKA.md, "Transaction index", "Producers", "Leader epochs" and "Recovery".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import SNAPSHOT_ENTRY, TXN_INDEX_ENTRY
from lastkey.logformat.side_files import checkpoints, producer_snapshot, transaction_index
from lastkey.logformat.side_files.checkpoints import EpochEntry
from lastkey.logformat.side_files.producer_state import ProducerState, aborted_transactions
from lastkey.udfs.problem import Problem
from lastkey.udfs.reindex.judge import SAME, Known, Reason, SideBytes, Verdict, judge_snapshot, read_bounded, unparsed
from lastkey.udfs.reindex.segment import SegmentOutcome
from lastkey.udfs.reindex.write import FileReport, SideFilePlace, Target, finish_folder, impossible, new_folder, settle
from lastkey.udfs.storage import Root, open_root, read_file
from lastkey.udfs.verify.transactions import TXN_ROW, check_txn_index, previous_markers

_TXN_SIZE: Final = TXN_INDEX_ENTRY.itemsize


def judge_txn_index(
    file: SideBytes | None,
    entries: NDArray[np.void],
    outcome: SegmentOutcome,
    previous: NDArray[np.int64],
    dense_from: int | None = None,
) -> Verdict:
    """Return the verdict on a `.txnindex`.

    entries: transaction_index.ENTRY[n], by replay of the log; previous: int64[k], for each of the segment's ABORT
    markers the offset of its producer's marker before it, -1: none; dense_from: from here on every offset is in a
    batch, None: some may have been cleaned away.

    On a compacted log the archived file can have more: transactions whose data was removed, an earlier first offset.
    Such a file is `other_entries` if three things hold: it covers every replayed entry; each other entry has its ABORT
    marker (else a reader would drop what the producer wrote later); and none begins before its producer's previous
    marker (else a reader would drop what was committed there).
    """
    rebuilt = transaction_index.write(entries)
    if file is None:
        return Verdict("missing", expected=f"{len(entries)} entries", found="no such file")
    if file.size == len(rebuilt) and file.head == rebuilt:
        return SAME
    if file.size > len(file.head) and not file.only_zeros_behind:
        end = len(file.head)
        return Verdict("huge", end, end // _TXN_SIZE, f"{len(entries)} entries", f"{file.size} bytes")
    used = -(-len(file.head.rstrip(b"\0")) // _TXN_SIZE) * _TXN_SIZE  # no entry ends in a zero offset and begins in one
    whole = min(used, len(file.head) - len(file.head) % _TXN_SIZE)
    txn_entries = transaction_index.read(file.head[:whole], file.path)
    n = len(txn_entries)

    def at(reason: Reason, i: int, expected: str = "") -> Verdict:
        right = _txn_text(entries[i]) if i < len(entries) else "no entry"
        entry_text = _txn_text(txn_entries[i]) if i < n else "no entry"
        return Verdict(reason, i * _TXN_SIZE, i, expected or right, entry_text)

    problems = check_txn_index(file.head[:whole], file.path, entries, outcome.aborts, previous, dense_from)
    ended = n < len(entries) and rebuilt.startswith(file.head[:whole])
    if problems and not ended:
        outside = (txn_entries["last_offset"] < outcome.base_offset) | (
            txn_entries["last_offset"] > outcome.last_offset
        )
        first = min(problems, key=lambda problem: problem.position)
        i = first.position // _TXN_SIZE
        if outside.any() and outside.all() and (len(entries) or txn_entries["last_offset"][0] < outcome.base_offset):
            return at("foreign", 0)
        cut_off = i < n and outside[i:].all() and (txn_entries["last_offset"][i:] > outcome.last_offset).all()
        return at("stale", i) if cut_off else at("wrong", i, first.expected)
    rest = file.size - whole
    if 0 < rest < _TXN_SIZE:
        return Verdict("torn", whole, n, f"entries of {_TXN_SIZE} bytes", f"{rest} bytes at the end")
    if rest:
        return Verdict("padded", whole, n, f"{len(rebuilt)} bytes", f"{rest} bytes of zeros at the end")
    if ended:
        return at("stale", n)
    both = min(n, len(entries))
    differs = np.flatnonzero(txn_entries[:both] != entries[:both])
    return at("other_entries", int(differs[0]) if len(differs) else both)


def _txn_text(entry: np.void) -> str:
    return (
        f"producer {entry['producer_id']}, offsets {entry['first_offset']} to {entry['last_offset']}, "
        f"last stable {entry['last_stable_offset']}"
    )


_MOST_SIDE_BYTES: Final = 64 << 20  # limit for a file that should be small, if no rule states how small


@dataclass(frozen=True)
class SideFilesPlan:
    """A partition's listed side files; paths are relative to the archive."""

    target: Target
    folder: str
    log_start_offset: int | None  # by the checkpoint beside it
    snapshots: Mapping[int, str]  # offset -> path
    txn_indexes: Mapping[int, str]  # base -> path
    leader_epochs: tuple[EpochEntry, ...] | None  # as parsed; None: missing or not parsable
    leader_epochs_path: str | None
    producer_id_expiration_ms: int = 86_400_000
    ends_here: bool = True  # no segment is left out after these (of a log that a broker holds)


@dataclass
class SideFilesDone:
    """Reports on a partition's side files."""

    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0


def reindex_side_files(plan: SideFilesPlan, outcomes: Sequence[SegmentOutcome]) -> SideFilesDone:
    """Fold the segments' outcomes, in order; rebuild, compare and put the partition's side files."""
    note = _log_start_beyond(plan, outcomes)
    fold = _Fold(replace(plan, log_start_offset=None) if note else plan)
    fold.done.notes += [note] if note else []
    fold.headless = bool(outcomes) and _is_headless(fold.plan, outcomes[0].base_offset)
    new_folder(plan.target, plan.folder)
    for outcome in outcomes:
        fold.segment(outcome)
    fold.end(outcomes)
    finish_folder(plan.target, plan.folder, fold.done.files)
    return fold.done


def _log_start_beyond(plan: SideFilesPlan, outcomes: Sequence[SegmentOutcome]) -> str:
    """Return a note if the log start checkpoint is above the log end, and so belongs to another log; else ""."""
    if plan.log_start_offset is None or not plan.ends_here or not outcomes or outcomes[-1].problem is not None:
        return ""
    end = max(outcomes[-1].base_offset, outcomes[-1].next_offset)
    if plan.log_start_offset <= end:
        return ""
    return (
        f"{plan.folder}: the log start is {plan.log_start_offset} by its checkpoint, above the log end {end}; not used"
    )


def _is_headless(plan: SideFilesPlan, base: int) -> bool:
    """Return whether a transaction or a producer may have begun below the first segment, in a part that is missing.

    A log start checkpoint that reaches the segment, or a first leader epoch that begins there, rules that out.
    """
    first_epoch = plan.leader_epochs[0][1] if plan.leader_epochs else 0
    return max(plan.log_start_offset or 0, first_epoch) < base


class _Fold:
    def __init__(self, plan: SideFilesPlan) -> None:
        self.plan, self.done = plan, SideFilesDone()
        self.root: Root = open_root(plan.target.archive_uri)
        self.state: ProducerState | None = ProducerState()
        self.why: Problem | None = None  # why there is no state
        self.log_start: int | None = None
        self.first_offset = 0  # the state was replayed from here on
        self.dense = True  # every offset from there on was in a batch
        self.end_offset = 0  # end offset of the segments so far
        self.last_markers = np.empty(0, TXN_ROW)  # last marker of each producer, in the segments so far
        self.expected: set[int] = set()  # offsets at which a snapshot is looked at
        self.log = ""
        self.headless = False  # the log's beginning is missing, and no snapshot knows its producers

    def segment(self, outcome: SegmentOutcome) -> None:
        base = outcome.base_offset
        self.log = outcome.log
        begins = self.log_start is None
        if self.log_start is None:
            self.log_start = max(base, self.plan.log_start_offset or 0)
        # UnifiedLog.rebuildProducerState: no snapshot counts at or below the log start, and no batch below it is read;
        # only the segment that is recovered is read from its base on, and leaves a snapshot if it ends above.
        below = base <= self.log_start
        if below or (self.state is not None and self.end_offset <= self.log_start):
            self.state, self.first_offset, self.dense = ProducerState(), base, True
        else:
            self.dense = self.dense and self.end_offset == base
        if not below:
            self._snapshot(base, outcome.log)
        elif begins and self.headless and base in self.plan.snapshots:
            self._load(base, self.plan.snapshots[base])
        self.end_offset = outcome.next_offset
        problem = outcome.problem or outcome.producer_problem
        entries: NDArray[np.void] | None = None
        if problem is None and self.state is None and not len(outcome.producers.markers):
            entries = np.empty(0, transaction_index.ENTRY)  # no marker here aborts a transaction
        elif problem is None and self.state is not None:
            try:
                entries = aborted_transactions(self.state.apply(outcome.producers, outcome.log))
            except LogFormatError as error:
                problem = Problem.of(error)
        if problem is not None:
            self.state, self.why = None, problem
        empty = outcome.n_batches == 0
        starts_at_base = empty or outcome.first_offset == base
        self.dense = self.dense and outcome.dense and starts_at_base
        self._txn_index(outcome, entries)
        _, self.last_markers = previous_markers(outcome.last_markers, self.last_markers)

    def _txn_index(self, outcome: SegmentOutcome, entries: NDArray[np.void] | None) -> None:
        archived = self.plan.txn_indexes.get(outcome.base_offset)
        name = names.segment_file(outcome.base_offset, names.TXN_INDEX)
        place = SideFilePlace(self.plan.folder, name, names.TXN_INDEX, archived, outcome.log)
        if entries is None:
            if self.why is not None:
                self.done.files.append(impossible(place.path, place.kind, self.why))
            return
        data = transaction_index.write(entries)
        if archived is None and not data:
            return  # the file appears with its first entry
        try:
            file = None if archived is None else self._read(archived, max(1 << 20, outcome.end_position // 2))
            earlier, _ = previous_markers(outcome.aborts, self.last_markers)
            dense_from = self.first_offset if self.dense else None
            verdict = judge_txn_index(file, entries, outcome, np.maximum(outcome.previous, earlier), dense_from)
        except LogFormatError as error:
            if self._cannot_be_read(place, error):
                return
            verdict = unparsed(error)
        if archived is not None and not data and not verdict.reason and self.plan.target.mode == "output":
            return  # an empty file is as good as none, and recovery makes none
        self._settle(place, verdict, data)

    def _snapshot(self, offset: int, log: str, *, at_end: bool = False) -> None:
        self.expected.add(offset)
        archived = self.plan.snapshots.get(offset)
        place = SideFilePlace(
            self.plan.folder, names.segment_file(offset, names.SNAPSHOT), names.SNAPSHOT, archived, log
        )
        if self.state is None and archived is not None and not at_end:
            self._load(offset, archived)
        if self.state is None:
            if self.why is not None:
                self.done.files.append(impossible(place.path, place.kind, self.why))
            return
        entries = self.state.entries()
        if self.headless and archived is None:
            self._report_headless()
            return
        if archived is None:
            if self.plan.target.mode == "check" and (at_end or not len(entries)):
                return  # a live broker has none at the end; one without producers is empty
            verdict = Verdict("missing", expected=f"{len(entries)} producers", found="no such file")
        else:
            try:
                file = self._read(archived, max(_MOST_SIDE_BYTES, 2 * SNAPSHOT_ENTRY.itemsize * len(entries)))
                known = Known(offset, self.first_offset, self.dense)
                verdict = judge_snapshot(file, entries, known, lambda: self._expired_ms(archived))
            except LogFormatError as error:
                if self._cannot_be_read(place, error):
                    return
                verdict = unparsed(error)
        if self.headless and archived is not None:
            self._settle_headless(offset, place, archived, verdict)
            return
        self._settle(place, verdict, producer_snapshot.write(entries))

    def _settle_headless(self, offset: int, place: SideFilePlace, archived: str, verdict: Verdict) -> None:
        """Keep an archived snapshot of a log without its beginning and continue from it. Never replace a wrong one."""
        if verdict.reason in ("", "other_entries"):
            self.done.files.append(place.report("same", verdict))
            self._load(offset, archived)
            return
        self._report_headless()
        self.done.files.append(place.report("impossible", verdict))

    def _report_headless(self) -> None:
        note = (
            f"{self.plan.folder}: the log begins at offset {self.log_start}, and neither "
            f"{names.LOG_START_OFFSET_CHECKPOINT} nor {names.LEADER_EPOCH_CHECKPOINT} says so: which transactions were "
            "open there cannot be known, so no snapshot and no leader epochs are made; bring back what is missing, or, "
            f"where it is lost for good, name offset {self.log_start} in {names.LOG_START_OFFSET_CHECKPOINT}"
        )
        if note not in self.done.notes:
            self.done.notes.append(note)

    def _load(self, offset: int, archived: str) -> None:
        """Continue from an archived snapshot if it has no fault."""
        try:
            entries = producer_snapshot.read(self._read(archived, _MOST_SIDE_BYTES).head, archived)
        except LogFormatError:
            return
        if (entries["last_offset"] >= offset).any() or (entries["current_txn_first_offset"] >= offset).any():
            return
        self.state = ProducerState.from_snapshot(entries)
        self.first_offset, self.dense = offset, False
        why = "missing" if self.headless else "bad"
        self.headless = False
        self.done.notes.append(
            f"{archived}: kept as it is, because the log before it is {why}; later snapshots build on it"
        )

    def end(self, outcomes: Sequence[SegmentOutcome]) -> None:
        """Settle what a partition has once: the snapshot at the log end, and the leader epochs."""
        if not outcomes:
            return
        start = self.log_start or 0
        if self.plan.ends_here and self.end_offset > start and self.end_offset not in self.expected:
            self._snapshot(self.end_offset, self.log, at_end=True)
        if self.plan.ends_here:
            stray = [path for offset, path in self.plan.snapshots.items() if offset not in self.expected | {start}]
            at_bases = {outcome.base_offset for outcome in outcomes}
            for path in stray:
                if int(path.rpartition("/")[2].partition(".")[0]) not in at_bases:
                    self.done.notes.append(f"{path}: at no segment's base and not at the log end; left alone")
        self._leader_epochs(outcomes)

    def _leader_epochs(self, outcomes: Sequence[SegmentOutcome]) -> None:
        listed, path = self.plan.leader_epochs, self.plan.leader_epochs_path
        epochs: list[EpochEntry] = []
        for outcome in outcomes:
            for epoch, start in outcome.epochs:
                if not epochs or epoch > epochs[-1][0]:
                    epochs = checkpoints.assign(epochs, epoch, start)
        epochs = checkpoints.truncate_from_start(epochs, self.log_start or 0)
        name = names.LEADER_EPOCH_CHECKPOINT
        place = SideFilePlace(self.plan.folder, name, name, path, outcomes[-1].log)
        damage: LogFormatError | None = None
        if listed is None and path is not None:  # the file was damaged when it was listed, or could not be read
            try:
                listed = tuple(checkpoints.read_leader_epochs(read_file(self.root, path), path))
            except LogFormatError as error:
                if self._cannot_be_read(place, error):
                    return
                damage = error
        # The file knows where an epoch began; the log may no longer. A broker that loads a log whose records are all
        # below the log start leaves no epoch in it: LeaderEpochFileCache.truncateFromEnd removes one at the log end.
        if listed is not None and (listed or not checkpoints.truncate_from_end(epochs, self.end_offset)):
            if epochs and listed and epochs[-1][0] > listed[-1][0]:
                self.done.notes.append(
                    f"{path}: ends before leader epoch {epochs[-1][0]}, which the log has; left alone"
                )
            self.done.files.append(place.report("same", SAME))
            return
        if not self.plan.ends_here:
            return  # later epochs may be in the segments that were left out
        verdict = Verdict("missing", expected=f"{len(epochs)} leader epochs", found="no such file")
        if damage is not None:
            verdict = unparsed(damage)
        elif path is not None:
            verdict = Verdict("stale", expected=f"{len(epochs)} leader epochs", found="none")
        bad = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
        if bad is not None:
            self.done.files.append(impossible(place.path, place.kind, bad))
        elif _is_headless(self.plan, outcomes[0].base_offset):  # the file would claim that the log begins there
            if epochs or path is not None:
                self._report_headless()
            if path is not None:
                self.done.files.append(place.report("impossible", verdict))
        elif epochs or path is not None:
            self.done.notes.append(
                f"{place.path}: lost, so rebuilt from the batches that are left: in a compacted log an epoch can "
                "begin later than it did, or be missing"
            )
            self._settle(place, verdict, checkpoints.write_leader_epochs(epochs))

    def _cannot_be_read(self, place: SideFilePlace, error: LogFormatError) -> bool:
        """Report an unreadable file and return True: it may be intact and have more facts than a compacted log, so it
        is not replaced. Return False for any other error.
        """
        if error.kind == "unreadable":
            self.done.files.append(place.report("impossible", unparsed(error, error.kind)))
        return error.kind == "unreadable"

    def _expired_ms(self, path: str) -> int:
        """Return the time (ms) before which idle producers were forgotten by this file's broker, or would be by now."""
        mtime_ns = self.root.filesystem.get_file_info(self.root.full(path)).mtime_ns or 0
        return int(mtime_ns) // 1_000_000 - self.plan.producer_id_expiration_ms

    def _read(self, path: str, limit: int) -> SideBytes:
        file = read_bounded(self.root, path, limit)
        self.done.bytes_read += len(file.head)
        return file

    def _settle(self, place: SideFilePlace, verdict: Verdict, data: bytes) -> None:
        report, written = settle(self.plan.target, place, verdict, data)
        self.done.files.append(report)
        self.done.bytes_written += written
