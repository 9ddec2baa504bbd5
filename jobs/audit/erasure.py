"""`audit erasure`: where each of a set of keys still is, in an archive, in a store, and in the tables of audits.

Every file is listed, and searched by what it is (`erasure_places`). The table of records of other audits does not help:
it has what a consumer sees, and an erasure is about bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import from_arrow_schema

from lastkey.jobs.archive.listing import archive_root
from lastkey.jobs.archive.places import Place, check_apart, is_same
from lastkey.jobs.audit.audit import run_row
from lastkey.jobs.audit.erasure_places import Places, add_archive, add_store, appeared_since
from lastkey.jobs.audit.erasure_proof import KeyNames, checked_proof, hiding_key, shown_keys, write_proof
from lastkey.jobs.audit.erasure_search import Sought, search
from lastkey.jobs.audit.key_files import key_set
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.command.options import AuditErasureOptions
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, count, counted, size
from lastkey.jobs.errors import JobError, MissingPathError
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.report.write_page import checked_output, write_page
from lastkey.jobs.spark.engine import spark_workers
from lastkey.jobs.spark.workers import Workers
from lastkey.jobs.store.audits import add_run, audit_secret, replace_results
from lastkey.jobs.store.paths import AUDIT_ERASURE, AUDIT_KEY
from lastkey.jobs.store.tables import State, open_state
from lastkey.logformat.errors import NO_POSITION
from lastkey.udfs.audit.findings import AUDIT_ERASURE as RESULTS
from lastkey.udfs.audit.findings import KINDS, SearchFile, result_rows
from lastkey.udfs.audit.key_set import KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, exists, normal_uri, open_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BRIEF: Final = 256 << 20  # of files: the JVM starts for a short time


def run(options: AuditErasureOptions, progress: Progress) -> AuditReport:
    """Search, and report; write the proof, the table and the page."""
    began, at_ms = time.perf_counter(), time.time_ns() // 1_000_000
    keys = key_set(options.keys, options.key, options.key_format)
    shown = shown_keys(keys, hiding_key(options))
    audits = options.audits or options.store
    state = None if audits is None else open_state(audits)
    report = AuditReport(kind="erasure", audits="" if state is None else state.root.uri)
    report.sources = [normal_uri(options.store or options.archive or "")]
    places, roots = list_places(options, state, report)
    outside = [Place(f"the {name}", root.uri) for root, name in roots]
    if state is not None:
        check_apart(Place("--audits", state.root.uri), *(p for p in outside if p.what == "the archive"))
    archives = [root.uri for root, name in roots if name == "archive"]
    stores = [root.uri for root, name in roots if name != "archive"] + [audits]
    report.output = None if options.output is None else checked_output(options.output, archives, stores)
    proof = None if options.proof is None else checked_proof(options.proof, archives, stores)
    report.seconds["list"] = time.perf_counter() - began
    n_bytes = sum(file.size for file in places.files)
    with spark_workers("audit erasure", options, report, progress, brief=n_bytes < _BRIEF) as workers:
        sought = search_places(keys, state, places, roots, workers, report, progress)
        fill_report(report, sought, shown, options.most)
        if proof is not None:
            at = time.perf_counter()
            write_proof(proof, sought, shown, report, roots, options, at_ms)
            report.seconds["prove"] = time.perf_counter() - at
        if state is None:
            report.notes.append("no table was written: --audits STORE names a place for it")
        else:
            with workers.spark("audit erasure") as spark:
                _keep(spark, state, sought, shown, report.sources[0])
    if state is not None:
        report.notes += state.notes
        add_run(state, run_row(report, at_ms))
    if report.output is not None:
        from lastkey.jobs.audit.page import page_of  # noqa: PLC0415 - the plot library takes a second to load

        write_page(report.output, page_of(report, at_ms).encode())
    report.seconds["total"] = time.perf_counter() - began
    return report


# -- what is searched


def list_places(
    options: AuditErasureOptions, audits: State | None, report: AuditReport
) -> tuple[Places, list[tuple[Root, str]]]:
    """List every place. Return the roots with the names that reports give them."""
    places, roots = Places(), list[tuple[Root, str]]()
    if options.store is None:
        root = open_root(normal_uri(options.archive or ""))
        try:
            root = archive_root(root.uri)
            add_archive(places, root, options.config, options.topics)
        except FileNotFoundError:
            raise MissingPathError(
                path=root.uri, expected="a folder with Kafka log directories", found="none"
            ) from None
        roots.append((root, "archive"))
    else:
        state = open_state(options.store)
        roots.append((state.root, "store"))
        if not any(exists(state.root, folder) for folder in ("state", "segments")):
            raise MissingPathError(path=state.root.uri, expected="a store, with state or segments", found="none")
        add_store(places, state, options.config, options.topics)
        roots += [(root, "archive") for root in _archives(options, state, places, report)]
    elsewhere = audits is not None and not any(is_same(root.uri, audits.root.uri) for root, _ in roots)
    if audits is not None and elsewhere and exists(audits.root, "state"):
        add_store(places, audits, options.config, options.topics)
        roots.append((audits.root, "audits"))
    check_topics(options.topics, places.topics, ", ".join(root.uri for root, _ in roots))
    if places.left_out:
        report.notes.append(f"{counted(places.left_out, 'file')} of other topics: not searched")
    return places, roots


def search_places(
    keys: KeySet,
    audits: State | None,
    places: Places,
    roots: Sequence[tuple[Root, str]],
    workers: Workers,
    report: JobReport,
    progress: Progress,
) -> Sought:
    """Search what was listed; what appeared meanwhile is a problem too."""
    at = time.perf_counter()
    hidden = None if audits is None or not exists(audits.root, AUDIT_KEY) else keys.hidden_by(audit_secret(audits))
    sought = search(keys, hidden, places, workers, progress)
    workers.count(bytes_read=sum(file.size for file in places.files))
    sought.problems += appeared_since(places, [root for root, _ in roots])
    report.other_problems += sought.problems
    report.seconds["search"] = time.perf_counter() - at
    return sought


def _archives(options: AuditErasureOptions, state: State, places: Places, report: AuditReport) -> list[Root]:
    """List the archives that a store was made of. One that is not there is a place that was not read."""
    if options.no_archive:
        report.notes.append("the archive was not searched: --no-archive")
        return []
    uris: list[str] = []
    if options.archive is not None:
        uris.append(normal_uri(options.archive))
    else:
        try:
            named = sorted({normal_uri(row.archive_uri) for row in state.checkpoints().values()})
        except JobError:
            named = []  # a problem already
        uris += [uri for i, uri in enumerate(named) if not any(is_same(uri, other) for other in named[:i])]
        if not uris:
            places.problems.append(_no_archive(state.root.uri, "its archive", "no table that names it"))
    roots = []
    for uri in uris:
        root = open_root(uri)
        try:
            root = archive_root(uri)
            add_archive(places, root, options.config, options.topics)
        except FileNotFoundError:
            if options.archive is not None:
                raise MissingPathError(path=uri, expected="an archive", found="none") from None
            places.problems.append(_no_archive(uri, "the archive of the store", "none"))
            continue
        roots.append(root)
    return roots


def _no_archive(path: str, expected: str, found: str) -> Problem:
    hint = "--archive URI says where it is now, --no-archive that there is none any more"
    return Problem("unreadable", path, NO_POSITION, expected, found, hint=hint)


# -- what was found


def fill_report(report: AuditReport, sought: Sought, shown: KeyNames, n_shown: int) -> None:
    """Put what was found into a report, with the first `n_shown` keys."""
    report.stretches_read = len(sought.places.files)
    report.bytes_read = sum(file.size for file in sought.places.files)
    n = len(sought.keys)
    (found, may, tombstones), rows = _counts(sought)
    held, maybe = found > 0, (found == 0) & (may > 0)
    places = sought.places
    report.findings = int(found.sum() + may.sum())
    report.summary = {
        "keys": n, "keys_found": int(held.sum()), "keys_maybe": int(maybe.sum()), "found": int(found.sum()),
        "may": int(may.sum()), "tombstones": int(tombstones.sum()), "files_searched": len(places.files),
        "bytes_searched": report.bytes_read, "files_without_keys": places.without_keys.total(),
        "files_left_out": places.left_out, "not_read": len(sought.problems),
    }  # fmt: skip
    most = np.flatnonzero(found + may)
    most = most[np.lexsort((most, -may[most], -found[most]))][:n_shown]
    keys: list[dict[str, Any]] = [
        {"key": _name(sought.keys, shown, row), "found": int(found[row]), "may": int(may[row]),
         "tombstones": int(tombstones[row])} for row in most.tolist()
    ]  # fmt: skip
    header = ("place", "partition", "generation", "state", "searched as")
    told = [(*place, *amounts) for place, amounts in sorted(rows.items())]
    names = (*(name.replace(" ", "_") for name in header), "files", "found", "may")
    report.details = {
        "places": [dict(zip(names, row, strict=True)) for row in told],
        "keys": keys,
        "keys_hidden": shown.hidden,
        "without_keys": dict(places.without_keys),
    }
    report.cards = _cards(report.summary)
    text = [(*map(str, row[:5]), *(f"{cell:,}" for cell in row[5:])) for row in told]
    report.tables = [
        Table("Where keys still are", (*header, "files", "found", "may"), [list(row) for row in text], (1, 2, 3, 4)),
        Table(
            "Keys that are still there",
            ("key", "found", "may", "tombstones"),
            [[k["key"], count(k["found"]), count(k["may"]), count(k["tombstones"])] for k in keys],
            (0,),
        ),
    ]
    if may.any():
        report.notes.append(
            "may: a filter takes one key in about 1,000 for one that it holds, and bytes may stand there as part of "
            "something else"
        )


def _counts(sought: Sought) -> tuple[NDArray[np.int64], dict[tuple[str, ...], list[int]]]:
    """Return how often each key was found, may be there and was found as a tombstone (int64[3, n]), and by place the
    number of files, of keys found in them and of keys that may be there.
    """
    n = len(sought.keys)
    found, may, tombstones = of_keys = np.zeros((3, n), np.int64)
    rows: dict[tuple[str, ...], list[int]] = {}
    for table, files in sought.tables():
        key, is_may = np.asarray(table["key"]), np.asarray(table["may"])
        found += np.bincount(key[~is_may], minlength=n)
        may += np.bincount(key[is_may], minlength=n)
        tombstones += np.bincount(key[np.asarray(table["tombstone"].fill_null(False))], minlength=n)
        number = np.asarray(table["file"])
        in_file = np.bincount(number[~is_may], minlength=len(files)), np.bincount(number[is_may], minlength=len(files))
        for file, *amounts in zip(files, *in_file, strict=True):
            if sum(amounts):
                row = rows.setdefault(_place_of(file), [0, 0, 0])
                row[:] = [row[0] + 1, *(int(old + new) for old, new in zip(row[1:], amounts, strict=True))]
    return of_keys, rows


def _cards(summary: dict[str, Any]) -> list[Card]:
    """Return the figures of the page."""
    bad = "bad" if summary["found"] else ""
    may = f"{counted(summary['may'], 'time')}: by filters or bytes"
    return [
        Card("keys", count(summary["keys"]), "looked for"),
        Card("still there", count(summary["keys_found"]), counted(summary["found"], "time"), bad),
        Card("perhaps there", count(summary["keys_maybe"]), may),
        Card("searched", counted(summary["files_searched"], "file"), size(summary["bytes_searched"])),
        Card("without keys", counted(summary["files_without_keys"], "file"), "indexes, manifests and their like"),
        Card("not read", count(summary["not_read"]), "places: nothing is absent there"),
    ]


def _place_of(file: SearchFile) -> tuple[str, ...]:
    partition = "" if file.topic is None else f"{file.topic}-{file.partition}"
    generation = "" if file.generation is None else str(file.generation)
    return file.root, partition, generation, file.state, KINDS[file.kind]


def _name(keys: KeySet, shown: KeyNames, row: int) -> str:
    return f"#{shown.names[row].as_py()[:16]}" if shown.hidden else shown_key(keys.keys[row].as_py())


def _keep(spark: SparkSession, state: State, sought: Sought, shown: KeyNames, source: str) -> None:
    """Put the findings into `audit_erasure`, which never holds a key: an audit of an erasure must not add a copy. Tasks
    unpack them, for a row is fifty times as large as a packed finding.
    """
    if shown.hidden:
        names = pa.array(map(bytes.fromhex, shown.names.to_pylist()), pa.binary())
    else:
        names = sought.keys.hidden_by(audit_secret(state)).keys
    packed = [(number, one.findings) for number, one in enumerate(sought.searched) if one.findings]
    columns = [pa.array([number for number, _ in packed], pa.int32()), pa.array([f for _, f in packed], pa.binary())]
    frame = spark.createDataFrame(pa.table(columns, ["task", "findings"])).repartition(min(max(len(packed), 1), 64))
    rows = frame.mapInArrow(partial(result_rows, source, names, sought.tasks), from_arrow_schema(RESULTS))
    replace_results(state, AUDIT_ERASURE, source, rows)
