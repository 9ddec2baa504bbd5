"""`rollback --store STORE --generation N`: a new generation, above the highest, that uses the files of generation N.

  each partition above N: find generation N by the chain of parents; read the manifest in the folder of its files; check
  that all files that it names are there, in the archive too -> make a folder with a manifest alone -> one commit
  -> `committed`

It changes all partitions or none. If N is itself a rollback, the new generation goes back to the same one as N. The
next run reads the archive again from the end of generation N. Offsets that the archive does not hold any more are
reported: only another rollback, forward, makes them readable again. Vacuum keeps them until then (jobs.store.coverage).
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar

from lastkey.jobs.archive.listing import Archive, list_archive
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, TextTable
from lastkey.jobs.command.store_options import RollbackOptions
from lastkey.jobs.errors import NO_GENERATION, GenerationError, MissingPathError, UsageError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.store import manifests, writing
from lastkey.jobs.store.coverage import covered, shown
from lastkey.jobs.store.erasures import check_nothing_comes_back
from lastkey.jobs.store.generations import list_generations, make_rollback, nobody_has, open_store
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.topics import Key, select_topics
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.data_source.log_end import find_ends
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import timed
from lastkey.udfs.ranges import Ranges, without
from lastkey.udfs.storage import Root, absent, normal_uri, open_root


@dataclass(frozen=True)
class RolledBack:
    """Partition before and after. lost: first and last offset of each range that no job reads any more."""

    facts: ClassVar[str] = (
        "topic=after.topic partition=after.partition generation_before=before.generation run_id_before=before.run_id "
        "next_offset_before=before.next_offset generation=after.generation back_to=after.back_to run_id=after.run_id "
        "next_offset=after.next_offset lost"
    )
    before: Checkpoint
    after: Checkpoint
    lost: list[list[int]]


@dataclass
class RollbackReport(JobReport):
    """Report of `rollback`."""

    job = "rollback"
    done = "{partitions:partition} {dry_run:would}rolled back to generation {generation}"
    facts = "store generation dry_run partitions"
    text_tables = (
        TextTable(
            "partitions",
            "after.name:partition before.generation:generation_before after.generation:now "
            "after.back_to:generation_as before.next_offset:next_offset_before after.next_offset:next_offset",
        ),
    )

    store: str
    generation: int
    dry_run: bool
    partitions: list[RolledBack] = field(default_factory=list)
    run_id: str = ""

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring."""
        return super().figures() | {"committed_partitions": len(self.partitions)}


def run(options: RollbackOptions, progress: Progress) -> RollbackReport:
    """Make generation N current in every partition with a higher one, or with `dry_run` list these partitions."""
    return recorded("rollback", options.store, lambda: _run(options, progress), dry_run=options.dry_run)


def _run(options: RollbackOptions, progress: Progress) -> RollbackReport:
    state = open_store(options.store)
    store = state.root
    report = RollbackReport(store.uri, options.generation, options.dry_run)
    # On a disk the lock keeps vacuum out; in a bucket a vacuum's marks name the folders that it deletes
    with contextlib.nullcontext() if options.dry_run else state.lock():
        rows = state.checkpoints()
        check_topics(options.topics, (topic for topic, _ in rows), store.uri)
        current = select_topics(options.topics, rows)
        if not current:
            raise UsageError(message=f"{store.uri}: the store holds no generation")
        if all(row.generation < options.generation for row in current.values()):
            raise nobody_has(options.generation)
        above = {key: row for key, row in sorted(current.items()) if row.generation > options.generation}
        progress.start("rollback", len(above))
        commits, run_id, now_ms = [], uuid.uuid4().hex, time.time_ns() // 1_000_000
        report.run_id = run_id
        for key, row in above.items():
            with timed(names.partition_folder(*key)):
                old = _target(store, row, options.generation)
            if old.run.generation_after != (row.back_to or row.generation):
                check_nothing_comes_back(old.checkpoint, row)
                commits.append(make_rollback(old, row.generation + 1, run_id, row.run_id, now_ms, row.erased))
            progress.advance()
        for key in sorted(current.keys() - {commit.key for commit in commits}):
            report.notes.append(f"{names.partition_folder(*key)}: left at generation {current[key].generation}")
        _report_partitions(report, commits, current)
        if commits and not options.dry_run:
            state.check_writable()
            manifests.make_folders(store, commits)
            manifests.write_manifests(store, commits)
            writing.commit_wave(state, commits, lambda: manifests.check_files(store, commits), look_back=True)
            writing.write_states(state)
    return report


