"""Damage, as the data source meets it: with badRecords=fail an error that says where, with quarantine a row that says
so, and every record of every batch that is whole.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from lastkey.logformat.batches.chunks import CHUNK_BYTES
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions, RecordLimits
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import segment_file
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, SEGMENTS, Partition, batch_at, build, edit, flip, resign
from tests.builders.faults import Fault, faults
from tests.builders.logs import write_partition
from tests.builders.sources import read
from tests.builders.trees import files_in
from tests.reference.log import GZIP, NONE, SNAPPY, ZSTD

INNER = SEGMENT_OFFSETS
ACTIVE = (SEGMENTS - 1) * SEGMENT_OFFSETS
ALL = list(range(SEGMENTS * SEGMENT_OFFSETS))
SECOND = list(range(INNER + RECORDS, INNER + 2 * RECORDS))  # the inner segment's second batch, which is damaged
HOSTILE = {"maxRecordsPerBatch": "3", "splitBytes": "500"}


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def fails(part: Partition, kind: str, path: str, position: int, **options: str) -> None:
    with pytest.raises(LogFormatError) as caught:
        read("kafka_log", part.root, **options)
    error = caught.value
    assert (error.kind, error.path, error.position) == (kind, f"{part.root}/t-0/{path}", position)
    assert error.expected and error.found


def quarantine(part: Partition, **options: str) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the offsets that are there, in order, and (kind, position) of the problems."""
    rows = read("kafka_log", part.root, badRecords="quarantine", **options).to_pylist()
    problems = [row["problem"] for row in rows if row["problem"]]
    for row in rows:
        if row["problem"]:
            assert (row["topic"], row["partition"]) == ("t", 0)
            assert row["key"] is row["value"] is row["offset"] is row["timestamp"] is None
    offsets = [row["offset"] for row in rows if not row["problem"]]
    assert offsets == sorted(offsets)
    return offsets, [(problem["kind"], problem["position"]) for problem in problems]


def expect(part: Partition, kind: str, position: int, lost: list[int], base: int = INNER) -> None:
    """Check that every way to read meets this one problem, and loses nothing else."""
    fails(part, kind, segment_file(base, "log"), position)
    kept = [offset for offset in ALL if offset not in lost]
    for options in ({}, HOSTILE):
        assert quarantine(part, **options) == (kept, [(kind, position)]), options


@pytest.mark.parametrize("source", ["kafka_log", "kafka_log_batches"])
def test_last_offset_above_the_end_hides_no_batch(part, source):
    """Reading has an end, which the index leads to; a batch before it claims offsets far behind it, and is signed."""
    log, after = part.log(ACTIVE), part.positions(ACTIVE)[1]
    edit(log, 23, struct.pack(">i", 1 << 20))
    resign(log, 0)
    with pytest.raises(LogFormatError) as caught:
        read(source, part.root, endingOffsets=json.dumps({"t": {"0": ALL[-1] + 1}}))
    assert (caught.value.kind, caught.value.position) == ("offsets", after)


@pytest.mark.parametrize("limit", [{"endingOffsets": '{"t":{"0":18}}'}, {"pushed": {"end_offset": 18}}])
def test_a_damaged_offset_at_the_end_of_a_chunk_hides_no_batch(tmp_path, limit):
    """The checksum leaves it out; the next batch, which lies in the next chunk, shows it."""
    files = write_partition(tmp_path / "t-0", " | ".join(["a=" + 500_000 * "v"] * 20))
    (log,) = files.logs
    headers = open_segment(log).headers()
    n = int((headers["position"] + headers["size"] <= CHUNK_BYTES).sum())
    assert 1 < n < 18
    with log.open("r+b") as file:
        file.seek(int(headers["position"][n - 1]))
        file.write((n - 1 + 2**20).to_bytes(8, "big"))
    with pytest.raises(LogFormatError, match=r"offsets: expected an offset of .* or more, found"):
        read("kafka_log", tmp_path, columns="offset", **limit)
    with (tmp_path / "out").open("wb") as out:
        findings = dump([log], DumpOptions(LogOptions(deep=True, wanted=RecordLimits(end_offset=18))), out.write)
    assert [problem.kind for problem in findings.all_problems] == ["offsets"]
    assert (tmp_path / "out").read_text().count("| offset: ") == 17  # all but the damaged one


def test_undamaged_archive_is_read_completely(part):
    assert read("kafka_log", part.root)["offset"].to_pylist() == ALL
    assert quarantine(part, **HOSTILE) == (ALL, [])


@pytest.mark.parametrize("at", [23, 30, 40, 52, 60, 61, 70])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, ZSTD])
def test_a_flipped_bit_quarantines_its_batch(tmp_path, codec, at):
    part = build(tmp_path / "archive", codec)
    position = part.positions(INNER)[1]
    flip(part.log(INNER), position + at, 3)
    expect(part, "crc", position, SECOND)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("past", [1, RECORDS])
