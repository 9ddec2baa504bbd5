"""compression: real streams, every framing its readers must take, everything they must refuse, and bombs."""

from __future__ import annotations

import base64
import gzip
import io
import math
import random
import struct
import threading
import time
import tracemalloc
import zlib
from itertools import pairwise

import cramjam
import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NAMES, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD, Levels
from lastkey.logformat.primitives.codec import (
    GZIP_HEADER,
    XERIAL_MAGIC,
    BatchPlace,
    Scratch,
    compress,
    decompress_into,
    pack_bodies,
    unpack_many,
)
from lastkey.logformat.primitives.lz4_kernels import HEADER as LZ4_HEADER
from lastkey.logformat.primitives.zstd_kernels import BROKEN, DONE, TOO_LARGE

CODECS = (CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD)
MIB = 1 << 20

# Bodies of batches written by Kafka 4.3: codec -> size of the content, its CRC-32, the body.
REAL = {
    "gzip": (
        225,
        0x77D70851,
        "H4sIAAAAAAAA/7NgaJ76vecY6ypGhSQjszQgtjA1NDRNSTNIZWSYxchwvxske4ZRwczS0NwwzdzA1CQ51TjF3IiRjSXDQK2vuW79"
        "VN3f0/u477uW/Tlcy5xfx5JhyHXLqPyXNUuGkVTY3GehoctdT2922dF6/RkjQ/tGkHE3GBVMLcxNUpPMDcyNzC1TTVIT1zAWlmYo"
        "VGaWFlZVlSqUJuekV6UVlecpFBSl5ygkFSXmVCQqlCSlFZQWJ1YolGaVV5YrpGekK6SW56dmKuRlpWbmVGblQyWySirLEqtywDwG"
        "AFEI13fhAAAA",
    ),
    "snappy": (
        1238,
        0x8E4B0465,
        "glNOQVBQWQAAAAABAAAAAQAABLHWCfTEAYgCAOmG+IzGBSogZTA1ZTQ3MWZjODM4ZmExMNABcnRjeXpxZSBjbWlzeXR1Y20gem1x"
        "a2FhZSBxZXpidGUgZGhwb2hnIG93ayB1aWhkZiB6Zm53cGZ2IGRqdXVseG0gcGZvbWIgem1xa2FhZSBva2Igd2pmcCBxeWRkeGRs"
        "eSB6dXRkZ3kA6AEA3YX4jMYFOCBmZTM5ZWVjYjMzNTZiMjIysAFrZm1vem92anYgaGRla21rdyB4enN6dHIgbW5remV6cWxrIHVi"
        "eXF2cGoga21nbHBndiB6bW5qYmt1bSBkcHBoaiBhdXFnZyBrY2tjcHggc3R4bWJxaSB6APgBAM2C+IzGBWAgNmY3N2FjNWQ4ZGFk"
        "ZWVmZcABZnJ6bWFwdnIgZWhhcHdmIG1oZWZuYWJydCB6a3huIG5zenkgZHVmc2xiZyBza2V6a2dpIG5qb21mdG9hIGN0bHJoeWFr"
        "IGF1cWdnIHV4cyB0cWlma3JmdXQgcXdmdyB5ANwBAP2B+IzGBWggNGQ5Mjc3ZjYyNTAxYWIzNqQBZnpuYmYgbmp2bXpvdGVvIGFq"
        "eSBlaGFwd2YgeW5vbnJxdiB6c2h4dGMgZmxvIDmgfGh1dnBsbyBtd2ZobyBwdm52dSBhYml2c2dzAJQCAMGBIerwVW4gYWVjM2Uz"
        "OGQ1YWZlOWYyNdwBY2tyYmhuaCB0YXJkaHJ4ZiBobnRtZ25id20geWJ3dmhpbmMgdmpjIGpta3dybGNkIGhzZHZ0dyB5dWJpc21i"
        "IG1oMR4ocGNkdXl3IGliYmMZLlBmbmJ3cnV5ZWwgYnlsaWcAhAIA3YABjPCkeCA5OGFlM2IxYmZkOWUwMzQyzAFheHJmYyBmY2J3"
        "bCB4dGFrYXl3ZHggcGZvbWIgaW9icCBvdHFhenBoIGRocG9oZyB2Y3lwanAgdWNsZ3pmcnduIHhxbGd6ZiBveW8gbG9mIHZseGhr"
        "IHd3cXkganhrdyBhcWggdHcA8AEAsf73jMYFlgEgNTY4NmIyZGQwNDI3MGE4MrYBZGR4cHRtIHVjbGd6BVXwcXlwbXhiIGF3dnRi"
        "eHVucCBsbHggdnhxdSBmdHogenFwcXJ2cGtxIG9raWhnbGNraCB1bmxjZyB6c2h4dGMgb3VwaiB3ZGQgbWhlAOoBAP3894zGBagB"
        "IGFjZjYyOGVkYWMwZjdhNTCwAWxwcWZ4eGd3IBl88G1seHQgdnBnYXN2YyBxZnNjZyBvcGlueXBwIGF0eCBrdHQgcGN6cW0gcGRq"
        "dCBkZHNrIHlxenBiZmIganl1IGlsZGMgY3QA5AEAxfn3jMYF1AEgZDQyODZkNGRjZjYwODYzMqoBYmpncXB5b3UgbBGAkGx4cSB3"
        "d3kgZ2FmZyB5aWsgbW5mbCB6bHFlZGpyIGxkaGwgYmoRNRRxcSBrY2thYARoc0UaEGJrZHB0AesEpfgB61TkASBlMTM2ZjQ4Yzdj"
        "ZThlMmNisAFwBbbwUnRza2J5anZpIGZqcG90Z2prIGRpeHN5dWggbmpvbWZ0b2Egcnh6diBjdHFvZnlmcGMganhmdCBnc3FpIG1w"
        "a3N1YmpkIGxwcWZ4eGd3IHFlemIA",
    ),
    "lz4": (
        265,
        0xE5D3413C,
        "BCJNGGBAggkBAICCAgDBsLlSHCAyZTg1NjhjM2Y1NDQ1ZTZkzgFqYmNra2Ygb2RhcGFvYyBtZXJmdXhsIHR3YnggZmFjY2trcWEg"
        "aXlubmkgdWVqaW0gd3hhb3lncXogenNoeHRjIGdrY3diaCBwZGp0IG5kcGNxcyBpbGRjIHNybWVqcHl5biByb2ZhANQBAMGwuVIo"
        "IDViOTQ2ODJiMDQ1MDNlODCgAXdkZCBlbnNuaSBkZHNrIHZpd29rbW9tIHd0cHFrIGxwcWZ4eGd3IGZtbmd0aHkgZmNid2wgZ3dm"
        "YSBhc2YgdHNrYnlqdmkgeGtnc2R4eWUgADIAwbC5UiwgYzk4ZDA4NGU1NGZkMzg5MQEAAAAAAA==",
    ),
    "zstd": (
        377,
        0xFC78E9F1,
        "KLUv/QBY5AkAZhZMNGBJ2hzUBZBO0kmSMCpTx0CAS8BjWtq2tt79vbRktElon7qLRm2wr98QVC3tgIJRXn3/ZgM8AEYAPADS62Sh"
        "nJe246xK6tPIua3dSm51P8oJoa9LHXzWUI5qjd85/+aKmd4aIQ4USSeMoWC9EmXRsGhPcBwIBgFUPkZ3mm78E1vXmZEIy7IwetGg"
        "UAUYDoqR9JEFiAwHYuFCVioImBAeHIAGFGBIDKDwBCYQOA0IAFDARGK68Y1vg568p0zsLpJ/sDYQCa0sy0Jx6IUpK2lqHXkIMOFA"
        "Ho6OmJzlZUQfe9BxhhrYqPfQPqzqrGn7hmF0++511ZmfnjNfR85VYvChh0Hr+WwsPXY17g2mzHNtEz8dJMm71WR3l9+s97PlLbZR"
        "OmsYONmF/6a3oKVncbqMLwIANQRgKcaTAgEAAA==",
    ),
}


