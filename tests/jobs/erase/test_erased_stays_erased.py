"""Attempts to restore erased records, to lose other records, and to find erased keys, by every other job."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import lastkey
from lastkey.jobs import rebuild_state, rollback
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RestoreOptions, RollbackOptions
from lastkey.jobs.errors import ERASED_RECORDS, RunningError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.topics import TopicFilter
from lastkey.jobs.verify import job as verify
from tests.builders.erasures import (
    NOW,
    Erasures,
    erased_from,
    erasure_rows,
    find_keys,
    made,
    read_records,
    vacuumed,
    verified,
)
from tests.builders.errors import raises_kind
from tests.builders.logs import write_partition
from tests.builders.stopping import start

pytestmark = pytest.mark.slow

T = TopicFilter(("t",))


def keys_in(folder: Path) -> list[bytes | None]:
    return [r.key for r in read_records(sorted(folder.rglob("*.log")))]


def test_key_with_only_a_tombstone_is_erased(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=- bob=1", "cem=1 | ann=-")
    assert world.erase("ann").result == "vacuum_needed"
    assert [r.key for r in world.current()] == [b"bob", b"cem"]
    vacuumed(world)
    assert find_keys([b"ann"], world.lab.store) == []


def test_erasing_the_empty_key_keeps_records_without_a_key(tmp_path: Path) -> None:
    world = made(tmp_path, "-=1 =1 bob=1", "=2 | -=2", defaults={"null.keys": "keep"})
    assert [r.key for r in world.current()] == [None, b"", b"bob", b"", None]
    assert world.erase("").erased.results[0].work.counters["dropped_erased"] == 2
    assert [r.key for r in world.current()] == [None, b"bob", None]
    assert verified(world) == []


def test_key_of_16_mib_is_erased(tmp_path: Path) -> None:
    long = "k" * (16 << 20)
    world = made(tmp_path, f"{{codec=zstd}} {long}=1 bob=1", f"cem=1 | {long[:-1]}=1")
    (tmp_path / "keys").write_text(f"{long}\r\n{long}\r\n")
    report = world.erase(keys=str(tmp_path / "keys"))
    assert (report.exit_code, report.n_keys) == (0, 1)
    assert [len(r.key or b"") for r in world.current()] == [3, 3, len(long) - 1]


def test_other_jobs_read_and_write_the_store_without_the_key(spark: Any, tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1 | {pid=1 txn} ann=2 cem=1 | {pid=1 commit}", "dan=1 | ann=-", "eve=1")
    assert world.erase("ann").exit_code == 0
    store, kept = str(world.lab.store), [b"bob", b"cem", b"dan", b"eve"]
    restore.run(RestoreOptions(store, str(tmp_path / "restored")), Silent())
    assert keys_in(tmp_path / "restored") == kept
    lastkey.convert(store=store, to="v3", output=tmp_path / "converted", config=world.config, engine="threads")
    assert not any(b"ann" in path.read_bytes() for path in (tmp_path / "converted").rglob("*.log"))
    assert main(["export", "--store", store, "--format", "ndjson", "--output", str(tmp_path / "exported")]) == 0
    assert find_keys([b"ann", b"YW5u"], tmp_path / "exported") == []
    assert verified(world) == []
    vacuumed(world)
    assert verified(world) == []
    assert main(["archive-needed", str(world.lab.archive), "--store", store]) == 0


def test_record_of_a_new_log_is_kept_after_a_rollback_to_the_old_log(tmp_path: Path) -> None:
    """The store keeps the bounds of both logs, so a second reset removes no more from the new log than the first."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    assert world.erase("ann").exit_code == 0
    world.topic_id = UUID(int=5)
    world.grow("ann=8 dan=8", roll=True)
    world.grow("eve=8", roll=True)
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    world.bound([b"ann"])
    world.grow("ann=9", roll=True)
    world.grow("fay=9", roll=True)
    assert world.compact().exit_code == 0
    rollback.run(RollbackOptions(str(world.lab.store), 2), Silent())
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    assert [r.value for r in world.current() if r.key == b"ann"] == [b"9"]
    assert world.judge() == ""
    assert verified(world) == []


