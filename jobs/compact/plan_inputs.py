"""Inputs of each partition's plan, from an archive's listing, the store's state and the settings (COMPACTION.md, "Start
and end of a run").

A run of `erase` only erases. A later run erases in a partition that reads erased records from the archive again: after
--reset, or if the archive had ended below a bound. The following run compacts.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lastkey.jobs.archive.listing import ArchivedPartition
from lastkey.jobs.command.config import Config, TopicSettings
from lastkey.jobs.store.erasures import (
    Bounds,
    check_key,
    derive_secret,
    erasure_path,
    in_log,
    parse_bounds,
    searched,
    to_text,
    write_erasure,
)
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import NamedBytes, Segment
from lastkey.logformat.names import LEADER_EPOCH_CHECKPOINT, MAX_OFFSET, PARTITION_METADATA, segment_file
from lastkey.udfs.compact.plan import (
    CleanPolicy,
    CleanSettings,
    Erasing,
    Gap,
    LastGeneration,
    Limits,
    PartitionInput,
    PartitionPlan,
    RunContext,
)
from lastkey.udfs.erased_keys import content_id
from lastkey.udfs.problem import Problem, another_log, gap
from lastkey.udfs.segments import LastBatch, SideFile, cleaner_checkpoint, side_checksums
from lastkey.udfs.storage import open_root

if TYPE_CHECKING:
    from lastkey.jobs.store.rows import Checkpoint


def run_context(config: Config, store_uri: str, now_ms: int, **flags: Any) -> RunContext:
    """Return the values that the plans of a run have in common: the limits of the settings, and a new secret."""
    job = config.job
    limits = Limits(job.chunk_bytes, job.task_memory_bytes, job.split_bytes, job.split_by)
    return RunContext(store_uri, now_ms, limits, (secrets.randbits(64), secrets.randbits(64)), **flags)


def whole_plan(run: RunContext, given: PartitionInput, settings: TopicSettings) -> PartitionPlan:
    """Return the plan of a partition that is cleaned whole, without erasures."""
    return PartitionPlan(given, CleanPolicy(clean_settings(settings)), run)


def clean_settings(settings: TopicSettings) -> CleanSettings:
    """Return the settings of a topic that change the result."""
    values = {name: getattr(settings, name) for name in CleanSettings.__dataclass_fields__}
    if not settings.expires:
        values |= {"retention_ms": -1, "retention_bytes": -1, "retention_exact": False}
    return CleanSettings(**values)


def input_from_archive(archived: ArchivedPartition, *, checkpoints: bool = True, reset: bool = False) -> PartitionInput:
    """Return the input of a partition that the store does not know. Without `checkpoints`, leave out the archive's
    cleaner and log start checkpoints: they contradict the log, and the user chose to begin at its first segment.
    """
    first = archived.segments[0].base_offset if archived.segments else 0
    cleaner, log_start = archived.cleaner_checkpoint, archived.log_start_checkpoint
    if not checkpoints:
        cleaner = log_start = None
    return PartitionInput(
        topic=archived.topic,
        partition=archived.partition,
        segments=tuple(archived.segments),
        log_start_offset=max(first, log_start or 0),
        first_dirty_offset=cleaner,
        high_watermark=archived.high_watermark,
        topic_id=archived.topic_id,
        snapshots=tuple(archived.located(archived.snapshots)),
        txn_indexes=tuple(_txn_indexes(archived.segments)),
        orphans=tuple(archived.located(archived.orphans)),
        leader_epochs=archived.leader_epochs,
        cleaner_checkpoint=cleaner,
        log_start_checkpoint=log_start,
        reset=reset,
    )


def _txn_indexes(segments: Iterable[Segment]) -> Iterator[SideFile]:
    yield from (SideFile(s.root, s.txn_index, s.base_offset) for s in segments if s.txn_index is not None)


def input_from_generation(
    archived: ArchivedPartition, checkpoint: Checkpoint, manifest: Sequence[Segment], store_uri: str, gaps: str
) -> PartitionInput | Problem:
    """Return the input of a partition with a generation: that generation, and the archive after it. Return the problem
    if the archive is another log now, lacks what comes next, or holds again what the generation passed over.

    gaps: the setting.
    """
    ours = [s for s in manifest if s.root == "store"]
    theirs = [s for s in manifest if s.root == "archive"]
    covered = ours[-1].next_offset if ours else min((s.base_offset for s in theirs), default=checkpoint.next_offset)
    log_start = max(checkpoint.log_start_offset, archived.log_start_checkpoint or 0)
    known_gaps = parse_gaps(checkpoint)
    after, identity = _archive_after(archived, covered, checkpoint)
    problem = (
        _identity_problem(archived, checkpoint)
        or _missing_segment_problem(archived, checkpoint, theirs, log_start)
        or refilled_gap_problem(archived, checkpoint, known_gaps)
        or _earlier_segment_problem(archived, checkpoint, manifest)
        or (_gap_problem(archived, checkpoint, after, covered, log_start) if gaps == "fail" else None)
    )
    if problem is not None:
        return problem
    below = min(searched(checkpoint), checkpoint.next_offset)
    if below:  # bytes that are read again below must be those that were searched for erased keys
        named = {s.base_offset: NamedBytes(s.size_bytes, s.checksum, below) for s in theirs}
        none = NamedBytes(0, 0, below)
        after = [replace(s, named=named.get(s.base_offset, none)) if s.first_offset < below else s for s in after]
    segments = [replace(s, root=store_uri) for s in ours]
    if segments and after and segments[-1].base_offset == after[0].first_offset:
        segments.pop()  # all records had expired, and the archive continues at the log end
    least = {(s.base_offset, s.size_bytes): s.min_timestamp_ms for s in theirs}
    segments += [
        s if s.from_offset else replace(s, min_timestamp_ms=least.get((s.base_offset, s.size_bytes), -1)) for s in after
    ]
    snapshots, txn_indexes = _side_files(archived, checkpoint, manifest, covered, log_start, store_uri)
    listed = input_from_archive(archived)
    return replace(
        listed,
        segments=tuple(segments),
        log_start_offset=log_start,
        first_dirty_offset=checkpoint.first_dirty_offset,
        topic_id=archived.topic_id or checkpoint.topic_id,
        snapshots=snapshots,
        txn_indexes=txn_indexes,
        orphans=tuple(file for file in listed.orphans if file.offset >= checkpoint.next_offset),
        identity_segment=identity,
        generation=_last_generation(checkpoint, manifest, known_gaps, store_uri),
    )


def _last_generation(
    checkpoint: Checkpoint, manifest: Sequence[Segment], gaps: tuple[Gap, ...], store_uri: str
) -> LastGeneration:
    checksums, epochs = side_checksums(s.side_files for s in manifest), LEADER_EPOCH_CHECKPOINT
    return LastGeneration(
        next_offset=checkpoint.next_offset,
        last_batch=LastBatch(
            checkpoint.last_batch_base_offset, checkpoint.last_batch_leader_epoch, checkpoint.last_batch_crc
        ),
        gaps=gaps,
        epochs=SideFile(store_uri, f"{checkpoint.folder}/{epochs}", 0, checksums.get(epochs)),
        expired_until=checkpoint.expired_until,
        cleaner_checkpoint=cleaner_checkpoint(manifest, checkpoint.first_dirty_offset),
    )


def _side_files(
    archived: ArchivedPartition,
    checkpoint: Checkpoint,
    manifest: Sequence[Segment],
    covered: int,
    log_start: int,
    store_uri: str,
) -> tuple[tuple[SideFile, ...], tuple[SideFile, ...]]:
    """Return the producer snapshots and the transaction indexes of a generation, and of the archive after it."""
    folder, checksums = checkpoint.folder, side_checksums(s.side_files for s in manifest)
    snapshots = {file.offset: file for file in archived.located(archived.snapshots)}
    for base in [s.base_offset for s in manifest if s.base_offset > log_start] + [checkpoint.next_offset]:
        name = segment_file(base, "snapshot")
        snapshots[base] = SideFile(store_uri, f"{folder}/{name}", base, checksums.get(name))
    txn_indexes = [file for file in _txn_indexes(archived.segments) if file.offset >= covered] + [
        # not beside the .log: that may be in an older run's folder, where vacuum leaves only the .log
        SideFile(store_uri, f"{folder}/{name}", s.base_offset, checksums.get(name))
        for s in manifest
        if s.root == "store"
        for name in (segment_file(s.base_offset, "txnindex"),)
        if s.txn_index_bytes
    ]
    return tuple(snapshots.values()), tuple(txn_indexes)


def _missing_segment_problem(
    archived: ArchivedPartition, checkpoint: Checkpoint, theirs: Sequence[Segment], log_start: int
) -> Problem | None:
    """Return the problem if the archive lacks a segment of the generation, by base offset, as a partition may move
    between disks; or if its log ends below the generation in an empty segment.
    """
    for end in archived.segments[-1:]:
        if not end.size_bytes and end.base_offset < checkpoint.next_offset:
            expected = f"a log that reaches offset {checkpoint.next_offset}, as generation {checkpoint.generation} did"
            ends = f"one that ends at {end.base_offset}"
            return another_log(end.path, expected, ends, 0)
    listed = {s.base_offset: s for s in archived.segments}
    last = max(listed, default=-1)
    for segment in theirs:
        listed_segment = listed.get(segment.base_offset)
        if listed_segment is not None and listed_segment.size_bytes >= segment.size_bytes:
            continue
        if listed_segment is None and segment.next_offset <= log_start:
            continue  # retention took it
        expected = f"{segment.size_bytes} bytes, used by generation {checkpoint.generation}"
        found = "no such file" if listed_segment is None else f"{listed_segment.size_bytes}"
        if listed_segment is not None or last < segment.base_offset:  # the log ends before the generation does
            return another_log(segment.path, expected, found, 0)
        hint = (
            f"bring the file back{_from_remote(archived)}, or --reset (with --set gaps=accept if a hole is left) to "
            "start over from what the archive holds"
        )
        return gap(segment.path, expected, found, hint)
    return None


def parse_gaps(checkpoint: Checkpoint) -> tuple[Gap, ...]:
    """Return the gaps that a generation passed over."""
    return tuple(Gap(*gap) for gap in json.loads(checkpoint.gaps or "[]"))


def refilled_gap_problem(archived: ArchivedPartition, checkpoint: Checkpoint, gaps: Sequence[Gap]) -> Problem | None:
    """Return the problem if a file holds offsets that were missing when the generation was made: no run would read
    them.
    """
    bases = [s.base_offset for s in archived.segments]
    for hole in gaps:
        inside = archived.segments[bisect_left(bases, hole.first) : bisect_right(bases, hole.last)]
        before = bisect_left(bases, hole.before)
        cleaned = (archived.cleaner_checkpoint or 0) > hole.last  # by the archive's broker, which joins segments
        for s in [*archived.segments[before : before + 1], *inside]:
            grown = s.base_offset == hole.before and s.size_bytes > hole.size and not cleaned
            if grown or (hole.first <= s.base_offset <= hole.last and s.size_bytes > 0):
                return _reappeared(
                    s,
                    f"no offsets from {hole.first} to {hole.last}, as when generation {checkpoint.generation} was made",
                )
    return None


def _earlier_segment_problem(
    archived: ArchivedPartition, checkpoint: Checkpoint, manifest: Sequence[Segment]
) -> Problem | None:
    """Return the problem if the archive holds records below the generation's first offset: no run would read them."""
    if not archived.segments:
        return None
    begins = min([s.base_offset for s in manifest] + [checkpoint.log_start_offset])
    first = archived.segments[0]
    expired = checkpoint.expired_until >= begins and first.base_offset >= checkpoint.expired_from
    given_up = expired or (archived.log_start_checkpoint or 0) >= begins
    if first.base_offset < begins and first.size_bytes and not given_up:
        return _reappeared(first, f"no offsets below {begins}, where generation {checkpoint.generation} begins")
    return None


