"""Flushes of large logs that continue while a task works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lastkey.udfs.compact.output.generation import remove_folder
from lastkey.udfs.compact.output.segment_output import make_generation_folder
from lastkey.udfs.storage import Root, flush_whole, flushing, open_root, put_file
from tests.builders.damage import build
from tests.builders.faults import Fault, faults, happened

MOST_OPEN = 5  # logs of a folder: four flushes that continue, and the one of the block


@pytest.fixture
def root(tmp_path: Path) -> Root:
    for folder in ("one", "other"):
        (tmp_path / "store" / folder).mkdir(parents=True)
        for number in range(12):
            (tmp_path / "store" / folder / f"{number}.log").write_bytes(b"x")
    return open_root(str(tmp_path / "store"))


@contextmanager
def late_flushes() -> Iterator[Event]:
    """Delay every flush until its result is requested or this event is set."""
    waited, fsync, result = Event(), os.fsync, Future.result

    def late_fsync(descriptor: int) -> None:
        assert waited.wait(60)
        fsync(descriptor)

    def patched_result(self: Future[Any], timeout: float | None = None) -> Any:
        waited.set()
        return result(self, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", late_fsync)
        patch.setattr(Future, "result", patched_result)
        yield waited


def n_open(root: Root, folder: str) -> int:
    """Return how many files of a folder this process holds open."""
    n_descriptors = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            n_descriptors += str(descriptor.readlink()).startswith(root.full(folder) + "/")
        except FileNotFoundError:  # the listing's own
            continue
    return n_descriptors


def test_slow_disk_does_not_exhaust_file_descriptors(root: Root) -> None:
    """A task that writes a thousand large logs faster than they are flushed would have a thousand files open."""
    most = 0
    with late_flushes():
        for number in range(12):
            with flushing(root, f"one/{number}.log"):
                most = max(most, n_open(root, "one"))
        flush_whole(root, "one")
    assert most == MOST_OPEN
    assert n_open(root, "one") == 0


def test_late_flush_failure_is_reported_once_for_its_folder(root: Root, tmp_path: Path) -> None:
    with faults(tmp_path, Fault("fsync", root.full("one/3.log"), error="EIO")):
        with late_flushes() as waited:
            for folder in ("one", "other"):
                with flushing(root, f"{folder}/3.log"):
                    pass
            assert not waited.is_set()  # both blocks have ended, and neither flush has
            flush_whole(root, "other")
            with pytest.raises(OSError, match=r"3\.log"):
                flush_whole(root, "one")
        assert happened(tmp_path) == [1]
        flush_whole(root, "one")


def test_flush_failure_of_a_deleted_folder_is_not_reported_for_its_successor(tmp_path: Path) -> None:
    """A run by yield starts over in the same folder if keys were lost."""
    plan = build(tmp_path / "archive").plan()
    store = make_generation_folder(plan)
    with faults(tmp_path, Fault("fsync", f"{plan.run.store_uri}/*.log", error="EIO")):
        put_file(store, f"{plan.run.folder}/1.log", b"x")
        with flushing(store, f"{plan.run.folder}/1.log"):
            pass
        remove_folder(plan)
        assert n_open(store, plan.run.folder) == 0
        put_file(make_generation_folder(plan), f"{plan.run.folder}/1.log", b"x")
        flush_whole(store, plan.run.folder)
    assert happened(tmp_path) == [1]
