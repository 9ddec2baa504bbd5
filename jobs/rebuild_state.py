"""`rebuild-state --store STORE`: the tables of a store, lost, made again from the manifests of its generations.

  every run's folder -> its manifest, if it has one; are all files there that it names? -> of each partition the one
  that counts, or a question -> history, then one commit of what counts

What counts is the highest generation that is whole, was not rolled back, and was not made of one that was. A run that
died just before its commit, or was second, leaves a folder like that too: where two have the same number, where one of
at least that number is not whole or has lost its manifest, or where it is not known whether it was rolled back, nothing
is guessed. A lone run that died before its commit counts, as though it had made it: its files were all written and read
back.

`vacuum` protects the generation before a --reset by the chain of runs. Where the chain is cut, since vacuum took a
folder with its manifest, a row stands in for it that says --reset: what is older and whole may be the only copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyarrow import fs as pafs

from jobs.command.options import RebuildStateOptions
from jobs.command.progress import Progress
from jobs.command.reporting import JobReport, counted, said, seconds, table
from jobs.errors import ManifestError, MissingPathError, UndecidedError, UsageError
from jobs.store.folders import RunFolder, run_folders
from jobs.store.manifests import Mark, check_files, other_files, read_manifest, read_mark
from jobs.store.paths import CHECKPOINTS, MANIFEST, PARTITIONS, ROLLED_BACK, RUNS, SEGMENTS, STATES, table_folder
from jobs.store.rows import Commit, RunRow
from jobs.store.tables import open_state
from jobs.topics import Key
from logformat import names
from udfs.storage import Root, exists

_NONE = "none"


@dataclass
class RebuildReport(JobReport):
    """What `rebuild-state` hands back."""

    store: str
    dry_run: bool
    decided: list[Commit] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": "rebuild-state",
            "exit_code": self.exit_code,
            "store": self.store,
            "dry_run": self.dry_run,
            "partitions": [
                {
                    "topic": c.topic,
                    "partition": c.partition,
                    "generation": c.checkpoint.generation,
                    "run_id": c.checkpoint.run_id,
                    "next_offset": c.checkpoint.next_offset,
                }
                for c in self.decided
            ],
            "left_out": self.left_out,
            "notes": self.notes,
            "seconds": self.seconds_json(),
        }

    def to_text(self) -> str:
        """For people."""
        rows = [
            (names.partition_folder(*c.key), str(c.checkpoint.generation), str(c.checkpoint.next_offset), c.run.run_id)
            for c in self.decided
        ]
        lines = [table(("partition", "generation", "covered up to", "run"), rows, left=(0, 3)), ""] if rows else []
        lines += said("left out", self.left_out)
        lines += said("note", self.notes)
        verb = "would be made" if self.dry_run else "made"
        took = seconds(self.seconds.get("total", 0.0))
        lines.append(f"{self.store}: state of {counted(len(rows), 'partition')} {verb} again in {took}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Candidate:
    """A run's folder that has a manifest."""

    folder: RunFolder
    commit: Commit | None  # None: the manifest cannot be read
    wrong: str  # "": all files are there
    mark: Mark | None

    def __str__(self) -> str:
        said = self.wrong or "whole"
        if self.mark is not None:
            said += f", {'rolled back' if self.mark.made else 'perhaps rolled back'} to {self.mark.to_generation}"
        return f"generation {self.folder.generation} of run {self.folder.run_id} ({said})"


