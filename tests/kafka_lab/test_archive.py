"""The archive that ships with the project, examples/archive: a real broker left it, and a real broker starts on it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.builders.trees import files_in
from tests.kafka_lab import check_served, index_check, start_restored

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARCHIVE = EXAMPLES / "archive"
PARTITIONS = {path.name: path for path in sorted(ARCHIVE.iterdir()) if path.is_dir()}


def test_topics_of_the_example_have_their_original_settings():
    topics = tomllib.loads((EXAMPLES / "topics.toml").read_text())["topics"]
    assert set(topics) == {name.rpartition("-")[0] for name in PARTITIONS if not name.startswith("__")}
    assert [topic for topic, settings in topics.items() if settings["cleanup.policy"] == "delete"] == ["clicks"]
    for name, path in PARTITIONS.items():
        if not name.startswith("__"):
            sizes = [log.stat().st_size for log in files_in(path)]
            assert len(sizes) >= 4
            assert max(sizes) <= topics[name.rpartition("-")[0]]["segment.bytes"]


@pytest.mark.kafka
def test_indexes_and_snapshots_of_the_example_equal_those_of_a_broker():
    reports = index_check(PARTITIONS.values())
    assert [report.failures for report in reports.values()] == [[]] * len(PARTITIONS)
    assert reports[ARCHIVE / "orders-0"].aborted_transactions == 53


@pytest.mark.kafka
def test_broker_loads_the_example_without_recovery():
    with start_restored(ARCHIVE) as broker:
        problems, _ = check_served(broker.bootstrap, PARTITIONS)
        assert problems == []
        assert (broker.data / "meta.properties").read_text() != (ARCHIVE / "meta.properties").read_text()
