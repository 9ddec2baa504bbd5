"""Parser of the data sources' options. Names are not case sensitive. docs/data_source_options.py explains each.

Options of Spark's own Kafka source keep their names and meaning, so that a query needs only another format name and a
path. Options for connections to a broker, such as `kafka.*`, are accepted and ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from lastkey.jobs.command.parse import (
    MAX_LONG,
    check_topics,
    nearest,
    parse_globs,
    parse_key,
    parse_numbers,
    parse_time,
    parse_topics,
)
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.topics import EVERY_TOPIC, Key, TopicFilter
from lastkey.logformat.storage.locations import has_secret, secret_error
from lastkey.udfs.data_source.pieces import EARLIEST, LATEST, SPLIT_BYTES, Bound, Range, Wanted

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
        """Return whether to read a partition. A partition without a known name is read only if no limit could exclude
        it.
        """
        if topic is None or number is None:
            return not self.topics.include and replace(self, topics=EVERY_TOPIC) == Selection()
        return (
            self.topic(topic)
            and (self.assigned is None or (topic, number) in self.assigned)
            and (self.partitions is None or any(number in numbers for numbers in self.partitions))
        )

    def check(self, known_topics: Iterable[str], where: str, *, some: bool) -> None:
        """Raise UsageError if a name or glob is none of the known topics, or if no topic is selected (not `some`)."""
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
class ReadOptions:
    """All options, parsed."""

    source: Source
    paths: tuple[str, ...] = ()
    store: str | None = None
    generation: int | None = None
    selection: Selection = field(default_factory=Selection)
    start: Bounds | None = None  # None: the earliest in a batch query, the latest in a stream
    end: Bounds = field(default_factory=lambda: Bounds("endingOffsets", LATEST))
    asked: Range = Range()  # limits for every partition; those of a query's own conditions join them
    columns: tuple[str, ...] | None = None
    value: bool = True
    headers: bool = False
    kinds: tuple[str, ...] = KINDS
    min_partitions: int = 1
    max_rows: int | None = None
    max_batch_bytes: int | None = None  # None: as in a job without settings
    push_filters: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    topics: frozenset[str] | None = None  # a query's own conditions allow these alone; None: any
    partitions: frozenset[int] | None = None

    def allow(self, topic: str | None, number: int | None) -> bool:
        """Return whether the query's own conditions allow rows of a partition."""
        return (self.topics is None or topic in self.topics) and (self.partitions is None or number in self.partitions)


_WHERE: Final = ("path", "paths", "store", "generation")
_TOPICS: Final = ("subscribe", "subscribePattern", "assign")  # names of Spark's Kafka source
_WHAT: Final = ("topics", "topicsFrom", "exclude", *_TOPICS, "partitions", "badRecords", "columns", "gaps")
_SPEED: Final = ("splitBytes", "minPartitions", "maxRecordsPerBatch", "pushFilters")
_LIMITS: Final = ("maxDecompressedBatchBytes",)
_RANGE: Final = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
)  # fmt: skip
_RECORDS: Final = (
    "key", "includeValue", "includeHeaders", "includeControl", "isolationLevel", "kafka.isolation.level",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger",
)  # fmt: skip
OPTIONS: Final[Mapping[Source, tuple[str, ...]]] = {
    "kafka_log": (*_WHERE, *_WHAT, *_RANGE, *_RECORDS, *_LIMITS, *_SPEED),
    "kafka_log_batches": (*_WHERE, *_WHAT, *_RANGE, *_SPEED),
    "kafka_log_index": (*_WHERE, *_WHAT, "kinds", *_SPEED),
}
# Options of Spark's Kafka source that control its connections to brokers, or the division of its work into tasks
_MEANINGLESS: Final = frozenset(
    {
        "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms",
        "groupidprefix", "includetimestamp", "minoffsetspertrigger", "maxtriggerdelay", "maxrecordsperpartition",
    }
)  # fmt: skip


