"""Archives and stores in S3, Azure and Google's store, on real servers: results equal those on a disk.

./spark-submit.sh test -m clouds        # fetches Azurite (npm), fake-gcs-server and versitygw (Go) the first time
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import fs as pafs
from pyarrow import parquet as pq

from lastkey.jobs.archive.places import is_same
from lastkey.jobs.command import cli
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.failures import job_error
from lastkey.jobs.store import table
from lastkey.logformat.storage import object_store
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.logformat.storage.locations import file_system
from lastkey.udfs.storage import open_root
from tests.bench.race_commits import losing, race
from tests.builders.cloud_servers import ACCOUNT, KEY, SERVERS, azure_server, gcs_server
from tests.builders.one_line import run_failing
from tests.builders.s3_proxy import CUT, LOSE, Fault, at_most, each, every, s3_proxy
from tests.builders.s3_server import environment, put
from tests.builders.sources import read

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "archive"
NOW = ("--config", str(ROOT / "examples" / "topics.toml"), "--now", "1795300000000")
VARIES = (
    "seconds", "io", "bytes_read", "megabytes_per_second_per_core", "run_id", "archive", "store", "finished", "started",
    "application", "peak_memory_bytes", "now_ms", "bytes_searched",  # tables hold paths and ids of runs, compressed
    "tables without keys, leases, locks", "files_without_keys",  # and their sum: only a disk has a lock's file
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.clouds]


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request) -> Iterator[str]:
    scheme, server = SERVERS[request.param]
    with server():
        put(EXAMPLE, f"{scheme}://logs/archive")
        yield f"{scheme}://logs"


@pytest.fixture(scope="module")
def azure() -> Iterator[str]:
    with azure_server() as port:
        put(EXAMPLE, "az://logs/archive")
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli.lastkey, [*map(str, words)])
    assert result.exit_code == code, (words, result.stdout[-2000:], result.stderr, result.exception)
    return result.stdout


def run_apart(*words: object, code: int = 0) -> str:
    """Run a job by Spark in a process of its own: workers have the environment in which their JVM began."""
    command = [sys.executable, "-m", "lastkey", *map(str, words)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert completed.returncode == code, (words, completed.stdout[-2000:], completed.stderr[-3000:])
    return completed.stdout


def files(uri: str) -> dict[str, bytes]:
    """Content of every file below a place, by its path; a run's id, and names that Spark draws, are taken out."""
    filesystem, path = file_system(uri)
    out = {}
    for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)):
        if info.type == pafs.FileType.File:
            with filesystem.open_input_file(info.path) as file:
                name = re.sub(r"(/\d+)-[^/]+/", r"\1/", info.path[len(path) :])
                out[re.sub(r"(part-\d+)-[0-9a-f-]{36}", r"\1", name)] = file.read()
    return out


def rows(parquet: bytes) -> pa.Table:
    """All columns of a Parquet file. Its bytes, and so the checksum that Hadoop puts beside it, are Spark's affair."""
    return pq.read_table(pa.BufferReader(parquet)).replace_schema_metadata()


def timeless(text: object) -> object:
    if isinstance(text, dict):
        return {name: timeless(value) for name, value in text.items() if name not in VARIES}
    return [timeless(value) for value in text] if isinstance(text, list) else text


