"""A file of a bucket reads as any file does; what comes next is on its way, and nothing else."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.logformat import bucket_file
from lastkey.logformat.bucket_file import BucketFile, open_in_bucket

DATA = random.Random(1).randbytes(5000)


class Stored:
    """A file of pyarrow that tells which ranges were asked for, by which threads."""

    def __init__(self, file: object) -> None:
        self.file, self.asked = file, list[tuple[int, int]]()
        self.threads = set[int]()

    def read_at(self, size: int, offset: int) -> bytes:
        self.asked.append((offset, size))
        self.threads.add(threading.get_ident())
        return bytes(self.file.read_at(size, offset))  # type: ignore[attr-defined]

    def size(self) -> int:
        return int(self.file.size())  # type: ignore[attr-defined]

    def close(self) -> None:
        self.file.close()  # type: ignore[attr-defined]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(bucket_file, "_LEAST", 100)
    (tmp_path / "x").write_bytes(DATA)
    return Stored(pafs.LocalFileSystem().open_input_file(str(tmp_path / "x")))


def test_what_is_read_in_turn_is_on_its_way(stored: Stored) -> None:
    with BucketFile(stored) as file:
        assert b"".join(file.read(2000) for _ in range(3)) == DATA
    assert sorted(stored.asked) == [(0, 2000), (2000, 2000), (4000, 1000)], "the last part is fetched ahead"
    assert len(stored.threads) == 2


def test_no_more_is_fetched_where_parts_do_not_follow_each_other_or_are_small(stored: Stored) -> None:
    with BucketFile(stored) as file:
        for position in (0, 2000, 1000, 4990):
            file.seek(position)
            assert file.read(500) == DATA[position : position + 500]
        file.seek(0)
        assert [file.read(50), file.read(50), file.read(50)] == [DATA[:50], DATA[50:100], DATA[100:150]]
    assert stored.asked[:4] == [(0, 500), (2000, 500), (1000, 500), (4990, 10)]
    assert len(stored.asked) == 7 and len(stored.threads) == 1


def _read(file: BucketFile | io.BytesIO, size: int) -> bytes:
    return file.read(size)


def _readinto(file: BucketFile | io.BytesIO, size: int) -> bytes:
    out = bytearray(size)
    return bytes(out[: file.readinto(out)])


class Google(pafs.LocalFileSystem):
    """A disk that is read as Google's store is."""

    type_name = "gcs"


@pytest.mark.parametrize("is_google", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_way_through_a_file_gives_its_bytes(
    stored: Stored, seed: int, is_google: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_file, "_SKIPPED", 300)
    draw, twin = random.Random(seed), io.BytesIO(DATA)
    opened = open_in_bucket(Google(), str(tmp_path / "x")) if is_google else BucketFile(stored)
    ways: tuple[Callable[[BucketFile | io.BytesIO, int], bytes], ...] = (_read, _readinto)
    with opened as file:
        for _ in range(40):
            if draw.random() < 0.2:
                position = draw.randrange(6000)
                assert file.seek(position) == twin.seek(position)
            size, way = draw.choice((0, 10, 400, 400, 400)), draw.choice(ways)
            assert way(file, size) == way(twin, size)
            assert file.tell() == twin.tell()
        file.seek(100)
        assert file.read() == DATA[100:] and file.read() == b""


def test_an_error_on_the_way_is_the_readers(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, offset: int) -> bytes:
        if offset >= 2000:
            raise OSError("refused")
        return DATA[offset : offset + size]

    with BucketFile(stored) as file:
        monkeypatch.setattr(stored, "read_at", refuse)
        assert file.read(1000) + file.read(1000) == DATA[:2000]
        with pytest.raises(OSError, match="refused"):
            file.read(1000)
        assert file.tell() == 2000


def test_a_part_that_is_short_because_the_object_was_replaced_ends_the_file(stored: Stored, tmp_path: Path) -> None:
    with BucketFile(stored) as file:
        assert file.read(1000) == DATA[:1000]
        (tmp_path / "x").write_bytes(DATA[:1500])
        assert file.read(1000) == DATA[1000:1500] and file.tell() == 1500
        assert file.read(1000) == b"" and file.tell() == 1500


def test_a_file_is_closed_after_what_is_on_its_way(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    started, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(size: int, offset: int) -> bytes:
        if offset >= 2000:
            started.set()
            assert goes_on.wait(60) and not closed.is_set()
        return DATA[offset : offset + size]

    monkeypatch.setattr(stored, "read_at", slow)
    monkeypatch.setattr(stored, "close", closed.set)
    with BucketFile(stored) as file:
        assert file.read(1000) + file.read(1000) == DATA[:2000]
        assert started.wait(60)
    assert not closed.is_set()
    goes_on.set()
    assert closed.wait(60)


def test_a_reader_does_not_wait_for_a_part_that_no_thread_has_begun(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as busy:
        busy.submit(goes_on.wait, 60)
        monkeypatch.setattr(bucket_file, "_fetchers", lambda process: busy)
        with BucketFile(stored) as file:
            assert b"".join(file.read(1000) for _ in range(5)) == DATA
        goes_on.set()
    assert stored.threads == {threading.get_ident()}


def test_after_an_error_of_google_s_stream_the_same_part_is_asked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaking:
        def __init__(self, file: pa.NativeFile) -> None:
            self.file, self.reads = file, 0

        def read(self, size: int) -> bytes:
            self.reads += 1
            data = self.file.read(size)
            if self.reads == 4:  # a read first skips what is not asked for
                raise OSError("broken")
            return data

        def close(self) -> None:
            self.file.close()

    opened = pafs.LocalFileSystem.open_input_stream
    monkeypatch.setattr(Google, "open_input_stream", lambda *given, **more: Breaking(opened(*given, **more)), False)
    (tmp_path / "x").write_bytes(DATA)
    with open_in_bucket(Google(), str(tmp_path / "x")) as file:
        assert file.read(1000) == DATA[:1000]
        with pytest.raises(OSError, match="broken"):
            file.read(1000)
        assert file.tell() == 1000
        assert file.read(1000) == DATA[1000:2000]


def test_a_file_of_google_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Path does not exist"):
        open_in_bucket(Google(), str(tmp_path / "none"))
