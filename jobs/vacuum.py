"""`vacuum --store STORE`: deletes files below STORE/segments that no generation needs any more, after a grace period.

Runs may work meanwhile. The folders of runs with a lease are kept; the table of checkpoints names the folders to delete
first, and no run commits a folder that was named since it began. `_kept` follows the rules in STORE.md ("Generations
and vacuum"). If a folder is kept, so are the files that its generation names in other folders. In a folder to delete,
`committed` is deleted first and the manifest second: after a kill of vacuum, the rest cannot be mistaken for a
generation.

The clock is the wall clock, or the store's if that is behind (`_store_now_ms`): --now never decides what is deleted.
At the end Delta's own VACUUM cleans the state tables.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from pyarrow import fs as pafs

from lastkey.jobs.archive.places import Place, check_apart, shared_mounts
from lastkey.jobs.command.parse import check_globs, check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import (
    TO_THE_MINUTE,
    JobReport,
    TextTable,
    counted,
    moment,
    partition_name,
    size,
    with_io_counts,
)
from lastkey.jobs.command.store_options import VacuumOptions
from lastkey.jobs.errors import UsageError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.store import writing
from lastkey.jobs.store.coverage import unread
from lastkey.jobs.store.erasures import brought_back
from lastkey.jobs.store.folders import Run, RunFolder, run_folders
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.keep import kept_by
from lastkey.jobs.store.leases import list_leases
from lastkey.jobs.store.manifests import read_manifests, write_committed_files
from lastkey.jobs.store.paths import AUDIT_KEY, COMMITTED, MANIFEST, is_audit_table, table_folder
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import EVERY_TOPIC, Key
from lastkey.logformat import names
from lastkey.logformat.listing import Segment
from lastkey.udfs.problem import timed
from lastkey.udfs.ranges import Ranges
from lastkey.udfs.segments import kept_for_yield
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, delete_folder, exists

UnusedFiles = list[pafs.FileInfo] | None  # files of a folder that go; None: it stays as it is


class GenerationRow(TypedDict):
    """Generation of a partition in the report."""

    topic: str
    partition: int
    generation: int
    run_id: str


class OnlyCopy(GenerationRow):
    """Generation with offsets that no current one's chain has read: first and last of each range."""

    bytes: int
    offsets: list[list[int]]


class JudgedGeneration(GenerationRow):
    """Committed generation, and whether it is kept or deleted, and why."""

    started_ms: int | None
    because: list[str]
    selected: bool  # to be deleted


class DeletedFiles(TypedDict):
    """Files of a partition that go."""

    topic: str
    partition: int
    bytes: int
    files: list[str]


@dataclass
class VacuumReport(JobReport):
    """Report of `vacuum`."""

    job = "vacuum"
    done = "{n_files:file}, {n_bytes:size} {dry_run:would}deleted in {store}"
    facts = "store dry_run partitions bytes=n_bytes files=n_files state_files=_state_files kept audits generations"
    text_tables = (TextTable("partitions", "partition n_files:files bytes", {"n_files": lambda p: len(p["files"])}),)

    store: str
    dry_run: bool
    deleted: dict[Key, list[str]] = field(default_factory=dict)
    bytes: dict[Key, int] = field(default_factory=dict)
    state_files: int = 0  # files of the tables; a dry run reports them
    audits: list[str] = field(default_factory=list)  # tables of audits, which --erased deletes
    kept: list[OnlyCopy] = field(default_factory=list)
    generations: list[JudgedGeneration] = field(default_factory=list)

    @property
    def partitions(self) -> list[DeletedFiles]:
        """Files of each partition that go."""
        return [
            {"topic": key[0], "partition": key[1], "bytes": self.bytes[key], "files": self.deleted[key]}
            for key in sorted(self.deleted)
        ]

    @property
    def n_files(self) -> int:
        """Number of files that go."""
        return sum(map(len, self.deleted.values()))

    @property
    def n_bytes(self) -> int:
        """Bytes of the files that go."""
        return sum(self.bytes.values())

    @property
    def _state_files(self) -> int | None:
        return self.state_files if self.dry_run else None

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        return super().figures() | {"deleted_files": self.n_files, "deleted_bytes": self.n_bytes}

    def _lines(self) -> Iterable[str]:
        for g in self.kept:
            yield (
                f"kept: {partition_name(g)}: generation {g['generation']}, {size(g['bytes'])}: the current "
                f"generation's chain never read its offsets {', '.join(f'{a} to {b}' for a, b in g['offsets'])}; "
                f"--give-up '{g['topic']}' lets vacuum delete it"
            )
        for row in self.generations if self.dry_run or self.show_all else ():
            made = f" of {moment(row['started_ms'], TO_THE_MINUTE)}" if row["started_ms"] is not None else ""
            why = ", ".join(row["because"]) or "nothing keeps it"
            of = f"{partition_name(row)}: generation {row['generation']}{made}"
            yield f"{'delete' if row['selected'] else 'keep'}: {of}: {why}"
        if self.audits:
            yield f"{'would be deleted' if self.dry_run else 'deleted'}: {', '.join(self.audits)}"