def everything(archive: str, place: str, here: Path) -> dict[str, object]:
    """Run every job on an archive, with output below `place`, and return all results. here: a folder on the disk for
    tables that Spark itself reads and writes, and for files that are no archive's.
    """
    threads, store = ("--engine", "threads"), f"{place}/store"
    out: dict[str, str] = {}
    results: dict[str, object] = {}
    out["verify"] = run("verify", archive, "--json", *threads)
    for engine, run_job in (("threads", run), ("spark", run_apart)):
        compact = ("compact", archive, "--store", f"{store}-{engine}", *NOW, "--engine", engine)
        run_job(*compact)
        run_job(*compact, "--force", "--sealed")
        out[f"verify --store {engine}"] = run_job(
            "verify", "--store", f"{store}-{engine}", "--json", "--engine", engine
        )
        run_job("reindex", archive, "--output", f"{place}/rebuilt-{engine}", "--engine", engine)
        results[f"segments {engine}"] = logs_and_indexes(f"{store}-{engine}")
        results[f"rebuilt {engine}"] = files(f"{place}/rebuilt-{engine}")
    assert results["segments spark"] == results["segments threads"]
    assert results["rebuilt spark"] == results["rebuilt threads"]
    store = f"{store}-threads"
    run("restore", "--store", store, "--output", f"{place}/restored")
    run("vacuum", "--store", store, "--grace-hours", "0")
    run("verify", "--store", store, *threads)
    results["restored"] = {
        name: data for name, data in files(f"{place}/restored").items() if "meta.properties" not in name
    }
    out["lookup"] = run("lookup", archive, "--partition", "orders-0", "--offset", "4711", "--json")
    out["time"] = run("lookup", archive, "--time", "2026-11-21T02:30Z", "--json")
    out["store"] = run("lookup", "--store", store, "--partition", "orders-0", "--offset", "4711", "--json")
    out["report"] = run("report", archive, "--output", f"{place}/page.html", "--json", *NOW)
    out["needed"] = run("archive-needed", archive, "--store", store, "--json", *threads)
    for name, to, *words in (
        ("export", here, archive, "--format", "parquet", "--topics", "users"),
        ("export", here, "--store", store, "--format", "ndjson"), ("convert", place, archive, "--to", "v3", *threads),
    ):  # fmt: skip
        output = f"{to}/{name}-{len(words)}"
        (run_apart if name == "export" else run)(name, *words, "--output", output)
        results[f"{name} {len(words)}"] = {
            path: rows(data) if path.endswith(".parquet") else data
            for path, data in files(output).items()
            if "_lastkey_export" not in path and not path.endswith(".parquet.crc")
        }
    audits = ("--audits", here / "audits", "--json")
    deliveries = ROOT / "examples" / "deliveries.csv"
    out["audit keys"] = run_apart("audit", "keys", archive, *audits)
    out["audit delivery"] = run_apart("audit", "delivery", archive, "--deliveries", deliveries, *audits)
    out["audit mirror"] = run_apart("audit", "mirror", EXAMPLE, archive, *audits)
    (here / "hmac.key").write_bytes(bytes(32))
    person = ("--store", store, "--key", "user-000058")
    erase = ("erase", *person, "--hmac-key", here / "hmac.key", "--json", *threads)
    out["erase"] = run(*erase)
    run("vacuum", "--store", store, "--erased")
    out["erase --check, archive"] = run(*erase, "--check")  # the archive holds it still
    out["erase --check"] = run(*erase, "--check", "--no-archive")
    results["erased"] = logs_and_indexes(store)
    assert results["erased"] != results["segments threads"]
    for name, printed in out.items():
        text = printed.replace(place, "P").replace(archive, "A").replace(str(EXAMPLE), "A").replace(str(here), "H")
        results[name] = timeless(json.loads(text))
    return results


def logs_and_indexes(store: str) -> dict[str, bytes]:
    segments = files(f"{store}/segments")
    assert len([name for name in segments if name.endswith(".log")]) > 4
    return {name: data for name, data in segments.items() if not name.endswith("manifest.json")}  # with ids of runs


@pytest.fixture(scope="module")
def on_a_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    root = tmp_path_factory.mktemp("disk")
    shutil.copytree(EXAMPLE, root / "archive")  # the audit of a mirror compares the copy with the example
    here = tmp_path_factory.mktemp("audits")  # before `disk` in the order of names, as it is before a bucket
    return everything(str(root / "archive"), str(root / "jobs"), here)


def test_every_job_gives_the_same_result_in_each_cloud(
    bucket: str, on_a_disk: dict[str, object], tmp_path: Path
) -> None:
    results = everything(f"{bucket}/archive", f"{bucket}/jobs", tmp_path)
    for name, expected in on_a_disk.items():
        assert results[name] == expected, name


@pytest.mark.parametrize("name", ["kafka_log", "kafka_log_batches", "kafka_log_index"])
def test_data_sources_read_the_same_rows_in_each_cloud(bucket: str, name: str) -> None:
    ours, expected = read(name, f"{bucket}/archive"), read(name, EXAMPLE)
    names = [column for column in expected.column_names if column != "path"]
    assert ours.select(names).equals(expected.select(names)) and ours.num_rows


