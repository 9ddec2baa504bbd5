"""Records of a partition into a live topic, each once: a task of `replay`.

  init_transactions fences an earlier run and ends what it left open -> the group's offset shows where to continue
  -> records, a transaction of some thousands -> the offset that comes next, in the same transaction -> commit

The offset is a consumer group's, of the target's topic and the source's partition: it is the offset in the source that
comes next. Kafka commits it together with the records, so a killed run has written both, or no data that a consumer of
committed data sees. Damage ends a partition: what is in front of it is committed.

The client's batches carry neither timestamps nor headers, so there is a loop over records here; columns keep it short.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, TypeVar

import pyarrow.compute as pc

from lastkey.logformat.errors import NO_POSITION, LogFormatError, stopped
from lastkey.logformat.schemas import RECORDS, select
from lastkey.udfs.data_source.find_pieces import OutOfRangeError, find_pieces, first_to_read
from lastkey.udfs.data_source.pieces import EARLIEST, Bound, Range, ReadSpec, SourcePartition, Wanted
from lastkey.udfs.data_source.records import read_records
from lastkey.udfs.problem import Problem, timed

R = TypeVar("R")
_SECONDS: Final = 60.0  # for an answer of the cluster
_PAUSE: Final = 0.2  # seconds before the same question
_PATIENCE: Final = 5.0  # seconds for an abort
_NOT_READY: Final = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
_TRANSACTION_RECORDS: Final = 20_000
_TRANSACTION_BYTES: Final = 32 << 20  # below the queue of the client, which holds 1 GB
_BATCH_ROWS: Final = 2_000  # rows of an Arrow batch: a transaction may end after each
_BY_KEY: Final = -1  # a partition: the partitioner chooses
_COLUMNS: Final = ("key", "value", "offset", "timestamp_ms", "headers")
_OURS: Final = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # as Kafka's own producer does
}


@dataclass(frozen=True)
class ReplayTask:
    """A partition to replay."""

    source: SourcePartition
    topic: str  # topic of the target
    group: str  # whose offsets are the progress
    client: Mapping[str, str]  # bootstrap.servers, and the user's settings in the client's words
    committed: bool = True
    repartition: bool = False  # the keys decide the partition, as in a producer
    accept_gaps: bool = False
    append: bool = False  # begin also where the target's partition holds records


@dataclass
class Replayed:
    """Result of a task: offsets and counts of what was written of a partition."""

    topic: str
    partition: int
    target: str
    start: int | None = None  # offset in the source where this run began; None: it did not
    next_offset: int | None = None  # committed
    records: int = 0
    transactions: int = 0
    without_timestamp: int = 0  # records that have no timestamp, or 0, and get the clock's
    problem: Problem | None = field(default=None)


def client() -> Any:
    """Import confluent_kafka. Raise ImportError."""
    return importlib.import_module("confluent_kafka")


def replay_partition(task: ReplayTask) -> Replayed:
    """Write the records of a partition from the group's offset on. The result has the problem that stopped it."""
    done = Replayed(str(task.source.topic), task.source.partition or 0, task.topic)
    place = f"{task.topic}-{done.partition}"
    with timed(task.source.name):
        try:
            kafka = client()
        except ImportError as error:
            hint = "install confluent-kafka where Spark's tasks run"
            done.problem = Problem("unwritable", place, NO_POSITION, "the client", str(error), hint=hint)
            return done
        try:
            _replay(kafka, task, done)
        except kafka.KafkaException as error:
            said = error.args[0].str()
            hint = "what was committed stays; run again"
            done.problem = Problem("unwritable", place, NO_POSITION, "a commit of the cluster", said, hint=hint)
        except Exception as error:  # any error: the other partitions continue
            done.problem = Problem.of(stopped(error, task.source.name))
    return done


def _replay(kafka: Any, task: ReplayTask, done: Replayed) -> None:
    name = f"{task.group}-{task.topic}-{done.partition}"
    given = {"log_level": 2, **task.client, "error_cb": lambda _: None}  # calls raise: stderr gets no messages
    with _Consumer(kafka, {**given, "group.id": task.group}) as consumer:
        producer = kafka.Producer({"linger.ms": 20, **given, **_OURS, "transactional.id": name})
        _retried(kafka, lambda: producer.init_transactions(_SECONDS))
        writer = _Writer(kafka, producer, consumer, task, done)
        try:
            try:
                done.start = _progress(kafka, consumer, task, done)
                if done.start is None:
                    done.start = _begun(task, done, writer)
                for batch in () if done.start is None else _batches(task, done.start):
                    writer.write(batch)
            except LogFormatError as error:
                done.problem = Problem.of(error)
            except OutOfRangeError as error:
                hint = "--set gaps=accept continues at the log's start; another --group begins again"
                expected = f"offset {done.start}"
                done.problem = Problem("gap", task.source.name, NO_POSITION, expected, str(error), hint=hint)
            writer.commit()
        except BaseException:
            writer.abort()
            raise


