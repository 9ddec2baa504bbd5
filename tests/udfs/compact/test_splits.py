"""Both ways of finding the last offset of a key write the same files: in splits, and in one task."""

from __future__ import annotations

import io
import itertools
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastkey.udfs.compact import compact_partition
from lastkey.udfs.compact.passes import Clock
from tests.builders.drawn import Drawn, logs, plan_of_drawn
from tests.builders.folders import archived_at, compact, golden_plan, lay_out, make_plan, survivors
from tests.builders.limits import within
from tests.builders.plans import changed
from tests.builders.splits import assert_same, assert_same_all_ways, compact_in_blocks
from tests.golden import case_names, golden
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import ABORT, COMMIT, NONE, ZSTD, Batch, data_batch, marker_batch

_QUICK = ("txn-zstd", "v1-lz4", "null-keys", "two-parts")  # each costs as much as fifty other tests


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in case_names()]
)
def test_split_compaction_of_golden_partitions_writes_the_same_bytes(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = golden(tmp_path_factory)[name]
    for partition in case.partitions:
        plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path / partition)
        assert assert_same_all_ways(plan, seed=partition).result.status == "cleaned"


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(), st.integers(0, 2**32))
def test_split_compaction_of_random_logs_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, seed: int
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as tmp:
        assert_same_all_ways(plan_of_drawn(drawn, Path(tmp)), seed=seed)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_every_strategy_keeps_records_of_a_lost_marker(tmp_path: Path, kind: int) -> None:
    """The records of the earlier transaction stay in every way; some chunks of the split hold nothing else."""

    def data(offset: int, epoch: int, n: int = 40) -> Batch:
        records = [(5, b"k%d" % i, b"%d" % offset) for i in range(n)]
        return data_batch(offset, records, producer_id=1, producer_epoch=epoch, base_sequence=0, transactional=True)

    plain = [data_batch(100 * i, [(5, b"k%d" % j, b"v") for j in range(40)]) for i in (0, 3, 5)]
    segments = [
        Segment(0, (plain[0], data(100, 0), data(200, 1), marker_batch(250, 1, kind, timestamp=5, epoch=2)), 1),
        Segment(300, (plain[1],), 1), Segment(500, (plain[2],), 1),
    ]  # fmt: skip
    archived = lay_out(tmp_path / "archive", segments)
    plan = make_plan(archived, tmp_path / "store", Settings(), now_ms=1, log_start_offset=0, sealed=True)
    assert_same_all_ways(plan)
    offsets = [r.offset for b in survivors(compact(plan).segments()) for r in b.records]
    assert offsets == [*range(100, 140), 250, *range(500, 540)]


def many_keys(n_segments: int, n_batches: int, n_keys: int, seed: int) -> list[Segment]:
    """Return segments of batches of 50 records with keys drawn at random."""
    random_keys = random.Random(seed)
    segments, offset = [], 0
    for _ in range(n_segments):
        base, batches = offset, []
        for _ in range(n_batches):
            rows = [(1000 + i, b"%d" % random_keys.randrange(n_keys), b"v%d" % i) for i in range(50)]
            batches.append(data_batch(offset, rows))
            offset += 50
        segments.append(Segment(base, tuple(batches), 1000))
    return segments


@pytest.mark.long
def test_emptied_key_table_sends_duplicates_without_effect(tmp_path: Path) -> None:
    """More keys than the table of a task may hold: one task continues in stages, and several splits continue."""
    segments = many_keys(2, 500, 10**6, 3)
    plan = make_plan(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=0,
        sealed=True,
    )  # fmt: skip
    plan = changed(plan, limits=replace(plan.run.limits, chunk_bytes=1 << 16))
    expected = compact(plan)
    tight = changed(plan, folder="tight", limits=replace(plan.run.limits, task_memory_bytes=4 << 20))
    in_stages = compact(tight)
    assert_same(expected, in_stages)
    assert "stages" in in_stages.result.work.seconds
    assert_same(expected, compact_in_blocks(changed(tight, folder="several"), split_bytes=1 << 30))
    newest = {r.key: r for s in segments for b in s.batches for r in b.records}
    assert expected.result.work.counters["records_kept"] == len(newest)


