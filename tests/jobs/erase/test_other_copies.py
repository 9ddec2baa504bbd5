"""Archives that change under a generation with bounds: no erased record returns; healthy partitions stay cleanable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import COMPACT, offset_checkpoint
from tests.builders.erasures import Erasures, verified
from tests.builders.logs import write_partition

pytestmark = pytest.mark.slow

T = TopicFilter(("t",))

# Offsets 4 to 7 are in no batch; a cleaner was there, as batches below and above show
BEFORE = ("ann=1 bob=1", "{base=2 last=3} dan=1@3", "", "{base=8 last=9} eve=1@9 | fay=1")
BASES = {1: 2, 2: 6, 3: 8}


def put(world: Erasures, *segments: str, bases: dict[int, int] = BASES) -> None:
    folder = world.lab.archive / "t-0"
    shutil.rmtree(folder, ignore_errors=True)
    world.segments = list(segments)
    write_partition(folder, "||".join(segments), bases=bases, topic_id=world.topic_id)


def begun(world: Erasures) -> None:
    """Make a store, which an erasure needs, of another topic."""
    write_partition(world.lab.archive / "u-0", "x=1 || x=2")
    assert world.compact(topics=TopicFilter(("u",))).exit_code == 0


def searched(tmp_path: Path, *, cleaned: int = 0) -> Erasures:
    """Return a world of which `ann` was erased. Only the first segment held her, and lies in the store since.

    cleaned: the archive's cleaner checkpoint.
    """
    world = Erasures(tmp_path, dict(COMPACT))
    put(world, *BEFORE)
    begun(world)
    if cleaned:
        offset_checkpoint(world.lab.archive / "cleaner-offset-checkpoint", {"t-0": cleaned})
    assert world.erase("ann").exit_code == 0
    assert [row.root for row in world.lab.state().current()[1]["t", 0]] == ["store", *["archive"] * 3]
    return world


@pytest.mark.parametrize(
    ("segments", "bases"),
    [
        ((*BEFORE[:2], "{base=6 last=7} ann=1@7", BEFORE[3]), BASES),  # an empty one is full
        ((BEFORE[0], f"{BEFORE[1]} | {{base=4 last=5}} ann=1@5", *BEFORE[2:]), BASES),  # a closed one grew
        ((*BEFORE[:2], "{base=4 last=5} ann=1@5", *BEFORE[2:]), {1: 2, 2: 4, 3: 6, 4: 8}),  # one more
    ],
    ids=["filled", "grown", "new"],
)
@pytest.mark.parametrize("cleaned", [0, 8])
def test_additional_records_below_the_bound_are_detected(
    tmp_path: Path, segments: tuple[str, ...], bases: dict[int, int], cleaned: int
) -> None:
    world = searched(tmp_path, cleaned=cleaned)
    put(world, *segments, bases=bases)
    for run in (world.compact, lambda: world.erase("bob")):
        report = run()
        assert report.exit_code != 0
        assert world.judge() == ""
        assert b"ann" not in {r.key for r in world.current()}
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    assert world.judge() == ""
    assert verified(world) == []


def test_plain_growth_continues(tmp_path: Path) -> None:
    world = searched(tmp_path, cleaned=8)
    put(world, *BEFORE[:3], f"{BEFORE[3]} | ann=2", "gus=1")
    assert world.compact().exit_code == 0
    assert b"ann" in {r.key for r in world.current()}
    assert world.judge() == ""
    assert verified(world) == []


def check_continues_without_problem(world: Erasures, *, whole: bool = True, **options: Any) -> None:
    report = world.compact(**options)
    assert [str(r.problem) for r in report.results if r.problem] == []
    assert report.exit_code == 0
    assert not whole or world.judge() == ""  # it reads whole batches only
    assert verified(world) == []


def last_log(world: Erasures) -> Path:
    return sorted((world.lab.archive / "t-0").glob("*.log"))[-1]


@pytest.mark.parametrize("what", ["again", "torn", "zeros", "disk", "watermark", "sealed", "touched", "dry_run"])
def test_a_healthy_archive_continues(tmp_path: Path, what: str) -> None:
    world = searched(tmp_path, cleaned=8)
    folder = world.lab.archive / "t-0"
    if what == "again":
        shutil.copytree(folder, tmp_path / "copy")
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)
    elif what == "torn":
        data = last_log(world).read_bytes()
        last_log(world).write_bytes(data + data[:70])
    elif what == "zeros":
        data = last_log(world).read_bytes()
        last_log(world).write_bytes(data + bytes(10_000))
    elif what == "watermark":
        offset_checkpoint(world.lab.archive / "replication-offset-checkpoint", {"t-0": 3})
    elif what == "touched":
        for path in folder.glob("*.log"):
            os.utime(path)
    elif what == "disk":
        (world.lab.archive / "disk2").mkdir()
        shutil.move(folder, world.lab.archive / "disk2" / "t-0")
        report = world.compact()
        assert [str(r.problem) for r in report.results if r.problem] == []
        return
    check_continues_without_problem(
        world, whole=what not in ("torn", "zeros"), sealed=what == "sealed", dry_run=what == "dry_run"
    )


def test_completed_torn_tail_continues(tmp_path: Path) -> None:
    world = searched(tmp_path)
    name, grown = last_log(world).name, (*BEFORE[:3], f"{BEFORE[3]} | gus=1")
    write_partition(tmp_path / "grown", "||".join(grown), bases=BASES)
    last_log(world).write_bytes((tmp_path / "grown" / name).read_bytes()[:-5])
    check_continues_without_problem(world, whole=False)
    put(world, *grown)
    check_continues_without_problem(world)
    put(world, *grown, "hal=1")
    check_continues_without_problem(world)
    assert b"gus" in {r.key for r in world.current()}


@pytest.mark.parametrize("watermark", [10, 11])
def test_high_watermark_inside_a_segment_continues(tmp_path: Path, watermark: int) -> None:
    text = "{base=8 last=9} eve=1@9 | {base=10 last=12} fay=1 gus=1 | ann=7"
    put(world := Erasures(tmp_path, dict(COMPACT)), *BEFORE[:3], text)
    at = world.lab.archive / "replication-offset-checkpoint"
    offset_checkpoint(at, {"t-0": watermark})
    begun(world)
    assert world.erase("ann").exit_code == 0
    check_continues_without_problem(world)
    at.unlink()
    check_continues_without_problem(world)
    put(world, *BEFORE[:3], f"{text} | hal=1", "ivy=1")
    check_continues_without_problem(world)
    assert b"ann" in {r.key for r in world.current()}


@pytest.mark.parametrize(
    "settings",
    [
        {"compaction.schedule": "yield"},
        {"retention.exact": True, "retention.ms": 3_599_999, "cleanup.policy": "compact,delete"},
    ],
)
def test_every_kind_of_run_detects_a_different_copy(tmp_path: Path, settings: dict[str, Any]) -> None:
    for segments, bases, healthy in (
        ((*BEFORE[:3], f"{BEFORE[3]} | ann=2", "gus=1"), BASES, True),
        ((*BEFORE[:2], "{base=6 last=7} ann=1@7", BEFORE[3]), BASES, False),
        ((BEFORE[0], "{base=2 last=3} ann=1@2 dan=1@3", *BEFORE[2:]), BASES, False),
    ):
        world = searched(tmp_path / f"{len(segments)}{healthy}{segments[1] == BEFORE[1]}", cleaned=8)
        world.defaults |= settings
        put(world, *segments, bases=bases)
        report = world.compact()
        assert (report.exit_code == 0) == healthy, [str(r.problem) for r in report.results]
        if not healthy:
            assert report.results[0].problem.state == "diverged"
            no_key = world.compact(reset=T)
            assert no_key.results[0].problem.kind == "erased"
            assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
            assert b"ann" not in {r.key for r in world.current()}
            assert world.compact().exit_code == 0
        else:
            assert b"ann" in {r.key for r in world.current()}
        assert verified(world) == []
