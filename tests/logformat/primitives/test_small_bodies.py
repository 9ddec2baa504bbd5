"""Small bodies of snappy in a kernel: it reads them as the library does, and reads nothing that that refuses."""

from __future__ import annotations

import struct
from itertools import pairwise

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_SNAPPY
from lastkey.logformat.primitives import small_body_kernels as small
from lastkey.logformat.primitives.codec import BatchPlace, Scratch, compress, decompress_into, unpack_many

LIMIT = 1 << 20

# Runs that repeat, near and far, between bytes that do not
repeated = st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 300)).map(lambda one: one[0] * one[1])
contents = st.lists(st.one_of(st.binary(max_size=40), repeated), max_size=12).map(b"".join)


def in_kernel(bodies: list[bytes], **given: int) -> tuple[list[bytes], int]:
    """Unpack bodies with junk between them; return (contents that are done, status)."""
    source = np.frombuffer(b"??".join([b"", *bodies, b""]), np.uint8)
    sizes = np.array([len(body) for body in bodies])
    ends = np.cumsum(sizes + 2)
    out, out_ends = Scratch(8), np.empty(len(bodies), np.int64)
    stop, limit = given.get("stop", 1 << 40), given.get("limit", LIMIT)
    n_unpacked, end, status, _ = unpack_many(CODEC_SNAPPY, source, ends - sizes, ends, out, 5, stop, limit, out_ends)
    places = [5, *out_ends[:n_unpacked].tolist()]
    assert end == places[-1]
    return [out.array[a:b].tobytes() for a, b in pairwise(places)], status


def by_library(body: bytes, limit: int = LIMIT) -> bytes | None:
    out = Scratch()
    try:
        return out.array[: decompress_into(CODEC_SNAPPY, body, out, 0, limit, BatchPlace("", 0))].tobytes()
    except LogFormatError:
        return None


def agree(body: bytes, limit: int = LIMIT) -> None:
    result, status = in_kernel([body], limit=limit)
    assert status == (small.DONE if result else small.ASK_LIBRARY)
    if result:
        assert result == [by_library(body, limit)]


def framed(content: bytes) -> bytes:
    return compress(CODEC_SNAPPY, content)


@settings(deadline=None)  # the first example compiles
@given(contents)
def test_small_compressed_body_is_decompressed_unchanged(content: bytes) -> None:
    assert in_kernel([framed(content)]) == ([content], small.DONE)


@settings(deadline=None)
@given(contents)
def test_bodies_of_other_clients_are_read(content: bytes) -> None:
    block = bytes(cramjam.snappy.compress_raw(content))
    assert in_kernel([block]) == ([content], small.DONE)
    if content:
        agree(block, len(content) - 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(contents, st.data())
def test_damaged_body_is_passed_to_the_library(content: bytes, data: st.DataObject) -> None:
    body = bytearray(framed(content))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not body:
            break
    agree(bytes(body))


@settings(deadline=None, max_examples=1000)
@given(st.binary(max_size=60), st.booleans())
def test_random_bytes_are_passed_to_the_library(noise: bytes, in_frame: bool) -> None:
    agree(framed(b"") + struct.pack(">i", len(noise)) + noise if in_frame else noise)


def test_truncated_and_extended_bodies_are_refused() -> None:
    body = framed(b"abcdefgh" * 30 + bytes(range(200)))
    for cut in range(len(body)):
        agree(body[:cut])
        agree(body + body[:cut])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("literals", range(1, 6))
def test_snappy_literals_with_a_long_length_field_are_read(n: int, literals: int) -> None:
    tag = bytes([(59 + n) << 2]) + (literals - 1).to_bytes(n, "little")
    agree(bytes([literals]) + tag + b"z" * literals)


def test_many_small_bodies_are_decompressed_in_one_call() -> None:
    texts = [b"ab" * 500, b"", bytes(range(256)) * 4, b"x" * small.MOST]
    bodies = [framed(text) for text in texts]
    assert in_kernel(bodies) == (texts, small.DONE)
    assert in_kernel(bodies, stop=6) == (texts[:1], small.DONE), "one byte more reaches the stop"
    assert in_kernel(bodies, limit=small.MOST - 1) == (texts[:3], small.ASK_LIBRARY)
    assert in_kernel([*bodies, framed(bytes(small.MOST + 1))]) == (texts, small.ASK_LIBRARY)
