"""Committed offsets of every group, from the log of the coordinators: an archived __consumer_offsets and, of share
groups, __share_group_state.

    reads = [read_commits(partition) for partition in partitions]   # a task each
    found = gather(reads)
    found.rows, found.problems, found.notes

`rows` has one row for each (group, topic, partition) with a committed offset at the end of the log. A group lives in
one partition of the topic, by Java's hash of its name (GroupMetadataManager.partitionFor; a share partition by its
coordinator key). So a partition that could not be fully read makes exactly its own groups unknown: their rows are not
`certain`, and `unknown_because` has the reason for a group without rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from lastkey.udfs.audit.group_records import (
    CONSUMER_OFFSETS,
    KINDS,
    SHARE_STATE,
    CommitsRead,
    OffsetCommit,
    SharedTopic,
    decode,
)
from lastkey.udfs.audit.last_records import last_records
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem

TOPICS: Final = (CONSUMER_OFFSETS, SHARE_STATE)
_DEFAULT_PARTITIONS: Final = 50  # default of both topics


@dataclass(frozen=True)
class Committed:
    """Committed offsets of all groups at the end of the coordinators' logs."""

    rows: tuple[OffsetCommit, ...]  # by group, topic and partition
    group_types: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    partitions: int = 0  # partitions of __consumer_offsets
    unread: Mapping[int, str] = field(default_factory=dict)  # its partitions that are not fully read -> why

    def unknown_because(self, group: str) -> str | None:
        """Return why a group's commits are unknown; None: the rows are complete, also if there are none."""
        if not self.partitions:
            return f"there is no {CONSUMER_OFFSETS}"
        return self.unread.get(partition_for(group, self.partitions))

    def unreadable(self, groups: Collection[str], topics: Collection[str]) -> list[str]:
        """Name the last commits of groups (none given: of all) for topics whose value cannot be read."""
        return [
            f"group {row.group!r}: the offset that it committed last of {row.topic}-{row.partition} cannot be read"
            f" (record {row.record_offset} of"
            f" {SHARE_STATE if row.group_type == 'share' else CONSUMER_OFFSETS}-{row.coordinator_partition})"
            for row in self.rows
            if not row.certain and row.offset is None and row.record_offset >= 0
            if row.topic in topics and (not groups or row.group in groups)
        ]


def read_commits(partition: SourcePartition, *, accept_gaps: bool = False) -> CommitsRead:
    """Read a partition of __consumer_offsets or of __share_group_state, to its end.

    accept_gaps: a missing segment is no problem, and leaves no group unknown.
    """
    topic, number, name = partition.topic or "", partition.partition, partition.name
    last = last_records(partition, KINDS[topic], accept_gaps=accept_gaps)
    out = CommitsRead(topic, -1 if number is None else number, problems=last.problems, whole=not last.problems)
    decode(name, last.rows, last.types, out)
    if last.undecided:
        out.notes.append(f"{name}: {last.undecided} records of transactions without an end do not count")
    return out


def gather(reads: Sequence[CommitsRead]) -> Committed:
    """Return the content of all partitions together."""
    by_topic = {topic: {read.partition: read for read in reads if read.topic == topic} for topic in TOPICS}
    count = {topic: _count(topic, there) for topic, there in by_topic.items()}
    unread = {topic: _unread(topic, there, count[topic]) for topic, there in by_topic.items()}
    types = {group: kind for read in reads for group, kind in read.group_types.items()}
    shared = [one for read in reads for one in read.shared]
    names = {one.topic_id: one.topic for one in shared}
    found, strays = _found(by_topic, count)
    _add_unread_shares(found, shared, count[SHARE_STATE], unread[SHARE_STATE])
    rows = []
    for commit, (topic, number) in found.values():
        certain = commit.certain and number not in unread[topic]
        # Kafka makes a classic group of a group that has only offsets
        kind = "share" if topic == SHARE_STATE else types.get(commit.group, "classic" if certain else "unknown")
        name = names.get(commit.topic_id or "") if commit.topic is None else commit.topic
        rows.append(commit._replace(topic=name, certain=certain, group_type=kind, coordinator_partition=number))
    notes = [note for read in reads for note in read.notes]
    notes += [f"{why}: the commits of its groups are unknown" for each in unread.values() for why in each.values()]
    return Committed(
        tuple(sorted(rows, key=lambda row: (row.group, row.topic or "", row.partition, row.topic_id or ""))),
        types,
        tuple(problem for read in reads for problem in read.problems),
        (*notes, *strays),
        count[CONSUMER_OFFSETS],
        unread[CONSUMER_OFFSETS],
    )


Found = dict[tuple[str, str, int], tuple[OffsetCommit, tuple[str, int]]]  # with a coordinator's topic and partition


def _found(by_topic: Mapping[str, Mapping[int, CommitsRead]], count: Mapping[str, int]) -> tuple[Found, list[str]]:
    """Return each commit once, and notes on groups outside of their own partition, whose commits have low priority."""
    found: Found = {}
    strays: dict[str, None] = {}
    for topic, there in by_topic.items():
        for number, read in sorted(there.items()):
            for commit in read.commits:
                home = _home(topic, commit, count[topic])
                key = commit.group, commit.topic or commit.topic_id or "", commit.partition
                if key not in found or home == number:
                    found[key] = commit, (topic, number)
                if home != number:
                    strays[
                        f"group {commit.group!r} has records in {topic}-{number}, and of {count[topic]} partitions"
                        f" {home} is its own: their number was changed, or they come from several clusters"
                    ] = None
    return found, list(strays)


def _add_unread_shares(found: Found, shared: Sequence[SharedTopic], count: int, unread: Mapping[int, str]) -> None:
    """Add the share partitions that have no state here only because it could not be read."""
    for one in shared:
        for number in one.partitions:
            commit = OffsetCommit(one.group, None, one.topic_id, number, None, certain=False)
            home = _home(SHARE_STATE, commit, count) if count else -1
            if not count or home in unread:
                found.setdefault((one.group, one.topic_id, number), (commit, (SHARE_STATE, home)))


def _count(topic: str, there: Mapping[int, CommitsRead]) -> int:
    """Return the number of a coordinator's partitions: as many as the archive has, unless only Kafka's default fits."""
    if not there:
        return 0
    least = max(there) + 1

    def fits(count: int) -> bool:
        return all(_home(topic, one, count) == number for number, read in there.items() for one in read.commits)

    return (
        _DEFAULT_PARTITIONS if least < _DEFAULT_PARTITIONS and not fits(least) and fits(_DEFAULT_PARTITIONS) else least
    )


def _unread(topic: str, there: Mapping[int, CommitsRead], count: int) -> dict[int, str]:
    """Return partition -> why it is not fully known."""
    out = {}
    for number in range(count):
        if number not in there:
            out[number] = f"{topic}-{number} is not in the archive"
        elif not there[number].whole:
            out[number] = f"{topic}-{number} could not be read whole"
    return out


def _home(topic: str, commit: OffsetCommit, count: int) -> int:
    if topic == CONSUMER_OFFSETS:
        return partition_for(commit.group, count)
    return partition_for(f"{commit.group}:{commit.topic_id}:{commit.partition}", count)


@lru_cache(maxsize=1 << 14)
def partition_for(name: str, count: int) -> int:
    """Return the partition of a coordinator's topic that a group, or a share partition's key, lives in: Utils.abs of
    String.hashCode.
    """
    code = 0
    data = name.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(data), 2):
        code = (31 * code + int.from_bytes(data[i : i + 2])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % count
