"""Stores made by hand for tests: files under segments/, and the rows that a run would have committed."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa

from lastkey.jobs.store import writing
from lastkey.jobs.store.coverage import read_with
from lastkey.jobs.store.generations import list_generations
from lastkey.jobs.store.manifests import write_committed_files, write_manifests
from lastkey.jobs.store.rows import (
    Checkpoint,
    Commit,
    PartitionState,
    RunRow,
    arrow_schema,
    checkpoint_schema,
    parse_segment,
)
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file

MTIME_MS = 1_700_000_000_123


# Columns of a segment that the first stores did not have
LATER = (
    "min_timestamp_ms", "side_files", "applied_to", "superseded", "expected_dead", "facts_bytes", "key_files", "magics",
)  # fmt: skip


def row(kind, **values):
    """Return a row of a state table with these values, defaults for fields that have one, and zeros for the rest."""
    empty = {pa.string(): "x", pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.bool_(): False}
    if kind is Segment:
        columns = checkpoint_schema().field("segments").type.value_type
        filled = {f.name: empty[f.type] for f in columns if f.name not in LATER}
        return parse_segment(filled | values)
    fields = [f for f in dataclasses.fields(kind) if f.init]
    types = dict(zip([f.name for f in fields], arrow_schema(kind).types, strict=True))
    zeros = {f.name: empty[types[f.name]] for f in fields if f.default is dataclasses.MISSING}
    return kind(**zeros | {name: value for name, value in values.items() if name in types})


def run_id(generation, other=0):
    """Return a run id: 32 hex digits."""
    return f"{generation:016x}{other:016x}"


def make_commit(partition, generation, run_id, parent=None, segments=2, topic="t"):
    """Return the commit of generation `generation` of one partition, planned on the one before."""
    shared = {"topic": topic, "partition": partition, "generation": generation, "run_id": run_id}
    folder = f"{topic}-{partition}"
    run = {"generation_before": generation - 1, "generation_after": generation, "parent_run_id": parent}
    return Commit(
        row(Checkpoint, **shared, next_offset=generation * 100),
        [
            row(Segment, base_offset=i * 10, root="archive", path=f"{folder}/{segment_file(i * 10, 'log')}")
            for i in reversed(range(segments))
        ],
        row(RunRow, **shared, **run),
    )  # fmt: skip


def manifest_segments(state, topic, partition, generation=None):
    """Return the segments of one generation (None: the current one), by base offset; empty if there is none."""
    key, (checkpoints, manifests) = (topic, partition), state.current()
    if key not in checkpoints or generation in (None, checkpoints[key].generation):
        return manifests.get(key, [])
    segments = dict(list_generations(state.root, checkpoints[key]))[generation].segments
    return sorted(segments, key=lambda segment: segment.base_offset)


def commit_with_files(state, *commits):
    """Commit a wave after its manifests."""
    for commit in commits:
        Path(state.root.full(commit.folder)).mkdir(parents=True, exist_ok=True)
    write_manifests(state.root, commits)
    writing.commit_wave(state, commits)


def make_partition_state(commit, state="clean"):
    """Return the row of `cleaner_state` that goes with a commit."""
    at = commit.checkpoint
    return row(
        PartitionState, topic=at.topic, partition=at.partition, state=state, generation=at.generation, run_id=at.run_id
    )


@dataclass
class StoreMaker:
    """Maker of an archive and of a store's generations, as compact leaves them."""

    folder: Path

    def __post_init__(self):
        self.archive = self.folder / "archive"
        self.store = self.folder / "store"
        self.store.mkdir()
        self.archive.mkdir()
        self.state = open_state(str(self.store))

    def archived(self, topic, partition, base, data):
        """Make a segment in the archive."""
        path = self.archive / f"{topic}-{partition}" / segment_file(base, "log")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def generation(
        self, topic, partition, generation, written, kept=(), archived=(), end=300, start=0, reset=False, run=None,
        gaps=(), log_start=None, dies=False, started_ms=0,
    ):  # fmt: skip
        """Commit a generation.

        written: base -> bytes, in this run's folder; kept: segments of an earlier one; archived: base -> bytes that
        belong to the generation, of a file that `archived()` made; gaps: [first, last] that it skips; log_start: the
        one before its retention; dies: before its commit; started_ms: of its run.
        """
        run, name = run or run_id(generation), f"{topic}-{partition}"
        folder = self.store / "segments" / name / f"{generation}-{run}"
        folder.mkdir(parents=True)
        shared = {"topic": topic, "partition": partition, "generation": generation, "run_id": run}

        def segment(base, data, root, path):
            return row(
                Segment, base_offset=base, root=root, path=path, size_bytes=len(data),
                next_offset=next((b for b in bases if b > base), end),
                mtime_ms=MTIME_MS + base, checksum=google_crc32c.value(data),
                offset_index_bytes=len(f"index {generation}"), time_index_bytes=len(f"timeindex {generation}"),
            )  # fmt: skip

        bases = sorted([*written, *(s.base_offset for s in kept), *dict(archived), end])
        segments = list(kept)
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
        beside = {p.name: google_crc32c.value(p.read_bytes()) for p in folder.iterdir() if p.suffix != ".log"}
        segments = [dataclasses.replace(s, side_files=None) for s in segments]
        segments[-1:] = [dataclasses.replace(s, side_files=json.dumps(beside)) for s in segments[-1:]]
        facts = {"log_start_offset": start, "next_offset": end, "archive_uri": str(self.archive)}
        before = self.state.checkpoints().get((topic, partition))
        parent = before.run_id if before else None
        chain = before.chain if before and not reset else run
        checkpoint = row(
            Checkpoint, **shared, **facts, first_dirty_offset=end - 10, gaps=json.dumps(gaps), chain=chain,
            topic_id=None,
        )  # fmt: skip
        read = read_with(None if reset else before, checkpoint, segments, start if log_start is None else log_start)
        run_row = row(
            RunRow, **shared, **facts, generation_before=generation - 1, generation_after=generation,
            parent_run_id=parent, end_offset=end - 10, reset=reset, started_ms=started_ms, settings=json.dumps({}),
            topic_id=None,
        )  # fmt: skip
        commit = Commit(dataclasses.replace(checkpoint, read=read), segments, run_row)
        write_manifests(self.state.root, [commit])
        if not dies:
            writing.commit_wave(self.state, [commit])
            write_committed_files(self.state.root, [commit.folder])
        return segments

    def age(self, hours, *folders):
        """Make the files of run folders `hours` older."""
        for folder in folders:
            for path in folder.iterdir():
                at = path.stat().st_mtime - hours * 3600
                os.utime(path, (at, at))

    def run_folder(self, topic, partition, generation):
        """Return the path of a run's folder."""
        folder = self.store / "segments" / f"{topic}-{partition}"
        mine = folder / f"{generation}-{run_id(generation)}"
        return mine if mine.exists() else next(iter(folder.glob(f"{generation}-*")), mine)