def _reappeared(s: Segment, expected: str) -> Problem:
    found = f"{s.size_bytes} bytes from offset {s.base_offset} on"
    hint = "what was missing has come back: --reset to start over from what the archive holds"
    return gap(s.path, expected, found, hint)


def _identity_problem(archived: ArchivedPartition, checkpoint: Checkpoint) -> Problem | None:
    for what, expected_id, archive_id in (
        ("topic id", checkpoint.topic_id, archived.topic_id),
        ("cluster id", checkpoint.cluster_id, archived.cluster_id),
    ):
        if expected_id is not None and archive_id is not None and expected_id != archive_id:
            return another_log(archived.path, f"{what} {expected_id}", archive_id)
    return None


def _archive_after(
    archived: ArchivedPartition, covered: int, checkpoint: Checkpoint
) -> tuple[list[Segment], Segment | None]:
    """Return the archive's segments from offset `covered` on; and, if none shows the log's identity, one that does."""
    after = [s for s in archived.segments if s.base_offset >= covered]
    before = [s for s in archived.segments if s.base_offset < covered]
    inputs = after
    straddling = before[-1] if before else None
    if straddling is not None and straddling.size_bytes and (not after or after[0].base_offset > covered):
        # The segment may hold offsets on both sides: the task cuts it at the batch border.
        inputs.insert(0, replace(straddling, from_offset=covered))
    elif not after and straddling is None:
        return [], None
    shown = covered < checkpoint.next_offset
    return inputs, straddling if not shown else None


