"""The search of places for keys, in tasks that get the keys once, and its findings as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.erase.places import Places
from lastkey.jobs.spark.workers import Runner
from lastkey.udfs.key_search.find_keys import Searched, search_files
from lastkey.udfs.key_search.findings import SearchFile, unpacked
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.problem import Problem


@dataclass
class Sought:
    """A search of places for keys, and what it found."""

    keys: KeySet
    places: Places
    tasks: list[tuple[SearchFile, ...]] = field(default_factory=list)
    searched: list[Searched] = field(default_factory=list)  # in the order of the tasks
    problems: list[Problem] = field(default_factory=list)  # problems of places that were not read, or only in part
    digests: dict[tuple[str, str], str] = field(default_factory=dict)  # (root, path) of a file -> its SHA-256 in hex

    def tables(self) -> Iterator[tuple[Any, tuple[SearchFile, ...]]]:
        """Yield the findings of each task, a pa.Table with a row of the key set in `key`, and the task's files."""
        for files, searched in zip(self.tasks, self.searched, strict=True):
            yield unpacked(searched.findings), files


def search(
    keys: KeySet, hidden: KeySet | None, places: Places, runner: Runner, progress: Progress, *, digests: bool = False
) -> Sought:
    """Search places for keys, in tasks that run at once. The keys travel once, with the function; hidden: their hashes
    by the secret of the audits' tables. digests: hash the files too, which reads them once more.
    """
    sought = Sought(keys, places, places.tasks())
    sizes = [sum(file.size for file in task) for task in sought.tasks]
    progress.start("search", sum(sizes), BYTES)
    function: Callable[[tuple[SearchFile, ...]], Searched] = partial(search_files, keys, hidden, digests=digests)
    sought.searched = runner.run(function, sought.tasks, "erase: search", CountedBytes(progress, sizes))
    progress.close()
    sought.problems += places.problems
    for files, searched in zip(sought.tasks, sought.searched, strict=True):
        sought.digests |= {(files[i].root, files[i].path): digest for i, digest in searched.digests.items()}
        for one in searched.problems:
            hint = "; ".join(filter(None, (one.stretch, one.problem.hint)))
            sought.problems.append(replace(one.problem, path=files[one.file].shown, hint=hint))
    return sought