@with_io_counts
def run(options: VacuumOptions, progress: Progress) -> VacuumReport:
    """Delete, or with `dry_run` list, the files that no live generation needs."""
    return recorded("vacuum", options.store, lambda: _run(options, progress), dry_run=options.dry_run)


def _run(options: VacuumOptions, progress: Progress) -> VacuumReport:
    state = open_store(options.store)
    store = state.root
    for uri in sorted({row.archive_uri for row in state.checkpoints().values()}):
        check_apart(Place("the store", store.uri), Place("the archive", uri))
    if options.erased and not any(row.erased for row in state.checkpoints().values()):
        raise UsageError(message=f"--erased: expected an erasure in {store.uri}, found none: erase makes one")
    report = VacuumReport(store.uri, options.dry_run)
    with contextlib.nullcontext() if options.dry_run else state.lock():  # one vacuum at a time, on a disk
        of_store_ms = None if options.dry_run else _store_now_ms(store)
        # not earlier: otherwise a correct clock appears some ms behind that of the store
        wall_ms = time.time_ns() // 1_000_000
        now_ms = wall_ms if of_store_ms is None else min(wall_ms, of_store_ms)  # deleted files are old by both
        ahead_hours = (wall_ms - now_ms) // 3_600_000
        live_ms = wall_ms if of_store_ms is None else of_store_ms
        chosen = _chosen(state, now_ms - options.grace_hours * 3_600_000, live_ms, options, report)
        if ahead_hours > 0:
            report.notes.append(
                f"this machine's clock is {counted(ahead_hours, 'hour')} ahead of the store's; ages are by the store's"
            )
        progress.start("vacuum", len(chosen), "folder")
        for folder, gone in sorted(chosen, key=lambda each: -each[0].generation):
            with timed(folder.path):
                _clean(store, folder, gone, report)
            progress.advance()
        if options.erased:
            report.audits = _delete_audits(store, dry_run=options.dry_run)
        if options.topics == EVERY_TOPIC:
            report.state_files = writing.vacuum_state(state, dry_run=options.dry_run, ahead_hours=ahead_hours)
    return report


def _delete_audits(store: Root, *, dry_run: bool) -> list[str]:
    """Delete the tables of audits, with all their versions, and the key of their hashes. Audits can rebuild them.
    Return the names of the deleted tables.
    """
    listed = store.filesystem.get_file_info(pafs.FileSelector(store.full("state"), allow_not_found=True))
    tables = (i.base_name for i in listed if i.type == pafs.FileType.Directory and is_audit_table(i.base_name))
    folders = sorted(map(table_folder, tables))
    key = [AUDIT_KEY] if exists(store, AUDIT_KEY) else []
    if not dry_run:
        for folder in folders:
            delete_folder(store, folder)
        for path in key:
            store.filesystem.delete_file(store.full(path))
    return [*folders, *key]