def _gap_problem(
    archived: ArchivedPartition, checkpoint: Checkpoint, after: Sequence[Segment], covered: int, log_start: int
) -> Problem | None:
    """Return the problem if the archive's first segment is `after` the end of the generation, and none before it."""
    if not after or after[0].first_offset <= max(covered, log_start) or archived.segments[0].base_offset < covered:
        return None
    return gap(
        archived.path,
        f"offsets from {covered} on, where generation {checkpoint.generation} ends",
        f"a first segment at {after[0].first_offset}",
        f"{_forward(checkpoint)}bring the missing segments back{_from_remote(archived)}; or --set gaps=accept "
        "if they are known to be lost, and the generation continues with the next offsets; or --reset to start "
        "over from what the archive holds",
        NO_POSITION,
    )


def _from_remote(archived: ArchivedPartition) -> str:
    """Return the advice for segments that the broker deleted because remote storage has them."""
    folder = "the folder of the remote storage, where they are, into the archive"
    return f" (the topic has tiered storage: put {folder})" if archived.begins_elsewhere else ""


def _forward(checkpoint: Checkpoint) -> str:
    """Return the advice to roll forward after a rollback: the store may have offsets that the archive no longer has."""
    if not checkpoint.back_to:
        return ""
    before = checkpoint.generation - 1
    return f"this is a rollback: rollback --generation {before} goes forward to what was read before; or "


