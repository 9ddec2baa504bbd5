"""Compaction in several tasks by blocks: logs that would fall into each trap; splits; damage in key files."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.compact.output.segment_output import SegmentOutput, join_empty_groups
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import scan_all, scan_identity
from lastkey.udfs.compact.split import rewrite_split as rewriting
from lastkey.udfs.compact.split.settle import (
    Buckets,
    SettledBuckets,
    Survivors,
    rows_of,
    settle,
    share_out,
    slots_for,
    write_bits,
)
from lastkey.udfs.compact.split.splits import Split, make_splits, number_of_splits
from lastkey.udfs.compact.split.walk_split import KeyFile, WalkedSplit, buckets_for, key_folder, read_slice, walk_split
from lastkey.udfs.storage import open_root, read_file
from tests.builders.folders import Outcome, archived_at, compact, lay_out, plan_of
from tests.builders.plans import changed
from tests.builders.s3_server import BUCKET, s3_server
from tests.builders.splits import compact_in_blocks
from tests.builders.steps import at_step
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import ZSTD, data_batch

NOW = 10**6
SPREAD = 1 << 20


def plan_for(tmp_path: Path, segments: list[Segment], checkpoint: int | None = None, chunk: int = 1) -> PartitionPlan:
    plan = plan_of(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0,
        checkpoint=checkpoint, force=checkpoint is None, sealed=True,
    )  # fmt: skip
    return changed(plan, limits=replace(plan.run.limits, chunk_bytes=chunk))


def log_of(*keys: str, per_segment: int = 100) -> list[Segment]:
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


def analysed(plan: PartitionPlan) -> tuple[Analysis, list[Split]]:
    """Return the analysis of a partition and splits at every chunk."""
    buffer = ChunkBuffer(plan.run.limits.chunk_bytes)
    analysis = analyse(plan, scan_all(plan, buffer), scan_identity(plan, buffer))
    assert isinstance(analysis, Analysis)
    scans = analysis.sources
    return analysis, make_splits(scans, analysis.groups, SPREAD)


def walked(plan: PartitionPlan, analysis: Analysis, splits: list[Split]) -> list[WalkedSplit]:
    first = analysis.cleanable.first_dirty_offset
    return [
        walk_split(plan, [analysis.sources[p.number] for p in s.parts], s, analysis.rules, first, 4, f"w{s.number}")
        for s in splits
    ]


def test_only_entries_of_dirty_records_say_that_they_are(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, log_of("abcd", "ef", per_segment=1), checkpoint=4, chunk=1 << 20)
    analysis, _ = analysed(plan)
    (split,) = make_splits(analysis.sources, analysis.groups, 1)
    (block,) = walked(plan, analysis, [split])[0].blocks
    assert (int(block.counts.sum()), int(block.dirty.sum())) == (6, 2)


def test_batches_of_one_fate_are_not_decompressed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All go, all stay, some stay; all stay but with a tombstone, which gets a horizon; a record without key."""
    texts = [(b"ab", b"v"), (b"cd", b"v"), (b"ae", b"v"), (b"fg", None), (b"ba", b"v")]
    records = [[(1000, bytes([c]), value) for c in keys] for keys, value in texts]
    batches = [data_batch(2 * i, two, codec=ZSTD) for i, two in enumerate(records)]
    batches.append(data_batch(10, [(1000, b"h", b""), (1000, None, b"")], codec=ZSTD))
    plan = plan_for(tmp_path, [Segment(0, tuple(batches), 1000)], chunk=1 << 20)
    expected = compact(plan)
    read: list[list[int]] = []
    real = BodyLoader.runs

    def watched(self, raw, position, rows, wanted, path, **more):  # type: ignore[no-untyped-def]
        read.append((rows["base_offset"][wanted] // 2).tolist())
        return real(self, raw, position, rows, wanted, path, **more)

    monkeypatch.setattr(BodyLoader, "runs", watched)
    outcome = compact_in_blocks(changed(plan, folder="blocks"), split_bytes=1 << 30)
    assert outcome.files() == expected.files()
    assert outcome.result.work.counters == expected.result.work.counters
    assert read[0] == [0, 1, 2, 3, 4, 5]  # the walk
    assert read[1] == [2, 3, 5]  # the rewrite; later reads read back the rebuilt batches


Damage = Callable[[WalkedSplit], WalkedSplit]


def with_chunk(walk: WalkedSplit, column: str, more: int) -> WalkedSplit:
    """Return a walk with a false count for the last chunk."""
    chunks = walk.chunks.copy()
    chunks[column][-1] += more
    return replace(walk, chunks=chunks)


@pytest.mark.parametrize(
    "other",
    [
        lambda w: with_chunk(w, "digest", 1),
        lambda w: with_chunk(w, "batches", -1),
        lambda w: with_chunk(w, "records", 1),
    ],
    ids=["digest", "batches", "records"],
)
def test_a_rewrite_that_reads_other_batches_than_the_walk_is_changed(tmp_path: Path, other: Damage) -> None:
    plan = plan_for(tmp_path, log_of("abc", "cde"), chunk=1 << 20)
    analysis, splits = analysed(plan)
    walks = walked(plan, analysis, splits)
    settled = [settle(plan, walks, b, 4, f"s{b.first}") for b in share_out(walks, 4, 1 << 30, 1)]
    groups = {0: analysis.group(analysis.groups[0])}
    rest = (analysis.sources, analysis.rules, analysis.kept_aborts)
    rewriting.rewrite_split(plan, splits[0], groups, frozenset(), *rest, walks[0], settled, "r")
    with pytest.raises(LogFormatError, match="as when their keys were read") as found:
        rewriting.rewrite_split(plan, splits[0], groups, frozenset(), *rest, other(walks[0]), settled, "r")
    assert found.value.kind == "changed"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["w", "s", "r"])
def test_a_bit_that_a_key_file_loses_is_noticed(tmp_path: Path, kind: str) -> None:
    """Damage every byte of the key files, one after the other: hashes, marks, bits, pieces and their rows."""
    plan = plan_for(tmp_path, log_of("abca", "bdea", "aefb"))
    analysis, splits = analysed(plan)
    root, folder = open_root(plan.run.store_uri), Path(plan.run.store_uri) / key_folder(plan)
    groups = {0: analysis.group(analysis.groups[0])}
    aborts = analysis.kept_aborts

    def rest(walks: list[WalkedSplit]) -> None:
        settled = [settle(plan, walks, b, 4, "s0") for b in share_out(walks, 4, 1 << 30, 1)]
        if kind == "s":
            damage("s0")
        for split, walk in zip(splits, walks, strict=True):
            sources = [analysis.sources[p.number] for p in split.parts]
            done = rewriting.rewrite_split(
                plan, split, groups, frozenset({0}), sources, analysis.rules, aborts, walk, settled, f"r{split.number}"
            )
            pieces.extend(done.pieces)

    def damage(name: str) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at[0]] ^= 0x10
        (folder / name).write_bytes(data)

    at, pieces = [0], []  # type: ignore[var-annotated]
    walks = walked(plan, analysis, splits)
    assert len(splits) == 3
    rest_of_none = kind
    kind = ""
    rest(walks)
    kind = rest_of_none
    name = {"w": "w1", "s": "s0", "r": f"r{splits[-1].number}-0"}[kind]
    for position in range((folder / name).stat().st_size):
        at[0] = position
        walked(plan, analysis, splits)
        with pytest.raises(LogFormatError) as found:
            if kind == "w":
                damage(name)
            if kind == "r":
                damage(name)
                rewriting.join_pieces(plan, 0, groups[0], pieces[:3], aborts)
            else:
                rest(walks)
        assert found.value.kind == "readback"
        if kind == "r":
            damage(name)
    assert read_slice(root, walks[0].leaves).size == 1


