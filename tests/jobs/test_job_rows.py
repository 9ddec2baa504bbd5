"""Rows about whole runs in cleaner_runs: one per run with any outcome. Writing a row does not change the outcome."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import recorded
from lastkey.jobs.audit.keys import KeysReport
from lastkey.jobs.command.cli import main
from lastkey.jobs.errors import CONFLICT, DONE, PROBLEMS, USAGE
from lastkey.jobs.store import history, writing
from lastkey.jobs.store.history import job_rows, killed_row
from lastkey.jobs.store.rows import JobRow
from lastkey.jobs.store.tables import State, open_state
from lastkey.jobs.store.writing import append_job_rows
from tests.builders.audits import audit
from tests.builders.leases import LEASE, expire_leases, put_lease
from tests.builders.logs import write_partition
from tests.builders.stopping import start
from tests.builders.stores import row, run_id

pytestmark = pytest.mark.slow  # whole runs

SETTINGS = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n[job]\nengine = "threads"\n'


class Place:
    """An archive of one partition, and its store."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.archive, self.store, self.config, self.capsys = root / "archive", root / "store", root / "c.toml", capsys
        write_partition(self.archive / "t-0", "a=1 b=1||a=2||")
        self.config.write_text(SETTINGS)

    def arguments(self, *more: str) -> list[str]:
        return ["compact", str(self.archive), "--store", str(self.store), "--config", str(self.config), *more]

    def compact(self, *more: str) -> int:
        return main(self.arguments(*more))

    def add_damaged(self) -> None:
        write_partition(self.archive / "u-0", "a=1||a=2||")
        (self.archive / "u-0" / f"{0:020}.log").write_bytes(b"\xff" * 100)

    def run_json(self, *words: str) -> dict[str, Any]:
        self.capsys.readouterr()
        assert main([*words, "--json"]) in (DONE, PROBLEMS)
        report: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return report

    def runs(self, *more: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.run_json("runs", "--store", str(self.store), *more)["runs"]
        return rows

    def outcomes(self, *more: str) -> list[tuple[str, str]]:
        return [(run["job"], run["outcome"]) for run in self.runs(*more)]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def test_every_run_is_listed_with_its_outcome(place: Place) -> None:
    assert place.compact() == DONE
    assert place.compact() == DONE
    place.add_damaged()
    assert place.compact() == PROBLEMS
    put_lease(open_state(str(place.store)).root, partitions=("t-0",))
    assert place.compact("--force") == CONFLICT
    assert main(["vacuum", "--store", str(place.store)]) == DONE
    assert main(["rollback", "--store", str(place.store), "--generation", "1"]) == DONE
    assert place.outcomes() == [
        ("compact", "done"), ("compact", "nothing to do"), ("compact", "problems"), ("compact", "at work"),
        ("compact", "conflict"), ("vacuum", "done"), ("rollback", "nothing to do"),
    ]  # fmt: skip
    first, _, third, at_work, fifth, *_ = place.runs()
    assert [p["topic"] for p in first["partitions"]] == ["t"]
    assert (first["host"], first["pid"], first["exit_code"]) == (socket.gethostname(), os.getpid(), DONE)
    assert first["figures"]["committed_partitions"] == 1
    assert first["user"] == recorded.user()
    assert sum(third["figures"]["problems"].values()) == third["figures"]["partitions"]["uncleanable"] == 1
    assert (at_work["host"], at_work["ended_ms"]) == ("far", None)
    assert "another run" in fifth["error"] or "a run on far" in fifth["error"]
    place.capsys.readouterr()
    assert main(["runs", "--store", str(place.store)]) == DONE
    out = place.capsys.readouterr().out
    assert f"{recorded.user()}@{socket.gethostname()}" in out and "nothing to do" in out and "at work" in out


def test_since_and_topics_narrow_the_list(place: Place) -> None:
    place.compact()
    place.compact()
    _, second = place.runs()
    assert [run["run_id"] for run in place.runs("--since", str(second["started_ms"]))] == [second["run_id"]]
    assert place.runs("--since", "2100-01-01") == []
    assert place.outcomes("--topics", "t") == [("compact", "done")]


def test_runs_without_changes_write_no_row(place: Place, tmp_path: Path) -> None:
    assert place.compact("--dry-run") == DONE
    assert main(["compact", str(tmp_path / "none"), "--store", str(place.store)]) == USAGE
    assert not place.store.exists()
    place.compact()
    before = sorted(place.store.rglob("*"))
    assert place.compact("--dry-run", "--force") == DONE
    assert place.compact("--topics", "other") == USAGE
    assert main(["vacuum", "--store", str(place.store), "--dry-run"]) == DONE
    assert sorted(place.store.rglob("*")) == before


@pytest.mark.parametrize("how", ["refused", "no answer"])
def test_failed_write_of_a_row_is_a_note(place: Place, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compact()
    over = threading.Event()

    def refuse(state: State, new: Sequence[JobRow]) -> None:
        over.wait()
        raise PermissionError(errno.EACCES, "Permission denied")

    if how == "refused":
        over.set()
    else:  # a disk that hangs
        monkeypatch.setattr(recorded, "PATIENCE", 0.3)
    monkeypatch.setattr(recorded, "append_job_rows", refuse)
    report = place.run_json(*place.arguments())
    assert report["exit_code"] == DONE
    assert [note for note in report["notes"] if note.startswith("this run is not in the table cleaner_runs: ")]
    place.add_damaged()
    assert place.compact() == PROBLEMS
    over.set()


@pytest.mark.process
def test_killed_run_is_listed_before_and_after_the_next_run(place: Place, tmp_path: Path) -> None:
    place.compact()
    write_partition(place.archive / "u-0", "a=1||a=2||")
    run = start(tmp_path / "run", place.arguments(), "manifests written")
    run.wait_until_reached()
    assert place.outcomes()[-1] == ("compact", "at work")
    run.kill()
    run.finish()
    assert place.compact() == CONFLICT
    assert [outcome for _, outcome in place.outcomes()] == ["done", "at work", "conflict"]
    expire_leases(place.store)
    assert [outcome for _, outcome in place.outcomes()] == ["done", "killed", "conflict"]
    place.compact()
    assert [outcome for _, outcome in place.outcomes()] == ["done", "killed", "conflict", "done"]
    assert [run["exit_code"] for run in place.runs()] == [0, None, CONFLICT, 0]


@pytest.mark.process
def test_an_interrupted_run_is_listed(place: Place, tmp_path: Path) -> None:
    place.compact()
    write_partition(place.archive / "u-0", "a=1||a=2||")
    run = start(tmp_path / "run", place.arguments(), "generation written")
    run.wait_until_reached()
    os.kill(run.process.pid, signal.SIGTERM)
    code, _, err = run.finish()
    assert code == 143, err
    last = place.runs()[-1]
    assert (last["outcome"], last["exit_code"], last["partitions"]) == ("interrupted", 143, [])
    assert last["error"].startswith("terminated; 0 of 1 partition committed")
    assert last["figures"]["partitions"] == {"not_due": 1, "stopped": 1}


def test_row_of_a_run_replaces_the_assumption_that_it_was_killed(tmp_path: Path) -> None:
    state = open_state(str(tmp_path))
    dead = killed_row(replace(LEASE, run_id=run_id(1)))
    append_job_rows(state, [dead])
    append_job_rows(state, [dead])
    assert [job_row.outcome for job_row in job_rows(open_state(str(tmp_path)))] == ["killed"]
    append_job_rows(
        state, [row(JobRow, run_id=run_id(1), job="compact", exit_code=0, figures='{"committed_partitions": 1}')]
    )
    append_job_rows(state, [dead])
    assert [job_row.outcome for job_row in job_rows(open_state(str(tmp_path)))] == ["done"]


def test_audit_run_is_recorded_beside_its_tables(tmp_path: Path) -> None:
    """A store that has lost its tables gets none: rebuild-state replaces nothing."""
    write_partition(tmp_path / "archive" / "t-0", "a=1")
    store = str(tmp_path / "store")

    def run() -> KeysReport:
        return KeysReport(sources=["a"], summary={"keys": 1})

    recorded.recorded("audit keys", store, run, dry_run=False)
    assert not (tmp_path / "store").exists()
    audit(tmp_path / "archive", store)
    recorded.recorded("audit keys", store, run, dry_run=False)
    (rows,) = job_rows(open_state(store))
    assert (rows.job, rows.outcome, rows.amounts["sources"], rows.amounts["summary"]) == (
        "audit keys", "done", ["a"], {"keys": 1},
    )  # fmt: skip
    (tmp_path / "store" / "segments").mkdir()
    recorded.recorded("audit keys", store, run, dry_run=False)
    assert len(job_rows(open_state(store))) == 1


def test_old_rows_are_removed_except_the_last_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEEP_JOBS", 20)
    monkeypatch.setattr(writing, "_MOST_FILES", 8)
    state = open_state(str(tmp_path))
    for night in range(60):
        code = DONE if night == 3 else PROBLEMS
        append_job_rows(
            state, [row(JobRow, run_id=run_id(night), job="compact", exit_code=code, ended_ms=night, started_ms=night)]
        )
    rows = job_rows(open_state(str(tmp_path)))
    assert 20 <= len(rows) <= 20 + 8 + 1
    assert [entry.ended_ms for entry in rows if entry.exit_code == DONE] == [3]
    assert rows[-1].ended_ms == 59


def test_run_id_with_a_path_deletes_no_file_elsewhere(place: Place) -> None:
    """Every user with write access to the store can write a lease."""
    place.compact()
    victim = place.store / "state" / "victim.json"
    victim.write_text("{}")
    root = open_state(str(place.store)).root
    path = put_lease(root, run_id="x")
    path.write_text(path.read_text().replace('"run_id": "x"', '"run_id": "../victim"'))
    os.utime(path, (1, 1))
    place.compact("--force")
    assert victim.exists() and not path.exists()
