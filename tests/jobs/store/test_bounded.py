"""The size of the state is bounded for any number of runs: with a given clock, and with modified file times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lastkey.jobs.errors import ConflictError
from lastkey.jobs.store import history, table, writing
from lastkey.jobs.store.history import job_rows
from lastkey.jobs.store.old_versions import forget
from lastkey.jobs.store.paths import parse_run_folder
from lastkey.jobs.store.rows import Checkpoint, JobRow, RunRow, runs_to_arrow
from lastkey.jobs.store.table import Change
from lastkey.jobs.store.tables import State
from lastkey.jobs.store.writing import append_job_rows
from lastkey.udfs.storage import Root, open_root
from tests.builders.stores import make_commit, manifest_segments, row, run_id
from tests.builders.trees import make_older

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def _run(state: State, generation: int, now_ms: int) -> None:
    made = make_commit(0, generation, run_id(generation), run_id(generation - 1) if generation > 1 else None)
    state.now_ms = lambda: now_ms
    writing.commit_wave(state, [replace(made, run=replace(made.run, started_ms=now_ms))])


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "state").rglob("*"))


WHOLE_CYCLE = 64  # runs, after which the files of a history are joined again; a checkpoint comes every 20 commits


@pytest.mark.slow
def test_state_size_is_constant_after_some_months(tmp_path: Path) -> None:
    """A run a day, so that 112 are past every limit. Generation 4 is there; nothing else has files."""
    (tmp_path / f"segments/t-0/4-{run_id(4)}").mkdir(parents=True)
    files = []
    for generation in range(1, 241):
        state = State(open_root(str(tmp_path)))
        _run(state, generation, generation * DAY_MS)
        make_older(tmp_path / "state", 24)
        files.append(_files(tmp_path))
    before, after = max(files[-2 * WHOLE_CYCLE : -WHOLE_CYCLE]), max(files[-WHOLE_CYCLE:])
    assert after <= before + 20
    state = State(open_root(str(tmp_path)))
    chain = state.histories()["t", 0]
    numbers = [run.generation_after for run in chain]
    assert numbers[-1] == 4
    assert numbers[:-1] == list(range(240, 240 - len(numbers) + 1, -1))
    assert history.KEEP_DAYS <= len(numbers) <= history.KEEP_DAYS + 70
    assert len(manifest_segments(state, "t", 0)) == 2
    for name in ("compaction_checkpoints", "cleaner_runs"):
        logs = list((tmp_path / f"state/{name}/_delta_log").glob("*.json"))
        assert len(logs) < 7 + 21 + 21, name


@pytest.mark.slow
def test_state_size_of_idle_runs_is_constant_after_some_months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEEP_JOBS", 30)
    files = []
    for night in range(200):
        state = State(open_root(str(tmp_path)))
        append_job_rows(state, [row(JobRow, run_id=run_id(night), job="compact", started_ms=night, ended_ms=night)])
        make_older(tmp_path / "state", 24)
        files.append(_files(tmp_path))
    assert max(files[-WHOLE_CYCLE:]) <= max(files[WHOLE_CYCLE : 2 * WHOLE_CYCLE]) + 20
    assert 30 <= len(job_rows(state)) <= 30 + WHOLE_CYCLE
    assert len(list((tmp_path / "state/cleaner_runs/_delta_log").glob("*.json"))) < 7 + 21 + 21


def _change(root: Root, i: int) -> None:
    new = pa.table({"n": [i]})
    table.swap(root, "t", new.schema, lambda version: Change(added=[new], removed=version.files()))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Fifty commits of a table, which is a day older after each."""
    root = open_root(str(tmp_path))
    for i in range(50):
        _change(root, i)
        make_older(tmp_path, 24)
    return tmp_path


def test_rows_needed_for_a_week_are_kept(old: Path) -> None:
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


def test_recent_files_are_kept_regardless_of_their_number(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    for i in range(45):
        _change(root, i)
    before = {path: path.stat().st_mtime for path in (tmp_path / "state").rglob("*")}
    head = table.head(root, "t")
    forget(root, head.folder, head.files())
    assert {path: path.stat().st_mtime for path in (tmp_path / "state").rglob("*")} == before
    assert len(list(table.announced_deletions(head, -1))) == 0  # every commit is there


def test_run_older_than_removed_rows_is_reported(old: Path) -> None:
    head = table.head(open_root(str(old)), "t")
    assert list(table.announced_deletions(head, 19)) == []
    with pytest.raises(ConflictError, match="its history was deleted"):
        list(table.announced_deletions(head, 18))
    assert table.before_record(head) == 19


# -- which rows of history stay


def _checkpoints(generation: int) -> dict[tuple[str, int], Checkpoint]:
    return {("t", 0): row(Checkpoint, topic="t", partition=0, generation=generation, run_id=run_id(generation))}


def _chain(upto: int) -> list[RunRow]:
    return [
        row(
            RunRow, topic="t", partition=0, run_id=run_id(n), generation_after=n, generation_before=n - 1,
            parent_run_id=run_id(n - 1) if n > 1 else None, started_ms=n * DAY_MS,
        )
        for n in range(1, upto + 1)
    ]  # fmt: skip


def _needed(runs: list[RunRow], now_day: int, *folders: str) -> list[int]:
    existing = [(f"segments/t-0/{name}", made) for name in folders if (made := parse_run_folder(name)) is not None]
    kept = history.needed(runs_to_arrow(runs), _checkpoints(100), lambda topic, partition: existing, now_day * DAY_MS)
    return sorted(
        number for number in kept["generation_after"].to_pylist() if number <= 90
    )  # the ten above stay always


def test_old_rows_of_distant_generations_are_removed() -> None:
    assert _needed(_chain(100), 100) == list(range(70, 91))
    assert _needed(_chain(100), 1000) == []


def test_rows_of_existing_generations_and_their_rollbacks_are_kept() -> None:
    assert _needed(_chain(100), 1000, f"7-{run_id(7)}", f"8-{run_id(9)}", "mine") == [7]
    chain = [
        replace(run, back_to=7, back_to_run_id=run_id(7)) if run.generation_after == 9 else run for run in _chain(100)
    ]
    assert _needed(chain, 1000, f"7-{run_id(7)}") == [7, 9]


def test_rows_of_runs_with_erased_records_are_kept() -> None:
    chain = [replace(run, dropped_erased=1) if run.generation_after == 5 else run for run in _chain(100)]
    assert _needed(chain, 1000) == [5]


def test_rows_of_erasures_and_checks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEEP_JOBS", 2)
    jobs = ["erase", "compact", "erase --check", "vacuum", "compact", "compact"]
    runs = [row(JobRow, run_id=run_id(n), job=job, ended_ms=n, exit_code=5) for n, job in enumerate(jobs)]
    kept = history.needed(runs_to_arrow(runs), {}, lambda topic, partition: [], 0)
    assert sorted(kept["ended_ms"].to_pylist()) == [0, 2, 4, 5]


def test_rows_of_killed_runs_are_removed() -> None:
    died = replace(_chain(100)[6], run_id=run_id(7, 9))
    assert _needed([*_chain(100), died], 1000, f"7-{run_id(7, 9)}") == []
