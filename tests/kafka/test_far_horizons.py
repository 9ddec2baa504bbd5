"""Timestamp deltas below -2^31: a batch keeps a tombstone whose time lies more than 25 days before the delete horizon,
which is the base timestamp of the rebuilt batch. Its bytes equal those of Kafka's cleaner, and every reader takes them.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions, as_strings
from tests.builders.logs import START_MS, write_partition
from tests.builders.opened import open_partition
from tests.builders.place import Place
from tests.builders.sources import read
from tests.builders.trees import files_in
from tests.kafka_lab import clean, dump_log_segments, locate
from tests.kafka_lab.oracle import CleanSpec
from tests.reference.any_magic import decode_any
from tests.reference.log import Record

pytestmark = pytest.mark.kafka

DAY = 86_400_000
NOW = START_MS + 60 * DAY
LATER = NOW + 2 * DAY  # behind the delete horizon

LOG = (
    "a=1 b=- c=2 | {codec=gzip} d=- a=2 e=3~1700000009999 | {codec=lz4} f=- f1=1 c=3 | {append_time=1700000005000} g=-"
    " | {pid=7 txn} i=- c=4 | {pid=7 commit} | {pid=8 txn} x=1 | {pid=8 abort} | {pid=8 txn} y=1 | {pid=8 commit} | e=4"
    f" | {{ts={NOW - 1000}}} j=- h=2 || h=3 | h=4"
)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """Return a store whose generation has deltas below -2^31 in records and in a marker."""
    place = Place(tmp_path, capsys)
    write_partition(place.archive, LOG, index_interval_bytes=0)
    for _ in range(2):  # the ABORT marker gets its horizon in the second pass
        compacted(place)
    batches = [b for path in logs(restored(place)) for b in decode_any(path.read_bytes())]
    far = [b for b in batches for r in b.records if r.timestamp - b.base_timestamp < -(2**31)]
    assert {b.codec for b in far} >= {0, 1, 3} and any(b.control for b in far) and any(b.append_time for b in far)
    return place


def compacted(place: Place, *more: str, now_ms: int = NOW) -> None:
    archive, store = str(place.archive.parent), ("--store", str(place.store))
    settings = ("--topics", "t", "--cleanup-policy", "compact", "--now", str(now_ms), "--force")
    assert place.run("compact", archive, *store, *settings, *more)[0] == 0


def restored(place: Place, name: str = "restored") -> Path:
    folder = place.root / name
    assert place.run("restore", "--store", str(place.store), "--output", str(folder))[0] == 0
    return folder / "t-0"


def logs(folder: Path) -> list[Path]:
    return files_in(folder)


def data_records(folder: Path) -> list[Record]:
    batches = [b for path in logs(folder) for b in decode_any(path.read_bytes())]
    return [r for b in batches if not b.control for r in b.records]


def test_kafkas_cleaner_writes_the_same_bytes_and_later_removes_the_same_tombstones(place: Place) -> None:
    theirs = place.root / "kafka" / "t-0"
    write_partition(theirs, LOG, index_interval_bytes=0)
    list(clean([CleanSpec(theirs, NOW)]))
    for now_ms in (NOW, LATER):
        if now_ms == LATER:
            compacted(place, now_ms=LATER)
        list(clean([CleanSpec(theirs, now_ms)]))
        ours = restored(place, f"at {now_ms}")
        assert [path.read_bytes() for path in logs(ours)] == [path.read_bytes() for path in logs(theirs)]


def test_verify_and_reindex_accept_far_horizons(place: Place) -> None:
    folder = restored(place, "again")
    assert place.run("verify", "--store", str(place.store))[0] == 0
    assert place.run("verify", str(folder.parent))[0] == 0
    code, output = place.run("reindex", str(folder.parent), "--check")
    assert code == 0, output


def test_inspect_prints_far_horizons_as_kafka_dump_log(place: Place) -> None:
    options = DumpOptions(LogOptions(deep=True, decode=as_strings))
    for path in logs(restored(place, "again")):
        out: list[bytes] = []
        assert dump([path], options, partial(_add, out)).all_problems == []
        assert b"".join(out).decode() == dump_log_segments("--print-data-log", "--files", path)


def _add(out: list[bytes], data: bytes) -> None:
    out.append(bytes(data))


def test_data_source_reads_far_timestamps(place: Place) -> None:
    folder = restored(place, "again")
    table = read("kafka_log", folder.parent, maxRecordsPerBatch="3")
    times = np.asarray(table["timestamp"].cast("int64")) // 1000
    expected = {r.offset: (r.timestamp, r.key) for r in data_records(folder)}
    rows = zip(table["offset"].to_pylist(), times.tolist(), table["key"].to_pylist(), strict=True)
    assert {offset: (time, key) for offset, time, key in rows} == expected


def test_lookups_by_far_times_equal_those_of_the_broker(place: Place) -> None:
    folder = restored(place, "again")
    times = sorted({r.timestamp + d for r in data_records(folder) for d in (-1, 0, 1)})
    copy = place.root / "copy" / "t-0"
    shutil.copytree(folder, copy)
    with open_partition(folder) as log:
        answers = log.offsets_for_times(times)
    ours = [None if a["offset"] < 0 else (int(a["offset"]), int(a["timestamp"])) for a in answers]
    theirs = locate(copy, [], times).times
    assert ours == [None if answer is None else answer[:2] for answer in theirs]
    code, output = place.run("lookup", str(folder.parent), "--topics", "t", "--time", str(times[0]))
    assert code == 0, output


def test_conversion_to_magic_3_and_back_keeps_far_horizons(place: Place) -> None:
    folder = restored(place, "again")
    for form, source in (("v3", folder.parent), ("v2", place.root / "v3")):
        code, output = place.run("convert", str(source), "--to", form, "--output", str(place.root / form))
        assert code == 0, output
    v3 = place.root / "v3" / "t-0"
    assert any(3 in (data[16] for data in [path.read_bytes()] if data) for path in logs(v3))
    assert data_records(v3) == data_records(folder)
    assert [path.read_bytes() for path in logs(place.root / "v2" / "t-0")] == [p.read_bytes() for p in logs(folder)]
