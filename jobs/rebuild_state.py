"""`rebuild-state --store STORE`: makes the lost tables of a store again from the manifests of its generations.

  every run's folder -> read its manifest, if it has one; check the files that it names -> for each partition the
  generation that counts, or a question -> history, then one commit of the generations that count

The highest generation with a file `committed` counts (jobs.store.manifests). The command does not guess. The user is
asked about a partition if that generation is not whole, if another one of its number was committed too, or none was.
The user is also asked if a complete folder above it has no such file: a run died there just before or after its commit.
A generation that the user chooses, and that is not alone the highest, comes back as by a rollback: as a new generation
above all others. The others stay generations; vacuum compares what they hold, as always.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyarrow import fs as pafs

from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, TextTable, labelled
from lastkey.jobs.command.store_options import RebuildStateOptions
from lastkey.jobs.errors import UNDECIDED, MissingPathError, UsageError
from lastkey.jobs.store import manifests, writing
from lastkey.jobs.store.erasures import check_nothing_comes_back, merged, parse_bounds, to_text
from lastkey.jobs.store.folders import RunFolder, run_folders
from lastkey.jobs.store.generations import make_rollback
from lastkey.jobs.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    ERASED_KEYS,
    MANIFEST,
    PARTITIONS,
    RUNS,
    STATES,
    table_folder,
)
from lastkey.jobs.store.rows import Commit
from lastkey.jobs.store.tables import open_state
from lastkey.jobs.topics import EVERY_TOPIC, Key
from lastkey.logformat import names
from lastkey.udfs.problem import timed
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, exists, open_root

_NONE = "none"
_WOULD_RETURN = (
    "and would come back: move the partition's folder away, run rebuild-state again, and then erase the same keys "
    "before anything else"
)


@dataclass
class RebuildReport(JobReport):
    """Report of `rebuild-state`."""

    job = "rebuild-state"
    done = "{store}: state of {decided:partition} {dry_run:would}made again"
    facts = "store dry_run partitions=decided skipped"
    text_tables = (
        TextTable(
            "decided",
            "checkpoint.name:partition checkpoint.generation checkpoint.next_offset:covered_up_to_offset "
            "checkpoint.run_id:run",
        ),
    )

    store: str
    dry_run: bool
    decided: list[Commit] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def _lines(self) -> list[str]:
        return labelled("skipped", self.skipped)


@dataclass(frozen=True)
class _Candidate:
    """Folder of a run that has a manifest, or was committed."""

    folder: RunFolder
    commit: Commit | None  # None: the manifest cannot be read
    wrong: str  # "": all files are there

    @property
    def committed(self) -> bool:
        """True if the folder has a file `committed`."""
        return COMMITTED in self.folder.names

    def __str__(self) -> str:
        said = self.wrong or "whole"
        perhaps = "" if self.committed else ", perhaps never committed"
        return f"generation {self.folder.generation} of run {self.folder.run_id} ({said}{perhaps})"


def run(options: RebuildStateOptions, progress: Progress) -> RebuildReport:
    """Make the tables again, or with `dry_run` report the generations that they would name."""
    state = open_state(options.store)
    store = state.root
    if options.topics != EVERY_TOPIC:
        none = "--topics, --topics-from or --exclude"
        raise UsageError(message=f"rebuild-state takes no {none}: --choose TOPIC-N=none leaves a partition out")
    if store.filesystem.get_file_info(store.full(PARTITIONS)).type != pafs.FileType.Directory:
        raise MissingPathError(path=store.uri, expected=f"a store, with {PARTITIONS}", found="none")
    left = [name for name in (CHECKPOINTS, STATES, RUNS) if state.table_exists(name)]
    if left and not options.dry_run:
        raise UsageError(
            message=f"{store.uri}/{table_folder(left[0])} exists, and rebuild-state replaces nothing: if it "
            "cannot be read, move the folder state away and run again"
        )
    report = RebuildReport(store.uri, options.dry_run)
    # A vacuum that began while the tables were there may still run; its lock is in the same folder
    with state.lock() if exists(store, "state") and not options.dry_run else contextlib.nullcontext():
        candidates = _find_candidates(store, report, progress)
        run_id = uuid.uuid4().hex  # run id of the rollbacks that this run makes
        chosen = _choices(options.choose, candidates)
        report.decided = _commits_that_count(candidates, chosen, report, run_id)
        if report.decided and not options.dry_run:
            step("generations chosen")
            state.check_writable()
            new = [commit for commit in report.decided if commit.run.run_id == run_id]
            manifests.make_folders(store, new)
            manifests.write_manifests(store, new)
            manifests.check_files(store, report.decided)  # again: the search takes a while
            commits = {
                c.folder.path: c.commit for each in candidates.values() for c in each if c.committed and c.commit
            }
            commits |= {commit.folder: commit for commit in report.decided}
            step("manifests written")
            writing.rebuild(state, report.decided, commits.values())
            manifests.write_committed_files(store, [commit.folder for commit in report.decided])
    return report


def _find_candidates(store: Root, report: RebuildReport, progress: Progress) -> dict[Key, list[_Candidate]]:
    """Return the candidates of every partition that has a folder, newest first."""
    folders = list(run_folders(store, report.notes))
    candidates: dict[Key, list[_Candidate]] = {folder.key: [] for folder in folders}
    progress.start("rebuild-state", len(folders), "folder")
    for folder in sorted(folders, key=lambda folder: (folder.key, -folder.generation, folder.run_id)):
        if MANIFEST in folder.names or COMMITTED in folder.names:
            with timed(folder.path):
                candidates[folder.key].append(_Candidate(folder, *manifests.read_whole(store, folder.path)))
        else:
            report.notes.append(
                f"{folder.path}: no {MANIFEST}: a run died there, or vacuum left files that a later generation uses"
            )
        progress.advance()
    return candidates


def _choices(given: Sequence[str], candidates: Mapping[Key, Sequence[_Candidate]]) -> dict[Key, str]:
    chosen = {}
    for choice in given:
        name, _, run_id = choice.rpartition("=")
        parsed = names.parse_partition_folder(name)
        key = (parsed.topic, parsed.partition) if parsed is not None and not parsed.mark else ("", -1)
        if key not in candidates:
            raise UsageError(message=f"--choose: expected TOPIC-N=RUN_ID of a partition of the store, found {choice!r}")
        whole = [c.folder.run_id for c in candidates[key] if c.commit is not None and not c.wrong]
        if run_id not in (*whole, _NONE):
            raise UsageError(
                message=f"--choose {choice}: expected the run of a whole generation, {' or '.join([*whole, _NONE])}"
            )
        chosen[key] = run_id
    return chosen


def _commits_that_count(
    all_candidates: Mapping[Key, Sequence[_Candidate]], chosen: Mapping[Key, str], report: RebuildReport, run_id: str
) -> list[Commit]:
    """Return the commit that counts for every partition. Raise UNDECIDED if it is unclear for some. run_id: for
    chosen generations that are not the highest.
    """
    decided, questions = [], []
    has_erasures = exists(open_root(report.store), ERASED_KEYS)
    for key, candidates in sorted(all_candidates.items()):
        name = names.partition_folder(*key)
        if chosen.get(key) == _NONE:
            committed = [c.commit for c in candidates if c.committed]
            if any(has_erasures if one is None else parse_bounds(one.checkpoint) for one in committed):
                what = "records of it were erased, or may have been"
                raise UsageError(message=f"--choose {name}=none: {what}, {_WOULD_RETURN}")
            report.skipped.append(name)
            continue
        counts = (
            _chosen(candidates, chosen[key], run_id, has_erasures=has_erasures) if key in chosen else _plain(candidates)
        )
        if counts is None:
            there = ", ".join(map(str, candidates)) or f"no folder with a {MANIFEST}"
            questions.append(f"{name}: {there}")
        else:
            decided.append(counts)
    if questions:
        raise UNDECIDED(
            path=f"{report.store}/{PARTITIONS}",
            expected="in each partition one complete and committed generation above all others",
            found="; ".join(questions),
        )
    return decided


def _plain(candidates: Sequence[_Candidate]) -> Commit | None:
    """Return the commit that counts, if there is only one answer."""
    committed = [c for c in candidates if c.committed]
    numbers = [c.folder.generation for c in committed]
    if len(set(numbers)) < len(numbers) or not committed or committed[0].wrong:
        return None
    return committed[0].commit if candidates[0].folder.generation == numbers[0] else None


def _chosen(candidates: Sequence[_Candidate], run_id: str, new_run_id: str, *, has_erasures: bool) -> Commit:
    """Return the commit of a run; if another folder is as high or higher, a commit above all that goes back to it.

    has_erasures: in the store. Raises UsageError if erased records may return.
    """
    chosen = next(c.commit for c in candidates if c.folder.run_id == run_id and c.commit is not None)
    committed = [c.commit for c in candidates if c.committed and c.commit is not None]
    parents = {
        candidate.run.parent_run_id for candidate in (*committed, chosen)
    }  # their children note what they note, and later
    last = [candidate for candidate in (*committed, chosen) if candidate.run.run_id not in parents]
    erased = to_text(merged(parse_bounds(candidate.checkpoint) for candidate in last))
    check_nothing_comes_back(chosen.checkpoint, replace(chosen.checkpoint, erased=erased))
    readable = {candidate.run.generation_after for candidate in committed}
    unknown = [
        c.folder
        for c in candidates
        if c.committed and c.commit is None
        if c.folder.generation >= chosen.run.generation_after
        or (c.folder.generation in readable and c.folder.run_id not in parents)  # run of another history
    ]
    if has_erasures and unknown:
        what = f"generation {unknown[0].generation}, whose {MANIFEST} cannot be read, may have erased records"
        raise UsageError(message=f"{names.partition_folder(*unknown[0].key)}: {what}, {_WOULD_RETURN}")
    numbers = [c.folder.generation for c in candidates]  # falling
    is_highest = chosen.run.generation_after == numbers[0]
    if is_highest and numbers.count(numbers[0]) == 1 and erased == to_text(parse_bounds(chosen.checkpoint)):
        return chosen
    parent = run_id if is_highest else candidates[0].folder.run_id
    return make_rollback(chosen, numbers[0] + 1, new_run_id, parent, time.time_ns() // 1_000_000, erased)
