"""A file of Google's store reads as any file does, in turn or in any order."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.logformat import google_file
from lastkey.logformat.google_file import GoogleFile
from lastkey.logformat.io_counts import READ, counted

DATA = random.Random(1).randbytes(5000)


class Google(pafs.LocalFileSystem):
    """A disk that tells how its files are opened. Each stream's fourth read breaks (a read first skips) if it is to."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.breaks = False

    def open_input_stream(self, path: str, compression: str | None = None) -> object:
        self.opened.append("stream")
        stream = super().open_input_stream(path, compression)
        return Breaking(stream) if self.breaks else stream

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.opened.append("file")
        return super().open_input_file(path)


class Breaking:
    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream, self.reads = stream, 0

    def read(self, size: int) -> bytes:
        self.reads += 1
        data = self.stream.read(size)
        if self.reads == 4:
            raise OSError("broken")
        return bytes(data)

    def close(self) -> None:
        self.stream.close()


@pytest.fixture
def google() -> Google:
    return Google()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(google_file, "_SKIPPED", 300)
    (tmp_path / "x").write_bytes(DATA)
    return tmp_path / "x"


def test_what_is_read_in_turn_comes_from_one_stream(google: Google, path: Path) -> None:
    with GoogleFile(google, str(path)) as file:
        assert b"".join(file.read(900) for _ in range(6)) == DATA
    assert google.opened == ["stream"]


def test_a_part_that_begins_in_the_one_before_comes_from_the_stream_too(google: Google, path: Path) -> None:
    """So does each chunk of a log, with the batch that its predecessor held only in part."""
    with GoogleFile(google, str(path)) as file:
        for position in range(0, 4200, 700):
            assert file.read_at(800, position) == DATA[position : position + 800]
        assert file.read_at(100, 3600) == DATA[3600:3700]
        assert file.read_at(600, 4300) == DATA[4300:4900]
    assert google.opened == ["stream"]


def test_a_file_that_is_read_backwards_is_not_opened_again_for_its_beginning(google: Google, path: Path) -> None:
    """The answer that pyarrow drops then is counted: of a small file all of it."""
    with GoogleFile(google, str(path)) as file, counted() as counts:
        for position in range(4500, -1, -500):
            assert file.read_at(500, position) == DATA[position : position + 500]
    assert google.opened == ["file"]
    assert counts == {READ: len(DATA)}


def test_what_is_read_in_any_order_does_not(google: Google, path: Path) -> None:
    with GoogleFile(google, str(path)) as file:
        for position in (4000, 1000, 3000):
            assert file.read_at(100, position) == DATA[position : position + 100]
    assert google.opened == ["file"]


def _read(file: GoogleFile | io.BytesIO, size: int) -> bytes:
    return file.read(size)


def _readinto(file: GoogleFile | io.BytesIO, size: int) -> bytes:
    out = bytearray(size)
    return bytes(out[: file.readinto(out)])


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_way_through_a_file_gives_its_bytes(google: Google, path: Path, seed: int) -> None:
    draw, twin = random.Random(seed), io.BytesIO(DATA)
    ways: tuple[Callable[[GoogleFile | io.BytesIO, int], bytes], ...] = (_read, _readinto)
    with GoogleFile(google, str(path)) as file:
        for _ in range(40):
            if draw.random() < 0.2:
                position = draw.randrange(6000)
                assert file.seek(position) == twin.seek(position)
            size, way = draw.choice((0, 10, 400, 400, 400)), draw.choice(ways)
            assert way(file, size) == way(twin, size)
            assert file.tell() == twin.tell()
        file.seek(100)
        assert file.read() == DATA[100:] and file.read() == b""


def test_a_part_that_is_short_because_the_object_was_replaced_ends_the_file(google: Google, path: Path) -> None:
    with GoogleFile(google, str(path)) as file:
        assert file.read(1000) == DATA[:1000]
        path.write_bytes(DATA[:1500])
        assert file.read(1000) == DATA[1000:1500] and file.tell() == 1500
        assert file.read(1000) == b"" and file.tell() == 1500


def test_after_an_error_the_same_part_is_asked_for_anew(google: Google, path: Path) -> None:
    google.breaks = True
    with GoogleFile(google, str(path)) as file:
        assert file.read(1000) == DATA[:1000]
        with pytest.raises(OSError, match="broken"):
            file.read(1000)
        assert file.tell() == 1000
        assert file.read(1000) == DATA[1000:2000]


def test_a_file_that_is_not_there(google: Google, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Path does not exist"):
        GoogleFile(google, str(tmp_path / "none"))
