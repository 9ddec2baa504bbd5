"""Restored partitions without a record under a real broker: log start and log end are those of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.archives import offset_checkpoint
from tests.builders.logs import write_partition
from tests.builders.place import Place
from tests.kafka_lab import start_restored
from tests.kafka_lab.oracle import list_offsets

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

EARLIEST, LATEST = -2, -1


def test_a_broker_begins_where_the_archive_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, capsys)
    archive = place.archive.parent
    place.archive.rmdir()
    write_partition(archive / "low-0", "")
    write_partition(archive / "high-0", "", base_offset=500)
    write_partition(archive / "cleaned-0", "||||", base_offset=500, bases={0: 500, 1: 600, 2: 700})
    write_partition(archive / "full-0", "a=1 b=2 || c=3")
    offset_checkpoint(archive / "cleaner-offset-checkpoint", {"cleaned-0": 700})
    offset_checkpoint(archive / "log-start-offset-checkpoint", {"high-0": 500})
    output, named = tmp_path / "out", ["--topics", "*", "--cleanup-policy", "compact"]
    assert place.run("compact", str(archive), "--store", str(place.store), *named)[0] == 0
    assert place.run("restore", "--store", str(place.store), "--output", str(output))[0] == 0
    expected = {"low-0": [0, 0], "high-0": [500, 500], "cleaned-0": [500, 700], "full-0": [0, 3]}
    with start_restored(output) as broker:
        found = list_offsets(broker.bootstrap, {name: [EARLIEST, LATEST] for name in expected})
    assert {name: [offset for offset, _, _ in answers] for name, answers in found.items()} == expected
