"""Retention over several runs: the archive still holds what has expired, grows, and loses it in the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.config import JobSettings, parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact.plan_inputs import input_from_generation
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import BAD_SETTING, UsageError
from lastkey.jobs.verify import job as verify
from lastkey.jobs.verify.plan_checks import plan_generation
from lastkey.udfs.problem import Problem
from lastkey.udfs.verify.generation import check_generation
from tests.builders.archives import Lab, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.plans import changed
from tests.builders.stores import manifest_segments
from tests.builders.trees import files_in, tree
from tests.reference.log import decode_log

pytestmark = pytest.mark.slow


@dataclass
class Runs:
    """Four runs over "plain" (delete) and "both" (compact,delete), a copy of the same partition."""

    lab: Lab
    reports: list[CompactReport]
    bases: list[int]
    largest: list[int]
    now_ms: int
    whole: Path  # the archive before its first segments went

    def expired(self, number: int, topic: str) -> list[tuple[str, int]]:
        """Return (rule, segments) of a run."""
        [results] = [r for r in self.reports[number].results if r.topic == topic]
        return [(entry.reason, entry.segments) for entry in results.log.expired]


def settings(now_ms: int, oldest_ms: int) -> dict[str, Any]:
    limit = {"retention.ms": now_ms - oldest_ms}
    return {
        "defaults": {"min.cleanable.dirty.ratio": 0.0, "segment.bytes": 70_000},
        "topics": {
            "plain": {"cleanup.policy": "delete", **limit},
            "both": {"cleanup.policy": "compact,delete", **limit},
        },
    }


@pytest.fixture(scope="module")
def runs(cases, now_ms, tmp_path_factory) -> Iterator[Runs]:
    lab = Lab(None, tmp_path_factory.mktemp("retention"))
    source = only_input(cases["snappy-zipf"])
    logs = files_in(source)
    assert len(logs) > 5
    largest = [max(b.max_timestamp for b in decode_log(log.read_bytes())) for log in logs]
    assert largest == sorted(largest)
    for topic in ("plain", "both"):
        put(source, lab.archive / f"{topic}-0", segments=4, batches=1)
    reports = [lab.run(now_ms, settings=settings(now_ms, largest[0] + 1))]  # the first segment goes
    reports.append(lab.run(now_ms, settings=settings(now_ms, largest[0] + 1)))  # nothing more
    for topic in ("plain", "both"):
        put(source, lab.archive / f"{topic}-0")  # it grows, and still has what has expired
    before = tree(lab.archive)
    reports.append(lab.run(now_ms, settings=settings(now_ms, largest[2] + 1)))
    assert tree(lab.archive) == before
    shutil.copytree(lab.archive, lab.root / "whole")
    for topic in ("plain", "both"):
        for path in (lab.archive / f"{topic}-0").glob(f"{int(logs[0].stem):020d}.*"):
            path.unlink()  # the broker's own retention follows
    reports.append(lab.run(now_ms, settings=settings(now_ms, largest[2] + 1)))
    yield Runs(lab, reports, [int(log.stem) for log in logs], largest, now_ms, lab.root / "whole")


def test_each_run_removes_expired_segments(runs):
    assert [runs.expired(n, "plain") for n in range(4)] == [[("time", 1)], [], [("time", 2)], []]
    assert [r.problem for report in runs.reports for r in report.results] == [None] * 8
    assert [len(report.generations) for report in runs.reports][:2] == [2, 0]
    checkpoints, manifests = runs.lab.state().current()
    assert [s.base_offset for s in manifests["plain", 0]] == runs.bases[3:]
    assert {s.root for s in manifests["plain", 0]} == {"archive"}
    assert checkpoints["plain", 0].expired_until == checkpoints["plain", 0].log_start_offset == runs.bases[3]
    for key, rows in manifests.items():
        runs.lab.check_whole([s for s in rows if s.root == "store"] or rows)
        assert rows[0].base_offset == checkpoints[key].log_start_offset


def test_retained_records_of_a_compacted_topic_are_within_the_limit(runs):
    checkpoints, manifests = runs.lab.state().current()
    kept = runs.lab.batches(manifests["both", 0])
    start = checkpoints["both", 0].log_start_offset
    assert start > 0 and min(b.base_offset for b in kept) >= start
    assert max(b.max_timestamp for b in kept[:1]) > runs.largest[0]
    assert sum(segments for n in range(4) for _, segments in runs.expired(n, "both")) > 0


def test_store_without_expiry_state_reports_reappeared_segments(runs):
    """As one that an older version wrote to: uncleanable, and nothing is read twice."""
    checkpoint = runs.lab.state().checkpoints()["plain", 0]
    archived = listed(str(runs.lab.archive)).partitions["plain", 0]
    manifest = runs.lab.state().current()[1]["plain", 0]
    arguments = archived, checkpoint, manifest, str(runs.lab.store)
    assert input_from_generation(*arguments, "fail").log_start_offset == checkpoint.log_start_offset
    problem = input_from_generation(archived, replace(checkpoint, expired_until=0), *arguments[2:], "fail")
    assert isinstance(problem, Problem) and problem.state == "gap"


def test_verify_and_report_accept_expired_segments(runs):
    report = verify.run(VerifyOptions(None, store=str(runs.lab.store), config=parse_config({})), Silent())
    assert report.exit_code == 0, report.to_text()
    text = runs.reports[0].to_text()
    assert "expired: plain-0: 1 segment by time (" in text
    assert f"; the log starts at offset {runs.bases[1]:,} now" in text
    [plain] = [p for p in runs.reports[2].to_json()["partitions"] if p["topic"] == "plain"]
    assert plain["log_start_offset"] == runs.bases[3]
    assert [(entry["reason"], entry["segments"]) for entry in plain["expired"]] == [("time", 2)]
    dry = runs.lab.run(runs.now_ms, settings=settings(runs.now_ms, runs.largest[4] + 1), dry_run=True)
    assert "would expire: plain-0: " in dry.to_text()
    assert dry.generations == {}


@pytest.mark.parametrize("topic", ["plain", "both"])
def test_verify_detects_wrongly_removed_segments(runs, topic):
    """The same files with other settings: the limit is longer, or larger, than the removed segments imply."""
    state = runs.lab.state()
    history = {run.generation_after: run for run in state.histories()[topic, 0]}
    number = min(n for n, run in history.items() if run.expired)
    run = history[number]
    archive, uri = listed(str(runs.whole)), str(runs.whole)
    plan = plan_generation(
        run,
        manifest_segments(state, topic, 0, number),
        None,
        archive,
        state.root,
        uri,
        JobSettings(),
        state.checkpoints()[topic, 0],
    )
    assert not plan.parent_gone
    assert not check_generation(plan).problems
    longer = check_generation(changed(plan, retention_ms=plan.retention_ms + 3_600_000))
    assert longer.problems, "records of the last hour went"
    assert check_generation(changed(plan, retention_ms=-1)).problems


def test_contradicting_retention_settings_are_refused(runs):
    with raises_kind(BAD_SETTING, match=r"retention\.ms: expected delete in cleanup.policy"):
        parse_config({"topics": {"users": {"cleanup.policy": "compact", "retention.ms": 5}}})
    parse_config({"defaults": {"retention.ms": 5}, "topics": {"users": {"cleanup.policy": "compact"}}})
    with pytest.raises(UsageError, match="no partition of a compacted topic"):  # delete alone takes nothing
        runs.lab.run(runs.now_ms, settings={"defaults": {"cleanup.policy": "delete"}})