def read(codec, body, *, limit=MIB, at=0, magic=2, scratch=None):
    scratch = scratch or Scratch(16)
    n = decompress_into(codec, body, scratch, at, limit, BatchPlace("a.log", 7, 42, magic))
    return scratch.array[at : at + n].tobytes()


def refused(kind, codec, body, **options):
    with pytest.raises(LogFormatError) as caught:
        read(codec, body, **options)
    error = caught.value
    assert (error.kind, error.path, error.position, error.base_offset) == (kind, "a.log", 7, 42)
    return error


def real(codec):
    size, crc, text = REAL[CODEC_NAMES[codec]]
    return size, crc, base64.b64decode(text)


def text(size):
    """Return bytes that compress about as records do."""
    words = [b"%08x " % (i * 2654435761 % 2**32) for i in range(500)]
    return b"".join(words[i * i % 377] + b"topic partition " for i in range(size // 25 + 1))[:size]


@pytest.mark.parametrize("codec", CODECS)
def test_bodies_that_kafka_compressed_are_read(codec):
    size, crc, body = real(codec)
    content = read(codec, body)
    assert (len(content), zlib.crc32(content)) == (size, crc)


@pytest.mark.parametrize("codec", [CODEC_GZIP, CODEC_LZ4])
def test_gzip_and_lz4_bytes_equal_those_of_kafka(codec):
    body = real(codec)[2]
    assert compress(codec, read(codec, body)) == body


@pytest.mark.parametrize(
    ("codec", "start"),
    [(CODEC_GZIP, "1f8b08000000000000ff"), (CODEC_SNAPPY, "82534e4150505900 00000001 00000001"),
     (CODEC_LZ4, "04224d18604082"), (CODEC_ZSTD, "28b52ffd00")],
)  # fmt: skip
def test_each_codec_begins_with_its_magic_bytes(codec, start):
    assert compress(codec, text(3000)).startswith(bytes.fromhex(start))


@settings(deadline=None)  # the first example compiles
@given(st.sampled_from((CODEC_NONE, *CODECS)), st.binary(max_size=300), st.integers(0, 3000), st.integers(0, 50))
def test_compressed_content_is_decompressed_unchanged(codec, seed, times, at):
    content = seed * times
    assert read(codec, compress(codec, content), at=at, limit=len(content)) == content


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 65535, 65536, 65537, 131071, 131072, 131073, 700_000])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("make", [text, lambda n: np.random.default_rng(1).bytes(n)], ids=["text", "noise"])
def test_sizes_around_a_block_are_read_back(codec, size, make):
    content = make(size)
    body = compress(codec, content)
    assert read(codec, body, limit=size) == content
    if size:
        refused("bomb", codec, body, limit=size - 1)