def _report_partitions(report: RollbackReport, commits: Sequence[Commit], current: Mapping[Key, Checkpoint]) -> None:
    """Report the changes, and the offsets that become unreadable: they are in no new generation, nor in the archive."""
    listed = cache(partial(_listed, frozenset(commit.checkpoint.topic for commit in commits)))
    for commit in commits:
        before, after = current[commit.key], commit.checkpoint
        name = names.partition_folder(*commit.key)
        lost = without(covered(before), covered(after))
        archive = listed(before.archive_uri) if lost else None
        lost = without(lost, _held(archive, commit.key, lost))
        if lost:
            why = "are not in the archive any more" if archive else "the archive cannot be read"
            report.notes.append(
                f"{name}: offsets {shown(lost)} are in generation {before.generation}, and {why}; nothing reads "
                f"them after this rollback, unless you roll forward again (--generation {before.generation})"
            )
        report.partitions.append(RolledBack(before, after, [[first, until - 1] for first, until in lost]))


def _listed(topics: frozenset[str], uri: str) -> Archive | None:
    """Return the archive as it is now; None if it cannot be read."""
    with contextlib.suppress(MissingPathError, OSError):
        return list_archive(open_root(uri), topics.__contains__)
    return None


def _held(archive: Archive | None, key: Key, wanted: Ranges) -> Ranges:
    """Return the offsets of a partition that the archive holds; exactly those, as far as they are wanted."""
    archived = archive.partitions.get(key) if archive is not None else None
    if archived is None:
        return []
    held = []
    start, cleaned = archived.log_start_checkpoint or 0, archived.cleaner_checkpoint or 0
    for s, after in zip(archived.segments, [*archived.segments[1:], None], strict=True):
        end = after.base_offset if after is not None else names.MAX_OFFSET
        if end > cleaned and any(s.base_offset < until and first < end for first, until in wanted):
            end = s.base_offset  # if it cannot be read
            with contextlib.suppress(LogFormatError, OSError):
                end = find_ends(SourcePartition(*key, (s,)), committed=False).log_end
        held.append((max(s.base_offset, start), end))
    return held


def _target(store: Root, current: Checkpoint, generation: int) -> Commit:
    """Return the commit that made generation N. Raise NO_GENERATION if it cannot be current any more."""
    wanted = next((one for number, one in list_generations(store, current) if number == generation), None)
    missing = "its files are gone"
    if wanted is not None:
        commit, missing = _usable(store, wanted)
        if commit is not None and not missing:
            return commit
    found = dict(list_generations(store, current))
    others = sorted(found.keys() - {current.generation, generation})
    usable = [str(number) for number in others if not _usable(store, found[number])[1]]
    raise NO_GENERATION(
        partition=names.partition_folder(current.topic, current.partition),
        found=generation,
        reason=missing,
        expected=f"one of: {', '.join(usable)}" if usable else "another, but none is left",
    )


def _usable(store: Root, read_commit: Commit | GenerationError) -> tuple[Commit | None, str]:
    """Return the commit whose files a generation uses, and the reason why it cannot be used; "": all are there."""
    if isinstance(read_commit, GenerationError):
        return None, str(read_commit)
    folder = read_commit.checkpoint.folder
    commit, wrong = manifests.read_whole(store, folder)
    if commit is not None and not wrong:
        used = [(s.path, s.size_bytes) for s in commit.segments if s.root == "archive"]
        archive = open_root(normal_uri(commit.checkpoint.archive_uri)) if used else store
        wrong = next((f"{archive.uri}/{path}" for path in absent(archive, used)), "")
    return commit, wrong and f"its files in {folder} are gone ({wrong})"
