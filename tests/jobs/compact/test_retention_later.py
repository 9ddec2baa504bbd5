"""Retention with an archive that grows, loses or regains files, or with changed settings between runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import runs
from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command.config import JobSettings, parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RunsOptions
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify import job as verify
from lastkey.jobs.verify.job import VerifyReport
from lastkey.jobs.verify.plan_checks import plan_generation
from lastkey.udfs.verify.generation import check_generation
from tests.builders.archives import Lab, by_topic, offset_checkpoint
from tests.builders.logs import write_partition
from tests.builders.stores import manifest_segments

pytestmark = pytest.mark.slow

LOG = "{ts=1000} a=1 b=1 || {ts=2000} a=2 c=1 || {ts=3000} a=3 d=1 || {ts=4000} a=4 e=1"
LIMIT_MS = 10_000


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(None, tmp_path)


def policy(words: str, **limits: int) -> dict[str, Any]:
    named = {f"retention.{unit}": value for unit, value in limits.items()}
    settings = {"min.cleanable.dirty.ratio": 0.0, "segment.bytes": 14}
    return {"defaults": settings, "topics": {"t": {"cleanup.policy": words, **named}}}


def write(lab: Lab, text: str = LOG) -> Path:
    shutil.rmtree(lab.archive / "t-0", ignore_errors=True)
    return write_partition(lab.archive / "t-0", text).folder


def delete_segments(folder: Path, *bases: int) -> None:
    for base in bases:
        for path in folder.glob(f"{base:020d}.*"):
            path.unlink()


def verified(lab: Lab) -> VerifyReport:
    return verify.run(VerifyOptions(None, store=str(lab.store), config=parse_config({})), Silent())


def expired_by_rule(report: Any) -> list[tuple[str, int]]:
    return [(entry.reason, entry.segments) for entry in by_topic(report)["t"].log.expired]


def test_records_of_an_accepted_gap_are_read_when_restored(lab):
    """Retention did not delete the offsets of an accepted gap: the log start must not move past the gap."""
    folder = write(lab)
    missing = folder / f"{2:020d}.log"
    data = missing.read_bytes()
    delete_segments(folder, 2)
    settings = policy("delete", ms=LIMIT_MS)
    now = 1000 + LIMIT_MS + 500  # the first segment alone is past its time
    assert expired_by_rule(lab.run(now, settings=settings, overrides={"gaps": "accept"})) == [("time", 1)]
    missing.write_bytes(data)
    report = lab.run(now, settings=settings)
    read = [s.base_offset for s in lab.state().current()[1]["t", 0]]
    problem = by_topic(report)["t"].problem
    assert 2 in read or (problem is not None and problem.state == "gap"), "young records are never read, in silence"


@pytest.mark.parametrize("words", ["compact", "delete"])
def test_grown_archive_is_needed_while_nothing_expires(lab, words):
    """The store holds all there is; then the archive grows, and nothing is due: it must not be dropped."""
    write(lab)
    first = policy("compact") if words == "compact" else policy("delete", ms=0)
    assert lab.run(20_000, settings=first, sealed=True).archive_needed == []
    write(lab, f"{LOG} || {{ts=5000}} f=1 || {{ts=6000}} g=1")
    grown = lab.run(20_000, settings=policy("delete", ms=10**9))
    held = lab.state().checkpoints()["t", 0].next_offset
    assert held == 10 or grown.archive_needed, "no generation holds what came after the first run"


@pytest.mark.parametrize("words", ["delete", "compact,delete"])
@pytest.mark.parametrize("sealed", [True, False])
def test_empty_generation_is_written_once(lab, sealed, words):
    write(lab)
    settings = policy(words, ms=0)
    assert list(lab.run(20_000, settings=settings, sealed=True).generations.values()) == [1]
    for _ in range(2):
        again = lab.run(20_000, settings=settings, sealed=sealed)
        assert expired_by_rule(again) == []
        assert again.generations == {}


def test_policy_of_the_command_line_disables_expiry(lab):
    """A policy on the command line is the one that holds, or the run is refused; otherwise expiry was not requested."""
    write(lab)
    settings = {"defaults": {"cleanup.policy": "compact,delete", "retention.ms": 0, "min.cleanable.dirty.ratio": 0.0}}
    report = lab.run(20_000, settings=settings, topics=TopicFilter(("t",)), cleanup_policy="compact", sealed=True)
    assert expired_by_rule(report) == []


@pytest.mark.parametrize("words", ["delete", "compact,delete"])
def test_segments_deleted_by_the_broker_above_our_retention_are_a_gap(lab, words):
    """Between runs the archive loses segments that the generation uses. The report names the loss, expired or not."""
    folder = write(lab)
    settings = policy(words, ms=LIMIT_MS)
    settings["defaults"]["min.cleanable.dirty.ratio"] = 1.0
    assert expired_by_rule(lab.run(1500 + LIMIT_MS, settings=settings)) == [("time", 1)]
    delete_segments(folder, 0, 2)
    before = lab.state().current()
    report = lab.run(2500 + LIMIT_MS, settings=settings)
    assert by_topic(report)["t"].problem.state == "gap"
    assert lab.state().current() == before


def test_verify_notes_removed_segments_that_it_cannot_check(lab):
    """The archive lost the expired segments. Their age is unknown, so verify must report this."""
    folder = write(lab)
    assert expired_by_rule(lab.run(2500 + LIMIT_MS, settings=policy("delete", ms=LIMIT_MS))) == [("time", 2)]
    assert verified(lab).all_not_checked == []
    delete_segments(folder, 0, 2)
    report = verified(lab)  # the first leader epoch still begins at 0: a lost beginning, which the store has read
    assert report.exit_code == 0
    assert report.all_not_checked != []
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 4\n")  # a broker's retention moves it up
    report = verified(lab)
    assert report.exit_code == 0
    assert report.all_not_checked != []


def test_verify_uses_the_timestamps_of_retention(lab):
    """Records without a timestamp count by their segment's largest one; by its file's time only where it has none."""
    write(lab, "a=1~-1 b=1~-1 | {ts=2000} c=1 || {ts=900000} d=1")
    assert expired_by_rule(lab.run(901_000, settings=policy("delete", ms=LIMIT_MS))) == [("time", 1)]
    report = verified(lab)
    assert report.exit_code == 0, report.to_text()


def test_segment_that_crosses_the_high_watermark_is_kept(lab):
    """KAFKA.md, "Retention". Sealed or not, the segment continues above it."""
    write(lab, "{ts=1000} a=1 || {ts=2000} a=2 | {ts=900000} a=3")
    offset_checkpoint(lab.archive / "replication-offset-checkpoint", {"t-0": 2})
    report = lab.run(950_000, settings=policy("delete", ms=100_000), sealed=True)
    assert expired_by_rule(report) == [("time", 1)]


def test_leader_epochs_of_later_generations_begin_at_the_log_start(lab):
    """The archive's own checkpoint still begins where the archive does."""
    text = LOG.replace("{ts=2000}", "{ts=2000 leader=1}").replace("{ts=3000}", "{ts=3000 leader=2}")
    text = text.replace("{ts=4000}", "{ts=4000 leader=2}")
    write(lab, text)
    settings = policy("compact,delete", ms=LIMIT_MS)
    settings["defaults"]["min.cleanable.dirty.ratio"] = 1.0
    assert expired_by_rule(lab.run(2500 + LIMIT_MS, settings=settings)) == [("time", 2)]
    first = (lab.folder() / "leader-epoch-checkpoint").read_text()
    assert first == "0\n1\n2 4\n"
    write(lab, f"{text} || {{ts=5000 leader=2}} a=5")
    settings["defaults"]["min.cleanable.dirty.ratio"] = 0.0
    report = lab.run(2500 + LIMIT_MS, settings=settings)
    assert list(report.generations.values()) == [2] and expired_by_rule(report) == []
    assert (lab.folder() / "leader-epoch-checkpoint").read_text() == first