def test_other_decoders_read_our_bodies():
    content = text(200_000)
    assert gzip.decompress(compress(CODEC_GZIP, content)) == content
    assert bytes(cramjam.lz4.decompress(compress(CODEC_LZ4, content))) == content
    assert zstandard.ZstdDecompressor().decompress(compress(CODEC_ZSTD, content), max_output_size=MIB) == content


@pytest.mark.parametrize("codec", (CODEC_NONE, *CODECS))
def test_sources_of_any_type_are_read_into_a_reused_buffer(codec):
    body = compress(codec, np.frombuffer(text(5000), np.uint8))
    scratch = Scratch(1)
    for source in (body, memoryview(body), np.frombuffer(body, np.uint8), np.frombuffer(bytearray(body), np.uint8)):
        assert read(codec, source, scratch=scratch) == text(5000)
    scratch.array[:] = 0x55
    read(codec, body, scratch=scratch, at=100)
    assert scratch.array[:100].tobytes() == b"\x55" * 100, "nothing before `at` is touched, also when the buffer grows"


@pytest.mark.parametrize("codec", CODECS)
def test_threads_do_not_share_contexts(codec):
    contents = [text(n) for n in (1000, 50_000, 200_000)]
    wrong = []

    def work():
        for _ in range(30):
            wrong.extend(c for c in contents if read(codec, compress(codec, c)) != c)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_refused(codec):
    body = real(codec)[2]
    cuts = range(len(body)) if codec != CODEC_SNAPPY else [c for c in range(len(body)) if c != 16]
    for cut in cuts:  # a xerial header alone is an empty stream
        refused("compressed", codec, body[:cut])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("extra", [b"\0", b"\0\0\0", b"\0\0\0\0", b"left over"])
