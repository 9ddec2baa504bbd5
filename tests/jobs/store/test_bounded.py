"""State stays as large as it is, whatever number of runs: by a clock that is told, and file times that are set back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.errors import ConflictError
from jobs.store import history, table
from jobs.store.old_versions import forget
from jobs.store.paths import parse_run_folder
from jobs.store.rows import Checkpoint, RunRow, histories
from jobs.store.table import Change
from jobs.store.tables import State
from tests.builders.stores import make_commit, row, run_id
from udfs.storage import Root, open_root

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def _back(folder: Path, hours: float) -> None:
    """Every file becomes older."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            _back(Path(entry.path), hours)
        else:
            at = entry.stat().st_mtime_ns - int(hours * HOUR_MS * 1_000_000)
            os.utime(entry.path, ns=(at, at))


def _run(state: State, generation: int, now_ms: int, anew: bool = False) -> None:
    made = make_commit(0, generation, run_id(generation), run_id(generation - 1) if generation > 1 else None)
    state.now_ms = lambda: now_ms
    state.commit_wave([replace(made, run=replace(made.run, started_ms=now_ms, anew=anew))])


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "state").rglob("*"))


@pytest.mark.slow
def test_a_thousand_runs_leave_as_much_as_three_hundred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run every six hours. Generation 4 is there, and a reset came after it; nothing else has files."""
    (tmp_path / f"segments/t-0/4-{run_id(4)}").mkdir(parents=True)
    seen = {}
    for generation in range(1, 1001):
        state = State(open_root(str(tmp_path)))
        _run(state, generation, generation * 6 * HOUR_MS, anew=generation == 5)
        _back(tmp_path / "state", 6)
        if generation in (300, 1000):
            seen[generation] = _files(tmp_path)
    state = State(open_root(str(tmp_path)))
    chain = state.history("t", 0)
    numbers = [run.generation_after for run in chain]
    assert numbers[-2:] == [5, 4]
    assert numbers[:-2] == list(range(1000, 1000 - len(numbers) + 2, -1))
    assert 4 * history.KEEP_DAYS <= len(numbers) <= 4 * history.KEEP_DAYS + 70
    assert len(state.manifest("t", 0, 4)) == 2
    assert len(state.manifest("t", 0)) == 2
    assert abs(seen[1000] - seen[300]) < 200
    assert seen[1000] < 600
    for name in ("compaction_checkpoints", "log_segments", "cleaner_runs"):
        logs = list((tmp_path / f"state/{name}/_delta_log").glob("*.json"))
        assert len(logs) < 4 * 7 + 21 + 21, name


def _change(root: Root, i: int) -> None:
    new = pa.table({"n": [i]})
    table.swap(root, "t", new.schema, lambda version: Change(added=[new], removed=version.files()))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Fifty commits of a table, which is a day older after each."""
    root = open_root(str(tmp_path))
    for i in range(50):
        _change(root, i)
        _back(tmp_path, 24)
    return tmp_path


def test_what_a_week_needs_stays(old: Path) -> None:
    log = sorted(path.name for path in (old / "state/t/_delta_log").iterdir())
    commits = [int(name[:20]) for name in log if name.endswith(".json")]
    assert commits == list(range(20, 50))  # version 40 made the last checkpoint; 20 was the newest of a week before
    assert [int(name[:20]) for name in log if "checkpoint.parquet" in name] == [20, 40]
    assert len(list((old / "state/t").glob("*.parquet"))) == 50 - 19  # version 20 removed that of 19, and is on record
    root = open_root(str(old))
    head = table.head(root, "t")
    assert head.number == 49
    for number in range(20, 50):  # each version that is on record can still be read
        head.delta.load_as_version(number)
        assert head.delta.version() == number


@pytest.mark.parametrize("end", [0, 100])
def test_a_torn_checkpoint_is_no_loss_after_that(old: Path, end: int) -> None:
    path = old / f"state/t/_delta_log/{40:020}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:end])
    root = open_root(str(old))
    assert table.head(root, "t").number == 49
    _change(root, 50)
    assert table.head(root, "t").number == 50


def test_young_files_stay_whatever_their_number(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    for i in range(45):
        _change(root, i)
    before = {path: path.stat().st_mtime for path in (tmp_path / "state").rglob("*")}
    head = table.head(root, "t")
    forget(root, head.folder, head.files())
    assert {path: path.stat().st_mtime for path in (tmp_path / "state").rglob("*")} == before
    assert len(list(table.marks(head, -1))) == 0  # every commit is there


def test_a_run_that_began_before_what_went_is_told(old: Path) -> None:
    head = table.head(open_root(str(old)), "t")
    assert list(table.marks(head, 19)) == []
    with pytest.raises(ConflictError, match="it was cleaned away"):
        list(table.marks(head, 18))
    assert table.before_record(head) == 19


# -- which rows of history stay


def _checkpoints(generation: int) -> dict[tuple[str, int], Checkpoint]:
    return {("t", 0): row(Checkpoint, topic="t", partition=0, generation=generation, run_id=run_id(generation))}


def _chain(upto: int, anew: int = 0) -> list[RunRow]:
    return [
        row(
            RunRow, topic="t", partition=0, run_id=run_id(n), generation_after=n, generation_before=n - 1,
            parent_run_id=run_id(n - 1) if n > 1 else None, started_ms=n * DAY_MS, anew=n == anew,
        )
        for n in range(1, upto + 1)
    ]  # fmt: skip


def _needed(runs: list[RunRow], now_day: int, *folders: str) -> list[int]:
    chains = histories(_checkpoints(100), runs)
    there = [(name, made) for name in folders if (made := parse_run_folder(name)) is not None]
    found = history.needed(_checkpoints(100), chains, lambda topic, partition: there, now_day * DAY_MS)
    return sorted(number for *_, number, _ in found)


def test_what_is_old_and_far_behind_goes() -> None:
    assert _needed(_chain(100), 100) == list(range(70, 91))  # above 90 nothing is asked
    assert _needed(_chain(100), 1000) == []


def test_a_generation_that_is_there_stays_and_so_does_a_reset_after_one() -> None:
    assert _needed(_chain(100), 1000, f"7-{run_id(7)}", f"8-{run_id(9)}", "mine") == [7]
    assert _needed(_chain(100, anew=8), 1000, f"7-{run_id(7)}") == [7, 8]
    assert _needed(_chain(100, anew=8), 1000) == []


def test_rows_of_runs_that_died_go() -> None:
    died = replace(_chain(100)[6], run_id=run_id(7, 9))
    assert _needed([*_chain(100), died], 1000, f"7-{run_id(7, 9)}") == []
