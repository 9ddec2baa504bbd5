"""Drawn bodies of every size and shape, compressed by other libraries, and decompressed in every way of the product.

The libraries are pyarrow's lz4, snappy and zstd, zlib, and zstandard; only the frames around lz4 and snappy blocks, a
few constant bytes, are the test's. Decompression must return the original bytes. The shapes mislead a decompressor's
estimate of the size: compacted batches whose first offset delta is not 0, short records, one record, and messages of
magic 0 and 1; also runs of one byte, noise, and lengths near the codecs' blocks.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate, islice

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.legacy import message_checksums
from lastkey.logformat.layout import BATCH, BATCH_OVERHEAD, CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from lastkey.logformat.primitives.codec import XERIAL_MAGIC, BatchPlace, Scratch, compress, decompress_into
from lastkey.logformat.primitives.lz4_kernels import HEADER as LZ4_HEADER
from tests.attack.summary import n_cases
from tests.reference.legacy import message
from tests.reference.varint import write

PART = 5000  # bodies at a time
FEW = 200_000  # bodies; 140 of them are about as long as a codec's block
EDGES = (1 << 15, 1 << 16, 1 << 17, 1 << 18)  # sizes around the blocks of snappy, lz4 and zstd

_ZSTD = zstandard.ZstdCompressor(level=3)
_ZSTD_STREAM = zstandard.ZstdCompressor(level=1, write_content_size=False)
_PA_LZ4, _PA_SNAPPY, _PA_ZSTD = pa.Codec("lz4_raw"), pa.Codec("snappy"), pa.Codec("zstd")


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def gzip_member(body: bytes) -> bytes:
    deflate = zlib.compressobj(1, wbits=31)
    return deflate.compress(body) + deflate.flush()


def lz4_frame(body: bytes) -> bytes:
    out = [LZ4_HEADER]
    for piece in pieces(body, 1 << 16):
        block, stored = _PA_LZ4.compress(piece, asbytes=True), 0
        if len(block) >= len(piece):
            block, stored = piece, 1 << 31
        out += (struct.pack("<I", len(block) | stored), block)
    return b"".join((*out, bytes(4)))


def snappy_raw(body: bytes) -> bytes:
    return _PA_SNAPPY.compress(body, asbytes=True)


def xerial(body: bytes) -> bytes:
    blocks = [_PA_SNAPPY.compress(piece, asbytes=True) for piece in pieces(body, 1 << 15)]
    return XERIAL_MAGIC + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def zstd_flushed(body: bytes) -> bytes:
    """Return a stream that ends as Kafka's do: a block, then an empty last one."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(body) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()


PACKERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (CODEC_NONE, bytes),
    "gzip": (CODEC_GZIP, gzip_member),
    "snappy": (CODEC_SNAPPY, snappy_raw),
    "snappy blocks": (CODEC_SNAPPY, xerial),
    "lz4": (CODEC_LZ4, lz4_frame),
    "zstd": (CODEC_ZSTD, _ZSTD.compress),
    "zstd stream": (CODEC_ZSTD, _ZSTD_STREAM.compress),
    "zstd of Arrow": (CODEC_ZSTD, lambda body: _PA_ZSTD.compress(body, asbytes=True)),
    "zstd flushed": (CODEC_ZSTD, zstd_flushed),
}
ONE_OF_EACH = ("none", "gzip", "snappy", "lz4", "zstd stream")