def test_trailing_bytes_are_refused(codec, extra):
    refused("compressed", codec, real(codec)[2] + extra)


@settings(deadline=None)  # the first example compiles
@given(st.sampled_from(CODECS), st.data())
def test_damage_raises_only_log_format_errors(codec, data):
    body = bytearray(real(codec)[2])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(codec, bytes(body))
    except LogFormatError as error:
        assert error.kind in ("compressed", "bomb")


@settings(deadline=None)  # the first example compiles
@given(st.sampled_from(CODECS), st.binary(max_size=80), st.integers(0, 2))
def test_random_bytes_raise_only_log_format_errors(codec, noise, magic):
    starts = {
        CODEC_GZIP: GZIP_HEADER,
        CODEC_SNAPPY: XERIAL_MAGIC,
        CODEC_LZ4: LZ4_HEADER,
        CODEC_ZSTD: b"\x28\xb5\x2f\xfd",
    }
    for body in (noise, starts[codec] + noise):
        try:
            read(codec, body, magic=magic)
        except LogFormatError as error:
            assert error.kind in ("compressed", "bomb", "codec")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec):
    assert f"codec {codec}" in str(refused("codec", codec, b"x"))
    with pytest.raises(ValueError, match="no such codec"):
        compress(codec, b"x")


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_before_magic_2_is_refused(magic):
    refused("codec", CODEC_ZSTD, compress(CODEC_ZSTD, b"x"), magic=magic)


def test_gzip_with_several_members_is_read():
    body = b"".join(gzip.compress(part, mtime=0) for part in (b"one ", b"", text(70_000)))
    assert read(CODEC_GZIP, body) == b"one " + text(70_000)


def test_gzip_is_read_over_several_steps():
    content = text(3 * MIB + 5)
    assert read(CODEC_GZIP, gzip.compress(content, 1), limit=len(content)) == content


def test_gzip_with_name_and_header_checksum_is_read():
    out = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=out) as file:
        file.write(b"content")
    assert read(CODEC_GZIP, out.getvalue()) == b"content"


def test_reserved_gzip_flags_are_ignored_as_by_java():
    packed = bytearray(gzip.compress(b"body"))
    packed[3] |= 0b1110_0000
    assert read(CODEC_GZIP, bytes(packed)) == b"body"


def test_gzip_checksum_is_verified():
    body = bytearray(compress(CODEC_GZIP, b"content"))
    body[-8] ^= 1
    refused("compressed", CODEC_GZIP, bytes(body))


def xerial(*parts, version=1):
    return (
        XERIAL_MAGIC
        + struct.pack(">ii", version, 1)
        + b"".join(part if part.startswith(XERIAL_MAGIC) else struct.pack(">i", len(part)) + part for part in parts)
    )


def snappy(content):
    return bytes(cramjam.snappy.compress_raw(content))


def test_raw_snappy_block_is_read():
    for content in (b"", b"short", text(100_000)):
        assert read(CODEC_SNAPPY, snappy(content)) == content


def test_snappy_with_a_header_between_blocks_is_read():
    again = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    assert read(CODEC_SNAPPY, xerial(snappy(b"a" * 99), again, snappy(b"b"), again)) == b"a" * 99 + b"b"


def test_later_version_of_snappy_is_read():
    assert read(CODEC_SNAPPY, xerial(snappy(b"abc"), version=2)) == b"abc"


def test_malformed_snappy_is_refused():
    refused("compressed", CODEC_SNAPPY, xerial(snappy(b"abc"), version=0))
    refused("compressed", CODEC_SNAPPY, xerial(b""))
    refused("compressed", CODEC_SNAPPY, xerial(snappy(b"abc")) + struct.pack(">i", -5))
    refused("compressed", CODEC_SNAPPY, b"")
    refused("compressed", CODEC_SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20)  # says it holds 4 GiB


