"""`erase` as users run it: removed records, unchanged bytes, commands that fail later, and its row in the table."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lastkey.jobs import rebuild_state, rollback, vacuum
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RestoreOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.compact import waves
from lastkey.jobs.compact.commit_rows import make_commit
from lastkey.jobs.erase import job as erase
from lastkey.jobs.errors import ERASED_RECORDS, UsageError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.store.erasures import derive_secret, parse_bounds
from lastkey.jobs.store.rows import Commit
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.compact.clean.key_kernels import mark_others
from lastkey.udfs.storage import open_root, write_file
from tests.builders.archives import COMPACT, offset_checkpoint
from tests.builders.erasures import (
    NOW,
    SECRET,
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
from tests.builders.formats import as_v3
from tests.builders.logs import START_MS, log_text, write_partition
from tests.builders.s3_server import BUCKET, put, s3_server
from tests.builders.trees import tree
from tests.reference.log import ZSTD, decode_log

pytestmark = pytest.mark.slow

T = TopicFilter(("t",))


def texts(world: Erasures) -> str:
    return log_text(*(world.lab.path(row) for row in world.lab.state().current()[1]["t", 0]))


def test_erasure_removes_only_the_keys(tmp_path: Path) -> None:
    """This includes the active segment and all codecs. Complete batches are copied byte for byte; emptied batches keep
    their header.
    """
    world = made(
        tmp_path,
        "ann=1 bob=1 | {pid=7} ann=2 | {codec=zstd} cem=1 dan=1",
        "{codec=gzip pid=7} bob=2 ann=3 | {codec=lz4} eve=1 | {codec=snappy pid=8} ann=- ",
        "{codec=zstd pid=7} ann=4 eve=2 | fay=1",
    )
    archive = tree(world.lab.archive)
    before = world.current()
    report = world.erase("ann", by="letter of 3 May")
    assert (report.exit_code, report.result) == (0, "vacuum_needed")
    after = world.current()
    assert after == [r for r in before if r.key != b"ann"]
    assert [r.key for r in before].count(b"ann") == report.erased.results[0].work.counters["dropped_erased"] == 2
    rows = world.lab.state().current()[1]["t", 0]
    batches = {b.last_offset: b for row in rows for b in decode_log(world.lab.path(row).read_bytes())}
    of_archive = [b for p in sorted((world.lab.archive / "t-0").glob("*.log")) for b in decode_log(p.read_bytes())]
    same = [b for b in of_archive if b.base_offset >= 9 and not any(r.key == b"ann" for r in b.records)]
    assert same
    assert all(batches[b.last_offset].data == b.data for b in same)
    emptied = batches[8]  # batch of producer 8
    assert (emptied.records, emptied.producer_id, emptied.base_sequence) == ((), 8, 0)
    assert tree(world.lab.archive) == archive
    assert verified(world) == []
    (row,) = erasure_rows(world.lab.store)
    assert (row["job"], row["who"], row["result"]) == ("erase", "letter of 3 May", "vacuum_needed")
    assert (row["id"], row["keys"], row["found_current"], row["not_read"]) == (report.erasure, 1, 0, 0)
    assert erased_from(world.lab.store) == [("t-0", 1, 2, [12], 2, [[8, 9]])]
    assert vacuumed(world).exit_code == 0
    assert find_keys([b"ann"], world.lab.store) == []
    assert world.erase("ann", check=True, no_archive=True).result == "erased"
    results = [(r["job"], r["result"]) for r in erasure_rows(world.lab.store)]
    assert results == [("erase", "vacuum_needed"), ("erase --check", "erased")]


@pytest.mark.parametrize("recompress", [False, True])
def test_erasure_of_a_recompressed_store_keeps_the_codec(tmp_path: Path, recompress: bool) -> None:
    """Batches that lose the key get the codec of compression.type; all others are copied byte for byte."""
    settings = {"compression.type": "zstd", "recompress": recompress}
    world = made(
        tmp_path,
        "{codec=gzip pid=7} ann=1 bob=1 ann=2 | {codec=lz4} cem=1 | {pid=8 txn codec=gzip} dan=1 | {pid=8 commit}",
        "{codec=gzip} eve=1 ann=3 fay=1 | {codec=snappy} gus=1 | dan=2",
        "hal=1",
        defaults=settings,
    )
    before = world.current()
    rows = world.lab.state().current()[1]["t", 0]
    stored = {b.base_offset: b for row in rows for b in decode_log(world.lab.path(row).read_bytes())}
    report = world.erase("ann")
    assert (report.exit_code, report.result) == (0, "vacuum_needed")
    assert world.current() == [r for r in before if r.key != b"ann"]
    rows = world.lab.state().current()[1]["t", 0]
    after = {b.base_offset: b for row in rows for b in decode_log(world.lab.path(row).read_bytes())}
    assert after.keys() == stored.keys()
    for base, batch in stored.items():
        if not any(record.key == b"ann" for record in batch.records):
            assert after[base].data == batch.data
        elif after[base].records:
            assert after[base].codec == ZSTD
    assert any(r.key == b"ann" for batch in stored.values() for r in batch.records)
    assert verified(world) == []
    assert vacuumed(world).exit_code == 0
    assert world.erase("ann", check=True, no_archive=True).result == "erased"


def test_digest_equals_openssl(tmp_path: Path) -> None:
    """A user who has the key file can test whether a key was erased."""
    world = made(tmp_path, "ann=1", "b=1")
    world.erase("ann")
    (path,) = (world.lab.store / "erasures").iterdir()
    hexkey = struct.pack("<QQ", *derive_secret(SECRET)).hex()
    output = subprocess.run(
        ["openssl", "mac", "-macopt", f"hexkey:{hexkey}", "-macopt", "size:16", "SIPHASH"],
        input=b"ann", capture_output=True, check=True,
    ).stdout.decode().strip()  # fmt: skip
    assert path.read_bytes()[8:].hex().upper() == output
    assert path.stat().st_mode & 0o077 == 0


def test_erasure_does_not_change_outcomes_of_transactions(tmp_path: Path) -> None:
    """Aborted records are erased too. The emptied batch keeps an open transaction open, and its outcome does not
    change.
    """
    world = made(tmp_path, "{pid=1 txn} ann=1 | {pid=1 abort}", "b=1", "{pid=2 txn} ann=2 | c=1")
    assert world.erase("ann").exit_code == 0
    assert b"ann" not in {r.key for r in world.current()}
    assert "[3-3]" in texts(world)
    assert verified(world) == []
    world.grow("{pid=2 txn} d=1 | {pid=2 commit} | e=1", roll=False)
    world.grow("f=1", roll=True)
    world.compact()
    assert world.judge() == ""
    assert {r.key for r in world.current()} == {b"b", b"c", b"d", b"e", b"f"}


def test_later_records_of_an_erased_key_are_kept(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    world.grow("ann=new", roll=False)
    world.grow("dan=1", roll=True)
    world.compact()
    assert [(r.key, r.offset) for r in world.current() if r.key == b"ann"] == [(b"ann", 3)]
    assert world.judge() == ""
    assert verified(world) == []
    assert world.erase("ann").erased.results[0].work.counters["dropped_erased"] == 1
    assert b"ann" not in {r.key for r in world.current()}


def test_second_erasure_changes_nothing(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    again = world.erase("ann")
    assert [r.status for r in again.erased.results] == ["not_due"]
    assert world.lab.state().checkpoints()["t", 0].generation == 2
    assert len(list((world.lab.store / "erasures").iterdir())) == 1


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "{codec=zstd} ann=2 cem=1")
    assert world.hmac_key
    before = tree(world.root)
    report = world.erase("ann", dry_run=True)
    assert report.erased.results[0].work.counters["dropped_erased"] == 2
    assert "2 of erased keys" in report.to_text()
    assert tree(world.root) == before


def test_no_command_restores_erased_records(tmp_path: Path) -> None:
    """Rollback, restore, readers of an older generation, and rebuild-state with a choice are refused."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    (erasure,) = parse_bounds(world.lab.state().checkpoints()["t", 0])
    store = str(world.lab.store)
    for refused in (
        lambda: rollback.run(RollbackOptions(store, 1), Silent()),
        lambda: restore.run(RestoreOptions(store, str(tmp_path / "out"), generation=1), Silent()),
        lambda: restore.run(RestoreOptions(store, str(tmp_path / "out"), as_of=_began(world, 1)), Silent()),
    ):
        with raises_kind(ERASED_RECORDS, match=erasure):
            refused()
    assert (
        main(["export", "--store", store, "--generation", "1", "--format", "ndjson", "--output", str(tmp_path / "x")])
        == 2
    )
    assert main(["lookup", "--store", store, "--generation", "1", "--offset", "0"]) == 2
    world.grow("dan=1", roll=True)
    world.compact()
    assert main(["rollback", "--store", store, "--generation", "2"]) == 0
    assert world.judge() == ""
    runs = {g: next((world.lab.store / "segments" / "t-0").glob(f"{g}-*")).name.partition("-")[2] for g in (1, 2)}
    (world.lab.store / "state").rename(tmp_path / "aside")
    for choice in (runs[1], "none"):
        with pytest.raises(UsageError, match="eras"):
            rebuild_state.run(RebuildStateOptions(store, choose=(f"t-0={choice}",)), Silent())
    rebuild_state.run(RebuildStateOptions(store, choose=(f"t-0={runs[2]}",)), Silent())
    row = world.lab.state().checkpoints()["t", 0]
    assert parse_bounds(row) == {erasure: {row.topic_id: 3}}
    assert world.judge() == ""


