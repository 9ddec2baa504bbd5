"""Leases of runs: the run that continues, and the lease of a killed run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastkey.jobs.errors import RunningError
from lastkey.jobs.store import leases
from lastkey.jobs.store.leases import EXPIRY_SECONDS, describe_conflicting_runs, hold_lease, wait_until_released
from lastkey.jobs.store.paths import RUNNING
from lastkey.udfs.storage import open_root
from tests.builders.faults import Fault, faults
from tests.builders.leases import KEYS, A, expire_leases, put_lease
from tests.builders.s3_server import BUCKET, s3_server

ROOT = Path(__file__).resolve().parents[3]
B, C = "b" * 32, "c" * 32
# Another process that holds a lease until its stdin ends
OTHER = f"""
import sys
from lastkey.jobs.store.leases import hold_lease
from lastkey.udfs.storage import open_root
with hold_lease(open_root(sys.argv[1]), {A!r}, {KEYS!r}, []):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def root(tmp_path):
    return open_root(str(tmp_path / "store"))


def files(root):
    folder = Path(root.full(RUNNING))
    return sorted(path.name for path in folder.glob("*.json")) if folder.exists() else []


def check_continues(root, notes=None):
    with hold_lease(root, B, KEYS, [] if notes is None else notes) as expired:
        assert f"{B}.json" in files(root)
        return [lease.run_id for lease in expired]


def check_refused(root, match="found a run on far", run_id=B):
    with pytest.raises(RunningError, match=match) as refused, hold_lease(root, run_id, KEYS, []):
        raise AssertionError
    assert f"{run_id}.json" not in files(root)
    return refused.value


def test_run_holds_its_lease_until_its_end(root):
    notes = []
    with hold_lease(root, A, KEYS, notes):
        assert files(root) == [f"{A}.json"]
        (sentence,) = describe_conflicting_runs(root, {("b", 0), ("z", 9)}, notes)
        assert f"(pid {os.getpid()}, since 20" in sentence and sentence.endswith("works on b-0")
        assert describe_conflicting_runs(root, {("z", 9)}, notes) == []
    assert files(root) == []
    assert notes == []


def test_a_run_that_fails_deletes_its_lease(root):
    with pytest.raises(KeyboardInterrupt), hold_lease(root, A, KEYS, []):
        raise KeyboardInterrupt
    assert files(root) == []


def test_a_lease_that_could_not_be_deleted_expires(tmp_path):
    with faults(tmp_path, Fault("delete", f"*/{A}.json", error="EIO")):
        root = open_root(str(tmp_path / "store"))
        with hold_lease(root, A, KEYS, []):
            pass
    assert files(root) == [f"{A}.json"]
    check_refused(root, match=f"pid {os.getpid()}")
    expire_leases(tmp_path / "store")
    assert check_continues(root) == [A]
    assert files(root) == []


def test_a_second_run_of_a_partition_is_refused_and_one_of_others_is_not(root):
    notes = []
    with hold_lease(root, A, KEYS, notes):
        with pytest.raises(RunningError) as refused, hold_lease(root, B, {("a", 1), ("c", 0)}, notes):
            raise AssertionError
        assert refused.value.exit_code == 4
        message = refused.value.line()
        assert "expected no other run at a-1, found a run on " in message
        assert f"pid {os.getpid()}" in message and "--wait" in message
        assert f"its lease expires {EXPIRY_SECONDS} seconds after the last renewal" in message
        assert refused.value.fields["run_id"] == A
        with hold_lease(root, C, {("a", 2), ("c", 0)}, notes):
            assert files(root) == [f"{A}.json", f"{C}.json"]
    assert notes == []


def test_lease_expires_if_not_renewed(root):
    path = put_lease(root, age_seconds=EXPIRY_SECONDS - 10)
    check_refused(root)
    assert path.exists()
    put_lease(root, age_seconds=EXPIRY_SECONDS + 1)
    assert describe_conflicting_runs(root, KEYS, []) == []
    assert path.exists()  # only a run that takes a lease deletes it
    assert check_continues(root) == [A]
    assert not path.exists()