def test_unsearched_generation_of_an_earlier_log_is_refused_after_an_erasure(tmp_path: Path) -> None:
    """A generation is refused if its log was never searched for a key that an erasure removed from another log of the
    partition.
    """
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    first, world.topic_id = world.topic_id, UUID(int=5)
    world.write()
    assert world.compact(reset=T).exit_code == 0
    assert world.erase("ann").exit_code == 0
    with raises_kind(ERASED_RECORDS, match="generation 1 may hold records"):
        rollback.run(RollbackOptions(str(world.lab.store), 1), Silent())
    world.topic_id = first
    world.write()
    assert {r.problem.kind for r in world.compact(reset=T).results if r.problem} == {"erased"}
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    assert [r.key for r in world.current()] == [b"bob", b"cem"]
    world.grow("ann=2", roll=True)
    world.grow("dan=1", roll=True)
    assert world.compact().exit_code == 0
    assert [r.value for r in world.current() if r.key == b"ann"] == [b"2"]
    assert vacuumed(world).exit_code == 0
    assert verified(world) == []


def reset(world: Erasures) -> None:
    """Lose a file of the store, so that the partition starts over."""
    lost = next(row for row in world.lab.state().current()[1]["t", 0] if row.root == "store" and row.size_bytes)
    world.lab.path(lost).unlink()
    assert world.compact().exit_code == 3
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0


def test_erasure_bounds_apply_while_the_topic_id_is_missing(tmp_path: Path) -> None:
    """Without its id the log counts as that of the previous generation; when the id returns, the erasures in between
    are applied.
    """
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    path = world.lab.archive / "t-0" / "partition.metadata"
    assert world.erase("ann").exit_code == 0
    world.grow("ann=2", roll=True)
    world.grow("dan=1", roll=True)
    assert world.compact().exit_code == 0
    path.unlink()
    reset(world)
    assert world.lab.state().checkpoints()["t", 0].topic_id is None
    assert [r.value for r in world.current() if r.key == b"ann"] == [b"2"]
    assert world.erase("bob").exit_code == 0
    reset(world)
    world.write()
    assert path.exists()
    for _ in range(2):
        reset(world)
        assert [(r.key, r.value) for r in world.current()] == [(b"cem", b"1"), (b"ann", b"2"), (b"dan", b"1")]


def put_log(world: Erasures, topic_id: UUID, *segments: str) -> None:
    """Let the archive hold another log, and reset to it."""
    world.topic_id, world.segments = topic_id, list(segments)
    world.write()
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0


def test_hint_names_give_up_for_the_only_copy_of_other_offsets(tmp_path: Path) -> None:
    """Generations that vacuum deletes unasked need no --give-up."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1 dan=1", "eve=1")
    write_partition(world.lab.archive / "other-0", "ann=1 bob=1 || cem=1")
    put_log(world, UUID(int=5), "bob=8 ann=8", "cem=8")
    asks = "vacuum --erased --give-up 't' deletes it, though it is the only copy of offsets 0 to 3"
    other = (
        "other-0: erased: expected none of the keys in generation 1 (older), found 1 key; vacuum --erased deletes it"
    )
    t_1 = f"t-0: erased: expected none of the keys in generation 1 (older), found 1 key; {asks}"
    t_2 = other.replace("other-0", "t-0").replace("generation 1", "generation 2")
    report = world.erase("ann")
    assert (report.exit_code, report.result) == (0, "vacuum_needed")
    lines = report.to_text().splitlines()
    assert [line for line in lines if "not gone yet: " in line and "erased: " in line] == [
        f"not gone yet: {each}" for each in (other, t_1, t_2)
    ]
    assert list(map(str, world.erase("ann", check=True).problems)) == [other, t_1, t_2]
    assert vacuumed(world).kept
    assert list(map(str, world.erase("ann", check=True).problems)) == [t_1]
    vacuumed(world, give_up=T)
    assert world.erase("ann", check=True).result == "erased"


def test_report_excludes_files_that_vacuum_keeps(tmp_path: Path) -> None:
    """Vacuum keeps the generations of partitions without erased records, and unknown folders."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1 dan=1", "eve=1")
    write_partition(world.lab.archive / "other-0", "ann=1 bob=1 || cem=1")
    assert world.compact().exit_code == 0
    write_partition(world.lab.archive / "other-0", "ann=1 bob=1 || cem=1 || ann=2 || cem=2 |")
    assert world.compact().exit_code == 0
    first = "vacuum --erased deletes it, once these keys are erased from its partition"
    problems = list(map(str, world.erase("ann", check=True).problems))
    assert any("other-0" in line and "(older)" in line and line.endswith(first) for line in problems), problems
    world.erase("ann", topics=T)
    problems = list(map(str, world.erase("ann", check=True).problems))
    [other] = [line for line in problems if "other-0" in line and "(older)" in line]
    assert "vacuum --erased leaves it" in other
    assert "erase these keys from its partition first" in other
    folder = next((world.lab.store / "segments" / "other-0").glob("1-*"))
    shutil.copytree(folder, world.lab.store / "segments" / f"gone-0.{'0' * 32}-delete" / folder.name)
    for check in (True, False):
        report = world.erase("ann", check=check)
        assert any("gone-0" in line for line in map(str, report.remains.generations)), report.to_text()
        assert report.result in ("vacuum_needed", "incomplete")