def _store_now_ms(root: Root) -> int:
    """Return the time that a new file gets in the store: an empty one below `state/`, which is deleted.

    A bucket or a network share gives files its server's time, so a clock of ours that is ahead would take young files
    for old.
    """
    path = root.full(f"state/.probe-{uuid.uuid4().hex}")
    root.filesystem.open_output_stream(path, compression=None).close()
    try:
        return int(root.filesystem.get_file_info(path).mtime_ns or 0) // 1_000_000
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was deleted, and the answer was lost
            root.filesystem.delete_file(path)


def _chosen(
    state: State, young_ms: float, live_ms: int, options: VacuumOptions, report: VacuumReport
) -> list[tuple[RunFolder, UnusedFiles]]:
    """Return the folders with the files that go. The folders are listed after reading a version of the table of
    checkpoints, and the next version announces the folders to delete. So an uncommitted run that wrote one of them can
    no longer commit, and a committed run is visible here.
    """
    while True:
        seen = state.version()
        report.notes, report.generations = [], []
        run_folders_left = _not_shared(state.root, list(run_folders(state.root, report.notes)), report)
        step("folders listed")
        run_folders_left = _spared(state.root, run_folders_left, live_ms, report)
        known_topics = {folder.key[0] for folder in run_folders_left} | {topic for topic, _ in state.checkpoints()}
        check_topics(options.topics, known_topics, state.root.uri)
        if options.give_up is not None:
            check_globs("--give-up", options.give_up.include, known_topics, state.root.uri)
        folders = [folder for folder in run_folders_left if options.topics.takes(folder.key[0])]
        kept = _kept(state, folders, young_ms, options, report)
        chosen = [(folder, _unused_files(folder, *kept)) for folder in folders]
        selected = {folder.run for folder, gone in chosen if gone is not None}
        for row in report.generations:
            row["selected"] = ((row["topic"], row["partition"]), row["generation"], row["run_id"]) in selected
        # Empty folders too: a run may be about to write into one
        doomed = [folder.path for folder, gone in chosen if gone is not None]
        step("folders chosen")
        if options.dry_run or not doomed or writing.announce_deletions(state, doomed, seen):
            return chosen


def _not_shared(store: Root, folders: list[RunFolder], report: VacuumReport) -> list[RunFolder]:
    """Return the folders, with `whole` off for those that a mount in the store shows, and another mount too: the files
    may be another store's.
    """
    mounts = shared_mounts(store.base) if store.is_local else []
    report.notes += [f"{mount}: mounted here, and its files have another name; left alone" for mount in mounts]
    shared = {f.path for f in folders for m in mounts if f"{f.path}/".startswith(f"{m}/") or m.startswith(f"{f.path}/")}
    return [replace(folder, whole=folder.whole and folder.path not in shared) for folder in folders]


def _spared(store: Root, folders: list[RunFolder], now_ms: int, report: VacuumReport) -> list[RunFolder]:
    """Return the folders, with `whole` off for those of runs at work. A run takes its lease before it makes a
    folder, so each listed folder of a run that has not ended has one.
    """
    leases = [lease for lease in list_leases(store, report.notes) if lease.is_valid(now_ms * 1_000_000)]
    at_work = {lease.run_id: lease.label() for lease in leases}
    theirs = {folder.run: label for folder in folders if (label := at_work.get(folder.run_id.partition(".")[0]))}
    report.notes += [f"{label} is at work; its files are left alone" for label in sorted(set(theirs.values()))]
    return [replace(folder, whole=False) if folder.run in theirs else folder for folder in folders]


