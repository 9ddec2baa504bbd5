"""Searches by offset and by time: what a slow twin finds in the decoded records, whatever the indexes are like."""

from __future__ import annotations

import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs

from lastkey.logformat import listing
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.search import partition_log, segment_search
from lastkey.logformat.search import windows as log_windows
from lastkey.logformat.search.partition_log import (
    EARLIEST,
    END,
    FOUND,
    LATEST,
    MAX_TIMESTAMP,
    OUT_OF_RANGE,
    PartitionLog,
)
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import START_MS, write_partition
from tests.builders.opened import open_partition
from tests.builders.trees import files_in
from tests.golden import case_names, golden
from tests.reference.log import data_batch
from tests.reference.lookup import Batch, Log, Segment

STATUS = {"found": FOUND, "end": END, "out_of_range": OUT_OF_RANGE}


def log_path(listed: listing.Segment) -> str:
    return f"{listed.root}/{listed.path}"


def decode_twin(segments: tuple[listing.Segment, ...], log_start: int) -> Log:
    """Return the decoded log."""
    decoded = []
    for files in segments:
        segment = open_segment(log_path(files))
        table = segment.to_arrow(["offset", "timestamp_ms"])
        records = list(zip(table["offset"].to_pylist(), table["timestamp_ms"].to_pylist(), strict=True))
        batches, at = [], 0
        for row in segment.headers():
            until = at
            while until < len(records) and records[until][0] <= row["last_offset"]:
                until += 1
            batches.append(
                Batch(
                    int(row["position"]),
                    int(row["size"]),
                    int(row["base_offset"]),
                    int(row["last_offset"]),
                    int(row["max_timestamp"]),
                    int(row["magic"]),
                    int(row["partition_leader_epoch"]),
                    tuple(records[at:until]),
                )
            )
            at = until
        decoded.append(Segment(files.base_offset, files.mtime_ms, tuple(batches)))
    return Log(tuple(decoded), log_start)


def location(answer) -> tuple[int, ...]:
    """Return a result of `Log.read` as a LOCATION."""
    status, segment, batch = answer
    if batch is None:
        return STATUS[status], -1, -1, -1, -1, -1
    return FOUND, segment.base_offset, batch.position, batch.size, batch.base_offset, batch.last_offset


def check(log: PartitionLog, twin: Log, offsets: list[int], times: list[int], end_offset: int | None = None) -> None:
    """Check that every way to ask gives the twin's answers."""
    expected = [location(twin.read(offset, end_offset)) for offset in offsets]
    assert log.lookup_offsets(offsets).tolist() == expected
    for offset, answer in zip(offsets[:50], expected, strict=False):
        assert log.lookup_offset(offset) == (answer[1:] if answer[0] == FOUND else None)
    expected = [twin.offset_for_time(time, end_offset) or (-1,) * 5 for time in times]
    assert log.offsets_for_times(times).tolist() == expected
    for time, answer in list(zip(times, expected, strict=True))[:10]:
        assert log.offsets_for_times([time]).tolist() == [answer]
    assert log.offsets_for_times([MAX_TIMESTAMP]).tolist() == [twin.offset_for_time(-3, end_offset) or (-1,) * 5]


def questions(twin: Log, rng: random.Random, n: int) -> tuple[list[int], list[int]]:
    """Return offsets and timestamps, at random and at every border."""
    known = [time for segment in twin.segments for batch in segment.batches for _, time in batch.records if time >= 0]
    near = [rng.choice(known) + rng.randrange(-2, 3) for _ in range(n)] if known else []
    edges = [segment.mtime_ms + d for segment in twin.segments for d in (0, 1)]
    times = [max(time, 0) for time in (*near, *edges, 0, 2**62)]
    borders = [base + d for base in (s.base_offset for s in twin.segments) for d in (-1, 0, 1)]
    offsets = [rng.randrange(-2, twin.log_end + 3) for _ in range(n)]
    offsets += [*borders, twin.log_start - 1, twin.log_end - 1, twin.log_end, twin.log_end + 1]
    return offsets, [*times, MAX_TIMESTAMP]


@pytest.mark.parametrize("name", case_names())
def test_lookups_in_golden_logs_equal_the_twin(name, tmp_path_factory):
    case, rng = golden(tmp_path_factory)[name], random.Random(name)
    for partition in case.partitions:
        for folder in (case.input(partition), *(case.expected(number, partition) for number in (1, 3))):
            with open_partition(folder) as log:
                twin = decode_twin(log.segments, log.earliest)
                assert (log.earliest, log.latest) == (twin.log_start, twin.log_end)
                check(log, twin, *questions(twin, rng, 60))
                assert log.notes == ()


