"""Retention where a run cannot know sizes yet, or does not compact after all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders.folders import archived_at, compact, golden_plan


@pytest.mark.parametrize("name", ["snappy-zipf", "zstd-headers"])
def test_a_dry_run_says_that_sizes_are_estimates(cases, name, tmp_path):
    """Compression decides the sizes that retention.bytes goes by."""
    case = cases[name]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 2, archived_at(case.folder / "input", partition), tmp_path)
    plan = replace(plan, settings=replace(plan.settings, segment_bytes=70_000))
    written, guessed = (
        sum(s.size_bytes for s in compact(replace(plan, folder=folder, dry_run=folder == "dry")).result.segments[1:])
        for folder in ("real", "dry")
    )
    assert written != guessed
    both = replace(plan, settings=replace(plan.settings, retention_bytes=(written + guessed + 1) // 2))
    real, dry = (compact(replace(both, folder=folder, dry_run=folder == "dry2")).result for folder in ("real2", "dry2"))
    assert any("estimated sizes" in note for note in dry.notes)
    assert not any("estimated" in note for note in real.notes)


def test_force_does_not_move_the_first_dirty_offset_back(cases, tmp_path):
    """Where nothing is cleaned because all is younger than min.compaction.lag.ms, and retention alone is done."""
    case = cases["none-tomb"]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    sizes = [s.listed.size for s in plan.segments]
    limits = replace(plan.settings, min_compaction_lag_ms=2**40, retention_bytes=sum(sizes[1:]))
    plan = replace(plan, settings=limits, checkpoint=plan.segments[3].base_offset, force=False)
    plain, forced = compact(plan).result, compact(replace(plan, force=True, folder="forced")).result
    assert [one.reason for one in plain.expired] == [one.reason for one in forced.expired] == ["size"]
    assert not plain.compacted and not forced.compacted
    assert plain.first_dirty_offset == plan.checkpoint
    assert forced.first_dirty_offset == plan.checkpoint