def _kept(
    state: State, folders: Sequence[RunFolder], young_ms: float, options: VacuumOptions, report: VacuumReport
) -> tuple[set[Run], set[str]]:
    """Return the folders that stay whole, and the files that they name, in any folder. Folders of current generations
    stay, and of those that were replaced less than the grace period ago. Folders with offsets that no current
    generation's chain has read stay too, and so do young folders and folders with foreign entries. The table of
    checkpoints shows which generations are current.
    """
    current = state.checkpoints()
    decided = {(key, row.generation, row.run_id): row for key, row in current.items()}
    if not options.dry_run:  # write missing files `committed` before the table can be lost
        write_committed_files(state.root, [f.path for f in folders if f.run in decided and COMMITTED not in f.names])
    committed = sorted((f for f in folders if f.run in decided or COMMITTED in f.names), key=lambda folder: folder.run)
    above = {f.run for f in committed if f.key in current and f.generation > current[f.key].generation}
    committed_commits = read_manifests(state.root, [f.path for f in committed if MANIFEST in f.names])
    times = {folder: each.run.started_ms for folder, each in committed_commits.items()}
    doomed = _erased(folders, committed_commits, current) if options.erased else set()
    by_rule = {run: rule for run, rule in _by_rule(committed, times, options).items() if run not in doomed}
    lately = set(_replaced_lately(committed, young_ms)) - doomed
    live = decided.keys() | lately | above | by_rule.keys()
    young = {f.run for f in folders if f.newest_ms > young_ms} - doomed
    foreign = {f.run for f in folders if not f.whole}
    stay = live | young | foreign
    # The manifest of a kept folder is relevant only if the folder has no other file: that of a rollback
    asked = [f for f in folders if f.run not in stay or names.LEADER_EPOCH_CHECKPOINT not in f.names]
    rest = [f.path for f in asked if MANIFEST in f.names and f.path not in committed_commits]
    commits = committed_commits | read_manifests(state.root, rest)
    never_read, unreadable = _never_read([f for f in asked if f.run not in stay], commits, current, options)
    needed, stay = live | never_read.keys(), stay | never_read.keys()
    backs = decided | {f.run: commits[f.path].checkpoint for f in asked if f.path in commits}
    needed |= {(r[0], row.back_to, row.back_to_run_id or "") for r, row in backs.items() if r in stay and row.back_to}
    known = {f.run: commits[f.path].segments for f in folders if f.path in commits and f.run not in decided}
    rows = {run: known[run] for run in (needed | stay) & known.keys()} | state.read_segments(
        (needed | stay) - known.keys()
    )
    path_by_run = {folder.run: folder.path for folder in folders}
    unreadable |= {run[0]: path_by_run[run] for run in (needed & path_by_run.keys()) - rows.keys()}
    report.notes += [
        f"{folder}: the files of this generation are not known: its {MANIFEST} cannot be read; {topic}-{partition} is "
        "left alone"
        for (topic, partition), folder in sorted(unreadable.items())
    ]
    report.kept = [_line(run, ranges, rows[run]) for run, ranges in sorted(never_read.items()) if run in rows]
    runs = needed | stay | {run for run in path_by_run if run[0] in unreadable}
    why = (
        ("it is current", decided.keys()),
        ("it is above the current one, and was committed", above),
        (f"replaced less than {options.grace_hours:g} hours ago", lately),
        ("its files are younger than the grace", young),
        ("its folder is not the store's alone, or a run works there", foreign),
        ("it holds offsets that the current one's chain never read", never_read.keys()),
        ("another generation that stays uses its files", needed - live - never_read.keys()),
        ("a manifest of its partition cannot be read", {run for run in path_by_run if run[0] in unreadable}),
    )
    report.generations = [
        {
            **_generation(f.run),
            "started_ms": times.get(f.path),
            "because": [*([by_rule[f.run]] if f.run in by_rule else []), *(text for text, of in why if f.run in of)],
            "selected": False,
        }
        for f in committed
    ]
    named = [row for segments in rows.values() for row in segments if row.root == "store"]
    return runs, {path for row in named for path in (row.path, *kept_for_yield(row))}


def _never_read(
    folders: Iterable[RunFolder],
    commits: Mapping[str, Commit],
    current: Mapping[Key, Checkpoint],
    options: VacuumOptions,
) -> tuple[dict[Run, Ranges], dict[Key, str]]:
    """Return the offsets of generations that no current generation's chain has read, unless the user gives them up.
    Return also the partitions with a committed folder whose manifest cannot be read.
    """
    never_read: dict[Run, Ranges] = {}
    unreadable: dict[Key, str] = {}
    for folder in folders:
        commit, was_committed = commits.get(folder.path), COMMITTED in folder.names
        if options.give_up is not None and options.give_up.takes(folder.key[0]):
            continue
        if commit is None and was_committed:
            unreadable[folder.key] = folder.path
        elif commit and (ranges := unread(commit, current.get(folder.key), committed=was_committed)):
            never_read[folder.run] = ranges
    return never_read, unreadable


