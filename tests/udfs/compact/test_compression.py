"""compression.type and recompress: rewritten batches get another codec and are otherwise equal."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastkey.udfs.compact.plan import PartitionPlan
from tests.builders.drawn import Drawn, logs, plan_of_drawn
from tests.builders.folders import Outcome, archived_at, compact, golden_plan, lay_out, make_plan
from tests.builders.plans import changed
from tests.builders.splits import assert_same_all_ways
from tests.golden import Case, case_names
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import (
    COMMIT,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Batch,
    data_batch,
    decode_batch,
    decode_log,
    marker_batch,
)

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
TYPES = [(name, every) for name in NAMES for every in (False, True)]


def compressing(plan: PartitionPlan, name: str, *, every: bool = False, **levels: int) -> PartitionPlan:
    """Return the plan with compression.type, in a folder of its own."""
    levels_by_name = {f"compression_{codec}_level": level for codec, level in levels.items()}
    new = replace(plan.policy.settings, compression_type=name, recompress=every, **levels_by_name)  # type: ignore[arg-type]
    return changed(plan, settings=new, folder=f"{name}-{every}")


def cleaned(outcome: Outcome) -> list[Batch]:
    """Return the batches of the segments that were cleaned; the others are the archive's, of any magic."""
    assert outcome.result.status == "cleaned", outcome.result.problem
    paths = [outcome.path(i) for i, s in enumerate(outcome.result.log.segments) if s.cleaned]
    return [batch for path in paths for batch in decode_log(path.read_bytes())]


def check_codecs(old: Outcome, new: Outcome, name: str, *, every: bool) -> None:
    """Assert that a run has kept all batches of a run with the producers' codecs, and changed only their codec."""
    before, after = cleaned(old), cleaned(new)
    assert [replace(b, codec=NONE) for b in after] == [replace(b, codec=NONE) for b in before]
    source = {b.base_offset: b.data for b in archived_batches(new.plan)}
    for b, producers in zip(after, before, strict=True):
        was_rewritten = producers.data != source.get(b.base_offset)
        if b.records and not b.control and (every or was_rewritten):
            assert b.codec == NAMES.index(name)
        if b.codec == producers.codec:
            assert b.data == producers.data


def archived_batches(plan: PartitionPlan) -> list[Batch]:
    """Return the batches of magic 2 of the archive."""
    out: list[Batch] = []
    for s in plan.input.segments:
        data, at = (Path(s.root) / s.path).read_bytes()[: s.size_bytes], 0
        while at < len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if data[at + 16] == 2:
                out.append(decode_batch(data[at:end]))
            at = end
    return out


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(case_names())))
def test_golden_partitions_are_recompressed_with_each_codec(
    cases: dict[str, Case], tmp_path: Path, number: int
) -> None:
    """Every partition that brokers wrote, each case with another codec."""
    case = cases[case_names()[number]]
    name, every = TYPES[number % len(TYPES)]
    for partition in case.partitions:
        archived = archived_at(case.folder / "input", partition)
        plan = golden_plan(case, partition, 1, archived, tmp_path / partition)
        old = compact(plan)
        if old.result.status == "cleaned":
            check_codecs(old, compact(compressing(plan, name, every=every)), name, every=every)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(), st.sampled_from(TYPES), st.integers(0, 2**32))
def test_random_logs_are_recompressed_equally_by_all_strategies(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, chosen: tuple[str, bool], seed: int
) -> None:
    """One task and several write the same bytes, also where a batch is rewritten for its codec alone."""
    name, every = chosen
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as tmp:
        plan = plan_of_drawn(drawn, Path(tmp))
        old = compact(changed(plan, folder="producer"))
        settings = replace(plan.policy.settings, compression_type=name, recompress=every)  # type: ignore[arg-type]
        new = assert_same_all_ways(changed(plan, settings=settings), seed=seed)
        if old.result.status == "cleaned":
            check_codecs(old, new, name, every=every)


TEXT = b"a value that repeats and repeats and repeats, number %d"


