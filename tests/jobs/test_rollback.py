"""An older generation made current again: conditions, remaining files, and the next run, which continues from it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import rebuild_state, rollback, vacuum
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RestoreOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.errors import NO_GENERATION, ConflictError, MissingPathError, UsageError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.rollback import RollbackReport
from lastkey.jobs.store import manifests, table, writing
from lastkey.jobs.store.manifests import read_manifest
from lastkey.jobs.store.paths import COMMITTED, MANIFEST
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify import job as verify
from tests.builders.archives import Lab, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.steps import at_step
from tests.builders.stores import manifest_segments
from tests.builders.trees import files_in, read_tree, tree
from tests.golden import golden

pytestmark = pytest.mark.slow


def _rollback(lab: Lab, generation: int, **options: Any) -> RollbackReport:
    return rollback.run(RollbackOptions(str(lab.store), generation, **options), Silent())


def _restored(lab: Lab, name: str, generation: int | None = None) -> dict[str, Any]:
    output = lab.root / name
    restore.run(RestoreOptions(str(lab.store), str(output), generation=generation), Silent())
    timed = (".log", ".index", ".timeindex")
    return {path: of if path.endswith(timed) else (of[0], 0) for path, of in tree(output).items() if of[0] != "folder"}


def _age(lab: Lab) -> None:
    for path in files_in(lab.store / "segments", "**/*"):
        if path.is_file():
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**15,) * 2)  # 11 days


@pytest.fixture
def lab(tmp_path, tmp_path_factory) -> Lab:
    """t-0 with three generations of a log that grows; what was restored of the first, and its checkpoint."""
    case = golden(tmp_path_factory)["idem-active"]
    made = Lab(None, tmp_path)
    made.now_ms = max(case.now_ms(1, p) for p in case.partitions)
    for segments in (3, 5, None):
        put(only_input(case), made.archive / "t-0", segments=segments)
        assert made.run(made.now_ms, force=True).exit_code == 0
        if segments == 3:
            made.first = (_content(made), _restored(made, "first"), made.folder())
    assert made.state().checkpoints()["t", 0].generation == 3
    return made


def _content(lab: Lab) -> tuple[Any, ...]:
    """Return the current generation's content, without its number and its run."""
    checkpoints, manifests = lab.state().current()
    of = {"generation": 0, "run_id": "", "back_to": 0, "back_to_run_id": None}
    (checkpoint,), (segments,), (state,) = checkpoints.values(), manifests.values(), lab.state().states().values()
    number = {"generation": 0, "run_id": ""}
    return replace(checkpoint, **of), segments, replace(state, **number)


def test_rollback_makes_an_older_generation_current_and_the_next_run_continues(lab: Lab) -> None:
    before = read_tree(lab.store)
    dry = _rollback(lab, 1, dry_run=True)
    assert read_tree(lab.store) == before
    third = lab.folder()
    report = _rollback(lab, 1)
    assert [p | {"run_id": ""} for p in report.to_json()["partitions"]] == [
        p | {"run_id": ""} for p in dry.to_json()["partitions"]
    ]
    assert [
        (p["generation_before"], p["generation"], p["back_to"], p["lost"]) for p in report.to_json()["partitions"]
    ] == [(3, 4, 1, [])]
    assert report.to_text().splitlines()[3].split()[:4] == ["t-0", "3", "4", "1"]

    content, files, folder = lab.first
    assert _content(lab) == content
    assert [(run.generation_after, run.back_to) for run in lab.state().histories()["t", 0]] == [
        (4, 1), (3, 0), (2, 0), (1, 0),
    ]  # fmt: skip
    assert sorted(path.name for path in (lab.store / "segments" / "t-0").glob("4-*/*")) == [COMMITTED, MANIFEST]
    assert _restored(lab, "again") == files
    assert _restored(lab, "by number", 4) == _restored(lab, "by the other", 1) == files
    assert _restored(lab, "the third", 3) != files
    for generation in (None, 1, 3, 4):
        verified = verify.run(VerifyOptions(store=str(lab.store), generation=generation), Silent())
        assert verified.exit_code == 0, verified.to_text()
        assert [(r.topic, r.partition, r.generation) for r in verified.results] == [("t", 0, generation or 4)]
    assert _rollback(lab, 1).partitions == []

    _age(lab)
    kept = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert third.exists() and folder.exists()
    assert [g["generation"] for g in kept.kept] == [2, 3]

    assert lab.run(lab.now_ms, force=True).exit_code == 0
    rows = lab.state().histories()["t", 0]
    assert [(run.generation_after, run.generation_before) for run in rows[:2]] == [(5, 4), (4, 3)]
    want = read_manifest(lab.state().root, f"segments/t-0/{third.name}").run.next_offset
    assert rows[0].next_offset == want
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0
    lab.check_whole(manifest_segments(lab.state(), "t", 0))
    _age(lab)
    vacuumed = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert vacuumed.kept == []
    assert not third.exists()
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_rollback_of_a_rollback_restores_the_newer_generation(lab: Lab) -> None:
    third = _content(lab)
    _rollback(lab, 1)
    assert _rollback(lab, 3).to_json()["partitions"][0]["back_to"] == 3
    assert _content(lab) == third
    assert _rollback(lab, 4).to_json()["partitions"][0]["back_to"] == 1, "what generation 4 went back to"
    assert _content(lab) == lab.first[0]
    assert lab.state().checkpoints()["t", 0].generation == 6
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_offsets_missing_in_the_archive_are_reported_before_and_after(lab: Lab) -> None:
    state = lab.state()
    ends = [run.next_offset for run in state.histories()["t", 0]][::-1]
    lost = [log for log in files_in(lab.archive / "t-0", "*.log") if ends[0] <= int(log.stem) < ends[1]]
    after = [log for log in files_in(lab.archive / "t-0", "*.log") if int(log.stem) >= ends[1]]
    assert lost and after
    for path in lost:
        path.unlink()
    want = [[int(lost[0].stem), int(after[0].stem) - 1]]
    for dry_run in (True, False):
        report = _rollback(lab, 1, dry_run=dry_run)
        assert report.to_json()["partitions"][0]["lost"] == want
        message = f"offsets {want[0][0]} to {want[0][1]} are in generation 3, and are not in the archive any more"
        assert message in report.to_text()
        assert "--generation 3" in report.to_text()
    assert _rollback(lab, 3).to_json()["partitions"][0]["lost"] == []


