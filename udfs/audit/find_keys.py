"""The search of files for a set of keys: the work of a task of `audit erasure`, and of `erase --check`.

A bad file stops no other: it is a place that was not read, which the result names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastkey.udfs.attempt import attempt
from lastkey.udfs.audit.find_hashes import search_filter, search_key_file
from lastkey.udfs.audit.find_in_logs import LogSearch, check_size, reader_of, search_bytes
from lastkey.udfs.audit.find_in_tables import search_partition, search_table
from lastkey.udfs.audit.findings import Found, NotRead, SearchFile
from lastkey.udfs.audit.key_set import LEAST_TEXT_KEY, KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened


@dataclass(frozen=True)
class Searched:
    """Result of a task."""

    findings: bytes  # as `findings.unpacked` reads them
    problems: tuple[NotRead, ...]


def search_files(keys: KeySet, hidden: KeySet | None, files: Sequence[SearchFile]) -> Searched:
    """Search the files of one task. A filter stands right behind its log. hidden: see `search_table`."""
    search = _Search(keys, hidden)
    for number, file in enumerate(files):
        search.found.begin(number)
        problem = attempt(file.shown, lambda file=file: search.search(file))  # type: ignore[misc]
        if isinstance(problem, Problem):
            search.found.problem(problem, "not searched to its end")
    return Searched(search.found.packed(), tuple(search.found.problems))


class _Search:
    def __init__(self, keys: KeySet, hidden: KeySet | None) -> None:
        self.keys, self.hidden, self.found = keys, hidden, Found(len(keys))
        self.logs = LogSearch(keys)
        self.read_log: tuple[str, np.ndarray] | None = None  # path of the last log that was read to the end, its keys

    def search(self, file: SearchFile) -> None:
        n_problems = len(self.found.problems)
        if file.kind == "log":
            self.read_log = None
            self.logs.search(file, self.found)
            if len(self.found.problems) == n_problems:
                self.read_log = file.path, self.found.rows_of_file
        elif file.kind == "filter":
            path, rows = self.read_log or ("", np.empty(0, np.int64))
            search_filter(self.keys, file, rows if path == log_of(file.path) else None, self.found)
        elif file.kind == "key_file":
            search_key_file(self.keys, file, self.found)
        elif file.kind == "table":
            search_partition(self.keys, file.path, self.found)
            problem = attempt(file.shown, lambda: self._table(file))
            if isinstance(problem, Problem):
                self.found.problem(problem, "searched for the bytes of the keys only")
                self._bytes(file)
        else:
            self._bytes(file)

    def _table(self, file: SearchFile) -> None:
        search_table(self.keys, self.hidden if file.may_hide else None, file, self.found)

    def _bytes(self, file: SearchFile) -> None:
        with opened(cached_root(file.root), file.path) as stream:
            check_size(stream, file)
            search_bytes(self.keys, reader_of(stream, file.shown), 0, file.size, self.found)
        if self.keys.n_short and file.size:
            expected = f"keys of {LEAST_TEXT_KEY} bytes or more"
            problem = Problem("side_file", file.shown, 0, expected, f"{self.keys.n_short} shorter ones")
            self.found.problem(problem, "not searched for these: they are too short to be told apart from other bytes")


def log_of(path: str) -> str:
    """Return the path of the log that a filter belongs to."""
    return f"{path.removesuffix('.filter')}.log"
