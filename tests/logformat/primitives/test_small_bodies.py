"""Small bodies in a kernel: what it reads equals what the library reads, and it reads nothing that that refuses."""

from __future__ import annotations

import struct
from itertools import pairwise

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_LZ4, CODEC_SNAPPY
from lastkey.logformat.primitives import small_body_kernels as small
from lastkey.logformat.primitives.codec import Scratch, compress, decompress_into, unpack_small
from lastkey.logformat.primitives.xxhash_kernels import xxh32

CODECS = (CODEC_LZ4, CODEC_SNAPPY)
LIMIT = 1 << 20

# Runs that repeat, near and far, between bytes that do not
repeated = st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 300)).map(lambda one: one[0] * one[1])
contents = st.lists(st.one_of(st.binary(max_size=40), repeated), max_size=12).map(b"".join)


def lz4_frame(content: bytes, flags: int = 0x60, sizes: int = 0x40) -> bytes:
    """Return a frame as other clients write it."""
    descriptor = bytes([flags, sizes])
    word = xxh32(np.frombuffer(descriptor, np.uint8), 0, 2) >> 8 & 0xFF
    block = bytes(cramjam.lz4.compress_block(content, store_size=False))
    head = b"\x04\x22\x4d\x18" + descriptor + bytes([word]) + struct.pack("<I", len(block))
    return head + block + bytes(4) + (b"any!" if flags & 4 else b"")


def in_kernel(bodies: list[tuple[int, bytes]], **given: int) -> tuple[list[bytes], int]:
    """Unpack bodies with junk between them; return (contents that are done, status)."""
    source = np.frombuffer(b"??".join([b"", *(body for _, body in bodies), b""]), np.uint8)
    sizes = np.array([len(body) for _, body in bodies])
    ends = np.cumsum(sizes + 2)
    codecs, out, out_ends = np.array([codec for codec, _ in bodies]), Scratch(8), np.empty(len(bodies), np.int64)
    stop, limit = given.get("stop", 1 << 40), given.get("limit", LIMIT)
    done, end, status = unpack_small(codecs, source, ends - sizes, ends, out, 5, stop, limit, out_ends)
    places = [5, *out_ends[:done].tolist()]
    assert end == places[-1]
    return [out.array[a:b].tobytes() for a, b in pairwise(places)], status


def by_library(codec: int, body: bytes, limit: int = LIMIT) -> bytes | None:
    out = Scratch()
    try:
        return out.array[: decompress_into(codec, body, out, 0, limit, path="", position=0)].tobytes()
    except LogFormatError:
        return None


def agree(codec: int, body: bytes, limit: int = LIMIT) -> None:
    found, status = in_kernel([(codec, body)], limit=limit)
    assert status == (small.DONE if found else small.ASK_LIBRARY)
    if found:
        assert found == [by_library(codec, body, limit)]


@settings(deadline=None)  # the first example compiles
@given(st.sampled_from(CODECS), contents)
def test_what_is_compressed_is_read(codec: int, content: bytes) -> None:
    assert in_kernel([(codec, compress(codec, content))]) == ([content], small.DONE)


@settings(deadline=None)
@given(contents, st.sampled_from([0x60, 0x64]), st.sampled_from([0x40, 0x50, 0x60, 0x70]))
def test_bodies_of_other_clients_are_read(content: bytes, flags: int, sizes: int) -> None:
    frame, block = lz4_frame(content, flags, sizes), bytes(cramjam.snappy.compress_raw(content))
    assert in_kernel([(CODEC_LZ4, frame), (CODEC_SNAPPY, block)]) == ([content, content], small.DONE)
    if content:
        agree(CODEC_LZ4, frame, len(content) - 1)
        agree(CODEC_SNAPPY, block, len(content) - 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(st.sampled_from(CODECS), contents, st.data())
def test_damage_is_left_to_the_library(codec: int, content: bytes, data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([compress(codec, content), lz4_frame(content, 0x64)])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not body:
            break
    agree(codec, bytes(body))


@settings(deadline=None, max_examples=1000)
@given(st.sampled_from(CODECS), st.binary(max_size=60), st.booleans())
def test_noise_is_left_to_the_library(codec: int, noise: bytes, framed: bool) -> None:
    if not framed:
        agree(codec, noise)
    elif codec == CODEC_LZ4:
        agree(codec, compress(codec, b"")[:7] + struct.pack("<I", len(noise)) + noise + bytes(4))
    else:
        agree(codec, compress(codec, b"") + struct.pack(">i", len(noise)) + noise)


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_and_what_is_left_over(codec: int) -> None:
    body = compress(codec, b"abcdefgh" * 30 + bytes(range(200)))
    for cut in range(len(body)):
        agree(codec, body[:cut])
        agree(codec, body + body[:cut])


@pytest.mark.parametrize("extra", range(7))
@pytest.mark.parametrize("last", range(8))
def test_a_long_match_near_the_end_of_an_lz4_block(extra: int, last: int) -> None:
    """The bytes of its length count for nothing in what must follow it."""
    match = b"\x1fa\x01\x00" + b"\xff" * extra + b"\x05"
    block = match + bytes([last << 4]) + b"z" * last
    body = compress(CODEC_LZ4, b"")[:7] + struct.pack("<I", len(block)) + block + bytes(4)
    agree(CODEC_LZ4, body)
    if last >= 5:
        assert in_kernel([(CODEC_LZ4, body)])[1] == small.DONE


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("literals", range(1, 6))
def test_snappy_literals_with_a_longer_length_than_they_need(n: int, literals: int) -> None:
    tag = bytes([(59 + n) << 2]) + (literals - 1).to_bytes(n, "little")
    agree(CODEC_SNAPPY, bytes([literals]) + tag + b"z" * literals)


def test_many_in_one_call() -> None:
    texts = [b"ab" * 500, b"", bytes(range(256)) * 4, b"x" * small.MOST]
    bodies = [(codec, compress(codec, text)) for text in texts for codec in CODECS]
    twice = [text for text in texts for _ in CODECS]
    assert in_kernel(bodies) == (twice, small.DONE)
    assert in_kernel(bodies, stop=6) == (twice[:1], small.DONE), "one byte more reaches the stop"
    assert in_kernel(bodies, limit=small.MOST - 1) == (twice[:6], small.ASK_LIBRARY)
    assert in_kernel([*bodies, (CODEC_LZ4, compress(CODEC_LZ4, bytes(small.MOST + 1)))]) == (twice, small.ASK_LIBRARY)
