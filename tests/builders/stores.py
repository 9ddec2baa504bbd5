"""Stores made by hand for tests: files under segments/, and the rows that a run would have committed."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa
from deltalake import write_deltalake

from jobs.store.rows import Checkpoint, Commit, PartitionState, RunRow, Segment, arrow_schema, to_arrow
from jobs.store.tables import open_state
from logformat.names import segment_file

MTIME_MS = 1_700_000_000_123


def row(kind, **values):
    """A row of a state table with these values, and zeros; what was added to it later has its default."""
    empty = {pa.string(): "x", pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.bool_(): False}
    types = {f.name: f.type for f in arrow_schema(kind)}
    zeros = {f.name: empty[types[f.name]] for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    return kind(**zeros | {name: value for name, value in values.items() if name in types})


def run_id(generation, other=0):
    """32 hex digits."""
    return f"{generation:016x}{other:016x}"


def make_commit(partition, generation, run_id, parent=None, segments=2, planned=None, topic="t"):
    """Generation `generation` of one partition, planned on the one before (or on `planned`)."""
    shared = {"topic": topic, "partition": partition, "generation": generation, "run_id": run_id}
    run = {"generation_before": generation - 1, "generation_after": generation, "parent_run_id": parent}
    return Commit(
        topic, partition, generation - 1 if planned is None else planned, parent,
        row(Checkpoint, **shared, next_offset=generation * 100),
        [row(Segment, **shared, base_offset=i * 10, path=f"{i}.log") for i in reversed(range(segments))],
        row(RunRow, **shared, **run),
    )  # fmt: skip


def standing_of(commit, state="clean"):
    """How a partition stands with its commit."""
    at = commit.checkpoint
    return row(
        PartitionState, topic=at.topic, partition=at.partition, state=state, generation=at.generation, run_id=at.run_id
    )


def write_format_1(store, commits, states=()):
    """The tables of a store as an older version left them: no manifest, and no standing, beside the checkpoints.

    `commits`: in their order; the last one of a partition is its current generation.
    """
    current = {commit.key: commit.checkpoint for commit in commits}
    tables = {
        "compaction_checkpoints": to_arrow(Checkpoint, current.values()),
        "log_segments": to_arrow(Segment, (row for commit in commits for row in commit.segments)),
        "cleaner_runs": to_arrow(RunRow, (commit.run for commit in commits)),
        "cleaner_state": to_arrow(PartitionState, states),
    }
    for name, rows in tables.items():
        if len(rows):
            write_deltalake(store / "state" / name, rows)


@dataclass
class StoreMaker:
    """Writes an archive and generations of a store, as compact leaves them."""

    folder: Path

    def __post_init__(self):
        self.archive = self.folder / "archive"
        self.store = self.folder / "store"
        self.store.mkdir()
        self.archive.mkdir()
        self.state = open_state(str(self.store))

    def archived(self, topic, partition, base, data):
        """A segment in the archive."""
        path = self.archive / f"{topic}-{partition}" / segment_file(base, "log")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def generation(
        self, topic, partition, generation, written, kept=(), archived=(), end=300, start=0, anew=False, run=None,
        names_parent=True,
    ):  # fmt: skip
        """Commit a generation.

        `written`: base -> bytes, in this run's folder; `kept`: segments of an earlier one; `archived`: base -> bytes
        that belong to the generation, of a file that `archived()` made. `names_parent`: not, as in a reset by an older
        version.
        """
        run, name = run or run_id(generation), f"{topic}-{partition}"
        folder = self.store / "segments" / name / f"{generation}-{run}"
        folder.mkdir(parents=True)
        shared = {"topic": topic, "partition": partition, "generation": generation, "run_id": run}

        def segment(base, data, root, path):
            return row(
                Segment, **shared, base_offset=base, root=root, path=path, size_bytes=len(data),
                mtime_ms=MTIME_MS + base, checksum=google_crc32c.value(data),
                offset_index_bytes=len(f"index {generation}"), time_index_bytes=len(f"timeindex {generation}"),
            )  # fmt: skip

        segments = [dataclasses.replace(s, **shared) for s in kept]
        for base, data in written.items():
            (folder / segment_file(base, "log")).write_bytes(data)
            segments.append(segment(base, data, "store", f"segments/{name}/{folder.name}/{segment_file(base, 'log')}"))
        segments += [segment(b, d, "archive", f"{name}/{segment_file(b, 'log')}") for b, d in dict(archived).items()]
        for s in segments:
            for kind in ("index", "timeindex"):
                (folder / segment_file(s.base_offset, kind)).write_bytes(f"{kind} {generation}".encode())
        (folder / segment_file(end, "snapshot")).write_bytes(b"snapshot")
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        facts = {"log_start_offset": start, "next_offset": end, "archive_uri": str(self.archive)}
        parent = run_id(generation - 1) if generation > 1 else None
        checkpoint = row(Checkpoint, **shared, **facts, first_dirty_offset=end - 10)
        run_row = row(
            RunRow, **shared, **facts, generation_before=generation - 1, generation_after=generation,
            parent_run_id=parent if names_parent else None, end_offset=end - 10, anew=anew,
        )  # fmt: skip
        commit = Commit(topic, partition, generation - 1, parent, checkpoint, segments, run_row)
        self.state.commit_wave([commit])
        return segments

    def age(self, hours, *folders):
        """Make the files of run folders so old."""
        for folder in folders:
            for path in folder.iterdir():
                at = path.stat().st_mtime - hours * 3600
                os.utime(path, (at, at))

    def run_folder(self, topic, partition, generation):
        """Path of a run's folder."""
        return self.store / "segments" / f"{topic}-{partition}" / f"{generation}-{run_id(generation)}"
