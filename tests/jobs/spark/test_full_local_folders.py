"""Spark's own folders on a full disk: what the JVM and its Python workers make and shuffle there."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.store.tables import open_state
from tests.attack.full_disk import own_mounts
from tests.attack.preload import Control, Order, library
from tests.attack.summary import tell
from tests.builders.damage import NOW_MS, build
from tests.builders.trees import read_tree, tree

pytestmark = pytest.mark.slow  # sessions in processes of their own

_ROOT = Path(__file__).resolve().parents[3]
_TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
[job]
"split.by" = "{split}"
"split.bytes" = 500
"engine" = "{engine}"
"""


def test_full_local_folder_ends_a_run_and_the_next_run_succeeds(tmp_path: Path) -> None:
    """Full from the start, where Spark makes folders; and later, where it writes what it shuffles."""
    part = build(tmp_path / "archive")
    for split, engine in (("always", "spark"), ("none", "threads")):
        text = _TOML.format(split=split, engine=engine)
        (tmp_path / f"{split}.toml").write_text(text)
    local = tmp_path / "local"
    local.mkdir()
    before = tree(part.root)

    def compact(store: Path, split: str) -> tuple[int, dict[str, Any]]:
        words = ["--conf", f"spark.local.dir={local}", "compact", str(part.root), "--store", str(store)]
        words += ["--config", str(tmp_path / f"{split}.toml"), "--now", str(NOW_MS), "--json"]
        completed = subprocess.run(
            [sys.executable, "-m", "lastkey", *words], env=environment, cwd=_ROOT, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert tree(part.root) == before
        assert "please report" not in completed.stderr, completed.stderr
        return completed.returncode, json.loads(completed.stdout)

    with library(tmp_path) as preloaded:
        environment = Control.environment(preloaded, tmp_path / "control")
        control = Control(tmp_path / "control", local)
        for operation, kind in (("mkdir", "JvmEndedError"), ("write", "DiskFullError")):
            control.begin(Order(operation, "*", 1, "error", errno.ENOSPC, times=-1), everyone=True)
            code, report = compact(part.store, "always")
            control.end()
            assert control.done > 0
            assert (code, report["error"]["kind"]) == (5, kind), report
            assert kind == "DiskFullError" or "spark.local.dir" in report["error"]["hint"]
            assert not open_state(str(part.store)).checkpoints()
            assert not list(part.store.glob("segments/*/*"))
        assert compact(part.store, "always")[0] == 0
        assert compact(tmp_path / "undisturbed", "none")[0] == 0
    assert _logs(part.store) == _logs(tmp_path / "undisturbed") != {}


def _logs(store: Path) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: data for path, data in read_tree(store).items() if path.endswith(".log")}


@pytest.mark.attack
@pytest.mark.parametrize(("left", "kind"), [("nr_inodes=1", "JvmEndedError"), ("size=12k", "DiskFullError")])
def test_full_local_disk_ends_a_run_and_the_next_run_succeeds(
    tmp_path: Path, request: pytest.FixtureRequest, left: str, kind: str
) -> None:
    """A file system without space for a folder, and one with three pages."""
    within, refused = own_mounts()
    if refused:
        tell(request, f"full disk, spark.local.dir: skipped: {refused}")
        pytest.skip(refused)
    part = build(tmp_path / "archive")
    (tmp_path / "always.toml").write_text(_TOML.format(split="always", engine="spark"))
    local = tmp_path / "local"
    local.mkdir()
    before = tree(part.root)
    words = ["--conf", f"spark.local.dir={local}", "compact", str(part.root), "--store", str(part.store)]
    words += ["--config", str(tmp_path / "always.toml"), "--now", str(NOW_MS), "--json"]
    mount = f'mount -t tmpfs -o {left} none {shlex.quote(str(local))} && exec "$@"'
    command = [*within, "sh", "-c", mount, "sh", sys.executable, "-m", "lastkey", *words]
    completed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert "please report" not in completed.stderr, completed.stderr
    error = json.loads(completed.stdout)["error"]
    assert (completed.returncode, error["kind"]) == (5, kind), error
    assert str(local) in error["message"] or "spark.local.dir" in error["hint"], error
    assert tree(part.root) == before
    assert not open_state(str(part.store)).checkpoints()
    tell(request, f"full disk, spark.local.dir with {left}: reported")
