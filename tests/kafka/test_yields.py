"""A store that runs by yield have made, restored as it is: a broker cleans on, and ends with Kafka's own result."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import lastkey
from lastkey.logformat.side_files.checkpoints import read_offset_checkpoint
from tests.builders.logs import START_MS
from tests.builders.nights import DAY, NIGHTS, run_every_night
from tests.kafka_lab import CleanSpec, clean, consume, dump, start_restored
from tests.kafka_lab.loading import CLEANS
from tests.kafka_lab.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CHECKPOINT = "cleaner-offset-checkpoint"


def live(lines: list[str]) -> list[str]:
    """Return the lines of records that are no tombstones."""
    return [line for line in lines if line.split("\t")[4] != "-"]


def test_broker_continues_cleaning_at_the_restored_checkpoint(tmp_path: Path) -> None:
    """The last run drops a value whose older one lies in a segment that stays, and sets the tombstone's horizon. A
    later segment is cleaned only by the broker: with a checkpoint there, the broker would drop the tombstone, and the
    older value would return.
    """
    recent = f"{{ts={START_MS + len(NIGHTS) * DAY}}} h1=4 h9=1"
    lab = run_every_night(tmp_path, [*NIGHTS[:-1], f"{NIGHTS[-1]}||{recent}"], **{"min.compaction.lag.ms": DAY // 2})
    output, kafkas = tmp_path / "out", tmp_path / "kafkas" / "t-0"
    [partition] = lastkey.restore(lab.store, output).partitions
    assert partition.cleaned_until == len(NIGHTS[0].split())
    active = max(int(path.stem) for path in (output / "t-0").glob("*.log"))
    shutil.copytree(lab.archive / "t-0", kafkas)
    list(clean([CleanSpec(kafkas, time.time_ns() // 1_000_000)]))
    with start_restored(output, options=CLEANS) as broker:
        path = broker.data / CHECKPOINT
        wait_until(
            lambda: read_offset_checkpoint(path.read_bytes(), CHECKPOINT) == {("t", 0): active},
            "the broker's cleaner",
            seconds=60,
        )
        served = consume(broker.bootstrap, "t-0", lines=True).lines
    assert live(list(served)) == live(dump([kafkas], "D")[kafkas])
    assert len(served) < sum(len(night.split()) for night in NIGHTS)
