"""Positions of groups: the delivered offsets of each group by partition, from the logs of coordinators.

Each audit reads the complete logs of __consumer_offsets and __share_group_state, one task per partition. The last
commit of a group can be anywhere in these logs.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lastkey.jobs.audit.sources import AuditedLogs, archive_source, list_source
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.errors import MissingPathError, UnknownNameError
from lastkey.jobs.spark.workers import Runner
from lastkey.jobs.topics import KAFKAS_OWN, Key, TopicFilter
from lastkey.udfs.audit.committed import CONSUMER_OFFSETS, TOPICS, Committed, OffsetCommit, gather, read_commits
from lastkey.udfs.audit.delivery import Position

_KAFKAS_OWN = TopicFilter((KAFKAS_OWN,))


@dataclass(frozen=True)
class Positions:
    """Positions of the groups that are audited."""

    by_unit: Mapping[Key, Sequence[Position]]
    unknown: Mapping[str, str]  # group -> why its commits are unknown
    notes: Sequence[str] = ()


def list_coordinators(source: AuditSource, elsewhere: str | None) -> AuditedLogs:
    """List the coordinators' topics of a source, or of the archive at `elsewhere`. Raise MissingPathError if neither
    has them.
    """
    place = elsewhere or source.archive or source.store
    missing = MissingPathError(
        path=place, expected=f"{CONSUMER_OFFSETS}, or a place that has it (--offsets-archive)", found="no such topic"
    )
    try:
        found = list_source(source, _KAFKAS_OWN) if elsewhere is None else archive_source(elsewhere, _KAFKAS_OWN)
    except UnknownNameError as error:
        raise missing from error
    if not any(one.topic == CONSUMER_OFFSETS for one in found.partitions):
        raise missing
    return found


def committed_in(workers: Runner, source: AuditedLogs, config: Config) -> Committed:
    """Read the coordinators' topics in tasks."""
    partitions = [one for one in source.partitions if one.topic in TOPICS]
    read = partial(read_commits, accept_gaps=config.topic_settings(CONSUMER_OFFSETS).gaps == "accept")
    return gather(workers.run(read, partitions, "audit: committed offsets"))


def committed_offsets(found: Committed, groups: Collection[str]) -> tuple[dict[Key, set[int]], set[Key]]:
    """Return the offsets that these groups, or all, have committed in each partition, and the partitions in which
    ranges above them are delivered.
    """
    offsets, ranges = defaultdict[Key, set[int]](set), set[Key]()
    for row in found.rows:
        if row.topic is not None and (not groups or row.group in groups):
            offsets[row.topic, row.partition].add(row.offset or 0)
            if row.delivered:
                ranges.add((row.topic, row.partition))
    return offsets, ranges


def committed_positions(
    found: Committed, groups: Collection[str], n_partitions: Mapping[str, int], ends: Mapping[tuple[str, int], int]
) -> Positions:
    """Return the positions of these groups, of all if none is named, in the topics that they read.

    n_partitions: of the audited topics; ends: the log end of each partition. Raise UnknownNameError for a group that
    has no committed offset although all was read.
    """
    by_group: dict[str, list[OffsetCommit]] = {}
    for row in found.rows:
        if not groups or row.group in groups:
            by_group.setdefault(row.group, []).append(row)
    unknown = {group: why for group in {*groups, *by_group} if (why := found.unknown_because(group)) is not None}
    for group in groups:
        if group not in by_group and group not in unknown and group not in found.group_types:
            near = difflib.get_close_matches(group, {row.group for row in found.rows})
            hint = f"did you mean {' or '.join(near)}?" if near else "audit delivery without --group shows all"
            raise UnknownNameError(message=f"--group {group}: it has committed nothing", near=hint)
    by_unit: dict[Key, list[Position]] = {}
    notes = []
    for group, commits in sorted(by_group.items()):
        there = {(row.topic, row.partition): row for row in commits if row.topic in n_partitions}
        nameless = {row.topic_id or "" for row in commits if row.topic is None}
        if nameless:
            notes.append(
                f"group {group!r}: no record has the names of the topics {', '.join(sorted(nameless))}; their offsets "
                "are skipped"
            )
        if group in groups and not there:
            notes.append(f"group {group!r} has committed no offset of a topic that is audited")
        for topic in sorted({topic for topic, _ in there if topic is not None}):
            for partition in range(n_partitions[topic]):
                position = _position(group, commits[0].group_type, there.get((topic, partition)), unknown)
                by_unit.setdefault((topic, partition), []).append(position)
                end = ends.get((topic, partition))
                if end is not None and position.start > end:
                    notes.append(
                        f"group {group!r} is at offset {position.start} of {topic}-{partition}, and what was read of"
                        f" it ends at {end}: the log is older than the offsets, or the topic was created again"
                    )
    return Positions(by_unit, unknown, notes)


def _position(group: str, kind: str, row: OffsetCommit | None, unknown: Collection[str]) -> Position:
    if row is None:  # a share group without a row has no state; a group with unreadable state has a row
        return Position(group, kind, known=kind == "share" or group not in unknown)
    start = row.offset or 0
    tail = min(max([start, *(last + 1 for _, last in row.delivered)]), 2**63 - 1)
    return Position(group, row.group_type, start, tail, row.delivered, row.certain)
