"""Compaction in several tasks: a log for each special case; splits; rows that are lost between the stages."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.udfs.compact import split_stages as stages
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.scan_partition import scan_all
from lastkey.udfs.compact.split_stages import buckets_for, make_splits
from lastkey.udfs.storage import open_root, read_file
from tests.builders.folders import Outcome, archived_at, compact, lay_out, make_plan
from tests.builders.plans import changed
from tests.builders.s3_server import BUCKET, s3_server
from tests.builders.splits import compact_in_blocks
from tests.builders.steps import at_step
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import ZSTD, data_batch

NOW = 10**6


def plan_for(tmp_path: Path, segments: list[Segment], checkpoint: int | None = None, chunk: int = 1) -> PartitionPlan:
    plan = make_plan(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0,
        checkpoint=checkpoint, force=checkpoint is None, sealed=True,
    )  # fmt: skip
    return changed(plan, limits=replace(plan.run.limits, chunk_bytes=chunk))


def make_segments(*keys: str, per_segment: int = 100) -> list[Segment]:
    """Return segments with a batch for each string and a record for each character, its key."""
    segments, offset, batches = [], 0, []
    for i, text in enumerate(keys):
        batches.append(data_batch(offset, [(1000, c.encode(), b"%d" % i) for c in text]))
        offset += len(text)
        if len(batches) == per_segment or i + 1 == len(keys):
            segments.append(Segment(batches[0].base_offset, tuple(batches), 1000))
            batches = []
    return segments


def kept(outcome: Outcome) -> list[int]:
    assert outcome.result.status == "cleaned"
    return [r.offset for s in outcome.segments() for b in s.batches for r in b.records]


def test_batches_kept_or_removed_completely_are_not_decompressed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: all records removed; all kept; some kept; all kept with a tombstone that gets a delete horizon; a record
    without a key.
    """
    texts = [(b"ab", b"v"), (b"cd", b"v"), (b"ae", b"v"), (b"fg", None), (b"ba", b"v")]
    records = [[(1000, bytes([c]), value) for c in keys] for keys, value in texts]
    batches = [data_batch(2 * i, two, codec=ZSTD) for i, two in enumerate(records)]
    batches.append(data_batch(10, [(1000, b"h", b""), (1000, None, b"")], codec=ZSTD))
    plan = plan_for(tmp_path, [Segment(0, tuple(batches), 1000)], chunk=1 << 20)
    expected = compact(plan)
    read: list[list[int]] = []
    real = BodyLoader.runs

    def watched(self, chunk, wanted, **more):  # type: ignore[no-untyped-def]
        read.append((chunk.batches["base_offset"][wanted] // 2).tolist())
        return real(self, chunk, wanted, **more)

    monkeypatch.setattr(BodyLoader, "runs", watched)
    outcome = compact_in_blocks(changed(plan, folder="blocks"), split_bytes=1 << 30)
    assert outcome.files() == expected.files()
    assert outcome.result.work.counters == expected.result.work.counters
    assert read[0] == [0, 1, 2, 3, 4, 5]  # the walk
    assert read[1] == [2, 3, 5]  # the rewrite; later reads read back the rebuilt batches


@pytest.mark.parametrize("stage", ["_walk", "_resolve"])
@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows + rows[-1:]], ids=["lost", "twice"])
def test_missing_or_duplicate_row_stops_the_compaction(
    stage: str,
    change: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_for(tmp_path, make_segments("abc", "cde", "afg"))
    real = getattr(stages, stage)

    def broken(*given):  # type: ignore[no-untyped-def]
        batches = list(real(*given))
        cells = [b for b in batches if b["bucket"][0].as_py() >= 0]
        rows = [cell.slice(i, 1) for cell in cells for i in range(len(cell))]
        yield from [b for b in batches if b["bucket"][0].as_py() < 0] + (change(rows) if rows else [])

    monkeypatch.setattr(stages, stage, broken)
    result = compact_in_blocks(plan).result
    assert (result.status, result.problem and result.problem.kind) == ("uncleanable", "readback")
    assert list((tmp_path / "store").glob("*")) == []


def test_problem_of_any_stage_makes_the_partition_uncleanable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(tmp_path, make_segments("abc", "cde", "afg"))

    def failing(*given):  # type: ignore[no-untyped-def]
        raise ValueError("broken here")

    for stage in ("_walk", "_resolve", "_rewrite"):
        with monkeypatch.context() as patch:
            patch.setattr(stages, stage, failing)
            result = compact_in_blocks(changed(plan, folder=stage)).result
        assert result.status == "uncleanable" and "broken here" in str(result.problem)


def test_splits_end_at_chunks_and_have_similar_sizes(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh", k=20)) for _ in range(64)]
    plan = plan_for(tmp_path, make_segments(*texts, per_segment=15))
    scans = scan_all(plan, ChunkBuffer(1))
    size = sum(scan.size for scan in scans)
    for groups in ([range(5)], [range(2), range(2, 5)], [range(1), range(1, 3), range(3, 5)]):
        chunks = [(n, g, c) for g, members in enumerate(groups) for n in members for c in range(len(scans[n].chunks))]
        for n_splits in range(1, 70):
            splits = make_splits(scans, groups, -(-size // n_splits), 1)
            assert [(p.number, p.group, c) for s in splits for p in s for c in range(p.first, p.stop)] == chunks
            assert min(n_splits, 64) * 0.9 - 1 <= len(splits) <= n_splits
            n_chunks = [sum(p.stop - p.first for p in split) for split in splits]
            assert max(n_chunks) - min(n_chunks) <= 2


def test_number_of_splits_depends_on_bytes_and_tasks(tmp_path: Path) -> None:
    (scan,) = scan_all(plan_for(tmp_path, make_segments("ab")), ChunkBuffer(1))
    chunk = scan.chunks[0]

    def splits(n_bytes: int, cores: int) -> int:
        chunks = tuple(chunk._replace(position=at, size=8 << 20) for at in range(0, n_bytes, 8 << 20))
        return len(make_splits([replace(scan, chunks=chunks)], [range(1)], 1 << 30, cores))

    assert splits(1 << 30, 1) == 1
    assert splits(1 << 30, 2) == 2
    assert splits(3 << 30, 2) == 4  # two by two
    assert splits(8 << 20, 8) == 1  # too small to be shared
    assert splits(1 << 27, 8) == 2


def test_key_buckets_are_small_and_distributed_over_tasks() -> None:
    for (n, cores), (more, _) in pairwise((n, cores) for cores in (1, 7) for n in (0, 10**6, 10**8, 10**12)):
        buckets, tasks = buckets_for(n, cores)
        assert 4 <= buckets <= 4096 and buckets.bit_count() == 1
        assert tasks <= buckets and (tasks >= cores or buckets == tasks == 4)
        assert more < n or buckets <= buckets_for(more, cores)[0]


def _wrapper(first: int, n: int) -> bytes:
    """Return a gzip wrapper of magic 1 with n records, each with a key of its own."""
    inner = bytearray()
    for i in range(n):
        message = struct.pack(">bbqi8si", 1, 0, 1000, 8, b"%08d" % (first + i), 0)
        inner += struct.pack(">qiI", i, len(message) + 4, zlib.crc32(message)) + message
    body = gzip.compress(bytes(inner), 1, mtime=0)
    outer = struct.pack(">bbqii", 1, 1, 1000, -1, len(body)) + body
    return struct.pack(">qiI", first + n - 1, len(outer) + 4, zlib.crc32(outer)) + outer


def test_records_in_wrappers_have_an_upper_bound(tmp_path: Path) -> None:
    """Offsets bound the number of records; behind a hole, which offsets would count as records, the bytes do."""
    folder = tmp_path / "archive" / "t-0"
    folder.mkdir(parents=True)
    wrappers = [_wrapper(0, 1000), _wrapper(1000, 1), _wrapper(1001, 300), _wrapper(10**9, 5)]
    (folder / f"{0:020d}.log").write_bytes(b"".join(wrappers))
    plan = make_plan(
        archived_at(folder.parent, "t-0"), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0, sealed=True
    )  # fmt: skip
    (scan,) = scan_all(changed(plan, limits=replace(plan.run.limits, chunk_bytes=1)), ChunkBuffer(1))
    assert (scan.segment.batches, scan.segment.records) == (4, 4)
    by_bytes = len(wrappers[3]) * 1032 // 26
    assert scan.most_records == 1301 + by_bytes
    assert sum(chunk.records for chunk in scan.chunks) == scan.most_records
    dense = gzip.compress(b"\0" * (1 << 24), 9)
    assert (1 << 24) / len(dense) < 1032


def test_delayed_first_attempt_does_not_change_the_result(tmp_path: Path) -> None:
    """Spark retries a task (spark.speculation, or an executor taken for lost): the second try works while the first one
    waits between two segments, and then the first one ends too.
    """
    plan = plan_for(tmp_path, make_segments("ab", "cd", "ef", per_segment=1))
    expected = compact(changed(plan, folder="one"))
    tries: list[Outcome] = []

    def meanwhile() -> None:
        if not tries:
            tries.append(compact_in_blocks(changed(plan, folder="second")))

    with at_step("read back", meanwhile):
        first = compact_in_blocks(changed(plan, folder="first"))
    for done in (first, *tries):
        assert done.files() == expected.files()


@pytest.mark.slow
def test_segments_are_moved_in_a_bucket(tmp_path: Path) -> None:
    """Segments of tasks wait in folders of their own; one of them takes the base of the empty ones before it."""
    plan = plan_for(tmp_path, make_segments("abca", "aa", "aa", "bdea", "aefb", per_segment=1))
    plan = changed(plan, settings=replace(plan.policy.settings, segment_bytes=1))
    one = compact(plan)
    with s3_server():
        in_bucket = changed(plan, store_uri=f"{BUCKET}/store")
        several = compact_in_blocks(in_bucket)
        root = open_root(in_bucket.run.store_uri)
        existing = root.filesystem.get_file_info(pafs.FileSelector(root.full(""), recursive=True))
        contents = {f.base_name: read_file(root, f"{plan.run.folder}/{f.base_name}") for f in existing if f.is_file}
        assert contents == one.files()
        assert {f.path.rpartition("/")[0] for f in existing if f.is_file} == {root.full(plan.run.folder)}
    assert several.result.log.segments == one.result.log.segments
    assert len(one.result.log.segments) < 5
