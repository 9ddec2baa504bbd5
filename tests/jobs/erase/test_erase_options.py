"""Ways to tell `erase` what to erase: keys, their HMACs, a key for HMACs that can be read once; the Python API."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

import lastkey
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import TopicFilter
from tests.builders.erasures import SECRET, made, places_of, table_of, vacuumed

pytestmark = pytest.mark.slow

T = TopicFilter(("t",))


def hmac_of(key: bytes) -> str:
    return hmac.digest(SECRET, key, "sha256").hex()


def test_the_key_is_read_once(tmp_path: Path) -> None:
    """So it may be a pipe, as of a program that fetches it."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    with piped(SECRET) as pipe:
        assert world.erase("ann", hmac_key=pipe).exit_code == 0
    world.topic_id = UUID(int=5)
    world.write()
    with piped(SECRET) as pipe:
        assert world.compact(reset=T, hmac_key=pipe).exit_code == 0
    world.bound([b"ann"])
    assert world.judge() == ""


@contextmanager
def piped(data: bytes) -> Iterator[str]:
    """Yield a path of which data can be read once."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    try:
        yield f"/dev/fd/{read}"
    finally:
        os.close(read)


def test_keys_by_their_hashes(tmp_path: Path) -> None:
    """As the table names them. What is searched and noted afterwards is the same as for the keys themselves."""
    long = "k" * 200
    world = made(tmp_path, f"ann=1 bob=1 =1 | {{codec=zstd}} ann=2 {long}=1", "cem=1 ann=-")
    assert world.erase("ann", dry_run=True).erasure
    hashes = tuple(hmac_of(key) for key in (b"ann", long.encode()))
    report = world.erase(key_hash=hashes)
    assert (report.exit_code, report.result, report.n_keys) == (0, "older", 2)
    assert [r.key for r in world.current()] == [b"bob", b"", b"cem"]
    (row,) = table_of(world.lab.store)
    assert tuple(json.loads(row["keys"])) == hashes
    vacuumed(world)
    assert places_of([b"ann", long.encode()], world.lab.store) == []
    assert world.erase(key_hash=hashes, check=True).result == "gone"  # the archive still tells what they are
    assert world.erase("ann", long, check=True).erasure == report.erasure


def test_a_hash_that_no_key_has(tmp_path: Path) -> None:
    """It may be of another HMAC key: it is never said to be gone."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    for wrong in (hmac_of(b"ann")[:-2], "x" * 64, ""):
        with pytest.raises(UsageError, match="--key-hash, number 1: expected the 64 hex digits"):
            world.erase(key_hash=(wrong,))
    with pytest.raises(UsageError, match=f"found no key with #{hmac_of(b'eve')[:16]}"):
        world.erase(key_hash=(hmac_of(b"eve"),))
    report = world.erase(key_hash=(hmac_of(b"eve"), hmac_of(b"ann").upper()))
    assert (report.exit_code, report.result) == (3, "unknown")
    assert f"found no key with #{hmac_of(b'eve')[:16]}" in report.to_text()
    assert [r.key for r in world.current()] == [b"bob", b"cem"]
    assert table_of(world.lab.store)[-1]["result"] == "unknown"
    assert world.erase("bob", key_hash=(hmac_of(b"cem"),)).exit_code == 0
    assert world.current() == []


def test_the_python_api(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    report = lastkey.erase(world.lab.store, world.hmac_key, key=["ann", "bob"], by="a letter", config=world.config)
    assert (report.exit_code, report.result, report.n_keys) == (0, "older", 2)
    assert isinstance(report, lastkey.EraseReport)
    assert [r.key for r in world.current()] == [b"cem"]
    assert table_of(world.lab.store)[0]["who"] == "a letter"
    assert lastkey.erase(world.lab.store, world.hmac_key, key="ann", check=True, config=world.config).exit_code == 3
    with pytest.raises(TypeError, match="key: expected keys as text, or several of them"):
        lastkey.erase(world.lab.store, world.hmac_key, key=[b"ann"])


def test_a_key_in_the_store(tmp_path: Path) -> None:
    """There it would tell everybody what the digests hide."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    (world.lab.store / "hmac.key").write_bytes(SECRET)
    with pytest.raises(UsageError, match="--hmac-key"):
        world.erase("ann", hmac_key=str(world.lab.store / "hmac.key"))
    assert not (world.lab.store / "erasures").exists()
