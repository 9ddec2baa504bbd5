"""Records of __consumer_offsets and __share_group_state that count, as committed offsets.

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from lastkey.logformat.messages.coordinator_records import GROUP_RECORDS, SHARE_RECORDS
from lastkey.logformat.messages.reader import MessageError, reader
from lastkey.logformat.messages.table import known_versions
from lastkey.udfs.audit.last_records import Kinds, record_types
from lastkey.udfs.audit.share_state import BATCH, Range, ShareStateRecord, delivered_ranges, start_offset
from lastkey.udfs.problem import Problem

CONSUMER_OFFSETS: Final = "__consumer_offsets"
SHARE_STATE: Final = "__share_group_state"
_LEGACY_COMMIT, _COMMIT = 0, 1
_TYPES_OF_GROUPS: Final = {2: "classic", 3: "consumer", 11: "share", 17: "streams"}
_SHARE_TOPICS: Final = 15
_SNAPSHOT, _UPDATE = 0, 1
NONE: Final = -1
NO_TOPIC_ID: Final = "A" * 22


class OffsetCommit(NamedTuple):
    """A committed offset of a group, or the state of a share partition."""

    group: str
    topic: str | None  # None: of a share group, only the id is known
    topic_id: str | None  # None: the record has none
    partition: int
    offset: int | None  # the next one to read; share: where the group starts; None: none, or it cannot be read
    leader_epoch: int = NONE
    metadata: str = ""
    commit_ms: int = NONE  # NONE also in updates of share groups
    expire_ms: int = NONE
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


_OF_GROUPS: Final = frozenset({_LEGACY_COMMIT, _COMMIT, _SHARE_TOPICS, *_TYPES_OF_GROUPS})
KINDS: Final = {
    CONSUMER_OFFSETS: Kinds(_OF_GROUPS, frozenset(_TYPES_OF_GROUPS), _OF_GROUPS),
    SHARE_STATE: Kinds(frozenset({_SNAPSHOT, _UPDATE}), frozenset(), frozenset({_SNAPSHOT})),
}
_KNOWN: Final = {CONSUMER_OFFSETS: frozenset(GROUP_RECORDS), SHARE_STATE: frozenset(SHARE_RECORDS)}


def decode(name: str, rows: Any, types: dict[int, int], out: CommitsRead) -> None:
    """Add the records that count. name: of the partition, for notes; rows: pa.Table of last_records.LAST."""
    out.notes += _unknown_types(name, out.topic, types)
    decode_rows = _group_rows if out.topic == CONSUMER_OFFSETS else _share_rows
    decode_rows(name, rows, out)


def _unknown_types(name: str, topic: str, types: dict[int, int]) -> Iterator[str]:
    for code in sorted(set(types) - _KNOWN[topic]):
        what = {-1: "with a key shorter than its type", -2: "without a key"}.get(code, f"of the unknown type {code}")
        yield f"{name}: {types[code]} records {what} are left out"


def _group_rows(name: str, rows: Any, out: CommitsRead) -> None:
    codes = record_types(rows["key"].combine_chunks()).tolist()
    existing: dict[str, int] = {}
    columns = (rows[column].to_pylist() for column in ("offset", "key", "value"))
    for code, offset, key, value in zip(codes, *columns, strict=True):
        if value is None:
            continue
        try:
            fields = _message(GROUP_RECORDS[code] + "Key", 0, key)
        except MessageError as error:
            out.whole &= code not in (_LEGACY_COMMIT, _COMMIT)
            out.notes.append(f"{name}, offset {offset}: the key cannot be read: {error}")
            continue
        try:
            if code in (_LEGACY_COMMIT, _COMMIT):
                out.commits.append(_commit(fields, offset, _versioned(GROUP_RECORDS[code] + "Value", value)))
            elif code == _SHARE_TOPICS:
                said = _versioned(GROUP_RECORDS[code] + "Value", value)
                for state in ("initializedTopics", "initializingTopics", "deletingTopics"):
                    out.shared += [_shared(fields["groupId"], of, state) for of in said[state]]
            else:
                (group,) = fields.values()
                if offset > existing.get(group, NONE):  # tombstones remove a changed type
                    existing[group], out.group_types[group] = offset, _TYPES_OF_GROUPS[code]
        except MessageError as error:
            out.notes.append(f"{name}, offset {offset}: the value of {_shown(fields)} cannot be read: {error}")
            if code in (_LEGACY_COMMIT, _COMMIT):
                out.commits.append(_commit(fields, offset, None))


def _shared(group: str, of: dict[str, Any], state: str) -> SharedTopic:
    has_state = tuple(of["partitions"]) if state == "initializedTopics" else ()
    return SharedTopic(group, of["topicName"], of["topicId"], has_state)


def _commit(key: dict[str, Any], offset: int, value: dict[str, Any] | None) -> OffsetCommit:
    if value is None:
        return OffsetCommit(
            key["group"], key["topic"], None, key["partition"], None, record_offset=offset, certain=False
        )
    return OffsetCommit(
        key["group"],
        key["topic"],
        _topic_id(value.get("topicId", NO_TOPIC_ID)),
        key["partition"],
        value["offset"],
        value.get("leaderEpoch", NONE),
        value["metadata"],
        value["commitTimestamp"],
        value.get("expireTimestamp", NONE),
        record_offset=offset,
    )


def _topic_id(text: str) -> str | None:
    return None if text == NO_TOPIC_ID else text


def _share_rows(name: str, rows: Any, out: CommitsRead) -> None:
    rows = rows.sort_by([("identity", "ascending"), ("offset", "ascending")])
    codes = record_types(rows["key"].combine_chunks()).tolist()
    columns = [rows[column].to_pylist() for column in ("offset", "key", "value")]
    identities = rows["identity"].to_pylist()
    begins = [i for i, identity in enumerate(identities) if i == 0 or identity != identities[i - 1]]
    for first, end in zip(begins, [*begins[1:], len(identities)], strict=True):
        offsets, keys, values = (column[first:end] for column in columns)
        _share_partition(name, codes[first:end], offsets, keys, values, out)


def _share_partition(
    name: str, codes: list[int], offsets: list[int], keys: list[bytes], values: list[bytes | None], out: CommitsRead
) -> None:
    """Decode a snapshot and the updates after it; a snapshot without a value deletes the state."""
    try:
        key = _message("ShareSnapshotKey", 0, keys[0])
    except MessageError as error:
        out.whole = False
        out.notes.append(f"{name}, offset {offsets[0]}: the key cannot be read: {error}")
        return
    of_partition = key["groupId"], None, key["topicId"], key["partition"]
    changes, said = [], {}
    for code, offset, value in zip(codes, offsets, values, strict=True):
        if value is None:  # an update without a value has no effect
            continue
        try:
            said = _versioned(SHARE_RECORDS[code] + "Value", value)
        except MessageError as error:
            out.notes.append(f"{name}, offset {offset}: the value of {_shown(key)} cannot be read: {error}")
            out.commits.append(OffsetCommit(*of_partition, None, record_offset=offset, certain=False))
            return
        batches = [tuple(batch.values()) for batch in said["stateBatches"]]
        changes.append(ShareStateRecord(said["startOffset"], np.array(batches, BATCH)))
    if not changes:
        return
    start = start_offset(changes)
    ranges = tuple(delivered_ranges(changes))
    begins = None if start == NONE else start
    written = said.get("writeTimestamp", NONE)
    out.commits.append(
        OffsetCommit(
            *of_partition, begins, said["leaderEpoch"], "", written, delivered=ranges, record_offset=offsets[-1]
        )
    )


def _message(name: str, version: int, data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(reader(name, version)(data, 2)[0])
    return fields


def _versioned(name: str, data: bytes) -> dict[str, Any]:
    if len(data) < 2:
        raise MessageError("it is shorter than its version")
    version = int.from_bytes(data[:2], signed=True)
    known = known_versions(name)
    if version not in known:
        raise MessageError(f"unknown version {version}; known are {known[0]} to {known[-1]}")
    return _message(name, version, data)


def _shown(key: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in key.items())