def make_segment(*codecs: int) -> list[Segment]:
    """Return a segment with a batch of ten keys for each codec; a key of each is superseded by the next."""
    batches, offset = [], 0
    for i, codec in enumerate(codecs):
        rows = [(1000 + offset, b"k%d-%d" % (i, j) if j else b"k", TEXT % j) for j in range(10)]
        batches.append(data_batch(offset, rows, codec=codec))
        offset += 10
    return [Segment(0, tuple(batches), 1000)]


def plan_for(tmp_path: Path, segments: list[Segment]) -> PartitionPlan:
    archived = lay_out(tmp_path / "archive", segments)
    return make_plan(archived, tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=0, sealed=True)


def test_compression_level_applies_to_the_configured_codec_only(tmp_path: Path) -> None:
    drawn = random.Random(1)
    rows = [(1000, b"%d" % i, b" ".join(b"%d" % drawn.randrange(50) for _ in range(30))) for i in range(300)]
    plan = plan_for(tmp_path, [Segment(0, (data_batch(0, rows),), 1000)])
    for name, level in (("gzip", 1), ("zstd", -7), ("lz4", 1)):
        sizes = []
        for levels in ({}, {name: level}, {other: 1 for other in ("gzip", "zstd", "lz4") if other != name}):
            new = compact(changed(compressing(plan, name, every=True, **levels), folder=f"{name}{levels}"))
            assert len(cleaned(new)) == 1
            sizes.append(new.result.work.bytes_after)
        assert sizes[0] == sizes[2] != sizes[1], name


def test_batch_with_the_configured_codec_keeps_its_bytes(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, make_segment(ZSTD, GZIP, ZSTD))
    source = archived_batches(plan)
    new = compact(compressing(plan, "zstd", every=True, zstd=19))
    [segment] = new.segments()
    assert [b.codec for b in segment.batches] == [ZSTD] * 3
    assert segment.batches[2].data == source[2].data  # the first loses a record
    again = compact(changed(compressing(plan, "zstd", every=True, zstd=19), folder="again"))
    assert again.files() == new.files()


def test_control_batches_keep_their_codec(tmp_path: Path) -> None:
    data = data_batch(
        0, [(5, b"a", b"1" * 50)], producer_id=3, producer_epoch=1, base_sequence=7, transactional=True, codec=SNAPPY
    )
    segments = [Segment(0, (data, marker_batch(1, 3, COMMIT, timestamp=6, epoch=1)), 1)]
    plan = plan_for(tmp_path, segments)
    [segment] = compact(compressing(plan, "lz4", every=True)).segments()
    rewritten, marker = segment.batches
    assert rewritten.codec == LZ4 and marker.codec == NONE
    assert (rewritten.producer_id, rewritten.producer_epoch, rewritten.base_sequence) == (3, 1, 7)


def test_dry_run_predicts_the_size(tmp_path: Path) -> None:
    segments = make_segment(*[GZIP, NONE, LZ4, SNAPPY] * 30)
    plan = compressing(plan_for(tmp_path, segments), "zstd", every=True)
    real = compact(plan).result
    dry = compact(changed(plan, dry_run=True)).result
    assert abs(dry.work.bytes_after - real.work.bytes_after) <= 0.02 * real.work.bytes_after
    assert dry.work.counters == real.work.counters


def test_stages_read_the_batches_that_get_another_codec(tmp_path: Path) -> None:
    """A task in stages skips batches that keep all records, except batches of another codec."""
    rows = [[(1000, b"%d" % (i + 1000 * n), TEXT % i) for i in range(1000)] for n in range(140)]
    batches = tuple(data_batch(1000 * n, of, codec=GZIP if n % 2 else ZSTD) for n, of in enumerate(rows))
    plan = compressing(plan_for(tmp_path, [Segment(0, batches, 1000)]), "zstd", every=True)
    expected = compact(plan)
    tight = changed(plan, folder="tight", limits=replace(plan.run.limits, task_memory_bytes=4 << 20))
    in_stages = compact(tight)
    assert "stages" in in_stages.result.work.seconds
    assert in_stages.files() == expected.files()
    assert {b.codec for segment in in_stages.segments() for b in segment.batches} == {ZSTD}
