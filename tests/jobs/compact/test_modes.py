"""File modes of a store: only the owner can read its logs, which hold keys and values."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.restore import job as restore
from lastkey.udfs.storage import make_private, open_root
from tests.builders.archives import COMPACT, Lab, only_input, put
from tests.builders.trees import files_in


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_umask_can_only_remove_permissions(tmp_path: Path, umask: int) -> None:
    make_private(open_root(str(tmp_path)), "a")
    assert _mode(tmp_path / "a") == 0o600 & ~umask


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("split", ["auto", "always"])
def test_logs_of_a_store_are_readable_by_their_owner_only(
    spark: Any, cases: Any, now_ms: int, tmp_path: Path, split: str
) -> None:
    lab = Lab(spark, tmp_path, {"defaults": COMPACT, "job": {"split.bytes": 1000, "split.by": split}})
    for name in ("few-keys", "idem-active"):
        put(only_input(cases[name]), lab.archive / f"{name}-0")
    assert lab.run(now_ms, sealed=True).exit_code == 0
    logs = files_in(lab.store / "segments", "*/*/*.log")
    others = [path for path in files_in(lab.store / "segments", "*/*/*") if path.suffix != ".log"]
    assert logs
    assert {_mode(path) for path in logs} == {0o600}
    usual = _mode(others[0])
    assert {_mode(path) for path in others} == {usual}
    restore.run(RestoreOptions(str(lab.store), str(tmp_path / "out")), Silent())
    assert {_mode(path) for path in files_in(tmp_path / "out", "*/*.log")} == {usual}
