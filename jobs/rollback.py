"""`rollback --store STORE --generation N`: an older generation becomes the current one, by a commit like any other.

  every partition above N: its run of generation N, by the chain of parents; the manifest in that run's folder; all that
  it names is there, in the archive too -> a mark in the folders of what is rolled back -> one commit

All partitions or none. The checkpoint is that of generation N, so the archive is read from there again and the next run
makes another generation N + 1. What was rolled back stays until vacuum takes it, see there. The marks are for
`rebuild-state`, which could not know else that the highest generation is not the current one; so runs that died above N
get one too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyarrow import fs as pafs

from jobs.command.options import RollbackOptions
from jobs.command.progress import Progress
from jobs.command.reporting import JobReport, counted, said, seconds, table
from jobs.command.typed import check_topics
from jobs.errors import ManifestError, NoGenerationError, UsageError
from jobs.store.folders import folders_of
from jobs.store.generations import check_runs, made_by, nobody_has, open_store
from jobs.store.manifests import Mark, check_files, mark_rolled_back, other_files, read_manifest
from jobs.store.rows import Checkpoint, Commit, RunRow
from jobs.store.tables import open_state
from jobs.topics import of_topics
from logformat import names
from udfs.storage import Root, exists, normal_uri, open_root


@dataclass
class RollbackReport(JobReport):
    """What `rollback` hands back."""

    store: str
    generation: int
    dry_run: bool
    partitions: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": "rollback",
            "exit_code": self.exit_code,
            "store": self.store,
            "generation": self.generation,
            "dry_run": self.dry_run,
            "partitions": self.partitions,
            "notes": self.notes,
            "seconds": self.seconds_json(),
        }

    def to_text(self) -> str:
        """For people."""
        rows = [
            (
                names.partition_folder(p["topic"], p["partition"]),
                f"{p['generation_before']} -> {p['generation']}",
                f"{p['next_offset_before']} -> {p['next_offset']}",
            )
            for p in self.partitions
        ]
        lines = [table(("partition", "generation", "covered up to"), rows, left=(0,)), ""] if rows else []
        lines += said("note", self.notes)
        verb = "would be rolled back" if self.dry_run else "rolled back"
        took = seconds(self.seconds.get("total", 0.0))
        lines.append(f"{counted(len(rows), 'partition')} {verb} to generation {self.generation} in {took}")
        return "\n".join(lines)


def run(options: RollbackOptions, progress: Progress) -> RollbackReport:
    """Make generation N current in every partition that is above it, or with `dry_run` say which."""
    began = time.monotonic()
    notes: list[str] = []
    store = open_store(options.store, notes, "a store with generations")
    state = open_state(options.store)
    report = RollbackReport(store.uri, options.generation, options.dry_run)
    with (
        contextlib.nullcontext() if options.dry_run else state.lock()
    ):  # on a disk no vacuum works beside it; in a bucket the marks of one say what it takes
        rows = state.checkpoints()
        check_topics(options.topics, (topic for topic, _ in rows), store.uri)
        current = of_topics(options.topics, rows)
        if not current:
            raise UsageError(message=f"{store.uri}: the store holds no generation")
        if all(row.generation < options.generation for row in current.values()):
            raise nobody_has(options.generation)
        above = {key: row for key, row in sorted(current.items()) if row.generation > options.generation}
        for key in sorted(current.keys() - above.keys()):
            report.notes.append(f"{names.partition_folder(*key)}: left at generation {current[key].generation}")
        chains = state.histories({topic for topic, _ in above}) if above else {}
        check_runs(above, chains)
        progress.start("rollback", len(above))
        commits = []
        for key, row in above.items():
            commits.append(_target(store, row, chains[key], options.generation))
            report.partitions.append(_line(row, commits[-1].checkpoint))
            progress.advance()
        if commits and not options.dry_run:
            state.check_writable()
            marks = [mark for commit in commits for mark in _marks(store, chains[commit.key], commit.checkpoint)]
            mark_rolled_back(store, marks)  # before the commit: a crash between both leaves marks that say "perhaps"
            state.roll_back(commits, lambda: check_files(store, commits, "the file of the older generation"))
            mark_rolled_back(store, [replace(mark, made=True) for mark in marks])
            state.write_states()
    report.notes += notes + state.notes
    report.seconds["total"] = round(time.monotonic() - began, 3)
    return report


def _line(before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
    return {
        "topic": before.topic,
        "partition": before.partition,
        "generation_before": before.generation,
        "run_id_before": before.run_id,
        "next_offset_before": before.next_offset,
        "generation": after.generation,
        "run_id": after.run_id,
        "next_offset": after.next_offset,
    }


def _target(store: Root, current: Checkpoint, chain: Sequence[RunRow], generation: int) -> Commit:
    """What generation N brings back; planned on the current one. NoGenerationError: it cannot be current any more."""
    found = {run.generation_after: run for run in chain}
    missing = "never committed" if generation not in found else _why_not(store, found[generation])
    if isinstance(missing, Commit):
        return replace(missing, planned_generation=current.generation, planned_run_id=current.run_id)
    others = sorted(found.keys() - {current.generation, generation})
    there = [str(number) for number in others if isinstance(_why_not(store, found[number]), Commit)]
    raise NoGenerationError(
        partition=names.partition_folder(current.topic, current.partition),
        found=generation,
        reason=missing,
        expected=f"one that is still there: {', '.join(there)}" if there else "another: none is left",
    )


def _why_not(store: Root, run: RunRow) -> Commit | str:
    """The manifest of a generation whose files are all there, or why there is none."""
    folder = made_by(run).folder
    if not exists(store, folder):
        return f"its files are gone ({folder})"
    try:
        commit = read_manifest(store, folder)
    except FileNotFoundError:
        return f"its folder has no manifest.json, as an older version of Lastkey left it ({folder}); restore copies it"
    except ManifestError as error:
        return str(error)
    gone = [*(path for path, _, _ in other_files(store, commit)), *_gone_from_archive(commit)]
    return f"its files are gone ({gone[0]})" if gone else commit


def _gone_from_archive(commit: Commit) -> Iterator[str]:
    """Archived segments that the generation uses and that are not there, or shorter."""
    used = [s for s in commit.segments if s.root == "archive"]
    if not used:
        return
    archive = open_root(normal_uri(commit.checkpoint.archive_uri))
    for s, info in zip(used, archive.filesystem.get_file_info([archive.full(s.path) for s in used]), strict=True):
        if info.type != pafs.FileType.File or info.size < s.size_bytes:
            yield f"{archive.uri}/{s.path}"


def _marks(store: Root, chain: Sequence[RunRow], target: Checkpoint) -> Iterator[Mark]:
    """For every folder above the target: of the chain with how far they reach; of runs that died, nothing."""
    reach = {made_by(run).folder: run.next_offset for run in chain}
    for path, made in folders_of(store, target.topic, target.partition):
        if made[0] > target.generation:
            yield Mark(path, reach.get(path, -1), target.generation, target.run_id)
