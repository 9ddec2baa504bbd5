"""The limit on reads and writes."""

from __future__ import annotations

import io
import os
import threading
from typing import ClassVar

import pytest

from lastkey.logformat.storage import io_counts
from lastkey.logformat.storage.io_counts import limited, paid, spend


class Clock:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now, self.lock = 100.0, threading.Lock()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self.lock:
            self.now += max(seconds, 0)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(io_counts, "time", made)
    return made


def test_reading_is_delayed_by_its_bytes(clock):
    with limited(1000):
        spend(500)
        assert clock.now == 100.5
        spend(1500)
        assert clock.now == 102
        clock.now += 10  # nothing is saved up
        spend(1000)
        assert clock.now == 113


def test_writing_is_delayed_by_its_bytes(clock):
    out = io.BytesIO()
    with limited(10), paid(out) as stream:
        stream.write(b"12345")
        stream.write(memoryview(b"abcd").cast("H"))
        assert (clock.now, out.getvalue()) == (100.9, b"12345abcd")
    assert out.closed


def test_threads_do_not_wait_without_a_limit(clock):
    paid(io.BytesIO()).write(b"12345")
    with limited(0):
        spend(1 << 40)
    with limited(1):
        pass
    spend(1 << 40)
    assert clock.now == 100


def test_large_write_is_split_into_mebibytes():
    class Pieces(io.BytesIO):
        sizes: ClassVar[list[int]] = []

        def write(self, data):
            self.sizes.append(len(data))
            return super().write(data)

    data, out = os.urandom((3 << 20) + 5), Pieces()
    paid(out).write(data)
    assert out.getvalue() == data
    assert Pieces.sizes == [1 << 20, 1 << 20, 1 << 20, 5]
