"""`compaction.strategy` end to end: in several tasks of Spark and in threads; verified and reported."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.config import JobSettings, parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.errors import BAD_SETTING
from lastkey.jobs.report.job import profile_archive
from lastkey.jobs.verify import job as verify
from lastkey.jobs.verify.plan_checks import plan_generation
from lastkey.udfs.verify.blocks import Order
from lastkey.udfs.verify.generation import check_generation
from tests.builders.archives import Lab, by_topic
from tests.builders.errors import raises_kind
from tests.builders.stores import manifest_segments
from tests.builders.versions import NAME, drawn, twin
from tests.reference.log import Batch, Record, with_timestamps
from tests.reference.read_committed import committed_offsets

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STRATEGIES = ("timestamp", "header")
WAYS = {"several": {"engine": "spark", "split.by": "always", "split.bytes": 1}, "threads": {"engine": "threads"}}


def settings(way: str) -> dict[str, Any]:
    return {
        "defaults": {"min.cleanable.dirty.ratio": 0.0, "cleanup.policy": "compact"},
        "topics": {
            "timestamp": {"compaction.strategy": "timestamp"},
            "header": {"compaction.strategy": "header", "compaction.strategy.header": NAME},
        },
        "job": WAYS[way],
    }


@pytest.mark.parametrize("way", WAYS)
def test_verify_accepts_two_runs_with_a_strategy(way, request, now_ms, tmp_path):
    if way == "several":
        request.getfixturevalue("spark")
    lab = Lab(None, tmp_path)
    batches: list[Batch] = []
    for strategy in STRATEGIES:
        archived, batches = drawn(random.Random(5), tmp_path / strategy)
        (lab.archive / f"{strategy}-0").parent.mkdir(exist_ok=True)
        (tmp_path / strategy / "t-0").rename(lab.archive / f"{strategy}-0")
        assert archived.segments
    first = lab.run(now_ms, settings=settings(way))
    assert {t: r.status for t, r in by_topic(first).items()} == dict.fromkeys(STRATEGIES, "cleaned"), first.to_text()
    visible = set(committed_offsets(batches))
    records = [r for b in batches for r in b.records if r.offset in visible and r.key is not None]
    grown = list(records)
    for strategy in STRATEGIES:
        manifests = lab.state().current()[1]
        assert offsets(lab, manifests[strategy, 0][:-1]) == twin(records, strategy)
        last = max((lab.archive / f"{strategy}-0").glob("*.log"))
        end = int(last.stem) + 1
        more = [Record(end + i, 900 + i, b"a", b"late", ((NAME.encode(), bytes(7) + bytes([i])),)) for i in range(3)]
        last.write_bytes(last.read_bytes() + with_timestamps(Batch(end, end + 2, tuple(more))).encoded().data)
        active = with_timestamps(Batch(end + 3, end + 3, (Record(end + 3, 1, b"z", b"", ()),))).encoded()
        (last.parent / f"{end + 3:020d}.log").write_bytes(active.data)
        grown = [*records, *more]
    second = lab.run(now_ms, settings=settings(way))
    assert all((r.work.splits > 1) == (way == "several") for r in second.results)
    assert {t: r.status for t, r in by_topic(second).items()} == dict.fromkeys(STRATEGIES, "cleaned"), second.to_text()
    manifests = lab.state().current()[1]
    for strategy in STRATEGIES:
        left = [o for o in offsets(lab, manifests[strategy, 0][:-1]) if o != end - 1]  # the one that was the active one
        assert left == twin(grown, strategy)
    report = verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent())
    assert report.exit_code == 0, report.to_text()
    _under_another_story(lab)


def offsets(lab: Lab, rows: list) -> list[int]:
    return [r.offset for b in lab.batches(rows) if not b.control for r in b.records]


def _under_another_story(lab: Lab) -> None:
    """Check that verify finds wrong records as soon as a run is said to be one by offset."""
    state, archive = lab.state(), listed(str(lab.archive))
    for strategy in STRATEGIES:
        history = {run.generation_after: run for run in state.histories()[strategy, 0]}
        rows = manifest_segments(state, strategy, 0, 1)
        plan = plan_generation(
            history[1],
            rows,
            None,
            archive,
            state.root,
            str(lab.archive),
            JobSettings(),
            state.checkpoints()[strategy, 0],
        )
        assert not plan.parent_gone
        assert not check_generation(plan).problems
        problems = check_generation(replace(plan, by=Order())).problems
        assert {p.expected for p in problems} == {"the last committed record of every key"}


def test_report_names_the_strategy(tmp_path: Path) -> None:
    drawn(random.Random(1), tmp_path / "archive")
    tables = {"topics": {"t": {"cleanup.policy": "compact", "compaction.strategy": "timestamp"}}}
    options = ReportOptions(str(tmp_path / "archive"), "", now_ms=2_000_000_000_000, config=parse_config(tables))
    [profile] = profile_archive(options, Silent()).profiles
    assert profile.notes == ("t-0: dead records are counted by offset, not by timestamp",)


def test_contradicting_strategy_settings_are_refused() -> None:
    for table, expected in (
        ({"compaction.strategy": "header"}, r"compaction\.strategy\.header: expected the name of the header"),
        ({"compaction.strategy.header": "v"}, r"compaction\.strategy\.header: expected none"),
        ({"compaction.strategy": "newest"}, r"compaction\.strategy: expected offset or timestamp or header"),
        ({"compaction.strategy": "header", "compaction.strategy.header": 5}, "expected text"),
    ):
        with raises_kind(BAD_SETTING, match=expected):
            parse_config({"topics": {"users": {"cleanup.policy": "compact", **table}}})
