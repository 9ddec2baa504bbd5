"""A store lies only where one of two commits is refused; elsewhere nothing is written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.command.cli import main
from lastkey.jobs.errors import NOT_EXCLUSIVE
from lastkey.jobs.store import writing
from lastkey.jobs.store.exclusive import check_exclusive
from lastkey.jobs.store.tables import open_state
from lastkey.udfs.storage import open_root
from tests.builders.errors import raises_kind
from tests.builders.s3_proxy import UNCONDITIONAL, s3_proxy
from tests.builders.s3_server import BUCKET, environment, s3_server
from tests.builders.stores import make_commit, run_id

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
WORDS = ["compact", str(EXAMPLES / "archive"), "--config", str(EXAMPLES / "topics.toml"), "--store"]


@pytest.fixture(scope="module")
def port():
    with s3_server() as port:
        yield port


def test_disk_with_hard_links_is_accepted(tmp_path):
    check_exclusive(open_root(str(tmp_path)))
    assert list((tmp_path / "state").iterdir()) == []


def test_disk_without_hard_links_is_refused(tmp_path, monkeypatch, capsys):
    """As exFAT answers; refused before Spark starts."""

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    assert main([*WORDS, str(tmp_path / "store")]) == 5
    output = capsys.readouterr().err
    assert output == (
        f"error: {tmp_path}/store/state: a store cannot be kept there: expected hard links, which commits need"
        ", found Operation not permitted; nothing was written; choose another --store\n"
    )
    assert [path.name for path in (tmp_path / "store").rglob("*")] == ["state"]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "DiskFullError"), (errno.EIO, "FileSystemError")])
def test_disk_without_room_for_a_link_is_reported_as_full(tmp_path, monkeypatch, capsys, number, kind):
    """As one without inodes answers; another --store would be no help."""

    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    assert main([*WORDS, str(tmp_path / "store"), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_disk_whose_hard_links_replace_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda first, second: None)
    with raises_kind(NOT_EXCLUSIVE, match="a hard link that replaces no file"):
        check_exclusive(open_root(str(tmp_path)))


@pytest.mark.slow
def test_bucket_with_conditional_writes_is_accepted(port):
    root = open_root(f"{BUCKET}/good")
    check_exclusive(root)
    left = root.filesystem.get_file_info(pafs.FileSelector(root.base, recursive=True, allow_not_found=True))
    assert [info.path for info in left if info.type == pafs.FileType.File] == []


def test_bucket_without_conditional_writes_is_refused(port, capsys):
    ignored = lambda method, path: UNCONDITIONAL if method == "PUT" else None  # noqa: E731
    with s3_proxy(port, ignored) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        assert main([*WORDS, f"{BUCKET}/bad"]) == 5
    output = capsys.readouterr().err
    assert (
        "s3://logs/bad/state: a store cannot be kept there: expected a server that refuses to replace a file" in output
    )


@pytest.mark.slow
def test_bucket_is_probed_before_the_first_commit_of_a_run(port):
    """A store may have been moved to such a server, where each of two writers would get a success."""
    uri = f"{BUCKET}/moved"
    writing.commit_wave(open_state(uri), [make_commit(0, 1, run_id(1))])
    ignored = lambda method, path: UNCONDITIONAL if method == "PUT" else None  # noqa: E731
    with s3_proxy(port, ignored) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        moved = open_state(uri)
        with raises_kind(NOT_EXCLUSIVE):
            moved.check_writable()