def _retried(kafka: Any, call: Callable[[], R]) -> R:
    """Return the result of `call`; retry for _SECONDS while the cluster is not ready."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            return call()
        except kafka.KafkaException as error:
            said = error.args[0]
            if not (said.retriable() or said.name() in _NOT_READY) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


class _Consumer:
    """Consumer of a group that reads no records, closed in the end."""

    def __init__(self, kafka: Any, settings: Mapping[str, object]) -> None:
        of_group = {"enable.auto.commit": False, "isolation.level": "read_committed"}
        self.consumer = kafka.Consumer({**settings, **of_group})

    def __enter__(self) -> Any:
        return self.consumer

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def _progress(kafka: Any, consumer: Any, task: ReplayTask, done: Replayed) -> int | None:
    """Return the source offset to continue from; None: the group has none. In that case, set `done.problem` if the
    target partition holds records and --append is not given.
    """
    place = kafka.TopicPartition(task.topic, done.partition)
    found = _retried(kafka, lambda: _committed(kafka, consumer, place))
    if found.offset >= 0:
        return int(found.offset)
    first, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
    if end > first and not task.append:
        expected = f"an empty partition, as group {task.group} has no offset there"
        hint = "--append writes behind what is there; if an earlier replay wrote it, those records come twice"
        shown = f"{task.topic}-{done.partition}"
        done.problem = Problem("changed", shown, NO_POSITION, expected, f"offsets {first} to {end}", hint=hint)
    return None


def _begun(task: ReplayTask, done: Replayed, writer: _Writer) -> int | None:
    """Commit the first source offset as progress, before any record. If the run dies later, its aborted records remain
    in the target; the offset shows the next run that a replay wrote them. Return None if there is a problem.
    """
    if done.problem is not None:
        return None
    first = first_to_read(task.source, _read_range(task, None))
    writer.begin(first)
    writer.commit()
    return first


def _read_range(task: ReplayTask, start: int | None) -> Range:
    begin = EARLIEST if start is None else Bound("offset", start)
    wanted = Wanted(committed=task.committed)
    return Range(begin, wanted=wanted, accept_gaps=task.accept_gaps, fail_on_data_loss=not task.accept_gaps)


def _committed(kafka: Any, consumer: Any, place: Any) -> Any:
    (committed,) = consumer.committed([place], timeout=_SECONDS)
    if committed.error is not None:
        raise kafka.KafkaException(committed.error)
    return committed


def _batches(task: ReplayTask, start: int) -> Iterator[Any]:
    """Yield Arrow batches of the records from an offset on."""
    asked = _read_range(task, start)
    spec = ReadSpec(select(RECORDS, _COLUMNS), asked.wanted, max_rows=_BATCH_ROWS)
    return read_records(spec, find_pieces(task.source, asked))


class _Writer:
    """Writer of one partition's transactions."""

    def __init__(self, kafka: Any, producer: Any, consumer: Any, task: ReplayTask, done: Replayed) -> None:
        self.kafka, self.producer, self.consumer, self.task, self.done = kafka, producer, consumer, task, done
        self._open, self._records, self._bytes, self._next = False, 0, 0, -1
        self._to = _BY_KEY if task.repartition else done.partition

    def write(self, batch: Any) -> None:
        """Add records to the open transaction; commit it if it is large enough."""
        if not batch.num_rows:
            return
        self.begin(self._next)
        times = pc.max_element_wise(batch["timestamp_ms"], 0)  # to librdkafka 0 is none too
        self.done.without_timestamp += int(pc.sum(pc.equal(times, 0)).as_py())
        given = [batch["value"].to_pylist(), batch["key"].to_pylist(), repeat(self._to), *[repeat(None)] * 2]
        given.append(times.to_pylist())
        if pc.sum(pc.list_value_length(batch["headers"])).as_py():
            pairs = batch["headers"].to_pylist()
            given.append([[(one["key"], one["value"]) for one in of_record or ()] for of_record in pairs])
        self._produce(zip(repeat(self.task.topic), *given, strict=False))
        self._records += batch.num_rows
        self._bytes += batch.nbytes
        self._next = int(batch.column("offset")[-1].as_py()) + 1
        if self._records >= _TRANSACTION_RECORDS or self._bytes >= _TRANSACTION_BYTES:
            self.commit()

    def begin(self, next_offset: int) -> None:
        """Begin a transaction, unless one is open."""
        if not self._open:
            self.producer.begin_transaction()
            self._open, self._next = True, next_offset

    def _produce(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Queue records. rows: topic, value, key, partition, two callbacks, timestamp and perhaps headers."""
        produce = self.producer.produce
        for row in rows:
            while True:
                try:
                    produce(*row)
                except BufferError:
                    self.producer.poll(1.0)  # the queue is full
                else:
                    break

    def commit(self) -> None:
        """Commit the open transaction, and with it the offset that comes next."""
        if not self._open:
            return
        place = self.kafka.TopicPartition(self.task.topic, self.done.partition, self._next)
        group = self.consumer.consumer_group_metadata()
        _retried(self.kafka, lambda: self.producer.send_offsets_to_transaction([place], group, _SECONDS))
        _retried(self.kafka, lambda: self.producer.commit_transaction(_SECONDS))
        self.done.next_offset = self._next
        self.done.records += self._records
        self.done.transactions += 1
        self._open, self._records, self._bytes = False, 0, 0

    def abort(self) -> None:
        """Abort the open transaction, as far as the cluster still answers: else it ends by its timeout."""
        if self._open:
            with contextlib.suppress(self.kafka.KafkaException):
                self.producer.abort_transaction(_PATIENCE)
