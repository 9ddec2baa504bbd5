"""`retention.exact` over several runs, in several tasks of Spark and in threads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.config import JobSettings, parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import BAD_SETTING
from lastkey.jobs.store.manifests import read_manifests
from lastkey.jobs.verify import job as verify
from lastkey.jobs.verify.plan_checks import plan_generation
from lastkey.udfs.compact.output import segment_output
from lastkey.udfs.compact.verdicts import UNKNOWN_TIMESTAMP
from lastkey.udfs.verify.generation import check_generation
from tests.builders.archives import COMPACT, Lab, by_topic, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.stores import manifest_segments
from tests.builders.trees import files_in, tree
from tests.reference.log import Record, data_batch, decode_log

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Steps for each topic, with both policies
WAYS = {"several": {"engine": "spark", "split.by": "always"}, "threads": {"engine": "threads"}}


@dataclass
class Runs:
    """The archive has segments 1 to 4, then all of them."""

    lab: Lab
    reports: list[CompactReport]
    oldest: list[int]  # oldest timestamp that may remain, by run
    now_ms: int
    records: dict[int, list[Record]]  # records in the source, by segment


def settings(way: str, now_ms: int, oldest_ms: int) -> dict[str, Any]:
    limit = {"retention.ms": now_ms - oldest_ms, "retention.exact": True}
    return {
        "defaults": {"min.cleanable.dirty.ratio": 0.0, "segment.bytes": 70_000},
        "topics": {
            "plain": {"cleanup.policy": "delete", **limit},
            "both": {"cleanup.policy": "compact,delete", **limit},
        },
        "job": WAYS[way],
    }


@pytest.fixture(scope="module", params=WAYS)
def runs(request, cases, now_ms, tmp_path_factory) -> Iterator[Runs]:
    way = request.param
    if way == "several":
        request.getfixturevalue("spark")
    lab = Lab(None, tmp_path_factory.mktemp("exact"))
    source = only_input(cases["snappy-zipf"])
    records = {int(log.stem): [r for b in decode_log(log.read_bytes()) for r in b.records] for log in files_in(source)}
    bases = sorted(records)
    assert len(bases) > 5
    inside = [records[base][len(records[base]) // 2].timestamp for base in bases]
    oldest = [inside[0], inside[0], inside[1], inside[3]]
    for topic in ("plain", "both"):
        put(source, lab.archive / f"{topic}-0", segments=4, batches=1)
    reports = [lab.run(now_ms, settings=settings(way, now_ms, at)) for at in oldest[:2]]
    for topic in ("plain", "both"):
        put(source, lab.archive / f"{topic}-0")
    before = tree(lab.archive)
    reports += [lab.run(now_ms, settings=settings(way, now_ms, at)) for at in oldest[2:]]
    assert tree(lab.archive) == before
    yield Runs(lab, reports, oldest, now_ms, records)


def test_exact_retention_removes_exactly_the_older_records(runs):
    assert [r.problem for report in runs.reports for r in report.results] == [None] * 8
    manifests = runs.lab.state().current()[1]
    plain = [r for b in runs.lab.batches(manifests["plain", 0]) for r in b.records]
    *closed, last = sorted(runs.records)
    expected = [r for base in closed for r in runs.records[base] if r.timestamp >= runs.oldest[-1]]
    assert plain == expected + runs.records[last]
    both = [r for b in runs.lab.batches(manifests["both", 0]) for r in b.records]
    assert set(both) < set(plain)
    lasts = {r.key: r for base in closed for r in runs.records[base]}
    assert {r for r in both if r.offset < last} == {r for r in lasts.values() if r.timestamp >= runs.oldest[-1]}
    for rows in manifests.values():
        runs.lab.check_whole([s for s in rows if s.root == "store"])


def test_second_run_expires_no_record(runs):
    assert {t: r.status for t, r in by_topic(runs.reports[1]).items()} == {"plain": "not_due", "both": "not_due"}
    assert runs.reports[1].generations == {}


def test_the_report_counts_expired_records(runs):
    first = by_topic(runs.reports[0])["plain"]
    base = min(runs.records)
    n = sum(r.timestamp < runs.oldest[0] for r in runs.records[base])
    assert first.work.counters["dropped_expired"] == n > 0
    assert not first.log.compacted and first.log.expired == ()
    assert "older than retention.ms" in runs.reports[0].to_text()
    [partitions] = [p for p in runs.reports[0].to_json()["partitions"] if p["topic"] == "plain"]
    assert partitions["dropped_expired"] == n
    history = runs.lab.state().histories()["plain", 0]
    assert [run.dropped_expired for run in history if run.generation_after == 1] == [n]
    assert json.loads(history[0].settings)["retention_exact"] is True


def test_smallest_timestamps_of_segments_are_stored(runs):
    rows = runs.lab.state().current()[1]["plain", 0]
    for row in rows:
        held = [r.timestamp for b in runs.lab.batches([row]) for r in b.records]
        assert row.min_timestamp_ms in (min(held), UNKNOWN_TIMESTAMP)
    assert [row.min_timestamp_ms for row in rows[:-1] if row.min_timestamp_ms == UNKNOWN_TIMESTAMP] == []
    assert rows[-1].min_timestamp_ms == UNKNOWN_TIMESTAMP  # it is still written to


def test_verify_accepts_a_store_with_expired_records(runs):
    report = verify.run(VerifyOptions(None, store=str(runs.lab.store), config=parse_config({})), Silent())
    assert report.exit_code == 0, report.to_text()


@pytest.mark.parametrize("topic", ["plain", "both"])
def test_verify_with_other_limits_reports_wrongly_kept_or_removed_records(runs, topic):
    """With a longer limit, removed records are missing; with a shorter one, some records should have been removed."""
    state = runs.lab.state()
    history = {run.generation_after: run for run in state.histories()[topic, 0]}
    last = max(history)
    archive, uri = listed(str(runs.lab.archive)), str(runs.lab.archive)
    rows = manifest_segments(state, topic, 0, last)
    [before] = read_manifests(state.root, [history[last - 1].folder]).values()
    current = state.checkpoints()[topic, 0]
    plan = plan_generation(history[last], rows, before, archive, state.root, uri, JobSettings(), current)
    assert not plan.parent_gone
    assert not check_generation(plan).problems
    longer = check_generation(replace(plan, retention_ms=plan.retention_ms + 60_000)).problems
    assert {p.expected for p in longer} & {
        "every record that retention.ms and retention.bytes did not delete",
        "the last committed record of every key",
    }
    shorter = check_generation(replace(plan, retention_ms=plan.retention_ms - 60_000)).problems
    assert {p.expected for p in shorter} == {"no record older than retention.ms, as retention.exact says"}


def test_store_of_an_older_version_is_continued(cases, now_ms, tmp_path):
    """Its rows have no smallest timestamps."""
    lab = Lab(None, tmp_path, settings={"defaults": COMPACT})
    source = only_input(cases["snappy-zipf"])
    put(source, lab.archive / "both-0")
    lab.run(now_ms)
    assert {s.min_timestamp_ms for s in lab.state().current()[1]["both", 0]} == {UNKNOWN_TIMESTAMP}
    first = min(int(log.stem) for log in files_in(source))
    held = [r.timestamp for b in decode_log((source / f"{first:020d}.log").read_bytes()) for r in b.records]
    report = lab.run(now_ms, settings=settings("threads", now_ms, sorted(held)[len(held) // 2]))
    assert by_topic(report)["both"].status == "cleaned"
    assert verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent()).exit_code == 0


def test_contradicting_settings_are_refused():
    with raises_kind(BAD_SETTING, match=r"retention\.exact: expected a retention\.ms of 0 or more"):
        parse_config({"topics": {"users": {"cleanup.policy": "delete", "retention.exact": True}}})
    with raises_kind(BAD_SETTING, match=r"retention\.exact: expected delete in cleanup.policy"):
        parse_config({"topics": {"users": {"cleanup.policy": "compact", "retention.exact": True}}})
    lag = {"cleanup.policy": "compact,delete", "retention.ms": 5, "min.compaction.lag.ms": 6, "retention.exact": True}
    with raises_kind(BAD_SETTING, match=r"retention\.exact: expected min\.compaction\.lag\.ms of at most"):
        parse_config({"topics": {"users": lag}})
    with raises_kind(BAD_SETTING, match=r"retention\.exact: expected true or false"):
        parse_config({"defaults": {"retention.exact": 1}})
    parse_config({"defaults": {"cleanup.policy": "delete", "retention.ms": 5, "retention.exact": True}})


def verified(lab: Lab) -> tuple[int, str]:
    report = verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent())
    return report.exit_code, report.to_text()


def begun(cases, now_ms, tmp_path) -> tuple[Lab, int]:
    """Make an archive of one topic, and a time at which half of the records of its first segment are too old."""
    lab = Lab(None, tmp_path)
    source = only_input(cases["snappy-zipf"])
    put(source, lab.archive / "both-0")
    first = min(int(log.stem) for log in files_in(source))
    held = [r.timestamp for b in decode_log((source / f"{first:020d}.log").read_bytes()) for r in b.records]
    return lab, sorted(held)[len(held) // 2]


def lazily(now_ms: int, oldest_ms: int) -> dict[str, Any]:
    """Return settings by which nothing is ever due to be compacted."""
    out = settings("threads", now_ms, oldest_ms)
    return out | {"defaults": out["defaults"] | {"min.cleanable.dirty.ratio": 1.0}}


def test_verify_distinguishes_runs_with_retention_only(now_ms, tmp_path, monkeypatch):
    """The policy is compact,delete; the run applied only retention, all young records remain, superseded ones too."""
    lab = Lab(None, tmp_path)
    folder = lab.archive / "both-0"
    folder.mkdir(parents=True)
    oldest = now_ms - 1000
    for base, times in ((0, [oldest - 1, oldest]), (2, [now_ms]), (3, [now_ms])):
        batches = [data_batch(base + i, [(at, b"key", b"value")]) for i, at in enumerate(times)]
        (folder / f"{base:020d}.log").write_bytes(b"".join(b.data for b in batches))
    by_mistake = settings("threads", now_ms, oldest + 1)
    by_mistake["topics"]["both"] |= {"retention.exact": False, "min.cleanable.dirty.ratio": 1.0}
    report = lab.run(now_ms, settings=by_mistake)
    assert [entry.segments for entry in by_topic(report)["both"].log.expired] == [1]
    [run] = lab.state().histories()["both", 0]
    assert not run.compacted
    assert verified(lab)[0] == 0
    archive, state = listed(str(lab.archive)), lab.state()
    rows = manifest_segments(state, "both", 0, 1)
    uri, current = str(lab.archive), state.checkpoints()["both", 0]
    plan = plan_generation(run, rows, None, archive, state.root, uri, JobSettings(), current)
    assert not plan.parent_gone
    [problem] = check_generation(replace(plan, retention_ms=plan.retention_ms + 1)).problems
    assert problem.expected == "every record that retention.ms and retention.bytes did not delete"


def test_verify_reports_a_wrong_smallest_timestamp(cases, now_ms, tmp_path, monkeypatch):
    """A wrong smallest timestamp hides the segment from later runs, which then never remove its expired records."""
    lab, oldest = begun(cases, now_ms, tmp_path)
    monkeypatch.setattr(segment_output, "least_timestamp", lambda rows: 2**63 - 1)
    lab.run(now_ms, settings=lazily(now_ms, oldest))
    rows = lab.state().current()[1]["both", 0]
    assert rows[0].min_timestamp_ms == 2**63 - 1
    code, text = verified(lab)
    assert code != 0, text


def test_verify_accepts_removal_of_a_record_without_timestamp_in_a_cleaned_segment(now_ms, tmp_path):
    """The rest of the compacted segment has expired for retention and for Kafka; verify uses the source's time, which
    comes from a superseded record.
    """
    lab = Lab(None, tmp_path)
    folder = lab.archive / "both-0"
    folder.mkdir(parents=True)
    oldest = now_ms - 1000
    logs = {0: [(-1, b"k", b"v"), (now_ms, b"l", b"superseded"), (oldest - 1, b"l", b"v")], 3: [(now_ms, b"m", b"v")]}
    for base, records in logs.items():
        (folder / f"{base:020d}.log").write_bytes(data_batch(base, records).data)
        os.utime(folder / f"{base:020d}.log", (oldest // 1000 - 60,) * 2)
    report = lab.run(now_ms, settings=settings("threads", now_ms, oldest))
    assert [entry.reason for entry in by_topic(report)["both"].log.expired] == ["time"]
    code, text = verified(lab)
    assert code == 0, text