def values(world: Erasures, key: bytes) -> list[bytes | None]:
    return [r.value for r in world.current() if r.key == key]


def test_repeated_erasure_covers_new_records_of_an_unreachable_log(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    assert world.erase("ann").exit_code == 0
    world.grow("ann=2", roll=True)
    world.grow("dan=1", roll=True)
    assert world.compact().exit_code == 0  # generation 3
    first = world.topic_id, tuple(world.segments)
    put_log(world, UUID(int=5), "bob=8 ann=8", "cem=8")
    assert world.erase("ann").exit_code == 0  # nothing new goes from this log
    with raises_kind(ERASED_RECORDS):
        restore.run(RestoreOptions(str(world.lab.store), str(tmp_path / "out"), generation=3), Silent())
    vacuumed(world, give_up=T)
    assert world.erase("ann", check=True).result == "erased"
    assert find_keys([b"ann"], world.lab.store) == []
    generation = world.lab.state().checkpoints()["t", 0].generation
    world.erase("ann")
    assert world.lab.state().checkpoints()["t", 0].generation == generation
    world.topic_id, world.segments = first[0], list(first[1])
    world.write()
    report = world.compact(reset=T)
    assert "reads a log that was not searched for its keys since" in str(report.results[0].problem)
    put_log(world, first[0], *first[1])
    assert values(world, b"ann") == []
    assert world.erase("ann").exit_code == 0
    removed = [(before, dropped) for _, before, _, bounds, dropped, _ in erased_from(world.lab.store) if 5 in bounds]
    assert (generation, 2) in removed
    world.grow("ann=3", roll=True)
    world.grow("eve=1", roll=True)
    assert world.compact().exit_code == 0
    assert values(world, b"ann") == [b"3"]
    assert verified(world) == []


def test_erasure_of_an_empty_log_refuses_earlier_generations(tmp_path: Path) -> None:
    """Its bound is 0, and refuses the generations from before."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    log = world.lab.archive / "t-0"
    for path in log.glob("0*"):
        path.unlink()
    (log / f"{0:020}.log").touch()
    assert world.compact(reset=T).exit_code == 0
    assert world.erase("ann").result == "vacuum_needed"
    generation = world.lab.state().checkpoints()["t", 0].generation
    assert world.erase("ann").result == "vacuum_needed"
    assert world.lab.state().checkpoints()["t", 0].generation == generation
    world.write()
    with raises_kind(ERASED_RECORDS):
        rollback.run(RollbackOptions(str(world.lab.store), 1), Silent())
    vacuumed(world, give_up=T)
    assert find_keys([b"ann"], world.lab.store) == []
    assert world.compact().exit_code == 0
    assert values(world, b"ann") == [b"1"]  # new: it came after the erasure


def test_earlier_bounds_apply_after_a_rollback_to_a_known_topic_id(tmp_path: Path) -> None:
    """Bounds that were noted without it are of that log alone, and of none that comes later."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    assert world.erase("ann").exit_code == 0
    assert world.compact().exit_code == 0
    (world.lab.archive / "t-0" / "partition.metadata").unlink()
    reset(world)
    assert world.lab.state().checkpoints()["t", 0].topic_id is None
    rollback.run(RollbackOptions(str(world.lab.store), 2), Silent())
    put_log(world, UUID(int=5), "x=1 y=1 z=1 v=1", "ann=8", "cem=8")
    assert values(world, b"ann") == []


def test_reset_to_a_log_without_topic_id_applies_bounds_of_all_known_logs(tmp_path: Path) -> None:
    """Its bounds may belong to another log, so the partition waits for the topic id."""
    world = made(tmp_path, "x=1 y=1 z=1", "ann=1 bob=1", "cem=1")
    assert world.erase("ann").exit_code == 0
    first = world.topic_id, tuple(world.segments)
    put_log(world, UUID(int=5), "bob=8", "cem=8")
    world.topic_id, world.segments = first[0], list(first[1])
    world.write()
    (world.lab.archive / "t-0" / "partition.metadata").unlink()
    report = world.compact(reset=T, hmac_key=world.hmac_key)
    assert report.exit_code == 3
    assert "bring the file back" in str(report.results[0].problem)
    put_log(world, first[0], *first[1])
    assert values(world, b"ann") == []


def test_rollback_to_an_erased_generation_is_verified(tmp_path: Path) -> None:
    """The generation of a rollback states no erased records of its own."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    world.grow("bob=2", roll=True)
    world.compact()
    rollback.run(RollbackOptions(str(world.lab.store), 2), Silent())
    assert verified(world) == []
    assert world.judge() == ""
    report = world.erase("cem")
    assert report.exit_code == 0
    assert verified(world) == []
    assert world.judge() == ""
    world.compact()
    assert world.judge() == ""
    assert verified(world) == []


def test_restored_partition_can_replace_the_archive_after_an_erasure(tmp_path: Path) -> None:
    """Advice of the page: restored partitions replace those of the archive."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1 | dan=1", "eve=1")
    world.erase("ann")
    vacuumed(world)
    restore.run(RestoreOptions(str(world.lab.store), str(tmp_path / "restored")), Silent())
    (world.lab.archive / "t-0").rename(tmp_path / "old")
    (tmp_path / "restored" / "t-0").rename(world.lab.archive / "t-0")
    assert world.compact().exit_code == 0
    assert [r.key for r in world.current()] == [b"bob", b"cem", b"dan", b"eve"]
    assert world.erase("ann", check=True).result == "erased"
    assert world.erase("ann").remains.archive == 0


