"""Deletes what no generation needs any more, after a grace. Only below STORE/segments, and beside runs: what goes is
named in the table of checkpoints first, and no run commits what was named since it began.

Kept, whatever its age:
- every file that a current generation names, and its run's folder;
- the same of a generation that was replaced less than the grace ago: a restore or a reader may be at it;
- the same of the last generation before each --reset: the archive may not hold its records any more, so it may be their
  only copy. --before-reset GLOB gives it up;
- a run's folder whose newest file is younger than the grace: a run may be writing it; in a bucket an empty one too,
  of which no age is known: a file is there once all of it is;
- everything of a partition whose runs, or the segments of one of these generations, are not known any more;
- a generation that was rolled back less than the grace ago, and as long as it reaches further than the current one: the
  archive may not hold any more what it read there. --before-reset GLOB gives this up too;
- a complete generation that was rolled back, as long as a run's folder above it stays that no run known made: it may
  be made of this one, whose mark is all that would tell rebuild-state so;
- a complete first generation that no run known made, if it covers what the partition's generations do not: the tables
  may have been lost and begun anew since. --before-reset GLOB gives this up too;
- a complete generation above the current one, as long as a torn commit lies aside in the table that decides;
- what is not named as a run's folder is: it is not ours to judge;
- a folder that has two names, by a link or a mount: one of them may be a current generation's.
Where a folder stays, so do the files that its generation names in other folders. What is newer goes first: a vacuum
that is killed leaves no generation without the mark of one that it was made of.
The clock is the wall clock, or the store's where that is behind (jobs.store.clock): --now never decides what is
deleted. Then Delta's own VACUUM goes over the state tables.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs as pafs

from jobs.archive.places import Place, check_apart
from jobs.command.options import VacuumOptions
from jobs.command.progress import Progress
from jobs.command.reporting import JobReport, count, counted, said, seconds, size, table
from jobs.command.typed import check_topics
from jobs.store.clock import store_now_ms
from jobs.store.commit_file import was_set_aside
from jobs.store.folders import RunFolder, each_once, run_folders
from jobs.store.generations import open_store
from jobs.store.manifests import read_mark, whole_run
from jobs.store.paths import CHECKPOINTS, MANIFEST, ROLLED_BACK, RUNS, SEGMENTS, table_folder
from jobs.store.rows import Checkpoint, RunRow
from jobs.store.tables import Run, State, open_state
from jobs.topics import Key, matches
from udfs.storage import Root


@dataclass
class VacuumReport(JobReport):
    """What `vacuum` hands back."""

    store: str
    dry_run: bool
    deleted: dict[Key, list[str]] = field(default_factory=dict)
    bytes: dict[Key, int] = field(default_factory=dict)
    state_files: int = 0  # of the tables; reported by a dry run
    kept_before_reset: list[dict[str, Any]] = field(default_factory=list)  # generations that only their reset keeps
    without_history: list[Key] = field(default_factory=list)  # left alone: which generations they had is not known
    kept_rolled_back: list[dict[str, Any]] = field(default_factory=list)  # the same: only that they reach further
    kept_unknown: list[dict[str, Any]] = field(default_factory=list)  # the same: no run that is known made them

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": "vacuum",
            "exit_code": self.exit_code,
            "store": self.store,
            "dry_run": self.dry_run,
            "partitions": [
                {"topic": key[0], "partition": key[1], "bytes": self.bytes[key], "files": self.deleted[key]}
                for key in sorted(self.deleted)
            ],
            "bytes": sum(self.bytes.values()),
            "files": sum(map(len, self.deleted.values())),
            "state_files": self.state_files if self.dry_run else None,
            "kept_before_reset": self.kept_before_reset,
            "kept_rolled_back": self.kept_rolled_back,
            "kept_unknown": self.kept_unknown,
            "notes": self.notes,
            "seconds": self.seconds_json().get("total", 0.0),
        }

    def to_text(self) -> str:
        """For people."""
        rows = [(f"{k[0]}-{k[1]}", count(len(v)), size(self.bytes[k])) for k, v in sorted(self.deleted.items())]
        lines = [table(("partition", "files", "bytes"), rows, left=(0,)), ""] if rows else []
        for kept, why in (
            (self.kept_before_reset, "a --reset came after it, and it may be the only copy of its records"),
            (self.kept_rolled_back, "it was rolled back, and reaches further than the current one"),
            (self.kept_unknown, "no run in the tables made it, and it has offsets that none of theirs has"),
        ):
            lines += [
                f"kept: {g['topic']}-{g['partition']}: generation {g['generation']}, {size(g['bytes'])}: {why}; "
                f"--before-reset '{g['topic']}' gives it up"
                for g in kept
            ]
        lines += said("note", self.notes)
        verb = "would be deleted" if self.dry_run else "deleted"
        total, took = sum(map(len, self.deleted.values())), seconds(self.seconds.get("total", 0.0))
        lines.append(f"{counted(total, 'file')}, {size(sum(self.bytes.values()))} {verb} in {self.store} in {took}")
        return "\n".join(lines)


def run(options: VacuumOptions, progress: Progress) -> VacuumReport:
    """Delete, or with `dry_run` list, what no live generation needs."""
    began = time.monotonic()
    noted: list[str] = []
    store = open_store(options.store, noted)
    state = open_state(options.store)
    for uri in sorted({row.archive_uri for row in state.checkpoints().values()}):
        check_apart(Place("the store", store.uri), Place("the archive", uri))
    report = VacuumReport(store.uri, options.dry_run)
    with contextlib.nullcontext() if options.dry_run else state.lock():  # one vacuum at a time, on a disk
        wall_ms = time.time_ns() // 1_000_000
        now_ms = wall_ms if options.dry_run else store_now_ms(store)
        ahead_hours = (wall_ms - now_ms) // 3_600_000
        if ahead_hours > 0:
            report.notes.append(
                f"this machine's clock is {counted(ahead_hours, 'hour')} ahead of the store's; ages are by the store's"
            )
        young_ms = now_ms - options.grace_hours * 3_600_000
        folders, kept, notes = _chosen(state, young_ms, options, report)
        report.notes += noted + notes
        report.notes += [
            f"{topic}-{partition}: not all of its generations are in the tables {RUNS} and {SEGMENTS}; left alone"
            for topic, partition in report.without_history
        ]
        progress.start("vacuum", len(folders), "folder")
        for folder in sorted(folders, key=lambda folder: -folder.generation):
            _clean(store, folder, kept, young_ms, report)
            progress.advance()
        if options.topics is None:
            report.state_files = state.vacuum_state(dry_run=options.dry_run, ahead_hours=max(ahead_hours, 0))
    report.seconds["total"] = round(time.monotonic() - began, 3)
    return report


def _chosen(
    state: State, young_ms: float, options: VacuumOptions, report: VacuumReport
) -> tuple[list[RunFolder], _Kept, list[str]]:
    """The folders, what stays of them, and notes. Whatever goes is said in the table of checkpoints, right behind the
    version by which it was chosen, and after which the folders were listed: so a run that wrote it and has not
    committed yet cannot do so any more, and what one that has did is seen here.
    """
    while True:
        seen = state.version()
        notes: list[str] = []
        there = each_once(state.root, run_folders(state.root, notes), notes)
        known = {folder.key[0] for folder in there} | {topic for topic, _ in state.checkpoints()}
        check_topics(options.topics, known, state.root.uri)
        folders = [folder for folder in there if matches(options.topics, folder.key[0])]
        report.kept_before_reset = []
        report.kept_rolled_back = []
        report.kept_unknown = []
        kept = _kept(state, folders, young_ms, options, report)
        doomed = [folder.path for folder in folders if _goes(folder, kept, young_ms)]
        if options.dry_run or not doomed or state.mark(doomed, seen):
            return folders, kept, notes


@dataclass(frozen=True)
class _Kept:
    runs: frozenset[Run]  # run folders of live generations: all their side files are needed
    paths: frozenset[str]  # .log files that live generations name, wherever they lie


def _kept(
    state: State, folders: Sequence[RunFolder], young_ms: float, options: VacuumOptions, report: VacuumReport
) -> _Kept:
    """Current generations, those that were replaced less than the grace ago, and those before a reset. What is current
    is in the table that decides; where the history is lost, nothing older is known, and all of it stays.
    """
    current, manifests = state.current()
    decided = {(key, row.generation, row.run_id) for key, row in current.items()}
    live = set(decided)
    newest = {(f.key, f.generation, f.run_id): f.newest_ms for f in folders}
    before_resets: set[Run] = set()
    # A commit that was set aside may have been said to be made, and damaged later
    if was_set_aside(state.root, f"{table_folder(CHECKPOINTS)}/_delta_log"):
        live |= set(_above(folders, current))
    report.without_history = []
    chains = state.histories()
    for key, chain in chains.items():
        if not chain:
            report.without_history.append(key)
            live |= {run for run in newest if run[0] == key}
        live |= set(_replaced_lately(key, chain, newest, young_ms))
        if not _is_given_up(key, options):
            before_resets |= set(_before_resets(key, chain, newest))
    before_resets = (before_resets - live) & newest.keys()
    spared = {(f.key, f.generation, f.run_id) for f in folders if f.newest_ms > young_ms or not f.whole}
    live |= set(_with_unknown_above(folders, spared, chains))
    further = set(_further(state.root, folders, current, options)) - live - before_resets - spared
    unknown = set(_unknown(state.root, folders, current, chains, options)) - live - before_resets - spared
    needed = live | before_resets | further | unknown
    rows = state.segments_of(needed | spared)
    for key in {run[0] for run in (needed & newest.keys()) - decided - rows.keys()}:
        report.without_history.append(key)  # nor a manifest: an older version made it, or it is damaged
        live |= {run for run in newest if run[0] == key}
    for said_kept, runs in (
        (report.kept_before_reset, before_resets), (report.kept_rolled_back, further), (report.kept_unknown, unknown)
    ):  # fmt: skip
        for run in sorted(runs):
            (topic, partition), generation, run_id = run
            said_kept.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "generation": generation,
                    "run_id": run_id,
                    "bytes": sum(row.size_bytes for row in rows.get(run, ()) if row.root == "store"),
                }
            )
    named = {row.path for manifest in manifests.values() for row in manifest if row.root == "store"}
    named |= {row.path for segments in rows.values() for row in segments if row.root == "store"}
    return _Kept(frozenset(needed | live), frozenset(named))


def _is_given_up(key: Key, options: VacuumOptions) -> bool:
    """What only --before-reset gives up."""
    return options.before_reset is not None and matches(options.before_reset, key[0])


def _above(folders: Iterable[RunFolder], current: Mapping[Key, Checkpoint]) -> Iterator[Run]:
    """Generations that are complete, and newer than the current one."""
    for folder in folders:
        now = current.get(folder.key)
        if MANIFEST in {info.base_name for info in folder.files} and (
            now is None or folder.generation > now.generation
        ):
            yield folder.key, folder.generation, folder.run_id


def _before_resets(key: Key, chain: Sequence[RunRow], folders: Iterable[Run]) -> Iterator[Run]:
    """The last generation before each reset. Where a run of an older version does not name it: all of that number."""
    for row in chain:
        if row.began_anew and row.parent_run_id is not None:
            yield key, row.generation_before, row.parent_run_id
        elif row.began_anew:
            yield from (f for f in folders if f[:2] == (key, row.generation_before))


def _with_unknown_above(
    folders: Iterable[RunFolder], spared: Iterable[Run], chains: Mapping[Key, Sequence[RunRow]]
) -> Iterator[Run]:
    """Generations that were rolled back, below one that stays for a while and that no run of the tables made."""
    highest: dict[Key, int] = {}
    for key, generation, run_id in spared:
        if all(run.run_id != run_id for run in chains.get(key, ())):
            highest[key] = max(generation, highest.get(key, 0))
    for folder in folders:
        rolled_back = {MANIFEST, ROLLED_BACK} <= {info.base_name for info in folder.files}
        if rolled_back and folder.generation < highest.get(folder.key, 0):
            yield folder.key, folder.generation, folder.run_id


def _further(
    store: Root, folders: Iterable[RunFolder], current: Mapping[Key, Checkpoint], options: VacuumOptions
) -> Iterator[Run]:
    """Generations that were rolled back, and cover what the current one does not."""
    for folder in folders:
        if {MANIFEST, ROLLED_BACK} <= {info.base_name for info in folder.files}:
            mark, now = read_mark(store, folder.path), current.get(folder.key)
            reaches = mark is not None and (now is None or mark.next_offset > now.next_offset)
            if reaches and not _is_given_up(folder.key, options):
                yield folder.key, folder.generation, folder.run_id


def _unknown(
    store: Root,
    folders: Iterable[RunFolder],
    current: Mapping[Key, Checkpoint],
    chains: Mapping[Key, Sequence[RunRow]],
    options: VacuumOptions,
) -> Iterator[Run]:
    """First generations that a run left which died, or which the tables knew before they were lost, and which cover
    what those of the tables do not. (Where the tables knew a second one, compact does not begin anew without them.)
    """
    for folder in folders:
        now, chain = current.get(folder.key), chains.get(folder.key, ())
        known = {run.run_id for run in chain} | ({now.run_id} if now else set())
        names = {info.base_name for info in folder.files}
        if folder.generation > 1 or folder.run_id in known or MANIFEST not in names or ROLLED_BACK in names:
            continue
        if _is_given_up(folder.key, options):
            continue
        made = whole_run(store, folder.path)
        if made is None:
            continue
        first = next((run for run in chain if run.generation_after == 1), None)
        before = first is not None and made.log_start_offset < first.log_start_offset
        if now is None or before or made.next_offset > now.next_offset:
            yield folder.key, folder.generation, folder.run_id


def _replaced_lately(key: Key, chain: Sequence[RunRow], newest: Mapping[Run, float], young_ms: float) -> Iterator[Run]:
    """A generation was replaced when the next one's files were complete; those whose folder is gone: long ago."""
    for after, before in itertools.pairwise(chain):
        if newest.get((key, after.generation_after, after.run_id), 0.0) > young_ms:
            yield key, before.generation_after, before.run_id


