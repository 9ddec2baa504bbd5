"""Servers of the clouds on the loopback, each with a bucket and the environment that leads to it: Azurite for Azure,
fake-gcs-server for Google, versitygw for S3 (a second one, beside moto).

They are fetched once, from npm and by Go, into `.clouds/` (or LASTKEY_CLOUDS_DIR): half a minute to a minute each.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyarrow import fs as pafs

from tests.builders.s3_server import CREDENTIALS, environment, make_bucket, s3_server
from tests.kafka_lab.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
AZURITE = "azurite@3.35.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, for all


@contextlib.contextmanager
def azure_server() -> Iterator[int]:
    """Yield the port of Azurite behind its front, with the empty container `logs`; meanwhile the environment leads
    there.
    """
    folder = _folder() / "azurite"
    main = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), AZURITE)
    port = free_port()
    command = ["node", str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    with (
        _running([*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], port),
        _front(port) as front,
        environment(azure_environment(front)),
    ):
        at = f"127.0.0.1:{port}"
        server = pafs.AzureFileSystem(
            account_name=ACCOUNT,
            account_key=KEY,
            blob_storage_authority=at,
            dfs_storage_authority=at,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        server.create_dir("logs")
        yield front


def azure_environment(port: int) -> dict[str, str | None]:
    """Return the environment that leads to Azurite, or to a proxy before it."""
    return {
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}", "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ACCOUNT_NAME": None, "AZURE_STORAGE_SAS_TOKEN": None,
    }  # fmt: skip


@contextlib.contextmanager
def gcs_server() -> Iterator[int]:
    """Yield the port of fake-gcs-server behind its front, with the empty bucket `logs`; meanwhile the environment leads
    there.
    """
    port = free_port()
    at = ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    with (
        _running([_by_go(FAKE_GCS), "-backend", "memory", "-scheme", "http", "-log-level", "error", *at], port),
        _front(port) as front,
        environment({"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{front}"}),
    ):
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("POST", "/storage/v1/b?project=p", json.dumps({"name": "logs"}), {"Content-Type": "text/json"})
        assert client.getresponse().status == 200
        client.close()
        yield front


@contextlib.contextmanager
def versity_server() -> Iterator[int]:
    """Yield the port of versitygw, which keeps objects as files of a disk, with the empty bucket `logs`; meanwhile the
    environment leads there.
    """
    port = free_port()
    key, secret, region = (CREDENTIALS[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"))
    at = ["--port", f"127.0.0.1:{port}", "--region", region, "--access", key, "--secret", secret, "--quiet"]
    with (
        tempfile.TemporaryDirectory() as folder,
        environment(CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}),
        _running([_by_go(VERSITY), *at, "posix", folder], port),
    ):
        make_bucket(port)
        yield port


def _by_go(module: str) -> str:
    """Return the program of a Go module, which is installed if it is not there."""
    binary = _folder() / "bin" / module.rpartition("@")[0].rpartition("/")[2]
    if not binary.is_file():
        binary.parent.mkdir(parents=True, exist_ok=True)
        _run("go", "install", module, GOBIN=str(binary.parent), GOFLAGS="-mod=mod")
    return str(binary)


@contextlib.contextmanager
def _front(port: int) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.builders.cloud_front", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as front:
        try:
            assert front.stdout is not None
            yield int(front.stdout.readline())
        finally:
            front.terminate()


def free_port() -> int:
    """Return a port of the loopback that is free now. Neither server can choose and report a port itself."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            wait_until(lambda: server.poll() is not None or _listens(port), "the server listens", seconds=30)
            log.seek(0)
            assert server.poll() is None, f"{command[0]} ended with {server.returncode}: {log.read()[-3000:]}"
            yield
            assert server.poll() is None, f"{command[0]} ended with {server.returncode} before its tests did"
        finally:
            server.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _run(*command: str, **variables: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert completed.returncode == 0, f"{' '.join(command)}: {completed.stderr[-3000:]}"


def _folder() -> Path:
    return Path(os.environ.get("LASTKEY_CLOUDS_DIR") or ROOT / ".clouds")


SERVERS: Final = {  # scheme of its places, and the server
    "moto": ("s3", s3_server), "versitygw": ("s3", versity_server), "azurite": ("az", azure_server),
    "fake-gcs": ("gs", gcs_server),
}  # fmt: skip
