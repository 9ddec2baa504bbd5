"""Speed of `compact` in object stores against a plain copy of the same files from and to the same server.

    python -m tests.bench.bench_clouds --servers versitygw azurite
    python -m tests.bench.bench_clouds --servers moto --codec zstd --megabytes 300 --partitions 1 --delay-ms 60

A plain copy (`pyarrow.fs.copy_files`) moves the archive to this machine's disk, and the generation back into the
bucket. These are the bytes that a compaction reads and writes. The ratio is the time of both over the compaction's; the
servers are those of the tests, on this machine, and take processor time of their own: a column has what they took
during the compaction. The last column is the same compaction on the disk, which no store can beat. With --delay-ms a
proxy is before an S3 server that lets each read of a log wait, as servers farther away do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from lastkey.logformat.storage.locations import file_system
from tests.bench.make_log import make_partition
from tests.builders.cloud_servers import ACCOUNT, KEY, SERVERS
from tests.builders.s3_proxy import Fault, every, s3_proxy
from tests.builders.s3_server import environment, get, put

_RECORD_BYTES = 132


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=list(SERVERS))
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=0, help="of each read of a log, S3 alone")
    parser.add_argument("--codec", default="none")
    arguments = parser.parse_args()
    columns = (
        "server", "archive, MB", "generation, MB", "copy from, s", "copy to, s", "compact, s", "CPU of it, s",
        "CPU of the servers, s", "ratio", "on a disk, s",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="lastkey-bench-") as name:
        work = Path(name)
        records = arguments.megabytes * 1_000_000 // _RECORD_BYTES // arguments.partitions
        for number in range(arguments.partitions):
            folder = work / "archive" / f"t-{number}"
            make_partition(folder, arguments.codec, records=records, keys=records // 2, seed=number)
        disk = _compact(str(work / "archive"), str(work / "store"))
        for server in arguments.servers:
            scheme, start = SERVERS[server]
            with start() as port, _delay(port, arguments.delay_ms if scheme == "s3" else 0):
                _measure(server, f"{scheme}://logs", work, disk)


@contextmanager
def _delay(port: int, milliseconds: float) -> Iterator[None]:
    if not milliseconds:
        yield
        return
    late = every(1, Fault(delay_seconds=milliseconds / 1000), re.compile(r"GET .*\.log"))
    with s3_proxy(port, late) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        yield


def _measure(server: str, place: str, work: Path, disk: float) -> None:
    put(work / "archive", f"{place}/archive")
    of_servers, of_ended = _cpu_of_servers(), _cpu_of_ended()
    compacted = _compact(f"{place}/archive", f"{place}/store")
    of_servers, of_ended = _cpu_of_servers() - of_servers, _cpu_of_ended() - of_ended
    plain = _pyarrows(place.partition("://")[0])
    with tempfile.TemporaryDirectory(dir=work) as copied:
        _make_folders(f"{place}/archive", Path(copied))
        there = _seconds(lambda: pafs.copy_files("logs/archive", copied, source_filesystem=plain))
    get(f"{place}/store/segments", work / f"generation-{server}")
    generation = str(work / f"generation-{server}")
    back = _seconds(lambda: pafs.copy_files(generation, "logs/copied", destination_filesystem=plain))
    sizes = [_megabytes(f"{place}/{folder}") for folder in ("archive", "store/segments")]
    print(
        f"| {server} | {sizes[0]:.0f} | {sizes[1]:.0f} | {there:.1f} | {back:.1f} | {compacted:.1f} "
        f"| {of_ended:.1f} | {of_servers:.1f} "
        f"| {(there + back) / compacted:.2f} | {disk:.1f} |",
        flush=True,
    )


def _pyarrows(scheme: str) -> pafs.FileSystem:
    """Return pyarrow's own client of the server to which the environment leads."""
    if scheme == "az":
        at = urlsplit(os.environ["AZURE_STORAGE_ENDPOINT"]).netloc
        return pafs.AzureFileSystem(
            account_name=ACCOUNT, account_key=KEY, blob_storage_authority=at, dfs_storage_authority=at,
            blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip
    if scheme == "gs":
        at = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc
        return pafs.GcsFileSystem(anonymous=True, endpoint_override=at, scheme="http")
    at = urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc
    return pafs.S3FileSystem(endpoint_override=at, scheme="http", region=os.environ["AWS_REGION"])


def _make_folders(uri: str, folder: Path) -> None:
    filesystem, path = file_system(uri)
    for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)):
        if info.type == pafs.FileType.Directory:
            (folder / info.path[len(path) + 1 :]).mkdir(parents=True, exist_ok=True)


def _compact(archive: str, store: str) -> float:
    command = [
        sys.executable, "-m", "lastkey", "compact", archive, "--store", store, "--topics", "t",
        "--cleanup-policy", "compact", "--engine", "threads", "--quiet", "--json",
    ]  # fmt: skip
    completed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return float(json.loads(completed.stdout)["seconds"]["total"])


def _cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of_servers() -> float:
    """Return the processor seconds of this process's running children: a server, and its front if it has one."""
    total = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            user, system = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
            total += int(user) + int(system)
    return total / os.sysconf("SC_CLK_TCK")


def _megabytes(uri: str) -> float:
    filesystem, path = file_system(uri)
    return sum(info.size or 0 for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True))) / 1e6


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
