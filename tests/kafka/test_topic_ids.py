"""Topic ids of a restored log directory before a real KRaft broker: with those of its cluster it serves every
partition, and exactly those that the report names become stray.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.restore import job as restore
from lastkey.jobs.restore.report import RestoreReport
from tests.builders.archives import COMPACT, Lab
from tests.builders.logs import write_partition
from tests.kafka_lab import Broker, check_served
from tests.kafka_lab.oracle import create_topics, kafka_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LOGS = ("bare-0", "bare-1", "whole-0", "whole-1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of logs with a topic id (whole), and without (bare, as before Kafka 2.8)."""
    root = tmp_path_factory.mktemp("store")
    lab = Lab(None, root, {"defaults": COMPACT, "job": {"engine": "threads"}})
    for name in LOGS:
        write_partition(lab.archive / name, "a=1 b=2 a=3 | c=4")
        if name.startswith("bare"):
            (lab.archive / name / "partition.metadata").unlink()
    assert len(lab.run(1_700_000_100_000, sealed=True, force=True).generations) == len(LOGS)
    return lab.store


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a stopped broker with these topics, bare with one partition, and how it describes them."""
    broker = Broker(tmp_path_factory.mktemp("cluster"), {"log.cleaner.enable": "false"})
    with broker:
        create_topics(broker.bootstrap, {"bare": 1, "whole": 2}, {})
        described = kafka_topics(broker.bootstrap, "--describe")
    return broker.directory, described


def stray_partitions(report: RestoreReport) -> set[str]:
    """Return the partitions that the notes of a report call stray, or stray under a condition that holds here."""
    return {name for note in report.notes for name in LOGS if re.search(rf"\b{name}\b", note) and "-stray" in note}


def under_the_broker(cluster: Path, restored: Path, work: Path) -> tuple[Broker, set[str]]:
    """Start a copy of the cluster on restored folders; return it, stopped, and which folders it made stray."""
    shutil.copytree(cluster, work)
    broker = Broker(work, {"log.cleaner.enable": "false"})
    for path in (*broker.data.glob("bare-*"), *broker.data.glob("whole-*")):
        shutil.rmtree(path)
    for path in restored.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, broker.data / path.name)
    with broker:
        served = {name: restored / name for name in LOGS if (broker.data / name / f"{0:020}.log").exists()}
        strays = {path.name.split(".")[0] for path in broker.data.glob("*-stray")}
        kept = {name: path for name, path in served.items() if name not in strays}
        problems, _ = check_served(broker.bootstrap, kept, times=0)
        assert problems == []
    return broker, strays


@pytest.mark.parametrize("form", ["described", "properties"])
def test_broker_accepts_partitions_with_its_topic_ids(
    store: Path, cluster: tuple[Path, str], tmp_path: Path, form: str
) -> None:
    text = cluster[1]
    if form == "properties":
        text = "\n".join("=".join(pair) for pair in re.findall(r"^Topic: (\S+)\s+TopicId: (\S+)", text, re.MULTILINE))
    (tmp_path / "ids").write_text(text)
    options = RestoreOptions(str(store), str(tmp_path / "restored"), topic_ids=str(tmp_path / "ids"))
    report = restore.run(options, Silent())
    _, strays = under_the_broker(cluster[0], tmp_path / "restored", tmp_path / "broker")
    assert strays == {"bare-1"}, "the cluster's topic has one partition"
    assert stray_partitions(report) == (strays if form == "described" else set())


def test_partition_without_topic_id_becomes_stray(store: Path, cluster: tuple[Path, str], tmp_path: Path) -> None:
    report = restore.run(RestoreOptions(str(store), str(tmp_path / "restored")), Silent())
    assert stray_partitions(report) == {"bare-0", "bare-1"}
    assert "if its cluster has their topic with another id" in report.to_text()
    _, strays = under_the_broker(cluster[0], tmp_path / "restored", tmp_path / "broker")
    assert strays == set(LOGS), "the ids of whole are those of another cluster"


def test_topic_missing_in_the_ids_file_is_reported(store: Path, cluster: tuple[Path, str], tmp_path: Path) -> None:
    [bare_id] = re.findall(r"^Topic: bare\s+TopicId: (\S+)", cluster[1], re.MULTILINE)
    (tmp_path / "ids").write_text(f"bare={bare_id}\n")
    options = RestoreOptions(str(store), str(tmp_path / "restored"), topic_ids=str(tmp_path / "ids"))
    assert stray_partitions(restore.run(options, Silent())) == {"whole-0", "whole-1"}
    _, strays = under_the_broker(cluster[0], tmp_path / "restored", tmp_path / "broker")
    assert strays == {"bare-1", "whole-0", "whole-1"}
