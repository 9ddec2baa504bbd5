"""A store where "put, if it is not there" does not work: refused in one line before anything is made there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import JobError
from jobs.store.tables import open_state
from tests.builders.s3_proxy import COMMITS, UNCONDITIONAL, Fault, s3_proxy
from tests.builders.s3_server import BUCKET, environment, s3_server
from tests.builders.stopping import ROOT
from tests.builders.stores import make_commit, run_id


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as found:
        yield found


def test_a_server_that_ignores_the_condition_of_a_put_is_refused_at_the_first_write(port: int) -> None:
    """Some do (Ceph and MinIO of some years ago): the second of two writers would overwrite the first one's commit."""
    ignores = lambda method, path: UNCONDITIONAL if method == "PUT" else None  # noqa: E731
    with s3_proxy(port, ignores) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}), pytest.raises(JobError):
        open_state(f"{BUCKET}/ignores").commit_wave([make_commit(0, 1, run_id(1))])


def test_no_commit_is_lost_where_a_server_ignores_the_condition(port: int) -> None:
    """Neither writer may be told that it is done, unless its rows are there."""
    uri, done, begun = f"{BUCKET}/lost", [], []
    open_state(uri).commit_wave([make_commit(i, 1, run_id(1, i)) for i in range(2)])

    def second() -> None:
        open_state(uri).commit_wave([make_commit(1, 2, run_id(2, 1), run_id(1, 1))])
        done.append(1)

    def ignores(method: str, path: str) -> Fault | None:
        if COMMITS.match(f"{method} {path}") is None:
            return None
        if "compaction_checkpoints" in path and not begun:
            begun.append(path)
            second()  # while the first one's PUT is on its way
        return UNCONDITIONAL

    with (
        s3_proxy(port, ignores) as proxy,
        environment({"AWS_ENDPOINT_URL": proxy.url}),
        contextlib.suppress(JobError),
    ):
        open_state(uri).commit_wave([make_commit(0, 2, run_id(2, 0), run_id(1, 0))])
        done.append(0)
    assert begun
    found = {key[1]: row.generation for key, row in open_state(uri).checkpoints().items()}
    assert all(found[partition] == 2 for partition in done), (done, found)


@pytest.fixture
def no_links(tmp_path: Path) -> Path:
    """A library before libc that makes no hard links, as FUSE, exFAT and some shares."""
    made = tmp_path / "no_links.so"
    source = "#include <errno.h>\nint link(const char *a, const char *b) { errno = EPERM; return -1; }\n"
    source += "int linkat(int f, const char *a, int g, const char *b, int h) { errno = EPERM; return -1; }\n"
    made.with_suffix(".c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, made.with_suffix(".c")], check=True)
    return made


def test_a_file_system_without_hard_links_is_refused_in_one_line_before_any_work(
    tmp_path: Path, no_links: Path
) -> None:
    store = tmp_path / "store"
    words = ["compact", "examples/archive", "--store", str(store), "--config", "examples/topics.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "jobs", "--master", "local[1]", *words], cwd=ROOT, stdin=subprocess.DEVNULL,
        env={**os.environ, "LD_PRELOAD": str(no_links)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-1000:]
    assert "Traceback" not in done.stderr
    assert "hard link" in done.stderr
    assert not (store / "segments").exists()