def parse(given: Mapping[str, str], source: Source) -> ReadOptions:
    """Parse options as Spark passes them. UsageError for an unknown or impossible option or combination."""
    for name, value in given.items():
        if name.lower() in _WHERE and has_secret(value):
            raise UsageError(message=f"{name}: {secret_error()}")
    values = _named(given, source)
    take = _Values(values)
    paths = _paths(take)
    store = take.get("store")
    if not paths and store is None:
        raise UsageError(
            message=f"{source}: no path: give .load(PATH), or the option path or store. (Spark 4.2 does not hand over"
            " the OPTIONS of CREATE TABLE to sources in Python: use"
            " CREATE TEMPORARY VIEW, or SELECT ... WITH (path = ...))"
        )
    if take.get("generation") is not None and store is None:
        raise UsageError(message=f"generation={take.get('generation')} needs the option store")
    key = take.get("key")
    loss_fails = take.flag("failOnDataLoss", default=True)
    isolation = take.choose(("isolationLevel", "kafka.isolation.level"), ("read_uncommitted", "read_committed"))
    return ReadOptions(
        source,
        paths,
        store,
        take.number("generation", 1),
        _selection(take),
        start=_bounds(take, "starting", None),
        end=_bounds(take, "ending", LATEST) or Bounds("endingOffsets", LATEST),
        asked=Range(
            wanted=Wanted(
                keys=None if key is None else frozenset({parse_key(key)}),
                control=take.flag("includeControl", default=False),
                committed=isolation == "read_committed",
            ),
            split_bytes=take.number("splitBytes", 1) or SPLIT_BYTES,
            fail_on_data_loss=loss_fails,
            need_start_time=take.choose(("startingOffsetsByTimestampStrategy",), ("latest", "error")) == "error",
            quarantine=take.choose(("badRecords",), ("fail", "quarantine")) == "quarantine",
            accept_gaps=take.choose(("gaps",), ("fail", "accept") if loss_fails else ("accept", "fail")) == "accept",
            as_stored=source == "kafka_log_batches",
        ),
        columns=take.names("columns"),
        value=take.flag("includeValue", default=True),
        headers=take.flag("includeHeaders", default=False),
        kinds=take.several("kinds", KINDS),
        min_partitions=take.number("minPartitions", 1) or 1,
        max_rows=take.number("maxRecordsPerBatch", 1),
        max_batch_bytes=take.number("maxDecompressedBatchBytes", 1 << 20),
        push_filters=take.flag("pushFilters", default=False),
        max_offsets_per_trigger=take.number("maxOffsetsPerTrigger", 1),
        max_bytes_per_trigger=take.number("maxBytesPerTrigger", 1),
    )


def _named(given: Mapping[str, str], source: Source) -> dict[str, str]:
    spellings = {name.lower(): name for name in OPTIONS[source]}
    elsewhere = {name.lower(): name for names in OPTIONS.values() for name in names}
    out = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in spellings:
            out[spellings[lower]] = value
        elif not (lower.startswith("kafka.") or lower in _MEANINGLESS):
            shown = elsewhere.get(lower, name)  # Spark passes names in lower case
            raise UnknownNameError(
                message=f"{source}: unknown option {shown}", near=nearest(lower, spellings, spellings.__getitem__)
            )
    return out