def test_last_offset_out_of_range_is_quarantined(part, past, isolation):
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position, struct.pack(">q", 2**63 - 1 - RECORDS + past))
    fails(part, "offsets", segment_file(INNER, "log"), position, isolationLevel=isolation)
    kept = [offset for offset in ALL if offset not in SECOND]
    for options in ({}, HOSTILE):
        offsets = quarantine(part, isolationLevel=isolation, **options)
        assert offsets == (kept, [("offsets", position)]), options


def test_damaged_batch_does_not_hide_the_next_one(part):
    positions = part.positions(INNER)
    for position in positions:
        flip(part.log(INNER), position + 50)
    offsets, problems = quarantine(part)
    assert problems == [("crc", position) for position in positions]
    assert offsets == [offset for offset in ALL if not INNER <= offset < 2 * INNER]


def test_damaged_bodies_are_each_quarantined(part):
    log, positions = part.log(INNER), part.positions(INNER)
    for position in (positions[0], positions[2]):
        edit(log, position + 61, b"\xff" * 6)
        resign(log, position)
    offsets, problems = quarantine(part)
    assert problems == [("varint", positions[0] + 61), ("varint", positions[2] + 61)]
    assert offsets == [offset for offset in ALL if not INNER <= offset < 2 * INNER or offset in SECOND]


@pytest.mark.parametrize("base", [INNER, ACTIVE])
def test_length_beyond_the_end_is_quarantined(part, base):
    """The same in the last segment: the index contains later batches, so the damage is no torn tail."""
    position = part.positions(base)[1]
    edit(part.log(base), position + 8, struct.pack(">i", 1 << 20))
    fails(part, "torn_tail", segment_file(base, "log"), position)
    lost = range(base + RECORDS, base + 2 * RECORDS)
    assert quarantine(part) == ([offset for offset in ALL if offset not in lost], [("torn_tail", position)])


def test_damage_without_an_index_is_quarantined_to_the_segment_end(part):
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", -1))
    (part.folder / segment_file(INNER, "index")).unlink()
    offsets, problems = quarantine(part)
    assert problems == [("length", position)]
    assert offsets == [offset for offset in ALL if not INNER + RECORDS <= offset < 2 * INNER]


def test_file_name_above_the_first_offset_is_quarantined(part):
    for kind in ("log", "index", "timeindex"):
        (part.folder / segment_file(INNER, kind)).rename(part.folder / segment_file(INNER + 2, kind))
    fails(part, "name", segment_file(INNER + 2, "log"), 0)
    offsets, problems = quarantine(part)
    assert ("name", 0) in problems
    assert offsets == [offset for offset in ALL if offset not in (INNER, INNER + 1)]


def test_overlapping_segments_are_quarantined(part):
    part.write(INNER, [batch_at(INNER + i * RECORDS) for i in range(4)])
    fails(part, "overlap", segment_file(INNER, "log"), part.positions(INNER)[3])
    offsets, problems = quarantine(part)
    assert problems == [("overlap", part.positions(INNER)[3])]
    assert offsets == ALL


def test_zeros_of_a_preallocated_log_are_ignored(part):
    log = part.log(ACTIVE)
    log.write_bytes(log.read_bytes() + bytes(10_000))
    assert quarantine(part) == (ALL, [])
    part.log(INNER).write_bytes(part.log(INNER).read_bytes() + bytes(500))
    offsets, problems = quarantine(part)
    assert offsets == ALL
    assert [kind for kind, _ in problems] == ["torn_tail"]


def test_unreadable_later_markers_are_reported(tmp_path):
    """It is unknown then which transactions were committed: their data is withheld, and the problem reported."""
    files = write_partition(tmp_path / "archive" / "t-0", "{pid=1 txn} a=1 | x=2 || {pid=1 abort} | y=3 | z=4")
    edit(files.logs[1], 8, b"\xff\xff\xff\xff")
    with pytest.raises(LogFormatError, match="length"):
        read("kafka_log", tmp_path / "archive", isolationLevel="read_committed")
    options = {"isolationLevel": "read_committed", "badRecords": "quarantine"}
    rows = read("kafka_log", tmp_path / "archive", **options).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == [b"2"]  # and what lies behind the damage is not found
    assert {row["problem"]["path"] for row in rows if row["problem"]} == {str(files.logs[1])}


