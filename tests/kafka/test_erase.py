"""Erased stores before a real broker: kafka-dump-log finds no erased key, and every other record as it was; a broker
starts on what is restored, of every format and codec that brokers wrote, and serves it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import EraseOptions, RestoreOptions, VacuumOptions
from lastkey.jobs.erase import job as erase
from lastkey.jobs.restore import job as restore
from tests.builders.archives import COMPACT, Lab, put
from tests.builders.erasures import SECRET
from tests.golden import case_names
from tests.kafka_lab import check_served, dump_log_segments, start_restored
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_RECORD = re.compile(r"^\| offset: \d+ .*? keySize: (?P<size>-?\d+) .*? key: (?P<key>.*?)(?: payload: .*)?$")
_HEADER = re.compile(r"baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) .*? isControl: (?P<control>\w+)")


def _records(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return (key, line) of each data record, as kafka-dump-log prints it, by partition."""
    records: dict[str, list[tuple[str, str]]] = {}
    logs = sorted(folder.rglob("*.log"))
    name, control = "", False
    output = dump_log_segments("--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs)))
    for line in output.splitlines():
        if line.startswith("Dumping "):
            name = Path(line.removeprefix("Dumping ")).parent.name
        elif header := _HEADER.match(line):
            control = header["control"] == "true"
        elif (record := _RECORD.match(line)) and not control:
            records.setdefault(name, []).append((record["key"], line))
    return records


def test_broker_serves_a_restored_store_without_the_erased_keys(cases, tmp_path: Path) -> None:
    lab = Lab(None, tmp_path, {"defaults": COMPACT | {"null.keys": "keep"}, "job": {"engine": "threads"}})
    for name in case_names():
        for partition in cases[name].partitions:
            number = partition.rpartition("-")[2]
            put(cases[name].input(partition), lab.archive / f"{name}-{number}")
    now_ms = max(cases[name].now_ms(1, p) for name in case_names() for p in cases[name].partitions)
    assert lab.run(now_ms).generations
    restore.run(RestoreOptions(str(lab.store), str(tmp_path / "before")), Silent())
    before = _records(tmp_path / "before")
    texts = sorted({key for of in before.values() for key, _ in of if key.isascii() and key.isprintable() and key})
    keys = random.Random(7).sample(texts, len(texts) // 3)
    (tmp_path / "keys").write_text("".join(f"{key}\n" for key in keys))
    (tmp_path / "hmac.key").write_bytes(SECRET)
    config = parse_config(lab.settings)
    options = {"keys": str(tmp_path / "keys"), "hmac_key": str(tmp_path / "hmac.key"), "config": config}
    report = erase.run(EraseOptions(store=str(lab.store), **options), Silent())
    assert report.result == "vacuum_needed", report.to_text()
    vacuum.run(VacuumOptions(str(lab.store), erased=True), Silent())
    restore.run(RestoreOptions(str(lab.store), str(tmp_path / "after")), Silent())
    after = _records(tmp_path / "after")
    erased = set(keys)
    assert {name: [line for key, line in of if key not in erased] for name, of in before.items()} == {
        name: [line for _, line in after.get(name, ())] for name in before
    }
    assert not erased & {key for of in after.values() for key, _ in of}
    assert sum(map(len, after.values())) < sum(map(len, before.values()))
    with start_restored(tmp_path / "after") as broker:
        parts = partition_dirs([broker.data])
        problems, _ = check_served(broker.bootstrap, parts)
        assert problems == []
