"""A snapshot without an open transaction of the log, under a real broker: the broker uses the snapshot and loses the
key; Lastkey does not (KAFKA.md, "Producers"). On the same log with the snapshots that belong to it, both clean alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.logs import log_text, write_partition
from tests.builders.place import NO_PRODUCERS, NOW, Place
from tests.builders.trees import files_in
from tests.kafka_lab import CleanSpec, clean, served_by_broker
from tests.kafka_lab.oracle import consume, list_offsets

pytestmark = pytest.mark.kafka

LOG = "k=1 | m=0 | {pid=1 txn} k=2 || x=1 | y=1 || z=1"
ABORTED = f"{LOG} | {{pid=1 abort}} || u=1"


def denied(folder: Path, text: str = LOG) -> Path:
    write_partition(folder, text)
    for path in files_in(folder, "*.snapshot"):
        path.write_bytes(NO_PRODUCERS)
    return folder


def cleaned(folder: Path) -> str:
    list(clean([CleanSpec(folder, NOW)]))
    return log_text(*files_in(folder))


def test_broker_uses_the_open_transaction_of_a_snapshot(tmp_path: Path) -> None:
    parts = {"t-0": denied(tmp_path / "t-0"), "n-0": denied(tmp_path / "n-0"), "g-0": tmp_path / "g-0"}
    for path in files_in(parts["n-0"], "*.snapshot"):
        path.unlink()  # after a clean stop that is as good as empty ones
    write_partition(parts["g-0"], LOG)
    with served_by_broker(parts) as broker:
        stable = list_offsets(broker.bootstrap, {name: [-1] for name in parts}, "read_committed")
        read = {name: consume(broker.bootstrap, name, "read_committed").records for name in parts}
    assert {name: offset for name, [(offset, *_)] in stable.items()} == {"t-0": 6, "n-0": 6, "g-0": 2}
    assert read == {"t-0": 6, "n-0": 6, "g-0": 2}
    assert cleaned(parts["t-0"]) == "1:m=0 | 2:k=2 | 3:x=1 | 4:y=1 || 5:z=1"  # k=1 is gone, and k=2 may be aborted
    assert cleaned(parts["g-0"]) == "0:k=1 | 1:m=0 | 2:k=2 || 3:x=1 | 4:y=1 || 5:z=1"


def test_result_equals_that_of_the_broker_with_its_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, capsys)
    denied(place.archive)
    assert place.compact()[0] == 0
    place.write(ABORTED)
    assert place.compact()[0] == 0
    write_partition(tmp_path / "honest-0", ABORTED)
    assert place.generation() == cleaned(tmp_path / "honest-0")
