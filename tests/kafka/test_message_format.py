"""Magic 3 and a real broker: it refuses a file in that format, and serves what a store in that format gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions, ConvertOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.convert import job as convert
from lastkey.jobs.restore import job as restore
from tests.builders.archives import put
from tests.builders.formats import as_v3
from tests.builders.steps import at_step, interrupt
from tests.builders.trees import files_in
from tests.golden import Case
from tests.kafka_lab.errors import LabError
from tests.kafka_lab.loading import check_served, partition_dirs, recovered_by_broker, served_by_broker, start_restored
from tests.kafka_lab.oracle import dump

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NAMES = ("none-tomb", "txn-zstd", "gzip-headers", "lz4-append")


def test_broker_serves_restored_magic_3_like_magic_2(cases, tmp_path):
    chosen = [cases[name] for name in NAMES]
    for case in chosen:
        for partition in case.partitions:
            put(case.input(partition), tmp_path / "archive-2" / partition)
    as_v3(tmp_path / "archive-2", tmp_path / "archive-3")
    now_ms = max(case.now_ms(1, partition) for case in chosen for partition in case.partitions)
    config = parse_config(
        {"defaults": {"cleanup.policy": "compact", "null.keys": "drop"}, "job": {"engine": "threads"}}
    )
    for magic in (2, 3):
        store = str(tmp_path / f"store-{magic}")
        options = CompactOptions(str(tmp_path / f"archive-{magic}"), store, now_ms=now_ms, config=config, force=True)
        assert compact.run(options, Silent()).exit_code == 0
        assert restore.run(RestoreOptions(store, str(tmp_path / f"out-{magic}")), Silent()).exit_code == 0
    assert 3 in {log.read_bytes()[16] for log in files_in(tmp_path / "archive-3", "**/*.log")}
    with start_restored(tmp_path / "out-3") as broker:
        problems, _ = check_served(broker.bootstrap, partition_dirs([tmp_path / "out-2"]))
        assert problems == []


def test_a_broker_refuses_a_file_in_magic_3(cases: dict[str, Case], tmp_path: Path) -> None:
    """Kafka's own reader stops at the magic byte, and a recovery truncates the whole log."""
    (partition,) = cases["none-tomb"].partitions
    folder = as_v3(cases["none-tomb"].input(partition), tmp_path / partition)
    with pytest.raises(LabError, match="Invalid magic found in record: 3"):
        dump([folder])
    with recovered_by_broker({partition: folder}) as data:
        assert sum(log.stat().st_size for log in (data / partition).glob("*.log")) == 0


def test_broker_does_not_start_on_an_interrupted_conversion(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a partition that is not whole stops it by its name. Beside whole ones, the mark alone does not."""
    for name in ("none-tomb", "lz4-append"):
        for partition in cases[name].partitions:
            as_v3(cases[name].input(partition), tmp_path / "archive" / partition)

    def cut_off(step: str, at: int) -> Path:
        """Convert back to magic 2, and end as by a signal before the given call of a step of the conversion."""
        output, config = tmp_path / step, parse_config({"job": {"engine": "threads"}})
        with pytest.raises(KeyboardInterrupt), at_step(step, interrupt, at):
            convert.run(ConvertOptions(str(tmp_path / "archive"), output=str(output), to="v2", config=config), Silent())
        return output

    half = cut_off("partition converted", 2)
    (unfinished,) = half.glob("*-*.part")
    folders = {name: path for name, path in partition_dirs([half]).items() if path.name != unfinished.name}
    assert len(folders) == 1
    message = rf"Found directory .*{unfinished.name}.* is not in the form of topic-partition"
    with pytest.raises(LabError, match=message), served_by_broker(folders, beside=[unfinished]):
        pass
    all_there = cut_off("archive converted", 1)
    folders = partition_dirs([all_there])
    assert len(folders) == 2
    with served_by_broker(folders, beside=[all_there / "convert.part"]) as broker:
        problems, _ = check_served(broker.bootstrap, folders)
        assert problems == []
