"""Golden partitions compacted three times by us, and compared with the result of a real broker's cleaner.

Every pass works on the result of our pass before it. All batches with all header fields and records must be equal. The
bytes of the `.log`, `.index`, `.timeindex` and `.txnindex` files must be equal too, and so must file times. Two
differences are intended: we join an empty segment of the broker to the next one (whose index entries are then relative
to its base); and bytes of batches that were compressed again with zstd or snappy may differ, and so positions in the
indexes.
"""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lastkey.udfs.compact.plan import Limits
from tests.builders.folders import Outcome, archived_at, compact, golden_plan
from tests.builders.plans import changed
from tests.builders.trees import files_in
from tests.golden import PASSES, Case, case_names
from tests.reference.log import SNAPPY, ZSTD, decode_log


@dataclass(frozen=True)
class Files:
    """A segment's files."""

    base_offset: int
    log: bytes
    index: bytes
    timeindex: bytes
    txnindex: bytes
    mtime_ms: int

    def at_base(self, base_offset: int) -> Files:
        """Return the same files under an earlier base."""
        shift = self.base_offset - base_offset
        index = b"".join(struct.pack(">ii", o + shift, p) for o, p in struct.iter_unpack(">ii", self.index))
        times = b"".join(struct.pack(">qi", t, o + shift) for t, o in struct.iter_unpack(">qi", self.timeindex))
        return replace(self, base_offset=base_offset, index=index, timeindex=times)


def read_segments(folder: Path) -> list[Files]:
    out = []
    for log in files_in(folder):
        side = [log.with_suffix(f".{kind}") for kind in ("index", "timeindex", "txnindex")]
        index, times, txns = (f.read_bytes() if f.exists() else b"" for f in side)
        mtime_ms = log.stat().st_mtime_ns // 1_000_000
        out.append(Files(int(log.stem), log.read_bytes(), index, times, txns, mtime_ms))
    return out


def join_empty(segments: list[Files]) -> list[Files]:
    """Make the intended difference: give the base of an empty segment to the segment behind it."""
    out: list[Files] = []
    base = None
    for segment in segments:
        if not segment.log and segment is not segments[-1]:
            base = segment.base_offset if base is None else base
            continue
        out.append(segment if base is None else segment.at_base(base))
        base = None
    return out


def our_segments(ours: Outcome) -> list[Files]:
    out = []
    for i, segment in enumerate(ours.result.log.segments):
        side = [ours.side_file(i, kind) for kind in ("index", "timeindex", "txnindex")]
        index, times, txns = (f.read_bytes() if f.exists() else b"" for f in side)
        log = ours.path(i).read_bytes()
        assert len(log) == segment.size_bytes
        out.append(Files(segment.base_offset, log, index, times, txns, segment.mtime_ms))
    return out


def assert_equal(expected: list[Files], got: list[Files]) -> None:
    assert [f.base_offset for f in got] == [f.base_offset for f in expected]
    for theirs, mine in zip(expected, got, strict=True):
        assert mine.txnindex == theirs.txnindex
        assert mine.mtime_ms == theirs.mtime_ms
        if mine.log == theirs.log:
            assert mine.index == theirs.index
            assert mine.timeindex == theirs.timeindex
            continue
        batches = decode_log(theirs.log)
        assert decode_log(mine.log) == batches
        assert {b.codec for b in batches} & {SNAPPY, ZSTD}, "no recompressed batch could differ"


@pytest.mark.long
@pytest.mark.parametrize("name", case_names())
def test_three_passes_give_the_golden_result(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = cases[name]
    for partition in case.partitions:
        archived = archived_at(case.folder / "input", partition)
        for number in PASSES:
            ours = compact(golden_plan(case, partition, number, archived, tmp_path / f"{partition}.{number}"))
            assert ours.result.problem is None
            assert ours.result.status == "cleaned"
            assert_equal(join_empty(read_segments(case.expected(number, partition))), our_segments(ours))
            archived = ours.as_archive(tmp_path / f"{partition}.{number}.archive", snapshots=True)


@pytest.mark.parametrize("name", case_names())
def test_compaction_does_not_change_the_archive(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = cases[name]
    for partition in case.partitions:
        shutil.copytree(case.folder / "input" / partition, tmp_path / "archive" / partition)
        before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in case.input(partition).iterdir()}
        archived = archived_at(tmp_path / "archive", partition)
        compact(golden_plan(case, partition, 1, archived, tmp_path / "store"))
        after = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (tmp_path / "archive" / partition).iterdir()}
        assert after == before


def test_records_without_key_make_the_partition_uncleanable_unless_set_otherwise(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    case = cases["null-keys"]
    (partition,) = case.partitions
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    fails = compact(changed(plan, settings=replace(plan.policy.settings, null_keys="fail")))
    assert fails.result.status == "uncleanable"
    assert fails.result.problem is not None
    assert fails.result.problem.kind == "null_key"
    assert fails.files() == {}
    keeps = compact(changed(plan, settings=replace(plan.policy.settings, null_keys="keep")))
    drops = compact(changed(plan, folder="drops"))
    null_keys = drops.result.work.counters["null_keys"]
    assert null_keys == drops.result.work.counters["dropped_null_key"] > 0
    assert keeps.result.work.counters["records_kept"] == drops.result.work.counters["records_kept"] + null_keys


@pytest.mark.parametrize("name", ["txn-none", "v1-gzip-append", "zstd-headers"])
def test_small_buffers_give_the_same_files(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """Use chunks smaller than a batch, and send every piece through a temporary file."""
    case = cases[name]
    (partition,) = case.partitions
    archived = archived_at(case.folder / "input", partition)
    plan = golden_plan(case, partition, 1, archived, tmp_path / "usual")
    tiny = changed(plan, store_uri=str(tmp_path / "tiny"), limits=Limits(chunk_bytes=64, task_memory_bytes=0))
    assert compact(tiny).files() == compact(plan).files()