def test_rolled_back_generation_is_kept_for_the_grace_period(lab: Lab) -> None:
    third = lab.folder()
    _age(lab)
    _rollback(lab, 2)
    given_up = VacuumOptions(str(lab.store), give_up=TopicFilter(("t",)))
    vacuum.run(given_up, Silent())
    assert third.exists(), "the grace begins with the rollback"
    _age(lab)
    vacuum.run(given_up, Silent())
    assert not third.exists()
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_concurrent_run_is_a_conflict_for_a_rollback(lab: Lab) -> None:
    in_between = at_step("manifests written", lambda: lab.run(lab.now_ms, force=True))
    with pytest.raises(ConflictError, match="expected generation 3"), in_between:
        _rollback(lab, 1)
    at = lab.state().checkpoints()["t", 0]
    assert (at.generation, at.back_to) == (4, 0)


def test_rollback_refuses_a_generation_that_vacuum_announced(lab: Lab) -> None:
    *_, folder = lab.first
    state = lab.state()
    assert writing.announce_deletions(state, [f"segments/t-0/{folder.name}"], state.version())
    with pytest.raises(ConflictError, match="a vacuum that deleted them"):
        _rollback(lab, 1)
    assert _rollback(lab, 2).to_json()["partitions"][0]["generation"] == 4


@pytest.mark.parametrize("what", ["*.index", "*.log", "manifest.json", "*"])
def test_generation_with_missing_files_is_refused(lab: Lab, what: str) -> None:
    *_, folder = lab.first
    for path in files_in(folder, what)[: None if what == "*" else 1]:
        path.unlink()
    if what == "*":
        folder.rmdir()
    before = lab.state().current()
    with raises_kind(NO_GENERATION, match=r"generation 1: .*; expected (one of: 2|another)"):
        _rollback(lab, 1)
    assert lab.state().current() == before


def test_missing_store_or_generation_is_an_error(lab: Lab, tmp_path: Path) -> None:
    with raises_kind(NO_GENERATION, match="never committed"):
        _rollback(lab, 9)
    with pytest.raises(UsageError, match=r"no topic of .* matches u"):
        _rollback(lab, 1, topics=TopicFilter(("u*",)))
    with pytest.raises(MissingPathError):
        rollback.run(RollbackOptions(str(tmp_path / "none"), 1), Silent())


class Killed(BaseException):
    """The process, at this moment."""


def _killed_at(patch: pytest.MonkeyPatch, n: int) -> list[str]:
    """List the writes, flushes and commits from now on; raise Killed after the first n."""
    steps: list[str] = []
    for module, name in ((table, "flush"), (table, "_write"), (table, "_commit"), (manifests, "put_file"),
                         (manifests, "flush_all"), (manifests, "flush")):  # fmt: skip

        def step(real: Callable[..., Any], *given: Any) -> Any:
            if len(steps) == n:
                raise Killed
            steps.append(real.__name__)
            return real(*given)

        patch.setattr(module, name, partial(step, getattr(module, name)))
    return steps


def test_killed_rollback_leaves_the_old_or_the_new_generation(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, n, killed = set(), 0, True
    while killed:
        one = replace(lab, store_at=lab.root / f"killed{n}")
        shutil.copytree(lab.store, one.store)
        with monkeypatch.context() as patch:
            steps = _killed_at(patch, n)
            try:
                _rollback(one, 1)
                killed = False
            except Killed:
                assert len(steps) == n
        at = one.state().checkpoints()["t", 0]
        assert (at.generation, at.back_to) in ((4, 1), (3, 0))
        seen.add((at.generation, killed))
        if at.generation == 4:
            assert _content(one) == lab.first[0]
        lost = replace(lab, store_at=lab.root / f"lost{n}")
        shutil.copytree(one.store, lost.store)
        shutil.rmtree(lost.store / "state")
        with contextlib.suppress(UsageError):  # the outcome of the first call is unknown
            rebuild_state.run(RebuildStateOptions(str(lost.store)), Silent())
            assert lost.state().checkpoints()["t", 0] == at
        vacuum.run(VacuumOptions(str(one.store)), Silent())
        assert one.state().checkpoints()["t", 0] == at
        assert (one.store / f"segments/t-0/{at.generation}-{at.run_id}" / COMMITTED).exists()
        _rollback(one, 1)
        assert _content(one) == lab.first[0]
        shutil.rmtree(one.store)
        shutil.rmtree(lost.store)
        n += 1
    assert n > 10
    assert seen == {(3, True), (4, True), (4, False)}


def test_vacuum_keeps_an_unreadable_generation_with_later_offsets(lab: Lab) -> None:
    third = lab.folder()
    _rollback(lab, 1)
    (third / MANIFEST).write_bytes(b"{")
    _age(lab)
    before = read_tree(lab.store / "segments")
    report = vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert read_tree(lab.store / "segments") == before
    assert any("left alone" in note for note in report.notes)
