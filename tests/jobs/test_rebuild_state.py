"""A store without tables: they are rebuilt from its manifests, without guessing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import rebuild_state, rollback, vacuum
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RestoreOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.errors import UNDECIDED, ConflictError, MissingPathError, UsageError
from lastkey.jobs.rebuild_state import RebuildReport
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store import manifests
from lastkey.jobs.store.paths import COMMITTED, MANIFEST
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify import job as verify
from lastkey.logformat.listing import Segment
from tests.builders.archives import Lab, only_input, put
from tests.builders.errors import raises_kind
from tests.builders.steps import at_step, interrupt
from tests.builders.stores import manifest_segments
from tests.builders.trees import read_tree, tree
from tests.golden import golden

pytestmark = pytest.mark.slow

KEY = ("t", 0)


def _rebuild(lab: Lab, *choose: str, **options: Any) -> RebuildReport:
    return rebuild_state.run(RebuildStateOptions(str(lab.store), choose=choose, **options), Silent())


def _lose(lab: Lab) -> None:
    (lab.store / "state").rename(lab.root / f"lost-{len(list(lab.root.iterdir()))}")


def _segments(state: State) -> dict[Any, list[Segment]]:
    """Return the segments of each generation of the partition."""
    return state.read_segments([(KEY, run.generation_after, run.run_id) for run in state.histories()[KEY]])


def _rows(lab: Lab) -> tuple[Any, ...]:
    state = lab.state()
    return state.current(), state.states(), state.histories(), _segments(state)


@pytest.fixture
def lab(tmp_path, tmp_path_factory) -> Lab:
    """t-0 with two generations, and more to read."""
    case = golden(tmp_path_factory)["idem-active"]
    made = Lab(None, tmp_path)
    made.now_ms = max(case.now_ms(1, p) for p in case.partitions)
    for segments in (3, 5, None):
        put(only_input(case), made.archive / "t-0", segments=segments)
        if segments:
            assert made.run(made.now_ms, force=True).exit_code == 0
    return made


def _restored(lab: Lab, name: str) -> dict[str, Any]:
    output = lab.root / name
    restore.run(RestoreOptions(str(lab.store), str(output)), Silent())
    timed = (".log", ".index", ".timeindex")
    return {path: of if path.endswith(timed) else (of[0], 0) for path, of in tree(output).items() if of[0] != "folder"}


def test_rebuilt_tables_have_all_rows_and_runs_continue(lab: Lab) -> None:
    before, files = _rows(lab), _restored(lab, "before")
    assert not any("manifest" in path for path in files)
    kept = read_tree(lab.store)
    assert _rebuild(lab, dry_run=True).to_json()["partitions"][0]["generation"] == 2
    assert read_tree(lab.store) == kept
    with pytest.raises(UsageError, match="replaces nothing"):
        _rebuild(lab)
    _lose(lab)
    with pytest.raises(UsageError, match="rebuild-state"):  # else generation 1 would begin again
        lab.run(lab.now_ms, force=True)
    segments = read_tree(lab.store / "segments")
    report = _rebuild(lab)
    assert report.exit_code == 0
    assert "state of 1 partition made again" in report.to_text()
    assert read_tree(lab.store / "segments") == segments
    assert _rows(lab) == before
    assert _restored(lab, "after") == files
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0
    assert lab.run(lab.now_ms, force=True).exit_code == 0
    assert [run.generation_after for run in lab.state().histories()[KEY]] == [3, 2, 1]
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def _second(lab: Lab) -> Path:
    """Write another whole run of the current generation's number, as of a run that came second."""
    other = "f" * 32
    old = lab.folder()
    new = old.with_name(f"2-{other}")
    shutil.copytree(old, new)
    commit = manifests.read_manifest(lab.state().root, f"segments/t-0/{old.name}")
    moved = [replace(s, path=s.path.replace(old.name, new.name)) if s.root == "store" else s for s in commit.segments]
    again = replace(
        commit, checkpoint=replace(commit.checkpoint, run_id=other), run=replace(commit.run, run_id=other),
        segments=moved,
    )  # fmt: skip
    manifests.write_manifests(lab.state().root, [again])
    return new


def _at(lab: Lab) -> tuple[int, int, str | None]:
    """Return the number of the current generation, and the generation and run whose files it uses."""
    row = lab.state().checkpoints()[KEY]
    return row.generation, row.back_to, row.back_to_run_id


def test_two_committed_generations_with_one_number_require_a_choice(lab: Lab) -> None:
    mine, second = lab.folder(), _second(lab)
    want = lab.state().current()
    _lose(lab)
    with raises_kind(UNDECIDED) as raised:
        _rebuild(lab)
    assert raised.value.exit_code == 2
    assert all(folder.name.partition("-")[2] in str(raised.value) for folder in (mine, second))
    assert "--choose" in raised.value.line()
    assert not (lab.store / "state").exists()
    with pytest.raises(UsageError, match="whole generation"):
        _rebuild(lab, "t-0=abc")
    with pytest.raises(UsageError, match="of a partition of the store"):
        _rebuild(lab, "u-0=none")
    _rebuild(lab, f"t-0={mine.name.partition('-')[2]}")
    assert _at(lab) == (3, 2, mine.name.partition("-")[2])
    assert [s.path for s in manifest_segments(lab.state(), *KEY)] == [s.path for s in want[1][KEY]]
    _lose(lab)
    _rebuild(lab, f"t-0={'f' * 32}")
    assert _at(lab) == (4, 2, "f" * 32)
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


