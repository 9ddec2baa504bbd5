"""A generation that lost its leader-epoch-checkpoint: the next run makes it again, and a broker loads the result."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastkey
from tests.builders.archives import HOUR, Lab
from tests.builders.logs import START_MS, write_partition
from tests.kafka_lab import check_served, start_restored
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CHECKPOINT = "leader-epoch-checkpoint"
LOG = (
    "{leader=0} a=1 b=1 || {leader=3} c=2 c=3 || {leader=5} c=4 | {leader=5} d=1 || "
    "{leader=7} a=4 c=5 || {leader=7} e=1"
)


@pytest.mark.parametrize("archived", ["0\n4\n0 0\n3 2\n5 4\n7 6\n", "0\n2\n5 4\n7 6\n", None])
def test_broker_loads_a_generation_with_missing_leader_epochs(tmp_path: Path, archived: str | None) -> None:
    """archived: the archive's own file; None: the file is lost too, and only the batches show the epochs."""
    defaults = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.bytes": 14}
    lab = Lab(None, tmp_path, {"defaults": defaults, "job": {"engine": "threads"}})
    folder = write_partition(lab.archive / "t-0", LOG).folder
    (folder / CHECKPOINT).unlink(missing_ok=True)
    if archived is not None:
        (folder / CHECKPOINT).write_text(archived)
    lab.run(START_MS + HOUR)
    (lab.folder() / CHECKPOINT).unlink()
    lab.run(START_MS + 2 * HOUR, force=True)
    output = tmp_path / "out"
    lastkey.restore(lab.store, output)
    assert (output / "t-0" / CHECKPOINT).is_file()
    with start_restored(output) as broker:
        assert check_served(broker.bootstrap, partition_dirs([broker.data]))[0] == []