def lz4_frame(content, *, flags=0x60, size_code=0x40, checksum=None, descriptor_checksum=None, end=b"\0\0\0\0"):
    """Return a frame of one block, stored or compressed."""
    from tests.reference.xxhash import xxh32

    descriptor = bytes([flags, size_code]) + (struct.pack("<q", len(content)) if flags & 8 else b"")
    if descriptor_checksum is None:
        descriptor_checksum = xxh32(descriptor) >> 8 & 0xFF
    block = bytes(cramjam.lz4.compress_block(content, store_size=False))
    out = b"\x04\x22\x4d\x18" + descriptor + bytes([descriptor_checksum]) + struct.pack("<I", len(block)) + block
    if flags & 0x10:
        true = xxh32(block)
        out += struct.pack("<I", true if checksum is None else checksum)
    return out + end + (b"any!" if flags & 4 else b"")


@pytest.mark.parametrize("flags", [0x60, 0x64, 0x68, 0x6C, 0x70, 0x7C])
@pytest.mark.parametrize("size_code", [0x40, 0x50, 0x60, 0x70])
def test_lz4_with_sizes_and_checksums_is_read(flags, size_code):
    content = text(30_000)
    assert read(CODEC_LZ4, lz4_frame(content, flags=flags, size_code=size_code), magic=1) == content


def test_lz4_frames_of_another_writer_are_read():
    content = text(300_000)
    assert read(CODEC_LZ4, lz4_frame(content, size_code=0x60)) == content
    refused("compressed", CODEC_LZ4, lz4_frame(content, size_code=0x50))  # the block gives more than it may


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"flags": 0x40}, "independent"),
        ({"flags": 0x20}, "version"),
        ({"flags": 0xA0}, "version"),
        ({"flags": 0x61}, "flags"),
        ({"flags": 0x62}, "flags"),
        ({"size_code": 0x30}, "block size"),
        ({"size_code": 0xC0}, "block size"),
        ({"size_code": 0x41}, "block size"),
        ({"descriptor_checksum": 0x1A}, "descriptor"),
        ({"flags": 0x70, "checksum": 1}, "block checksum"),
        ({"end": b""}, ""),
    ],
)
def test_lz4_frames_that_kafka_refuses_are_refused(options, word):
    assert word in refused("compressed", CODEC_LZ4, lz4_frame(text(500), **options)).found


def test_lz4_of_magic_0_with_kafkas_wrong_checksum_is_read():
    body = lz4_frame(text(500), descriptor_checksum=0x1A)
    assert read(CODEC_LZ4, body, magic=0) == text(500)
    refused("compressed", CODEC_LZ4, body, magic=1)
    assert read(CODEC_LZ4, lz4_frame(text(500), flags=0x68, descriptor_checksum=1), magic=0) == text(500)


def test_lz4_block_that_begins_like_a_size_is_read():
    """Its match begins before it does. cramjam reads the first four bytes as a size then, and the rest as a block."""
    block = bytes.fromhex("1f620300665062 62626262")
    frame = lz4_frame(b"", size_code=0x60)[:7] + struct.pack("<I", len(block)) + block + bytes(4)
    refused("compressed", CODEC_LZ4, frame)


def test_lz4_end_mark_of_a_stored_block_is_refused():
    assert read(CODEC_LZ4, lz4_frame(text(500), end=b"\0\0\0\x80")) == text(500)


def zstd(content, **options):
    return zstandard.ZstdCompressor(**options).compress(content)