def _is_needless(folder: RunFolder, kept: _Kept, young_ms: float) -> bool:
    is_live = (folder.key, folder.generation, folder.run_id) in kept.runs
    has_age = folder.files or folder.made_ms  # in a bucket an empty one has none, and is not there but for its name
    return not is_live and bool(has_age) and folder.newest_ms <= young_ms and folder.whole


def _goes(folder: RunFolder, kept: _Kept, young_ms: float) -> bool:
    """Whether something of it goes; also of an empty one, into which a run may be about to write: so it is said too."""
    return bool(_gone(folder, kept, young_ms)) or (not folder.files and _is_needless(folder, kept, young_ms))


def _gone(folder: RunFolder, kept: _Kept, young_ms: float) -> list[pafs.FileInfo]:
    """The files of a run's folder that nothing needs."""
    if not _is_needless(folder, kept, young_ms):
        return []
    return [info for info in folder.files if f"{folder.path}/{info.base_name}" not in kept.paths]


def _clean(store: Root, folder: RunFolder, kept: _Kept, young_ms: float, report: VacuumReport) -> None:
    gone = _gone(folder, kept, young_ms)
    if not report.dry_run:
        for info in gone:
            with contextlib.suppress(FileNotFoundError):  # another vacuum took it, in a bucket; or the answer was lost
                store.filesystem.delete_file(store.full(f"{folder.path}/{info.base_name}"))
        if len(gone) == len(folder.files) and _goes(folder, kept, young_ms):  # no run can commit what it puts there
            with contextlib.suppress(FileNotFoundError):
                store.filesystem.delete_dir(store.full(folder.path))
    if gone:
        report.deleted.setdefault(folder.key, []).extend(f"{folder.path}/{info.base_name}" for info in gone)
        report.bytes[folder.key] = report.bytes.get(folder.key, 0) + sum(info.size for info in gone)
