"""Sizes that a dry run cannot know, and retention by such sizes, or in a run that does not compact after all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastkey.logformat.primitives.codec import compress
from lastkey.udfs.compact.clean import clean_batches
from tests.builders.folders import archived_at, compact, golden_plan
from tests.builders.plans import changed


@pytest.mark.parametrize("name", ["snappy-zipf", "zstd-headers"])
def test_dry_run_marks_estimated_sizes(cases, name, tmp_path, monkeypatch):
    """Compression decides the sizes that retention.bytes counts."""
    monkeypatch.setattr(clean_batches, "_SAMPLE_BYTES", 1)
    monkeypatch.setattr(clean_batches, "_SAMPLE_BATCHES", 1)
    case = cases[name]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 2, archived_at(case.folder / "input", partition), tmp_path)
    plan = changed(plan, settings=replace(plan.policy.settings, segment_bytes=70_000))
    written, guessed = (
        sum(
            s.size_bytes for s in compact(changed(plan, folder=folder, dry_run=folder == "dry")).result.log.segments[1:]
        )
        for folder in ("real", "dry")
    )
    assert written != guessed
    both = changed(plan, settings=replace(plan.policy.settings, retention_bytes=(written + guessed + 1) // 2))
    real, dry = (compact(changed(both, folder=folder, dry_run=folder == "dry2")).result for folder in ("real2", "dry2"))
    assert any("estimated sizes" in note for note in dry.notes)
    assert not any("estimated" in note for note in real.notes)


@pytest.mark.parametrize("name", ["gzip-headers", "lz4-append", "snappy-zipf", "txn-zstd", "v1-snappy"])
def test_dry_run_estimates_the_recompressed_size(cases, name, tmp_path, monkeypatch):
    """The whole batch's ratio predicted 8 to 22 % too little: fewer records compress worse."""
    case = cases[name]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    compressed: list[int] = []
    monkeypatch.setattr(clean_batches, "compress", lambda *given: compressed.append(0) or compress(*given))
    written = compact(plan).result
    exact = compact(changed(plan, dry_run=True)).result  # few enough bytes to recompress all
    assert written.work.recompressed_bytes > 10_000
    assert (exact.work.bytes_after, exact.work.recompressed_bytes) == (
        written.work.bytes_after,
        written.work.recompressed_bytes,
    )
    n_all = len(compressed)
    compressed.clear()
    monkeypatch.setattr(clean_batches, "_SAMPLE_BYTES", 4096)
    monkeypatch.setattr(clean_batches, "_SAMPLE_BATCHES", 4)
    sampled = compact(changed(plan, dry_run=True)).result
    assert 0 < len(compressed) < n_all
    assert sampled.work.recompressed_bytes == pytest.approx(written.work.recompressed_bytes, rel=0.03)


def test_force_does_not_move_the_first_dirty_offset_back(cases, tmp_path):
    """All records are younger than min.compaction.lag.ms, so nothing is cleaned, and only retention is applied."""
    case = cases["none-tomb"]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    sizes = [s.size_bytes for s in plan.input.segments]
    limits = replace(plan.policy.settings, min_compaction_lag_ms=2**40, retention_bytes=sum(sizes[1:]))
    plan = changed(plan, settings=limits, first_dirty_offset=plan.input.segments[3].base_offset, force=False)
    plain, forced = compact(plan).result, compact(changed(plan, force=True, folder="forced")).result
    assert [entry.reason for entry in plain.log.expired] == [entry.reason for entry in forced.log.expired] == ["size"]
    assert not plain.log.compacted and not forced.log.compacted
    assert plain.log.first_dirty_offset == plan.input.first_dirty_offset
    assert forced.log.first_dirty_offset == plan.input.first_dirty_offset
