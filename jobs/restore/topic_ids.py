"""Topic ids of the cluster that will run on a restored log directory, as a user gives them.

    Topic: orders	TopicId: dDcrp6dMSdqMTmQ0o6sTxg	PartitionCount: 3	...     kafka-topics --describe
    orders=dDcrp6dMSdqMTmQ0o6sTxg                                                properties

A line that is neither is an error: a topic that is passed over would become stray. Sources: TopicCommand of Kafka
4.3.0; LogManager.isStrayKraftReplica.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from lastkey.jobs.command.parse import read_given
from lastkey.jobs.errors import BAD_TOPIC_IDS
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import is_topic
from lastkey.logformat.side_files.checkpoints import parse_uuid

_KIND: Final = "text of kafka-topics --describe, or lines topic=id"
_DESCRIBED: Final = re.compile(
    r"Topic: ?(?P<topic>\S+)\s+TopicId: ?(?P<id>\S+)\s+PartitionCount: ?(?P<partitions>\d+)\s"
)
_PARTITION: Final = re.compile(r"\s+Topic: ?\S+\s+Partition: ?\d+\s")
_PROPERTY: Final = re.compile(r"\s*(?P<topic>[^\s=:]+)\s*[=:]\s*(?P<id>\S+)\s*")
_RESERVED: Final = (UUID(int=0), UUID(int=1))  # Kafka's Uuid.ZERO_UUID and METADATA_TOPIC_ID, of no topic


@dataclass(frozen=True)
class GivenTopic:
    """Topic of the cluster."""

    topic_id: UUID
    n_partitions: int | None  # None: not given


def read_topic_ids(path: str | None, restored: Collection[str]) -> dict[str, GivenTopic]:
    """Return the topics that a file gives, by name; none without a file.

    restored: topics of the store. Raises BAD_TOPIC_IDS for a line or id that is wrong, for two ids of a topic, and if
    no restored topic is in the file.
    """
    if path is None:
        return {}
    given: dict[str, GivenTopic] = {}
    for number, line in enumerate(read_given(path, _KIND).splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!" or _PARTITION.match(line):
            continue
        match = _DESCRIBED.match(f"{line} ") or _PROPERTY.fullmatch(line)
        if match is None or not is_topic(match["topic"]):
            raise BAD_TOPIC_IDS(path=path, position=number, expected=_KIND, found=repr(line))
        topic, count = match["topic"], match.groupdict().get("partitions")
        given_topic = GivenTopic(_id(match["id"], path, number), None if count is None else int(count))
        if topic in given and given[topic].topic_id != given_topic.topic_id:
            raise BAD_TOPIC_IDS(path=path, position=number, expected=f"one id of topic {topic}", found="another one")
        if count is not None or topic not in given:
            given[topic] = given_topic
    if restored and not given.keys() & set(restored):
        raise BAD_TOPIC_IDS(path=path, position=1, expected="topics that are restored", found="none of them")
    return given


def _id(text: str, path: str, number: int) -> UUID:
    try:
        topic_id = parse_uuid(text, path)
    except LogFormatError as error:
        raise BAD_TOPIC_IDS(path=path, position=number, expected=error.expected, found=error.found) from None
    if topic_id in _RESERVED:
        raise BAD_TOPIC_IDS(path=path, position=number, expected="the id of a topic", found=f"{text}, of no topic")
    return topic_id


def is_beyond_topic(given: GivenTopic | None, partition: int) -> bool:
    """Return whether the cluster's topic is known to have fewer partitions."""
    return given is not None and given.n_partitions is not None and partition >= given.n_partitions