def zstd_stream(content):
    """Return a stream that ends as Kafka's do: flushed, then an empty last block."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(content) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()


@pytest.mark.parametrize("size", [0, 10, 5000, 131072, 131073, 900_000])
def test_zstd_of_other_writers_is_read(size):
    content = text(size)
    for body in (
        zstd(content),
        zstd(content, write_checksum=True),
        zstd(content, write_content_size=False, write_checksum=True),
        zstd(content, level=19),
        zstd(content, level=-5),
        zstd_stream(content),
        zstd(content) + struct.pack("<II", 0x184D2A53, 3) + b"abc" + zstd(b""),
    ):
        assert read(CODEC_ZSTD, body, limit=size) == content
        for cut in (1, 2, 3, 4, len(body) // 2):
            refused("compressed", CODEC_ZSTD, body[:-cut])


def test_zstd_with_several_frames_is_read():
    assert read(CODEC_ZSTD, zstd(b"one ") + zstd_stream(b"two ") + compress(CODEC_ZSTD, b"three")) == b"one two three"


@pytest.mark.parametrize("last", [0, 1])
def test_zstd_frames_after_a_repeated_byte_are_read(last):
    """A block that states its decompressed but not its compressed size can resemble one that fills the body."""
    behind = zstd(b"hello world")
    size = 10 + len(behind) - (9 if last else 12) + (0 if last else 3)
    blocks = (size << 3 | 2 | last).to_bytes(3, "little") + b"A" + (b"" if last else b"\1\0\0")
    body = b"\x28\xb5\x2f\xfd\0\x58" + blocks + behind
    assert (
        zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(body)
        == b"A" * size + b"hello world"
    )
    assert read(CODEC_ZSTD, body) == b"A" * size + b"hello world"


def test_zstd_checksum_is_verified():
    for size in (100, 300_000):
        body = bytearray(zstd(text(size), write_checksum=True))
        body[-1] ^= 1
        refused("compressed", CODEC_ZSTD, bytes(body), limit=size)
        refused("compressed", CODEC_ZSTD, bytes(body))


def unpacked(codec, bodies, *, stop=1 << 40, limit=MIB, at=5):
    """Unpack bodies with junk between them; return (contents that are done, status)."""
    source = np.frombuffer(b"??".join([b"", *bodies]), np.uint8)
    ends = np.cumsum([len(body) + 2 for body in bodies])
    out, out_ends = Scratch(8), np.empty(len(bodies), np.int64)
    starts = ends - [len(body) for body in bodies]
    n_unpacked, end, status, _ = unpack_many(codec, source, starts, ends, out, at, stop, limit, out_ends)
    places = [at, *out_ends[:n_unpacked].tolist()]
    assert end == places[-1]
    return [out.array[a:b].tobytes() for a, b in pairwise(places)], status


def lz4_of_one_block(content):
    return lz4_frame(content, flags=0x7C, size_code=0x60)


@pytest.mark.parametrize(
    ("codec", "writers"),
    [(CODEC_ZSTD, (zstd, zstd_stream)), (CODEC_LZ4, (lz4_of_one_block, lambda content: compress(CODEC_LZ4, content)))],
)
def test_many_bodies_are_decompressed_in_one_call(codec, writers):
    contents = [text(n) for n in (1, 0, 300_000, 7, 131_072)]
    bodies = [make(content) for content in contents for make in writers]
    twice = [content for content in contents for _ in range(2)]
    assert unpacked(codec, bodies) == (twice, DONE)
    assert unpacked(codec, bodies, stop=6) == (twice[:1], DONE), "one byte more reaches the stop"
    assert unpacked(codec, bodies, limit=131_072) == (twice[:4], TOO_LARGE)
    for bad in (b"", b"x", bodies[4][:-1], bodies[4] + b"x", bodies[4] + bytes(4)):
        assert unpacked(codec, [*bodies[:3], bad, *bodies[3:]]) == (twice[:3], BROKEN)


def test_bodies_of_mixed_codecs_are_compressed_like_single_bodies():
    codecs = np.array([4, 4, 0, 3, 4, 1, 2, 2, 4])
    contents = [text(n) for n in (5000, 0, 70_000, 70_000, 1, 9, 40_000, 3, 200_000)]
    source = np.frombuffer(b"".join(contents), np.uint8)
    out = Scratch(8)
    ends = pack_bodies(codecs, source, np.cumsum([0, *map(len, contents)]), out, 3)
    packed = [out.array[a:b].tobytes() for a, b in zip([3, *ends[:-1]], ends, strict=True)]
    assert packed == [compress(int(codec), content) for codec, content in zip(codecs, contents, strict=True)]
    assert packed[0] == zstandard.ZstdCompressor(level=3, write_content_size=False).compress(contents[0])


def test_compression_levels_equal_those_of_the_libraries():
    """Kafka's lz4.level 9, its default, is the fast compressor (Lz4BlockOutputStream); all others are high ones."""
    content = text(60_000)
    for level in (-131_072, -5, 0, 1, 19, 22):
        body = compress(CODEC_ZSTD, content, Levels(zstd=level))
        assert body == zstandard.ZstdCompressor(level=level, write_content_size=False).compress(content)
        assert read(CODEC_ZSTD, body) == content
    for level in (-1, 1, 9):
        packer = zlib.compressobj(level, wbits=-15)
        body = compress(CODEC_GZIP, content, Levels(gzip=level))
        assert body[10:-8] == packer.compress(content) + packer.flush()
    for level in range(1, 18):
        body = compress(CODEC_LZ4, content, Levels(lz4=level))
        high = lz4.block.compress(content, mode="high_compression", compression=level, store_size=False)
        assert (body[11:-4] == high) == (level != 9)
        assert read(CODEC_LZ4, body) == content
    assert compress(CODEC_ZSTD, content) == compress(CODEC_ZSTD, content, Levels()), "the level goes back"


