"""Runs that announce themselves: who yields to whom, and what is left by those that died."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.errors import RunningError
from lastkey.jobs.store import announcements
from lastkey.jobs.store.announcements import announced, at_work, wait_until_gone
from lastkey.jobs.store.paths import RUNNING
from lastkey.udfs.storage import open_root
from tests.builders.announced import KEYS, A, elsewhere, own, put
from tests.builders.faults import Fault, faults
from tests.builders.s3_server import BUCKET, s3_server

ROOT = Path(__file__).resolve().parents[3]
B, C = "b" * 32, "c" * 32
# Another process that announces itself and ends when it is told to
OTHER = f"""
import sys
from lastkey.jobs.store.announcements import announced
from lastkey.udfs.storage import open_root
with announced(open_root(sys.argv[1]), {A!r}, {KEYS!r}, []):
    print("announced", flush=True)
    input()
"""


@pytest.fixture
def root(tmp_path):
    return open_root(str(tmp_path / "store"))


def files(root):
    folder = Path(root.full(RUNNING))
    return sorted(path.name for path in folder.glob("*.json")) if folder.exists() else []


def test_a_run_is_announced_as_long_as_it_lasts(root):
    notes = []
    with announced(root, A, KEYS, notes):
        assert files(root) == [f"{A}.json"]
        (said,) = at_work(root, {("b", 0), ("z", 9)}, notes)
        assert f"(pid {os.getpid()}, since 20" in said and said.endswith("works on b-0")
        assert at_work(root, {("z", 9)}, notes) == []
    assert files(root) == []
    assert notes == []


def test_one_that_this_process_could_not_take_back_counts_no_more(tmp_path):
    """Its run ended: the process goes on to another, as in a notebook."""
    with faults(tmp_path, Fault("delete", f"*/{A}.json", error="EIO")):
        root = open_root(str(tmp_path / "store"))
        with announced(root, A, KEYS, []):
            assert at_work(root, KEYS, [])
    assert files(root) == [f"{A}.json"]
    assert at_work(root, KEYS, []) == []
    with announced(root, B, KEYS, []):
        assert files(root) == [f"{B}.json"]


def test_it_goes_with_a_run_that_fails_too(root):
    with pytest.raises(KeyboardInterrupt), announced(root, A, KEYS, []):
        raise KeyboardInterrupt
    assert files(root) == []


def test_a_second_run_of_a_partition_is_refused_and_one_of_others_is_not(root):
    notes = []
    with announced(root, A, KEYS, notes):
        with pytest.raises(RunningError) as refused, announced(root, B, {("a", 1), ("c", 0)}, notes):
            raise AssertionError
        assert refused.value.exit_code == 4
        said = refused.value.line()
        assert "expected no other run at a-1, found a run on " in said
        assert f"pid {os.getpid()}" in said and "--wait" in said and "5 minutes" in said
        assert refused.value.fields["run_id"] == A
        with announced(root, C, {("a", 2), ("c", 0)}, notes):
            assert files(root) == [f"{A}.json", f"{C}.json"]
    assert notes == []


def test_a_run_on_another_host_counts_until_it_has_not_renewed_for_its_time(root):
    path = put(root, elsewhere(), age_seconds=290)
    with pytest.raises(RunningError, match="found a run on far"), announced(root, B, KEYS, []):
        raise AssertionError
    assert path.exists()
    put(root, elsewhere(), age_seconds=301)
    with announced(root, B, KEYS, []):
        assert files(root) == [f"{B}.json"]


def test_whose_clock_is_wrong_is_no_matter(root):
    """A host's time is shown, and decides nothing. A time far in the future comes from a clock that was set back."""
    put(root, elsewhere(since_ms=4_000_000_000_000))
    with pytest.raises(RunningError, match="since 2096-10-02"), announced(root, B, KEYS, []):
        raise AssertionError
    put(root, elsewhere(), age_seconds=-100)
    with pytest.raises(RunningError), announced(root, B, KEYS, []):
        raise AssertionError
    put(root, elsewhere(), age_seconds=-100_000)
    with announced(root, B, KEYS, []):
        pass


