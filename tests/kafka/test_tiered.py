"""Tiered storage that a real broker wrote: verified, compacted as Kafka's cleaner does, loaded under a broker.

A second upload of every segment is the broker's own too: without its metadata of remote segments it uploads them again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders.trees import tree
from tests.kafka_lab import CleanSpec, check_served, clean, dump, index_check, start_restored, without_segments
from tests.kafka_lab.loading import partition_dirs
from tests.kafka_lab.tiered import TieredBroker

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


def run(*arguments: object) -> int:
    from lastkey.jobs.command import cli

    return cli.main([*map(str, arguments)])


def batches_and_records(folder: Path) -> list[str]:
    return without_segments(dump([folder])[folder])


def restored(remote: Path, work: Path, now_ms: int, engine: str) -> Path:
    """Verify, compact and restore an archive."""
    settings = work / "settings.toml"
    topic = f'"cleanup.policy" = "compact"\n"segment.bytes" = {SEGMENT_BYTES}\n"null.keys" = "drop"\n'
    settings.write_text(f"[defaults]\n{topic}")
    threads = ["--engine", "threads", "--quiet"]
    before = tree(remote)
    assert run("verify", remote, "--sealed", *threads) == 0
    common = ["--sealed", "--config", settings, "--now", now_ms, "--engine", engine, "--quiet"]
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


def test_copies_that_were_uploaded_again_are_left_out_and_said(broker, capsys):
    assert run("verify", broker.remote, "--sealed", "--engine", "threads") == 0
    said = capsys.readouterr().out
    assert "after a change of leaders the others hold the same offsets" in said
    assert "the archive is read as tiered+" in said
