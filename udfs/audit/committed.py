"""Committed offsets of every group, from the log of the coordinators: an archived __consumer_offsets and, of share
groups, __share_group_state; and the checkpoints of MirrorMaker 2.

    reads = [read_commits(partition) for partition in partitions]   # a task each
    found = gather(reads)
    found.rows, found.problems, found.notes

`rows` has one row for each (group, topic, partition) with a committed offset at the end of the log. A group lives in
one partition of the topic, by Java's hash of its name (GroupMetadataManager.partitionFor; a share partition by its
coordinator key). So a partition that could not be fully read makes exactly its own groups unknown: their rows are not
`certain`, and `unknown_because` has the reason for a group without rows.

| type of key | in __consumer_offsets |
|---|---|
| 0, 1 | the committed offset of (group, topic, partition) in a classic, consumer or streams group; type 0 is old |
| 2, 3, 11, 17 | a group exists, whose type is classic, consumer, share or streams |
| 15 | the topics of a share group, with their names; its state has only their ids |

In __share_group_state, types 0 and 1 are the snapshot and the updates of (group, topic id, partition): share_state.py.
Other types have no offsets: members, assignments, topologies. A type or version that Kafka 4.4.0 does not know is named
in a note. Each key and its last value are decoded once, in Python: 100,000 committed offsets a second.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from lastkey.logformat.messages.coordinator_records import GROUP_RECORDS, SHARE_RECORDS
from lastkey.logformat.messages.mirror_records import MIRROR_RECORDS, key_text, value_text
from lastkey.logformat.messages.reader import MessageError, reader
from lastkey.logformat.messages.table import known_versions
from lastkey.udfs.audit.last_records import Kinds, last_records
from lastkey.udfs.audit.share_state import BATCH, Range, ShareStateRecord, delivered_ranges, start_offset
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem

CONSUMER_OFFSETS: Final = "__consumer_offsets"
SHARE_STATE: Final = "__share_group_state"
TOPICS: Final = (CONSUMER_OFFSETS, SHARE_STATE)
_DEFAULT_PARTITIONS: Final = 50  # default of both topics
_COMMITS: Final = (0, 1)
_TYPES_OF_GROUPS: Final = {2: "classic", 3: "consumer", 11: "share", 17: "streams"}
_SHARE_TOPICS: Final = 15
_SNAPSHOT, _UPDATE = 0, 1
_OF_GROUPS: Final = frozenset({*_COMMITS, _SHARE_TOPICS, *_TYPES_OF_GROUPS})
_KINDS: Final = {
    CONSUMER_OFFSETS: Kinds(_OF_GROUPS, frozenset(_TYPES_OF_GROUPS), _OF_GROUPS),
    SHARE_STATE: Kinds(frozenset({_SNAPSHOT, _UPDATE}), frozenset(), frozenset({_SNAPSHOT})),
}
_KNOWN: Final = {CONSUMER_OFFSETS: frozenset(GROUP_RECORDS), SHARE_STATE: frozenset(SHARE_RECORDS)}
NONE: Final = -1
_NO_TOPIC_ID: Final = "A" * 22


class OffsetCommit(NamedTuple):
    """A committed offset of a group, or the state of a share partition."""

    group: str
    topic: str | None  # None: of a share group, only the id is known
    topic_id: str | None  # None: the record has none
    partition: int
    offset: int | None  # the next one to read; share: where the group starts; None: none, or it cannot be read
    delivered: tuple[Range, ...] = ()  # share: ranges above the offset, first and last included
    record_offset: int = NONE  # offset in the coordinator's log
    certain: bool = True  # false: it cannot be read, or a later record may be lost in what could not be read
    group_type: str = "unknown"  # or classic, consumer, share, streams
    coordinator_partition: int = NONE  # partition of __consumer_offsets or __share_group_state


class SharedTopic(NamedTuple):
    """A topic that a share group reads, and its partitions that have a state."""

    group: str
    topic: str
    topic_id: str
    partitions: tuple[int, ...]


@dataclass
class CommitsRead:
    """Content of the records that count of one partition of a coordinator's topic."""

    topic: str
    partition: int
    commits: list[OffsetCommit] = field(default_factory=list)
    group_types: dict[str, str] = field(default_factory=dict)
    shared: list[SharedTopic] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    notes: list[str] = field(default_factory=list)
    whole: bool = True  # all of it was read, also the group of each committed offset


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
    last = last_records(partition, _KINDS[topic], accept_gaps=accept_gaps)
    out = CommitsRead(topic, NONE if number is None else number, problems=last.problems, whole=not last.problems)
    for code in sorted(set(last.types) - _KNOWN[topic]):
        what = {-1: "with a key shorter than its type", -2: "without a key"}.get(code, f"of the unknown type {code}")
        out.notes.append(f"{name}: {last.types[code]} records {what} are left out")
    (_decode_groups if topic == CONSUMER_OFFSETS else _decode_shares)(name, last.rows, out)
    if last.undecided:
        out.notes.append(f"{name}: {last.undecided} records of transactions without an end do not count")
    return out


# -- records


