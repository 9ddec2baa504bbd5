"""Archive and store in a bucket: the generations of a disk byte for byte, and a broker starts on what is restored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastkey
from lastkey.jobs.command.cli import main
from lastkey.logformat.storage.locations import file_system
from tests.builders.s3_server import BUCKET, get, put, s3_server
from tests.builders.trees import files_in
from tests.kafka_lab import check_served, start_restored
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FIRST_MS, SECOND_MS = 1_795_300_000_000, 1_795_390_000_000


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[int]:
    """Serve a bucket from a process that the tests start and stop."""
    with s3_server() as port:
        yield port


def got(uri: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a store's generations, without names of runs and values from clocks."""
    get(uri, folder)
    return generations(folder)


def generations(folder: Path) -> dict[str, bytes]:
    files = [
        path for path in files_in(folder, "**/*") if path.is_file() and path.name not in ("manifest.json", "committed")
    ]
    return {f"{p.parent.parent.name}/{p.parent.name.split('-')[0]}/{p.name}": p.read_bytes() for p in files}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in files_in(folder, "**/*") if p.is_file()}


def compact(archive: object, store: object, now_ms: int) -> None:
    report = lastkey.compact(str(archive), str(store), config=ROOT / "examples" / "topics.toml", now_ms=now_ms)
    assert report.exit_code == 0, report.to_text()


def compact_on_spark(archive: str, store: str, now_ms: int) -> None:
    words = ["compact", archive, "--store", store, "--config", "examples/topics.toml", "--now", str(now_ms)]
    command = [str(ROOT / "spark-submit.sh"), *words, "--engine", "spark"]
    env = {**os.environ, "LASTKEY_VENV": sys.prefix}
    completed = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_store_in_a_bucket_equals_that_on_a_disk(tmp_path, capsys):
    whole, grown = ROOT / "examples" / "archive", tmp_path / "archive"
    shutil.copytree(whole, grown)
    newest = max(files_in(whole, "orders-0/*.log"))
    for path in files_in(grown, "orders-0/0*"):
        if path.name >= newest.stem and path.name != f"{newest.stem}.snapshot":
            path.unlink()
    local, remote = tmp_path / "store", f"{BUCKET}/store"
    for now_ms in (FIRST_MS, SECOND_MS):
        if now_ms == SECOND_MS:
            shutil.copytree(whole, grown, dirs_exist_ok=True)
        put(grown, f"{BUCKET}/archive")
        compact(grown, local, now_ms)
        (compact_on_spark if now_ms == SECOND_MS else compact)(f"{BUCKET}/archive", remote, now_ms)
    expected = generations(local / "segments")
    assert len({name.split("/")[0] + name.split("/")[1] for name in expected}) > 4
    assert got(f"{remote}/segments", tmp_path / "got") == expected

    def store_job(*words: object) -> dict[str, object]:
        code = main([*map(str, words), "--json"])
        output = json.loads(capsys.readouterr().out)
        assert code == 0, output
        return output

    assert store_job("verify", "--store", remote)["problems"] == []
    outputs = []
    for store in (local, remote):
        outputs.append(tmp_path / f"restored{len(outputs)}")
        store_job("restore", "--store", store, "--output", outputs[-1])
    assert contents(outputs[0]) == contents(outputs[1])
    with start_restored(outputs[1]) as broker:
        problems, _ = check_served(broker.bootstrap, partition_dirs([outputs[1]]))
        assert problems == []
    rolled = store_job("rollback", "--store", remote, "--generation", 1)["partitions"]
    assert [p["topic"] for p in rolled] == ["orders"]
    filesystem, path = file_system(f"{remote}/state")
    filesystem.delete_dir(path)
    rebuilt = store_job("rebuild-state", "--store", remote)["partitions"]
    assert {p["generation"] for p in rebuilt} == {rolled[0]["generation"], 1}
    compact(f"{BUCKET}/archive", remote, SECOND_MS)
    assert store_job("verify", "--store", remote)["problems"] == []
    vacuumed = store_job("vacuum", "--store", remote, "--grace-hours", 0)
    assert vacuumed["files"] > 4
    store_job("restore", "--store", remote, "--output", tmp_path / "after")
    assert contents(tmp_path / "after") == contents(outputs[0])
