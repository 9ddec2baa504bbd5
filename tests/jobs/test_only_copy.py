"""Vacuum never deletes, unasked, what the current generation's chain never read: ranges of offsets, not ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import rebuild_state, rollback, vacuum
from lastkey.jobs.command import cli
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.errors import UNDECIDED, MissingPathError
from lastkey.jobs.store import manifests, table
from lastkey.jobs.store.tables import open_state
from lastkey.jobs.topics import TopicFilter
from tests.builders.errors import raises_kind
from tests.builders.logs import START_MS, write_partition
from tests.builders.stores import StoreMaker, run_id

pytestmark = pytest.mark.slow

A, B, C, D = b"a" * 1000, b"b" * 2000, b"c" * 3000, b"d" * 4000
KEY = ("t", 0)


class Story:
    """One partition of a store, whose files are all half a month old when vacuum comes."""

    def __init__(self, folder: Path) -> None:
        self.maker = StoreMaker(folder)
        self.store = self.maker.store

    def generation(self, number: int, data: bytes, end: int, **how) -> None:
        self.maker.generation("t", 0, number, {how.get("start", 0): data}, end=end, **how)

    def roll_back(self, generation: int) -> rollback.RollbackReport:
        return rollback.run(RollbackOptions(str(self.store), generation), Silent())

    def vacuum(self, **options) -> vacuum.VacuumReport:
        for path in (self.store / "segments").rglob("*"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        return vacuum.run(VacuumOptions(str(self.store), **options), Silent())

    def rebuild(self, *choose: str) -> int:
        shutil.rmtree(self.store / "state", ignore_errors=True)
        report = rebuild_state.run(RebuildStateOptions(str(self.store), choose=choose), Silent())
        return report.decided[0].checkpoint.generation

    def current(self) -> tuple[int, int]:
        """Return the current generation's number, and that of the generation whose files it uses."""
        row = open_state(str(self.store)).checkpoints()[KEY]
        return row.generation, row.back_to or row.generation

    def there(self) -> list[int]:
        """Return the generations whose folder has a log."""
        return sorted({int(p.parent.name.partition("-")[0]) for p in (self.store / "segments").rglob("*.log")})


@pytest.fixture
def story(tmp_path):
    made = Story(tmp_path)
    made.generation(1, A, 100)
    return made


def _kept(report) -> list[tuple[int, list[list[int]]]]:
    return [(g["generation"], g["offsets"]) for g in report.kept]


def test_only_copy_is_kept_after_two_rollbacks_and_a_vacuum(story):
    """Two rollbacks write different marks, so the offsets that generation 4 has read remain recorded after the second
    one.
    """
    for number, data, end in ((2, B, 200), (3, C, 300), (4, D, 400)):
        story.generation(number, data, end)
    assert story.roll_back(3).partitions[0].lost == [[300, 399]], "the archive holds nothing"
    assert story.roll_back(1).partitions[0].lost == [[100, 299]]
    report = story.vacuum()
    assert _kept(report) == [(2, [[100, 199]]), (3, [[100, 299]]), (4, [[100, 399]]), (5, [[100, 299]])]
    assert story.there() == [1, 2, 3, 4]
    assert "--give-up 't'" in report.to_text()
    story.roll_back(4)
    assert story.current() == (7, 4)
    assert story.vacuum().kept == []
    assert story.there() == [4]


@pytest.mark.parametrize("how", [{"gaps": [[200, 299, -1, -1]]}, {"reset": True, "start": 300}, {"start": 300}])
def test_rolled_back_generation_is_kept_if_later_ones_skipped_its_offsets(story, how):
    """The archive lost offsets 200 to 299 after the rollback; the next generation reaches further all the same."""
    story.generation(2, B, 300)
    story.roll_back(1)
    story.generation(4, C, 500, **how)
    report = story.vacuum()
    ranges = [[200, 299]] if "gaps" in how else [[0, 299]] if "reset" in how else [[100, 299]]
    assert (2, ranges) in _kept(report)
    assert 2 in story.there()
    assert story.vacuum(give_up=TopicFilter(("t",))).kept == []
    assert story.there() == [4]


