"""Requests of jobs to a bucket, as a proxy before the server sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs as pafs

from lastkey.jobs.command import cli
from lastkey.logformat.locations import file_system
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


def run(*words: object) -> None:
    done = CliRunner().invoke(cli.lastkey, [*map(str, words)])
    assert done.exit_code == 0, (words, done.stdout, done.stderr)


def files_below(uri: str) -> list[str]:
    filesystem, path = file_system(uri)
    found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    return [info.path for info in found if info.type == pafs.FileType.File]


def test_no_folder_is_made_for_what_is_written(proxy, tmp_path):
    """Only pyarrow's deletions leave one: the partition's, when folders of its splits go."""
    split, seen = tmp_path / "split.toml", []
    split.write_text(TOPICS.read_text() + '[job]\n"split.by" = "blocks"\n"split.bytes" = 100000\n')
    proxy.decide = lambda method, path: seen.append(f"{method} {path}")
    store, archive = ("--store", f"{BUCKET}/made/store"), f"{BUCKET}/archive"
    run("compact", archive, *store, *NOW, *THREADS)
    run("compact", archive, *store, "--config", split, "--now", "1795300000000", *THREADS, "--force", "--sealed")
    run("rollback", *store, "--generation", "1")
    run("reindex", archive, "--output", f"{BUCKET}/made/rebuilt", *THREADS)
    run("restore", *store, "--output", f"{BUCKET}/made/restored")
    written = [line for line in seen if re.match(r"PUT .*/made/(store/segments|rebuilt|restored)/", line)]
    assert len(written) > 200
    assert [line for line in written if line.endswith("/") and not re.search(r"/segments/[^/]+/$", line)] == []


@pytest.mark.parametrize("refused", [False, True])
def test_vacuum_deletes_a_folder_by_few_requests_or_file_by_file(proxy, refused):
    """Not every server that speaks S3 deletes many objects at once."""
    store = ("--store", f"{BUCKET}/vacuum-{refused}/store")
    for _ in range(2):
        run("compact", f"{BUCKET}/archive", *store, *NOW, *THREADS, "--force", "--sealed")
    before, deleted = len(files_below(f"{store[1]}/segments")), []

    def decide(method, path):
        if method == "DELETE":
            deleted.append(path)
        return Fault(status=400, code="NotImplemented") if refused and MANY_AT_ONCE.match(f"{method} {path}") else None

    proxy.decide = decide
    run("vacuum", *store, "--grace-hours", "0")
    after = len(files_below(f"{store[1]}/segments"))
    assert before - after > 30
    assert len(deleted) >= before - after if refused else len(deleted) < 20
    run("verify", *store, *THREADS)