def test_a_bit_that_the_temporary_file_of_stages_loses_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(1000, b"%d" % i, b"") for i in range(70_000)]
    archived = lay_out(tmp_path / "archive", [Segment(0, (data_batch(0, rows), data_batch(70_000, rows[:9])), 1000)])
    plan = make_plan(archived, tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=0, sealed=True)

    class Losing(io.BytesIO):
        def write(self, data: Any) -> int:
            written = bytearray(data)
            if len(written) > 1000:
                written[999] ^= 4
            return super().write(written)

    monkeypatch.setattr(compact_partition.tempfile, "TemporaryFile", lambda **_: Losing())
    result = compact(changed(plan, limits=replace(plan.run.limits, task_memory_bytes=2 << 20))).result
    assert result.problem is not None and result.problem.kind == "readback"
    assert result.problem.path.endswith("temporary file of survivors")
    assert not (tmp_path / "store" / plan.run.folder).exists()


@pytest.mark.long
@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize("n_keys", [70_000, 900])
def test_batch_with_more_records_than_table_slots_is_compacted(tmp_path: Path, codec: int, n_keys: int) -> None:
    """A run may have more keys than the table of a task, which is then emptied in the middle. Only distinct keys
    count.
    """
    n = 70_000
    rows = [(1000, b"%d" % (i * 7919 % n_keys), b"") for i in range(n)]
    segments = [Segment(0, (data_batch(0, rows, codec=codec), data_batch(n, rows[:9])), 1000)]
    plan = make_plan(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=0,
        sealed=True,
    )  # fmt: skip
    expected = compact(plan)
    assert expected.result.work.counters["records_kept"] == n_keys
    tight = changed(plan, folder="tight", limits=replace(plan.run.limits, task_memory_bytes=2 << 20))  # 43,690 keys
    with within(60):
        one = compact(tight)
        several = compact_in_blocks(changed(tight, folder="several"), split_bytes=1 << 30)
    assert ("stages" in one.result.work.seconds) == (n_keys > 43_690)
    assert_same(expected, one)
    assert_same(expected, several)


def test_next_group_has_the_base_offset_of_an_empty_group(tmp_path: Path) -> None:
    """No record of the first two segments survives; the next segment gets the base offset of the first."""
    values = [[(5, b"a", b"1")], [(6, b"a", b"2")], [(7, b"a", b"3"), (8, b"b", b"4")], [(9, b"c", b"5")]]
    offsets = itertools.accumulate([1, 1, 2], initial=10)
    segments = [Segment(o, (data_batch(o, v),), 100 + o) for o, v in zip(offsets, values, strict=True)]
    plan = make_plan(
        lay_out(tmp_path / "archive", segments), tmp_path / "store", Settings(segment_bytes=1, index_interval_bytes=0),
        now_ms=10**6, log_start_offset=10,
    )  # fmt: skip
    outcome = assert_same_all_ways(plan)
    by_time = replace(plan.policy.settings, compaction_strategy="timestamp")  # one task runs the stages
    in_stages = compact(changed(plan, folder="stages", settings=by_time))
    assert "stages" in in_stages.result.work.seconds
    assert in_stages.files() == outcome.files()
    assert [s.base_offset for s in outcome.result.log.segments] == [10, 14]
    assert [r.offset for s in outcome.segments() for b in s.batches for r in b.records] == [12, 13, 14]


def test_durations_of_phases_add_up() -> None:
    clock = Clock()
    with clock.phase("scan"):
        pass
    with clock.phase("scan"):
        pass
    assert set(clock.seconds) == {"scan"}
