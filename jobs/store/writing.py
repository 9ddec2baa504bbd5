"""Changes of a store's tables: `commit_wave`, the only commit, and the writes before and after it.

A wave is appended to `cleaner_runs`, then one commit of `compaction_checkpoints` is the switch, by compare-and-swap
(`jobs.store.table`): read the head; check that our partitions are where the run planned on; check that the files of the
wave are there; put version n + 1. A run that comes second reads again, and commits if its partitions are as they were.

`vacuum` and a run need no lock between them: vacuum commits a version that names the folders to delete. A run checks,
on the head before its commit, that no version since its start names a folder of the run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from lastkey.jobs.errors import DAMAGED_TABLE, ConflictError
from lastkey.jobs.store import history, rows, table
from lastkey.jobs.store.commit_file import MARK
from lastkey.jobs.store.folders import list_run_folders
from lastkey.jobs.store.manifests import write_committed, write_committed_files
from lastkey.jobs.store.paths import CHECKPOINTS, RUNS, STATES, TABLES, table_folder
from lastkey.jobs.store.rows import Checkpoint, Commit, JobRow, PartitionState
from lastkey.jobs.store.table import Change, Version
from lastkey.jobs.store.tables import KEY_COLUMNS, State
from lastkey.jobs.topics import Key
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.udfs.steps import step

_TABLE_HOURS: Final = 720  # no table keeps files longer
_MOST_FILES: Final = 64  # limit for a history; more files are joined


def commit_wave(
    state: State, commits: Sequence[Commit], verify_files: Callable[[], None] | None = None, *, look_back: bool = False
) -> None:
    """Make a wave's generations current, all or none. Raise ConflictError if another run moved one of its
    partitions, or if a vacuum has named one of its folders since this run began; look_back: at any time, for a
    rollback brings back old files.

    `verify_files` lists the sizes of the wave's files once more, and raises if one is not as written.
    """
    if not commits:
        return
    step("manifests written")
    new = rows.runs_to_arrow(commit.run for commit in commits)
    state.swap(RUNS, new.schema, partial(_appended, state, new))
    step("history appended")
    _switch(state, commits, verify_files, look_back)  # before this the new files are not visible
    with contextlib.suppress(OSError):  # the commit is made; the next one writes the missing files
        write_committed(state.root, [commit.folder for commit in commits])


def append_job_rows(state: State, new: Sequence[JobRow]) -> None:
    """Append rows about whole runs to `cleaner_runs`."""
    added = rows.runs_to_arrow(new)
    # Not State.swap, whose probe of the place costs more than the rows: their loss would do no harm
    table.swap(state.root, RUNS, added.schema, partial(_appended, state, added))


def _appended(state: State, new: pa.Table, version: Version) -> Change:
    """Return the change that appends rows to `cleaner_runs`. Once it has many files, join them and drop old rows."""
    files = version.files()
    if len(files) < _MOST_FILES:
        return Change(added=table.in_files(new))
    found = table.rows(version, new.schema).drop_columns([table.FILE])
    needed = history.needed(found, state.checkpoints(), partial(list_run_folders, state.root), state.now_ms())
    return Change(added=[pa.concat_tables([needed, new])], removed=files)


def _switch(state: State, commits: Sequence[Commit], verify_files: Callable[[], None] | None, look_back: bool) -> None:
    """Put the checkpoints of generations whose files no vacuum has named."""
    new = rows.to_checkpoints(commits)

    def plan(version: Version) -> Change | None:
        now = rows.from_checkpoints(state.rows_at(version, {c.key for c in commits}))
        at = {key: (row.generation, row.run_id) for key, row in now.items()}
        if all(at.get(c.key) == (c.checkpoint.generation, c.checkpoint.run_id) for c in commits):
            return None
        before = {c.key: (c.run.generation_before, c.run.parent_run_id) for c in commits}
        if moved := [c for c in commits if at.get(c.key, (0, c.run.parent_run_id)) != before[c.key]]:
            raise _conflict(state, moved, now)
        began = version.number if state.began is None else state.began
        _refuse_vacuumed(state, version, commits, table.before_record(version) if look_back else began)
        if verify_files is not None:
            verify_files()
        # for the replaced generations: once they are replaced, a vacuum may delete them
        write_committed_files(state.root, [row.own_folder for row in now.values()])
        return table.replaced(version, KEY_COLUMNS, new, state.held[CHECKPOINTS])

    state.swap(CHECKPOINTS, rows.checkpoint_schema(), plan)


def _refuse_vacuumed(state: State, version: Version, commits: Sequence[Commit], since: int) -> None:
    ours = {folder for c in commits for folder in (c.folder, c.checkpoint.folder)}
    for mark in table.announced_deletions(version, since):
        if gone := ours.intersection(json.loads(mark)):
            raise ConflictError(
                path=f"{state.root.uri}/{min(gone)}",
                expected="the files that this run wrote",
                found="a vacuum that deleted them",
            )


def _conflict(state: State, moved: Sequence[Commit], now: Mapping[Key, Checkpoint]) -> ConflictError:
    first = moved[0].run
    current = now.get(moved[0].key)
    return ConflictError(
        path=f"{state.root.uri}: {first.topic}-{first.partition}",
        expected=f"generation {first.generation_before} (run {first.parent_run_id})",
        found=f"generation {current.generation} (run {current.run_id})" if current else "no generation",
        partitions=[list(c.key) for c in moved],
    )


def rebuild(state: State, decided: Sequence[Commit], commits: Collection[Commit]) -> None:
    """Make the tables of a store that has lost them. Raise ConflictError if another process makes them.

    decided: the current generations; commits: all.
    """

    def plan(new_rows: pa.Table, version: Version) -> Change:
        if version.number >= 0:
            raise ConflictError(
                path=f"{state.root.uri}/{version.folder}", expected="no table", found=f"version {version.number}"
            )
        return Change(added=table.in_files(new_rows))

    runs = rows.runs_to_arrow(commit.run for commit in commits)
    for name, made in ((RUNS, runs), (CHECKPOINTS, rows.to_checkpoints(decided))):
        state.swap(name, made.schema, partial(plan, made))
    write_states(state)


def set_states(state: State, states: Sequence[PartitionState]) -> None:
    """Write the states of partitions, except those for which another run committed meanwhile: its state is newer."""
    state_by_key = {(row.topic, row.partition): row for row in states}

    def plan(version: Version) -> Change | None:
        found = state.rows_at(version, state_by_key.keys())
        now = {(row["topic"], row["partition"]): row for row in found.drop_columns([table.FILE]).to_pylist()}
        new = []
        for key, row in state_by_key.items():
            old = now.get(key) or {"topic": row.topic, "partition": row.partition, "generation": 0}
            if old["generation"] == max(row.generation, 0):
                new.append(old | {"partition_state": vars(row)})
        if not new:
            return None
        changed = pa.Table.from_pylist(new, schema=rows.checkpoint_schema())
        return table.replaced(version, KEY_COLUMNS, changed, state.held[CHECKPOINTS])

    if state_by_key:
        state.swap(CHECKPOINTS, rows.checkpoint_schema(), plan)
    step("states set")


def write_states(state: State) -> None:
    """Bring `cleaner_state` up to date with `compaction_checkpoints`: it is a copy, for people who query it."""
    now = rows.to_arrow(PartitionState, state.states().values())

    def plan(version: Version) -> Change | None:
        there = table.rows(version, now.schema, state.held[STATES]).drop_columns([table.FILE])
        order = [(name, "ascending") for name in KEY_COLUMNS]
        if there.sort_by(order).equals(now.sort_by(order)):
            return None
        return Change(added=table.in_files(now), removed=version.files())

    state.swap(STATES, now.schema, plan)


def announce_deletions(state: State, folders: Collection[str], seen: int) -> bool:
    """Announce the deletion of these folders of runs, which prevents a commit by their runs. Return False, without an
    announcement, if version `seen`, by which they were chosen, is no longer the head.
    """
    metadata = {MARK: json.dumps(sorted(folders))}
    as_seen = True

    def plan(version: Version) -> Change | None:
        nonlocal as_seen
        as_seen = version.number == seen
        return Change(added=(), metadata=metadata) if as_seen else None

    state.swap(CHECKPOINTS, rows.checkpoint_schema(), plan)
    if as_seen:
        step("deletions announced")
    return as_seen


def vacuum_state(state: State, *, dry_run: bool = False, ahead_hours: int = 0) -> int:
    """Delete the files of the tables that no version needs any more (dry_run: only count them), and return their
    number. ahead_hours: how far this machine's clock, which delta-rs asks, is ahead of the store's.
    """
    n_deleted = 0
    hours = _TABLE_HOURS + ahead_hours if ahead_hours else None  # None: as the table defines
    for name in filter(state.table_exists, TABLES):
        version = state.head(name)
        if version.delta is not None:
            try:
                old = version.delta.vacuum(hours)  # dry run: a real one would add commits of its own
            except DeltaError as error:
                if not state.root.is_local:
                    raise
                path = f"{state.root.uri}/{table_folder(name)}"
                raise DAMAGED_TABLE(path=path, expected="Delta's log", found=in_one_line(str(error))) from error
            n_deleted += len(old)
            for path in [] if dry_run else old:
                with contextlib.suppress(FileNotFoundError):
                    state.root.filesystem.delete_file(state.root.full(f"{table_folder(name)}/{path}"))
    return n_deleted
