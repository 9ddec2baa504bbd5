"""Requests of jobs to a bucket, as a proxy before the server sees them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs as pafs

from lastkey.jobs.command import cli
from lastkey.logformat.storage.locations import file_system
from tests.builders.s3_proxy import Fault, S3Proxy, s3_proxy
from tests.builders.s3_server import BUCKET, environment, put, s3_server

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("--engine", "threads")
TOPICS = ROOT / "examples" / "topics.toml"
NOW = ("--config", TOPICS, "--now", "1795300000000")
MANY_AT_ONCE = re.compile(r"POST .*[?&]delete")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def proxy() -> Iterator[S3Proxy]:
    """Lead everything through a proxy before a bucket with the example archive."""
    with s3_server() as port, s3_proxy(port) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        put(ROOT / "examples" / "archive", f"{BUCKET}/archive")
        yield proxy


def run(*words: object) -> str:
    result = CliRunner().invoke(cli.lastkey, [*map(str, words)])
    assert result.exit_code == 0, (words, result.stdout, result.stderr)
    return result.stdout


def files_below(uri: str) -> list[str]:
    filesystem, path = file_system(uri)
    infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    return [info.path for info in infos if info.type == pafs.FileType.File]


def test_writing_creates_no_folder_objects(proxy, tmp_path):
    split, seen = tmp_path / "split.toml", []
    split.write_text(TOPICS.read_text() + '[job]\n"split.by" = "always"\n"split.bytes" = 100000\n')
    proxy.decide = lambda method, path: seen.append(f"{method} {path}")
    store, archive = ("--store", f"{BUCKET}/made/store"), f"{BUCKET}/archive"
    run("compact", archive, *store, *NOW, *THREADS)
    run("compact", archive, *store, "--config", split, "--now", "1795300000000", *THREADS, "--force", "--sealed")
    run("rollback", *store, "--generation", "1")
    run("reindex", archive, "--output", f"{BUCKET}/made/rebuilt", *THREADS)
    run("restore", *store, "--output", f"{BUCKET}/made/restored")
    written = [line for line in seen if re.match(r"PUT .*/made/(store/segments|rebuilt|restored)/", line)]
    assert len(written) > 200
    assert [line for line in written if line.endswith("/")] == []


def test_vacuum_deletes_file_by_file(proxy):
    """Not every server that speaks S3 deletes many objects at once."""
    store = ("--store", f"{BUCKET}/vacuum/store")
    for _ in range(2):
        run("compact", f"{BUCKET}/archive", *store, *NOW, *THREADS, "--force", "--sealed")
    before, deleted = len(files_below(f"{store[1]}/segments")), []

    def decide(method, path):
        if method == "DELETE":
            deleted.append(path)
        return Fault(status=400, code="NotImplemented") if MANY_AT_ONCE.match(f"{method} {path}") else None

    proxy.decide = decide
    run("vacuum", *store, "--grace-hours", "0")
    after = len(files_below(f"{store[1]}/segments"))
    assert before - after > 30
    assert len(deleted) >= before - after
    run("verify", *store, *THREADS)


def test_reports_count_the_requests_of_the_server(proxy):
    """Requests of delta-rs, and of pyarrow for folders that it leaves after a deletion, are not counted."""
    seen: Counter[str] = Counter()

    def decide(method, path):
        is_commit = re.search(r"/state/\w+/_delta_log/\d{20}\.json$", path) and method == "PUT"
        ours = is_commit or ("_delta_log" not in path and not path.endswith("/"))
        kind = "list" if method == "GET" and "list-type" in path else method if ours else ""
        seen[kind] += 1
        seen["commit"] += bool(is_commit)

    proxy.decide = decide
    store, archive = ("--store", f"{BUCKET}/counted/store"), f"{BUCKET}/archive"
    for words in (
        ("verify", archive, *THREADS), ("reindex", archive, "--output", f"{BUCKET}/counted/rebuilt", *THREADS),
        ("compact", archive, *store, *NOW, *THREADS), ("restore", *store, "--output", f"{BUCKET}/counted/restored"),
        ("vacuum", *store, "--grace-hours", "0"),
    ):  # fmt: skip
        seen.clear()
        io = json.loads(run(*words, "--json"))["io"]
        requests = Counter(io["requests"])
        assert seen["commit"] == {"compact": 4, "vacuum": 1}.get(words[0], 0)
        assert requests["write"] == seen["PUT"]
        if words[0] in ("verify", "reindex"):
            assert requests["read"] == seen["GET"] > 100
            assert requests["open"] + requests["info"] == seen["HEAD"]
        assert (io["bytes_read"] > 500_000) == (words[0] != "vacuum")
        assert (io["bytes_written"] > 10_000) == (words[0] in ("reindex", "compact", "restore"))
    output = run("verify", *store, *THREADS)
    assert re.search(r"^in all [\d.]+ \w+ read, .* written; requests to buckets: .* \d+ open, \d+ read$", output, re.M)


@pytest.mark.spark
def test_reports_count_requests_of_spark_tasks(proxy):
    """Tasks run in processes of their own; the driver adds their counts."""
    proxy.decide = lambda method, path: None
    for words in (("verify", f"{BUCKET}/archive"), ("verify", str(ROOT / "examples" / "archive"))):
        command = [sys.executable, "-m", "lastkey", *words, "--engine", "spark", "--json"]
        completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert completed.returncode == 0, completed.stderr
        requests = json.loads(completed.stdout)["io"]
        assert requests == json.loads(run(*words, *THREADS, "--json"))["io"]
        assert requests["bytes_read"] > 2_000_000