def run(options: RebuildStateOptions, progress: Progress) -> RebuildReport:
    """Make the tables again, or with `dry_run` say of what."""
    began = time.monotonic()
    state = open_state(options.store)
    store = state.root
    if options.topics is not None:
        raise UsageError(message="rebuild-state takes no --topics: what a state leaves out, vacuum deletes")
    if store.filesystem.get_file_info(store.full(PARTITIONS)).type != pafs.FileType.Directory:
        raise MissingPathError(path=store.uri, expected=f"a store, with {PARTITIONS}", found="none")
    left = [name for name in (CHECKPOINTS, SEGMENTS, STATES, RUNS) if state.has(name)]
    if left and not options.dry_run:
        raise UsageError(
            message=f"{store.uri}/{table_folder(left[0])} is there, and rebuild-state replaces nothing: where it "
            "cannot be read, move the folder state away and run again"
        )
    report = RebuildReport(store.uri, options.dry_run)
    # A vacuum may go on that began while the tables were there; its lock lies in the folder of theirs
    with state.lock() if exists(store, "state") and not options.dry_run else contextlib.nullcontext():
        found = _found(store, report, progress)
        report.decided = _decided(store, found, _choices(options.choose, found), report)
        if report.decided and not options.dry_run:
            state.check_writable()
            check_files(store, report.decided, "the file of a whole generation")  # again: to find all takes a while
            _unmark(store, report.decided, found)
            commits = [c.commit for each in found.values() for c in each if c.commit is not None]
            runs = [c.run for c in commits]
            for commit in report.decided:
                runs += _bridges(commit.run, found[commit.key])
            state.rebuild(report.decided, runs, [row for c in commits for row in c.segments])
    report.seconds["total"] = round(time.monotonic() - began, 3)
    return report


def _found(store: Root, report: RebuildReport, progress: Progress) -> dict[Key, list[_Candidate]]:
    """The candidates of every partition of which there is a folder, newest first."""
    folders = list(run_folders(store, report.notes))
    found: dict[Key, list[_Candidate]] = {folder.key: [] for folder in folders}
    progress.start("rebuild-state", len(folders), "folder")
    for folder in sorted(folders, key=lambda folder: (folder.key, -folder.generation, folder.run_id)):
        if any(info.base_name == MANIFEST for info in folder.files):
            found[folder.key].append(_candidate(store, folder))
            continue
        report.notes.append(
            f"{folder.path}: no {MANIFEST}: a run died there, an older version wrote it, or vacuum left files that "
            "a later generation uses"
        )
        if any(info.base_name == names.LEADER_EPOCH_CHECKPOINT for info in folder.files):  # a task's last file
            found[folder.key].append(_Candidate(folder, None, f"no {MANIFEST}", read_mark(store, folder.path)))
        progress.advance()
    return found


def _candidate(store: Root, folder: RunFolder) -> _Candidate:
    mark = read_mark(store, folder.path)
    try:
        commit = read_manifest(store, folder.path)
    except ManifestError as error:
        return _Candidate(folder, None, str(error), mark)
    if mark is not None and mark.next_offset < 0 and _is_made_of(commit.run, mark.to_generation, mark.to_run_id):
        mark = replace(mark, made=False)  # a rollback took it for one that had died; it may have committed behind it
    wrong = next(
        (
            f"{path}: expected {'some' if size is None else size} bytes, found {'none' if seen is None else seen}"
            for path, size, seen in other_files(store, commit)
        ),
        "",
    )
    return _Candidate(folder, commit, wrong, mark)


def _is_made_of(run: RunRow, generation: int, run_id: str) -> bool:
    return (run.generation_before, run.parent_run_id) == (generation, run_id)


def _choices(given: Sequence[str], found: Mapping[Key, Sequence[_Candidate]]) -> dict[Key, str]:
    chosen = {}
    for one in given:
        name, _, run_id = one.rpartition("=")
        parsed = names.parse_partition_folder(name)
        key = (parsed.topic, parsed.partition) if parsed is not None and not parsed.mark else ("", -1)
        if key not in found:
            raise UsageError(message=f"--choose: expected TOPIC-N=RUN_ID of a partition of the store, found {one!r}")
        whole = [c.folder.run_id for c in found[key] if c.commit is not None and not c.wrong]
        if run_id not in (*whole, _NONE):
            raise UsageError(
                message=f"--choose {one}: expected the run of a whole generation, {' or '.join([*whole, _NONE])}"
            )
        chosen[key] = run_id
    return chosen


