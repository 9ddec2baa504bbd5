"""Bytes that a query reads: counted by a file system of our own, and by the kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs import storage
from lastkey.udfs.storage import Root
from tests.builders.sources import list_tasks, read
from tests.builders.trees import files_in

DAY_MS, MINUTE_MS, FIRST_MS = 86_400_000, 60_000, 1_700_000_000_000
RECORDS, SEGMENT_RECORDS = 86_400, 20_000  # a record a second


class CountingFiles(pafs.FileSystemHandler):
    """A file system that is not local to anybody, and counts what is read of which file."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._local = pafs.LocalFileSystem()

    def get_type_name(self):
        return "counting"

    def __eq__(self, other):
        return isinstance(other, CountingFiles)

    __ne__ = object.__ne__
    __hash__ = None

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector):
        return self._local.get_file_info(selector)

    def open_input_file(self, path):
        return pa.PythonFile(_CountedFile(path, self.bytes), mode="r")

    def _no(self, *_):
        raise AssertionError("an archive is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _no
    open_input_stream = open_output_stream = open_append_stream = _no

    @property
    def logs(self) -> int:
        return sum(size for path, size in self.bytes.items() if path.endswith(".log"))


class _CountedFile:
    """Holds nothing open between two reads, as an object store's client."""

    closed = False

    def __init__(self, path: str, counts: dict[str, int]) -> None:
        self._path, self._counts, self._at = Path(path), counts, 0
        counts.setdefault(path, 0)

    def read(self, size=-1):
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(size)
        self._at += len(data)
        self._counts[str(self._path)] += len(data)
        return data

    def seek(self, position, whence=0):
        self._at = position if whence == 0 else self._path.stat().st_size + position
        return self._at

    def tell(self):
        return self._at

    def close(self):
        self.closed = True


@pytest.fixture(scope="module", params=["CreateTime", "LogAppendTime"])
def day(request, tmp_path_factory) -> Path:
    """Make a day's log: 86400 records of 520 bytes, timestamps out of order by up to 5 seconds, batches of 100."""
    folder = tmp_path_factory.mktemp("pruning") / "archive" / "clicks-0"
    rng = np.random.default_rng(3)
    jitter = rng.integers(-5000, 5001, RECORDS)
    times = FIRST_MS + np.arange(RECORDS) * 1000 + jitter
    folder.mkdir(parents=True)
    for first in range(0, RECORDS, SEGMENT_RECORDS):
        with SegmentWriter(folder, first) as writer:
            for start in range(first, min(first + SEGMENT_RECORDS, RECORDS), 100):
                n = min(100, RECORDS - start)
                rows = pa.record_batch(
                    {
                        "key": pa.array([b"user-%05d" % (i % 977) for i in range(start, start + n)]),
                        "value": pa.array([b"v" * 500] * n),
                        "offset": pa.array(np.arange(start, start + n)),
                        "timestamp_ms": pa.array(times[start : start + n]),
                    }
                )
                given = {} if request.param == "CreateTime" else {"append_time_ms": FIRST_MS + (start + n) * 1000}
                writer.append_records(rows, **given)
    return folder


@pytest.fixture
def counting(monkeypatch) -> CountingFiles:
    handler = CountingFiles()
    remote = pafs.PyFileSystem(handler)
    monkeypatch.setattr(storage, "open_root", lambda uri: Root(uri, remote, uri))
    storage.root_made_once.cache_clear()
    yield handler
    storage.root_made_once.cache_clear()


def read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def window(minute: int) -> tuple[int, int]:
    start = FIRST_MS + minute * MINUTE_MS
    return start, start + MINUTE_MS


def full_scan(counting: CountingFiles, day: Path) -> int:
    rows = read("kafka_log", day).num_rows
    assert rows == RECORDS
    total, counting.bytes = counting.logs, {}
    assert total >= sum(path.stat().st_size for path in files_in(day))
    return total


@pytest.mark.long
@pytest.mark.parametrize("minute", [0, 1, 777, 1438])
def test_reading_a_minute_of_a_day_reads_less_than_a_twentieth(day, counting, minute):
    """Between two points of the log: `startingTimestamp` and `endingTimestamp`."""
    total = full_scan(counting, day)
    start, end = window(minute)
    options = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    table = read("kafka_log", day, columns="offset,timestamp_ms", **options)
    assert table.num_rows <= 200  # LogAppendTime: all of a batch have one time, so it may be none
    read_in_all = sum(counting.bytes.values())  # indexes too
    assert read_in_all < total / 20, f"{read_in_all:,} of {total:,} bytes"


def test_byte_counter_of_the_kernel_confirms_pruned_reads(day):
    """Local files: what is read is asked of the kernel; of what is mapped the look-ups touch a few pages."""
    start, end = window(777)

    def whole() -> int:
        return read("kafka_log", day, columns="offset").num_rows

    def minute() -> None:
        read("kafka_log", day, startingTimestamp=str(start), endingTimestamp=str(end))

    def cost(work) -> int:
        work()  # modules and kernels are files too
        before = read_bytes()
        work()
        return read_bytes() - before

    assert whole() == RECORDS
    assert 0 < cost(minute) < cost(whole) / 20


def test_segments_without_matching_offsets_are_not_opened(day, counting):
    start = SEGMENT_RECORDS * 2 + 50
    options = {
        "startingOffsets": f'{{"clicks":{{"0":{start}}}}}',
        "endingOffsets": f'{{"clicks":{{"0":{start + 10}}}}}',
    }
    tasks = list_tasks("kafka_log", day, **options)
    paths = {piece.path for task in tasks for piece in task}
    assert [Path(path).name for path in paths] == [f"{SEGMENT_RECORDS * 2:020d}.log"]
    pieces = [piece for task in tasks for piece in task]
    assert sum(piece.end - piece.start for piece in pieces) < 120_000
    counting.bytes = {}
    assert read("kafka_log", day, **options)["offset"].to_pylist() == list(range(start, start + 10))
    opened = {Path(path).name for path in counting.bytes if path.endswith(".log")}
    last = (RECORDS // SEGMENT_RECORDS) * SEGMENT_RECORDS  # its end is looked at: the offsets have to be in the log
    assert opened == {f"{SEGMENT_RECORDS * 2:020d}.log", f"{last:020d}.log"}


def test_time_limit_skips_earlier_segments_and_no_matching_record(day, counting):
    """Pushed down, exact: every record of the window, though timestamps are out of order."""
    total = full_scan(counting, day)
    start, end = window(1400)
    options = {"pushed": {"start_ms": start, "end_ms": end}}
    table = read("kafka_log", day, columns="offset,timestamp_ms", **options)
    read_in_all = sum(counting.bytes.values())
    everything = read("kafka_log", day, columns="offset,timestamp_ms")
    times = np.asarray(everything["timestamp_ms"])
    expected = np.asarray(everything["offset"])[(times >= start) & (times < end)]
    assert table["offset"].to_pylist() == expected.tolist()
    assert read_in_all < total / 20 + total * 40 / 1440  # from the window on


def test_batch_rows_read_headers_only(day):
    size = sum(path.stat().st_size for path in files_in(day))
    before = read_bytes()
    assert read("kafka_log_batches", day, columns="base_offset").num_rows == RECORDS // 100
    assert read_bytes() - before < size / 20


def test_index_rows_open_no_log(day, counting):
    assert read("kafka_log_index", day).num_rows > 1000
    assert counting.logs == 0