# -- erasures


@dataclass(frozen=True)
class Erasures:
    """Erasure data of a run: the user's HMAC key, and the record keys that this run erases."""

    key: bytes = field(default=b"", repr=False)  # b"": none was given
    new: bytes = field(default=b"", repr=False)  # the file of a new erasure; b"": the run compacts
    no_archive: bool = False  # set for a new erasure whose archive no longer exists

    def begin(self, store: str, checkpoints: Mapping[Key, Checkpoint], *, dry_run: bool) -> None:
        """Write the file of a new erasure. Raise UsageError for another key than that of the store's erasures."""
        if not self.key:
            return
        root = open_root(store)
        check_key(root, (one for row in checkpoints.values() for one in parse_bounds(row)), self.key)
        if self.new and not dry_run:
            write_erasure(root, self.new)

    @property
    def id(self) -> str:
        """Name of the new erasure; "" without one."""
        return content_id(self.new) if self.new else ""

    def plan_erasure(
        self, given: PartitionInput, before: Checkpoint | None, *, dry_run: bool
    ) -> Erasing | Problem | None:
        """Return the erasure of a partition's run, new or of records that it reads again; else None.
        Return the problem if the run needs the user's key for that, or the log's topic id.
        """
        read_until, bounds = 0 if given.reset else given.generation.next_offset or 0, parse_bounds(before)
        several = any("" not in logs and len(set(logs.values())) > 1 for logs in bounds.values())
        if given.reset and given.topic_id is None and several:
            return _no_topic_id(given)
        here = in_log(bounds, given.topic_id, MAX_OFFSET)
        again = {erasure: until for erasure, until in here.items() if until > read_until}
        if not again and not self.new:
            return None
        if not self.key:
            return _no_key(given, again)
        files = {erasure_path(erasure): until for erasure, until in again.items()}
        if self.new and not dry_run:
            files[erasure_path(self.id)] = MAX_OFFSET
        return Erasing(
            derive_secret(self.key),
            tuple(sorted(files.items())),
            self.new if dry_run else b"",
            already_applied=not given.reset and _bounds_after(bounds, given.topic_id, read_until, self.id) == bounds,
        )

    def bounds_after(
        self, before: Checkpoint | None, archived: ArchivedPartition, next_offset: int, *, reset: bool
    ) -> str | None:
        """Return the column `erased` of a partition's new generation."""
        topic_id = choose_topic_id(archived, before, reset=reset)
        return to_text(_bounds_after(parse_bounds(before), topic_id, next_offset, self.id))