def _began(world: Erasures, generation: int) -> int:
    (chain,) = world.lab.state().histories().values()
    return next(run.started_ms for run in chain if run.generation_after == generation)


def test_rebuild_state_skips_no_generation_that_may_have_erased(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    run_id = world.lab.folder().name.partition("-")[2]
    world.erase("ann")
    (world.lab.folder() / "manifest.json").write_bytes(b"{}")
    (world.lab.store / "state").rename(tmp_path / "aside")
    with pytest.raises(UsageError, match=r"generation 2, whose manifest\.json cannot be read"):
        rebuild_state.run(RebuildStateOptions(str(world.lab.store), choose=(f"t-0={run_id}",)), Silent())


def test_reset_requires_the_hmac_key_and_applies_the_bounds(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1 | ann=2", "cem=1")
    world.erase("ann")
    world.grow("ann=new", roll=False)
    (ours, *_) = [row for row in world.lab.state().current()[1]["t", 0] if row.root == "store"]
    world.lab.path(ours).unlink()
    without = world.compact(reset=T)
    assert without.exit_code == 3
    assert "--hmac-key, the key of erasure" in without.to_text()
    other = tmp_path / "other.key"
    other.write_bytes(bytes(32))
    with pytest.raises(UsageError, match="found another one"):
        world.compact(reset=T, hmac_key=str(other))
    with pytest.raises(UsageError, match="found another one"):
        world.erase("bob", hmac_key=str(other))
    report = world.compact(reset=T, hmac_key=world.hmac_key)
    assert report.exit_code == 0
    assert "erased, not compacted; the next run compacts: t-0" in report.to_text()
    assert [r.offset for r in world.current() if r.key == b"ann"] == [4]
    assert world.judge() == ""
    assert verified(world) == []
    world.compact()
    assert world.judge() == ""


def test_truncated_log_restores_no_erased_record(tmp_path: Path) -> None:
    """After a reset to a shorter log the bound lies above its end: until it is reached, runs need the key."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1", "ann=2", "dan=1")
    world.erase("ann")
    segments, world.segments = world.segments, world.segments[:2]
    world.write()
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    world.segments = segments
    world.write()
    assert world.compact().exit_code == 3
    assert world.compact(hmac_key=world.hmac_key).exit_code == 0
    assert world.judge() == ""
    world.grow("eve=1", roll=True)
    assert world.compact().exit_code == 0
    assert world.judge() == ""


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_missing_file_of_key_digests_stops_a_reset(tmp_path: Path, damage: str) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    world.erase("ann")
    (path,) = (world.lab.store / "erasures").iterdir()
    data = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    world.topic_id = UUID(int=5)
    world.write()
    report = world.compact(reset=T, hmac_key=world.hmac_key)
    assert report.exit_code == 3
    assert "bring the file back" in report.to_text()
    path.write_bytes(data)
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    world.bound([b"ann"])
    assert world.judge() == ""


def test_recreated_topic_is_a_different_log(tmp_path: Path) -> None:
    """The archive as it is at the reset loses the keys once more; later records are new."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1", "dan=1 eve=1")
    world.erase("ann")
    world.topic_id, world.segments = UUID(int=5), []
    world.grow("ann=8 bob=8", roll=True)
    world.grow("cem=8", roll=True)
    assert world.compact(reset=T, hmac_key=world.hmac_key).exit_code == 0
    assert [r.key for r in world.current()] == [b"bob", b"cem"]
    world.grow("ann=9", roll=False)
    world.grow("z=1", roll=True)
    assert world.compact().exit_code == 0
    assert [r.offset for r in world.current() if r.key == b"ann"] == [3]


def test_erasure_covers_partitions_of_every_kind(tmp_path: Path) -> None:
    """Partitions: missing in the archive; not selected by compact, with a key and without; new."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    archive = world.lab.archive
    write_partition(archive / "gone-0", "ann=1 bob=1 || cem=1 || ")
    world.lab.run(
        START_MS, settings=world.lab.settings | {"topics": {"plain*": {"cleanup.policy": "delete"}}}, force=True
    )
    rows = world.lab.state().current()[1]["gone", 0]
    assert {row.root for row in rows[:2]} == {"store"}
    shutil.rmtree(archive / "gone-0")
    write_partition(archive / "new-0", "ann=1 x=1 || y=1")
    write_partition(archive / "plain-0", "ann=1 x=1 ann=2 || y=1")
    write_partition(archive / "plain-1", "a=1 x=1 || y=1")
    write_partition(archive / "__consumer_offsets-0", "ann=1")
    report = world.erase("ann")
    assert report.exit_code == 0, report.to_text()
    states = world.lab.state().current()
    assert sorted(states[0]) == [("gone", 0), ("new", 0), ("plain", 0), ("t", 0)]
    held = {
        key: [r.key for row in rows for r in read_records([world.lab.path(row)])] for key, rows in states[1].items()
    }
    assert held["plain", 0] == [b"x", b"y"]
    assert held["gone", 0] == [b"bob", b"cem"]
    assert vacuumed(world).exit_code == 0
    assert find_keys([b"ann"], world.lab.store) == []


def test_a_current_generation_that_holds_keys_is_a_problem(tmp_path: Path) -> None:
    """An erasure leaves Kafka's own topics alone until they are named."""
    world = Erasures(tmp_path)
    world.grow("ann=1 bob=1 dan=1", roll=True)
    world.grow("cem=1", roll=True)
    write_partition(world.lab.archive / "__mine-0", "ann=1 bob=1 ann=2 cem=1 || cem=1")
    assert world.compact().exit_code == 0
    for options in ({}, {"check": True}):
        report = world.erase("ann", "bob", **options)
        assert (report.exit_code, report.result) == (3, "incomplete")
        held = report.to_json()["problems"][0]
        assert (held["kind"], held["path"], held["found"]) == ("erased", "__mine-0", "2 keys")
        assert held["expected"] == "none of the keys in generation 1 (current)"
        assert held["hint"].endswith("erase --topics __mine")
        assert f"problem: {report.problems[0]}" in report.to_text().splitlines()
        assert report.to_json()["remains"]["generations"] == ["__mine-0: 1 (current)", "t-0: 1 (older)"]
    assert [row["not_read"] for row in erasure_rows(world.lab.store)] == [0, 0]
    assert [p.path for p in report.problems] == ["__mine-0", "t-0"]  # a check also names what vacuum deletes
    assert world.erase("ann", "bob", topics=TopicFilter(("__mine",))).exit_code == 0
    vacuumed(world)
    assert world.erase("ann", "bob", check=True, no_archive=True).problems == []
    (archived,) = (world.lab.archive / "t-0").glob("*3.log")
    archived.write_bytes(archived.read_bytes()[:-1] + b"x")
    report = world.erase("dan")
    assert next(p.hint for p in report.problems if p.kind == "erased").startswith("the partition is uncleanable")


def test_possible_keys_are_reported_separately_from_found_keys(tmp_path: Path) -> None:
    world = made(tmp_path, "customer-1=1 bob=1", "cem=1")
    (world.lab.folder() / "notes.txt").write_text("customer-10 and customer-20")
    problems = world.erase("customer-1", "customer-2", check=True, no_archive=True).problems
    assert [p.found for p in problems] == ["2 keys, 1 of them perhaps"]


def test_erasure_covers_records_below_the_log_start_and_above_the_high_watermark(tmp_path: Path) -> None:
    """Bytes below the log start are removed too. Records above the high watermark are not in the store and remain
    unread.
    """
    world = Erasures(tmp_path)
    world.grow("ann=1 | bob=1", roll=True)
    world.grow("ann=2 | cem=1", roll=True)
    world.grow("ann=3 | dan=1", roll=True)
    offset_checkpoint(world.lab.archive / "log-start-offset-checkpoint", {"t-0": 1})
    offset_checkpoint(world.lab.archive / "replication-offset-checkpoint", {"t-0": 4})
    world.lab.run(START_MS, settings={"defaults": COMPACT | {"min.compaction.lag.ms": 10**12}})
    world.compact()
    report = world.erase("ann")
    assert report.exit_code == 0
    assert "below the high watermark 4" in report.to_text()
    assert [r.key for r in world.current()] == [b"bob", b"cem"]
    offset_checkpoint(world.lab.archive / "replication-offset-checkpoint", {"t-0": 6})
    world.compact()
    assert [r.offset for r in world.current() if r.key == b"ann"] == [4]


def test_erasure_by_yield_writes_no_key_hashes(tmp_path: Path) -> None:
    """Key files and filters pass into no new generation, and go with the old ones."""
    world = made(tmp_path, "ann=1 bob=1", "cem=1", defaults={"compaction.schedule": "yield"})
    for n in range(3):
        world.grow(f"ann={n + 2} k{n}=1", roll=False)
        world.grow(f"l{n}=1", roll=True)
        world.compact(force=False)
    assert list(world.lab.store.rglob("*.keys"))
    vacuum.run(VacuumOptions(str(world.lab.store), grace_hours=0.0), Silent())
    left = [path for path in world.lab.store.rglob("*.filter") if not (path.parent / "hash.key").exists()]
    assert left  # vacuum left them for the current generation, which has their secret
    assert world.erase("unknown-key", check=True, no_archive=True).result == "erased"
    world.erase("ann")
    assert verified(world) == []
    vacuumed(world)
    assert not [p for kind in ("keys", "filter", "facts") for p in world.lab.store.rglob(f"*.{kind}")]
    assert not list(world.lab.store.rglob("hash.key"))
    assert world.erase("ann", check=True, no_archive=True).result == "erased"
    world.grow("m=1", roll=True)
    world.compact(force=False)
    assert world.judge() == ""
    assert list(world.lab.store.rglob("*.filter"))


def test_erasure_in_magic_3_writes_affected_batches_in_magic_2(tmp_path: Path) -> None:
    """The rest of a batch in magic 3 that held the key is magic 2."""
    world = Erasures(tmp_path, dict(COMPACT))
    text = "ann=1 bob=1 | {codec=zstd} bob=2 cem=1 || ann=3 dan=1 | eve=1"
    write_partition(tmp_path / "v2" / "t-0", text, topic_id=world.topic_id)
    as_v3(tmp_path / "v2" / "t-0", tmp_path / "archive" / "t-0")
    world.compact()
    assert [row.magics for row in world.lab.state().current()[1]["t", 0]] == ["2", "3"]  # the last is the archive's
    assert world.erase("ann").exit_code == 0
    assert verified(world) == []
    vacuumed(world)
    restore.run(RestoreOptions(str(world.lab.store), str(tmp_path / "out")), Silent())
    kept = read_records(sorted((tmp_path / "out" / "t-0").glob("*.log")))
    assert [r.key for r in kept] == [b"bob", b"cem", b"dan", b"eve"]


def test_erasure_deletes_audit_tables(spark: Any, tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    assert main(["audit", "keys", "--store", str(world.lab.store)]) == 0
    old = world.lab.store / "state" / "audit_failover"  # a table of an older version
    shutil.copytree(world.lab.store / "state" / "audit_keys", old)
    assert find_keys([b"ann"], old)
    report = world.erase("ann")
    assert (report.result, report.remains.elsewhere > 0) == ("vacuum_needed", True)
    dry = vacuumed(world, dry_run=True)
    assert {"state/audit_entries", "state/audit_failover"} < set(dry.audits)
    assert find_keys([b"ann"], world.lab.store / "state")
    vacuumed(world)
    assert find_keys([b"ann"], world.lab.store) == []


def test_spark_and_threads_erase_the_same_records(spark: Any, tmp_path: Path) -> None:
    kept = []
    for engine in ("threads", "spark"):
        world = made(tmp_path / engine, "ann=1 bob=1 | {codec=zstd} ann=2 cem=1", "ann=3 dan=1")
        world.engine = engine
        report = world.erase("ann")
        assert ("Spark" in str(report.erased.work)) == (engine == "spark" or "no Spark" in str(report.erased.work))
        rows = world.lab.state().current()[1]["t", 0]
        kept.append([world.lab.path(row).read_bytes() for row in rows])
    assert kept[0] == kept[1]
    assert verified(world) == []


def test_erasure_of_a_store_in_a_bucket_succeeds(tmp_path: Path) -> None:
    archive, store = f"{BUCKET}/archive", f"{BUCKET}/store"
    write_partition(tmp_path / "archive" / "t-0", "ann=1 bob=1 || cem=1 | ann=2")
    world = Erasures(tmp_path)
    options = {"config": world.config, "now_ms": NOW, "force": True}
    with s3_server():
        put(tmp_path / "archive", archive)
        compact.run(CompactOptions(archive, store, **options), Silent())
        report = erase.run(world.options("ann", store=store), Silent())
        assert (report.exit_code, report.result) == (0, "vacuum_needed"), report.to_text()
        assert vacuum.run(VacuumOptions(store, erased=True), Silent()).exit_code == 0
        assert erase.run(world.options("ann", store=store, check=True, no_archive=True), Silent()).result == "erased"
        root = open_root(f"{archive}/t-0")
        other = checkpoints.write_partition_metadata(UUID(int=5))
        write_file(root, "partition.metadata", other)
        again = CompactOptions(archive, store, reset=T, hmac_key=world.hmac_key, **options)
        assert compact.run(again, Silent()).results[0].work.counters["dropped_erased"] == 2


@pytest.fixture
def missed_key_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Erasures:
    """Return a store in which an erasure spared one of the key's records."""

    def spare(run: Any, table: Any, stays: Any) -> None:
        mark_others(run, table, stays)
        stays[0] = True

    world = made(tmp_path, "bob=1 cem=1", "ann=1 | ann=2 dan=1")
    monkeypatch.setattr("lastkey.udfs.compact.clean.deciders.mark_others", spare)
    report = world.erase("ann")
    assert (report.result, report.exit_code) == ("incomplete", 3)
    assert [r.offset for r in world.current() if r.key == b"ann"] == [2]
    return world


def test_verify_reports_a_record_that_was_not_erased(missed_key_store: Erasures) -> None:
    assert ["no record of a key of which any was erased" in str(p) for p in verified(missed_key_store)] == [True]


def test_verify_counts_erased_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed record that the run does not report as erased is a lost record."""

    def miscounted(*args: Any, **options: Any) -> Commit:
        made = make_commit(*args, **options)
        return replace(made, run=replace(made.run, dropped_erased=made.run.dropped_erased - 1))

    world = made(tmp_path, "ann=1 bob=1", "ann=2 cem=1")
    monkeypatch.setattr(waves, "make_commit", miscounted)
    world.erase("ann")
    assert ["1 erased records, as the run says" in str(p) for p in verified(world)] == [True]


def test_incompatible_options_are_refused(tmp_path: Path) -> None:
    world = made(tmp_path, "ann=1 bob=1", "cem=1")
    short = tmp_path / "short"
    short.write_bytes(b"123")
    for options in ({"check": True, "dry_run": True}, {"hmac_key": str(short)}, {"hmac_key": str(tmp_path / "none")}):
        with pytest.raises(UsageError):
            world.erase("ann", **options)
    with pytest.raises(UsageError, match="expected keys"):
        world.erase()
    with pytest.raises(UsageError, match="expected an erasure"):
        vacuumed(world)
    shutil.rmtree(world.lab.archive)
    with pytest.raises(UsageError) as removed:
        world.erase("ann")
    assert "--no-archive" in removed.value.line()
