"""A server that speaks S3, moto's, on the loopback, with a bucket and the environment that leads to it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyarrow import fs as pafs

from tests.kafka_lab.broker import free_ports
from tests.kafka_lab.waiting import wait_until

BUCKET = "s3://logs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Its port on 127.0.0.1, with the empty bucket `logs`; the environment leads there as long as the block runs."""
    [port] = free_ports(1)
    command = [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(port)]
    with (
        environment({**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}),
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
    ):
        try:
            wait_until(lambda: _answers(port), "the S3 server to start", seconds=60)
            made = pafs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True)
            made.create_dir("logs")
            yield port
        finally:
            server.terminate()


@contextlib.contextmanager
def environment(given: Mapping[str, str | None]) -> Iterator[None]:
    """These variables, None: unset, as long as the block runs."""
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


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
