"""Audits of two sources: their topics under one name, and where one could not be read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from lastkey.jobs.audit.audit import Audit, R, Side
from lastkey.jobs.audit.records import NO_PROBLEMS, Gathered, ReadRange
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.command.parse import Rename
from lastkey.jobs.command.store_options import AuditPairOptions
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import EVERY_TOPIC, Key, TopicFilter

_INTERNAL: Final = ("*.internal", "*-internal")  # MirrorMaker's own and Connect's: no mirror copies them
O = TypeVar("O", bound=AuditPairOptions)  # noqa: E741


@dataclass
class Pair:
    """Sources A and B, and their topics. Filled when they are listed."""

    a: str = ""  # names of the sources
    b: str = ""
    topics: set[str] = field(default_factory=set)  # topics of A
    names: dict[str, str] = field(default_factory=dict)  # topic of B -> what A calls it
    partitions: tuple[set[Key], set[Key]] = (set(), set())  # partitions of A and B, under A's names

    @property
    def result(self) -> str:
        """The pair's name in tables of results."""
        return f"{self.a} -> {self.b}"

    @property
    def in_b(self) -> dict[str, str]:
        """B's name for each topic of A that it has."""
        return {name: topic for topic, name in self.names.items()}

    @property
    def sides(self) -> list[Side]:
        """Both sides under A's names."""
        return [(self.a, {topic: topic for topic in self.topics}), (self.b, self.names)]


class PairAudit(Audit[O, R]):
    """Audit of A and its copy B."""

    def __init__(self, options: O, report: R) -> None:
        super().__init__(options, report)
        self.pair = Pair()

    def list_sources(self) -> list[AuditedLogs]:
        """List both sources, cut to the topics that are compared; fill `pair`, and note the others. --topics filters by
        A's names.
        """
        options, pair, notes = self.options, self.pair, self.report.notes
        a = _listed(options.a, options.topics)
        every = _listed(options.b, EVERY_TOPIC if options.renames else options.topics)
        pair.a, pair.b, pair.topics = a.name, every.name, set(a.n_partitions)
        names = names_in_a(set(every.n_partitions), [Rename.of(text) for text in options.renames])
        if a.name == every.name:  # the source has both topics: a copy is not compared as an original
            pair.topics -= {topic for topic, name in names.items() if topic != name}
            a = a.only(pair.topics)
        others = sorted(topic for topic, name in names.items() if name not in pair.topics)
        if others:
            notes.append(f"topics of B that A does not have: {', '.join(others)}: not compared")
        notes += [f"B has no topic {topic}" for topic in sorted(pair.topics - set(names.values()))]
        pair.names = {topic: name for topic, name in names.items() if name in pair.topics}
        b = every.only(pair.names)
        pair.partitions = set(a.keys), {(pair.names[topic], partition) for topic, partition in b.keys}
        if a.name != b.name:
            return [a, b]
        return [replace(a, partitions=tuple(dict.fromkeys((*a.partitions, *b.partitions))))]


def _listed(source: AuditSource, topics: TopicFilter) -> AuditedLogs:
    wanted = topics if topics.include else replace(topics, exclude=(*topics.exclude, *_INTERNAL))
    return list_source(source, wanted)


# -- names


def names_in_a(topics: Collection[str], renames: Collection[Rename]) -> dict[str, str]:
    """Return what A calls topics of B: by the first pattern that matches; without patterns, all as B does. With
    patterns, other topics are B's own. Raise UsageError if two would become one.
    """
    names: dict[str, str] = {}
    of_name: dict[str, str] = {}
    for topic in sorted(topics):
        name = topic if not renames else next((new for one in renames if (new := one.name(topic)) is not None), None)
        if name is None:
            continue
        other = of_name.setdefault(name, topic)
        if other != topic:
            raise UsageError(message=f"--rename: topics {other} and {topic} of B would both be {name}")
        names[topic] = name
    return names


# -- what could not be read


def unread(pair: Pair, found: Gathered) -> tuple[set[Key], set[Key]]:
    """Return the partitions of A and of B, under A's names, that could not be read in whole."""
    in_a, in_b = set[Key](), set[Key]()
    for (source, topic, partition), problems in found.problems.items():
        if problems and source == pair.a and topic in pair.topics:
            in_a.add((topic, partition))
        if problems and source == pair.b and topic in pair.names:
            in_b.add((pair.names[topic], partition))
    if found.unlisted:  # a partition that only one side lists may be in a folder that could not be listed
        of_a, of_b = pair.partitions
        in_a |= of_b - of_a
        in_b |= of_a - of_b
    return in_a, in_b


def first_unread(parts: Iterable[ReadRange]) -> int:
    """Return an offset below which all records of a partition were read."""
    end = 0  # a log that begins later may have lost its first segments
    for part in sorted(parts, key=lambda part: part.start_offset):
        if part.start_offset > end or part.read.problems != NO_PROBLEMS:
            return min(part.start_offset, end)
        end = part.end_offset
    return end


def spread(pair: Pair, n_partitions: Mapping[tuple[str, str], int]) -> set[str]:
    """Return the topics of A that have another number of partitions in B."""
    return {
        name
        for topic, name in pair.names.items()
        if n_partitions.get((pair.a, name)) != n_partitions.get((pair.b, topic))
    }
