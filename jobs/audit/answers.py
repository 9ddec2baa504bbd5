"""Questions of audits, answered by tasks from `audit_entries`: one commit puts the files of a result table.

The fingerprint of a unit covers all inputs that its rows depend on: the reads of its sources, the options, and other
inputs that a question names. Rows of units whose fingerprint has not changed are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
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
    Question,
    answer,
    fingerprints_in,
    keep,
)
from lastkey.udfs.audit.runs import ALL_PARTITIONS, Shown, Sides, Unit, ranges

_MOST_ROWS: Final = 2_000_000  # rows of a task, which needs 200 bytes for each
Part = tuple[int, ReadRange]  # side, and what its source shows


Side = tuple[str, Mapping[str, str] | None]  # a source, and its topics -> their names among the units; None: their own


def parts_by_unit(found: Gathered, sides: Sequence[Side], spread: Collection[str] = ()) -> dict[Unit, list[Part]]:
    """Return what the sources show of each unit. spread: topics that are compared as a whole."""
    out: dict[Unit, list[Part]] = {}
    for part in found.parts:
        for number, (source, names) in enumerate(sides):
            topic = part.read.topic if names is None else names.get(part.read.topic)
            if part.source == source and topic is not None:
                unit = topic, ALL_PARTITIONS if topic in spread else part.read.partition
                out.setdefault(unit, []).append((number, part))
    return out


@dataclass
class Answers:
    """Files of the answer: of queried units, and of units whose earlier rows are kept."""

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
    question: Question


def ask(audit: Audit[Any, Any], request: Request) -> Answers:
    """Answer a question; `commit` makes the files visible."""
    fingerprints = {unit: _fingerprint(request, unit) for unit in sorted({*request.parts, *request.extra})}
    out = Answers(f"{table_folder(request.table)}/{results_folder(request.source)}", fingerprints)
    kept = _kept(audit, request, out, _earlier(audit, request))
    out.asked = [unit for unit in fingerprints if unit not in kept]
    audit.report.partitions_answered, audit.report.partitions_kept = len(out.asked), len(kept)
    if not out.asked and out.kept:
        return out
    parts = {unit: request.parts.get(unit, ()) for unit in out.asked}
    bounds = ranges(sum(part.read.entries for of in parts.values() for _, part in of), _MOST_ROWS)
    sides, asked = _sides(audit.state.root.uri, parts), {unit: fingerprints[unit] for unit in out.asked}
    task = partial(answer, Asked(sides, request.question, out.folder, asked))
    out.fresh = audit.workers.run(task, bounds, audit.report.job)
    return out


def _earlier(audit: Audit[Any, Any], request: Request) -> dict[str, Fingerprints]:
    """Return the files of the last answer, below the store; none if one of them was lost."""
    root, table = audit.state.root.uri, table_folder(request.table)
    paths = [f"{table}/{path}" for path in result_files(audit.state, request.table, request.source)]
    found = {path: units for path in paths if (units := fingerprints_in(root, path)) is not None}
    return found if len(found) == len(paths) else {}


def _kept(audit: Audit[Any, Any], request: Request, out: Answers, earlier: Mapping[str, Fingerprints]) -> set[Unit]:
    """Keep the rows of units that have not changed. Return these units."""
    known: dict[Unit, set[str]] = {}
    for units in earlier.values():
        for unit, text in units.items():
            known.setdefault(unit, set()).add(text)
    same = {unit: text for unit, text in out.fingerprints.items() if known.get(unit) == {text}}
    paths = [path for path, units in earlier.items() if not same.keys().isdisjoint(units)]
    task = partial(keep, Asked(_sides(audit.state.root.uri, {}), request.question, out.folder, same))
    kept = audit.workers.run(task, paths, "audit: unchanged results")
    out.kept = [one for one in kept if one is not None]
    if len(out.kept) == len(kept):
        return set(same)
    out.kept = []  # a result is damaged: answer all units
    return set()


def _fingerprint(request: Request, unit: Unit) -> str:
    parts = sorted(
        (side, one.read.read_id, one.start_offset, one.end_offset) for side, one in request.parts.get(unit, ())
    )
    text = json.dumps([parts, request.extra.get(unit)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sides(root: str, parts: Mapping[Unit, Sequence[Part]]) -> Sides:
    files: tuple[dict[str, list[Shown]], ...] = {}, {}
    for number, of in enumerate(parts.values()):
        for side, part in of:
            if part.read.file:
                shown = files[side].setdefault(f"{table_folder(AUDIT_ENTRIES)}/{part.read.file}", [])
                shown.append(Shown(part.read.entries_id, number, part.read.partition))
    return Sides(root, tuple(parts), tuple({path: sorted(set(of)) for path, of in side.items()} for side in files))


def commit(audit: Audit[Any, Any], request: Request, answers: Answers, more: Sequence[AnswerFile] = ()) -> None:
    """Put the answer's files in place of those of the last audit."""
    table = f"{table_folder(request.table)}/"
    files = [*answers.fresh, *answers.kept, *more]
    new = [DataFile.counted(one.path.removeprefix(table), one.size, one.rows) for one in files if one.size]
    kept = {one.path.removeprefix(table) for one in files if not one.size}
    commit_results(audit.state, request.table, request.source, request.schema, new, kept)