def choose_topic_id(archived: ArchivedPartition, before: Checkpoint | None, *, reset: bool) -> str | None:
    """Return the topic id of a new generation: the archive's, or if it has none that of the generation before."""
    return archived.topic_id or (before.topic_id if before and not reset else None)


def _bounds_after(bounds: Bounds, topic_id: str | None, next_offset: int, new: str) -> Bounds:
    """Return the bounds of a generation that ends at next_offset: the bounds of the generation before, and those of its
    own log up to that offset, from which erasures of other logs removed their keys. new: an erasure that is made now;
    "": none.
    """
    own = {
        one: next_offset if until == MAX_OFFSET else until
        for one, until in in_log(bounds, topic_id, MAX_OFFSET).items()
    }
    if new:
        own[new] = max(next_offset, own.get(new, 0))
    out, log = {}, topic_id or ""
    for one, until in own.items():
        others = {other: n for other, n in bounds.get(one, {}).items() if other}  # one without an id is this one
        if one == new and log:
            others = dict.fromkeys(others, MAX_OFFSET)  # records since the last erasure are erased too
        out[one] = others | {log: until}
    return out


def _no_topic_id(given: PartitionInput) -> Problem:
    path = f"{given.name}/{PARTITION_METADATA}"
    expected = "a topic id: the topic was made again, and keys were erased up to another offset of each log"
    hint = "bring the file back: it is unknown which records of these keys came after the erasure"
    return Problem("erased", path, NO_POSITION, expected, "none", hint=hint)


def _no_key(given: PartitionInput, bounds: Mapping[str, int]) -> Problem:
    erasure, until = max(bounds.items(), key=lambda one: one[1])
    read = "a log that was not searched for its keys since" if until == MAX_OFFSET else f"offsets below {until} again"
    expected = f"--hmac-key, the key of erasure {erasure}, for this run reads {read}"
    hint = "give the file that erase was given: without it, records that were erased would come back"
    return Problem("erased", given.name, NO_POSITION, expected, "none", hint=hint)
