"""A gap in the archive, and its remedy, --reset: the store keeps the previous generation, and can restore it."""

from __future__ import annotations

import os

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions, VacuumOptions
from lastkey.jobs.restore import job as restore
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify import job as verify
from tests.builders.archives import Lab, only_input, put
from tests.builders.trees import files_in, tree
from tests.golden import golden

pytestmark = pytest.mark.slow


def _restored(lab: Lab, name: str, generation: int) -> dict[str, tuple[str, int]]:
    output = lab.root / name
    report = restore.run(RestoreOptions(str(lab.store), str(output), generation=generation), Silent())
    assert [p.generation for p in report.partitions] == [generation]
    timed = (".log", ".index", ".timeindex")  # the others are of now
    files = {path: of for path, of in tree(output).items() if of[0] != "folder"}
    return {path: of if path.endswith(timed) else (of[0], 0) for path, of in files.items()}


def _remove(log):
    for path in files_in(log.parent, f"{log.stem}.*"):
        path.unlink()


def test_generation_before_a_gap_is_kept_after_a_reset(tmp_path, tmp_path_factory):
    case = golden(tmp_path_factory)["idem-active"]
    now_ms = max(case.now_ms(1, p) for p in case.partitions)
    lab = Lab(None, tmp_path)
    put(only_input(case), lab.archive / "t-0", segments=4)
    lab.run(now_ms, sealed=True)
    want = _restored(lab, "before", 1)
    assert any(path.endswith(".log") for path in want)

    put(only_input(case), lab.archive / "t-0")  # the log has grown, and compacted segments and the next one are lost
    for log in files_in(lab.archive / "t-0")[:5]:
        _remove(log)
    report = lab.run(now_ms)
    assert (report.exit_code, report.results[0].problem.kind) == (3, "gap")
    report = lab.run(now_ms, reset=TopicFilter(("t",)))
    assert report.exit_code == 0
    assert report.to_json()["partitions"][0]["reset"] is True
    assert [(r.generation_after, r.reset) for r in lab.state().histories()["t", 0]] == [(2, True), (1, False)]

    assert _restored(lab, "after", 1) == want  # bytes and times
    notes = verify.run(VerifyOptions(store=str(lab.store)), Silent())
    assert notes.exit_code == 0
    assert notes.results[0].compared_records > 0  # with the archive
    assert any("t-0: generation 2 started over" in note for note in notes.notes)
    assert verify.run(VerifyOptions(store=str(lab.store), generation=1), Silent()).exit_code == 0

    for path in files_in(lab.store / "segments", "**/*"):
        if path.is_file():
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**15,) * 2)  # 11 days
    vacuumed = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert vacuumed.deleted == {}
    assert [(kept["generation"], kept["bytes"] > 0) for kept in vacuumed.kept] == [(1, True)]
    assert _restored(lab, "much later", 1) == want
    given_up = vacuum.run(VacuumOptions(str(lab.store), give_up=TopicFilter(("t",))), Silent())
    deleted = given_up.deleted["t", 0]
    assert deleted and [path for path in deleted if "/1-" not in path] == []
    assert lab.run(now_ms).exit_code == 0