def test_a_slice_is_what_was_written(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, log_of("ab"))
    with KeyFile(plan, "x") as file:
        first, second = file.write(np.arange(5)), file.write(np.empty(0, np.int64))
        third = file.write(np.arange(3, dtype=np.uint8))
    root = open_root(plan.run.store_uri)
    assert read_slice(root, first).view(np.int64).tolist() == [0, 1, 2, 3, 4]
    assert (read_slice(root, second).size, read_slice(root, third).tolist()) == (0, [0, 1, 2])
    assert (Path(plan.run.store_uri) / first.path).stat().st_mode & 0o077 == 0


def test_splits_end_at_chunks_and_rather_where_a_group_ends(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefgh", k=20)) for _ in range(64)]
    plan = plan_for(tmp_path, log_of(*texts, per_segment=15))
    analysis, every = analysed(plan)
    scans = analysis.sources
    assert len(every) == 64
    for groups in ([range(5)], [range(2), range(2, 5)], [range(1), range(1, 3), range(3, 5)]):
        chunks = [(n, g, c) for g, members in enumerate(groups) for n in members for c in range(len(scans[n].chunks))]
        for n_splits in range(1, 70):
            splits = make_splits(scans, groups, n_splits)
            assert [s.number for s in splits] == list(range(len(splits)))
            assert [(p.number, p.group, c) for s in splits for p in s.parts for c in range(p.first, p.stop)] == chunks
            assert len(splits) <= n_splits
            assert len(splits) >= 0.9 * min(n_splits, 64) or len(groups) > 1
    near = make_splits(scans, [range(2), range(2, 5)], 2)  # 30 of 64 batches: near enough to the half
    assert [{p.group for p in s.parts} for s in near] == [{0}, {1}]
    far = make_splits(scans, [range(1), range(1, 5)], 2)
    assert [{p.group for p in s.parts} for s in far] == [{0, 1}, {1}]


def test_how_many_splits(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, log_of("ab"))
    analysis, _ = analysed(plan)
    scan = analysis.sources[0]

    def splits(n_bytes: int, n_records: int, cores: int) -> int:
        large = replace(scan, start_position=0, end_position=n_bytes, segment=replace(scan.segment, records=n_records))
        return number_of_splits([large], [range(1)], 1 << 30, 1 << 30, cores)

    assert splits(1 << 30, 10**6, 1) == 1
    assert splits(1 << 30, 10**6, 2) == 2
    assert splits(3 << 30, 10**6, 2) == 4  # two by two
    assert splits(1 << 20, 10**3, 8) == 1  # too small to be shared
    assert splits(1 << 27, 10**3, 8) == 2
    assert splits(1 << 30, 10**9, 1) == 30  # 32 bytes a record


def test_settling_takes_memory_for_the_keys_and_not_for_the_splits_that_hold_them(tmp_path: Path) -> None:
    keys = [b"%d" % i for i in range(5000)]
    plan = plan_for(tmp_path, [Segment(0, (data_batch(0, [(1, key, b"") for key in keys]),), 1000)])
    analysis, splits = analysed(plan)
    (walk,) = walked(plan, analysis, splits)

    def peak_bytes(n_splits: int) -> int:
        walks = [replace(walk, number=i) for i in range(n_splits)]
        (share,) = share_out(walks, 4, 1 << 30, 1)
        tracemalloc.start()
        settled = settle(plan, walks, share, 4, f"s{n_splits}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        stay = [
            np.unpackbits(read_slice(open_root(plan.run.store_uri), settled.bits[i]), count=5000).sum()
            for i in range(n_splits)
        ]
        assert stay == [0] * (n_splits - 1) + [5000]
        return peak

    peak_bytes(1)  # kernels are loaded, or compiled
    assert peak_bytes(64) < 1.2 * peak_bytes(4)


@pytest.mark.slow
def test_several_tasks_take_bits_for_a_record_and_not_bytes(tmp_path: Path) -> None:
    batch = data_batch(0, [(1, b"%d" % (i % 50), b"") for i in range(2000)])

    def peak_bytes(n_batches: int) -> int:
        bases = range(0, 2000 * n_batches, 2000)
        log = tuple(replace(batch, base_offset=b, data=struct.pack(">q", b) + batch.data[8:]) for b in bases)
        plan = plan_for(tmp_path / str(n_batches), [Segment(0, log, 1000)])
        tracemalloc.start()
        outcome = compact_in_blocks(plan, split_bytes=1 << 30)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert kept(outcome) == list(range(2000 * n_batches - 50, 2000 * n_batches))
        return peak

    peak_bytes(1)  # kernels are loaded
    small, large = peak_bytes(100), peak_bytes(1100)
    print(f"{small} bytes for 200,000 records, {large} for 2,200,000")
    assert large - small < 2_000_000 * 0.5


def test_buckets_and_their_tables_fit_memory(tmp_path: Path) -> None:
    assert [buckets_for(n) for n in (0, 10**6, 8_600_000, 10**9)] == [4, 8, 128, 256]
    entries = np.array([0, 10, 11, 1000, 10**6])
    assert slots_for(entries).tolist() == [16, 16, 32, 2048, 2097152]
    assert (slots_for(np.arange(5000)) * 2 >= 3 * np.arange(5000)).all()
    plan = plan_for(tmp_path, log_of("abcdefghijklmnop"))
    analysis, splits = analysed(plan)
    walks = walked(plan, analysis, splits)
    (block,) = walks[0].blocks
    many = [replace(walks[0], blocks=(replace(block, counts=np.array([10**6, 10**5, 10**6, 10**6])),))]
    shares = share_out(many, 4, 200 << 20, 2)
    assert [(b.first, b.stop) for b in shares] == [(0, 2), (2, 3), (3, 4)]
    assert [(b.first, b.stop) for b in share_out(many, 4, 2 << 30, 1)] == [(0, 4)]
    with pytest.raises(LogFormatError) as found:
        share_out(many, 4, 60 << 20, 2)
    assert found.value.kind == "memory"


def test_survivors_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, log_of("abca", "bcab", "aabb"), chunk=1 << 20)
    analysis, splits = analysed(plan)
    walks = walked(plan, analysis, splits)
    settled = [settle(plan, walks, b, 4, f"s{b.first}") for b in share_out(walks, 4, 1 << 30, 4)]
    survivors = Survivors(open_root(plan.run.store_uri), walks[0], settled, "t-0")
    survivors._next_chunk()
    assert np.flatnonzero(survivors._survives).tolist() == [5, 9, 11]


