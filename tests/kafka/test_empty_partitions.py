"""Restored partitions under a real broker, also empty ones: log start, log end, last record as the report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.archives import offset_checkpoint
from tests.builders.logs import write_partition
from tests.builders.place import Place
from tests.builders.restored import ENDS, restore_logs
from tests.kafka_lab import consume, start_restored
from tests.kafka_lab.loading import served_by_broker
from tests.kafka_lab.oracle import list_offsets

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

EARLIEST, LATEST = -2, -1


def test_broker_continues_at_the_end_offset_of_an_empty_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        offsets = list_offsets(broker.bootstrap, {name: [EARLIEST, LATEST] for name in expected})
    assert {name: [offset for offset, _, _ in answers] for name, answers in offsets.items()} == expected


def test_reported_last_record_equals_that_of_a_consumer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partitions, _ = restore_logs(tmp_path, capsys, ENDS)
    with start_restored(tmp_path / "text") as broker:
        for partition in partitions["partitions"]:
            lines = consume(broker.bootstrap, f"{partition['topic']}-0", lines=True).lines
            assert [int(line.split("\t")[1]) for line in lines[-1:]] == [partition["last_visible_offset"]] * bool(lines)
            assert bool(lines) == (partition["last_visible_offset"] >= 0)
            [(end, _, _)] = list_offsets(broker.bootstrap, {f"{partition['topic']}-0": [LATEST]})[
                f"{partition['topic']}-0"
            ]
            assert end == partition["next_offset"]


def test_folder_without_a_topic_id_becomes_stray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The broker behaves as the note states; with the requested file it serves the log (`start_restored` writes the
    file).
    """
    partitions, _ = restore_logs(tmp_path, capsys, {"bare-0": "a=1 b=2"})
    assert "-stray" in partitions["notes"][0]
    output = tmp_path / "text" / "bare-0"
    with served_by_broker({"bare-0": output}) as broker:
        assert [answer[0] for answer in list_offsets(broker.bootstrap, {"bare-0": [LATEST]})["bare-0"]] == [2]
        broker.stop()
        (broker.data / "bare-0" / "partition.metadata").unlink()
        broker.start()
        assert [answer[0] for answer in list_offsets(broker.bootstrap, {"bare-0": [LATEST]})["bare-0"]] == [0]
        [stray] = broker.data.glob("bare-0.*-stray")
        assert (stray / f"{0:020d}.log").read_bytes() == (output / f"{0:020d}.log").read_bytes()
