"""Places where a search found the keys: of the store by generation, of other files and of the archive by path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lastkey.jobs.command.reporting import counted
from lastkey.jobs.erase.search_store import Sought
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem

_CURRENT = "current"


@dataclass(frozen=True, order=True)
class SearchedGeneration:
    """A generation, or what a dead run left. The files of a current one may have been written by earlier runs."""

    topic: str
    partition: int
    number: int
    state: str  # as SearchFile has it

    @property
    def name(self) -> str:
        """Topic and number of its partition."""
        return partition_folder(self.topic, self.partition)

    @property
    def is_current(self) -> bool:
        """Return whether it is the one that readers see."""
        return self.state == _CURRENT

    def __str__(self) -> str:
        return f"{self.name}: {self.number} ({self.state})"


@dataclass
class Held:
    """Keys that were found in the files of a generation."""

    paths: set[str] = field(default_factory=set)
    keys: int = 0  # keys that remain, or may remain
    sure: int = 0  # keys that certainly remain

    def problem(self, where: SearchedGeneration, hint: str) -> Problem:
        """Return it as a problem."""
        perhaps = self.keys - self.sure
        found = counted(self.keys, "key") + (f", {perhaps:,} of them perhaps" if perhaps else "")
        expected = f"none of the keys in generation {where.number} ({where.state})"
        return Problem("erased", where.name, NO_POSITION, expected, found, hint=hint)


@dataclass
class Remains:
    """Places where the keys still are, those that may be one included."""

    facts: ClassVar[str] = "current older elsewhere archive generations=searched others=paths segments"
    current: int = 0  # keys in current generations
    older: int = 0  # keys in older generations and in files of dead runs
    elsewhere: int = 0  # keys in other files of the store
    archive: int = 0
    generations: dict[SearchedGeneration, Held] = field(default_factory=dict)  # current ones too
    others: dict[str, int] = field(default_factory=dict)  # path of another file of the store -> places in it
    segments: list[str] = field(default_factory=list)  # paths of the archive

    @classmethod
    def of(cls, sought: Sought, store: str, current: Mapping[Key, int]) -> Remains:
        """Return the generations and keys that a search found. current: the number of each partition's current
        generation.
        """
        out, numbers = cls(), dict[SearchedGeneration, int]()
        codes_by_part = [
            np.empty(0, np.int64)
        ]  # (number of the generation, row of the key, 1 for a key that may be there)
        for table, files in sought.tables():
            file_of, key, may = (np.asarray(table[name]) for name in ("file", "key", "may"))
            in_files = np.bincount(file_of, minlength=len(files))
            number_of = np.full(len(files), -1, np.int64)
            for i, (file, n) in enumerate(zip(files, in_files.tolist(), strict=True)):
                if not n:
                    continue
                if file.root != store:
                    out.archive += n
                    out.segments.append(file.path)
                elif file.generation is None or file.topic is None or file.partition is None:
                    out.elsewhere += n
                    out.others[file.path] = out.others.get(file.path, 0) + n
                else:
                    number = file.generation
                    if file.state == _CURRENT:
                        out.current += n
                        number = current.get((file.topic, file.partition), number)
                    else:
                        out.older += n
                    where = SearchedGeneration(file.topic, file.partition, number, file.state)
                    number_of[i] = numbers.setdefault(where, len(numbers))
                    out.generations.setdefault(where, Held()).paths.add(file.path)
            inside = number_of[file_of] >= 0
            of = number_of[file_of][inside]
            codes_by_part.append(np.unique((of * len(sought.keys) + key[inside]) * 2 + may[inside]))
        codes = np.unique(np.concatenate(codes_by_part))
        of_keys, of_sure = (
            np.bincount(pairs // max(len(sought.keys), 1), minlength=len(numbers)).tolist()
            for pairs in (np.unique(codes // 2), codes[codes % 2 == 0] // 2)
        )
        for where, number in numbers.items():
            held = out.generations[where]
            held.keys, held.sure = of_keys[number], of_sure[number]
        out.generations = dict(sorted(out.generations.items()))
        out.others, out.segments = dict(sorted(out.others.items())), sorted(set(out.segments))
        return out

    @property
    def searched(self) -> list[str]:
        """Generations that hold a key, as text."""
        return list(map(str, self.generations))

    @property
    def paths(self) -> list[str]:
        """Paths of the other files."""
        return list(self.others)