def test_answers_that_the_window_loses_are_noticed(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, log_of("abca", "bcab"))
    analysis, splits = analysed(plan)
    walks = walked(plan, analysis, splits)
    rows = [row for walk in walks for batch in rows_of(plan, walks, walk.number) for row in batch.to_pylist()]
    assert sorted(row["place"] for row in rows) == list(range(6))
    answers = [{"split": row["split"], "place": row["place"], "stays": True} for row in rows]
    bits = write_bits(plan, walks, [pa.RecordBatch.from_pylist(answers)], "all")
    assert sorted(bits) == [0, 1]
    with pytest.raises(ValueError, match="split 1: 1 of 3 keys without an answer"):
        write_bits(plan, walks, [pa.RecordBatch.from_pylist(answers[:-1])], "less")
    lost = SettledBuckets(Buckets(0, 4), {0: bits[0]})
    with pytest.raises(KeyError):
        Survivors(open_root(plan.run.store_uri), walks[1], [lost], "t-0")


def _wrapper(first: int, n: int) -> bytes:
    """Return a gzip wrapper of magic 1 with n records, each with a key of its own."""
    inner = bytearray()
    for i in range(n):
        message = struct.pack(">bbqi8si", 1, 0, 1000, 8, b"%08d" % (first + i), 0)
        inner += struct.pack(">qiI", i, len(message) + 4, zlib.crc32(message)) + message
    body = gzip.compress(bytes(inner), 1, mtime=0)
    outer = struct.pack(">bbqii", 1, 1, 1000, -1, len(body)) + body
    return struct.pack(">qiI", first + n - 1, len(outer) + 4, zlib.crc32(outer)) + outer


