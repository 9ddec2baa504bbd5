"""Bounds of erasures in tables rebuilt from manifests: no erased record returns, and no new one is removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lastkey.jobs import rebuild_state
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions
from lastkey.jobs.errors import UNDECIDED, UsageError
from lastkey.jobs.store.erasures import parse_bounds
from lastkey.jobs.topics import TopicFilter
from tests.builders.erasures import Erasures, find_keys, made
from tests.builders.errors import raises_kind
from tests.builders.logs import TOPIC_ID, write_partition
from tests.builders.steps import at_step, interrupt

pytestmark = pytest.mark.slow  # whole runs

T = TopicFilter(("t",))


def lose_tables(world: Erasures, tmp_path: Path) -> None:
    (world.lab.store / "state").rename(tmp_path / "aside")


def rebuild(world: Erasures, *choose: str) -> Any:
    return rebuild_state.run(RebuildStateOptions(str(world.lab.store), choose=choose), Silent())


def die_before_the_commit(world: Erasures) -> None:
    with pytest.raises(KeyboardInterrupt), at_step("manifests written", interrupt):
        world.compact()


def damage_manifest(world: Erasures) -> None:
    (world.lab.folder() / "manifest.json").write_bytes(b"{}")


def run_id(folder: Path) -> str:
    return folder.name.partition("-")[2]


def made_again(tmp_path: Path) -> Erasures:
    """Make a store whose topic was made again after an erasure, and reset."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1 | dan=1 | eve=1 | fay=1", "gus=1")
    world.erase("ann")
    world.topic_id, world.segments = UUID(int=5), []
    world.grow("bob=8", roll=True)
    world.grow("cem=8", roll=True)
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    return world


def test_requester_with_an_erased_key_is_refused(tmp_path):
    world = made(tmp_path, "customer-4711=1 bob=1", "cem=1")
    with pytest.raises(UsageError, match="--by: expected the requester, found one of the keys"):
        world.erase("customer-4711", by="customer-4711 asked on 3 May")
    assert not find_keys([b"4711 asked"], world.lab.store)
    assert world.lab.state().checkpoints()["t", 0].erased is None


def test_partition_whose_manifest_may_have_an_erasure_is_not_omitted(tmp_path):
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    write_partition(world.lab.archive / "u-0", "x=1 || y=1")
    world.compact()
    world.erase("ann")
    damage_manifest(world)
    lose_tables(world, tmp_path)
    with raises_kind(UNDECIDED):
        rebuild(world)
    with pytest.raises(UsageError, match="t-0=none: records of it were erased, or may have been"):
        rebuild(world, "t-0=none")


def test_generation_of_a_killed_run_with_the_same_number_is_refused(tmp_path, monkeypatch):
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.grow("dan=1", roll=True)
    die_before_the_commit(world)
    (dead,) = (world.lab.store / "segments" / "t-0").glob("2-*")
    world.erase("ann")
    damage_manifest(world)
    lose_tables(world, tmp_path)
    with pytest.raises(UsageError, match="may have erased records"):
        rebuild(world, f"t-0={run_id(dead)}")


def test_unreadable_generation_with_the_number_of_the_parent_is_refused(tmp_path):
    """Two histories of one store: the other one's erasures are unknown."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    shutil.copytree(world.lab.store, tmp_path / "before")
    world.erase("ann")
    damage_manifest(world)
    erased = world.lab.folder().relative_to(world.lab.store)
    world.lab.store.rename(tmp_path / "other")
    shutil.copytree(tmp_path / "before", world.lab.store)
    shutil.copytree(tmp_path / "other" / "erasures", world.lab.store / "erasures")
    for _ in range(2):
        world.grow("dan=1", roll=True)
        assert world.compact().exit_code == 0
    chosen = run_id(world.lab.folder())
    shutil.copytree(tmp_path / "other" / erased, world.lab.store / erased)
    lose_tables(world, tmp_path)
    with raises_kind(UNDECIDED):
        rebuild(world)
    with pytest.raises(UsageError, match="may have erased records"):
        rebuild(world, f"t-0={chosen}")


def test_bounds_of_a_log_do_not_apply_to_its_recreated_topic(tmp_path, monkeypatch):
    world = made_again(tmp_path)
    current, bounds = world.lab.folder(), parse_bounds(world.lab.state().checkpoints()["t", 0])
    world.grow("dan=8", roll=True)
    die_before_the_commit(world)
    lose_tables(world, tmp_path)
    with raises_kind(UNDECIDED):
        rebuild(world)
    rebuild(world, f"t-0={run_id(current)}")
    assert parse_bounds(world.lab.state().checkpoints()["t", 0]) == bounds
    world.grow("ann=9", roll=True)  # a new record of a new log
    world.grow("zoe=9", roll=True)
    assert world.compact().exit_code == 0
    assert b"ann" in {record.key for record in world.current()}


def test_bounds_of_a_later_generation_replace_those_of_its_parent(tmp_path, monkeypatch):
    world = made_again(tmp_path)
    world.erase("ann")  # all keys of the first log must be erased
    world.topic_id, world.segments = TOPIC_ID, ["ann=1 bob=1", "cem=1", "ann=2", "dan=1"]
    world.write()
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    world.grow("ann=3", roll=True)
    world.grow("eve=1", roll=True)
    assert world.compact().exit_code == 0
    current, bounds = world.lab.folder(), parse_bounds(world.lab.state().checkpoints()["t", 0])
    world.grow("fay=1", roll=True)
    die_before_the_commit(world)
    lose_tables(world, tmp_path)
    rebuild(world, f"t-0={run_id(current)}")
    assert parse_bounds(world.lab.state().checkpoints()["t", 0]) == bounds
    assert world.compact().exit_code == 0
    assert [(r.key, r.value) for r in world.current() if r.key == b"ann"] == [(b"ann", b"3")]


def test_grown_generation_of_a_recreated_topic_can_be_chosen(tmp_path, monkeypatch):
    world = made_again(tmp_path)
    world.grow("dan=8", roll=True)
    assert world.compact().exit_code == 0
    current = world.lab.folder()
    world.grow("eve=8", roll=True)
    die_before_the_commit(world)
    lose_tables(world, tmp_path)
    rebuild(world, f"t-0={run_id(current)}")
    assert world.compact().exit_code == 0
    assert {record.key for record in world.current()} == {b"bob", b"cem", b"dan", b"eve"}