def _decided(
    store: Root, found: Mapping[Key, Sequence[_Candidate]], chosen: Mapping[Key, str], report: RebuildReport
) -> list[Commit]:
    """What counts of every partition. UndecidedError: that is not plain for some."""
    decided, questions = [], []
    for key, candidates in sorted(found.items()):
        name = names.partition_folder(*key)
        if chosen.get(key) == _NONE:
            report.left_out.append(name)
            continue
        counts = _plain(candidates) if key not in chosen else _of_run(candidates, chosen[key])
        if counts is None:
            there = ", ".join(map(str, candidates)) or f"no folder with a {MANIFEST}"
            questions.append(f"{name}: {there}")
        else:
            decided.append(counts)
    if questions:
        raise UndecidedError(
            path=f"{store.uri}/{PARTITIONS}",
            expected="of each partition one generation that is above all others, whole, and was not rolled back",
            found="; ".join(questions),
        )
    return decided


def _plain(candidates: Sequence[_Candidate]) -> Commit | None:
    """The commit that counts, where there is only one answer."""
    marked = {c.folder.path: [one.mark for one in _line(c, candidates) if one.mark is not None] for c in candidates}
    left = [c for c in candidates if not any(mark.made for mark in marked[c.folder.path])]
    top = [c for c in left if c.folder.generation == left[0].folder.generation]
    return top[0].commit if len(top) == 1 and not top[0].wrong and not marked[top[0].folder.path] else None


def _line(candidate: _Candidate, candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
    """It and the generations that it was made of, as far as they are there."""
    runs = {(c.folder.generation, c.folder.run_id): c for c in candidates}
    found: _Candidate | None = candidate
    while found is not None:
        yield found
        run = found.commit.run if found.commit is not None else None
        found = runs.pop((run.generation_before, run.parent_run_id or ""), None) if run is not None else None


def _of_run(candidates: Sequence[_Candidate], run_id: str) -> Commit | None:
    return next(c.commit for c in candidates if c.folder.run_id == run_id)


def _unmark(store: Root, decided: Sequence[Commit], found: Mapping[Key, Sequence[_Candidate]]) -> None:
    """What was chosen in spite of a mark has none from now on, nor what it was made of: else it is asked again."""
    for commit in decided:
        chosen = next(c for c in found[commit.key] if c.commit is commit)
        for one in _line(chosen, found[commit.key]):
            if one.mark is not None:
                store.filesystem.delete_file(store.full(f"{one.folder.path}/{ROLLED_BACK}"))


def _bridges(run: RunRow, candidates: Sequence[_Candidate]) -> Iterator[RunRow]:
    """Rows for parents of which nothing is left, so that the chain goes on to what is older and whole."""
    known = {c.commit.run.run_id: c.commit.run for c in candidates if c.commit is not None}
    whole = [c.commit.run for c in candidates if c.commit is not None and not c.wrong]
    while run.generation_before > 0:
        parent = known.get(run.parent_run_id or "")
        if parent is not None:
            run = parent
            continue
        older = [other for other in whole if other.generation_after < run.generation_before]
        if not older or run.parent_run_id is None:
            return
        number = max(other.generation_after for other in older)
        counted = ("records_", "dropped_", "batches_", "bytes_")
        nothing: dict[str, Any] = {f.name: 0 for f in dataclasses.fields(RunRow) if f.name.startswith(counted)}
        yield replace(
            run,
            run_id=run.parent_run_id,
            generation_after=run.generation_before,
            generation_before=number,
            parent_run_id=None,  # vacuum keeps all of that number then
            anew=True,
            versions=json.dumps({"rebuild-state": "stands in for a run whose manifest is gone"}),
            **nothing,
        )
        run = next(other for other in older if other.generation_after == number)
