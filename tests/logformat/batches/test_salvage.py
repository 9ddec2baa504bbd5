"""Sound batches of a damaged log: whatever is damaged, all others are found, with any size of buffer."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest

from lastkey.logformat.batches.chunks import NO_END, ChunkBuffer
from lastkey.logformat.batches.salvage import Damage, salvage
from lastkey.logformat.storage.regular_files import open_local
from tests.builders.archives import borders
from tests.builders.logs import write_segment

LOG = " | ".join(f"{{codec={('none', 'gzip', 'lz4')[i % 3]}}} k{i}={'v' * (i * 7 % 90)} x=y" for i in range(12))


def salvaged(path: Path, chunk_bytes: int) -> tuple[list[int], list[tuple[int, int, str]]]:
    """Return the base offsets of the sound batches, and the damage."""
    offsets: list[int] = []
    damages = []
    with open_local(str(path)) as file:
        buffer = ChunkBuffer(chunk_bytes)
        for part in salvage(file, str(path), path.stat().st_size, (0, NO_END), buffer):
            if isinstance(part, Damage):
                damages.append((part.position, part.end, part.error.kind))
            else:
                offsets += part["base_offset"].tolist()
    return offsets, damages


@pytest.mark.parametrize("chunk_bytes", [100, 300, 1 << 20])
@pytest.mark.parametrize("at", range(0, 70))
def test_damaged_byte_loses_only_its_batch(tmp_path: Path, chunk_bytes: int, at: int) -> None:
    path = write_segment(tmp_path, LOG)
    data = bytearray(path.read_bytes())
    start, end = borders(bytes(data))[4], borders(bytes(data))[5]
    data[start + at] ^= 0x11
    path.write_bytes(data)
    offsets, damages = salvaged(path, chunk_bytes)
    others = [base for base in range(0, 24, 2) if base != 10]
    if at < 8 or 12 <= at < 16:  # base offset, leader epoch: no checksum covers them
        assert (len(offsets), damages) == (12, [])
    else:
        assert offsets == others
        assert [(first, until) for first, until, _ in damages] == [(start, end)]


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_intact_batches_are_found_after_random_damage(tmp_path: Path, chunk_bytes: int) -> None:
    """An intact batch is found if another intact batch, or the end of the file, follows."""
    rng = random.Random(3)
    whole = write_segment(tmp_path, LOG).read_bytes()
    ends = borders(whole)
    starts = [0, *ends[:-1]]
    for number in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 3))):
            at, n = rng.randrange(len(data)), rng.choice((1, 1, 8, 60))
            data[at : at + n] = rng.choice((bytes(n), rng.randbytes(n)))[: len(data) - at]
        data = data[: rng.choice((len(data), rng.randrange(len(data))))]
        path = tmp_path / f"{number}.log"
        path.write_bytes(data)
        offsets, damages = salvaged(path, chunk_bytes)
        same = [data[a:b] == whole[a:b] for a, b in zip(starts, ends, strict=True)]
        sure = [2 * i for i in range(12) if same[i] and (ends[i] == len(data) or (i + 1 < 12 and same[i + 1]))]
        assert set(sure) <= set(offsets), number
        assert all(a < b for a, b, _ in damages)


def test_zeros_at_the_end_are_a_tail(tmp_path: Path) -> None:
    path = write_segment(tmp_path, LOG)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(500))
    assert salvaged(path, 200) == (list(range(0, 24, 2)), [(size, size + 500, "torn_tail")])


def test_a_file_that_shrinks_is_an_error() -> None:
    with pytest.raises(Exception, match="changed"):
        list(salvage(io.BytesIO(b""), "log", 100, (0, NO_END), ChunkBuffer(np.iinfo(np.int16).max)))
