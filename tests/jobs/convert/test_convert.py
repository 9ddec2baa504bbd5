"""`convert`: lossless in both directions, of an archive or a generation; unreadable logs are named and skipped."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions, ConvertOptions, VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.convert import job as convert
from lastkey.jobs.convert.job import ConvertReport
from lastkey.jobs.errors import NOT_EMPTY, UsageError
from lastkey.jobs.restore import job as restore
from lastkey.jobs.verify import job as verify
from tests.builders.archives import log_directory
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.trees import files_in, read_tree
from tests.golden import Case
from tests.reference.log import decode_log

NAMES = ("none-tomb", "lz4-append", "gzip-headers", "v1-gzip-append", "txn-zstd")
CONFIG = parse_config({"job": {"engine": "threads"}})


@pytest.fixture
def archive(cases: dict[str, Case], tmp_path: Path) -> Path:
    """Return a folder with a log directory."""
    return log_directory(cases, NAMES, tmp_path / "archive")


def run(source: Path, output: Path, to: str, **given: object) -> ConvertReport:
    return convert.run(ConvertOptions(str(source), output=str(output), to=to, config=CONFIG, **given), Silent())  # type: ignore[arg-type]


def modification_times(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns // 1_000_000 for p in folder.rglob("*") if p.is_file()}


def test_conversion_to_magic_3_and_back_restores_the_archive(archive: Path, tmp_path: Path) -> None:
    times = modification_times(archive)
    torn = files_in(archive, "**/none-tomb-0/*.log")[-1]
    torn.write_bytes(torn.read_bytes()[:-40])
    os.utime(torn, ns=(times[str(torn.relative_to(archive))] * 1_000_000,) * 2)
    before = read_tree(archive)
    there = run(archive, tmp_path / "v3", "v3")
    assert there.exit_code == 0, there.to_text()
    back = run(tmp_path / "v3", tmp_path / "v2", "v2")
    assert back.exit_code == 0
    assert read_tree(archive) == before
    files, found_times = read_tree(tmp_path / "v2"), modification_times(tmp_path / "v2")
    for path, data in before.items():
        if path.endswith(".log") and "txn-zstd" in path:
            assert decode_log(files[path]) == decode_log(data)
        elif not (path.endswith((".index", ".timeindex")) and (torn.stem in path or "txn-zstd" in path)):
            assert files[path] == data, path
        if not path.endswith((".index", ".timeindex")):  # made again, and dated as their logs
            assert found_times[path] == times[path], path
    assert files.keys() == before.keys()
    for side in (tmp_path / "v3", tmp_path / "v2"):
        checked = verify.run(VerifyOptions(archive=str(side), config=CONFIG), Silent())
        assert checked.exit_code == 0, checked.to_text()
    changed = {f"{p.topic}": (p.changed, p.batches) for p in there.partitions}
    assert changed["none-tomb"][0] == changed["none-tomb"][1]
    assert 0 < changed["txn-zstd"][0] < changed["txn-zstd"][1]  # markers stay
    assert {p.topic: p.changed for p in back.partitions} == {topic: n for topic, (n, _) in changed.items()}
    assert sum(p.bytes_after for p in there.partitions) < sum(p.bytes_before for p in there.partitions)


def test_restore_of_a_generation_in_magic_3_gives_the_same_log(
    archive: Path, cases: dict[str, Case], tmp_path: Path
) -> None:
    config = parse_config(
        {"defaults": {"cleanup.policy": "compact", "null.keys": "drop"}, "job": {"engine": "threads"}}
    )
    now_ms = max(cases[name].now_ms(1, p) for name in NAMES for p in cases[name].partitions)
    store = str(tmp_path / "store")
    assert (
        compact.run(CompactOptions(str(archive), store, now_ms=now_ms, config=config, force=True), Silent()).exit_code
        == 0
    )
    options = ConvertOptions(None, output=str(tmp_path / "v3"), to="v3", store=store, config=config)
    there = convert.run(options, Silent())
    assert there.exit_code == 0, there.to_text()
    assert run(tmp_path / "v3", tmp_path / "v2", "v2").exit_code == 0
    restore.run(RestoreOptions(store, str(tmp_path / "out"), config=config), Silent())
    ours, theirs = read_tree(tmp_path / "v2"), read_tree(tmp_path / "out")
    theirs.pop(".kafka_cleanshutdown")
    assert ours.keys() == theirs.keys()
    assert {p: d for p, d in ours.items() if "zstd" not in p} == {p: d for p, d in theirs.items() if "zstd" not in p}


def test_store_refuses_a_converted_archive(archive: Path, cases: dict[str, Case], tmp_path: Path) -> None:
    """In the archive's place, the partitions of which a batch changed are problems, and nothing is written."""
    config = {"defaults": {"cleanup.policy": "compact", "null.keys": "drop"}, "job": {"engine": "threads"}}
    now_ms = max(cases[name].now_ms(1, p) for name in NAMES for p in cases[name].partitions)
    store = tmp_path / "store"
    made = CompactOptions(str(archive), str(store), now_ms=now_ms, config=parse_config(config), force=True)
    assert compact.run(made, Silent()).exit_code == 0
    run(archive, tmp_path / "v3", "v3")
    before = read_tree(store / "segments")
    with pytest.raises(UsageError, match="this store serves the archive"):
        compact.run(replace(made, archive=str(tmp_path / "v3")), Silent())
    archive.rename(tmp_path / "original")
    (tmp_path / "v3").rename(archive)
    report = compact.run(replace(made, force=False), Silent())
    assert report.exit_code == 3
    assert {p.state for p in report.problems} == {"diverged"}
    assert all("or converted" in str(p) for p in report.problems)
    changed = {name for name in NAMES for p in cases[name].partitions if not name.startswith("v1")}
    assert {p.path.rpartition("-")[0].rpartition("/")[2] for p in report.problems} == changed
    assert read_tree(store / "segments") == before


def test_damaged_log_is_reported_and_skipped(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = files_in(archive, "**/lz4-append-0/*.log")[0]
    flip(log, log.stat().st_size - 3)
    code = cli.main(
        ["convert", str(archive), "--to", "v3", "--output", str(tmp_path / "v3"), "--engine", "threads", "--json"]
    )
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"] == 3
    assert [(p["kind"], p["path"]) for p in report["problems"]] == [("crc", str(log.relative_to(archive)))]
    assert not (tmp_path / "v3" / log.relative_to(archive)).exists()
    missing = {str(p.relative_to(archive)) for p in archive.rglob("*.log")} - {
        str(p.relative_to(tmp_path / "v3")) for p in (tmp_path / "v3").rglob("*.log")
    }
    assert missing == {str(log.relative_to(archive))}


def test_output_inside_the_source_or_not_empty_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(archive, archive / "inside", "v3")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with raises_kind(NOT_EMPTY):
        run(archive, tmp_path / "full", "v3")
    with pytest.raises(UsageError, match="either ARCHIVE or --store"):
        ConvertOptions(None, output=str(tmp_path / "new"), to="v3", config=CONFIG).validate()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_writes_the_same_bytes(spark: object, archive: Path, tmp_path: Path) -> None:
    run(archive, tmp_path / "threads", "v3")
    report = run(archive, tmp_path / "spark", "v3", engine="spark")
    assert report.exit_code == 0
    assert report.work is not None
    assert report.work.spark
    assert read_tree(tmp_path / "spark") == read_tree(tmp_path / "threads")