def test_what_a_scan_says_that_wrappers_hold_at_the_most(tmp_path: Path) -> None:
    """Offsets bound the number of records; behind a hole, which offsets would count as records, the bytes do."""
    folder = tmp_path / "archive" / "t-0"
    folder.mkdir(parents=True)
    wrappers = [_wrapper(0, 1000), _wrapper(1000, 1), _wrapper(1001, 300), _wrapper(10**9, 5)]
    (folder / f"{0:020d}.log").write_bytes(b"".join(wrappers))
    plan = plan_of(
        archived_at(folder.parent, "t-0"), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0, sealed=True
    )  # fmt: skip
    (scan,) = scan_all(changed(plan, limits=replace(plan.run.limits, chunk_bytes=1)), ChunkBuffer(1))
    assert (scan.segment.batches, scan.segment.records) == (4, 4)
    by_bytes = len(wrappers[3]) * 1032 // 26
    assert scan.most_records == 1301 + by_bytes
    assert sum(chunk.records for chunk in scan.chunks) == scan.most_records
    dense = gzip.compress(b"\0" * (1 << 24), 9)
    assert (1 << 24) / len(dense) < 1032


@pytest.mark.slow
def test_keys_of_compressed_batches_of_magic_1_find_buckets_enough(tmp_path: Path) -> None:
    """Settle 800,000 keys with a table of 4 MiB a task: with 8 buckets each has 2 MiB to spare."""
    wrapped, n = 100_000, 800_000
    folder = tmp_path / "archive" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"".join(_wrapper(first, wrapped) for first in range(0, n, wrapped)))
    plan = plan_of(
        archived_at(folder.parent, "t-0"), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0, sealed=True
    )  # fmt: skip
    tight = changed(plan, limits=replace(plan.run.limits, task_memory_bytes=8 << 20))
    assert compact(tight).result.status == "too_large"
    enough = compact_in_blocks(changed(tight, folder="enough"), split_bytes=1 << 30, n_buckets=buckets_for(n))
    assert enough.result.work.counters["records_kept"] == n
    as_a_run_does = compact_in_blocks(changed(tight, folder="run"), split_bytes=1 << 30)
    assert as_a_run_does.result.work.counters["records_kept"] == n


