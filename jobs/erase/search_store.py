"""The search of a store and its archive for keys: every file is listed, and searched by what it is (`places`).

The table of records of audits does not help: it has what a consumer sees, and an erasure is about bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.jobs.archive.listing import archive_root
from lastkey.jobs.archive.places import is_same
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.command.reporting import Card, JobReport, TextTable, count, counted, size
from lastkey.jobs.command.store_options import EraseOptions
from lastkey.jobs.erase.places import Places, add_archive, add_store, appeared_since
from lastkey.jobs.errors import JobError, MissingPathError
from lastkey.jobs.spark.workers import Runner, Workers
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.paths import AUDIT_KEY
from lastkey.jobs.store.tables import State, open_state
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.key_search.find_keys import Searched, search_files
from lastkey.udfs.key_search.findings import KINDS, SearchFile, unpacked
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, exists, normal_uri, open_root

_MOST_KEYS: Final = 20  # rows of the table of keys
_PLACE_COLUMNS: Final = ("place", "partition", "generation", "state", "searched_as", "files", "found", "may")


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


@dataclass(kw_only=True)
class SearchReport(AuditReport):
    """Report of a search for keys, in the form of an audit's."""

    job = ""  # no command's: a part of the report of `erase`
    facts = "sources findings summary *=details stretches_read bytes_read"

    result_tables = (
        TextTable("details.places", " ".join(_PLACE_COLUMNS), title="Places that still hold keys"),
        TextTable("details.keys", "key found may tombstones", title="Keys that are still there"),
    )

    details: dict[str, Any] = field(default_factory=dict)  # rows by name

    def _name(self) -> str:
        return "search for keys"

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        of = self.summary
        may = f"{counted(of['may'], 'time')}: by filters or bytes"
        yield Card("keys", count(of["keys"]), "looked for")
        yield Card("still there", count(of["keys_found"]), counted(of["found"], "time"))
        yield Card("perhaps there", count(of["keys_maybe"]), may)
        yield Card("searched", counted(of["files_searched"], "file"), size(of["bytes_searched"]))
        yield Card("without keys", counted(of["files_without_keys"], "file"), "indexes, manifests and their like")
        yield Card("not read", count(of["not_read"]), "places: nothing is absent there")


# -- what is searched


def list_places(options: EraseOptions, report: SearchReport) -> tuple[Places, list[tuple[Root, str]]]:
    """List every place. Return the roots with the names that reports give them."""
    places, state = Places(), open_state(options.store)
    roots = [(state.root, "store")]
    if not any(exists(state.root, folder) for folder in ("state", "segments")):
        raise MissingPathError(path=state.root.uri, expected="a store, with state or segments", found="none")
    add_store(places, state, options.config, options.topics)
    roots += [(root, "archive") for root in _archives(options, state, places, report)]
    check_topics(options.topics, places.topics, ", ".join(root.uri for root, _ in roots))
    if places.left_out:
        report.notes.append(f"{counted(places.left_out, 'file')} of other topics: not searched")
    return places, roots


def search_places(
    keys: KeySet,
    state: State,
    places: Places,
    roots: Sequence[tuple[Root, str]],
    workers: Workers,
    report: JobReport,
    progress: Progress,
    *,
    digests: bool,
) -> Sought:
    """Search what was listed; what appeared meanwhile is a problem too. digests: of files too, for a proof."""
    at = time.perf_counter()
    hidden = keys.hidden_by(audit_secret(state)) if exists(state.root, AUDIT_KEY) else None
    sought = search(keys, hidden, places, workers, progress, digests=digests)
    workers.count(bytes_read=sum(file.size for file in places.files))
    sought.problems += appeared_since(places, [root for root, _ in roots])
    report.other_problems += sought.problems
    report.seconds["search"] = time.perf_counter() - at
    return sought