def test_generation_whose_offsets_the_chain_read_is_deleted(story):
    story.generation(2, B, 300)
    story.roll_back(1)
    story.generation(4, C, 350)
    assert story.vacuum().kept == []
    assert story.there() == [4]


def test_expired_segments_keep_no_generation(story):
    """Retention deleted segments that earlier runs had read, and segments that the same run read from the archive."""
    story.generation(2, B, 300)
    story.roll_back(1)
    story.generation(4, C, 600, start=400, log_start=0)
    assert story.vacuum().kept == []
    assert story.there() == [4]


@pytest.mark.parametrize("ahead", [False, True])
def test_run_killed_before_its_commit_never_becomes_current(story, ahead):
    """The clock of a run was three years ahead. Its generation must not count as current, and vacuum must keep the real
    one.
    """
    story.generation(2, B, 200)
    story.generation(3, b"", 250 if ahead else 200, start=200, dies=True)
    dead = story.maker.run_folder("t", 0, 3).name.partition("-")[2]
    with raises_kind(UNDECIDED, match=rf"generation 3 of run {dead} \(whole, perhaps never committed\)"):
        story.rebuild()
    assert story.rebuild(f"t-0={run_id(2)}") == 4, "above the one that died: it is not asked again"
    assert story.current() == (4, 2)
    assert [g for g, _ in _kept(story.vacuum())] == ([3] if ahead else [])
    assert 2 in story.there()
    assert story.rebuild() == 4


class Killed(BaseException):
    """The process was killed."""


def test_rebuild_killed_at_any_step_can_be_repeated(story, monkeypatch):
    """Vacuum sees no tables before the commit, and complete tables after it."""
    story.generation(2, B, 200)
    story.generation(3, C, 300, dies=True)
    began, steps, ends = story.store, 0, set()
    while "done" not in ends:
        story.store = began.with_name(f"killed{steps}")
        shutil.copytree(began, story.store)
        left = steps

        def step(real: Callable[..., Any], *given: Any, **more: Any) -> Any:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return real(*given, **more)

        with monkeypatch.context() as patch:
            for module, name in (
                (manifests, "put_file"),
                (manifests, "flush_all"),
                (table, "_write"),
                (table, "_commit"),
            ):
                patch.setattr(module, name, partial(step, getattr(module, name)))
            with contextlib.suppress(Killed):
                story.rebuild(f"t-0={run_id(2)}")
                ends.add("done")
        try:
            kept = _kept(story.vacuum())
            assert (story.current(), kept) == ((4, 2), [(3, [[200, 299]])])
            ends.add("made")
        except MissingPathError:
            ends.add("nothing")
        assert {2, 3} <= set(story.there())
        story.rebuild(f"t-0={run_id(2)}")
        assert story.current() in ((4, 2), (5, 2))
        assert _kept(story.vacuum())[-1] == (3, [[200, 299]])
        steps += 1
    assert ends == {"nothing", "made", "done"} and steps > 8


def test_generation_skipped_by_a_choice_is_kept(story):
    """Older tables were restored after a --reset: two generations have one number and different logs."""
    older = story.store.parent / "older"
    shutil.copytree(story.store / "state", older)
    story.generation(2, B, 200, reset=True)
    shutil.rmtree(story.store / "state")
    shutil.copytree(older, story.store / "state")
    story.maker.state = open_state(str(story.store))
    story.generation(2, C, 300, run=run_id(2, 1))
    with raises_kind(UNDECIDED, match=r"generation 2 of run .*generation 2 of run"):
        story.rebuild()
    assert story.rebuild(f"t-0={run_id(2, 1)}") == 3, "above both"
    assert _kept(story.vacuum()) == [(2, [[0, 199]])]
    assert sorted(p.read_bytes() for p in (story.store / "segments").rglob("*.log")) == [B, C]


# -- by real runs