def test_verify_reports_a_log_start_without_a_reason(lab):
    """Records younger than the limit are missing, as after DeleteRecords; the archive has no log start checkpoint."""
    write(lab)
    lab.run(2500 + LIMIT_MS, settings=policy("delete", ms=LIMIT_MS))
    state, archive = lab.state(), listed(str(lab.archive))
    [run] = state.histories()["t", 0]
    manifest, uri = manifest_segments(state, "t", 0, 1), str(lab.archive)
    current = state.checkpoints()["t", 0]
    plan = plan_generation(run, manifest, None, archive, state.root, uri, JobSettings(), current)
    assert not check_generation(plan).problems
    assert check_generation(replace(plan, retention_ms=10**9)).problems
    renamed = tuple(replace(row, reason="log_start") for row in plan.expired)
    assert check_generation(replace(plan, retention_ms=10**9, expired=renamed)).problems


def test_runs_command_counts_expired_records(lab):
    """`runs` does not count removed records as kept."""
    write(lab)
    report = lab.run(20_000, settings=policy("compact,delete", ms=0), sealed=True)
    assert [s.records for s in lab.state().current()[1]["t", 0]] == [0]
    assert sum(entry.records for entry in by_topic(report)["t"].log.expired) > 0
    [run] = runs.run(RunsOptions(str(lab.store)), Silent()).to_json()["runs"]
    [partition] = run["partitions"]
    assert partition["bytes_after"] == 0
    assert partition["records_kept"] == 0 or partition.get("expired"), partition
