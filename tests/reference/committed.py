"""Committed offsets as a group coordinator and a share coordinator hold them: Kafka's replay, a record at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, str, int]


@dataclass
class GroupCoordinator:
    """OffsetMetadataManager: offsets, and those of open transactions by producer."""

    offsets: dict[Key, tuple[int, Any]] = field(default_factory=dict)  # key -> (offset of the record, what it says)
    pending: dict[int, dict[Key, tuple[int, Any]]] = field(default_factory=dict)

    def replay(self, record_offset: int, producer: int, key: Key, records: Any) -> None:
        if records is None:
            self.offsets.pop(key, None)
            for of_producer in self.pending.values():
                of_producer.pop(key, None)
        elif producer < 0:
            self.offsets[key] = record_offset, records
        else:
            self.pending.setdefault(producer, {})[key] = record_offset, records

    def end(self, producer: int, *, commit: bool) -> None:
        for key, (record_offset, offset) in self.pending.pop(producer, {}).items():
            if commit and (key not in self.offsets or record_offset > self.offsets[key][0]):
                self.offsets[key] = record_offset, offset


@dataclass
class SharePartition:
    """State of a share partition, an offset at a time: the batch that was delivered more often wins, then the higher
    state.
    """

    start: int = -1
    states: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> (count, state)

    def snapshot(self, start: int, batches: list[tuple[int, int, int, int]]) -> None:
        self.start, self.states = start, {}
        self._merge(batches)

    def update(self, start: int, batches: list[tuple[int, int, int, int]]) -> None:
        self.start = self.start if start == -1 else start
        self._merge(batches)
        self.states = {offset: state for offset, state in self.states.items() if offset >= self.start}

    def _merge(self, batches: list[tuple[int, int, int, int]]) -> None:
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                self.states[offset] = max(self.states.get(offset, (-1, -1)), (count, state))

    def delivered(self) -> list[int]:
        return sorted(offset for offset, (_, state) in self.states.items() if state in (2, 4))
