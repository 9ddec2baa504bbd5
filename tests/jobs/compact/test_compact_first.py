"""The first run on an archive: partitions that it selects and skips, its messages, and its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.compact.needed import Needed
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import POLICY_CONTRADICTED, UsageError
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import COMPACT, HOUR, Lab, by_topic, offset_checkpoint, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.trees import files_in, tree
from tests.reference.log import data_batch, decode_log

pytestmark = [pytest.mark.spark]

CASES = ("few-keys", "none-tomb", "txn-zstd", "idem-active", "v1-snappy", "two-parts")


@pytest.fixture
def lab(spark, tmp_path):
    return Lab(spark, tmp_path)


def _null_keys(folder, n):
    """Write a partition of two segments with `n` records that have no key."""
    folder.mkdir(parents=True)
    records = [(1_000_000 + i, None if i < n else b"k%d" % (i % 3), b"v%d" % i) for i in range(20)]
    (folder / f"{0:020d}.log").write_bytes(data_batch(0, records).data)
    (folder / f"{20:020d}.log").write_bytes(data_batch(20, [(1_000_100, b"k0", b"last")]).data)


@dataclass(frozen=True)
class First:
    lab: Lab
    before: dict
    dry: CompactReport
    after_dry: dict
    report: CompactReport
    checkpoints: dict
    manifests: dict
    states: dict
    histories: dict


@pytest.fixture(scope="module")
def first(spark, cases, now_ms, tmp_path_factory):
    """Run a dry run, then the run itself, on golden partitions and others; return the trees before and after too."""
    lab = Lab(spark, tmp_path_factory.mktemp("first"))
    for name in CASES:
        for partition in cases[name].partitions:
            put(cases[name].input(partition), lab.archive / "disk1" / partition)
    put(only_input(cases["few-keys"]), lab.archive / "disk2" / "other-0")
    put(only_input(cases["few-keys"]), lab.archive / "disk2" / "both-0")
    put(only_input(cases["two-parts"]), lab.archive / "disk2" / "waits-0")
    put(only_input(cases["two-parts"]), lab.archive / "disk2" / "small-0")
    put(only_input(cases["two-parts"]), lab.archive / "disk2" / "old-0")
    put(only_input(cases["two-parts"]), lab.archive / "disk2" / "gone-1.0123456789abcdef0123456789abcdef-delete")
    _null_keys(lab.archive / "disk2" / "nulls-0", 7)
    _null_keys(lab.archive / "disk2" / "keep-0", 7)
    _null_keys(lab.archive / "disk2" / "drop-0", 7)
    (lab.archive / "disk2" / "lost+found").mkdir()
    at = cases["two-parts"].partitions[0]
    middle = int(files_in(cases["two-parts"].input(at))[2].stem)
    offset_checkpoint(
        lab.archive / "disk2" / "cleaner-offset-checkpoint", {"waits-0": middle, "small-0": 0, "old-0": middle}
    )
    lab.settings = {
        "defaults": COMPACT,
        "topics": {
            "other": {"cleanup.policy": "delete"},
            "both": {"cleanup.policy": "compact,delete"},
            "waits": {"min.cleanable.dirty.ratio": 0.5},
            "old": {"min.cleanable.dirty.ratio": 0.5, "max.compaction.lag.ms": 1},
            "small": {"min.dirty.bytes": 10_000_000},
            "keep": {"null.keys": "keep"},
            "drop": {"null.keys": "drop"},
        }
        | {name: {"segment.bytes": cases[name].settings["segment.bytes"]} for name in CASES},
    }
    before = tree(lab.root)
    dry = lab.run(now_ms, dry_run=True)
    after_dry = tree(lab.root)
    report = lab.run(now_ms)
    state = lab.state()
    return First(lab, before, dry, after_dry, report, *state.current(), state.states(), state.histories())


@pytest.mark.slow
def test_dry_run_writes_nothing_and_predicts_the_run(first):
    dry, report = first.dry, first.report
    assert first.after_dry == first.before  # also no store's folder
    assert dry.exit_code == report.exit_code == 3
    assert dry.generations == {}
    assert [r.name() for r in dry.results] == [r.name() for r in report.results]
    rows = dry.to_json()["partitions"]
    estimated = {f"{row['topic']}-{row['partition']}" for row in rows if row["bytes_after_is_estimate"]}
    for predicted, done in zip(dry.results, report.results, strict=True):
        assert (predicted.status, predicted.problem) == (done.status, done.problem), predicted.name()
        assert (predicted.notes, predicted.log.first_dirty_offset, predicted.log.next_offset) == (
            done.notes, done.log.first_dirty_offset, done.log.next_offset,
        )  # fmt: skip
        assert predicted.work.counters == done.work.counters, predicted.name()
        assert (predicted.cleanable.ratio, predicted.cleanable.clean_bytes, predicted.cleanable.cleanable_bytes) == (
            done.cleanable.ratio, done.cleanable.clean_bytes, done.cleanable.cleanable_bytes,
        )  # fmt: skip
        assert [(s.base_offset, s.next_offset, s.records, s.batches, s.tombstones) for s in predicted.log.segments] == [
            (s.base_offset, s.next_offset, s.records, s.batches, s.tombstones) for s in done.log.segments
        ]
        assert (predicted.work.bytes_before, predicted.work.bytes_read) == (
            done.work.bytes_before,
            done.work.bytes_read,
        )
        # so little that all of it is recompressed
        assert (predicted.work.bytes_after, predicted.work.bytes_written) == (
            done.work.bytes_after,
            done.work.bytes_written,
        ), predicted.name()
    assert estimated == {r.name() for r in report.results if r.work.recompressed_bytes}
    assert "dry run: nothing was written" in dry.to_text()


@pytest.mark.slow
def test_run_does_not_change_the_archive(first):
    after = tree(first.lab.root)
    assert {name: what for name, what in after.items() if name.startswith("archive")} == first.before


@pytest.mark.slow
def test_cleaned_logs_equal_those_of_the_broker(first, cases, now_ms):
    lab, current, manifests = first.lab, first.checkpoints, first.manifests
    for name in CASES:
        for number, partition in enumerate(cases[name].partitions):
            key = (partition.rpartition("-")[0], number)
            lab.check_whole(manifests[key])
            got = lab.batches([s for s in manifests[key] if s.cleaned])
            want = [
                b for log in files_in(cases[name].expected(1, partition))[:-1] for b in decode_log(log.read_bytes())
            ]
            late = now_ms - cases[name].now_ms(1, partition)  # one clock for all here, a clock each there
            assert [(b.base_offset, b.last_offset, b.records) for b in got] == [
                (b.base_offset, b.last_offset, b.records) for b in want
            ]
            assert [b.delete_horizon for b in got] == [
                None if b.delete_horizon is None else b.delete_horizon + late for b in want
            ]
            assert current[key].next_offset == manifests[key][-1].next_offset
            assert current[key].first_dirty_offset == manifests[key][-1].base_offset  # the active segment


@pytest.mark.slow
def test_run_reports_results_as_text_and_json(first):
    report = first.report
    answer = json.loads(json.dumps(report.to_json()))
    assert (answer["exit_code"], answer["dry_run"], answer["archive_needed"]) == (3, False, True)
    assert (answer["expired_nothing"], answer["not_compacted"]) == (["both"], ["other"])
    assert len(answer["run_id"]) == 32
    rows = {(p["topic"], p["partition"]): p for p in answer["partitions"]}
    assert list(rows) == sorted(rows)
    row = rows["few-keys", 0]
    assert (row["status"], row["generation"], row["problem"]) == ("cleaned", 1, None)
    assert row["records_kept"] + row["dropped_superseded"] == row["records_read"] == 2000
    fates = ("copied", "rebuilt", "emptied", "dropped")
    assert sum(row[f"batches_{fate}"] for fate in fates) == row["batches_read"]
    assert {"scan", "clean", "write"} == set(row["seconds"])
    assert row["bytes_read"] > 0 < row["bytes_written"]
    assert row["peak_memory_bytes"] > 1 << 20
    text = report.to_text()
    assert "policy compact,delete without retention.ms or retention.bytes: compacted only: both" in text
    assert "not compacted, because cleanup.policy is not compact: other" in text
    assert "problem: nulls-0: null_key: expected" in text
    aside = [r.name() for r in report.results if r.status == "uncleanable"]
    reasons = {reason["kind"]: reason["names"] for reason in answer["archive_needed_because"]}
    assert next(iter(reasons)) == "uncleanable" and reasons["uncleanable"] == aside
    assert reasons["other_topics"] == ["other"] and "few-keys-0" in reasons["used"]
    assert f"the archive is still needed: the partition is uncleanable: {', '.join(aside[:10])}" in text
    assert [p["kind"] for p in answer["problems"]] == [r.problem.kind for r in report.results if r.problem]
    assert "marked -delete" in text


@pytest.mark.slow
def test_topics_with_another_policy_are_not_compacted(first):
    assert "other" not in by_topic(first.report)
    assert not (first.lab.store / "segments" / "other-0").exists()
    assert ("other", 0) not in first.states


@pytest.mark.slow
def test_records_without_a_key_make_the_partition_uncleanable(first):
    lab, manifests, results = first.lab, first.manifests, by_topic(first.report)
    problem = results["nulls"].problem
    assert (results["nulls"].status, problem.kind) == ("uncleanable", "null_key")
    assert problem.found == "7 records without one"
    assert not (lab.store / "segments" / "nulls-0").exists()  # nothing is left of what was begun
    assert results["keep"].work.counters["dropped_null_key"] == 0
    assert results["drop"].work.counters["dropped_null_key"] == 7
    assert ("nulls", 0) not in first.checkpoints
    kept = [r.offset for b in lab.batches(manifests["keep", 0]) for r in b.records]
    assert kept == [*range(7), 17, 18, 19, 20]  # all without a key, and the last of each key below the active segment
    assert [r.offset for b in lab.batches(manifests["drop", 0]) for r in b.records] == [17, 18, 19, 20]


@pytest.mark.slow
def test_dirty_ratio_volume_and_lag_decide_whether_a_partition_is_due(first):
    """The same partition half dirty, with too few dirty bytes, and past max.compaction.lag.ms."""
    results = by_topic(first.report)
    assert results["waits"].status == "not_due"
    assert 0.2 < results["waits"].cleanable.ratio < 0.5
    assert results["small"].status == "not_due"
    assert results["small"].cleanable.ratio == 1.0
    assert results["old"].status == "cleaned"


@pytest.mark.slow
def test_partition_states_are_clean_dirty_or_uncleanable(first, now_ms):
    states, report = first.states, first.report
    assert {key[0] for key, row in states.items() if row.state == "uncleanable"} == {"nulls"}
    assert {key[0] for key, row in states.items() if row.state == "dirty"} == {"waits", "small"}
    row = states["nulls", 0]
    assert (row.expected, row.found, row.run_id, row.now_ms) == (
        "a key in every record", "7 records without one", report.run_id, now_ms,
    )  # fmt: skip
    assert "7 records without one" in row.reason
    assert states["few-keys", 0].generation == 1
    assert states["waits", 0].dirty_bytes > 0


@pytest.mark.slow
def test_tables_have_all_values_that_a_restore_needs(first, now_ms):
    run = first.histories["txn-zstd", 0][0]
    assert (run.generation_before, run.generation_after, run.parent_run_id) == (0, 1, None)
    assert (run.run_id, run.now_ms) == (first.report.run_id, now_ms)
    assert run.dropped_aborted > 0 < run.dropped_superseded
    assert json.loads(run.settings)["delete_retention_ms"] == 24 * HOUR
    assert {"pyspark", "python", "backports.zstd"} <= set(json.loads(run.versions))
    assert set(json.loads(run.seconds)) == {"scan", "clean", "write"}
    checkpoint = first.checkpoints["txn-zstd", 0]
    assert checkpoint.archive_uri == str(first.lab.archive)
    assert len(checkpoint.topic_id) == 22
    assert checkpoint.last_batch_base_offset == checkpoint.next_offset - 1


@pytest.mark.slow
def test_archive_is_needed_while_a_generation_references_its_files(cases, now_ms, lab):
    put(only_input(cases["two-parts"]), lab.archive / "t-0")
    put(only_input(cases["two-parts"]), lab.archive / "other-0")
    report = lab.run(now_ms, sealed=True, topics=TopicFilter(("t",)))
    assert report.exit_code == 0
    assert {s.root for s in report.results[0].log.segments} == {"store"}
    assert (report.archive_needed, report.not_compacted) == ([Needed("other_topics", ("other",))], ["other"])
    assert "the archive is still needed: topics that were not selected: other" in report.to_text()
    kept = lab.run(now_ms, sealed=True, settings={"defaults": COMPACT, "topics": {"o*": {"cleanup.policy": "delete"}}})
    left = [Needed("not_compared", ("t-0",)), Needed("other_topics", ("other",))]  # nothing was due, nothing was read
    assert (kept.archive_needed, kept.not_compacted) == (left, ["other"])
    shutil.rmtree(lab.archive / "other-0")
    again = lab.run(now_ms, sealed=True)
    assert [r.status for r in again.results] == ["not_due"]
    assert again.archive_needed == [Needed("not_compared", ("t-0",))]

    moved = replace(lab, archive_at=lab.root / "other")  # a store serves one archive
    shutil.copytree(lab.archive, moved.archive)
    with pytest.raises(UsageError, match="serves the archive"):
        moved.run(now_ms)


@pytest.mark.slow
def test_cleanup_policy_option_applies_to_selected_topics(cases, now_ms, lab, capsys, tmp_path):
    """--cleanup-policy compact applies to the topics that --topics names, except topics whose own table has another
    policy.
    """
    for topic in ("a", "b", "own"):
        put(only_input(cases["few-keys"]), lab.archive / f"{topic}-0")
    plain = {"topics": {"own": {"cleanup.policy": "delete"}}}
    with pytest.raises(UsageError, match=r"no partition of a compacted topic in the archive.*there are a, b, own"):
        lab.run(now_ms, settings=plain)
    with raises_kind(POLICY_CONTRADICTED, match=r"own table says cleanup\.policy = delete") as refused:
        lab.run(now_ms, settings=plain, topics=TopicFilter(("*",)), cleanup_policy="compact")
    assert refused.value.exit_code == 2
    with pytest.raises(UsageError, match="--topics"):
        lab.run(now_ms, settings=plain, cleanup_policy="compact")
    report = lab.run(now_ms, settings=plain, topics=TopicFilter(("a",)), cleanup_policy="compact", dry_run=True)
    assert [r.name() for r in report.results] == ["a-0"]
    assert not lab.store.exists()

    config = tmp_path / "c.toml"
    config.write_text('[defaults]\n"min.cleanable.dirty.rati" = 0.1\n')
    assert cli.main(["compact", str(lab.archive), "--store", str(lab.store), "--config", str(config)]) == 2
    assert "min.cleanable.dirty.ratio" in capsys.readouterr().err
    config.write_text('[defaults]\n"cleanup.policy" = "compact"\n')
    arguments = ["compact", str(lab.archive), "--store", str(lab.store), "--config", str(config), "--json", "--dry-run"]
    assert cli.main([*arguments, "--topics", "a", "--now", str(now_ms)]) == 0
    assert [p["topic"] for p in json.loads(capsys.readouterr().out)["partitions"]] == ["a"]
    assert cli.main([*arguments, "--now", "1700000000"]) == 2
    capsys.readouterr()


def test_invalid_archive_and_store_paths_are_refused(lab, now_ms, cases):
    with pytest.raises(UsageError, match="a folder with Kafka log directories"):
        lab.run(now_ms)
    put(only_input(cases["few-keys"]), lab.archive / "a-0")
    for store in (lab.archive, lab.archive / "store", lab.root):
        with pytest.raises(UsageError, match="nothing was written; the store needs a place outside of it"):
            replace(lab, store_at=store).run(now_ms)
