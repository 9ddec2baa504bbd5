"""Sequences of runs by yield: no live record is missing at any step, no deleted value reappears, and a final full run
gives the result of one full run.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.layout import MAX_SEGMENT_BYTES
from lastkey.udfs.segments import cleaner_checkpoint
from tests.attack.summary import n_cases
from tests.builders.archives import Lab
from tests.builders.limits import limit_logs
from tests.builders.logs import START_MS
from tests.builders.nights import COLD, DAY, KEY, Kept, NightlyArchive, last_records

pytestmark = pytest.mark.slow  # whole runs


def _drawn(rng: random.Random, cold: int, night: int) -> str:
    """Return a night's records: mostly of few keys, some tombstones, several batches."""
    batches = []
    for _ in range(rng.randint(1, 4)):
        keys = [f"h{rng.randrange(4)}" if rng.random() < 0.7 else f"c{rng.randrange(cold)}" for _ in range(6)]
        values = ["-" if rng.random() < 0.15 else f"{night}{'x' * rng.randrange(20)}" for _ in keys]
        batches.append(" ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True)))
    return "|".join(batches)


def test_transaction_with_a_lost_marker_is_kept_in_every_run(tmp_path: Path) -> None:
    """Also where what is new supersedes it, and tombstones behind it would be due."""
    nights = NightlyArchive(tmp_path)
    nights.settings |= {"delete.retention.ms": 0, "compaction.min.yield": 0.0}
    lost = "{pid=1 epoch=0 txn} a=1 z=1 | {pid=1 epoch=1 txn base=9} b=1@9 | {pid=1 epoch=1 commit}"
    for text in (lost, "a=2 b=2 c=2", "a=- b=3 c=3", "a=- b=4 c=4", "b=5 c=5"):
        nights.grow(text)
        nights.run()
        nights.job("verify")
        records = [r for b in nights.lab().batches(nights.rows()) for r in b.records]
        assert [(r.offset, r.key, r.value) for r in records][:2] == [(0, b"a", b"1"), (1, b"z", b"1")]
    assert (b"a", None) in [(r.key, r.value) for r in records]


def test_random_runs_keep_live_records_and_restore_no_deleted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for seed in range(n_cases(request, 3)):
        try:
            _run_random(tmp_path / str(seed), monkeypatch, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def _run_random(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    limit_logs(monkeypatch, 400 if seed % 2 else MAX_SEGMENT_BYTES)
    nights = NightlyArchive(root)
    nights.settings["compaction.min.yield"] = rng.choice([0.1, 0.3, 0.6, 1.0])
    nights.settings["segment.bytes"] = rng.choice([400, 1000, 1 << 20])
    nights.settings["delete.retention.ms"] = rng.choice([0, DAY, 3 * DAY])
    carried = 0
    for night in range(10):
        nights.grow(_drawn(rng, rng.choice([5, 40]), night))
        nights.run()
        nights.checked()
        if rng.random() < 0.3:
            nights.job("verify")
        if rng.random() < 0.3:
            nights.job("vacuum", "--grace-hours", "0")
        carried += sum(row.root == "store" and not row.cleaned for row in nights.rows())
    assert carried or nights.settings["compaction.min.yield"] < 0.3
    nights.settings["compaction.schedule"] = "full"
    nights.run(force=True)
    fully = nights.checked()
    once = NightlyArchive(root)
    once.settings = nights.settings
    lab = once.lab(root / "at once")
    lab.run(START_MS + 10 * DAY)
    at = lab.state().checkpoints()[KEY]
    rows = lab.state().manifests([at])[KEY]
    kept, expected = last_records(fully, 2**63), last_records(lab.batches(rows), 2**63)
    live = {key: record for key, record in expected.items() if record[1] is not None}
    assert {key: record for key, record in kept.items() if record[1] is not None} == live
    assert kept.keys() <= expected.keys()


@pytest.mark.parametrize("seed", range(3))
def test_random_runs_without_tombstones_equal_one_full_run(tmp_path: Path, seed: int) -> None:
    rng, nights = random.Random(seed), NightlyArchive(tmp_path)
    nights.settings["compaction.min.yield"] = rng.choice([0.1, 0.3, 0.6])
    nights.settings["segment.bytes"] = 1 << 20
    for night in range(8):
        nights.grow(_drawn(rng, rng.choice([5, 40]), night).replace("=-", "=v"))
        nights.run()
    assert any(row.root == "store" and not row.cleaned for row in nights.rows())
    nights.run(force=True)
    once = nights.lab(tmp_path / "at once")
    once.run(START_MS + 8 * DAY)
    assert _logs(nights.lab()) == _logs(once)


def _logs(lab: Lab) -> dict[str, bytes]:
    """Return the logs of t-0's current generation by name."""
    at = lab.state().checkpoints()[KEY]
    rows = lab.state().manifests([at])[KEY]
    return {lab.path(row).name: lab.path(row).read_bytes()[: row.size_bytes] for row in rows}


def test_tombstone_is_kept_while_an_older_segment_is_unchanged(tmp_path: Path) -> None:
    nights = NightlyArchive(tmp_path)
    nights.settings |= {"delete.retention.ms": 0, "compaction.full.ms": 1000 * DAY}
    for text in (COLD, "c3=- h1=1 h2=1 h3=1", "h1=2 h2=2 h3=2", "h1=3"):
        nights.grow(text)
        nights.run()
        nights.checked()
    rows = nights.rows()
    assert not rows[0].cleaned
    assert rows[1].records == 1, "the hot records went, and the tombstone, long past its horizon, stayed"
    nights.settings["compaction.full.ms"] = 0
    nights.grow("h1=4")
    nights.run()
    assert b"c3" not in last_records(nights.checked(), 2**63)


def test_exact_retention_between_runs_restores_no_deleted_value(tmp_path: Path) -> None:
    nights, late = NightlyArchive(tmp_path), f"{{ts={START_MS + 20 * DAY}}}"
    nights.settings |= {"delete.retention.ms": 0, "compaction.full.ms": 1000 * DAY}
    for text in (f"old=1|{late} {COLD}", f"{late} c3=- h1=1 h2=1 h3=1", f"{late} h1=2 h2=2 h3=2"):
        nights.grow(text)
        nights.run()
    compacts = dict(nights.settings)
    nights.settings |= {"cleanup.policy": "delete", "retention.exact": True, "retention.ms": 2 * DAY}
    nights.grow(f"{late} h4=1")
    nights.run()
    assert nights.rows()[0].cleaned
    assert b"old" not in last_records(nights.lab().batches(nights.rows()), 2**63)
    nights.settings = compacts | {"compaction.schedule": "full", "min.cleanable.dirty.ratio": 0.0}
    nights.grow(f"{late} h4=2")
    nights.run()
    assert last_records(nights.lab().batches(nights.rows()), 2**63).get(b"c3", (0, None))[1] is None


def test_new_tombstone_past_its_horizon_is_kept_while_an_older_segment_is_unchanged(tmp_path: Path) -> None:
    nights = NightlyArchive(tmp_path)
    for text in (COLD, f"{{horizon={START_MS}}} c3=- h1=1"):
        nights.grow(text)
        nights.run()
        records = last_records(nights.checked(), 2**63)
    assert records[b"c3"][1] is None


def test_verify_reports_a_reappeared_deleted_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights = NightlyArchive(tmp_path)
    nights.settings |= {"delete.retention.ms": 0, "compaction.full.ms": 1000 * DAY}
    for text in (COLD, "c3=- h1=1 h2=1 h3=1", "h1=2 h2=2 h3=2"):
        if text.startswith("h1"):
            monkeypatch.setattr("lastkey.udfs.compact.passes._prepare_rules", _naive)
        nights.grow(text)
        nights.run()
    nights.job("verify", code=3)


def _naive(analysis: Any, applied: Any, chosen: Any, before: Any, number: int) -> Any:
    """Return rules that let each tombstone past its horizon go."""
    before.enter(analysis.source_end(number))
    return analysis.rules


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Keep four nights by yield, and the segment of a fifth one."""
    nights = NightlyArchive(tmp_path_factory.mktemp("nights") / "now")
    for text in (COLD, "h1=1 h2=1 c1=2", "h1=2 h2=2 c2=2", "h1=3 h2=3 c1=3"):
        nights.grow(text)
        nights.run()
    nights.grow("h1=4 h2=4 c4=4 c5=4 c6=4 c7=4 c8=4 c9=4")
    return Kept(nights, tmp_path_factory.mktemp("nights") / "kept")


@pytest.fixture
def fifth_night_archive(kept: Kept) -> NightlyArchive:
    return kept.again()


@pytest.mark.parametrize("pattern", ["*.facts", "*.filter", "*.keys", "hash.key"])
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut", "empty", "another"])
def test_lost_and_damaged_key_files_are_rebuilt(fifth_night_archive: NightlyArchive, pattern: str, damage: str) -> None:
    files = fifth_night_archive.beside(pattern)
    assert files
    for path in files:
        data = path.read_bytes()
        path.unlink()
        if damage == "flipped":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        if damage in ("cut", "empty"):
            path.write_bytes(data[: len(data) // 2 if damage == "cut" else 0])
        if damage == "another":
            [other] = [kind for kind in (".facts", ".filter") if kind != path.suffix][:1]
            path.write_bytes(beside.read_bytes() if (beside := path.with_suffix(other)).exists() else b"another")
    fifth_night_archive.run()
    fifth_night_archive.checked()
    fifth_night_archive.job("verify")


def test_rollback_uses_the_key_files_of_its_generation(fifth_night_archive: NightlyArchive) -> None:
    fifth_night_archive.run()
    fifth_night_archive.job("rollback", "--generation", "3")
    fifth_night_archive.job("vacuum", "--grace-hours", "0")
    fifth_night_archive.checked()
    fifth_night_archive.run()
    fifth_night_archive.checked()
    fifth_night_archive.job("verify")


def test_restored_generation_can_replace_the_archive(fifth_night_archive: NightlyArchive) -> None:
    """Its cleaner checkpoint is below the offsets that the last run cleaned."""
    nights, root = fifth_night_archive, fifth_night_archive.root
    nights.grow("h1=5 h1=6")
    nights.run()
    assert cleaner_checkpoint(nights.rows(), 2**63) < nights.rows()[-1].base_offset
    nights.job("restore", "--output", str(root / "restored"))
    shutil.rmtree(root / "archive")
    (root / "restored").rename(root / "archive")
    nights.job("verify")


def test_key_files_are_private_and_contain_no_key(
    fifth_night_archive: NightlyArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in fifth_night_archive.beside("*"):
        if path.suffix in (".facts", ".filter", ".keys", ".key"):
            assert path.stat().st_mode & 0o077 == 0, path
    secret = fifth_night_archive.beside("hash.key")[-1].read_bytes()[:16]
    secrets = {text for half in (secret[:8], secret[8:]) for text in (half.hex(), str(int.from_bytes(half, "big")))}
    fifth_night_archive.job("runs")
    files = [
        path
        for path in fifth_night_archive.lab().store.rglob("*")
        if path.is_file() and path.suffix in (".json", ".parquet")
    ]
    seen = capsys.readouterr().out + "".join(path.read_bytes().decode("latin-1") for path in files)
    assert not any(text in seen for text in secrets)


def test_full_run_generates_a_new_hash_key_without_key_files(fifth_night_archive: NightlyArchive) -> None:
    first = {path.read_bytes() for path in fifth_night_archive.beside("hash.key")}
    assert len(first) == 1
    fifth_night_archive.settings["compaction.full.ms"] = DAY
    fifth_night_archive.run()
    assert all(row.cleaned and row.key_files is None for row in fifth_night_archive.rows()[:-1])
    assert fifth_night_archive.beside("hash.key")[-1].read_bytes() not in first
    fifth_night_archive.checked()


def test_reset_partition_keeps_the_age_of_its_hash_key(fifth_night_archive: NightlyArchive) -> None:
    """The run by yield finds damage in the generation, and --reset starts over. The secret is not a new one: the next
    run that draws one is due `compaction.full.ms` after the secret was drawn, not after the reset.
    """
    drawn = {path.read_bytes() for path in fifth_night_archive.beside("hash.key")}
    assert len(drawn) == 1
    logs = [
        fifth_night_archive.lab().store / row.path
        for row in fifth_night_archive.rows()
        if row.root == "store" and row.size_bytes
    ]
    assert logs
    for path in (*fifth_night_archive.beside("*.facts"), *logs):  # a segment without its facts is read
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = fifth_night_archive.run(reset=TopicFilter(("t",)))
    assert (report.reset, report.generations) == ({KEY}, {KEY: 5})
    [new] = [path for path in fifth_night_archive.beside("hash.key") if path.parent.name.startswith("5-")]
    assert {new.read_bytes()} == drawn
    fifth_night_archive.checked()
    fifth_night_archive.settings["compaction.full.ms"] = DAY * len(
        fifth_night_archive.segments
    )  # since the first night, not the fifth
    fifth_night_archive.grow("h1=7")
    fifth_night_archive.run()
    assert {path.read_bytes() for path in fifth_night_archive.beside("hash.key")} > drawn


def test_retention_removes_segments_that_the_same_run_cleaned(fifth_night_archive: NightlyArchive) -> None:
    fifth_night_archive.settings |= {"cleanup.policy": "compact,delete", "retention.ms": 0}
    fifth_night_archive.run()
    assert all(row.root == "archive" or not row.records for row in fifth_night_archive.rows())
    fifth_night_archive.job("verify")


def test_run_reads_only_segment_facts_and_new_data(tmp_path: Path) -> None:
    nights = NightlyArchive(tmp_path)
    nights.grow("|".join(f"k{n}={'x' * 1000}" for n in range(300)))
    nights.run()
    nights.grow("k1=2")
    result = nights.run().results[0]
    assert result.work.bytes_read < 0.2 * result.work.bytes_before, result
    assert result.work.bytes_written < 0.1 * result.work.bytes_before, result
    nights.checked()


def test_markers_are_kept_while_their_data_is_in_unchanged_segments(tmp_path: Path) -> None:
    nights = NightlyArchive(tmp_path)
    nights.settings |= {"delete.retention.ms": 0, "segment.bytes": 300}
    for text in (
        f"{COLD}|{{pid=7 txn}} a=1 b=1",
        "{pid=7 abort}|{pid=8 txn} c=1|{pid=8 commit}|h1=1",
        "h1=2|{pid=7 txn} a=2|{pid=7 abort}",
        "h1=3|{pid=8 txn} c=2|{pid=8 commit}",
        "h1=4",
    ):
        nights.grow(text)
        if "abort" in text or "h1" in text:  # else the transaction is open, and nothing may be cleaned
            nights.run()
            nights.job("verify")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "several"), [("threads", False), ("spark", True)])
def test_full_run_writes_segment_facts_with_either_engine(
    tmp_path: Path, spark: object, engine: str, several: bool
) -> None:
    nights = NightlyArchive(tmp_path, job_settings={"split.by": "always", "split.bytes": 600, "engine": engine})
    nights.settings |= {"segment.bytes": 1000}
    for night in range(4):
        nights.grow("|".join(f"k{night}{n}={'x' * 100}" for n in range(12)))
    assert (nights.run().results[0].work.splits > 1) == several
    rows = [row for row in nights.rows() if row.size_bytes]
    assert len(rows) > 3
    assert all(row.facts_bytes for row in rows)
    nights.grow("k01=2")
    result = nights.run().results[0]
    assert [s.reason for s in result.schedule] == ["kept"] * len(rows)
    nights.checked()
    nights.job("verify")