def test_one_of_several_concurrent_writers_commits(bucket: str) -> None:
    out = race(f"{bucket}/race", 4, 5, kill=2, seed=1)
    assert {"done", "conflict"} <= set(out.said.values()) <= {"done", "conflict", "unsure"}


def test_missing_bucket_is_a_usage_error(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    scheme = bucket.partition("://")[0]
    for words in (("verify", f"{scheme}://missing/a"), ("vacuum", "--store", f"{scheme}://missing/a")):
        code, line, error = run_failing(capsys, *words)
        assert (code, error["kind"]) == (2, "MissingBucketError")
        assert re.match(f"error: {scheme}://missing at http://127.0.0.1:[0-9]+[^ ]*: there is no such bucket", line)


WRONG = f"A{KEY[1:]}"


@pytest.mark.parametrize("words", [("verify", "az://logs/archive"), ("vacuum", "--store", "az://logs/archive")])
@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": WRONG}, "DeniedError", "denied: AuthorizationFailure: Server failed to"),
        ({"AZURE_STORAGE_ENDPOINT": "{closed}"}, "UnavailableError", "is not available: "),
    ],
    ids=["key", "endpoint"],
)
def test_unusable_azure_account_is_a_one_line_error(azure, words, given, kind, message, capsys) -> None:
    with socket.socket() as bound:  # so that no other process can listen there
        bound.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{bound.getsockname()[1]}/{ACCOUNT}"
        with environment({name: value.format(closed=closed) for name, value in given.items()}):
            code, line, error = run_failing(capsys, *words)
    assert (code, error["kind"]) == (5, kind)
    assert message in line and WRONG not in line
    assert line.startswith("error: az://logs at http://127.0.0.1:") or line.startswith("error: Azure at http://127")


