"""History of a store: the runs that count, in a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, USAGE
from lastkey.jobs.store import writing
from tests.builders.stores import StoreMaker, make_commit, run_id

DAY = 86_400_000
START = 1_700_000_000_000


def _commit(partition, generation, *, run=None, now_ms, parent=None, topic="t", **values):
    made = make_commit(partition, generation, run or run_id(generation), parent, topic=topic)
    return replace(made, run=replace(made.run, now_ms=now_ms, started_ms=now_ms + 1, seconds="{}", **values))


@pytest.fixture
def store(tmp_path):
    made = StoreMaker(tmp_path)
    first = {"now_ms": START, "records_read": 1000, "records_kept": 10, "bytes_before": 4096, "bytes_after": 1024}
    writing.commit_wave(made.state, [_commit(0, 1, **first), _commit(1, 1, **first)])
    second = {"now_ms": START + DAY, "records_read": 7, "records_kept": 7, "bytes_before": 10, "bytes_after": 10}
    writing.commit_wave(made.state, [_commit(0, 2, parent=run_id(1), reset=True, **second)])
    return str(made.store)


def test_runs_command_lists_each_run(store, capsys):
    assert cli.main(["runs", "--store", store]) == DONE
    header, _, _, run, two, note, _, last = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["run", "(UTC)", "id"]
    assert " ".join(run.split()) == "2023-11-14 22:13 00000000 2 2,000 20 8.0 KiB 2.0 KiB"
    assert two.startswith("2023-11-15 22:13") and note == "  t-0 started over"
    assert last == f"2 runs in {store}; exit code 0"


def test_runs_command_lists_every_partition_in_json(store, capsys):
    assert cli.main(["runs", "--store", store, "--json", "--topics", "t"]) == DONE
    output = json.loads(capsys.readouterr().out)
    assert [(run["run_id"], run["now_ms"], run["started_ms"]) for run in output["runs"]] == [
        (run_id(1), START, START + 1), (run_id(2), START + DAY, START + DAY + 1),
    ]  # fmt: skip
    names = ("topic", "partition", "generation_before", "generation")
    first = [tuple(p[name] for name in names) for p in output["runs"][0]["partitions"]]
    assert first == [("t", 0, 0, 1), ("t", 1, 0, 1)]
    assert [p["reset"] for run in output["runs"] for p in run["partitions"]] == [False, False, True]


def test_table_of_runs_without_its_newest_commit_is_reported(store, capsys):
    log = Path(store) / "state" / "cleaner_runs" / "_delta_log"
    (log / f"{1:020}.json").unlink()
    assert cli.main(["runs", "--store", store, "--json"]) == DONE
    output = json.loads(capsys.readouterr().out)
    assert output["notes"] == ["t-0: its runs are not in the table cleaner_runs"]
    assert [len(run["partitions"]) for run in output["runs"]] == [1]


def test_missing_store_is_a_usage_error(tmp_path, capsys):
    assert cli.main(["runs", "--store", str(tmp_path / "none")]) == USAGE
    assert "a store" in capsys.readouterr().err