def _erased(folders: Sequence[RunFolder], commits: Mapping[str, Commit], current: Mapping[Key, Checkpoint]) -> set[Run]:
    """Return the runs whose files may hold records that were erased since: generations from before, and dead runs."""
    out = set()
    for f in folders:
        row = current.get(f.key)
        if row is None or not row.erased or (f.generation, f.run_id) == (row.generation, row.run_id):
            continue
        commit = commits.get(f.path)
        if COMMITTED not in f.names or (commit and brought_back(commit.checkpoint, row)):
            out.add(f.run)
    return out


def _by_rule(committed: Sequence[RunFolder], times: Mapping[str, int], options: VacuumOptions) -> dict[Run, str]:
    """Return the generations that --keep keeps, each with its rule."""
    of_key: dict[Key, dict[int, RunFolder]] = {}
    for folder in committed:
        if folder.path in times:
            of_key.setdefault(folder.key, {})[folder.generation] = folder
    kept: dict[Run, str] = {}
    for folders in of_key.values():
        rules = kept_by(options.keep, {number: times[folder.path] for number, folder in folders.items()})
        kept |= {folders[number].run: rule for number, rule in rules.items()}
    return kept


def _generation(run: Run) -> GenerationRow:
    (topic, partition), generation, run_id = run
    return {"topic": topic, "partition": partition, "generation": generation, "run_id": run_id}


def _line(run: Run, ranges: Ranges, segments: Iterable[Segment]) -> OnlyCopy:
    return {
        **_generation(run),
        "bytes": sum(row.size_bytes for row in segments if row.root == "store"),
        "offsets": [[first, until - 1] for first, until in ranges],
    }


def _replaced_lately(committed: Sequence[RunFolder], young_ms: float) -> Iterator[Run]:
    """Yield generations whose successor is young or lacks the file `committed`. If the successor's folder is missing,
    the replacement was long ago. committed: by partition and number.
    """
    for before, after in itertools.pairwise(committed):
        is_young = after.newest_ms > young_ms or COMMITTED not in after.names
        if before.key == after.key and before.generation < after.generation and is_young:
            yield before.run


def _unused_files(folder: RunFolder, runs: set[Run], paths: set[str]) -> UnusedFiles:
    """Return the unneeded files of a run's folder; None: it stays as it is. An empty folder may be deleted too."""
    has_age = folder.files or folder.made_ms  # in a bucket an empty folder has no age, and is only a name
    if folder.run in runs or not has_age:
        return None
    unused = [info for info in folder.files if f"{folder.path}/{info.base_name}" not in paths]
    return unused if unused or not folder.files else None


def _is_deleted(store: Root, folder: RunFolder) -> bool:
    """Delete a folder as a whole: in a bucket a few requests, in place of three or more for each file. Return whether
    that was possible; if not, the error of a file has the reason, unless only the answer was lost.
    """
    try:
        delete_folder(store, folder.path)
    except OSError:  # another vacuum deleted it, or a run without a lease still writes there
        return False
    return True


def _delete(store: Root, folder: RunFolder, files: Iterable[str]) -> None:
    for name in files:
        with contextlib.suppress(FileNotFoundError):  # another vacuum deleted it, or the answer was lost
            store.filesystem.delete_file(store.full(f"{folder.path}/{name}"))


def _clean(store: Root, folder: RunFolder, unused: UnusedFiles, report: VacuumReport) -> None:
    if unused is not None and not report.dry_run:
        rest = {str(info.base_name) for info in unused}
        first = [name for name in (COMMITTED, MANIFEST) if name in rest]
        _delete(store, folder, first)
        # no run can commit files in a folder that is being deleted
        if len(unused) < len(folder.files) or not _is_deleted(store, folder):
            _delete(store, folder, rest.difference(first))
        step("folder deleted")
    if unused:
        report.deleted.setdefault(folder.key, []).extend(f"{folder.path}/{info.base_name}" for info in unused)
        report.bytes[folder.key] = report.bytes.get(folder.key, 0) + sum(info.size for info in unused)
