"""moto's S3 server on the loopback, with a bucket and the environment that leads to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyarrow import fs as pafs

from lastkey.logformat.storage.locations import file_system

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "s3://logs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Yield the server's port on 127.0.0.1, with the empty bucket `logs`; meanwhile the environment leads there."""
    command = [sys.executable, "-m", "tests.builders.moto_server"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            port = server.stdout.readline()  # the server listens there; empty: it has ended
            if not port:
                server.wait()
                log.seek(0)
                raise AssertionError(f"the S3 server ended with {server.returncode}: {log.read()[-3000:]}")
            with environment({**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(port)}"}):
                make_bucket(int(port))
                yield int(port)
                assert server.poll() is None, f"the S3 server ended with {server.returncode} before its tests did"
        finally:
            server.terminate()


def make_bucket(port: int) -> None:
    """Make the bucket `logs` on a server of this machine."""
    server = pafs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True)
    server.create_dir("logs")


def put(folder: Path, uri: str) -> None:
    """Copy a folder into the bucket."""
    filesystem, path = file_system(uri)
    for file in folder.rglob("*"):
        if file.is_file():
            with filesystem.open_output_stream(f"{path}/{file.relative_to(folder)}") as stream:
                stream.write(file.read_bytes())


def get(uri: str, folder: Path) -> None:
    """Copy a folder out of the bucket."""
    filesystem, path = file_system(uri)
    for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)):
        if info.type == pafs.FileType.File:
            to = folder / info.path[len(path) + 1 :]
            to.parent.mkdir(parents=True, exist_ok=True)
            with filesystem.open_input_file(info.path) as file:
                to.write_bytes(file.read())


@contextlib.contextmanager
def environment(given: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables (None: unset) while the block runs."""
    before = {name: os.environ.get(name) for name in given}
    _set(given)
    try:
        yield
    finally:
        _set(before)


def _set(given: Mapping[str, str | None]) -> None:
    for name, value in given.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