def test_no_split_has_more_records_than_its_memory_is_for(tmp_path: Path) -> None:
    """Large values come first, then small records that compress well: equal in bytes, not in records."""
    rng = random.Random(1)
    large = [data_batch(i, [(1000, b"%d" % i, rng.randbytes(10_000))]) for i in range(30)]
    small = [
        data_batch(base, [(1000, b"%d" % (base + i), b"") for i in range(1000)], codec=ZSTD)
        for base in range(30, 10_030, 1000)
    ]
    plan = plan_for(tmp_path, [Segment(0, (*large, *small), 1000)])
    memory = 128 << 10
    plan = changed(plan, limits=replace(plan.run.limits, task_memory_bytes=memory))
    analysis, _ = analysed(plan)
    scans = analysis.sources
    n = number_of_splits(scans, analysis.groups, 1 << 30, memory, 1)
    assert n == 3  # 32 bytes a record
    splits = make_splits(scans, analysis.groups, n)
    records = [int(w.chunks["records"].sum()) for w in walked(plan, analysis, splits)]
    assert sum(records) == 10_030
    assert max(records) * 32 <= memory + 1000 * 32, records  # a batch more at most


def test_a_first_try_that_goes_on_behind_its_second_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark retries a task (spark.speculation, or an executor taken for lost): the second try's segments are placed in
    the generation's folder, and then the first try continues until it is killed.
    """
    segments = log_of("ab", "cd", "ef", per_segment=1)
    plan = plan_for(tmp_path, segments)
    plan = changed(plan, settings=replace(plan.policy.settings, segment_bytes=1))
    analysis, _ = analysed(plan)
    splits = make_splits(analysis.sources, analysis.groups, 1)
    walks = walked(plan, analysis, splits)
    settled = [settle(plan, walks, b, 4, f"s{b.first}") for b in share_out(walks, 4, 1 << 30, 1)]
    groups = {g: analysis.group(numbers) for g, numbers in enumerate(analysis.groups)}
    sources = [analysis.sources[p.number] for p in splits[0].parts]

    def rewrite(mine: PartitionPlan, name: str) -> rewriting.RewrittenSplit:
        return rewriting.rewrite_split(
            mine, splits[0], groups, frozenset(), sources, analysis.rules, analysis.kept_aborts, walks[0], settled, name
        )

    placed = []

    class Killed(BaseException):
        pass

    def meanwhile() -> None:
        """Finish the second try when the first one has written a segment, and kill the first one in the next."""
        second = rewrite(changed(plan, folder=f"{plan.run.folder}.7"), "r7")
        placed.extend(join_empty_groups(plan, [s for g in sorted(second.segments) for s in second.segments[g]]))
        monkeypatch.setattr(SegmentOutput, "append", killed)

    def killed(self, rows, data):  # type: ignore[no-untyped-def]
        raise Killed

    with pytest.raises(Killed), at_step("read back", meanwhile):
        rewrite(plan, "r0")
    assert [s.size_bytes > 0 for s in placed] == [True] * 3
    root = Path(plan.run.store_uri)
    assert {s.path: (root / s.path).stat().st_size for s in placed} == {s.path: s.size_bytes for s in placed}


@pytest.mark.slow
def test_segments_are_moved_in_a_bucket_too(tmp_path: Path) -> None:
    """Segments of tasks wait in folders of their own; one of them takes the base of the empty ones before it."""
    plan = plan_for(tmp_path, log_of("abca", "aa", "aa", "bdea", "aefb", per_segment=1))
    plan = changed(plan, settings=replace(plan.policy.settings, segment_bytes=1))
    one = compact(plan)
    with s3_server():
        in_bucket = changed(plan, store_uri=f"{BUCKET}/store")
        several = compact_in_blocks(in_bucket)
        root = open_root(in_bucket.run.store_uri)
        there = root.filesystem.get_file_info(pafs.FileSelector(root.full(""), recursive=True))
        found = {f.base_name: read_file(root, f"{plan.run.folder}/{f.base_name}") for f in there if f.is_file}
        assert found == one.files()
        assert {f.path.rpartition("/")[0] for f in there if f.is_file} == {root.full(plan.run.folder)}
    assert several.result.log.segments == one.result.log.segments
    assert len(one.result.log.segments) < 5


def test_splits_take_no_more_memory_than_there_are_chunks_to_cut(tmp_path: Path) -> None:
    """split.bytes may be 1, as in our own tests, and a partition large."""
    plan = plan_for(tmp_path, log_of("ab", "cd"))
    analysis, _ = analysed(plan)
    scan = analysis.sources[0]
    chunks = tuple(chunk._replace(size=8 << 20) for chunk in scan.chunks)
    scans = [replace(scan, start_position=0, end_position=16 << 20, chunks=chunks)]
    tracemalloc.start()
    n = number_of_splits(scans, [range(1)], 1, 1 << 30, 2)
    assert len(make_splits(scans, [range(1)], n)) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20, f"{peak} bytes, for 2 chunks of 8 MiB"