# 256 MiB of them
ZEROS = {
    "gzip": lambda: gzip_of_zeros(16),
    "gzip members": lambda: gzip.compress(bytes(16 * MIB)) * 16,
    "snappy": lambda: xerial(*[snappy(bytes(1 << 15))] * (1 << 13)),
    "snappy raw": lambda: snappy(bytes(1 << 28)),
    "lz4": lambda: LZ4_HEADER + lz4_frame(bytes(1 << 16), end=b"")[7:] * (1 << 12) + b"\0\0\0\0",
    "lz4 big blocks": lambda: (
        lz4_frame(b"", size_code=0x70)[:7] + lz4_frame(bytes(4 * MIB), end=b"")[7:] * 64 + bytes(4)
    ),
    "zstd": lambda: compress(CODEC_ZSTD, bytes(1 << 28)),
    "zstd one byte repeated": lambda: (
        b"\x28\xb5\x2f\xfd\x00\x58"
        + (1 << 20 | 2).to_bytes(3, "little").ljust(4, b"\0") * 2047
        + (1 << 20 | 3).to_bytes(4, "little")
    ),
    "zstd frames": lambda: compress(CODEC_ZSTD, bytes(MIB)) * 256,
}


def gzip_of_zeros(pieces_of_16_mib):
    deflate = zlib.compressobj(wbits=-15)
    piece = deflate.compress(bytes(16 * MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return GZIP_HEADER + piece * pieces_of_16_mib + b"\x03\0" + bytes(8)  # the trailer is never reached


@pytest.mark.long
@pytest.mark.parametrize("name", ZEROS)
def test_decompression_bomb_is_refused_in_bounded_memory(name):
    body = ZEROS[name]()
    codec = CODEC_NAMES.index(name.split()[0])
    tracemalloc.start()
    refused("bomb", codec, body, limit=16 * MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 16 * MIB, "the buffer, the one it grew from, and a block"


def test_small_batch_needs_a_small_buffer():
    for codec in CODECS:
        scratch = Scratch(1)
        assert read(codec, compress(codec, b"x" * 10), limit=1 << 40, scratch=scratch) == b"x" * 10
        assert len(scratch.array) <= 1 << 18


def test_scratch_buffer_keeps_its_content_when_it_grows():
    scratch = Scratch(4)
    scratch.array[:] = (1, 2, 3, 4)
    scratch.reserve(3)
    assert len(scratch.array) == 4
    scratch.reserve(5)
    assert len(scratch.array) >= 5
    assert scratch.array[:4].tolist() == [1, 2, 3, 4] == list(scratch.view[:4])


@pytest.mark.parametrize("body", ["members", "stored"])
def test_cost_of_gzip_is_linear_in_its_length(body):
    """Eight times the input takes about eight times as long, not sixty-four: zlib copies what it leaves."""

    def seconds(n):
        if body == "members":
            data = gzip.compress(b"", mtime=0) * (n // 20)
        else:
            data = gzip.compress(random.Random(1).randbytes(n), compresslevel=0, mtime=0)
        best = math.inf
        for _ in range(3):
            out, start = Scratch(), time.process_time()
            decompress_into(CODEC_GZIP, np.frombuffer(data, np.uint8), out, 0, 256 << 20, BatchPlace("x", 0))
            best = min(best, time.process_time() - start)
        return best

    small, large = (1 << 17, 1 << 20) if body == "members" else (1 << 21, 1 << 24)
    assert seconds(large) < 32 * seconds(small)