def test_notebook_queries_are_answered(tmp_path: Path):
    folder = tmp_path / "orders-3"
    folder.mkdir()
    write_partition(folder, "a=1 b=2 | c=3 || {leader=2} d=4 e=5")
    log = open_partition(folder)
    assert (
        repr(log)
        == f"PartitionLog('orders-3', 2 segments, {sum(f.size_bytes for f in log.segments):,} bytes, from offset 0)"
    )
    assert log.lookup_offset(4) == (3, 0, log.segments[1].size_bytes, 3, 4)
    assert log.lookup_offset(5) is None
    answers = log.offsets_for_times([START_MS + 2, EARLIEST, LATEST, START_MS + 9])
    assert answers["offset"].tolist() == [2, 0, 5, -1]
    assert answers["leader_epoch"].tolist() == [0, 0, 2, -1]
    looked_up = log.lookup_offsets([4, 5, 6])
    assert looked_up["status"].tolist() == [FOUND, END, OUT_OF_RANGE]
    assert looked_up["position"].tolist() == [0, -1, -1]
    with pytest.raises(ValueError, match="not a timestamp: -7"):
        log.offsets_for_times(np.array([-7]))
    for wrong in ([1.5], ["1"], [None], np.array(["2024-01-01"], "M8[ms]")):
        with pytest.raises(TypeError, match="whole numbers"):
            log.offsets_for_times(wrong)
    assert log.lookup_offsets([]).size == log.offsets_for_times(()).size == 0
    assert log.lookup_offsets(pa.array([4]))["position"].tolist() == [0]


