"""A file of a bucket reads as any file does; what comes next is on its way, and nothing else."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from pathlib import Path

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


def test_a_file_of_google_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Path does not exist"):
        open_in_bucket(Google(), str(tmp_path / "none"))