def test_lease_expiry_is_independent_of_host_clocks(root):
    """A host's time is shown. A file time far in the future comes from a clock that was set back."""
    put_lease(root, since_ms=4_000_000_000_000)
    check_refused(root, match="since 2096-10-02")
    put_lease(root, age_seconds=10 - EXPIRY_SECONDS)
    check_refused(root)
    put_lease(root, age_seconds=-100_000)
    check_continues(root)


def test_a_killed_run_blocks_its_partitions_until_its_lease_expires(root):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, root.uri], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.kill()
        process.wait()
    check_refused(root, match=f"pid {process.pid}")
    expire_leases(Path(root.uri))
    assert check_continues(root) == [A]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"run_id": 1}', b'{"partitions": 7, "run_id": "x"}'], ids=repr
)
def test_an_unreadable_lease_is_a_note(root, data):
    put_lease(root).write_bytes(data)
    notes = []
    check_continues(root, notes)
    assert len(notes) == 1
    assert f"{A}.json: cannot read the lease of a run" in notes[0]


def test_damaged_lease_expires(root):
    put_lease(root, since_ms=10**30)
    notes = []
    check_continues(root, notes)
    assert "cannot read" in notes[0]
    put_lease(root, expiry_seconds=10**9, age_seconds=3601)
    check_continues(root)


def test_a_lease_that_cannot_be_written_is_a_note(root):
    Path(root.full("state")).mkdir(parents=True)
    Path(root.full(RUNNING)).write_text("no folder")
    notes = []
    with hold_lease(root, A, KEYS, notes):
        pass
    assert any("cannot write the lease of this run" in note for note in notes), notes


def test_lease_is_renewed_during_a_run(root, monkeypatch):
    monkeypatch.setattr(leases, "_RENEWAL_SECONDS", 0.0)
    deadline = time.monotonic() + 60
    with hold_lease(root, A, KEYS, []):
        for _ in range(3):
            Path(root.full(f"{RUNNING}/{A}.json")).unlink()
            while not files(root):
                assert time.monotonic() < deadline
    assert files(root) == []


def test_waiting_ends_when_the_lease_is_deleted_or_not_renewed(root, monkeypatch):
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.0)
    wait_until_released(root, A)  # there is no lease
    put_lease(root, expiry_seconds=0)
    wait_until_released(root, A)  # not renewed
    path = put_lease(root)
    wait_until_released(root, A, time.monotonic())  # out of time
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_released, root, A)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        path.unlink()
        waiting.result(60)


def test_size_of_a_renewed_lease_is_constant(root, monkeypatch):
    """A reader in a bucket requests the size first and would read only a part of a file that grew since."""
    sizes = []
    write = leases._write

    def watched(root, lease, notes):
        written = write(root, lease, notes)
        sizes.append(Path(root.full(f"{RUNNING}/{A}.json")).stat().st_size)
        return written

    monkeypatch.setattr(leases, "_write", watched)
    with hold_lease(root, A, KEYS, []):
        pass
    assert len(sizes) == 2 and len(set(sizes)) == 1


@pytest.mark.slow
def test_leases_in_a_bucket_exclude_other_runs():
    with s3_server():
        root, notes = open_root(f"{BUCKET}/store"), []
        with hold_lease(root, A, KEYS, notes):
            with pytest.raises(RunningError, match="no other run at a-1"), hold_lease(root, B, {("a", 1)}, notes):
                raise AssertionError
            with hold_lease(root, C, {("c", 0)}, notes):
                pass
        assert describe_conflicting_runs(root, KEYS, notes) == []
        put_lease(root)  # the lease of a killed run
        with pytest.raises(RunningError, match="found a run on far"), hold_lease(root, B, KEYS, notes):
            raise AssertionError
        put_lease(root, expiry_seconds=0)
        with hold_lease(root, B, KEYS, notes):
            pass
        assert notes == []