def _decode_groups(name: str, rows: Any, out: CommitsRead) -> None:
    """Add records of __consumer_offsets. name: of the partition, for notes; rows: pa.Table of LAST, by offset."""
    for _, offset, key, data in _listed(rows):
        if data is None:
            continue
        code = int.from_bytes(key[:2])
        try:
            fields = _message(GROUP_RECORDS[code] + "Key", 0, key)
        except MessageError as error:
            out.whole &= code not in _COMMITS
            out.notes.append(f"{name}, offset {offset}: the key cannot be read: {error}")
            continue
        if code in _TYPES_OF_GROUPS:
            (group,) = fields.values()
            out.group_types[group] = _TYPES_OF_GROUPS[code]  # tombstones remove a changed type
            continue
        value = _value(GROUP_RECORDS[code], data, fields, f"{name}, offset {offset}", out)
        if code in _COMMITS:
            topic_id = (value or {}).get("topicId", _NO_TOPIC_ID)
            of_partition = fields["group"], fields["topic"], None if topic_id == _NO_TOPIC_ID else topic_id
            committed = None if value is None else value["offset"]
            commit = OffsetCommit(*of_partition, fields["partition"], committed, (), offset, value is not None)
            out.commits.append(commit)
        elif value is not None:
            for state in ("initializedTopics", "initializingTopics", "deletingTopics"):
                for of in value[state]:
                    numbers = tuple(of["partitions"]) if state == "initializedTopics" else ()
                    out.shared.append(SharedTopic(fields["groupId"], of["topicName"], of["topicId"], numbers))


def _decode_shares(name: str, rows: Any, out: CommitsRead) -> None:
    """Add records of __share_group_state: a snapshot and the updates after it, of each share partition."""
    rows = rows.sort_by([("identity", "ascending"), ("offset", "ascending")])
    for _, of in groupby(_listed(rows), itemgetter(0)):
        _decode_share(name, list(of), out)


def _decode_share(name: str, rows: Sequence[tuple[bytes, int, bytes, bytes | None]], out: CommitsRead) -> None:
    """Add a share partition. A snapshot without a value deletes the state."""
    try:
        key = _message("ShareSnapshotKey", 0, rows[0][2])
    except MessageError as error:
        out.whole = False
        out.notes.append(f"{name}, offset {rows[0][1]}: the key cannot be read: {error}")
        return
    of_partition = key["groupId"], None, key["topicId"], key["partition"]
    changes = []
    for _, offset, record_key, data in rows:
        if data is None:  # an update without a value has no effect
            continue
        value = _value(SHARE_RECORDS[int.from_bytes(record_key[:2])], data, key, f"{name}, offset {offset}", out)
        if value is None:
            out.commits.append(OffsetCommit(*of_partition, None, (), offset, certain=False))
            return
        batches = [tuple(batch.values()) for batch in value["stateBatches"]]
        changes.append(ShareStateRecord(value["startOffset"], np.array(batches, BATCH)))
    if changes:
        start = start_offset(changes)
        begins = None if start == NONE else start
        out.commits.append(OffsetCommit(*of_partition, begins, tuple(delivered_ranges(changes)), rows[-1][1]))


def _listed(rows: Any) -> Iterator[tuple[bytes, int, bytes, bytes | None]]:
    """Return identity, offset, key and value of each record."""
    return zip(*(rows[column].to_pylist() for column in ("identity", "offset", "key", "value")), strict=True)


def _message(name: str, version: int, data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(reader(name, version)(data, 2)[0])
    return fields


def _value(record: str, data: bytes, key: dict[str, Any], place: str, out: CommitsRead) -> dict[str, Any] | None:
    """Return the fields of a record's value; None: it cannot be read, which is a note."""
    try:
        if len(data) < 2:
            raise MessageError("it is shorter than its version")
        version, known = int.from_bytes(data[:2], signed=True), known_versions(f"{record}Value")
        if version not in known:
            raise MessageError(f"unknown version {version}; known are {known[0]} to {known[-1]}")
        return _message(f"{record}Value", version, data)
    except MessageError as error:
        shown = ", ".join(f"{name} {value!r}" for name, value in key.items())
        out.notes.append(f"{place}: the value of {shown} cannot be read: {error}")
        return None


# -- all partitions


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
    units = np.frombuffer(name.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    code = reduce(lambda code, unit: (31 * code + unit) & 0xFFFFFFFF, units, 0)
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % count


# -- MirrorMaker 2


CHECKPOINT_TOPICS: Final = "*.checkpoints.internal"
_CHECKPOINT: Final = MIRROR_RECORDS["mirror-checkpoints"]


class MirrorCheckpoint(NamedTuple):
    """Last checkpoint of a group for one partition of the copy: at it MirrorMaker 2 lets the group continue there."""

    topic: str
    partition: int
    upstream_offset: int  # committed in the source
    offset: int  # in the copy


def read_checkpoints(partition: SourcePartition, group: str) -> tuple[list[MirrorCheckpoint], list[Problem | str]]:
    """Read the last checkpoints of a group from a topic `<alias>.checkpoints.internal` in an archived copy. A bad batch
    or record is a problem.

    A record's key is group, topic of the copy and partition, and the last record of a key counts (MirrorCheckpointTask
    and OffsetSyncStore of Kafka 4.3.0).
    """
    name = group.encode()
    length = frozenset({len(name)})  # a key begins with it
    last = last_records(partition, Kinds(length, frozenset(), length), accept_gaps=True)
    rows = last.rows.filter(pc.starts_with(last.rows["key"], pattern=struct.pack(">h", len(name)) + name))
    problems: list[Problem | str] = list(last.problems)
    found = []
    for row in rows.filter(pc.is_valid(rows["value"])).to_pylist():
        try:
            texts = key_text(_CHECKPOINT, row["key"]), value_text(_CHECKPOINT, row["value"])
        except MessageError as error:
            place = f"{partition.name}: offset {row['offset']}"
            problems.append(f"{place}: expected a checkpoint of MirrorMaker 2: {error}")
            continue
        key, value = map(json.loads, texts)
        found.append(MirrorCheckpoint(key["topic"], key["partition"], value["upstreamOffset"], value["offset"]))
    return found, problems
