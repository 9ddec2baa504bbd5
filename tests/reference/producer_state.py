"""Slow twin of logformat.side_files.producer_state: ProducerStateManager at recovery, one batch after the other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class BadTransactionError(Exception):
    pass


@dataclass
class Producer:
    epoch: int = -1
    timestamp: int = -1
    coordinator_epoch: int = -1
    open_since: int = -1
    batches: deque = field(default_factory=lambda: deque(maxlen=5))  # (last sequence, last offset, offset delta)

    def take_epoch(self, epoch):
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class State:
    def __init__(self):
        self.producers = {}

    def load(self, entries, now_ms, expiration_ms):
        """Load a snapshot's producers that have not expired. entries: tuples in the order of the snapshot's fields."""
        for pid, epoch, sequence, offset, delta, timestamp, coordinator_epoch, open_since in entries:
            if open_since < 0 and now_ms - timestamp >= expiration_ms:
                continue
            producer = Producer(epoch, timestamp, coordinator_epoch, open_since)
            if offset >= 0:
                producer.batches.append((sequence, offset, delta))
            self.producers[pid] = producer

    def append(self, batch):
        """Append a batch, given as a dict of layout.BATCH's fields.

        Return the transaction that it completes, or None: (producer id, first offset, marker offset, last stable
        offset, whether aborted).
        """
        pid = batch["producer_id"]
        if pid < 0:
            return None
        producer = self.producers.setdefault(pid, Producer())
        if not batch["attributes"] & 0x20:
            producer.take_epoch(batch["producer_epoch"])
            delta = batch["last_offset"] - batch["base_offset"]
            sequence = batch["base_sequence"]
            if sequence != -1:
                sequence += delta
                if sequence > 2**31 - 1:
                    sequence -= 2**31
            producer.batches.append((sequence, batch["last_offset"], delta))
            producer.timestamp = batch["max_timestamp"]
            transactional = bool(batch["attributes"] & 0x10)
            if producer.open_since >= 0 and not transactional:
                raise BadTransactionError
            if producer.open_since < 0 and transactional:
                producer.open_since = batch["base_offset"]
            return None
        if batch["records_count"] == 0:
            return None
        if batch["control_type"] not in (0, 1):
            raise BadTransactionError
        producer.take_epoch(batch["producer_epoch"])
        producer.coordinator_epoch = batch["coordinator_epoch"]
        producer.timestamp = batch["max_timestamp"]
        first, producer.open_since = producer.open_since, -1
        if first < 0:
            return None
        others = [other.open_since for other in self.producers.values() if other.open_since >= 0]
        marker = batch["base_offset"]
        return (pid, first, marker, min(others, default=marker + 1), batch["control_type"] == 0)

    def entries(self):
        return {
            pid: (
                p.epoch,
                *(p.batches[-1] if p.batches else (-1, -1, 0)),
                p.timestamp,
                p.coordinator_epoch,
                p.open_since,
            )
            for pid, p in self.producers.items()
        }
