"""The named steps at which tests stop a run: each is reached, in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import get_args

import pytest

from lastkey.udfs.steps import Stage
from tests.builders.erasures import NOW, Erasures
from tests.builders.folders import archived_at, make_plan
from tests.builders.logs import write_partition
from tests.builders.reindexed import TEXT
from tests.builders.reindexed import run as reindex
from tests.builders.splits import compact_in_blocks
from tests.builders.steps import STEPS, listening
from tests.builders.trees import files_in
from tests.reference.cleaner import Settings

ROOT = Path(__file__).resolve().parents[2]


def reached(work: Callable[[], object]) -> list[str]:
    """Return the steps that some work reaches; several times in a row count once."""
    steps: list[str] = []
    with listening(steps.append):
        work()
    return [name for name, _ in groupby(steps)]


def test_each_step_is_reported_by_the_product_and_used_by_a_test() -> None:
    product = "".join(path.read_text() for room in ("jobs", "udfs") for path in files_in(ROOT / room, "**/*.py"))
    assert {*re.findall(r'\bstep\("(.+?)"\)', product), *get_args(Stage)} == STEPS
    tests = "".join(path.read_text() for path in files_in(ROOT / "tests", "**/*.py") if path != Path(__file__))
    assert [name for name in sorted(STEPS) if f'"{name}"' not in tests] == []


def test_compaction_and_erasure_report_their_steps(tmp_path: Path) -> None:
    world = Erasures(tmp_path)
    write_partition(world.lab.archive / "t-0", "ann=1 bob=1 || cem=1 | ann=2")
    commit = ["rows written", "table committed"]
    run = [
        "partitions planned", "wave planned", "segments scanned", "log written", "read back", "generation written",
        "partition done", "manifests written", *commit, "history appended", *commit, "states set", *commit, *commit,
    ]  # fmt: skip
    assert reached(world.compact) == run
    steps = reached(lambda: world.erase("ann"))
    assert [name for name in steps if name not in run] == [
        "erasure written", "keys erased", "places searched",
        "folders listed", "folders chosen",  # to tell what a vacuum would delete
    ]  # fmt: skip
    assert steps[0] == "erasure written"
    ends = ["keys erased", "places searched", "folders listed", "folders chosen", *commit]  # the row of the run
    assert steps[steps.index("keys erased") :] == ends


def test_tasks_of_a_large_partition_report_their_steps(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", "ann=1 bob=1 || cem=1 | ann=2 || dan=1 || bob=2")
    plan = make_plan(archived_at(tmp_path, "t-0"), tmp_path / "store", Settings(), now_ms=NOW, log_start_offset=0)
    tasks = reached(lambda: compact_in_blocks(plan))
    stages = ["walk", "resolve", "log written", "read back", "rewrite", "generation written"]
    assert list(dict.fromkeys(tasks)) == stages


@pytest.mark.parametrize("mode", ["in_place", "output"])
def test_reindex_reports_its_steps(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "archive"
    write_partition(root / "t-0", TEXT)
    (root / ".lock").write_bytes(b"")
    for path in (root / "t-0").glob("*.index"):
        path.write_bytes(b"\1" * 11)
    steps = reached(lambda: reindex(root, mode))
    file = ["side file written", "side file flushed", "side file checked", "side file replaced"]
    assert steps[: len(file)] == (file if mode == "in_place" else ["side file written", *steps[1:4]])
    assert [name for name in steps if name not in file] == ["segments reindexed", "partition reindexed"]
