"""Reading ahead: what will be asked for next is read meanwhile, and a reader sees the same bytes and errors."""

from __future__ import annotations

import os
import random
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lastkey.logformat import read_ahead
from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.io_limit import limited
from lastkey.logformat.read_ahead import ReadAhead, following, will_read

DATA = os.urandom(5000)


@pytest.fixture(autouse=True)
def every_read_is_large(monkeypatch):
    monkeypatch.setattr(read_ahead, "_LEAST", 1)


class File:
    """A file whose reads are recorded, and wait in other threads than the test's until they may go on."""

    def __init__(self, *, may_read=True, error=None):
        self.inner, self.reads, self.error = pa.BufferReader(DATA), [], error
        self.may_read, self.is_read, self.closed = threading.Event(), threading.Event(), False
        if may_read:
            self.may_read.set()

    def read_at(self, size, position):
        self.reads.append((position, size))
        self.is_read.set()
        assert self.may_read.wait(60)
        if self.error:
            raise self.error
        assert not self.closed
        return self.inner.read_at(size, position)

    def close(self):
        self.closed = True

    def __getattr__(self, name):
        return getattr(self.inner, name)


def read(file, position, size):
    out = bytearray(size)
    file.seek(position)
    return bytes(out[: file.readinto(out)])


def test_the_next_part_is_read_while_nobody_asks_for_it():
    inner = File()
    with ReadAhead(inner, 1) as file:
        assert read(file, 0, 1000) == DATA[:1000]
        will_read(file, [(1000, 2000)])
        assert inner.is_read.wait(60)
        assert read(file, 1000, 2000) == DATA[1000:3000]
        assert inner.reads == [(1000, 2000)]


def test_twice_as_many_parts_are_read_each_time_up_to_the_most():
    inner = File()
    with ReadAhead(inner, 4) as file:
        for at in range(0, 5000, 100):
            assert read(file, at, 100) == DATA[at : at + 100]
            if at < 500:
                will_read(file, following(at + 100, 5000, 100))
                in_flight = [part.start for part in file._parts]
                assert in_flight == [*range(at + 100, at + 100 + 100 * min(2 ** (at // 100), 4), 100)]
    assert sorted(inner.reads) == [(at, 100) for at in range(100, 900, 100)]


def test_a_reader_that_uses_a_part_of_each_read_asks_for_nothing_twice():
    """As chunks: the incomplete batch at the end of one is read again with the next."""
    inner, at = File(), 0
    with ReadAhead(inner, 4) as file:
        while at < len(DATA):
            out = bytearray(min(1000, len(DATA) - at))
            read_exactly(file, "", at, np.frombuffer(out, np.uint8))
            assert out == DATA[at : at + len(out)]
            at += max(len(out) - 37, 1)
            will_read(file, following(at, len(DATA), 1000))
    ends = sorted((position, position + size) for position, size in inner.reads)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))


@pytest.mark.parametrize("most", [1, 4])
def test_any_order_of_hints_and_reads_gives_the_same_bytes(most):
    rng = random.Random(1)

    def ranges():
        at, size = rng.randrange(len(DATA)), rng.randrange(1, 1000)
        if rng.random() < 0.5:
            return list(following(at, rng.randrange(at, len(DATA)) + 1, size))
        return [(at, min(size, len(DATA) - at)), (max(at - size, 0), min(size, at))]

    with ReadAhead(File(), most) as file:
        wanted = ranges()
        for _ in range(3000):
            if rng.random() < 0.7:
                wanted = ranges()
                will_read(file, wanted)
            position, size = rng.choice(wanted) if rng.random() < 0.8 else (rng.randrange(len(DATA)), 700)
            out = np.empty(min(size, len(DATA) - position), np.uint8)
            read_exactly(file, "", position, out)
            assert out.tobytes() == DATA[position : position + len(out)]
            if rng.random() < 0.2:
                at = file.tell()
                assert file.read(10) == DATA[at : at + 10]
            assert file.size() == len(DATA)


def test_an_error_comes_where_its_bytes_are_asked_for():
    file = ReadAhead(File(error=OSError("lost")), 1)
    will_read(file, [(1000, 10)])
    assert read(file, 0, 10) == DATA[:10]  # something else: that one is dropped
    will_read(file, [(1000, 10)])
    with pytest.raises(OSError, match="lost"):
        read(file, 1000, 10)
    assert read(file, 1000, 10) == DATA[1000:1010]  # asked for again


@pytest.mark.parametrize("problem", ["short", "memory"])
def test_what_was_not_read_ahead_is_read_when_it_is_asked_for(problem):
    class Less(File):
        def read_at(self, size, position):
            if problem == "memory":
                raise MemoryError
            return super().read_at(size // 3, position)

    out = np.empty(3000, np.uint8)
    with ReadAhead(Less(), 4) as file:
        will_read(file, following(1000, 5000, 1500))
        read_exactly(file, "", 1000, out)
    assert out.tobytes() == DATA[1000:4000]


def test_parts_that_wait_hold_no_more_than_the_limit(monkeypatch):
    """As behind a large batch, for which the chunks of a file have grown."""
    monkeypatch.setattr(read_ahead, "_MOST_BYTES", 1000)
    inner = File()
    with ReadAhead(inner, 4) as file:
        for _ in range(3):
            will_read(file, following(0, 5000, 400))
        assert [part.start for part in file._parts] == [0, 400]
        will_read(file, following(0, 5000, 1001))
        assert not file._parts
        assert read(file, 0, 1001) == DATA[:1001]
    assert {*inner.reads} <= {(0, 400), (400, 400)}


def test_a_file_is_closed_after_its_last_read():
    inner = File(may_read=False)
    file = ReadAhead(inner, 1)
    will_read(file, [(1000, 10)])
    assert inner.is_read.wait(60)
    closing = threading.Thread(target=file.close)
    closing.start()
    assert not inner.closed
    inner.may_read.set()
    closing.join(60)
    assert inner.closed


def test_with_a_limit_nothing_is_read_ahead():
    inner = File()
    with limited(1 << 40), ReadAhead(inner, 1) as file:
        will_read(file, [(0, 100)])
        assert read(file, 0, 100) == DATA[:100]
    assert not inner.reads


def no_thread(*_):
    raise RuntimeError("can't start new thread")


def test_without_a_second_thread_the_first_reads_nothing_that_nobody_waits_for(monkeypatch):
    """The file may be closed by then, or be used by its reader."""
    pool = read_ahead.ThreadPoolExecutor(4)
    monkeypatch.setattr(read_ahead, "_readers", lambda _: pool)
    busy, inner = File(may_read=False), File()
    with ReadAhead(busy, 1) as other, ReadAhead(inner, 1) as file:
        will_read(other, [(0, 100)])
        assert busy.is_read.wait(60)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        will_read(file, [(0, 100)])
        assert read(file, 0, 100) == DATA[:100]
        busy.may_read.set()
        pool.shutdown()
    assert not inner.reads


def test_without_threads_it_is_read_when_asked_for(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(read_ahead, "_readers", lambda _: read_ahead.ThreadPoolExecutor(1))
    with ReadAhead(File(), 1) as file:
        will_read(file, [(0, 100)])
        assert read(file, 0, 100) == DATA[:100]


def test_pyarrow_reads_a_table_from_it(tmp_path):
    """It knows more ways to read from a file, such as read_buffer, if the file has them."""
    table = pa.table({"a": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet")
    with ReadAhead(LocalFileSystem().open_input_file(str(tmp_path / "a.parquet")), 4) as file:
        assert pq.ParquetFile(file).read() == table
        assert file.read_at(4, 0) == b"PAR1"
