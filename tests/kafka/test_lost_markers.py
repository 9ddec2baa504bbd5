"""A lost marker between two transactions of a producer, under a real broker; and similar logs that brokers write.

The broker, its consumer and its cleaner take the outcome of the next marker for both transactions. The cleaner loses
the only copy of a record. We keep it (KAFKA.md, "Transactions").
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders.logs import log_text, write_partition
from tests.builders.place import NOW, Place
from tests.builders.sources import read
from tests.builders.trees import files_in
from tests.kafka_lab import Broker, CleanSpec, clean, consume, create_topics, list_offsets, served_by_broker
from tests.kafka_lab.jvm import lab
from tests.reference.log import Batch, decode_log

pytestmark = pytest.mark.kafka

LOST = "a=0 | {pid=1 epoch=0 txn} a=1@1 | {pid=1 epoch=1 txn base=3} b=2@3 |"
LOGS = {
    "aborted-0": f"{LOST} {{pid=1 epoch=2 abort base=4}} || g=7 || h=8",
    "committed-0": f"{LOST} {{pid=1 epoch=1 commit base=4}} || g=7 || h=8",
    "open-0": f"{LOST} || g=7 || h=8",
}
SEEN = {"aborted-0": [0, 5, 6], "committed-0": [0, 1, 3, 5, 6], "open-0": [0]}  # by a consumer with read_committed


def offsets(log_lines: tuple[str, ...]) -> list[int]:
    return [int(line.split()[1]) for line in log_lines]


def test_consumer_and_readers_use_the_outcome_of_the_next_marker(tmp_path: Path) -> None:
    parts = {name: tmp_path / name for name in LOGS}
    for name, text in LOGS.items():
        write_partition(parts[name], text)
    with served_by_broker(parts) as broker:
        stable = list_offsets(broker.bootstrap, {name: [-1] for name in parts}, "read_committed")
        seen = {name: consume(broker.bootstrap, name, "read_committed", lines=True) for name in parts}
    assert {name: offset for name, [(offset, *_)] in stable.items()} == {"aborted-0": 7, "committed-0": 7, "open-0": 1}
    assert {name: one.records for name, one in seen.items()} == {name: len(rows) for name, rows in SEEN.items()}
    for name, expected in SEEN.items():
        table = read("kafka_log", parts[name], columns="offset", isolationLevel="read_committed")
        assert table.column("offset").to_pylist() == expected, name


def test_kafkas_cleaner_removes_records_that_lastkey_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "aborted-0": ("0:a=0 | ABORT | 5:g=7 || 6:h=8", "0:a=0 | 1:a=1 | [3-3] | ABORT | 5:g=7 || 6:h=8"),
        "committed-0": (
            "1:a=1 | 3:b=2 | COMMIT | 5:g=7 || 6:h=8", "0:a=0 | 1:a=1 | 3:b=2 | COMMIT | 5:g=7 || 6:h=8",
        ),
        "open-0": ("0:a=0 | 1:a=1 | 3:b=2 || 4:g=7 || 5:h=8", None),  # nothing is due
    }  # fmt: skip
    for name, (kafkas, ours) in expected.items():
        place = Place(tmp_path / name, capsys)
        place.write(LOGS[name])
        assert place.compact()[0] == 0
        if ours is not None:
            assert place.generation() == ours
        list(clean([CleanSpec(place.archive, NOW)]))
        assert log_text(*files_in(place.archive)) == kafkas, name


def test_broker_serves_the_retained_records_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The earlier batch has the same outcome for consumers before and after."""
    for name in ("aborted-0", "committed-0"):
        place = Place(tmp_path / name, capsys)
        place.write(LOGS[name])
        assert place.compact()[0] == 0
        output = tmp_path / name / "restored"
        assert place.run("restore", "--store", str(place.store), "--output", str(output))[0] == 0
        with served_by_broker({"t-0": output / "t-0"}) as broker:
            assert consume(broker.bootstrap, "t-0", "read_committed").records == len(SEEN[name])


def test_golden_logs_have_no_lost_marker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commits, aborts, producers that fence the one before, with transaction.version 1, and 2 from mid-log on."""
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, {"t": 1}, {"segment.bytes": 1 << 20})
        lab().call("write_transactions", bootstrap=broker.bootstrap, topic="t")
    batches: list[Batch] = []
    for path in files_in(broker.data / "t-0", "*.log"):
        batches += decode_log(path.read_bytes())
    data = {b.base_offset: b for b in batches if not b.control}
    raised = []  # by each marker, against the data before it
    for i, b in enumerate(batches):
        before = [batch for batch in batches[:i] if batch.producer_id == b.producer_id and not batch.control]
        if b.control and before:
            raised.append(b.producer_epoch - before[-1].producer_epoch)
    assert {0, 1} <= set(raised) and len({b.producer_epoch for b in data.values()}) > 5, raised
    place = Place(tmp_path / "place", capsys)
    shutil.copytree(broker.data / "t-0", place.archive, dirs_exist_ok=True)
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, "no problem found" in output, "unknown" in output) == (0, True, False), output
    code, output = place.compact("--sealed")
    assert (code, "unknown" in output) == (0, False), output
