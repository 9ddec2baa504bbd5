"""Runs whose clock was wrong, and those after them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import VacuumOptions
from lastkey.jobs.store import table, writing
from lastkey.jobs.store.old_versions import forget
from lastkey.jobs.store.tables import open_state
from tests.builders.damage import START_MS, build
from tests.builders.stores import StoreMaker, make_commit, run_id
from tests.builders.trees import read_tree

pytestmark = pytest.mark.slow  # whole runs

DAY_MS, YEAR_MS = 86_400_000, 365 * 86_400_000
_TOML = """
[defaults]
"cleanup.policy" = "compact,delete"
"min.cleanable.dirty.ratio" = 0.0
"retention.ms" = 2592000000
"""


@pytest.mark.parametrize("wrong_ms", [START_MS + YEAR_MS, 4_200_000_000_000, 100_000_000_000])
def test_run_with_a_wrong_clock_does_not_block_later_runs(
    tmp_path: Path, wrong_ms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clocks one year ahead, after 2038, and in 1973. Retention removes the records that are old by that clock; a
    rollback restores them.
    """
    part = build(tmp_path / "archive")
    (tmp_path / "settings.toml").write_text(_TOML)
    store = str(part.store)

    def run(*words: str) -> dict[str, Any]:
        code = main([*words, "--store", store, "--json"])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == 0, report
        return report

    def compact(now_ms: int, *more: str) -> dict[str, bytes]:
        run("compact", str(part.root), "--config", str(tmp_path / "settings.toml"), "--now", str(now_ms), *more)
        run("verify")
        (row,) = open_state(store).checkpoints().values()
        files = read_tree(part.store / row.folder)
        return {name: data for name, data in files.items() if name.endswith(".log")}

    right_ms = START_MS + DAY_MS
    whole = compact(right_ms)
    wrong = compact(wrong_ms, "--force")
    assert (wrong == whole) == (wrong_ms < right_ms)
    assert compact(right_ms + DAY_MS, "--force") == wrong
    run("rollback", "--generation", "1")
    assert compact(right_ms + 2 * DAY_MS, "--force") == whole != {}


def _ahead(monkeypatch: pytest.MonkeyPatch, years: int) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + years * YEAR_MS * 1_000_000)


def test_vacuum_with_a_clock_ahead_deletes_no_recent_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the store's times: what was replaced a moment ago may be read, and a run may be at work."""
    maker = StoreMaker(tmp_path)
    for generation in (1, 2, 3):
        maker.generation("t", 0, generation, {0: b"a"})
    maker.age(400, *(maker.run_folder("t", 0, generation) for generation in (1, 2)))
    before = read_tree(maker.store / "segments")
    _ahead(monkeypatch, 1)
    report = vacuum.run(VacuumOptions(str(maker.store)), Silent())
    removed = before.keys() - read_tree(maker.store / "segments").keys()
    assert {path.split("/")[1].split("-")[0] for path in removed} == {"1"}  # the second was replaced a moment ago
    assert "this machine's clock is 8,760 hours ahead of the store's; ages are by the store's" in report.notes
    assert not list((maker.store / "state").glob(".probe*"))


@pytest.mark.parametrize("years", [-20, 0, 1])
def test_tables_keep_files_that_are_recent_by_the_time_of_the_store(
    tmp_path: Path, years: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, and data files of a version that was replaced, or that a run has written and not committed yet."""
    state = open_state(str(tmp_path))
    for generation in range(1, 45):
        writing.commit_wave(state, [make_commit(0, generation, run_id(generation), parent=run_id(generation - 1))])
    (tmp_path / "state" / "compaction_checkpoints" / "not-committed-yet.parquet").write_bytes(b"")
    before = {path for path in (tmp_path / "state").rglob("*") if path.is_file()}
    _ahead(monkeypatch, years)
    head = table.head(state.root, "compaction_checkpoints")
    forget(state.root, head.folder, head.files())
    assert {path for path in (tmp_path / "state").rglob("*") if path.is_file()} >= before


def test_files_with_a_future_time_are_kept_and_block_no_run(tmp_path: Path) -> None:
    """A clock that was set right again: their age is unknown."""
    maker = StoreMaker(tmp_path)
    for generation in (1, 2, 3):
        maker.generation("t", 0, generation, {0: b"a"})
    maker.age(400, *(maker.run_folder("t", 0, generation) for generation in (1, 2, 3)))
    later = time.time() + 10 * YEAR_MS / 1000
    for path in maker.run_folder("t", 0, 1).iterdir():
        os.utime(path, (later, later))
    vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert maker.run_folder("t", 0, 1).exists()
    assert not maker.run_folder("t", 0, 2).exists()
    writing.commit_wave(maker.state, [make_commit(0, 4, run_id(4), parent=run_id(3))])
