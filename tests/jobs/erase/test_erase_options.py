"""Inputs of `erase`: keys, an HMAC key from a source that can be read once; the Python API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

import lastkey
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import TopicFilter
from tests.builders.erasures import SECRET, erasure_rows, made

pytestmark = pytest.mark.slow

T = TopicFilter(("t",))


def test_hmac_key_file_is_read_once(tmp_path: Path) -> None:
    """The key file is read once, so it may be a pipe from a program that fetches the key."""
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


def test_python_api_erases_keys(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    report = lastkey.erase(world.lab.store, world.hmac_key, key=["ann", "bob"], by="a letter", config=world.config)
    assert (report.exit_code, report.result, report.n_keys) == (0, "vacuum_needed", 2)
    assert isinstance(report, lastkey.EraseReport)
    assert [r.key for r in world.current()] == [b"cem"]
    assert erasure_rows(world.lab.store)[0]["who"] == "a letter"
    assert lastkey.erase(world.lab.store, world.hmac_key, key="ann", check=True, config=world.config).exit_code == 3
    with pytest.raises(TypeError, match="key: expected keys as text, or several of them"):
        lastkey.erase(world.lab.store, world.hmac_key, key=[b"ann"])


def test_hmac_key_file_in_the_store_is_refused(tmp_path: Path) -> None:
    """A salt in the store would reveal the keys that the digests hide."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    (world.lab.store / "hmac.key").write_bytes(SECRET)
    with pytest.raises(UsageError, match="--hmac-key"):
        world.erase("ann", hmac_key=str(world.lab.store / "hmac.key"))
    assert not (world.lab.store / "erasures").exists()
