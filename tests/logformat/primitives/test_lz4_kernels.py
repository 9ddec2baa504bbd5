"""Memory for lz4 frames: the estimate, and frames that decompress to more."""

from __future__ import annotations

import struct

import lz4.frame
import numpy as np
import pytest

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_LZ4
from lastkey.logformat.primitives.codec import BatchPlace, Scratch, compress, decompress_into
from lastkey.logformat.primitives.lz4_kernels import HEADER, decompress_bodies
from lastkey.logformat.primitives.zstd_kernels import MORE_ROOM

BLOCK = 1 << 16
LIMIT = 1 << 20


def room_for(body: bytes, limit: int = LIMIT) -> int:
    """Return how many bytes are asked for, where there are none."""
    place, none = np.array([0, len(body)]), np.empty(0, np.uint8)
    _, _, status, detail = decompress_bodies(
        np.frombuffer(body, np.uint8), place[:1], place[1:], none, 0, 1, limit, np.empty(1, np.int64), False
    )
    assert status == MORE_ROOM
    return detail


@pytest.mark.parametrize("checksums", [False, True])
def test_space_is_checked_for_every_block(checksums: bool) -> None:
    noise = np.random.default_rng(1).bytes(3 * BLOCK + 5)
    body = lz4.frame.compress(noise, block_size=4, block_linked=False, block_checksum=checksums, store_size=False)
    assert room_for(body) == len(noise), "each is stored"
    assert room_for(body, BLOCK) == 2 * BLOCK, "not more than the limit and a block"


def test_block_larger_than_its_frame_allows_is_refused_despite_free_space() -> None:
    content = lz4.frame.compress(bytes(BLOCK + 1), block_size=7, block_linked=False, store_size=False)
    body = HEADER + content[7:]  # whose blocks are 64 KiB at the most
    assert decompress_into(CODEC_LZ4, content, Scratch(), 0, LIMIT, BatchPlace("log", 0)) == BLOCK + 1
    with pytest.raises(LogFormatError, match="a block that does not decompress to what its frame allows"):
        decompress_into(CODEC_LZ4, body, Scratch(), 0, LIMIT, BatchPlace("log", 0))


def test_incompressible_block_is_stored() -> None:
    """As Kafka does. Its compressed form is as long as itself."""
    block = bytes.fromhex("94e99d2d0e94e99d2d39592d6670e326436f8d414b")
    assert compress(CODEC_LZ4, block) == HEADER + struct.pack("<I", len(block) | 1 << 31) + block + bytes(4)