@pytest.mark.parametrize("wait", [False, True])
def test_erasure_during_a_commit_of_another_run_is_a_conflict(tmp_path: Path, wait: bool) -> None:
    """The erasure either includes the other run's commit, or reports the active run and erases nothing."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.grow("ann=2 bob=2", roll=True)
    world.grow("dan=1", roll=True)
    config = tmp_path / "cleaner.toml"
    config.write_text('[defaults]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "threads"\n')
    words = ("compact", world.lab.archive, "--store", world.lab.store, "--config", config, "--force")
    other = start(tmp_path / "other", [*map(str, words), "--now", str(NOW)], "manifests written")
    other.wait_until_reached()
    if wait:
        with ThreadPoolExecutor(1) as pool:
            erased = pool.submit(world.erase, "ann", wait=True)
            other.release()
            assert other.finish()[0] == 0
            assert erased.result().exit_code == 0
        assert world.lab.state().checkpoints()["t", 0].generation == 3
        assert b"ann" not in {r.key for r in world.current()}
    else:
        with pytest.raises(RunningError):
            world.erase("ann")
        other.release()
        assert other.finish()[0] == 0
        assert erasure_rows(world.lab.store) == []
    assert world.judge() == ""


def test_erasure_bounds_apply_to_alternating_logs(tmp_path: Path) -> None:
    """A topic is made again, shorter, and then the archive has the first log once more. Offsets of one log are no
    bounds in the other: all that a reset reads is searched, and no generation of before an erasure comes back.
    """
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    world.grow("ann=2 | dan=1", roll=True)
    world.grow("eve=1", roll=True)
    world.compact()  # generation 3: what was written after the erasure
    world.erase("ann")
    first, world.topic_id, world.segments = (world.topic_id, world.segments), UUID(int=5), ["bob=8", "cem=8"]
    world.write()
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    for refused in (1, 3):
        with raises_kind(ERASED_RECORDS):
            restore.run(RestoreOptions(str(world.lab.store), str(tmp_path / "out"), generation=refused), Silent())
    third = UUID(int=6), ["y=1", *["ann=9 | z=1"] * 9]
    for world.topic_id, world.segments in (first, third, first):
        world.write()
        assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
        assert b"ann" not in {r.key for r in world.current()}
    vacuumed(world, give_up=T)
    assert find_keys([b"ann"], world.lab.store) == []


def test_partition_with_all_records_erased_is_kept(tmp_path: Path) -> None:
    """A partition whose keys were all erased, and a partition with keyless records that compact does not select."""
    world = made(tmp_path, "ann=1 bob=1 | {pid=1} ann=2", "ann=3 | cem=1")
    write_partition(world.lab.archive / "plain-0", "-=1 ann=1 || {pid=2} -=2 ann=2 | bob=1")
    assert world.erase("ann", "bob", "cem").exit_code == 0
    assert world.current() == []
    plain = [r for row in world.lab.state().current()[1]["plain", 0] for r in read_records([world.lab.path(row)])]
    assert [(r.offset, r.key) for r in plain] == [(0, None), (2, None)]
    assert verified(world) == []
    restore.run(RestoreOptions(str(world.lab.store), str(tmp_path / "restored")), Silent())
    assert verify.run(VerifyOptions(str(tmp_path / "restored")), Silent()).problems == []
    world.grow("ann=4", roll=True)
    world.grow("dan=1", roll=True)
    assert world.compact(sealed=True, topics=T).exit_code == 0
    assert [r.key for r in world.current()] == [b"ann", b"dan"]
    assert verified(world) == []


def test_erasure_bounds_are_kept_by_rebuilt_tables(tmp_path: Path) -> None:
    """rebuild-state restores the partitions' rows with the removed records; repeating the command adds a row for the
    search.
    """
    world = made(tmp_path, "ann=1 bob=1", "cem=1 | ann=2")
    world.erase("ann")
    before = erased_from(world.lab.store)
    shutil.rmtree(world.lab.store / "state")
    rebuild_state.run(RebuildStateOptions(str(world.lab.store)), Silent())
    assert world.erase("ann").exit_code == 0
    assert erased_from(world.lab.store) == before and len(erasure_rows(world.lab.store)) == 1
    assert world.judge() == ""


def test_problem_counts_many_offsets_and_names_a_few(tmp_path: Path) -> None:
    world = made(tmp_path, " | ".join(f"ann{n}=1 bob{n}=1" for n in range(1500)), "cem=1")
    assert world.erase(*(f"ann{n}" for n in range(1500))).exit_code == 0
    ((*_, removed, ranges),) = erased_from(world.lab.store)
    assert (removed, len(ranges), ranges[:2], ranges[-1]) == (1500, 1000, [[0, 0], [2, 2]], [1998, 1998])


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_different_copy_of_a_referenced_segment_restores_no_erased_key(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, grown: bool
) -> None:
    """The other copy resembles the searched segment and still holds the key."""
    if engine == "spark":
        request.getfixturevalue("spark")
    world = made(tmp_path, "bob=1", "{base=1 last=2} dan=1@2 | cem=1")
    world.engine = engine
    assert world.erase("ann").exit_code == 0
    generation = world.lab.state().checkpoints()["t", 0].generation
    world.segments[-1] = "{base=1 last=2} ann=1@1 dan=1@2 | cem=1" + " | eve=1" * grown
    world.write()
    for run in (world.compact, lambda **given: world.erase("bob", **given)):
        report = run()
        assert report.exit_code != 0
        (problem,) = [result.problem for result in getattr(report, "results", None) or report.erased.results]
        assert (problem.kind, problem.state) == ("changed", "diverged")
        assert "--reset with --hmac-key" in str(problem)
        assert world.lab.state().checkpoints()["t", 0].generation == generation
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    assert world.compact().exit_code == 0
    assert world.judge() == ""
    assert b"ann" not in {r.key for r in world.current()}
    assert verified(world) == []
