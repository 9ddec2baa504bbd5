"""Topics and their partitions: how one is named, and which a glob means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")
Key = tuple[str, int]  # topic, number of the partition


def matches(glob: str | None, topic: str) -> bool:
    """Whether a glob names a topic; None names every topic."""
    return glob is None or fnmatchcase(topic, glob)


def matching(glob: str | None) -> Callable[[str], bool]:
    """The same as a function of the topic."""
    return lambda topic: matches(glob, topic)


def of_topics(glob: str | None, values: Mapping[Key, T]) -> dict[Key, T]:
    """Of values by (topic, partition) those of the topics that a glob names."""
    return {key: value for key, value in values.items() if matches(glob, key[0])}