@pytest.mark.parametrize("in_last", [False, True])
def test_committed_records_before_and_after_damage_are_read(tmp_path, in_last):
    """Only records whose marker may lie behind the damage are withheld; the log end behind the damage is found."""
    text = (
        "{pid=1 txn} a=1 | {pid=2 txn} b=2 | {pid=2 commit} | x=3 | {pid=1 txn} c=4 | {pid=1 commit} | {pid=3 txn} d=5"
    )
    text = f"{text} | {{pid=3 abort}} | {{pid=4 txn}} e=6" + ("" if in_last else " || {pid=4 commit} | f=7")
    files = write_partition(tmp_path / "archive" / "t-0", text, index_interval_bytes=1)
    at = read("kafka_log_batches", tmp_path / "archive", columns="position").to_pylist()[3]["position"]
    edit(files.logs[0], at + 8, b"\xff\xff\xff\xff")
    options = {"isolationLevel": "read_committed", "badRecords": "quarantine"}
    rows = read("kafka_log", tmp_path / "archive", **options).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == [b"2", b"4", *([] if in_last else [b"6", b"7"])]
    assert {row["problem"]["position"] for row in rows if row["problem"]} == {at}


@pytest.mark.parametrize(
    ("at", "bit", "name"), [(69, 0, "its type"), (50, 1, "its producer"), (22, 5, "its control bit")], ids=str
)
@pytest.mark.parametrize("ahead", [False, True])
def test_flipped_bit_in_a_marker_makes_no_aborted_data_visible(tmp_path, at, bit, name, ahead):
    """The marker may also lie above the requested offsets."""
    text = "{pid=1 txn} a=1 | x=2 | {pid=1 abort} | {pid=1 txn} b=3 | {pid=1 commit} || y=4"
    files = write_partition(tmp_path / "archive" / "t-0", text)
    marker = read("kafka_log_batches", tmp_path / "archive", columns="position").to_pylist()[2]["position"]
    flip(files.logs[0], marker + at, bit)
    options = {"isolationLevel": "read_committed", **({"endingOffsets": '{"t":{"0":2}}'} if ahead else {})}
    with pytest.raises(LogFormatError, match="crc"):
        read("kafka_log", tmp_path / "archive", **options)
    rows = read("kafka_log", tmp_path / "archive", badRecords="quarantine", **options).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == ([b"2"] if ahead else [b"2", b"3", b"4"]), name
    assert {row["problem"]["position"] for row in rows if row["problem"]} == {marker}


def test_damage_that_opens_an_endless_transaction_is_reported(tmp_path):
    """Records behind it are above the last stable offset: the bad batch would never be read."""
    files = write_partition(tmp_path / "archive" / "t-0", "x=1 || y=2 | {pid=1 txn} a=3 | {pid=1 commit} | z=4")
    bad = read("kafka_log_batches", tmp_path / "archive", columns="position").to_pylist()[2]["position"]
    flip(files.logs[1], bad + 50, 1)
    with pytest.raises(LogFormatError, match="crc"):
        read("kafka_log", tmp_path / "archive", isolationLevel="read_committed")
    options = {"isolationLevel": "read_committed", "badRecords": "quarantine"}
    rows = read("kafka_log", tmp_path / "archive", **options).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == [b"1", b"2"]
    assert [row["problem"]["position"] for row in rows if row["problem"]] == [bad]


def test_data_without_a_marker_is_withheld_where_headers_are_damaged(tmp_path):
    """A bad last offset hides, from who reads headers alone, that the next batch opens a transaction."""
    files = write_partition(
        tmp_path / "archive" / "t-0", "x=1 | {pid=1 txn} a=2 | y=3 || {pid=2 txn} b=4 | {pid=2 commit}"
    )
    edit(files.logs[0], 23, b"\x00\x00\x00\x09")
    for snapshot in files_in(tmp_path / "archive" / "t-0", "*.snapshot"):
        snapshot.unlink()
    options = {"isolationLevel": "read_committed", "badRecords": "quarantine"}
    rows = read("kafka_log", tmp_path / "archive", **options).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == [b"3", b"4"]
    assert {row["problem"]["position"] for row in rows if row["problem"]} == {0}


@pytest.mark.parametrize(
    "given",
    [{"endingOffsets": '{"t":{"0":8}}'}, {"isolationLevel": "read_committed"}, {"startingOffsets": '{"t":{"0":1}}'}],
    ids=lambda given: next(iter(given)),
)
def test_end_of_the_log_after_damage_is_determined(tmp_path, given):
    """Limits need the log's end; where damage hides it, the log is read up to there, and the damage reported."""
    files = write_partition(tmp_path / "archive" / "t-0", "a=0 || a=1 | b=2 | c=3 | d=4")
    edit(files.logs[1], 70 + 8, b"\xff\xff\xff\xff")
    rows = read("kafka_log", tmp_path / "archive", badRecords="quarantine", **given).to_pylist()
    assert [row["value"] for row in rows if row["value"]] == [b"0", b"1"]["startingOffsets" in given :]
    assert [row["problem"]["position"] for row in rows if row["problem"]] == [70]


