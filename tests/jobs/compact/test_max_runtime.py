"""--max-runtime: a run commits partitions that are finished in time, and over several runs every partition is
processed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.stopping import OutOfTimeError
from lastkey.jobs.compact import waves
from lastkey.jobs.errors import DONE, PARTIAL, PROBLEMS, UsageError
from lastkey.jobs.spark import engine
from tests.builders.archives import Lab
from tests.builders.logs import START_MS, write_partition
from tests.builders.steps import listening
from tests.builders.trees import tree

DAY = 86_400_000
TOPICS = ("a", "b", "c", "d")  # the last one is the largest


def _grow(lab: Lab, night: int) -> None:
    """Write the archive of a night: in each log one more segment than the night before."""
    for size, topic in enumerate(TOPICS):
        first = " ".join(f"k{n}=1" for n in range(10 * size + 1))
        write_partition(lab.archive / f"{topic}-0", "||".join([first, *(f"k={n}" for n in range(night + 1)), ""]))


def _run(lab: Lab, night: int, **options: Any) -> Any:
    return lab.run(START_MS + night * DAY, **{"max_runtime": 3600.0} | options)


def _done(report: Any) -> list[str]:
    return [r.topic for r in report.results if r.status == "cleaned"]


def _threads(root: Path) -> Lab:
    lab = Lab(None, root)
    lab.settings["job"] = {"engine": "threads"}
    return lab


@pytest.fixture
def over_after_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the time be over when the first partition is done and the second has begun. One thread works."""
    monkeypatch.setattr(engine, "local_cores", lambda: 1)
    stops: list[Any] = []
    scans: list[str] = []
    gave_up = threading.Event()

    def listener(step: str) -> None:
        if step == "run stopped":
            gave_up.set()
        elif step == "segments scanned":
            scans.append(step)
            if len(scans) == 2:
                stops[0].request_end(OutOfTimeError())
                gave_up.wait(60)

    real = waves.ended_in_time

    def limited(stop: Any, ends_at: float | None) -> Any:
        stops[:] = [stop]
        scans.clear()
        gave_up.clear()
        return real(stop, ends_at)

    monkeypatch.setattr(waves, "ended_in_time", limited)
    with listening(listener):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("over_after_one")
def test_every_partition_is_finished_in_one_of_several_limited_runs(tmp_path: Path) -> None:
    """Each run finishes one partition and is cut off in another; all partitions get new records before each run."""
    lab, turns = _threads(tmp_path), []
    for night in range(8):
        _grow(lab, night)
        before = tree(lab.archive)
        report = _run(lab, night)
        assert report.exit_code == PARTIAL
        assert sorted(r.status for r in report.results) == ["cleaned", "stopped", "stopped", "stopped"]
        turns += [(*_done(report), *(topic for topic, _ in report.cut_off))]
        assert tree(lab.archive) == before
        for segments in lab.state().current()[1].values():
            lab.check_whole(segments)
    assert [done for done, _ in turns[:4]] == ["d", "b", "c", "a"]  # the largest first while none was tried
    assert {done for done, _ in turns[4:]} == set(TOPICS)
    assert turns[0] == ("d", "c")


@pytest.mark.usefixtures("over_after_one")
def test_report_names_unfinished_partitions(tmp_path: Path) -> None:
    lab = _threads(tmp_path)
    _grow(lab, 0)
    report = _run(lab, 0)
    text, answer = report.to_text(), report.to_json()
    assert "--max-runtime is over: 1 of 4 partitions committed; the rest is first in the next run with it" in text
    assert "c-0: not finished within --max-runtime" in text
    assert (answer["partial"], answer["exit_code"], answer["archive_needed"]) == (True, PARTIAL, True)
    assert report.figures()["partitions"] == {"cleaned": 1, "stopped": 3}
    existing = {path.parent.name for path in (lab.store / "segments").glob("*/*")}
    assert existing == {"d-0"}  # nothing is left of the one that was cut off
    states = {key[0]: row.state for key, row in lab.state().states().items()}
    assert states == {"c": "dirty", "d": "clean"}
    damaged = lab.archive / "e-0"
    write_partition(damaged, "a=1||a=2||")
    (damaged / f"{0:020}.log").write_bytes(b"\xff" * 100)
    report = _run(lab, 1)
    assert (report.exit_code, report.partial) == (PROBLEMS, True)  # exit code of problems precedes that of partial runs


def test_run_within_the_limit_equals_an_unlimited_run(tmp_path: Path) -> None:
    lab = _threads(tmp_path)
    _grow(lab, 0)
    report = _run(lab, 0, max_runtime="999999999d")
    assert (report.exit_code, report.partial, sorted(_done(report))) == (DONE, False, list(TOPICS))
    report = _run(lab, 0, max_runtime=1e-9)  # nothing is due
    assert (report.exit_code, report.partial) == (DONE, False)


def test_run_with_zero_runtime_postpones_every_partition(tmp_path: Path) -> None:
    lab = _threads(tmp_path)
    _grow(lab, 0)
    report = _run(lab, 0, max_runtime=1e-9)
    assert (report.exit_code, len(report.due), report.generations) == (PARTIAL, 4, {})
    assert _run(lab, 0).exit_code == DONE


@pytest.mark.spark
@pytest.mark.slow
def test_tasks_of_spark_stop_at_the_limit(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when the first result comes: at least that is committed, and the next run does the rest."""
    lab, stops = Lab(spark, tmp_path), []
    _grow(lab, 0)
    real, ended = waves.ended_in_time, waves._Partitions.ended

    def limited(stop: Any, ends_at: float | None) -> Any:
        stops[:] = [stop]
        return real(stop, ends_at)

    def first(self: Any, item: int, result: Any = None) -> None:
        ended(self, item, result)
        stops[0].request_end(OutOfTimeError())

    with monkeypatch.context() as patch:
        patch.setattr(waves, "ended_in_time", limited)
        patch.setattr(waves._Partitions, "ended", first)
        report = _run(lab, 0)
    done = _done(report)
    assert done
    assert {key[0]: row.generation for key, row in lab.state().checkpoints().items()} == dict.fromkeys(done, 1)
    assert report.exit_code == (PARTIAL if len(done) < len(TOPICS) else DONE)
    assert _run(lab, 0).exit_code == DONE
    assert {key[0] for key in lab.state().checkpoints()} == set(TOPICS)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("4h", 14400), ("1h30m", 5400), (" 2d1s ", 172801)]
)
def test_max_runtime_accepts_durations(text: str, seconds: int) -> None:
    assert CompactOptions("archive", "store", max_runtime=text).max_runtime == seconds


@pytest.mark.parametrize("text", ["", "90", "0s", "h", "1.5h", "-1h", "30m1h", "1h 30m", "1w", "\uff190s"])
def test_invalid_duration_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="expected a duration such as 90s, 30m or 1h30m"):
        CompactOptions("archive", "store", max_runtime=text)
