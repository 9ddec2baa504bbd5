"""Options of a data source, parsed: which partitions, records and columns to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lastkey.jobs.command.parse import check_topics, nearest
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.topics import EVERY_TOPIC, Key, TopicFilter
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.data_source.pieces import LATEST, SPLIT_BYTES, Bound, Wanted

Source = Literal["kafka_log", "kafka_log_batches", "kafka_log_index"]

KINDS: Final = ("offset", "time", "transaction", "producer", "leader_epoch")

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(frozen=True)
class Selection:
    """Limits on the partitions to read. A partition has to meet all of them."""

    topics: TopicFilter = EVERY_TOPIC
    subscribed: TopicFilter = EVERY_TOPIC  # as in Spark's Kafka source: one of several may be missing
    pattern: str | None = None  # a regular expression to find in the name, as in Spark's Kafka source
    assigned: frozenset[Key] | None = None
    partitions: tuple[range, ...] | None = None

    def topic(self, name: str) -> bool:
        """Return whether to read a topic."""
        return (
            self.topics.takes(name)
            and self.subscribed.takes(name)
            and (self.pattern is None or (name not in _INTERNAL and re.search(self.pattern, name) is not None))
            and (self.assigned is None or any(name == topic for topic, _ in self.assigned))
        )

    def partition(self, topic: str | None, number: int | None) -> bool:
        """Return whether to read a partition; one without a known name only if no limit could leave it out."""
        if topic is None or number is None:
            return not self.topics.include and replace(self, topics=EVERY_TOPIC) == Selection()
        return (
            self.topic(topic)
            and (self.assigned is None or (topic, number) in self.assigned)
            and (self.partitions is None or any(number in numbers for numbers in self.partitions))
        )

    def check(self, known_topics: Iterable[str], where: str, *, some: bool) -> None:
        """Raise UsageError if a name or glob is none of the known topics, or if nothing is selected (not `some`)."""
        topics = sorted(set(known_topics))
        check_topics(self.topics, topics, where)
        if some:
            return
        asked = self.subscribed.include or (() if self.pattern is None else (self.pattern,))
        if asked and not any(map(self.topic, topics)):
            raise UnknownNameError(
                message=f"no topic of {where} matches {', '.join(asked)}", near=nearest(asked, topics)
            )
        raise UsageError(message=f"no partition of {where} is selected")


@dataclass(frozen=True)
class Bounds:
    """Start or end of reading in every partition."""

    option: str
    default: Bound
    each: Mapping[Key, Bound] | None = None

    def of(self, topic: str | None, partition: int | None) -> Bound:
        """Return the bound of one partition. An option that names some has to name all, as in Spark's Kafka source."""
        if self.each is None:
            return self.default
        if topic is None or partition is None or (topic, partition) not in self.each:
            raise UsageError(
                message=f"{self.option}: {topic}-{partition} is missing. Name every partition that"
                " is read (-2 is the first offset, -1 the end), or leave the others out with topics or partitions"
            )
        return self.each[topic, partition]


@dataclass(frozen=True)
class Pushed:
    """Limits from a query's own conditions. A row has to meet all of them."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = MAX_OFFSET
    start_ms: int | None = None
    end_ms: int | None = None
    keys: frozenset[bytes] | None = None

    def partition(self, topic: str | None, number: int | None) -> bool:
        """Return whether a partition can hold such rows."""
        return (self.topics is None or topic in self.topics) and (self.partitions is None or number in self.partitions)


@dataclass(frozen=True)
class ReadOptions:
    """All options, parsed."""

    source: Source
    paths: tuple[str, ...] = ()
    store: str | None = None
    generation: int | None = None
    selection: Selection = field(default_factory=Selection)
    start: Bounds | None = None  # None: the earliest in a batch query, the latest in a stream
    end: Bounds = field(default_factory=lambda: Bounds("endingOffsets", LATEST))
    need_start_time: bool = False
    fail_on_data_loss: bool = True
    accept_gaps: bool = False
    key: bytes | None = None
    columns: tuple[str, ...] | None = None
    value: bool = True
    headers: bool = False
    control: bool = False
    committed: bool = False
    quarantine: bool = False
    kinds: tuple[str, ...] = KINDS
    split_bytes: int = SPLIT_BYTES
    min_partitions: int = 1
    max_rows: int | None = None
    max_batch_bytes: int | None = None  # None: as in a job without settings
    push_filters: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    pushed: Pushed = Pushed()

    def wanted(self) -> Wanted:
        """Return the selection of records, the same for all partitions."""
        keys = None if self.key is None else frozenset({self.key})
        if self.pushed.keys is not None:
            keys = self.pushed.keys if keys is None else keys & self.pushed.keys
        return Wanted(
            self.pushed.start_ms,
            self.pushed.end_ms,
            None if keys is None else tuple(sorted(keys)),
            self.control,
            self.committed,
        )