def test_of_two_that_announce_at_once_one_goes_on(root):
    """The earlier one by the store's clock, unless the other one has decided already."""
    still_looking = replace(elsewhere(), decided=False)
    put(root, still_looking, age_seconds=1)
    with pytest.raises(RunningError), announced(root, B, KEYS, []):
        raise AssertionError
    put(root, still_looking, age_seconds=-1)
    with announced(root, B, KEYS, []):
        pass
    put(root, elsewhere(), age_seconds=-1)
    with pytest.raises(RunningError), announced(root, B, KEYS, []):
        raise AssertionError


def test_a_run_of_this_machine_that_is_gone_is_known_at_once(root):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, root.uri], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(RunningError), announced(root, B, KEYS, []):
            raise AssertionError
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not buried
        with announced(root, B, KEYS, []):
            assert files(root) == [f"{B}.json"]
    put(root, replace(own(), started="1"))  # our number was another process's
    with announced(root, B, KEYS, []):
        assert files(root) == [f"{B}.json"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"run_id": 1}', b'{"partitions": 7, "run_id": "x"}'], ids=repr
)
def test_what_cannot_be_read_is_a_note(root, data):
    put(root, elsewhere()).write_bytes(data)
    notes = []
    with announced(root, B, KEYS, notes):
        pass
    assert len(notes) == 1
    assert f"{A}.json: an announcement of a run that cannot be read" in notes[0]


def test_a_time_that_is_none_and_one_that_never_ends_block_nobody(root):
    put(root, elsewhere(since_ms=10**30))
    notes = []
    with announced(root, B, KEYS, notes):
        assert "cannot be read" in notes[0]
    put(root, elsewhere(expires_seconds=10**9), age_seconds=3601)
    with announced(root, B, KEYS, []):
        pass


def test_what_cannot_be_written_is_a_note(root):
    Path(root.full("state")).mkdir(parents=True)
    Path(root.full(RUNNING)).write_text("no folder")
    notes = []
    with announced(root, A, KEYS, notes):
        pass
    assert any("other runs cannot see this one" in note for note in notes), notes


def test_an_announcement_is_renewed(root, monkeypatch):
    monkeypatch.setattr(announcements, "_RENEW_SECONDS", 0.0)
    deadline = time.monotonic() + 60
    with announced(root, A, KEYS, []):
        for _ in range(3):
            Path(root.full(f"{RUNNING}/{A}.json")).unlink()
            while not files(root):
                assert time.monotonic() < deadline
    assert files(root) == []


def test_who_waits_goes_on_when_it_is_gone_dead_or_silent(root, monkeypatch):
    monkeypatch.setattr(announcements, "_POLL_SECONDS", 0.0)
    wait_until_gone(root, A)  # never there
    path = put(root, elsewhere(expires_seconds=0))
    wait_until_gone(root, A)  # says nothing more
    put(root, replace(own(), started="1"))
    wait_until_gone(root, A)  # its process is gone
    put(root, elsewhere())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_gone, root, A)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        path.unlink()
        waiting.result(60)


def test_one_that_is_renewed_keeps_its_size(tmp_path):
    """A reader in a bucket asks for the size first, and would find a longer one cut off."""
    root, sizes = open_root(str(tmp_path)), set()
    for decided in (False, True):
        announcements._write(root, replace(elsewhere(), decided=decided))
        sizes |= {path.stat().st_size for path in tmp_path.rglob("*.json")}
    assert len(sizes) == 1


@pytest.mark.slow
def test_in_a_bucket_too():
    with s3_server():
        root, notes = open_root(f"{BUCKET}/store"), []
        with announced(root, A, KEYS, notes):
            with pytest.raises(RunningError, match="no other run at a-1"), announced(root, B, {("a", 1)}, notes):
                raise AssertionError
            with announced(root, C, {("c", 0)}, notes):
                pass
        assert at_work(root, KEYS, notes) == []
        put(root, elsewhere())  # one that died
        with pytest.raises(RunningError, match="found a run on far"), announced(root, B, KEYS, notes):
            raise AssertionError
        put(root, elsewhere(expires_seconds=0))
        with announced(root, B, KEYS, notes):
            pass
        assert notes == []
