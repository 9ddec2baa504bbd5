"""An error that stops the work on one partition is that partition's problem, in every job; a full disk is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastkey.jobs.archive import listing as archive
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.report.job import profile_archive
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.logformat.dump.files import DumpOptions, dump, list_files
from lastkey.logformat.dump.log import LogOptions
from lastkey.logformat.errors import KINDS, NO_POSITION, LogFormatError, stopped
from lastkey.logformat.names import segment_file
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.output import segment_output
from lastkey.udfs.dump_files import dump_tasks, dump_to_file
from lastkey.udfs.lookup.index_sizes import IndexSizesPlan, index_sizes
from lastkey.udfs.lookup.minutes import TimedSegment, time_index_rows
from lastkey.udfs.lookup.queries import Queries, lookup
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.reindex.segment import ReindexTask, reindex_segments
from lastkey.udfs.reindex.write import Target
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from lastkey.udfs.segments import LogSettings
from tests.builders.damage import SEGMENT_OFFSETS, Partition, build
from tests.builders.faults import Fault, faults, happened
from tests.builders.plans import changed
from tests.builders.sources import read

READ_ERRORS = ["EIO", "ESTALE", "EACCES"]


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def log_path(part: Partition, number: int = 1) -> Path:
    return part.log(number * SEGMENT_OFFSETS)


def unreadable(problem: Problem | LogFormatError | None, path: str, error: str) -> None:
    """Check that the problem names path and errno."""
    assert problem is not None
    assert (problem.kind, problem.path) == ("unreadable", path)
    assert f"rrno {getattr(errno, error)}]" in problem.found


def nothing_left(part: Partition) -> bool:
    return not part.store.exists() or not [p for p in part.store.rglob("*") if p.is_file()]


# -- compact


@pytest.mark.parametrize("error", READ_ERRORS)
@pytest.mark.parametrize("nth", [1, 2])
def test_failed_read_of_compact_is_a_problem(part: Partition, tmp_path: Path, error: str, nth: int) -> None:
    log = log_path(part)
    plan = part.plan()
    with faults(tmp_path, Fault("read", str(log), nth=nth, error=error)):
        result = compact_partition(plan)
    assert happened(tmp_path) == [1]
    assert result.status == "uncleanable"
    unreadable(result.problem, f"t-0/{log.name}", error)
    assert nothing_left(part)


def test_problem_has_the_position_of_the_failed_read(part: Partition, tmp_path: Path) -> None:
    from dataclasses import replace

    log = log_path(part)
    position = part.positions(SEGMENT_OFFSETS)[1]
    small = changed(part.plan(), limits=replace(part.limits, chunk_bytes=position + 20))
    with faults(tmp_path, Fault("read", str(log), at=position + 30, error="EIO")):
        problem = compact_partition(small).problem
    assert happened(tmp_path) == [1]
    assert problem is not None
    assert problem.position == position


def test_read_interrupted_by_a_signal_is_repeated(part: Partition, tmp_path: Path) -> None:
    expected = compact_partition(part.plan())
    bytes_expected = part.cleaned_bytes(expected)
    with faults(tmp_path, Fault("read", "*.log", times=3, error="EINTR")):
        result = compact_partition(part.plan())
    assert happened(tmp_path) == [3]
    assert result.status == "cleaned"
    assert part.cleaned_bytes(result) == bytes_expected


@pytest.mark.parametrize("on", ["create", "write", "fsync"])
@pytest.mark.parametrize("error", ["EIO", "EACCES", "EROFS"])
def test_failed_write_of_compact_is_a_problem(part: Partition, tmp_path: Path, on: Any, error: str) -> None:
    plan = part.plan()
    with faults(tmp_path, Fault(on, f"{part.store}/*", nth=2, error=error)):
        result = compact_partition(plan)
    assert happened(tmp_path) == [1]
    assert result.problem is not None
    assert (result.status, result.problem.kind) == ("uncleanable", "unwritable")
    assert str(part.store) in result.problem.path
    assert f"[Errno {getattr(errno, error)}]" in result.problem.found
    assert nothing_left(part)


@pytest.mark.parametrize("on", ["create", "write", "fsync"])
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_ends_the_job(part: Partition, tmp_path: Path, on: Any, error: str) -> None:
    plan = part.plan()
    with faults(tmp_path, Fault(on, f"{part.store}/*", nth=2, error=error)), pytest.raises(OSError) as raised:
        compact_partition(plan)
    assert raised.value.errno == getattr(errno, error)
    assert happened(tmp_path) == [1]


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_failed_flush_of_a_large_log_is_a_problem(
    part: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, differs: bool
) -> None:
    """The log is flushed before it is read back, because a file system may discard data that it cannot write."""
    monkeypatch.setattr(segment_output, "_SMALL", -1)
    logs, plan = f"{part.store}/*.log", part.plan()
    given = [Fault("fsync", logs, error=error), *[Fault("read", logs, flip=(70, 1))] * differs]
    with faults(tmp_path, *given):
        if error == "ENOSPC":
            with pytest.raises(OSError, match="No space"):
                compact_partition(plan)
        else:
            problem = compact_partition(plan).problem
            assert problem is not None
            assert problem.kind == "unwritable"
    assert happened(tmp_path) == [1] * len(given)


# -- the other jobs


@pytest.mark.parametrize("error", READ_ERRORS)
def test_unreadable_log_is_a_problem_of_verify(part: Partition, tmp_path: Path, error: str) -> None:
    log = log_path(part)
    with faults(tmp_path, Fault("read", str(log), error=error)):
        checked = part.verify()
    (problem,) = checked.problems
    unreadable(problem, f"t-0/{log.name}", error)
    assert (checked.segments, checked.records) == (4, 36)  # segments and records of the others


def test_unreadable_side_files_are_problems_of_verify(part: Partition, tmp_path: Path) -> None:
    names = (log_path(part).with_suffix(".index"), part.folder / "leader-epoch-checkpoint")
    given = [Fault("read", str(path), nth=2 if "leader" in path.name else 1, error="EIO") for path in names]
    with faults(tmp_path, *given):
        checked = part.verify()
    assert happened(tmp_path) == [1, 1]
    assert sorted(p.path for p in checked.problems if p.kind == "unreadable") == sorted(
        str(path.relative_to(part.root)) for path in names
    )
    assert checked.records == 48


@pytest.mark.parametrize("nth", [1, 2])
def test_unreadable_log_is_a_problem_of_report(part: Partition, tmp_path: Path, nth: int) -> None:
    plan = part.plan()
    with faults(tmp_path, Fault("read", str(log_path(part)), nth=nth, error="EIO")):
        profile = profile_partition(ProfilePlan(plan, compacted=True))
    unreadable(profile.problem, f"t-0/{log_path(part).name}", "EIO")


def reindexed(part: Partition, target: Target, *, check_crc: bool = True) -> list[Any]:
    segments = tuple(part.listed().segments)
    settings = LogSettings(index_interval_bytes=0)
    return reindex_segments(ReindexTask(target, "t-0", segments, settings, check_crc=check_crc))


def test_failed_read_of_reindex_is_a_problem(part: Partition, tmp_path: Path) -> None:
    with faults(tmp_path, Fault("read", str(log_path(part)), error="EIO")):
        outcomes = reindexed(part, Target("check", str(part.root)))
    assert [o.problem is None for o in outcomes] == [True, False, True, True]
    unreadable(outcomes[1].problem, f"t-0/{log_path(part).name}", "EIO")
    assert {f.status for f in outcomes[1].files} == {"impossible"}


@pytest.mark.parametrize("on", ["create", "write", "fsync"])
def test_failed_write_of_reindex_is_a_problem(part: Partition, tmp_path: Path, on: Any) -> None:
    output = tmp_path / "out"
    target = Target("output", str(part.root), str(output))
    with faults(tmp_path, Fault(on, f"{output}/t-0/{log_path(part).stem}.index", error="EIO")):
        outcomes = reindexed(part, target)
    assert happened(tmp_path) == [1]
    reasons = {f.path.rpartition("/")[2]: f.reason for o in outcomes for f in o.files if f.status == "impossible"}
    assert reasons == {f"{log_path(part).stem}.index": "unwritable"}
    more = tmp_path / "more"
    more.mkdir()
    target = Target("output", str(part.root), str(more / "out"))
    with faults(more, Fault(on, f"{more}/out/*", error="ENOSPC")), pytest.raises(OSError, match="No space"):
        reindexed(part, target)


def test_failed_flush_of_a_reindexed_folder_is_a_problem(part: Partition, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with faults(tmp_path, Fault("fsync", f"{output}/t-0", error="EIO")):
        outcomes = reindexed(part, Target("output", str(part.root), str(output)))
    assert happened(tmp_path) == [1]
    assert {o.problem.kind for o in outcomes} == {"unwritable"}


def test_lookups_in_an_unreadable_log_have_no_answer(part: Partition, tmp_path: Path) -> None:
    (plan,) = archived_partitions(str(part.root), EVERY_TOPIC, [])
    queries = Queries(np.array([3, 15]), np.zeros(2, np.bool_))
    with faults(tmp_path, Fault("open", str(log_path(part, 3)), error="EIO")):
        answers = lookup(plan, queries)
    assert happened(tmp_path) == [1]
    unreadable(answers.problem, str(log_path(part, 3)), "EIO")
    assert answers.answers.column("status").to_pylist() == ["unreadable"] * 2


def test_failed_reads_of_sizing_and_time_index_are_problems(part: Partition, tmp_path: Path) -> None:
    (plan,) = archived_partitions(str(part.root), EVERY_TOPIC, [])
    log = log_path(part)
    with faults(tmp_path, Fault("open", str(log), times=2, error="ESTALE")):
        sizes = index_sizes(IndexSizesPlan(plan, 4096, 10 << 20))
        segments = [TimedSegment("t", 0, s) for s in plan.segments]
        rows = time_index_rows(segments).to_pylist()
    assert happened(tmp_path) == [2]
    unreadable(sizes.problem, f"t-0/{log.name}", "ESTALE")
    assert sizes.batches == 9
    (problems,) = {row["problem"] for row in rows} - {None}
    assert f"t-0/{log.name}" in problems
    assert len({row["segment_base_offset"] for row in rows if row["problem"] is None}) == 3


def test_inspect_reports_an_unreadable_log_and_prints_others(part: Partition, tmp_path: Path) -> None:
    log, written = log_path(part), bytearray()
    with faults(tmp_path, Fault("read", str(log), error="EIO")):
        findings = dump([part.folder], DumpOptions(LogOptions(deep=True)), written.extend)
    assert happened(tmp_path) == [1]
    (problem,) = findings.all_problems
    unreadable(problem, str(log), "EIO")
    assert b"baseOffset: 0 " in written
    assert b"baseOffset: 24 " in written


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_failed_write_of_inspect_is_a_problem(part: Partition, tmp_path: Path, error: str) -> None:
    output = tmp_path / "out"
    tasks = dump_tasks(list_files([str(part.folder)]), DumpOptions(), str(output))
    bad = next(task for task in tasks if task.name == f"t-0/{log_path(part).name}.txt")
    with faults(tmp_path, Fault("write", f"{output}/{bad.name}", error=error)):
        if error == "ENOSPC":
            with pytest.raises(OSError, match="No space"):
                dump_to_file(bad)
            return
        done = [dump_to_file(task) for task in tasks]
    (failed,) = [d for d in done if d.n_problems]
    assert (failed.name, failed.n_problems) == (bad.name, 1)
    assert "unwritable" in failed.tool_lines[0]


def test_data_source_quarantines_failed_reads(part: Partition, tmp_path: Path) -> None:
    log = log_path(part)
    with faults(tmp_path, Fault("read", str(log), error="EIO")):
        rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
    (quarantined,) = [row for row in rows if row["problem"]]
    assert quarantined["problem"]["kind"] == "unreadable"
    assert quarantined["problem"]["path"] == str(log)
    assert "Errno 5" in quarantined["problem"]["found"]
    assert len(rows) == 1 + 36


def test_data_source_raises_failed_reads_without_quarantine(part: Partition, tmp_path: Path) -> None:
    log = log_path(part)
    with faults(tmp_path, Fault("read", str(log), error="EIO")), pytest.raises(LogFormatError) as raised:
        read("kafka_log", part.root)
    unreadable(raised.value, str(log), "EIO")


def test_unreadable_folder_is_a_problem_of_its_partition_only(part: Partition, tmp_path: Path) -> None:
    """A folder that cannot be listed is its partition's problem; the others are there."""
    (part.root / "u-0").mkdir()
    (part.root / "u-0" / segment_file(0, "log")).write_bytes(part.log(0).read_bytes())
    with faults(tmp_path, Fault("list", str(part.folder), error="EIO")):
        archive_listing = archive.listed(str(part.root))
    unreadable(archive_listing.partitions["t", 0].problem, "t-0", "EIO")
    assert archive_listing.partitions["u", 0].problem is None