def tails(rng: random.Random) -> list[bytes]:
    """Draw the part of records from the key on: short keys, values of up to 200 bytes of noise, text or one byte."""
    out = []
    for _ in range(3000):
        key = bytes(rng.choices(b"abcdefgh0123456789", k=rng.choice((0, 1, 1, 2, 3, 5, 8, 20))))
        size = rng.choice((0, 1, 2, 5, 10, 20, 60, 200))
        value = rng.choice(
            (rng.randbytes(size), bytes(size), b"v" * size, (b"%x-" % rng.getrandbits(32)) * (size // 9))
        )
        tail = write(len(key)) + key + write(len(value)) + value + b"\0"
        out.append(tail if rng.random() < 0.8 else write(-1) + write(len(value)) + value + b"\0")
    return out


def records(rng: random.Random, parts: list[bytes], n: int) -> bytes:
    """Return a magic 2 body, as compaction leaves it: the first offset delta, and those after it, rise by any step."""
    out = []
    delta = rng.choice((0, 1, 3, 40, 200, 5000))
    step = rng.choice((1, 1, 7, 300))
    for tail in rng.choices(parts, k=n):
        rest = b"\0" + write(rng.choice((0, 0, 1, 70, 9000))) + write(delta) + tail
        out += (write(len(rest)), rest)
        delta += step
    return b"".join(out)


def draw(n: int, seed: int) -> Iterator[tuple[bytes, int]]:
    """Return n bodies, and the number of records in each; -1: something else."""
    rng = random.Random(seed)
    parts = tails(rng)
    for _ in range(n):
        shape = rng.random()
        if shape < 0.8:
            many = rng.choice((1, 1, 1, 2, 2, 3, 4)) if shape < 0.7 else rng.randrange(5, 40)
            yield records(rng, parts, many), many
        elif shape < 0.9:
            magic, offset = rng.randrange(2), rng.choice((0, 1, 7, 300, 1 << 33))
            pad = bytes(12) if magic == 0 else bytes([0, 0, 1]) + rng.randbytes(9)
            yield struct.pack(">qiIBB", offset, 30 + offset % 50, rng.getrandbits(32), magic, 0) + pad, -1
        elif shape < 0.9993:
            size = rng.randrange(60)
            yield rng.choice((rng.randbytes(size), bytes(size), b"ab" * size, bytes([size]) * 3 + bytes(40))), -1
        else:
            size = rng.choice(EDGES) + rng.choice((-1, 0, 0, 1, rng.randrange(9000)))
            piece = rng.choice((rng.randbytes(size), bytes(size), records(rng, parts, 400)))
            yield (piece * (size // max(len(piece), 1) + 1))[:size], -1


def check_alone(bodies: list[bytes], packer: str, out: Scratch) -> None:
    codec, pack = PACKERS[packer]
    for i, body in enumerate(bodies):
        n = decompress_into(codec, pack(body), out, 3, len(body), BatchPlace(packer, i))
        assert n == len(body) and out.view[3 : 3 + n] == body, f"{packer}: {body.hex()}"


def check_in_a_log(bodies: list[bytes], counts: list[int], packer: str) -> None:
    """Check that batches in a log have the same spans, hashes and bytes with compressed bodies as with plain ones."""
    codec, pack = PACKERS[packer]
    plain = list(_loaded(bodies, counts, CODEC_NONE, backwards=False))
    for backwards in (False, True):
        packed = list(_loaded([pack(body) for body in bodies], counts, codec, backwards=backwards))
        assert sorted(packed) == sorted(plain)


def _loaded(stored: list[bytes], counts: list[int], codec: int, *, backwards: bool) -> Iterator[tuple[int, bytes]]:
    """Return row and records of each batch: the values of the varints, key hashes, and the bytes."""
    sizes = np.array([BATCH_OVERHEAD + len(body) for body in stored])
    raw = np.frombuffer(b"".join(bytes(BATCH_OVERHEAD) + body for body in stored), np.uint8)
    rows = np.zeros(len(stored), BATCH)
    rows["magic"], rows["attributes"], rows["size"], rows["records_count"] = 2, codec, sizes, counts
    rows["position"] = 1000 + np.cumsum(sizes) - sizes
    rows["last_offset"] = 1 << 30
    loader = BodyLoader(max_batch_bytes=1 << 20, soft_bytes=1 << 16, secret=(1, 2))
    done = 0
    for run in loader.runs(Chunk(1000, raw, rows, path="a.log"), backwards=backwards):
        source = run.scratch if codec else run.raw
        spans = run.spans.copy()
        starts = np.repeat(run.bodies["start"], run.bodies["n_records"])
        for name in ("start", "rest", "end"):
            spans[name] -= starts
        ends = [*accumulate(run.bodies["n_records"].tolist())]
        for i, end in enumerate(ends):
            body = source[run.bodies["start"][i] : run.bodies["end"][i]].tobytes()
            first = end - int(run.bodies["n_records"][i])
            yield run.first + i, body + b"".join(spans[name][first:end].tobytes() for name in spans.dtype.names)
        done += len(ends)
    assert done == len(stored)


def check_all(n: int, seed: int, packers: tuple[str, ...], in_a_log: int) -> None:
    """Check all bodies; in_a_log: the first so many of each part, in a log."""
    drawn, out = draw(n, seed), Scratch()
    while part := list(islice(drawn, PART)):
        bodies = [body for body, _ in part]
        of_records = [(body, count) for body, count in part[:in_a_log] if count > 0]
        for packer in packers:
            check_alone(bodies, packer, out)
            check_in_a_log([body for body, _ in of_records], [count for _, count in of_records], packer)


@pytest.mark.slow
@pytest.mark.long
def test_random_bodies_are_read_as_by_the_twin():
    check_all(10_000, 1, tuple(PACKERS), in_a_log=500)


@pytest.mark.slow
def test_many_random_bodies_are_read_as_by_the_twin(request):
    """Try a million of them with `--attack-cases 1000000`."""
    seed = request.config.getoption("--attack-seed") + 1
    check_all(n_cases(request, FEW), seed, ONE_OF_EACH, in_a_log=200)


def test_other_decoder_reads_our_bodies():
    for body, _ in draw(3000, 3):
        size = len(body)
        assert zlib.decompress(compress(CODEC_GZIP, body), 31) == body
        assert zstandard.decompress(compress(CODEC_ZSTD, body), max_output_size=max(size, 1)) == body
        if size:
            assert pa.decompress(compress(CODEC_LZ4, body), size, "lz4", asbytes=True) == body
        at, packed, parts = 16, compress(CODEC_SNAPPY, body), []
        while at < len(packed):
            (block,) = struct.unpack_from(">i", packed, at)
            at += 4 + block
            room = min(1 << 15, size - sum(map(len, parts)))
            parts.append(pa.decompress(packed[at - block : at], room, "snappy", asbytes=True))
        assert b"".join(parts) == body


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("packer", ["gzip", "snappy", "snappy blocks", "lz4"])
def test_random_wrappers_are_opened(packer, magic):
    """Messages in wrappers: keys, values and offsets come out, and the checksums of the messages are seen to fit."""
    rng = random.Random(4)
    codec, pack = PACKERS[packer]
    held, stored, last = [], [], -1
    for _ in range(400):
        inner = [
            (b"%d" % rng.randrange(9), rng.randbytes(rng.choice((0, 1, 5, 30))))
            for _ in range(rng.choice((1, 1, 2, 5)))
        ]
        steps = [*accumulate(rng.choice((0, 1, 300)) if i == 0 else rng.choice((1, 50)) for i in range(len(inner)))]
        first = last + 1
        last = first + steps[-1]
        shift = first if magic == 0 else 0
        content = b"".join(
            message(magic, shift + at, k, v, timestamp=5) for at, (k, v) in zip(steps, inner, strict=True)
        )
        stored.append(message(magic, last, None, pack(content), timestamp=5, attributes=codec))
        held.append([(first + at, *record) for at, record in zip(steps, inner, strict=True)])
    raw = np.frombuffer(b"".join(stored), np.uint8)
    rows = np.zeros(len(stored), BATCH)
    rows["magic"], rows["attributes"], rows["records_count"], rows["base_offset"] = magic, codec, -1, -1
    rows["size"] = [len(batch) for batch in stored]
    rows["position"] = np.cumsum(rows["size"]) - rows["size"]
    rows["last_offset"] = [records[-1][0] for records in held]
    loader, seen = BodyLoader(max_batch_bytes=1 << 20), []
    chunk = Chunk(0, raw, rows, path="a.log")
    for run in loader.runs(chunk):
        for body in run.bodies:
            spans = run.spans[body["first_span"] : body["first_span"] + body["n_records"]]
            records = [run.scratch[span["rest"] : span["end"]].tobytes() for span in spans]
            seen.append([*zip((body["base_offset"] + spans["offset_delta"]).tolist(), records, strict=True)])
    wanted = [[(at, write(len(k)) + k + write(len(v)) + v + b"\0") for at, k, v in batch] for batch in held]
    assert seen == wanted
    for row, batch in zip(rows, held, strict=True):
        crc, valid = np.zeros(len(batch), np.uint32), np.zeros(len(batch), np.bool_)
        message_checksums(chunk, row, 1 << 20, crc, valid)
        assert valid.all() and crc.all()
