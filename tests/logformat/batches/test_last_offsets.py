"""The largest last offset of a log is 2^63 - 2, since the log end is an offset too: every walk has this limit."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.batches import walk_kernels as batch_kernels
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, batch_problem, read_chunks
from lastkey.logformat.batches.reader import LogReader, read_headers
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.search.partition_log import OUT_OF_RANGE, PartitionLog
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.storage import log_file, open_root
from lastkey.udfs.verify.walk import LogWalk
from tests.builders.opened import open_partition
from tests.reference.legacy import message
from tests.reference.log import data_batch

LAST = 2**63 - 2
GZIP = 1


def magic2(base: int, n: int = 2) -> bytes:
    """Return a batch of n records; base lies outside of the checksum, and is put in afterwards."""
    data = bytearray(data_batch(0, [(1_700_000_000_000 + i, b"k%d" % i, b"v") for i in range(n)]).data)
    struct.pack_into(">q", data, 0, base)
    return bytes(data)


def plain(magic: int) -> Callable[[int], bytes]:
    return lambda base: message(magic, base, b"k", b"v", timestamp=1_700_000_000_000)


def by_read_chunks(path: Path) -> list[int]:
    with pafs.LocalFileSystem().open_input_file(str(path)) as file:
        chunks = read_chunks(file, "p", LogRange(0, file.size()), ChunkBuffer(1 << 16), Tail())
        return [int(last) for chunk in chunks for last in chunk.batches["last_offset"]]


def by_read_headers(path: Path) -> list[int]:
    with path.open("rb", buffering=0) as file:
        parts = read_headers(file, "p", LogRange(0, path.stat().st_size), ChunkBuffer(1 << 16), Tail())
        return [int(last) for part in parts for last in part.batches["last_offset"]]


def by_segment(path: Path) -> list[int]:
    return [int(last) for last in open_segment(path).headers()["last_offset"]]


def by_walk_log(path: Path) -> list[int]:
    log = log_file(open_root(str(path.parent)), path.name, path.stat().st_size)
    walk = LogWalk(log, LogReader(1 << 16), np.empty(0, np.int64))
    out = [int(last) for chunk in walk.chunks() for last in chunk.batches["last_offset"]]
    for problem in walk.problems:
        raise LogFormatError(problem.kind, problem.path, problem.position, problem.expected, problem.found)
    return out


def by_search(path: Path) -> list[int]:
    with open_partition(path.parent) as log:
        return [log.log_end_offset - 1]


def by_writer(path: Path) -> list[int]:
    with SegmentWriter(path.parent / "copy", int(path.stem)) as writer:
        return [int(last) for last in writer.append_raw(path.read_bytes())["last_offset"]]


WALKS = [by_read_chunks, by_read_headers, by_segment, by_walk_log, by_search, by_writer]
MAKERS = {"magic 2": (lambda last: magic2(last - 1), 1), "magic 1": (plain(1), 0), "magic 0": (plain(0), 0)}


def write_segment(folder: Path, data: bytes, base: int = LAST - 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base:020d}.log"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
@pytest.mark.parametrize("maker", MAKERS)
def test_largest_last_offset_is_read(tmp_path: Path, maker: str, walk: Callable[[Path], list[int]]) -> None:
    make, _ = MAKERS[maker]
    assert walk(write_segment(tmp_path / "t-0", make(LAST)))[-1] == LAST


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("before", [b"", magic2(LAST - 9)], ids=["alone", "behind another"])
def test_last_offset_above_the_limit_is_refused(
    tmp_path: Path, before: bytes, maker: str, walk: Callable[[Path], list[int]]
) -> None:
    make, delta = MAKERS[maker]
    with pytest.raises(LogFormatError) as error:
        walk(write_segment(tmp_path / "t-0", before + make(LAST + 1)))
    assert (error.value.kind, error.value.position) == ("offsets", len(before))
    assert error.value.expected.startswith(f"a base offset up to {LAST - delta}")
    assert error.value.found == str(LAST + 1 - delta)


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
def test_a_last_offset_beyond_64_bits_is_refused(tmp_path: Path, walk: Callable[[Path], list[int]]) -> None:
    with pytest.raises(LogFormatError) as error:
        walk(write_segment(tmp_path / "t-0", magic2(LAST - 9) + magic2(2**63 - 1, 5)))
    assert (error.value.kind, error.value.found) == ("offsets", str(2**63 - 1))
    assert error.value.expected.startswith(f"a base offset up to {LAST - 4}")


def wrapper(magic: int, offset: int, inner: list[int]) -> bytes:
    """Return a compressed batch with inner messages at these offsets, as they are stored."""
    messages = b"".join(message(magic, at, b"k%d" % i, b"v", timestamp=5) for i, at in enumerate(inner))
    return message(magic, offset, None, gzip.compress(messages), timestamp=5, attributes=GZIP)


@pytest.mark.parametrize(("magic", "inner"), [(1, [0, 1, 2]), (0, [LAST - 2, LAST - 1, LAST])])
def test_records_of_a_wrapper_with_the_largest_offset_are_read(tmp_path: Path, magic: int, inner: list[int]) -> None:
    path = write_segment(tmp_path / "t-0", wrapper(magic, LAST, inner))
    assert open_segment(path).to_arrow(["offset"])["offset"].to_pylist() == [LAST - 2, LAST - 1, LAST]


@pytest.mark.parametrize(
    ("magic", "offset", "inner"),
    [
        (1, LAST + 1, [0, 1]),
        (0, LAST + 1, [LAST, LAST + 1]),
        (0, LAST, [LAST, LAST + 1]),  # an inner one beyond its wrapper
        (1, LAST, [LAST + 1]),
        (1, 5, [2**63 - 1, -(2**63)]),  # 4 and 5 where numbers wrap around
        (1, 5, [-2, -1]),
        (0, 5, [-2, 5]),
    ],
)
def test_invalid_inner_offsets_are_refused(tmp_path: Path, magic: int, offset: int, inner: list[int]) -> None:
    path = write_segment(tmp_path / "t-0", wrapper(magic, offset, inner), base=0)
    with pytest.raises(LogFormatError) as error:
        open_segment(path).to_arrow(["offset"])
    assert (error.value.kind, error.value.position) == ("offsets", 0)


def test_lookups_at_the_largest_offset_succeed(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "t-0", magic2(LAST - 5) + magic2(LAST - 1))
    builder = IndexBuilder(LAST - 10, 0)
    builder.append([LAST - 4, LAST], [len(magic2(0))] * 2, [1_700_000_000_001] * 2)
    path.with_suffix(".index").write_bytes(builder.finish()[0])
    path.with_suffix(".timeindex").write_bytes(builder.finish()[1])
    with open_partition(path.parent) as log:
        assert isinstance(log, PartitionLog)
        assert log.latest == LAST + 1
        answers = log.lookup_offsets([LAST - 8, LAST - 4, LAST, LAST + 1])
        assert answers["last_offset"].tolist() == [LAST - 4, LAST - 4, LAST, -1]
        assert OUT_OF_RANGE not in answers["status"].tolist()
        assert log.offsets_for_times([1_700_000_000_000, 2**63 - 1])["offset"].tolist() == [LAST - 5, -1]
        assert not log.notes


def test_every_error_status_of_a_walk_is_reported() -> None:
    statuses = {name: value for name, value in vars(batch_kernels).items() if name.startswith("BAD_")}
    assert len(set(statuses.values())) == len(statuses) > 5
    for status in statuses.values():
        assert batch_problem("p", 3, status, 1, 2, np.zeros(61, np.uint8)).position == 3