def _archives(options: EraseOptions, state: State, places: Places, report: SearchReport) -> list[Root]:
    """List the archives that a store was made of. One that is not there is a place that was not read."""
    if options.no_archive:
        report.notes.append("the archive was not searched: --no-archive")
        return []
    try:
        named = sorted({normal_uri(row.archive_uri) for row in state.checkpoints().values()})
    except JobError:
        named = []  # a problem already
    uris = [uri for i, uri in enumerate(named) if not any(is_same(uri, other) for other in named[:i])]
    if not uris:
        places.problems.append(_no_archive(state.root.uri, "its archive", "no table that names it"))
    roots = []
    for uri in uris:
        root = open_root(uri)
        try:
            root = archive_root(uri)
            add_archive(places, root, options.config, options.topics)
        except FileNotFoundError:
            places.problems.append(_no_archive(uri, "the archive of the store", "none"))
            continue
        roots.append(root)
    return roots


def _no_archive(path: str, expected: str, found: str) -> Problem:
    hint = "--no-archive says that there is none any more; if it has moved, compact it with this store first"
    return Problem("unreadable", path, NO_POSITION, expected, found, hint=hint)


# -- what was found


def fill_report(report: SearchReport, sought: Sought, names: pa.StringArray) -> None:
    """Put what was found into a report. names: of the keys (`key_names`)."""
    report.stretches_read = len(sought.places.files)
    report.bytes_read = sum(file.size for file in sought.places.files)
    n = len(sought.keys)
    (n_found, may, tombstones), rows = _counts(sought)
    held, maybe = n_found > 0, (n_found == 0) & (may > 0)
    places = sought.places
    report.findings = int(n_found.sum() + may.sum())
    report.summary = {
        "keys": n, "keys_found": int(held.sum()), "keys_maybe": int(maybe.sum()), "found": int(n_found.sum()),
        "may": int(may.sum()), "tombstones": int(tombstones.sum()), "files_searched": len(places.files),
        "bytes_searched": report.bytes_read, "files_without_keys": places.without_keys.total(),
        "files_left_out": places.left_out, "not_read": len(sought.problems),
    }  # fmt: skip
    most = np.flatnonzero(n_found + may)
    most = most[np.lexsort((most, -may[most], -n_found[most]))][:_MOST_KEYS]
    keys: list[dict[str, Any]] = [
        {"key": f"#{names[row].as_py()[:16]}", "found": int(n_found[row]), "may": int(may[row]),
         "tombstones": int(tombstones[row])} for row in most.tolist()
    ]  # fmt: skip
    report.details = {
        "places": [
            dict(zip(_PLACE_COLUMNS, (*place, *amounts), strict=True)) for place, amounts in sorted(rows.items())
        ],
        "keys": keys,
        "without_keys": dict(places.without_keys),
    }
    if may.any():
        report.notes.append(
            "may: a filter reports about one key in 1,000 by mistake, and other data may contain the same bytes"
        )


def _counts(sought: Sought) -> tuple[NDArray[np.int64], dict[tuple[str, ...], list[int]]]:
    """Return int64[3, n], for each key the records found, possible and found as tombstones; and by place the number of
    files, of keys found in them and of possible keys.
    """
    n = len(sought.keys)
    n_found, may, tombstones = of_keys = np.zeros((3, n), np.int64)
    rows: dict[tuple[str, ...], list[int]] = {}
    for table, files in sought.tables():
        key, is_may = np.asarray(table["key"]), np.asarray(table["may"])
        n_found += np.bincount(key[~is_may], minlength=n)
        may += np.bincount(key[is_may], minlength=n)
        tombstones += np.bincount(key[np.asarray(table["tombstone"].fill_null(False))], minlength=n)
        number = np.asarray(table["file"])
        in_file = np.bincount(number[~is_may], minlength=len(files)), np.bincount(number[is_may], minlength=len(files))
        for file, *amounts in zip(files, *in_file, strict=True):
            if sum(amounts):
                row = rows.setdefault(_place_key(file), [0, 0, 0])
                row[:] = [row[0] + 1, *(int(old + new) for old, new in zip(row[1:], amounts, strict=True))]
    return of_keys, rows


def _place_key(file: SearchFile) -> tuple[str, ...]:
    partition = "" if file.topic is None else f"{file.topic}-{file.partition}"
    generation = "" if file.generation is None else str(file.generation)
    return file.root, partition, generation, file.state, KINDS[file.kind]
