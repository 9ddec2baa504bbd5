"""Schedule of runs by yield: a dry run predicts the run, budgets are observed, and runs use earlier results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastkey.jobs.command.cli import main
from lastkey.udfs.compact.plan import PartitionResult
from tests.builders.logs import START_MS
from tests.builders.nights import DAY, SETTINGS, Kept, NightlyArchive
from tests.builders.trees import tree

KEYS, HOT = 1500, 30


def _night(rng: np.random.Generator, n: int = 75, *, hot: float = 0.9) -> str:
    """Return a night's records: nine of ten of 2 % of the keys. Values are long, as a filter must cost little."""
    names = np.where(rng.random(n) < hot, rng.integers(0, HOT, n), rng.integers(HOT, KEYS, n))
    return _batches(names.tolist())


def _batches(names: Sequence[int]) -> str:
    """Return records in batches of 25."""
    records = [f"k{name}={'x' * 400}" for name in names]
    return "|".join(" ".join(records[at : at + 25]) for at in range(0, len(records), 25))


def _begun(
    root: Path, nights: int = 6, *, hot: float = 0.9, **settings: Any
) -> tuple[NightlyArchive, np.random.Generator]:
    made, rng = NightlyArchive(root), np.random.default_rng(1)
    made.settings = {
        name: SETTINGS[name]
        for name in ("cleanup.policy", "compaction.schedule", "index.interval.bytes", "min.cleanable.dirty.ratio")
    }
    made.settings |= {"segment.bytes": 60_000, "compaction.full.ms": 1000 * DAY} | settings
    order = rng.permutation(KEYS).tolist()
    for at in range(0, KEYS, 150):
        made.segments.append(_batches(order[at : at + 150]))
    made.grow(made.segments.pop())
    made.run()
    for _ in range(nights):
        made.grow(_night(rng, hot=hot))
        made.run()
    made.grow(_night(rng, hot=hot))
    return made, rng


def _dry_run(nights: NightlyArchive, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return the partition of `compact --dry-run --json`."""
    settings = nights.root / "settings.toml"
    lines = [f'"{name}" = {json.dumps(value)}' for name, value in nights.settings.items()]
    settings.write_text("\n".join(["[defaults]", *lines, "[job]", 'engine = "threads"']))
    lab, now = nights.lab(), START_MS + len(nights.segments) * DAY
    capsys.readouterr()
    arguments = ["compact", str(lab.archive), "--store", str(lab.store), "--config", str(settings), "--now", str(now)]
    assert main([*arguments, *options, "--dry-run", "--json"]) == 0
    [partition] = json.loads(capsys.readouterr().out)["partitions"]
    assert main([*arguments, *options, "--dry-run"]) == 0
    assert "t-0: would clean " in capsys.readouterr().out
    return dict(partition)


def _result(nights: NightlyArchive, **options: Any) -> PartitionResult:
    [result] = nights.run(**options).results
    return result


@pytest.fixture(scope="module")
def sixth_night_archive(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    root = tmp_path_factory.mktemp("schedule")
    return Kept(_begun(root / "now", **{"compaction.min.yield": 0.1})[0], root / "kept")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--set", "compaction.min.yield=0.2"), ("--io-budget", "100000")])
def test_compact_rewrites_the_segments_of_its_dry_run(
    sixth_night_archive: Kept, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    nights = sixth_night_archive.again()
    before = tree(nights.lab().store)
    planned = _dry_run(nights, capsys, *options)
    assert tree(nights.lab().store) == before
    options_by_name = {
        "--set": {"overrides": options[1:]}, "--io-budget": {"io_budget": 100_000}
    }  # fmt: skip
    result = _result(nights, **options_by_name.get(options[0], {}) if options else {})
    assert [s["reason"] for s in planned["schedule"]] == [s.reason for s in result.schedule]
    assert [s["dead_records"] for s in planned["schedule"]] == [s.dead_records for s in result.schedule]
    rewritten = {s.base_offset for s in result.schedule if s.reason != "kept"}
    assert rewritten, "nothing was worth its rewrite: the test shows nothing"
    untouched = {row.base_offset for row in nights.rows() if row.root == "store" and not row.cleaned}
    assert untouched == {s.base_offset for s in result.schedule if s.reason == "kept"}
    if options[:1] == ("--set",):
        assert all(s.dead_records >= 0.2 * s.records for s in result.schedule if s.reason == "yield")
    if options[:1] == ("--io-budget",):
        chosen = [s for s in planned["schedule"] if s["reason"] != "kept"]
        read = sum(s["size_bytes"] for s in chosen)
        freed = sum(s["size_bytes"] * s["dead_records"] // max(s["records"], 1) for s in chosen)
        assert read + 2 * (read - freed) <= 100_000
    expected = sum(row.expected_dead for row in nights.rows() if row.cleaned and row.expected_dead >= 0)
    assert expected == sum(s.dead_records for s in result.schedule if s.reason != "kept")
    nights.checked()


@pytest.mark.slow
def test_io_budget_postpones_a_full_run(tmp_path: Path) -> None:
    nights, _ = _begun(tmp_path, nights=2, **{"compaction.full.ms": 0})
    for budget in (1000, 0):
        assert _result(nights, io_budget=budget).schedule
        nights.grow(_night(np.random.default_rng(budget)))
    nights.grow(_night(np.random.default_rng(2)))
    assert not _result(nights).schedule


def test_yield_options_without_effect_are_named(tmp_path: Path) -> None:
    nights, _ = _begun(tmp_path, nights=0, **{"compaction.schedule": "full"})
    report = nights.run(io_budget=1000)
    assert any("--io-budget had no effect" in note for note in report.notes)