class Runs:
    """One partition, whose archive is what a text says, and whose commands are real ones."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.archive, self.store = folder / "archive", folder / "store"

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        exit_code = cli.main([*words, "--store", str(self.store), "--json"])
        report: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        assert exit_code == code, report
        return report

    def compact(self, text: str, *more: str, lost: Sequence[int] = (), code: int = 0, **settings: Any) -> None:
        """Compact; lost: bases of segments that the archive does not hold."""
        shutil.rmtree(self.archive / "t-0", ignore_errors=True)
        write_partition(self.archive / "t-0", text)
        for base in lost:
            for path in (self.archive / "t-0").glob(f"{base:020}.*"):
                path.unlink()
        defaults = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0} | settings
        lines = ["[defaults]", *(f'"{name}" = {json.dumps(value)}' for name, value in defaults.items())]
        (self.folder / "settings.toml").write_text("\n".join(lines))
        words = ["--config", str(self.folder / "settings.toml"), "--now", str(NOW_MS), "--force", *more]
        self.run("compact", str(self.archive), *words, code=code)

    def rollback(self, generation: int) -> list[list[int]]:
        """Roll back, and return the offsets that nothing can read then."""
        (rolled,) = self.run("rollback", "--generation", str(generation))["partitions"]
        assert rolled["back_to"] == generation
        return rolled["lost"]

    def vacuum(self) -> list[tuple[int, list[list[int]]]]:
        """Run vacuum when all files are old; return the generations that it keeps for their offsets."""
        for path in (self.store / "segments").rglob("*"):
            os.utime(path, (START_MS / 1000, START_MS / 1000))
        return [(g["generation"], g["offsets"]) for g in self.run("vacuum")["kept"]]


@pytest.fixture
def runs(tmp_path, capsys):
    return Runs(tmp_path, capsys)


NOW_MS = START_MS + 3_600_000
FIRST = "a=1 b=1 || a=2 || c=1"
SECOND = f"{FIRST} || d=1 e=1 || f=1"
THIRD = f"{SECOND} || g=1"


@pytest.mark.parametrize("how", [["--set", "gaps=accept"], ["--reset", "t"]])
def test_only_copy_is_kept_after_a_rollback_and_a_gap(runs, how):
    """Offsets 4 and 5 are in generation 2 alone; the next one ends above it all the same."""
    runs.compact(FIRST)
    runs.compact(SECOND)
    assert runs.rollback(1) == []
    runs.compact(THIRD, *how, lost=(0, 2, 3, 4) if "--reset" in how else (4,))
    assert (2, [[4, 5]] if "gaps=accept" in how else [[0, 5]]) in runs.vacuum()
    assert runs.rollback(2) == []
    assert runs.rollback(4) == ([[4, 5]] if "gaps=accept" in how else [[0, 5]])
    notes = runs.run("rollback", "--generation", "2", "--dry-run")["notes"]
    assert not any("not in the archive" in note for note in notes)
    runs.run("verify")


def test_offsets_below_a_moved_log_start_did_not_expire(runs):
    """Only generation 2 contains offsets 3 to 6. One run of retention deleted the files on both sides of them."""
    runs.compact(FIRST)
    runs.compact(f"{THIRD} || h=1")
    assert runs.rollback(1) == []
    (runs.archive / "log-start-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    young = " || ".join(f"i{n}=1~{NOW_MS}" for n in range(3))
    retention = {"cleanup.policy": "compact,delete", "retention.ms": 1000, "segment.bytes": 100}
    runs.compact(f"{THIRD} || h=1 || {young}", lost=(0, 2, 3, 4, 6), **retention)
    assert (2, [[3, 6]]) in runs.vacuum()
    runs.rollback(2)


def test_archive_files_of_the_next_chain_do_not_count_as_a_copy(runs):
    """Generation 4 uses archive files for offsets that generation 2 had cleaned; then the archive loses these files."""
    runs.compact(FIRST)
    runs.compact(THIRD)
    assert runs.rollback(1) == []
    runs.compact(THIRD, **{"min.compaction.lag.ms": NOW_MS - START_MS - 3})
    runs.compact(f"{THIRD} || h=1", lost=(0, 2, 3, 4, 6), code=3)
    assert (2, [[4, 6]]) in runs.vacuum()
    runs.rollback(2)
    runs.run("restore", "--output", str(runs.folder / "restored"))
    runs.compact(f"{THIRD} || h=1", lost=(0, 2, 3, 4, 6))
    assert runs.vacuum() == []
