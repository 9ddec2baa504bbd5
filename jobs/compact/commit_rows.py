"""Rows of the store's tables, made from partitions' results: those of a new generation, and partitions' states."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import platform
import time
from dataclasses import asdict, astuple, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lastkey.jobs.archive.listing import ArchivedPartition
from lastkey.jobs.compact.plan_inputs import choose_topic_id, clean_settings
from lastkey.jobs.compact.start_outcome import Outcome, Start, partition_key
from lastkey.jobs.store import writing
from lastkey.jobs.store.coverage import read_with
from lastkey.jobs.store.paths import parse_run_id
from lastkey.jobs.store.rows import Checkpoint, Commit, PartitionState, RunRow
from lastkey.logformat.primitives import zstd_kernels
from lastkey.udfs.compact.plan import PartitionResult

_OF_BOTH: Final = (  # columns that a checkpoint and the row of its run have in common
    "run_id", "topic", "partition", "now_ms", "log_start_offset", "next_offset", "topic_id", "cluster_id",
    "archive_uri", "last_batch_base_offset", "last_batch_leader_epoch", "last_batch_crc", "erased",
)  # fmt: skip


def make_commit(start: Start, r: PartitionResult, *, reset: bool, engine: str) -> Commit:
    """Return the rows that a cleaned partition adds to its wave's commit. reset: by --reset, which takes over no state
    of the previous generation; that one remains the parent, can be restored, and is kept by vacuum.
    """
    key = partition_key(r)
    archived, before = start.archive.partitions[key], start.checkpoints.get(key)
    made_of = None if reset else before
    checkpoint = _checkpoint(start, r, archived, before, made_of)
    log_start = made_of.log_start_offset if made_of else archived.segments[0].base_offset
    read = read_with(made_of, checkpoint, r.log.segments, max(log_start, archived.log_start_checkpoint or 0))
    return Commit(
        checkpoint=replace(checkpoint, read=read),
        segments=list(r.log.segments),
        run=_run_row(start, r, checkpoint, before, reset=reset, engine=engine),
        partition_state=make_state(r, checkpoint.generation, start.run_id, start.options.now_ms),
    )


def _checkpoint(
    start: Start, r: PartitionResult, archived: ArchivedPartition, before: Checkpoint | None, made_of: Checkpoint | None
) -> Checkpoint:
    """Return the checkpoint of a new generation. made_of: the generation that it continues; None: the first one, or a
    reset.
    """
    reset, run_id = made_of is not before, parse_run_id(r.log.folder)
    read = {one.base_offset: one for one in (*(made_of.files_read if made_of else ()), *r.log.archived_files)}
    files = [astuple(read[s.base_offset]) for s in archived.segments if s.base_offset in read]
    return Checkpoint(
        topic=r.topic,
        partition=r.partition,
        generation=(before.generation if before else 0) + 1,
        run_id=run_id,
        first_dirty_offset=r.log.first_dirty_offset,
        log_start_offset=r.log.log_start_offset,
        next_offset=r.log.next_offset,
        log_end_timestamp_ms=r.log.log_end_timestamp_ms,
        now_ms=start.options.now_ms,
        gaps=json.dumps([astuple(gap) for gap in r.log.gaps]) if r.log.gaps else None,
        chain=made_of.chain if made_of else run_id,
        archived_files=json.dumps(files, separators=(",", ":")) if files else None,
        erased=start.erasures.bounds_after(before, archived, r.log.next_offset, reset=reset),
        topic_id=choose_topic_id(archived, before, reset=reset),
        cluster_id=archived.cluster_id or (made_of.cluster_id if made_of else None),
        archive_uri=start.archive.root.uri,
        last_batch_base_offset=r.log.last_batch.base_offset,
        last_batch_leader_epoch=r.log.last_batch.leader_epoch,
        last_batch_crc=r.log.last_batch.crc,
        **_expired(r, made_of),
    )


def _run_row(
    start: Start, r: PartitionResult, checkpoint: Checkpoint, before: Checkpoint | None, *, reset: bool, engine: str
) -> RunRow:
    counters: dict[str, Any] = {name: n for name, n in r.work.counters.items() if name in RunRow.__dataclass_fields__}
    same: dict[str, Any] = {name: getattr(checkpoint, name) for name in _OF_BOTH}
    flags = [name for name, is_set in (("erases", r.log.erases), ("sealed", start.options.sealed)) if is_set]
    settings = asdict(clean_settings(start.listing.settings[r.topic]))
    return RunRow(
        generation_before=checkpoint.generation - 1,
        generation_after=checkpoint.generation,
        parent_run_id=before.run_id if before else None,
        started_ms=time.time_ns() // 1_000_000,
        first_dirty_offset=r.cleanable.first_dirty_offset,
        end_offset=r.log.first_dirty_offset,
        settings=json.dumps(settings | dict.fromkeys(flags, True)),
        bytes_read=r.work.bytes_read,
        bytes_before=r.work.bytes_before,
        bytes_after=r.work.bytes_after,
        bytes_written=r.work.bytes_written,
        seconds=json.dumps(r.work.seconds),
        splits=r.work.splits,
        versions=json.dumps(_versions()),
        engine=engine,
        reset=reset and before is not None,
        compacted=r.log.compacted,
        expired=json.dumps([astuple(one) for one in r.log.expired]) if r.log.expired else None,
        erased_offsets=json.dumps(r.erased_offsets, separators=(",", ":")) if r.erased_offsets else None,
        **same,
        **counters,
    )


def _expired(r: PartitionResult, before: Checkpoint | None) -> dict[str, Any]:
    """Return the fields of a checkpoint with the range that retention has deleted, in this run and before."""
    expired = (before.expired_from, before.expired_until) if before is not None else (0, 0)
    if not r.log.expired:
        return {"expired_from": expired[0], "expired_until": expired[1]}
    first = expired[0] if expired[1] else r.log.expired[0].first
    return {"expired_from": first, "expired_until": r.log.log_start_offset}


@functools.cache  # reading them takes 3 ms, as long as a small partition
def _versions() -> dict[str, str]:
    packages = (
        "pyspark", "deltalake", "pyarrow", "numpy", "numba", "google-crc32c", zstd_kernels.PACKAGE, "lz4", "cramjam",
        "isal",
    )  # fmt: skip
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a cluster's own pyspark was not installed by pip
        with contextlib.suppress(ModuleNotFoundError):
            return str(importlib.import_module(package).__version__)
        return "none"  # the system's library of lz4 or zstd does the work


def make_state(r: PartitionResult, generation: int, run_id: str, now_ms: int) -> PartitionState:
    """Return the state of a partition after the run. `generation`: the current one, -1 if missing."""
    problem = r.problem
    clean, dirty, ratio = r.cleanable.clean_bytes, r.cleanable.cleanable_bytes, r.cleanable.ratio
    if r.status == "cleaned":  # and committed: dirty offsets are clean after it, unless only retention deleted segments
        clean = sum(s.size_bytes for s in r.log.segments if s.base_offset < r.log.first_dirty_offset)
        dirty = 0 if r.log.compacted else min(dirty, sum(s.size_bytes for s in r.log.segments) - clean)
        ratio = dirty / (clean + dirty) if dirty else 0.0
    return PartitionState(
        topic=r.topic,
        partition=r.partition,
        state=problem.state if problem else "dirty" if dirty else "clean",
        reason=str(problem) if problem else "",
        path=problem.path if problem else "",
        position=problem.position if problem else -1,
        expected=problem.expected if problem else "",
        found=problem.found if problem else "",
        dirty_ratio=ratio,
        clean_bytes=clean,
        dirty_bytes=dirty,
        first_dirty_offset=r.log.first_dirty_offset,
        generation=generation,
        run_id=run_id,
        now_ms=now_ms,
    )


def write_partition_states(start: Start, outcome: Outcome) -> None:
    """Write the partitions' states. For partitions that were not due, write only changed states, so that such a run is
    cheap.
    """
    state, now_ms = start.state, start.options.now_ms
    before = state.states() if outcome.cut_off or any(r.status == "not_due" for r in outcome.results) else {}
    rows = []
    for r in outcome.results:
        key = partition_key(r)
        if r.status == "cleaned" or (r.status == "stopped" and key not in outcome.cut_off):
            continue  # the commit of this run or of another one wrote the state; stopped early: unknown
        current = outcome.committed.get(key) or start.checkpoints.get(key)
        row, old = make_state(r, current.generation if current else -1, start.run_id, now_ms), before.get(key)
        if r.status == "stopped":  # as it was, but tried: the next run begins with those that were not
            row = replace(row, state="dirty") if old is None else replace(old, run_id=row.run_id, now_ms=row.now_ms)
        if r.status == "not_due" and old is not None and row == replace(old, run_id=row.run_id, now_ms=row.now_ms):
            continue
        rows.append(row)
    writing.set_states(state, rows)
    writing.write_states(state)
