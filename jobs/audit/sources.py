"""Sources of an audit: an archive, or a generation of a store, as partitions to read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import ReadOptions, Selection
from lastkey.jobs.data_source.store import generation_partitions
from lastkey.jobs.topics import Key, TopicFilter, without_kafkas_own
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import normal_uri


@dataclass(frozen=True)
class AuditedLogs:
    """Logs to audit."""

    name: str  # as results call it: the URI; of a generation with "@" and its number, or "@current"
    partitions: tuple[SourcePartition, ...]
    counts: tuple[tuple[str, int], ...] = ()  # partitions of topics whose last ones are not here

    @property
    def keys(self) -> list[Key]:
        """Topics and numbers of the partitions that have them."""
        return [(p.topic, p.partition) for p in self.partitions if p.topic is not None and p.partition is not None]

    @property
    def n_partitions(self) -> dict[str, int]:
        """Partitions of each topic, by the highest number."""
        found: dict[str, int] = {}
        for topic, partition in self.keys:
            found[topic] = max(found.get(topic, 0), partition + 1)
        return found | {topic: n for topic, n in self.counts if topic in found}

    def only(self, topics: Collection[str]) -> AuditedLogs:
        """Return the logs of these topics, and folders without one."""
        return replace(self, partitions=tuple(p for p in self.partitions if p.topic is None or p.topic in topics))


def archive_source(archive: str, topics: TopicFilter) -> AuditedLogs:
    """List an archive. Raise MissingPathError, UsageError as the data source does."""
    uri = normal_uri(archive)
    found = find_partitions([uri], Selection(topics=without_kafkas_own(topics)))
    return AuditedLogs(uri, tuple(found))


def list_source(source: AuditSource, topics: TopicFilter) -> AuditedLogs:
    """List an archive, or a generation of a store; no number: the current one of each partition. `source.archive` of a
    store: where its archive is, if it has moved.
    """
    if source.store is None:
        return archive_source(source.archive or "", topics)
    uri = normal_uri(source.store)
    selection = Selection(topics=without_kafkas_own(topics))
    paths = () if source.archive is None else (source.archive,)
    options = ReadOptions("kafka_log", paths, store=uri, generation=source.generation, selection=selection)
    return AuditedLogs(f"{uri}@{source.generation or 'current'}", tuple(generation_partitions(options)))