@pytest.mark.parametrize("damage", ["gone", "cut", "torn manifest"])
def test_incomplete_generation_requires_a_choice(lab: Lab, damage: str) -> None:
    folder = lab.folder()
    first = lab.state().histories()[KEY][1]
    path = folder / "manifest.json" if damage == "torn manifest" else sorted(folder.glob("*.index"))[0]
    path.write_bytes(path.read_bytes()[:-1]) if damage != "gone" else path.unlink()
    if damage == "cut":
        path.write_bytes(b"x")
    _lose(lab)
    with raises_kind(UNDECIDED, match=r"generation 1 of run .*whole"):
        _rebuild(lab)
    _rebuild(lab, f"t-0={first.run_id}")
    assert _at(lab) == (3, 1, first.run_id), "above the one that is not whole"


def test_generation_without_a_manifest_is_reported(lab: Lab) -> None:
    for path in (lab.store / "segments" / "t-0").rglob("manifest.json"):
        path.unlink()
    _lose(lab)
    with raises_kind(UNDECIDED, match=r"t-0: generation 2 of run \w+ \(.*found no such file\), generation 1 "):
        _rebuild(lab)
    (lab.generation_folder(1) / "committed").unlink()
    report = _rebuild(lab, "t-0=none")
    assert report.skipped == ["t-0"]
    assert [note.partition(":")[0] for note in report.notes] == [f"segments/t-0/{lab.generation_folder(1).name}"]


def test_rebuilt_rollback_is_unchanged(lab: Lab) -> None:
    rollback.run(RollbackOptions(str(lab.store), 1), Silent())
    before = _rows(lab)
    _lose(lab)
    _rebuild(lab)
    assert _rows(lab) == before
    assert _at(lab)[:2] == (3, 1)


@pytest.mark.parametrize("healed_by", ["nothing", "a run", "vacuum", "rollback"])
def test_crash_after_the_commit_requires_a_confirmation(lab: Lab, healed_by: str) -> None:
    second = lab.folder()
    (second / COMMITTED).unlink()
    if healed_by == "a run":
        assert lab.run(lab.now_ms, force=True).exit_code == 0
    elif healed_by == "vacuum":
        vacuum.run(VacuumOptions(str(lab.store)), Silent())
    elif healed_by == "rollback":
        rollback.run(RollbackOptions(str(lab.store), 1), Silent())
    want = lab.state().checkpoints()[KEY].generation
    assert (second / COMMITTED).exists() == (healed_by != "nothing")
    _lose(lab)
    assert _decided(lab) == (None if healed_by == "nothing" else want)
    if healed_by == "nothing":
        _rebuild(lab, f"t-0={second.name.partition('-')[2]}")
        assert _at(lab) == (2, 0, None)
        assert (second / COMMITTED).exists()


def test_history_is_rebuilt_above_a_missing_generation(lab: Lab) -> None:
    """Vacuum deleted generation 2 and its manifest."""
    assert lab.run(lab.now_ms, force=True).exit_code == 0
    shutil.rmtree(lab.generation_folder(2))
    _lose(lab)
    _rebuild(lab)
    assert [run.generation_after for run in lab.state().histories()[KEY]] == [3, 1]
    assert verify.run(VerifyOptions(store=str(lab.store)), Silent()).exit_code == 0


def test_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError):
        rebuild_state.run(RebuildStateOptions(str(tmp_path)), Silent())
    with pytest.raises(UsageError, match="--topics"):
        rebuild_state.run(RebuildStateOptions(str(tmp_path), topics=TopicFilter(("t",))), Silent())


def _dies_before_its_commit(lab: Lab) -> None:
    with pytest.raises(KeyboardInterrupt), at_step("manifests written", interrupt):
        lab.run(lab.now_ms, force=True)


def _decided(lab: Lab) -> int | None:
    """Return the partition's generation after a rebuild; None if it needs a choice and writes no table."""
    try:
        return _rebuild(lab).decided[0].checkpoint.generation
    except UsageError as error:
        assert error.kind is UNDECIDED
        return None


def test_killed_run_does_not_replace_a_rollback(lab: Lab) -> None:
    """Generation 3 exists twice: of a run killed before its commit, and of a rolled back run."""
    _dies_before_its_commit(lab)
    assert lab.run(lab.now_ms, force=True).exit_code == 0
    rollback.run(RollbackOptions(str(lab.store), 2), Silent())
    _lose(lab)
    assert _decided(lab) == 4
    assert _at(lab)[1] == 2


def test_single_run_killed_before_its_commit_requires_a_choice(lab: Lab) -> None:
    shutil.rmtree(lab.store)
    _dies_before_its_commit(lab)
    shutil.rmtree(lab.store / "state", ignore_errors=True)
    assert _decided(lab) is None
    (folder,) = (lab.store / "segments" / "t-0").iterdir()
    _rebuild(lab, f"t-0={folder.name.partition('-')[2]}")
    assert _at(lab) == (1, 0, None)


def test_generation_without_a_manifest_is_not_replaced_by_an_older_one(lab: Lab) -> None:
    (lab.folder() / MANIFEST).unlink()
    _lose(lab)
    assert _decided(lab) is None


def test_two_concurrent_rebuilds_write_no_duplicate_history_rows(lab: Lab) -> None:
    before = len(_segments(lab.state()))
    _lose(lab)
    with pytest.raises(ConflictError), at_step("manifests written", lambda: _rebuild(lab)):
        _rebuild(lab)
    assert len(_segments(lab.state())) == before
    restore.run(RestoreOptions(str(lab.store), str(lab.root / "older"), generation=1), Silent())
