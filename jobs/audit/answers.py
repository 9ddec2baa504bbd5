"""Questions of audits, answered by tasks from `audit_entries`: one commit puts the files of a result table.

The fingerprint of a unit covers everything that its rows depend on: the reads of its sources, the options, and other
inputs that a question names. Rows of units whose fingerprint has not changed are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs.audit.audit import Audit
from lastkey.jobs.audit.records import Gathered, ReadRange
from lastkey.jobs.store.audits import commit_results, result_files, results_folder
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.paths import AUDIT_ENTRIES, table_folder
from lastkey.udfs.audit.answers import (
    AnswerFile,
    Asked,
    Fingerprints,
    KeptAnswers,
    Question,
    answer,
    fingerprints_in,
    keep,
)
from lastkey.udfs.audit.runs import ALL_PARTITIONS, Shown, Sides, Unit, ranges

_MOST_ROWS: Final = 2_000_000  # rows of a task, which needs 200 bytes for each
Part = tuple[int, ReadRange]  # side, and what its source shows


@dataclass(frozen=True)
class ReadSource:
    """Source whose records a question reads. names: its topics -> their names among the units; None: their own."""

    source: str
    names: Mapping[str, str] | None = None


def parts_by_unit(found: Gathered, sides: Sequence[ReadSource], spread: Collection[str] = ()) -> dict[Unit, list[Part]]:
    """Return what the sources show of each unit. spread: topics that are compared as a whole."""
    out: dict[Unit, list[Part]] = {}
    for part in found.parts:
        for number, side in enumerate(sides):
            topic = part.read.topic if side.names is None else side.names.get(part.read.topic)
            if part.source == side.source and topic is not None:
                unit = topic, ALL_PARTITIONS if topic in spread else part.read.partition
                out.setdefault(unit, []).append((number, part))
    return out


@dataclass
class Answers:
    """Files of the answer: of units that were asked, and of those whose rows are kept."""

    folder: str  # folder of new files, below the store
    fingerprints: Fingerprints  # fingerprints of all units
    asked: list[Unit] = field(default_factory=list)
    fresh: list[AnswerFile] = field(default_factory=list)
    kept: list[AnswerFile] = field(default_factory=list)

    @property
    def summaries(self) -> list[Any]:
        """Summaries of all files."""
        return [one.summary for one in (*self.fresh, *self.kept)]


@dataclass(frozen=True)
class Request:
    """Request for the answer to a question."""

    table: str
    schema: pa.Schema
    source: str  # as the table names it
    parts: Mapping[Unit, Sequence[Part]]
    extra: Mapping[Unit, object]  # other inputs of a unit's rows
    question: Callable[[Sides], Question]  # for the units that are asked
    n_sides: int = 1
    timed: bool = False  # units of ALL_PARTITIONS are ordered by time


def ask(audit: Audit, request: Request) -> Answers:
    """Answer a question; `commit` makes the files visible."""
    root = audit.state.root.uri
    fingerprints = {unit: _fingerprint(request, unit) for unit in sorted({*request.parts, *request.extra})}
    out = Answers(f"{table_folder(request.table)}/{results_folder(request.source)}", fingerprints)
    kept = _kept(audit, request, out, _earlier(audit, request))
    out.asked = [unit for unit in fingerprints if unit not in kept]
    audit.report.partitions_answered, audit.report.partitions_kept = len(out.asked), len(kept)
    if not out.asked and out.kept:
        return out
    parts = {unit: request.parts.get(unit, ()) for unit in out.asked}
    sides = _sides(root, request, parts)
    bounds = ranges(sum(part.read.entries for of in parts.values() for _, part in of), _MOST_ROWS)
    asked = Asked(sides, request.question(sides), out.folder, {u: fingerprints[u] for u in out.asked})
    out.fresh = audit.workers.run(partial(answer, asked), bounds, f"audit: {audit.report.kind}")
    return out


def _earlier(audit: Audit, request: Request) -> dict[str, Fingerprints]:
    """Return the files of the last answer, below the store; none if one of them was lost."""
    root, table = audit.state.root.uri, table_folder(request.table)
    paths = [f"{table}/{path}" for path in result_files(audit.state, request.table, request.source)]
    found = {path: units for path in paths if (units := fingerprints_in(root, path)) is not None}
    return found if len(found) == len(paths) else {}


def _kept(audit: Audit, request: Request, out: Answers, earlier: Mapping[str, Fingerprints]) -> set[Unit]:
    """Keep the rows of units that have not changed. Return these units."""
    root = audit.state.root.uri
    known: dict[Unit, set[str]] = {}
    for units in earlier.values():
        for unit, text in units.items():
            known.setdefault(unit, set()).add(text)
    same = {unit: text for unit, text in out.fingerprints.items() if known.get(unit) == {text}}
    paths = [path for path, units in earlier.items() if not same.keys().isdisjoint(units)]
    question = request.question(_sides(root, request, {}))
    kept = audit.workers.run(
        partial(keep, KeptAnswers(root, question, out.folder, same)), paths, "audit: unchanged results"
    )
    whole = [one for one in kept if one is not None]
    if len(whole) < len(kept):  # a result is damaged: answer everything
        return set()
    out.kept = whole
    return set(same)


def _fingerprint(request: Request, unit: Unit) -> str:
    parts = sorted(
        (side, one.read.read_id, one.start_offset, one.end_offset) for side, one in request.parts.get(unit, ())
    )
    text = json.dumps([parts, request.extra.get(unit)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sides(root: str, request: Request, parts: Mapping[Unit, Sequence[Part]]) -> Sides:
    files: list[dict[str, set[Shown]]] = [{} for _ in range(request.n_sides)]
    for number, of in enumerate(parts.values()):
        for side, part in of:
            if part.read.file:
                shown = Shown(part.read.entries_id, number, part.read.partition)
                files[side].setdefault(f"{table_folder(AUDIT_ENTRIES)}/{part.read.file}", set()).add(shown)
    timed = frozenset(n for n, (_, partition) in enumerate(parts) if request.timed and partition == ALL_PARTITIONS)
    shown_files = tuple({path: sorted(of) for path, of in side.items()} for side in files)
    return Sides(root, tuple(parts), shown_files, timed)


def commit(audit: Audit, request: Request, answers: Answers, more: Sequence[AnswerFile] = ()) -> None:
    """Put the answer's files in place of those of the last audit."""
    table = f"{table_folder(request.table)}/"
    files = [*answers.fresh, *answers.kept, *more]
    new = [DataFile.counted(one.path.removeprefix(table), one.size, one.rows) for one in files if one.size]
    kept = {one.path.removeprefix(table) for one in files if not one.size}
    commit_results(audit.state, request.table, request.source, request.schema, new, kept)
