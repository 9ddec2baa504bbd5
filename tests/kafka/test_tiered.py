"""Tiered storage that a real broker wrote: verified, compacted as Kafka's cleaner does, loaded under a broker.

The broker's own log directory, from which it has deleted uploaded segments, is read with and without the remote ones.

A second upload of every segment is the broker's own too: without its metadata of remote segments it uploads them again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastkey.logformat.side_files.checkpoints import read_leader_epochs, read_offset_checkpoint
from tests.builders.trees import tree
from tests.kafka_lab import CleanSpec, check_served, clean, dump, index_check, start_restored, without_segments
from tests.kafka_lab.loading import partition_dirs, served_by_broker
from tests.kafka_lab.oracle import alter_configs, list_offsets
from tests.kafka_lab.tiered import TieredBroker
from tests.kafka_lab.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

SEGMENT_BYTES = 65536
SPECS = [
    f"topic=orders records=2000 keys=300 segment={SEGMENT_BYTES} tombstones=0.1 seed=201",
    f"topic=payments records=1500 keys=150 segment={SEGMENT_BYTES} txn=true producers=2 turn=7 txnmin=1 txnmax=30 "
    "abort=0.3 codec=zstd t0=now seed=202",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> TieredBroker:
    """Return a stopped broker that has uploaded every closed segment, and then everything again."""
    broker = TieredBroker(tmp_path_factory.mktemp("tiered"))
    with broker:
        broker.upload(SPECS)
    shutil.copytree(broker.remote, broker.directory / "once", copy_function=shutil.copy2)
    shutil.copytree(broker.data, broker.directory / "local", copy_function=shutil.copy2)
    broker.forget_uploads()
    with broker:
        broker.wait_for_uploads(copies=2)
    return broker


@pytest.fixture(scope="module")
def expired(broker, tmp_path_factory) -> TieredBroker:
    """Return a stopped broker that has deleted its local copies of the oldest segments, which it had uploaded once."""
    work = tmp_path_factory.mktemp("expired")
    options = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 100}
    expired = TieredBroker(work / "broker", options)
    with expired:
        expired.upload(SPECS)
        # A running broker writes its high watermarks every five seconds: the file may name offsets inside of the log
        ignored = shutil.ignore_patterns("*.lock", "replication-offset-checkpoint")
        shutil.copytree(expired.data, work / "whole", copy_function=shutil.copy2, ignore=ignored)
        for name in ("orders", "payments"):
            alter_configs(expired.bootstrap, "TOPIC", name, {"local.retention.bytes": 2 * SEGMENT_BYTES})
        wait_until(
            lambda: all(first_base(expired.data / f"{n}-0") for n in ("orders", "payments")), "expiry", seconds=60
        )
        earliest = list_offsets(expired.bootstrap, {f"{n}-0": [-2, -4] for n in ("orders", "payments")})
    for name, [(offset, *_), (local, *_)] in earliest.items():
        assert (offset, local) == (0, first_base(expired.data / name))
    return expired


def first_base(folder: Path) -> int:
    return min(int(path.stem) for path in folder.glob("*.log"))


def run(*arguments: object) -> int:
    from lastkey.jobs.command import cli

    return cli.main([*map(str, arguments)])


def batches_and_records(folder: Path) -> list[str]:
    return without_segments(dump([folder])[folder])


def restored(remote: Path, work: Path, now_ms: int, engine: str, sealed: tuple[str, ...] = ("--sealed",)) -> Path:
    """Verify, compact and restore an archive."""
    work.mkdir(exist_ok=True)
    settings = work / "settings.toml"
    topic = f'"cleanup.policy" = "compact"\n"segment.bytes" = {SEGMENT_BYTES}\n"null.keys" = "drop"\n'
    settings.write_text(f"[defaults]\n{topic}")
    threads = ["--engine", "threads", "--quiet"]
    before = tree(remote)
    assert run("verify", remote, *sealed, *threads) == 0
    common = [
        *sealed,
        "--force",
        "--topics",
        "orders,payments",
        "--config",
        settings,
        "--now",
        now_ms,
        "--engine",
        engine,
        "--quiet",
    ]
    assert run("compact", remote, "--store", work / "store", *common) == 0
    assert run("restore", "--store", work / "store", "--output", work / "out") == 0
    assert run("verify", "--store", work / "store", *threads) == 0
    assert tree(remote) == before
    return work / "out"


def test_a_brokers_remote_segments_are_cleaned_as_by_kafka_and_served(broker, tmp_path, spark):
    local = partition_dirs([broker.directory / "local"])
    now_ms = max(p.stat().st_mtime_ns for f in local.values() for p in f.iterdir()) // 1_000_000 + 1000
    (tmp_path / "once").mkdir()
    (tmp_path / "twice").mkdir()
    output = restored(broker.directory / "once", tmp_path / "once", now_ms, "spark")
    clean(CleanSpec(folder, now_ms, segment_bytes=SEGMENT_BYTES) for folder in local.values())
    for name, folder in local.items():
        max(folder.glob("*.log")).unlink()  # the active segment, of which nothing was uploaded
        assert batches_and_records(output / name) == batches_and_records(folder), name
    checked = index_check([output / name for name in local], early=True)
    assert {path.name: r.failures for path, r in checked.items() if r.failures} == {}
    with start_restored(output) as served:
        problems, _ = check_served(served.bootstrap, partition_dirs([output]))
        assert problems == []
    again = restored(broker.remote, tmp_path / "twice", now_ms, "threads")
    for name in local:
        assert batches_and_records(again / name) == batches_and_records(output / name), name


def test_repeated_uploads_are_skipped_and_reported(broker, capsys):
    assert run("verify", broker.remote, "--sealed", "--engine", "threads") == 0
    output = capsys.readouterr().out
    assert "after a change of leaders the others hold the same offsets" in output
    assert "the archive is read as tiered+" in output


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, copy_function=shutil.copy2)
    return target


def test_log_directory_without_remote_segments_begins_at_the_first_local_segment(expired, tmp_path, capsys):
    """A broker without tiered storage that loads the same or the restored files behaves the same way."""
    starts = read_offset_checkpoint((expired.data / "log-start-offset-checkpoint").read_bytes(), "checkpoint")
    assert starts["orders", 0] == starts["payments", 0] == 0  # Kafka writes no such entry for other topics
    data = copied(expired.data, tmp_path / "data")
    now_ms = max(p.stat().st_mtime_ns for p in data.rglob("*.log")) // 1_000_000 + 1000
    output = restored(data, tmp_path / "work", now_ms, "threads", ())
    text = capsys.readouterr().out
    parts = {name: data / name for name in ("orders-0", "payments-0")}
    bases = {name: first_base(folder) for name, folder in parts.items()}
    for name, base in bases.items():
        note = f"note: {name}: offsets 0 to {base - 1} are in remote storage, which this archive lacks"
        assert text.count(note) == 2  # verify and compact
        epochs = (data / name / "leader-epoch-checkpoint").read_bytes()
        assert read_leader_epochs(epochs, "epochs")[0] == (0, 0)
    with served_by_broker(parts) as plain:
        begins = list_offsets(plain.bootstrap, {name: [-2] for name in parts})
    assert {name: offset for name, [(offset, *_)] in begins.items()} == bases
    with start_restored(output) as served:
        begins = list_offsets(served.bootstrap, {name: [-2] for name in parts})
        assert check_served(served.bootstrap, partition_dirs([output]))[0] == []
    assert {name: offset for name, [(offset, *_)] in begins.items()} == bases
    assert run("verify", output, "--engine", "threads", "--quiet") == 0


def test_tiered_log_equals_the_log_before_local_expiry(expired, tmp_path, capsys):
    """Compacted and restored as the whole log directory, also by runs before and after local segments expire."""
    whole = partition_dirs([expired.data.parent.parent / "whole"])
    now_ms = max(p.stat().st_mtime_ns for f in whole.values() for p in f.iterdir()) // 1_000_000 + 1000
    archive = tmp_path / "archive"
    copied(expired.remote, archive / "remote")
    copied(expired.data.parent.parent / "whole", archive / "data")
    (archive / "data/log-start-offset-checkpoint").unlink(missing_ok=True)
    restored(archive, tmp_path / "work", now_ms, "threads", ())
    shutil.rmtree(archive / "data")
    copied(expired.data, archive / "data")
    shutil.rmtree(tmp_path / "work/out")
    capsys.readouterr()
    again = restored(archive, tmp_path / "work", now_ms, "threads", ())
    text = capsys.readouterr().out
    assert "in remote storage, which" not in text
    assert "orders-0: the log continues that of" in text
    once = restored(archive, tmp_path / "once", now_ms, "threads", ())
    for output in (once, again):  # output of one run, and of two
        list(clean(CleanSpec(folder, now_ms, segment_bytes=SEGMENT_BYTES) for folder in whole.values()))
        for name, folder in whole.items():
            assert batches_and_records(output / name) == batches_and_records(folder), name
    with start_restored(once) as served:
        assert check_served(served.bootstrap, partition_dirs([once]))[0] == []
