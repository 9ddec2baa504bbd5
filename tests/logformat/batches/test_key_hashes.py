"""Hashes of keys: those of OpenSSL's SipHash, in whatever company a key is hashed."""

from __future__ import annotations

import random
import struct
import subprocess
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.writing.encode import BatchOptions, encode_batches

pytestmark = pytest.mark.process  # openssl warns

SECRET = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
KEYS = [bytes(range(1, n + 1)) for n in (*range(34), 39, 40, 41, 55, 56, 63, 64, 65, 72, 200)]


def by_openssl(key: bytes) -> tuple[int, int]:
    hexkey = struct.pack("<QQ", *SECRET).hex()
    command = ["openssl", "mac", "-binary", "-macopt", f"hexkey:{hexkey}", "-macopt", "size:16", "SIPHASH"]
    return struct.unpack("<QQ", subprocess.run(command, input=key, capture_output=True, check=True).stdout)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def hashes() -> dict[bytes | None, tuple[int, int]]:
    return {None: (0, 0)} | {key: by_openssl(key) for key in KEYS}


def hash_pairs(log: bytes) -> list[tuple[int, int]]:
    loader, hash_rows = BodyLoader(max_batch_bytes=1 << 20, secret=SECRET), []
    for chunk in read_chunks(pa.BufferReader(log), "log", LogRange(0, len(log)), ChunkBuffer(), Tail()):
        wanted = np.ones(len(chunk.batches), np.bool_)
        for run in loader.runs(chunk, wanted):
            assert isinstance(run, Run)
            hash_rows += run.spans[["key_low", "key_high"]].tolist()
    return hash_rows


@pytest.mark.parametrize("lengths", ["all alike", "of one word", "all kinds"])
@pytest.mark.parametrize("codecs", [("none",), ("lz4",), ("none", "lz4", "none", "zstd")])
def test_every_key_is_hashed(
    lengths: str, codecs: tuple[str, ...], hashes: dict[bytes | None, tuple[int, int]]
) -> None:
    """In batches of one record and of hundreds, compressed and not in turn, with keys that are null between."""
    rng = random.Random(4)
    pool = {"all alike": KEYS[16:17], "of one word": [None, *KEYS[8:16]], "all kinds": [None, *KEYS]}[lengths]
    keys: list[bytes | None] = []
    log = b""
    for n in (1, 63, 64, 65, 1, 700, 128, 3, 60):
        part = [rng.choice(pool) for _ in range(n)]
        records = pa.record_batch(
            {
                "key": pa.array(part, pa.binary()),
                "value": pa.array([b"v"] * n, pa.binary()),
                "timestamp_ms": pa.array([5] * n, pa.int64()),
            }
        )
        log += encode_batches(records, len(keys), BatchOptions(codec=codecs[len(keys) % len(codecs)])).tobytes()
        keys += part
    assert hash_pairs(log) == [hashes[key] for key in keys]


def test_read_only_bytes_are_hashed(hashes: dict[bytes | None, tuple[int, int]]) -> None:
    """Its bytes reach the kernels as an array that is read only."""
    records = pa.record_batch(
        {"key": pa.array(KEYS[:3]), "value": pa.array(KEYS[:3]), "timestamp_ms": pa.array([5] * 3)}
    )
    raw = np.frombuffer(encode_batches(records, 0, BatchOptions()).tobytes(), np.uint8)
    wanted = LogRange(0, len(raw))
    (chunk,) = read_chunks(pa.BufferReader(raw.tobytes()), "log", wanted, ChunkBuffer(), Tail())
    loader = BodyLoader(max_batch_bytes=1 << 20, secret=SECRET)
    (run,) = loader.runs(replace(chunk, raw=raw))
    assert run.spans[["key_low", "key_high"]].tolist() == [hashes[key] for key in KEYS[:3]]