# -- unexpected errors


def boom(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def _profile(part: Partition) -> Any:
    return profile_partition(ProfilePlan(part.plan(), compacted=True))


def _lookup(part: Partition) -> Any:
    (plan,) = archived_partitions(str(part.root), EVERY_TOPIC, [])
    return lookup(plan, Queries(np.array([3]), np.zeros(1, np.bool_)))


def _first_problem(part: Partition) -> Any:
    rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
    problem = next(row["problem"] for row in rows if row["problem"])
    return Problem(**{name: problem[name] for name in ("kind", "path", "position", "expected", "found", "hint")})


def _inspect(part: Partition) -> Any:
    return dump([log_path(part)], DumpOptions(), lambda _: None).all_problems[0]


JOBS: dict[str, Callable[[Partition], Any]] = {
    "compact": lambda part: compact_partition(part.plan()).problem,
    "verify": lambda part: part.verify().problems[-1],
    "report": lambda part: _profile(part).problem,
    "reindex": lambda part: reindexed(part, Target("check", str(part.root)))[0].problem,
    "lookup": lambda part: _lookup(part).problem,
    "data source": _first_problem,
    "inspect": _inspect,
}


def raising(tmp_path: Path, job: str, error: BaseException) -> AbstractContextManager[None]:
    """Return a context in which no log can be read; a lookup maps logs into memory instead."""
    return faults(tmp_path, Fault("open" if job == "lookup" else "read", "*.log", times=None, raises=error))


@pytest.mark.parametrize("job", JOBS)
def test_defect_is_a_problem_of_its_partition(
    part: Partition, tmp_path: Path, caplog: pytest.LogCaptureFixture, job: str
) -> None:
    with raising(tmp_path, job, KeyError("an unexpected error")):
        problem = JOBS[job](part)
    assert problem.kind == "defect"
    assert "t-0" in problem.path
    assert "KeyError" in problem.found
    assert "in meet, line" in problem.found
    assert "t-0: internal error: KeyError: " in str(problem) or "/" in problem.path
    assert "at byte" not in str(problem) and "please report this" in str(problem)
    logged = [record.exc_info for record in caplog.records if record.exc_info]  # regardless of the signal handler
    assert {(str(of[1]), of[2] is not None) for of in logged} == {("'an unexpected error'", True)}


@pytest.mark.parametrize("job", JOBS)
def test_missing_memory_is_a_problem_of_the_partition(part: Partition, tmp_path: Path, job: str) -> None:
    with raising(tmp_path, job, MemoryError("Unable to allocate 8.00 EiB")):
        problem = JOBS[job](part)
    assert (problem.kind, problem.found) == ("memory", "Unable to allocate 8.00 EiB")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupts_are_not_caught(part: Partition, tmp_path: Path, job: str, error: BaseException) -> None:
    with raising(tmp_path, job, error), pytest.raises(type(error)):
        JOBS[job](part)


def test_attempt_returns_its_result_or_its_problem() -> None:
    assert attempt("t-0", lambda: 7) == 7
    problem = Problem("gap", "t-0", 0, "a", "b", state="gap")
    assert attempt("t-0", boom(problem.as_error())) == problem
    assert stopped(LogFormatError("crc", "x", 1, "a", "b"), "t-0").kind == "crc"
    for kind in ("defect", "memory", "unwritable", "keys"):
        assert kind in KINDS
        text = str(Problem(kind, "t-0", NO_POSITION, "a", "b"))  # a report says it
        assert text == ("t-0: internal error: b" if kind == "defect" else f"t-0: {kind}: expected a, found b")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        attempt("t-0", boom(full))


def test_report_states_that_keys_do_not_fit(tmp_path: Path) -> None:
    """An unknown kind of problem ended the report when it was displayed."""
    from lastkey.jobs.command.config import Config

    part = build(tmp_path / "archive")
    config = Config()
    vars(config.job).update(task_memory_bytes=1000)  # less than a file may say
    rows = [(1_700_000_000_000 + i, b"key-%d" % i, b"v") for i in range(20_000)]
    from tests.reference.log import data_batch

    part.write(0, [data_batch(0, rows)])
    for base in (12, 24, 36):
        for kind in ("log", "index", "timeindex"):
            part.log(base).with_suffix(f".{kind}").unlink()
    report = profile_archive(
        ReportOptions(archives=str(part.root), output="", now_ms=1_800_000_000_000, config=config), Silent()
    )
    assert "keys: expected keys that fit" in report.to_text()
