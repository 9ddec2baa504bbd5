"""The state that metadata records lead to: topics, brokers and settings, the newest value of each.

Rules, of Kafka 4.3.0: a removed topic takes its settings with it (ConfigurationsDelta); a setting with the value null
is removed; the records of a transaction count from its end on, and not at all if it is aborted (MetadataBatchLoader).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lastkey.logformat.messages.metadata_changes import MetadataChange, bad_record

TOPIC: Final = 2  # types of what a ConfigRecord is about (ConfigResource.Type)
BROKER: Final = 4
EVERY_BROKER: Final = ""  # name of the broker whose settings are the defaults of all


@dataclass
class Image:
    """Topics, brokers and settings of a cluster."""

    topics: dict[str, str] = field(default_factory=dict)  # name -> id
    brokers: set[str] = field(default_factory=set)  # ids of all that are registered, running or not
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)  # (type, name) -> setting -> value
    names: dict[str, str] = field(default_factory=dict)  # id of each topic -> name
    _pending: list[MetadataChange] | None = None  # changes of the open transaction

    def apply(self, path: str, changes: Iterable[MetadataChange]) -> None:
        """Take the records of a file in, in the log's order. Raise LogFormatError for one that contradicts those
        before it.
        """
        for change in changes:
            if change.kind == "BeginTransaction":
                self._check(path, self._pending is None, change, "no transaction within another one", "its begin")
                self._pending = []
            elif change.kind in ("EndTransaction", "AbortTransaction"):
                self._check(path, self._pending is not None, change, "an open transaction", "none to end")
                pending, self._pending = self._pending or [], None
                if change.kind == "EndTransaction":
                    self.apply(path, pending)
            elif self._pending is not None:
                self._pending.append(change)
            else:
                self._take(path, change)

    @property
    def open_records(self) -> int:
        """Number of records of a transaction that has not ended; they do not count."""
        return len(self._pending or ())

    def get_settings(self, kind: int, name: str) -> dict[str, str]:
        """Return the settings of a topic or a broker."""
        return self.configs.get((kind, name), {})

    def _take(self, path: str, change: MetadataChange) -> None:
        fields = change.fields
        if change.kind == "Topic":
            name, topic_id = fields["name"], fields["topicId"]
            self._check(path, name not in self.topics, change, f"no topic {name} yet", f"id {self.topics.get(name)}")
            self.topics[name], self.names[topic_id] = topic_id, name
        elif change.kind == "RemoveTopic":
            topic_id = fields["topicId"]
            self._check(path, topic_id in self.names, change, "the id of a topic", f"{topic_id}, which no topic has")
            name = self.names.pop(topic_id)
            del self.topics[name]
            self.configs.pop((TOPIC, name), None)
        elif change.kind == "Config":
            settings = self.configs.setdefault((fields["resourceType"], fields["resourceName"]), {})
            if fields["value"] is None:
                settings.pop(fields["name"], None)
            else:
                settings[fields["name"]] = fields["value"]
        elif change.kind == "RegisterBroker":
            self.brokers.add(str(fields["brokerId"]))
        elif change.kind == "UnregisterBroker":
            self.brokers.discard(str(fields["brokerId"]))

    @staticmethod
    def _check(path: str, holds: bool, change: MetadataChange, expected: str, found: str) -> None:
        if not holds:
            raise bad_record(path, change.offset, expected, found)
