"""Keys in logs that real brokers wrote, of every format and codec: those that kafka-dump-log prints, and no others."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.erase.places import Places, add_archive
from lastkey.jobs.erase.search_store import search
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.storage import open_root
from tests.builders.archives import put
from tests.builders.workers import InTurn
from tests.golden import case_names
from tests.kafka_lab import dump_log_segments

pytestmark = pytest.mark.kafka

_RECORD = re.compile(
    r"^\| offset: (?P<offset>\d+) .*? keySize: (?P<size>-?\d+) .*? key: (?P<key>.*?)(?: payload: .*)?$"
)


def test_search_finds_the_records_of_kafka_dump_log(cases, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for name in case_names():
        for partition in cases[name].partitions:
            put(cases[name].input(partition), archive / name / partition)
    logs = sorted(archive.rglob("*.log"))
    printed: dict[str, list[tuple[str, int]]] = {}
    files, log = ",".join(map(str, logs)), ""
    for line in dump_log_segments("--deep-iteration", "--print-data-log", "--files", files).splitlines():
        log = line.removeprefix("Dumping ") if line.startswith("Dumping ") else log
        record = _RECORD.match(line)
        if record is not None and len(record["key"]) == int(record["size"]):  # text of one byte a letter
            printed.setdefault(record["key"], []).append((log, int(record["offset"])))
    keys = random.Random(7).sample(sorted(printed), 200)
    places = Places()
    add_archive(places, open_root(str(archive)), Config(), EVERY_TOPIC)
    sought = search(KeySet.of([key.encode() for key in keys]), None, places, InTurn(), Silent())
    matches = []
    for table, files in sought.tables():
        rows = zip(*(table[name].to_pylist() for name in ("file", "offset", "key")), strict=True)
        matches += [(f"{files[file].root}/{files[file].path}", offset, keys[key]) for file, offset, key in rows]
    assert sorted(matches) == sorted((*place, key) for key in keys for place in printed[key])
    assert len(matches) > 1000 and not sought.problems