def test_unreadable_files_are_reported(part):
    part.log(INNER).unlink()
    part.log(INNER).mkdir()
    with pytest.raises(LogFormatError, match="unreadable: expected a readable file, found a folder"):
        read("kafka_log", part.root)
    rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
    assert [row["problem"]["kind"] for row in rows] == ["unreadable"]


def test_file_shortened_after_the_listing_is_reported(part):
    from lastkey.jobs.data_source.read import read_task
    from lastkey.jobs.data_source.source import select_columns
    from tests.builders.sources import BY_NAME, _Partition, list_tasks, parse_options

    for given, kept in (({}, None), ({"badRecords": "quarantine"}, [o for o in ALL if not INNER <= o < 2 * INNER])):
        tasks = list_tasks("kafka_log", part.root)
        whole = part.log(INNER).read_bytes()
        part.log(INNER).write_bytes(whole[:100])
        options = parse_options("kafka_log", part.root, **given)
        schema = select_columns(BY_NAME["kafka_log"].columns, options)
        if kept is None:
            with pytest.raises(LogFormatError, match="changed"):
                [batch for task in tasks for batch in read_task(options, schema, _Partition(task))]
        else:
            batches = [batch for task in tasks for batch in read_task(options, schema, _Partition(task))]
            assert [o for b in batches for o in b.column("offset").to_pylist() if o is not None] == kept
        part.log(INNER).write_bytes(whole)


@pytest.mark.parametrize("name", ["t-0", "disk2"])
def test_unlistable_folder_is_reported(part, tmp_path, name):
    """The folder is a partition's, or may hold partitions: without a problem its records would be missing silently."""
    (part.root / "disk2").mkdir()
    (part.root / "lost+found").mkdir()  # folder of the file system, never a log

    refused = [Fault("list", f"{part.root}/{each}", times=None, error="EACCES") for each in (name, "lost+found")]
    with faults(tmp_path, *refused):
        with pytest.raises(LogFormatError, match=f"{name}: unreadable: .* Permission denied"):
            read("kafka_log", part.root)
        rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
    assert [row["problem"]["kind"] for row in rows if row["problem"]] == ["unreadable"]
    assert len(rows) == 1 + (len(ALL) if name == "disk2" else 0)


def test_a_partition_in_two_folders_is_refused(part, tmp_path):
    shutil.copytree(part.folder, part.root / "disk2" / "t-0")
    with pytest.raises(LogFormatError, match="duplicate: expected one folder for each partition"):
        read("kafka_log", part.root)
    with pytest.raises(LogFormatError, match="duplicate"):
        read("kafka_log", [str(part.folder), str(part.root / "disk2" / "t-0")])
    assert read("kafka_log", part.root / "disk2")["offset"].to_pylist() == ALL


BITS: list[Callable[[random.Random], int]] = [lambda rng: rng.randrange(8, 12), lambda rng: rng.randrange(16, 300)]


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 100))])
def test_flipped_bit_loses_at_most_its_batch(part, seed):
    """In bytes that a checksum covers, or in the length or magic; offsets and leader epoch have none."""
    rng = random.Random(seed)
    base = rng.randrange(SEGMENTS) * SEGMENT_OFFSETS
    number = rng.randrange(3)
    position = part.positions(base)[number]
    at = position + min(BITS[seed % 2](rng), len(batch_at(base).data) - 1)
    flip(part.log(base), at, rng.randrange(8))
    lost = range(base + number * RECORDS, base + (number + 1) * RECORDS)
    offsets, problems = quarantine(part, **(HOSTILE if seed % 3 == 0 else {}))
    if base == ACTIVE and number == 2 and not problems:  # a length that leads behind the end of the log: a torn tail
        assert at - position in range(8, 12)
    else:
        assert problems
    assert offsets == [offset for offset in ALL if offset not in lost]


def test_batches_and_indexes_are_quarantined_too(part):
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", -1))
    with pytest.raises(LogFormatError, match="length"):
        read("kafka_log_batches", part.root)
    rows = read("kafka_log_batches", part.root, badRecords="quarantine").to_pylist()
    assert [row["base_offset"] for row in rows] == [
        offset if offset != INNER + RECORDS else None for offset in ALL[::RECORDS]
    ]
    index = part.folder / segment_file(INNER, "index")
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(LogFormatError, match="index: expected entries of 8 bytes"):
        read("kafka_log_index", part.root)
    rows = read("kafka_log_index", part.root, badRecords="quarantine").to_pylist()
    assert [row["problem"]["kind"] for row in rows if row["problem"]] == ["index"]
    assert len({row["path"] for row in rows}) == len(list(part.folder.glob("*index"))) + 1
