"""A dry run in several tasks, or in stages, says the same as in one, and leaves no file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.udfs.compact.plan import PartitionResult
from tests.builders.folders import archived_at, compact, golden_plan
from tests.builders.plans import changed
from tests.builders.splits import compact_in_blocks
from tests.golden import Case


@pytest.mark.parametrize("name", ["few-keys", "txn-none", "none-tomb", "zstd-headers"])
@pytest.mark.parametrize("strategy", ["offset", "timestamp"])
def test_several_tasks_report_the_same_as_one(
    name: str, strategy: str, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, temporary = cases[name], tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path / "store")
    by = replace(plan.policy.settings, compaction_strategy=strategy)
    plan = changed(plan, dry_run=True, settings=by, limits=replace(plan.run.limits, split_bytes=1, chunk_bytes=4096))
    one, several = compact(plan).result, compact_in_blocks(plan).result
    assert (several.status, several.work.splits > 1) == ("cleaned", True)
    assert dry_run_facts(several) == dry_run_facts(one)
    assert not (tmp_path / "store").exists()
    assert list(temporary.iterdir()) == []


def dry_run_facts(result: PartitionResult) -> tuple[object, ...]:
    """Return what a dry run says, without sizes that it estimates."""
    segments = [replace(s, size_bytes=0) for s in result.log.segments]
    return result.status, result.work.counters, segments, result.notes
