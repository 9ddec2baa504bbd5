"""`reindex` against Kafka's own recovery of bare logs, byte for byte; and a broker that starts on what it made.

Snapshots are compared by their entries: Kafka writes them in the order of a hash map.
"""

from __future__ import annotations

import shutil

import pytest

from tests.builders.archives import offset_checkpoint
from tests.builders.bare_logs import EXPIRATION_MS, BareLog, copy_logs, differences, reindexed
from tests.builders.logs import write_partition
from tests.builders.reindexed import not_same, run
from tests.builders.trees import files_in
from tests.golden import case_names, golden
from tests.kafka_lab import RecoverSpec, dump_log_segments, load_under_broker, locate, recover, recovered_by_broker

pytestmark = pytest.mark.kafka


def bare(tmp_path_factory, *, cleaned=False):
    """Return the partitions of all golden cases, under different names."""
    logs = []
    for name, case in golden(tmp_path_factory).items():
        for partition in case.partitions:
            interval = case.settings.get("index.interval.bytes", 4096)
            source = case.expected(1, partition) if cleaned else case.input(partition)
            logs.append(BareLog(f"{name}-{partition.rpartition('-')[2]}", source, interval))
    return logs


@pytest.mark.parametrize("cleaned", [False, True], ids=["inputs", "cleaned"])
@pytest.mark.parametrize("raised", [False, True], ids=["whole", "log-start-raised"])
def test_reindex_equals_kafkas_recovery(cleaned, raised, tmp_path, tmp_path_factory):
    logs = bare(tmp_path_factory, cleaned=cleaned)
    if raised:  # into the middle of the second segment
        several = [(log, sorted(int(p.stem) for p in files_in(log.source))) for log in logs]
        logs = [BareLog(log.name, log.source, log.interval, (b[1] + b[2]) // 2) for log, b in several if len(b) > 2]
    assert len(logs) > 10
    copy_logs(logs, tmp_path / "archive")
    shutil.copytree(tmp_path / "archive", tmp_path / "kafka")
    recover(RecoverSpec(tmp_path / "kafka" / log.name, log.interval, log.log_start) for log in logs)
    assert {log.interval for log in logs} == {4096}
    reindexed(tmp_path / "archive", tmp_path / "ours")
    different = [d for log in logs for d in differences(tmp_path / "kafka" / log.name, tmp_path / "ours" / log.name)]
    assert different == []


@pytest.mark.parametrize("interval", [0, 700, 1 << 20])
def test_reindex_with_other_intervals_and_a_torn_tail_equals_kafkas_recovery(interval, tmp_path, tmp_path_factory):
    text = (
        "{pid=1 txn leader=0} a=1 b=2 | {pid=2 txn leader=1} c=3 || {pid=1 abort leader=1} | {pid=3 leader=2} d=4"
        " | {pid=2 txn leader=2} e=5 || {pid=2 abort leader=4} | {pid=4 txn leader=4} f=6 | g=7"
        " | {base=16 last=20 leader=4}"
    )
    write_partition(tmp_path / "source" / "drawn-0", text)
    [few] = [log for log in bare(tmp_path_factory) if log.name == "txn-zstd-0"]
    logs = [BareLog("drawn-0", tmp_path / "source" / "drawn-0", interval), BareLog("zstd-0", few.source, interval)]
    copy_logs(logs, tmp_path / "archive")
    last = max((tmp_path / "archive" / "drawn-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + last.read_bytes()[:50])
    shutil.copytree(tmp_path / "archive", tmp_path / "kafka")
    recover(RecoverSpec(tmp_path / "kafka" / log.name, interval) for log in logs)
    reindexed(tmp_path / "archive", tmp_path / "ours", interval)
    assert [d for log in logs for d in differences(tmp_path / "kafka" / log.name, tmp_path / "ours" / log.name)] == []


def test_broker_rebuilds_the_same_files_and_accepts_those_of_reindex(tmp_path, tmp_path_factory):
    logs = bare(tmp_path_factory)
    assert len(logs) >= len(case_names())
    copy_logs(logs, tmp_path / "archive")
    reindexed(tmp_path / "archive", tmp_path / "ours")
    parts = {log.name: log.source for log in logs}
    with recovered_by_broker(parts, options={"producer.id.expiration.ms": EXPIRATION_MS}) as data:
        clock_ms = max(int(path.stat().st_mtime * 1000) for path in files_in(data, "**/*.snapshot"))
        different = [
            d
            for name in parts
            for d in differences(data / name, tmp_path / "ours" / name, clock_ms=clock_ms, all_snapshots=False)
        ]
        assert different == []
    for name in parts:  # rebuilt side files, loaded by a broker that trusts them
        shutil.copytree(tmp_path / "ours" / name, tmp_path / "archive" / name, dirs_exist_ok=True)
    load_under_broker([tmp_path / "archive" / name for name in parts], times=10)
    indexes = [
        p for kind in ("*.index", "*.timeindex") for p in sorted((tmp_path / "archive").rglob(kind)) if p.stat().st_size
    ]
    for i in range(0, len(indexes), 200):
        part = ",".join(map(str, indexes[i : i + 200]))
        output = dump_log_segments("--index-sanity-check", "--files", part)
        assert output.count("passed sanity check") == len(indexes[i : i + 200])
        dump_log_segments("--verify-index-only", "--files", part)


def test_log_with_all_records_below_its_start_has_no_leader_epoch(tmp_path):
    """DeleteRecords up to the log end. Kafka removes the epoch when it loads the log."""
    archive = tmp_path / "archive"
    epochs = write_partition(archive / "t-0", "a=1 | b=2").folder / "leader-epoch-checkpoint"
    offset_checkpoint(archive / "log-start-offset-checkpoint", {"t-0": 2})
    epochs.write_text("0\n1\n0 2\n")
    answer = locate(archive / "t-0", [], [], log_start=2)
    assert (answer.log_start_offset, answer.log_end_offset) == (2, 2)
    assert epochs.read_text() == "0\n0\n"
    assert epochs.name not in not_same(run(archive))
    offset_checkpoint(archive / "log-start-offset-checkpoint", {"t-0": 1})
    assert not_same(run(archive))[epochs.name] == ("differs", "stale")
