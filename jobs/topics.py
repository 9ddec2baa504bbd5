"""Topics and their partitions: their names, and filters for those that a user means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, TypeVar

# Kinds of folders that a broker marked, as --folders has them -> the mark in the name (logformat.names.FOLDER_MARKS)
FOLDER_KINDS: Final = {"stray": "stray", "future": "future", "deleted": "delete"}
FOLDERS_OF: Final = {mark: kind for kind, mark in FOLDER_KINDS.items()}  # --folders that reads a mark

T = TypeVar("T")
Key = tuple[str, int]  # topic, number of the partition


def matches(glob: str, topic: str) -> bool:
    """Return whether a glob names a topic."""
    return fnmatchcase(topic, glob)


@dataclass(frozen=True)
class TopicFilter:
    """Filter of topics: those that a glob of `include` names (all without one), except those that `exclude` names."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # suffixes of marked folders that are read as partitions: names.FOLDER_MARKS

    def __post_init__(self) -> None:
        if isinstance(self.include, str) or isinstance(self.exclude, str):  # each letter would be a glob
            raise TypeError(f"expected tuples of globs, found {self.include!r} and {self.exclude!r}")

    def takes(self, topic: str) -> bool:
        """Return whether the filter lets a topic pass."""
        named = not self.include or any(matches(glob, topic) for glob in self.include)
        return named and not any(matches(glob, topic) for glob in self.exclude)


EVERY_TOPIC: Final = TopicFilter()
KAFKAS_OWN: Final = "__*"


def without_kafkas_own(topics: TopicFilter) -> TopicFilter:
    """Return the filter without Kafka's own topics, unless the user names topics: their keys are of no application."""
    return topics if topics.include else replace(topics, exclude=(*topics.exclude, KAFKAS_OWN))


def select_topics(wanted: TopicFilter, values: Mapping[Key, T]) -> dict[Key, T]:
    """Return the values, by (topic, partition), of the topics that are wanted."""
    return {key: value for key, value in values.items() if wanted.takes(key[0])}


def unmatched(globs: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Return the globs that name none of the topics."""
    there = set(topics)
    return [glob for glob in globs if not any(matches(glob, topic) for topic in there)]
