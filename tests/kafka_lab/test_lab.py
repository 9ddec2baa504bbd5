"""The lab itself: the oracles agree with one another, and notice what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders.trees import files_in
from tests.kafka_lab import (
    Broker,
    LabError,
    LoadError,
    OldBroker,
    consume,
    digest,
    digest_lines,
    dump,
    dump_log_segments,
    index_check,
    load_under_broker,
    make_logs,
    start_restored,
    visible_lines,
)
from tests.kafka_lab.loading import log_problems

pytestmark = pytest.mark.kafka

SPECS = [
    "topic=users partitions=2 records=900 keys=99 codec=zstd batch=4096 segment=8192 tombstones=0.1 headers=1",
    "topic=orders records=900 keys=80 txn=true producers=2 turn=7 abort=0.4 segment=65536 hang=0.9",
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the log directory that a stopped broker left, and what its consumers had read."""
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        made = make_logs(broker.bootstrap, SPECS)
        read = {
            (partition, isolation): consume(broker.bootstrap, partition, isolation)
            for partition in ("users-0", "users-1", "orders-0")
            for isolation in ("read_uncommitted", "read_committed")
        }
    assert [topic["topic"] for topic in made] == ["users", "orders"]
    return broker.data, read


def copy_into(source: Path, target: Path) -> Path:
    return shutil.copytree(source, target / source.name)


def test_kafka_consumer_reads_the_records_of_the_files(written):
    data, read = written
    for (partition, isolation), consumed in read.items():
        [lines] = dump([data / partition], "R").values()
        assert consumed.data_sha256 == digest_lines(visible_lines(lines, isolation)), (partition, isolation)
    assert read["orders-0", "read_committed"].records < read["orders-0", "read_uncommitted"].records
    [whole] = digest([data / "orders-0"]).values()
    assert whole.data_sha256 == read["orders-0", "read_uncommitted"].data_sha256


def test_old_broker_writes_old_magic(tmp_path):
    settings = "records=60 batch=2048 segment=4096 oldbroker=true idempotent=false"
    with OldBroker(tmp_path) as broker:
        make_logs(broker.bootstrap, [f"topic=v0 config.message.format.version=0.9.0 {settings}",
                                     f"topic=v1 config.message.format.version=0.10.2 {settings}"])  # fmt: skip
    for magic in ("0", "1"):
        [lines] = dump([broker.data / f"v{magic}-0"], "B").values()
        assert {line.split("\t")[4] for line in lines} == {magic}


def test_the_roll_marker_is_alone_in_the_active_segment(written):
    data, _ = written
    active = max((data / "orders-0").glob("*.log"))
    [lines] = dump([active], "R").values()
    assert [line.split("\t")[4] for line in lines] == ["enotcm9sbC1tYXJrZXItMA=="]


def test_index_check_accepts_what_the_broker_wrote(written):
    data, _ = written
    reports = index_check([data / "users-0", data / "orders-0"], rebuild=True)
    assert [(r.failures, r.rebuild_differs) for r in reports.values()] == [([], []), ([], [])]
    assert reports[data / "orders-0"].aborted_transactions > 0


@pytest.mark.parametrize(
    ("kind", "damage", "complaint"),
    [
        ("index", lambda f: f.write_bytes(f.read_bytes()[:-1] + b"\x01"), "but the batch is at"),
        ("timeindex", lambda f: f.write_bytes(b""), "but the greatest timestamp is"),
        ("txnindex", Path.unlink, "no entry for the aborted records"),
        ("snapshot", lambda f: f.write_bytes(b"\x00\x01"), "snapshot"),
    ],
)
def test_index_check_detects_damage(written, tmp_path, kind, damage, complaint):
    copy = copy_into(written[0] / "orders-0", tmp_path)
    damage(min(f for f in files_in(copy, f"*.{kind}") if f.stat().st_size))
    assert any(complaint in failure for failure in index_check([copy])[copy].failures)


def test_dump_refuses_a_damaged_batch(written, tmp_path):
    copy = copy_into(written[0] / "users-0", tmp_path)
    log = min(copy.glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(LabError, match="CorruptRecordException"):
        dump([copy])


def test_kafka_dump_log_prints_batches_and_records(written):
    log = min((written[0] / "users-0").glob("*.log"))
    text = dump_log_segments("--deep-iteration", "--print-data-log", "--files", log)
    assert text.startswith(f"Dumping {log}\n")
    assert "compresscodec: zstd" in text


def test_broker_loads_and_serves_logs_of_another_broker(written):
    report = load_under_broker([written[0]])
    assert report.notes == []
    assert set(report.hidden_times) == {"users-0", "users-1", "orders-0"}


def test_broker_that_repairs_files_is_an_error(written, tmp_path):
    copy = copy_into(written[0] / "users-0", tmp_path)
    min(copy.glob("*.index")).unlink()
    with pytest.raises(LoadError, match="Could not find offset index file") as error:
        load_under_broker([copy])
    assert any("was made by the broker" in problem for problem in error.value.problems)


def test_log_directory_without_a_clean_shutdown_is_refused(written, tmp_path):
    copy = copy_into(written[0], tmp_path)
    (copy / ".kafka_cleanshutdown").unlink()
    with pytest.raises(LabError, match="kafka_cleanshutdown"), start_restored(copy):
        pass


STORAGE = "org.apache.kafka.storage.internals.log"


@pytest.mark.parametrize(
    ("message", "logger", "is_problem"),
    [
        ("WARN Found a corrupted index file x", f"{STORAGE}.LogLoader", True),
        ("ERROR Could not find offset index file x", f"{STORAGE}.LogLoader", True),
        ("WARN Stray replica t-0", "kafka.server.ReplicaManager", True),
        ("INFO Recovering unflushed segment 0. 0/1 recovered for t-0.", f"{STORAGE}.LogLoader", True),
        ("INFO Truncating to 7 has no effect", f"{STORAGE}.UnifiedLog", True),
        ("INFO Reloading from producer snapshot and rebuilding producer state", f"{STORAGE}.UnifiedLog", False),
        ("ERROR Exceptionally slow controller event", "org.apache.kafka.controller.EventPerformanceMonitor", False),
        ("WARN Connection to node 1 could not be established.", "org.apache.kafka.clients.NetworkClient", False),
    ],
)
def test_problem_lines_of_a_broker_log_are_reported(tmp_path, message, logger, is_problem):
    broker = Broker(tmp_path)
    skipped = "INFO Skipping recovery of 1 logs from x since clean shutdown file was found"
    lines = [
        f"[2026-01-01 00:00:00,000] {m} ({n})\n" for m, n in ((skipped, "kafka.log.LogManager"), (message, logger))
    ]
    broker.server_log.write_text("".join(lines))
    problems, _ = log_problems(broker)
    assert [message in problem for problem in problems] == [True] * is_problem


def test_broker_that_ran_recovery_is_a_problem(tmp_path):
    broker = Broker(tmp_path)
    broker.server_log.write_text("")
    assert log_problems(broker)[0] == ["broker log: it did not skip recovery"]