class _Values(dict[str, str]):
    """Values of the options by name, converted to the type that the caller asks for."""

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the value as given, or (): like an option of the command line that may be repeated."""
        return (self[name],) if name in self else ()

    def flag(self, name: str, *, default: bool) -> bool:
        """Parse `true` or `false`."""
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise UsageError(message=f"{name}: expected true or false, found {value!r}")
        return value.lower() == "true"

    def number(self, name: str, least: int) -> int | None:
        """Parse a whole number of at least `least`."""
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch("[0-9]+", value.strip()) or int(value) < least:
            raise UsageError(message=f"{name}: expected a whole number of at least {least}, found {value!r}")
        return int(value)

    def choose(self, names: tuple[str, ...], allowed: tuple[str, ...]) -> str:
        """Return one of the allowed values; default: the first. Two names for one option must agree."""
        names_by_value = {self[name].lower(): name for name in names if name in self}
        if len(names_by_value) > 1:
            raise UsageError(message=f"{' and '.join(names)} contradict each other: {' and '.join(names_by_value)}")
        for value, name in names_by_value.items():
            if value not in allowed:
                raise UnknownNameError(
                    message=f"{name}: expected {' or '.join(allowed)}, found {value!r}", near=nearest(value, allowed)
                )
            return value
        return allowed[0]

    def names(self, name: str) -> tuple[str, ...] | None:
        """Parse a list separated by commas."""
        value = self.get(name)
        if value is None:
            return None
        out = tuple(part.strip() for part in value.split(",") if part.strip())
        if not out:
            raise UsageError(message=f"{name}: expected names separated by commas, found {value!r}")
        return out

    def several(self, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """Return some of the allowed values; default: all."""
        out = self.names(name) or allowed
        for value in out:
            if value not in allowed:
                raise UnknownNameError(message=f"{name}: unknown value {value!r}", near=nearest(value, allowed))
        return out


def _paths(take: _Values) -> tuple[str, ...]:
    several = take.get("paths")  # .load([...]) becomes this
    single = take.get("path")
    try:
        paths = json.loads(several) if several else []
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise UsageError(message=f'paths: expected JSON such as ["a","b"], which .load([...]) makes, found {several!r}')
    return (*paths, *((single,) if single else ()))


def _selection(take: _Values) -> Selection:
    ours = bool(take.texts("topics") or take.texts("topicsFrom"))
    if ours + sum(take.get(name) is not None for name in _TOPICS) > 1:
        raise UsageError(message="give only one of topics (or topicsFrom), subscribe, subscribePattern and assign")
    pattern = take.get("subscribePattern")
    if pattern is not None:
        if not pattern:  # it would match every topic; Spark's Kafka source refuses it too
            raise UsageError(message=f"subscribePattern: expected a regular expression, found {pattern!r}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(message=f"subscribePattern: not a regular expression: {pattern!r}: {error}") from error
    assigned = None
    if take.get("assign") is not None:
        example = '{"topicA":[0,1],"topicB":[2]}'
        assigned_numbers = _json(take, "assign", example)
        if not all(
            isinstance(numbers, list) and all(type(n) is int for n in numbers) for numbers in assigned_numbers.values()
        ):
            raise UsageError(message=f"assign: expected JSON such as {example}, found {take.get('assign')!r}")
        assigned = frozenset((topic, number) for topic, numbers in assigned_numbers.items() for number in numbers)
    topics = parse_topics(take.texts("topics"), take.texts("exclude"), take.texts("topicsFrom"), option="{}")
    subscribed = TopicFilter(parse_globs("subscribe", take.texts("subscribe")))
    return Selection(topics, subscribed, pattern, assigned, _numbers(take))


def _numbers(take: _Values) -> tuple[range, ...] | None:
    words = take.names("partitions")
    if words is None:
        return None
    out = []
    for word in words:
        try:
            out.append(parse_numbers(word))
        except ValueError as error:
            raise UsageError(
                message=f"partitions: expected numbers and ranges, such as 0,3-5, found {word!r}"
            ) from error
    return tuple(out)


def _bounds(take: _Values, which: str, default: Bound | None) -> Bounds | None:
    """Return a timestamp for all partitions, else timestamps by partition, else offsets, as in Spark's Kafka source."""
    name = f"{which}Timestamp"
    if take.get(name) is not None:
        return Bounds(name, Bound("timestamp", _time(name, take.get(name))))
    name = f"{which}OffsetsByTimestamp"
    if take.get(name) is not None:
        return Bounds(name, LATEST, _by_partition(take, name, lambda value: Bound("timestamp", _time(name, value))))
    name = f"{which}Offsets"
    value = take.get(name)
    if value is None:
        return None if default is None else Bounds(name, default)
    if value.strip().startswith("{"):
        return Bounds(name, LATEST, _by_partition(take, name, _offset))
    words = {"earliest": EARLIEST, "latest": LATEST}
    if value.strip().lower() not in words:
        message = f"{name}: expected earliest, latest or JSON by topic, found {value!r}"
        raise UnknownNameError(message=message, near=nearest(value, words))
    return Bounds(name, words[value.strip().lower()])


def _by_partition(take: _Values, name: str, read: Callable[[Any], Bound]) -> dict[Key, Bound]:
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    by_topic = _json(take, name, example)
    try:
        return {
            (topic, int(number)): read(value)
            for topic, numbers in by_topic.items()
            for number, value in numbers.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(message=f"{name}: expected JSON such as {example}, found {take.get(name)!r}") from error


def _offset(value: Any) -> Bound:
    if isinstance(value, bool) or not isinstance(value, int) or value < -2:
        raise ValueError(value)
    return {-2: EARLIEST, -1: LATEST}.get(value) or Bound("offset", value)


def _json(take: _Values, name: str, example: str) -> dict[str, Any]:
    try:
        content = json.loads(take.get(name) or "")
    except ValueError as error:
        raise UsageError(message=f"{name}: expected JSON such as {example}, found {take.get(name)!r}") from error
    if not isinstance(content, dict):
        raise UsageError(message=f"{name}: expected JSON such as {example}, found {take.get(name)!r}")
    return content


def _time(name: str, value: Any) -> int:
    moment = value if isinstance(value, int) and not isinstance(value, bool) else parse_time(str(value))
    if not 0 <= moment <= MAX_LONG:
        raise UsageError(message=f"{name}: expected milliseconds since 1970, from 0 to {MAX_LONG}, found {value}")
    return moment