def test_both_uris_of_a_container_are_equal(azure: str) -> None:
    whole = f"abfss://logs@{ACCOUNT}.dfs.core.windows.net/archive"
    assert is_same("az://logs/archive", whole) and not is_same("az://other/archive", whole)
    assert file_system(whole)[1] == file_system("az://logs/archive")[1] == "logs/archive"
    with environment({"AZURE_STORAGE_ENDPOINT": None, "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT}):
        assert as_hadoop_names_it("az://logs/archive") == whole


@pytest.fixture(scope="module")
def google() -> Iterator[str]:
    with gcs_server() as port:
        put(EXAMPLE, "gs://logs/archive")
        yield f"http://127.0.0.1:{port}"


ENDPOINTS = {"azure": ("az", "AZURE_STORAGE_ENDPOINT"), "google": ("gs", "STORAGE_EMULATOR_HOST")}
FAULTS = {
    "UnavailableError": Fault(status=503, code="ServerBusy"), "DeniedError": Fault(status=403, code="Authorization"),
    "UnavailableError of many": Fault(status=429, code="TooManyRequests"), "UnavailableError cut": CUT,
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("server", ENDPOINTS)
def test_refused_or_closed_connections_are_a_one_line_error(server, kind, request, capsys) -> None:
    """obstore and delta-rs report the same reason."""
    at = urlsplit(request.getfixturevalue(server))
    scheme, variable = ENDPOINTS[server]
    with s3_proxy(at.port or 0) as proxy, environment({variable: f"{proxy.url}{at.path}"}):
        root = open_root(f"{scheme}://logs/archive")
        proxy.decide = lambda method, path: FAULTS[kind]
        code, line, error = run_failing(capsys, "verify", f"{scheme}://logs/archive")
        with pytest.raises(OSError) as raised:
            table.head(root, "t")
        by_delta = job_error(raised.value)
    assert (code, error["kind"]) == (5, kind.split()[0])
    assert f" at {proxy.url}{at.path}: " in line
    assert by_delta.kind.name == kind.split()[0]


@pytest.mark.parametrize("server", ENDPOINTS)
def test_one_of_several_writers_commits_despite_lost_responses_and_kills(server, request) -> None:
    request.getfixturevalue(server)
    scheme, variable = ENDPOINTS[server]
    with losing(3, variable) as lost:
        out = race(f"{scheme}://logs/lost", 4, 5, kill=2, seed=2)
    assert len(lost) > 8
    assert {"done", "conflict"} <= set(out.said.values()) <= {"done", "conflict", "unsure"}


SERVER_SIDE = re.compile(r"(?:PUT|POST) .*(?:segments|state)")


@pytest.mark.parametrize("server", ENDPOINTS)
def test_slow_and_faulty_server_only_delays_a_run(server, request, tmp_path, capsys, monkeypatch) -> None:
    """Answers that are late, refused, cut or lost in the middle of runs; what they give is the same.

    Of one request at most two attempts in a row fail.
    """
    at = urlsplit(request.getfixturevalue(server))
    scheme, variable = ENDPOINTS[server]
    failing = each(every(11, Fault(status=503, code="ServerBusy")), every(17, CUT), every(5, LOSE, on=SERVER_SIDE))
    faults = each(at_most(2, failing), every(3, Fault(delay_seconds=0.05)))
    place = f"{scheme}://logs/faulty"
    compact = ("--store", f"{place}/store", *NOW, "--engine", "threads")
    with s3_proxy(at.port or 0, faults) as proxy, environment({variable: f"{proxy.url}{at.path}"}):
        for words in (
            ("verify", f"{scheme}://logs/archive", "--engine", "threads"),
            ("compact", f"{scheme}://logs/archive", *compact),
            ("verify", "--store", f"{place}/store", "--engine", "threads"),
        ):
            assert main([*words, "--no-progress"]) == 0  # else stderr would have a line each minute
    assert len(proxy.happened) > 50
    assert any(asked.startswith("PUT ") and "segments" in unquote(asked) for asked in proxy.happened)  # data of uploads
    assert capsys.readouterr().err == ""
    run("compact", EXAMPLE, "--store", tmp_path / "store", *compact[2:])
    assert logs_and_indexes(f"{place}/store") == logs_and_indexes(str(tmp_path / "store"))


@pytest.mark.parametrize("server", ENDPOINTS)
@pytest.mark.parametrize("fault", [CUT, Fault(status=503, code="ServerBusy")], ids=["cut", "refused"])
def test_file_with_only_failing_requests_is_not_reported_as_damage(server, fault, request, capsys) -> None:
    """The server answers everything else, and also what Lastkey asks after that."""
    at = urlsplit(request.getfixturevalue(server))
    scheme, variable = ENDPOINTS[server]
    decide = lambda method, path: fault if "orders-0/00000000000000000000.log" in unquote(path) else None  # noqa: E731
    with s3_proxy(at.port or 0, decide) as proxy, environment({variable: f"{proxy.url}{at.path}"}):
        code, line, error = run_failing(capsys, "verify", f"{scheme}://logs/archive", "--engine", "threads")
    assert (code, error["kind"]) == (5, "UnavailableError")
    assert f" at {proxy.url}{at.path}: " in line


SILENT = {"reads": re.compile("GET .*[.]log"), "writes": re.compile("(?:PUT|POST) .*segments")}


@pytest.mark.parametrize("when", SILENT)
@pytest.mark.parametrize("server", ENDPOINTS)
def test_server_that_stops_responding_is_a_one_line_error(server, when, request, capsys, monkeypatch) -> None:
    """The server keeps its connections open but no longer answers."""
    at = urlsplit(request.getfixturevalue(server))
    scheme, variable = ENDPOINTS[server]
    monkeypatch.setattr(object_store, "_SENT_SECONDS", 10)
    is_silent: list[str] = []

    def decide(method: str, path: str) -> Fault | None:
        if is_silent or SILENT[when].match(f"{method} {unquote(path)}"):
            is_silent.append(path)
        return Fault(delay_seconds=3600, cut=True) if is_silent else None

    compact = ("compact", f"{scheme}://logs/archive", "--store", f"{scheme}://logs/silent-{when}", *NOW)
    with s3_proxy(at.port or 0, decide) as proxy, environment({variable: f"{proxy.url}{at.path}"}):
        code, line, error = run_failing(capsys, *compact, "--engine", "threads", seconds=30)
    assert is_silent
    assert (code, error["kind"]) == (5, "UnavailableError")
    assert line.startswith("error: ") and f" at {proxy.url}{at.path}: is not available: " in line