def cut(data: bytes, entry: int, rng: random.Random) -> bytes:
    return data[: entry * rng.randrange(len(data) // entry + 1)]


def swapped(data: bytes, entry: int, rng: random.Random) -> bytes:
    entries = [data[i : i + entry] for i in range(0, len(data), entry)]
    rng.shuffle(entries)
    return b"".join(entries)


def flipped(data: bytes, entry: int, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4) if data else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def holes(data: bytes, entry: int, rng: random.Random) -> bytes:
    at = entry * rng.randrange(len(data) // entry + 1)
    return data[:at] + bytes(entry * rng.randrange(1, 4)) + data[at + rng.choice([0, entry]) :]


DAMAGE = {
    "missing": lambda data, entry, rng: None,
    "empty": lambda data, entry, rng: b"",
    "torn": lambda data, entry, rng: data + b"\1" * rng.randrange(1, entry),
    "cut": cut,
    "padded": lambda data, entry, rng: data + bytes(entry * rng.choice([1, 2, 1000])),
    "only zeros": lambda data, entry, rng: bytes(entry * rng.choice([1, 2, 1000])),
    "zeros in the middle": holes,
    "decreasing": lambda data, entry, rng: b"".join(
        reversed([data[i : i + entry] for i in range(0, len(data), entry)])
    ),
    "swapped": swapped,
    "twice": lambda data, entry, rng: data + data,
    "garbage": lambda data, entry, rng: rng.randbytes(entry * rng.choice([1, 3, 200])),
    "ones": lambda data, entry, rng: b"\xff" * (entry * rng.choice([1, 9])),
    "flipped": flipped,
    "huge": lambda data, entry, rng: data + rng.randbytes(entry * 100_000),
}


def damage(folder: Path, rng: random.Random, *, kinds: list[str]) -> None:
    """Damage each index of a partition in one of these ways, or give it that of another segment."""
    files = files_in(folder, "*.index"), files_in(folder, "*.timeindex")
    for paths, entry in zip(files, (8, 12), strict=True):
        data = [path.read_bytes() for path in paths]
        for i, path in enumerate(paths):
            kind = rng.choice(kinds)
            if kind == "foreign":
                path.write_bytes(data[(i + 1) % len(data)])
                continue
            made = DAMAGE[kind](data[i], entry, rng)
            path.unlink() if made is None else path.write_bytes(made)


LEGACY = [name for name in case_names() if name.startswith(("v0", "v1"))]


@pytest.mark.long
@pytest.mark.parametrize("name", [*LEGACY[::3], "few-keys", "ts-disorder", "lz4-append", "txn-zstd"])
def test_damaged_indexes_of_golden_logs_do_not_change_answers(name, tmp_path, tmp_path_factory):
    case, rng = golden(tmp_path_factory)[name], random.Random(name)
    partition = case.partitions[0]
    intact = open_partition(case.input(partition))
    twin = decode_twin(intact.segments, intact.earliest)
    for kinds in ([kind] for kind in (*DAMAGE, "foreign")):
        folder = tmp_path / kinds[0] / partition
        shutil.copytree(case.input(partition), folder)
        damage(folder, rng, kinds=kinds)
        with open_partition(folder) as log:
            check(log, twin, *questions(twin, rng, 40))


def spaced_time(segment: int, value: int) -> int:
    return value if value < 0 else 10 * value + segment


TIMES = [10 * value + d for value in range(75) for d in range(6)]


def draw_log(folder: Path, rng: random.Random) -> int:
    """Draw a partition of small batches with an index entry each, timestamps in any order; return it with its log end.

    No two segments share a timestamp: the last digit is the segment's. (Only this tells the index of another segment
    from the right one.)
    """
    segments, offset = [], 0
    for number in range(rng.randrange(1, 5)):
        batches = []
        for _ in range(rng.randrange(0, 12)):
            offset += rng.choice([0, 0, 1, 5])
            records = []
            for _ in range(rng.randrange(1, 4)):
                records.append(f"k=v@{offset}~{spaced_time(number, rng.choice([-1, offset, rng.randrange(60), 30]))}")
                offset += rng.choice([1, 1, 3])
            options = rng.choice(
                ["", "", "{codec=zstd}", f"{{append_time={spaced_time(number, rng.randrange(60))}}}", "{leader=4}"]
            )
            batches.append(f"{options} {' '.join(records)}")
            if rng.random() < 0.1:
                batches.append(f"{{base={offset} last={offset + 2} max_ts={spaced_time(number, rng.randrange(70))}}}")
                offset += 3
        segments.append(" | ".join(batches))
        offset += not batches  # an empty segment has an offset of its own
    write_partition(folder, " || ".join(segments), index_interval_bytes=rng.choice([0, 0, 200]))
    return offset


@pytest.mark.long
@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_damaged_indexes_of_random_logs_do_not_change_answers(tmp_path_factory, seed):
    """Small batches with an index entry each, timestamps in any order; indexes older or newer than the log."""
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("drawn") / "t-0"
    folder.mkdir()
    end = draw_log(folder, rng)
    intact = open_partition(folder)
    twin = decode_twin(intact.segments, intact.earliest)
    check(intact, twin, list(range(-1, end + 3)), [*rng.sample(TIMES, 90), MAX_TIMESTAMP])
    damage(folder, rng, kinds=[*DAMAGE, "foreign"])
    log = open_partition(folder)
    check(log, twin, list(range(-1, end + 3)), [*rng.sample(TIMES, 90), MAX_TIMESTAMP])


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_answers_are_limited_by_log_start_and_end(tmp_path, seed):
    rng = random.Random(seed)
    folder = tmp_path / "t-0"
    folder.mkdir()
    end = draw_log(folder, rng)
    whole = decode_twin(open_partition(folder).segments, 0)
    for start in range(-1, end + 3, 2):
        (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
        log = open_partition(folder)
        if start > end:  # the checkpoint is another log's
            with pytest.raises(LogFormatError, match=f"a log start of at most {end}, the log end, found {start}"):
                log.lookup_offset(0)
            continue
        listed = {each.base_offset for each in log.segments}  # none that lies below the log start
        twin = Log(tuple(each for each in whole.segments if each.base_offset in listed), log.earliest)
        assert (log.earliest, log.latest) == (max(start, log.segments[0].base_offset, 0), twin.log_end)
        check(log, twin, list(range(-1, end + 4)), [*rng.sample(TIMES, 40), MAX_TIMESTAMP])
        bound = rng.randrange(log.earliest, log.latest + 1)
        bounded = open_partition(folder, end_offset=bound)
        assert (bounded.latest, bounded.log_end_offset) == (bound, log.latest)
        check(bounded, twin, list(range(-1, end + 4)), [*rng.sample(TIMES, 40), MAX_TIMESTAMP], bound)


def far(root: str) -> tuple[pafs.FileSystem, str]:
    """Return the same files on a file system that cannot be mapped."""
    return pafs.SubTreeFileSystem(root, pafs.LocalFileSystem()), ""


@pytest.mark.parametrize("name", ["v0-gzip", "v1-none", "few-keys", "large-values", "ts-disorder", "txn-zstd"])
@pytest.mark.parametrize("window", [100, 1 << 17])
def test_files_that_cannot_be_mapped_are_read(name, window, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", window)
    monkeypatch.setattr(log_windows, "MOST_WINDOW_BYTES", 2 * window)
    case, rng = golden(tmp_path_factory)[name], random.Random(name)
    partition = case.partitions[0]
    folder = tmp_path / partition
    shutil.copytree(case.input(partition), folder)
    near = open_partition(folder)
    twin = decode_twin(near.segments, near.earliest)
    for damaged in (False, True):
        if damaged:
            damage(folder, rng, kinds=[*DAMAGE, "foreign"])
        log = PartitionLog(near.segments, leader_epochs=near.leader_epochs, place=far)
        assert log._segment(0).whole.size == 0
        check(log, twin, *questions(twin, rng, 25))


def test_files_of_a_file_system_without_memory_maps_are_read(tmp_path, monkeypatch):
    (tmp_path / "t-0").mkdir()
    end = draw_log(tmp_path / "t-0", random.Random(3))
    monkeypatch.setattr(log_windows.mmap, "mmap", lambda *_, **__: (_ for _ in ()).throw(OSError(12, "no memory")))
    log = open_partition(tmp_path / "t-0")
    check(log, decode_twin(log.segments, 0), list(range(end + 2)), TIMES)


@pytest.mark.parametrize("seed", range(6))
def test_missing_indexes_are_built_in_memory(tmp_path, seed, monkeypatch):
    """From the first batch that is walked over."""
    monkeypatch.setattr(segment_search, "BUDGET", 0)
    monkeypatch.setattr(segment_search, "SMALL_BUDGET", 0)
    monkeypatch.setattr(segment_search, "INDEX_INTERVAL_BYTES", 0)
    rng = random.Random(seed)
    (tmp_path / "t-0").mkdir()
    end = draw_log(tmp_path / "t-0", rng)
    monkeypatch.setattr(partition_log, "MAX_OPEN", 1)
    log = open_partition(tmp_path / "t-0")
    check(log, decode_twin(log.segments, 0), rng.sample(range(-1, end + 3), end + 4), TIMES)
    assert len(log._open) == 1


def test_offsets_out_of_the_range_of_an_index_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_search, "SMALL_BUDGET", 1)
    monkeypatch.setattr(segment_search, "INDEX_INTERVAL_BYTES", 0)
    at = [5, 2**31, 2**31 + 9, 2**40, 2**40 + 1]
    path = tmp_path / "00000000000000000005.log"
    path.write_bytes(b"".join(data_batch(offset, [(offset, b"k", b"v")]).data for offset in at))
    log = open_partition(tmp_path)
    assert log.topic is None
    assert log.latest == 2**40 + 2
    check(log, decode_twin(log.segments, 5), [offset + d for offset in at for d in (-1, 0, 1)], [*at, 2**35, 2**41])
    assert any("no offset index" in note for note in log.notes)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_note_names_an_index_that_contradicts_its_log(tmp_path, kind):
    """Either file may be wrong; the log may be in an archive and its index in a store."""
    folder = write_partition(tmp_path / "t-0", "a=1 | b=2 | c=3 | d=4", index_interval_bytes=0).folder
    path = next(folder.glob(f"*.{kind}"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # a byte of the last entry's position, or offset
    path.write_bytes(data)
    log = open_partition(folder)
    assert log.lookup_offset(3) is not None
    assert log.offsets_for_times([START_MS + 3])["offset"].tolist() == [3]
    which = "the last" if kind == "timeindex" else "an"
    note = f"{path} of {path.with_suffix('.log')}: {which} entry does not fit the log; headers are read instead"
    assert log.notes == (note,)


def test_end_of_a_shortened_log_is_an_error(tmp_path):
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_partition(folder, "a=1 | b=2 || c=3 | d=4", index_interval_bytes=0)
    intact = open_partition(folder)
    twin = decode_twin(intact.segments, 0)
    data = {path: path.read_bytes() for path in files_in(folder)}
    for path, whole in data.items():
        for tail, note in (
            (whole[:40], "not a whole batch"),
            (bytes(5000), "not a whole batch"),
            (whole[:5], "not a whole batch"),
        ):
            path.write_bytes(whole + tail)
            log = open_partition(folder)
            assert log.segments[0].size_bytes + log.segments[1].size_bytes == sum(map(len, data.values())) + len(tail)
            times = list(range(START_MS - 1, START_MS + 6))
            check(log, twin, list(range(-1, 6)), times)
            assert [note in text and str(len(tail)) in text for text in log.notes] == [True]
        path.write_bytes(whole)
    last = intact.segments[-1]
    Path(log_path(last)).write_bytes(data[Path(log_path(last))][:-1])
    assert open_partition(folder).latest == 3
    with pytest.raises(LogFormatError, match=f"expected {last.size_bytes} bytes, as listed") as raised:
        PartitionLog(intact.segments).lookup_offset(2)
    assert (raised.value.kind, raised.value.path) == ("changed", log_path(last))
    Path(log_path(last)).unlink()
    with pytest.raises(LogFormatError, match="unreadable"):
        PartitionLog(intact.segments).lookup_offset(2)


def test_missing_batch_at_an_index_position_is_an_error(tmp_path):
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_partition(folder, "a=1 | b=2 | c=3 | d=4 | e=5", index_interval_bytes=0)
    path = next(folder.glob("*.log"))
    data = path.read_bytes()
    starts = open_segment(path).headers()["position"].tolist()
    for at, value, kind in (
        (16, 7, "magic"),
        (8, 0x80, "length"),
        (11, 1, "length"),
        (0, 0x80, "offsets"),
        (7, 1, "offsets"),
    ):
        changed = bytearray(data)
        changed[starts[2] + at] = value
        path.write_bytes(changed)
        log = open_partition(folder)
        assert log.lookup_offset(0) == (0, 0, starts[1], 0, 0)
        assert log.lookup_offset(4) is not None  # the index leads past it
        with pytest.raises(LogFormatError) as raised:
            log.lookup_offset(2)
        assert (raised.value.kind, raised.value.path, raised.value.position) == (kind, str(path), starts[2])
        (folder / "00000000000000000000.timeindex").write_bytes(b"")
        with pytest.raises(LogFormatError) as raised:
            open_partition(folder).offsets_for_times([START_MS])
        assert (raised.value.kind, raised.value.position) == (kind, starts[2])
    for codec in ("none", "zstd"):
        write_partition(folder, f"a=1 | b=2 | {{codec={codec}}} c=3 | d=4 | e=5", index_interval_bytes=0)
        starts = open_segment(path).headers()["position"].tolist()
        changed = bytearray(path.read_bytes())
        changed[starts[2] + 65] ^= 1
        path.write_bytes(changed)
        log = open_partition(folder)
        assert log.lookup_offset(2) == (0, starts[2], starts[3] - starts[2], 2, 2)  # bodies are not looked at
        assert log.offsets_for_times([START_MS, START_MS + 1, START_MS + 4])["offset"].tolist() == [0, 1, 4]
        with pytest.raises(LogFormatError) as raised:
            log.offsets_for_times([START_MS, START_MS + 1, START_MS + 2, START_MS + 3])
        assert (raised.value.kind, raised.value.path, raised.value.position) == ("crc", str(path), starts[2])


def test_lookup_reads_few_headers(tmp_path):
    """A search reads the header of an index's entry and the one behind it: the others may be anything."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_partition(folder, " | ".join(f"a={i} b={i}" for i in range(300)), index_interval_bytes=150)
    path = next(folder.glob("*.log"))
    headers, data = open_segment(path).headers(), path.read_bytes()
    assert 90 <= (folder / f"{0:020d}.index").stat().st_size // 8 <= 160
    for wanted in range(5, 295, 17):
        rest = bytearray(b"\xee" * len(data))
        for row in (*range(wanted - 3, wanted + 1), *range(296, 300)):
            at = slice(int(headers["position"][row]), int(headers["position"][row] + headers["size"][row]))
            rest[at] = data[at]
        path.write_bytes(rest)
        log = open_partition(folder)
        expected_location = (
            0,
            int(headers["position"][wanted]),
            int(headers["size"][wanted]),
            2 * wanted,
            2 * wanted + 1,
        )
        assert log.lookup_offset(2 * wanted) == expected_location
        assert log.lookup_offsets([2 * wanted + 1]).tolist() == [(FOUND, *expected_location)]
        answer = log.offsets_for_times([START_MS + 2 * wanted + 1]).tolist()
        assert answer == [(2 * wanted + 1, START_MS + 2 * wanted + 1, 0, 0, expected_location[1])]
        assert log.notes == ()


RISING_NEVER = "{ts=1} a=1 | {ts=500} b=2 | {ts=100} c=3 | {ts=150} d=4 | {ts=600} e=5 | {ts=550} f=6"


@pytest.mark.parametrize(
    "entries",
    [
        [(500, 1), (100, 2), (600, 4)],
        [(1, 0), (600, 4), (500, 1)],
        [(100, 2), (1, 0), (600, 4)],
        [(1, 0), (500, 1), (600, 4)],  # right
    ],
)
def test_time_index_with_decreasing_entries_is_ignored(tmp_path, entries):
    """Each entry points at a batch with its timestamp."""
    folder = write_partition(tmp_path / "t-0", RISING_NEVER, index_interval_bytes=0).folder
    raw = b"".join(struct.pack(">qi", *entry) for entry in entries)
    next(folder.glob("*.timeindex")).write_bytes(raw)
    times = [1, 500, 100, 150, 600, 550]
    targets = [0, 1, 2, 50, 99, 100, 101, 150, 151, 200, 499, 500, 501, 600, 601]
    expected = [next((n for n, time in enumerate(times) if time >= target), -1) for target in targets]
    log = open_partition(folder)
    assert log.offsets_for_times(targets)["offset"].tolist() == expected
    assert [int(open_partition(folder).offsets_for_times([target])["offset"][0]) for target in targets] == expected
    assert (log.notes == ()) == (entries == [(1, 0), (500, 1), (600, 4)])


def test_lookup_continues_after_headers_without_a_matching_record(tmp_path):
    """The next batch that may have it is looked at; and so on to the end of the segment."""
    batches = [
        replace(data_batch(i, [(10 + i, b"k", b"v"), (5, b"k", b"v")]), max_timestamp=100 + i % 3).encoded()
        for i in range(0, 40, 2)
    ]
    batches.append(data_batch(40, [(99, b"k", b"v")]))
    folder = tmp_path / "t-0"
    folder.mkdir()
    with SegmentWriter(folder, 0, index_interval_bytes=100) as writer:
        writer.append_raw(b"".join(batch.data for batch in batches))
    log = open_partition(folder)
    check(log, decode_twin(log.segments, 0), [], [*range(0, 130), MAX_TIMESTAMP])
    assert log.offsets_for_times([30, 99, 100])["offset"].tolist() == [20, 40, -1]


def test_partition_without_segments_answers_lookups():
    log = PartitionLog([], log_start_offset=7)
    assert (log.earliest, log.latest) == (7, 7)
    assert log.lookup_offsets([6, 7, 8])["status"].tolist() == [OUT_OF_RANGE, END, OUT_OF_RANGE]
    assert log.offsets_for_times([5, LATEST, MAX_TIMESTAMP])["offset"].tolist() == [-1, 7, -1]
    assert log.lookup_offset(7) is None


def test_other_names_of_a_folder_are_recognized(tmp_path):
    folder = write_partition(tmp_path / "t-0", "a=1 | b=2 || c=3", index_interval_bytes=0).folder
    shutil.copy(folder / "00000000000000000000.log", folder / "00000000000000000000.log.swap")
    assert open_partition(folder).segments[0].path.endswith(".swap")
    (folder / "00000000000000000009.log").mkdir()
    with pytest.raises(LogFormatError, match="found a folder"):
        open_partition(folder)
    (folder / "00000000000000000009.log").rmdir()
    (folder / "00000000000000000009.log").symlink_to("nowhere")
    with pytest.raises(LogFormatError, match="found a broken link"):
        open_partition(folder)


def test_memory_maps_are_released(tmp_path, monkeypatch):
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_partition(folder, " || ".join(f"a={i} | b={i}" for i in range(12)), index_interval_bytes=0)

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(folder))

    monkeypatch.setattr(partition_log, "MAX_OPEN", 3)
    log = open_partition(folder)
    log.lookup_offsets(np.arange(24))
    log.offsets_for_times([START_MS, START_MS + 30])
    assert 3 <= maps() <= 9
    log.close()
    assert maps() == 0
    assert log.lookup_offset(3) is not None
    assert maps() > 0
    del log
    assert maps() == 0


def test_lookups_do_not_change_files(tmp_path):
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_partition(folder, "a=1 | b=2 || c=3", index_interval_bytes=0)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    for path in folder.iterdir():
        path.chmod(0o444)
    log = open_partition(folder)
    check(log, decode_twin(log.segments, 0), list(range(4)), [START_MS, START_MS + 2])
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
