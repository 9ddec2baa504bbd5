"""Archives and stores in a bucket on a real server, behind a proxy that refuses, delays, cuts and loses responses."""

from __future__ import annotations

import json
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.failures import job_error
from lastkey.jobs.errors import DAMAGED_TABLE, UsageError
from lastkey.jobs.store import table, writing
from lastkey.jobs.store.table import Change
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.errors import AccessError, stopped, unreadable
from lastkey.logformat.storage import buckets
from lastkey.logformat.storage.access_error import classify_message
from lastkey.logformat.storage.locations import file_system
from lastkey.udfs.storage import cached_root, open_root
from tests.bench.race_commits import losing, race
from tests.builders.errors import raises_kind
from tests.builders.logs import write_partition
from tests.builders.one_line import SECONDS, run_failing
from tests.builders.s3_proxy import COMMITS, CUT, SLOW_DOWN, Decide, Fault, each, every, s3_proxy
from tests.builders.s3_server import BUCKET, CREDENTIALS, environment, put, s3_server
from tests.builders.stores import make_commit, run_id

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
NO_KEYS = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
PROFILES = ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
SESSIONS = ("AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with environment(dict.fromkeys((*PROFILES, *SESSIONS))), s3_server() as port:
        yield port


def change(uri: str, **rows: int) -> int:
    new = pa.table([list(rows), list(rows.values())], schema=SCHEMA)
    return table.swap(open_root(uri), "t", SCHEMA, lambda v: table.replaced(v, ["name"], new, {}))


def content(uri: str) -> dict[str, int]:
    version = table.head(open_root(uri), "t")
    return {row["name"]: row["n"] for row in table.rows(version, SCHEMA).to_pylist()}


def always(fault: Fault) -> Decide:
    return lambda method, path: fault


ARCHIVE, STORE = ("verify", f"{BUCKET}/a"), ("vacuum", "--store", f"{BUCKET}/a")
ERRORS = {
    "denied": (Fault(status=403, code="AccessDenied"), "DeniedError", "access is denied: AccessDenied"),
    "unknown key": (Fault(status=403, code="InvalidAccessKeyId"), "DeniedError", "denied: InvalidAccessKeyId"),
    "expired": (Fault(status=400, code="ExpiredToken"), "ExpiredCredentialsError", "have expired: ExpiredToken"),
    "another region": (
        Fault(status=301, code="PermanentRedirect", headers=(("x-amz-bucket-region", "us-west-2"),)),
        "DeniedError", "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
    ),
    "malformed": (Fault(status=400, code="AuthorizationHeaderMalformed"), "DeniedError", "HeaderMalformed"),
    "busy": (SLOW_DOWN, "UnavailableError", "is not available: 503 Service Unavailable"),
    "broken": (Fault(status=500, code="InternalError"), "UnavailableError", "is not available: 500 Internal"),
    "cut": (CUT, "UnavailableError", "is not available: the connection was closed"),
    "no answer": (Fault(delay_seconds=400, cut=True), "UnavailableError", "is not available: no answer in time"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_unusable_bucket_is_a_one_line_error(port, name, capsys):
    fault, kind, words = ERRORS[name]
    with s3_proxy(port, always(fault)) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        code, line, error = run_failing(capsys, *(ARCHIVE if len(name) % 2 else STORE))
        assert proxy.happened
    assert code == error["exit_code"] == 5
    assert line.startswith(f"error: s3://logs at {proxy.url}: ")
    assert words in line
    assert error["kind"] == kind
    assert error["hint"] and line.endswith(str(error["hint"]))


@pytest.mark.parametrize("name", ERRORS)
def test_delta_reports_the_same_bucket_error(port, name, monkeypatch):
    """delta-rs, asked after pyarrow found nothing wrong, gives the same reason. It tries again for eight seconds, here
    where the server is busy alone.
    """
    fault, kind, _ = ERRORS[name]
    if name != "busy":
        monkeypatch.setitem(buckets._DELTA, "max_retries", "1")
    with s3_proxy(port, always(fault)) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        started = time.monotonic()
        with pytest.raises(OSError) as raised:
            table.head(open_root(f"{BUCKET}/a"), "t")
        error = job_error(raised.value)
        assert time.monotonic() - started < SECONDS
    assert error.kind.name == kind
    assert error is not None and str(error).startswith(f"the bucket at {proxy.url}/logs")
    assert len(error.line().splitlines()) == 1


@pytest.mark.parametrize("words", [ARCHIVE, STORE, ("inspect", f"{BUCKET}/a/t-0/0.log"), ("verify", *STORE[1:])])
def test_unresponsive_endpoint_is_an_error(port, words, capsys):
    with socket.socket() as bound:  # so that no other process can listen there
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with environment({"AWS_ENDPOINT_URL": url}):
            code, line, _ = run_failing(capsys, *words)
    assert code == 5
    assert line.startswith(f"error: s3://logs at {url}: is not available: Connection refused")


@pytest.mark.parametrize(
    "words", ["verify s3://nobody/a", "vacuum --store s3://nobody/a", "inspect s3://nobody/a/t-0/0.log",
              "verify --store s3://nobody/a", "lookup s3://nobody/a --time latest"],
)  # fmt: skip
def test_missing_s3_bucket_is_a_usage_error(port, words, capsys):
    code, line, error = run_failing(capsys, *words.split())
    assert (code, error["kind"]) == (2, "MissingBucketError")
    assert re.match("error: s3://nobody at http://127.0.0.1:[0-9]+: there is no such bucket; ", line)
    with pytest.raises(OSError, match="NoSuchBucket") as raised:
        table.head(open_root("s3://nobody/a"), "t")
    assert job_error(raised.value).kind.name == "MissingBucketError"


def test_missing_credentials_are_an_error(port, tmp_path, capsys):
    """No credentials in the environment or in a profile, and the machine has no role."""
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
    files = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    for variables in (files, {name: str(tmp_path / "none") for name in files}):
        with environment({**NO_KEYS, **variables}):
            code, line, error = run_failing(capsys, *ARCHIVE)
            assert (code, error["kind"]) == (5, "DeniedError")
            assert "access is denied: " in line
            with pytest.raises(OSError, match=r"credential|token") as raised:
                table.head(open_root(f"{BUCKET}/a"), "t")
            known = job_error(raised.value)
            assert known.kind.name == "DeniedError"
            assert known is not None and len(known.line().splitlines()) == 1


@pytest.mark.parametrize("endpoint", ["ftp://host", "http://127.0.0.1:1/path", "http://"])
def test_invalid_endpoint_is_a_usage_error(endpoint, capsys):
    with environment({**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}):
        code, line, _ = run_failing(capsys, *ARCHIVE)
    assert code == 2
    assert "found an endpoint (AWS_ENDPOINT_URL) that is not http://HOST:PORT or https://HOST:PORT" in line


PROFILE = """
[default]
region = eu-west-3
[profile p]
region = eu-north-1
endpoint_url = {url}
[profile q]
services = mine
[services mine]
s3 =
  endpoint_url = {url}
"""


@pytest.mark.parametrize(
    ("given", "key", "region"),
    [
        ({"AWS_PROFILE": "p"}, "PKEY", "eu-north-1"), ({"AWS_PROFILE": "q"}, "QKEY", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "{url}"}, "DEFAULT", "eu-west-3"),
        ({"AWS_ENDPOINT_URL_S3": "{url}", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "DEFAULT", "eu-west-3"),
        ({"AWS_PROFILE": "p", "AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "PKEY", "eu-west-1"),
        ({"AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": "MINE", "AWS_SECRET_ACCESS_KEY": "x"}, "MINE", "eu-north-1"),
    ],
    ids=str,
)  # fmt: skip
def test_both_libraries_sign_with_the_same_key_and_region(port, given, key, region, tmp_path):
    seen = []
    with s3_proxy(port) as proxy:
        (tmp_path / "config").write_text(PROFILE.format(url=proxy.url))
        keys = "".join(f"[{name}]\naws_access_key_id = {name_key}\naws_secret_access_key = x\n"
                       for name, name_key in (("default", "DEFAULT"), ("p", "PKEY"), ("q", "QKEY")))  # fmt: skip
        (tmp_path / "credentials").write_text(keys)
        cleared = {**NO_KEYS, "AWS_ENDPOINT_URL": None, "AWS_REGION": None}
        files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
        files = {name: str(tmp_path / file) for name, file in files.items()}
        with environment({**cleared, **files, **{name: value.format(url=proxy.url) for name, value in given.items()}}):
            filesystem, path = file_system(f"{BUCKET}/a")
            filesystem.get_file_info(path)
            seen.append({*proxy.signed})
            proxy.signed.clear()
            assert table.head(open_root(f"{BUCKET}/nothing"), "t").number == -1
            seen.append({*proxy.signed})
    assert seen == [{(key, region)}, {(key, region)}]


GLACIER = Fault(status=403, code="InvalidObjectState")


def test_request_error_of_one_file_is_a_problem_of_its_partition(port):
    filesystem, path = file_system(f"{BUCKET}/single/x")
    with filesystem.open_output_stream(path) as stream:
        stream.write(b"x")
    with (
        s3_proxy(port, lambda _, path: GLACIER if "single/x" in path else None) as p,
        environment({"AWS_ENDPOINT_URL": p.url}),
    ):
        filesystem, path = file_system(f"{BUCKET}/single/x")
        with pytest.raises(PermissionError, match="403 Forbidden: 's3://logs/single/x'") as raised:
            filesystem.open_input_file(path)
        assert unreadable("x", raised.value).kind == "unreadable"
        p.decide = always(Fault(status=400, code="ExpiredToken"))
        with pytest.raises(AccessError, match="the credentials have expired: ExpiredToken") as refused:
            filesystem.open_input_file(path)
    again = pickle.loads(pickle.dumps(refused.value))
    assert str(again) == str(refused.value)
    with pytest.raises(AccessError):
        stopped(again, "x")
    error = RuntimeError(
        f"Job aborted\n  lastkey.logformat.storage.access_error.AccessError: {again}\n\tat x"
    )  # as Spark tells it
    assert str(job_error(error)) == str(job_error(again)) == str(again)


@pytest.mark.parametrize(("fault", "kind"), [(CUT, "UnavailableError"), (SLOW_DOWN, "UnavailableError")], ids=str)
def test_file_with_only_failing_requests_is_not_reported_as_damage(port, fault, kind, tmp_path, capsys):
    """The server answers everything else, and also what Lastkey asks after that."""
    write_partition(tmp_path / "t-0", "a=1 | b=2 || c=3")
    put(tmp_path, f"{BUCKET}/failing-{kind}")
    decide = lambda method, path: fault if path.endswith("00.log") else None  # noqa: E731
    with s3_proxy(port, decide) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        code, line, error = run_failing(capsys, "verify", f"{BUCKET}/failing-{kind}")
    assert (code, error["kind"]) == (5, kind)
    assert line.startswith(f"error: s3://logs at {proxy.url}: ")


def test_each_endpoint_has_its_own_file_system_in_a_process(port, tmp_path):
    """A notebook may read one store, and then another one that has a bucket of the same name."""
    write_partition(tmp_path / "t-0", "a=1")
    uri = f"{BUCKET}/endpoints"
    put(tmp_path, uri)
    with socket.socket() as missing, environment({"AWS_ENDPOINT_URL": None}):
        missing.bind(("127.0.0.1", 0))  # it does not listen
        with environment({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{missing.getsockname()[1]}"}):
            elsewhere = cached_root(uri).filesystem
    here = cached_root(uri).filesystem
    assert here.get_file_info("logs/endpoints").type == pafs.FileType.Directory
    assert here.equals(file_system(uri)[0]) and not elsewhere.equals(here)


def test_hdfs_is_a_one_line_error(capsys):
    code, line, report = run_failing(capsys, "verify", "hdfs://127.0.0.1:1/x")
    assert (code, report["kind"]) == (2, "UsageError")
    assert "expected a path, or the URI of a bucket, found none of file://, s3://, gs://, az://" in line


def test_unrelated_error_texts_are_not_bucket_errors():
    for words in ("[Errno 13] Permission denied: '/a/403 Forbidden'", "No space left on device", "HTTP status 403"):
        assert classify_message(words) is None


def test_slow_and_faulty_server_only_delays_a_run(port, tmp_path, capsys):
    write_partition(tmp_path / "t-0", "a=1 | b=2 || c=3")
    put(tmp_path, f"{BUCKET}/faulty")
    slow_down = Fault(status=503)  # with a body that is larger than what was asked for pyarrow does not try again
    faults = each(every(11, slow_down), every(17, CUT), every(3, Fault(delay_seconds=0.05)))
    with s3_proxy(port, faults) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        assert main(["verify", f"{BUCKET}/faulty"]) == 0
        for i in range(3):
            change(f"{BUCKET}/faulty/store", **{f"k{i}": i})
        assert content(f"{BUCKET}/faulty/store") == {f"k{i}": i for i in range(3)}
    assert len(proxy.happened) > 10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("key", ["a b", "a%b", "a+b", "é", "a=b&c'd~e", "日本"])
def test_table_can_be_at_any_valid_key_of_a_bucket(port, key, tmp_path, capsys):
    """A URI is encoded: `%20` is a space, as pyarrow has it, and Hadoop."""
    uri = f"{BUCKET}/keys/{quote(key)}"
    table.check_fit(open_root(uri))
    for i in range(2):
        assert change(f"{BUCKET}/keys/{key}" if i else uri, **{f"k{i}": i}) == i
    assert content(uri) == {"k0": 0, "k1": 1}
    plain = pafs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", region="eu-central-1")
    infos = plain.get_file_info(pafs.FileSelector(f"logs/keys/{key}/state/t/_delta_log"))
    assert sorted(info.base_name for info in infos) == [f"{i:020}.json" for i in range(2)]
    write_partition(tmp_path / "t-0", "a=1 | b=2 || c=3")
    put(tmp_path, f"{uri}/archive")
    assert main(["verify", f"{uri}/archive"]) == 0
    assert "checked 1 partition, 3 records: no problem found" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["a%2520b", "a%5Cb"])
def test_invalid_key_of_a_table_is_refused(port, key):
    with pytest.raises(UsageError, match=r"a store.s (path|URI) cannot have"):
        table.check_fit(open_root(f"{BUCKET}/{key}"))


def test_commit_is_conditional_in_every_environment(port):
    variables = {"AWS_CONDITIONAL_PUT": "disabled", "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_SKIP_SIGNATURE": "true"}
    with environment(variables):
        change(f"{BUCKET}/conditional", a=1)
        root, seen = open_root(f"{BUCKET}/conditional"), []

        def plan(version: table.Version) -> Change:
            seen.append(version.number)
            if len(seen) == 1:
                change(f"{BUCKET}/conditional", b=2)  # another writer commits first
            return table.replaced(version, ["name"], pa.table([["c"], [3]], schema=SCHEMA), {})

        assert table.swap(root, "t", SCHEMA, plan) == 2
    assert seen == [0, 1]
    assert content(f"{BUCKET}/conditional") == {"a": 1, "b": 2, "c": 3}
    assert dict(root.filesystem.bucket.settings)["AWS_CONDITIONAL_PUT"] == "etag"


def test_damaged_newest_commit_is_reported(port: int) -> None:
    """A commit that removes a file under a wrong name would leave the old row beside the new one."""
    uri = f"{BUCKET}/damaged"
    state = open_state(uri)
    writing.commit_wave(state, [make_commit(i, 1, run_id(1, i)) for i in range(2)])
    writing.commit_wave(state, [make_commit(0, 2, run_id(2), run_id(1))])
    assert {key[1]: row.generation for key, row in open_state(uri).checkpoints().items()} == {0: 2, 1: 1}
    writing.commit_wave(state, [make_commit(0, 3, run_id(3), run_id(2))])
    path = state.root.full(f"state/compaction_checkpoints/_delta_log/{2:020}.json")
    with state.root.filesystem.open_input_stream(path, compression=None) as stream:
        data = stream.read()
    at = data.index(b".parquet", data.index(b'"remove"')) - 1
    with state.root.filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with raises_kind(DAMAGED_TABLE, match=f"{2:020}.json"):
        open_state(uri).checkpoints()


@pytest.mark.parametrize("data", [b"", b"PAR1 as if", None], ids=["empty", "changed", "gone"])
def test_a_damaged_file_of_a_table_is_reported_as_on_a_disk(port: int, data: bytes | None) -> None:
    state = open_state(f"{BUCKET}/damaged-{data}")
    writing.commit_wave(state, [make_commit(0, 1, run_id(1))])
    [path] = state.head("compaction_checkpoints").files()
    full = state.root.full(f"state/compaction_checkpoints/{path}")
    if data is None:
        state.root.filesystem.delete_file(full)
    else:
        with state.root.filesystem.open_output_stream(full, compression=None) as stream:
            stream.write(data)
    with raises_kind(DAMAGED_TABLE, match=f"{path}: expected the rows of a table, found "):
        open_state(state.root.uri).checkpoints()


def test_one_of_several_writers_commits_despite_lost_responses_and_kills(port):
    with losing(3) as lost:
        out = race(f"{BUCKET}/race", 4, 4, kill=2, seed=1)
    assert len(lost) > 8
    assert set(out.said.values()) <= {"done", "conflict", "unsure"}
    assert {"done", "conflict"} <= set(out.said.values())
    assert len(out.tried) == 32


# Runs commands in one session; prints the report of each
ONE_SESSION = """
import json, sys
from lastkey.jobs.command import cli
for words in json.loads(sys.argv[1]):
    print(cli.main(words), end="\\0", flush=True)
"""


def _compact_words(archive: str, store: str, *more: str) -> list[str]:
    words = ["compact", f"{BUCKET}/{archive}", "--store", f"{BUCKET}/{store}", "--config", "examples/topics.toml"]
    return [*words, "--now", "1795300000000", "--json", *more]


@pytest.mark.spark
def test_expired_token_and_refused_writes_during_tasks_are_errors(port):
    """Spark's workers report the failures as text; no partition is reported as uncleanable. Two runs in a session: all
    that the first one asks for fails after its first read, and the second one may write no segment.
    """
    expired = []

    def decide(method: str, path: str) -> Fault | None:
        if "/denied/" in path and "/segments/" in path and method in ("PUT", "POST"):
            return Fault(status=403, code="AccessDenied")
        if "/expiring/" in path and path.endswith(".log") and method == "GET":
            expired.append(path)
        is_of_first_run = "expiring" in path or "store" in path  # a listing has it as prefix=store%2F
        return Fault(status=400, code="ExpiredToken") if expired and is_of_first_run else None

    for archive in ("expiring", "example"):
        put(ROOT / "examples" / "archive", f"{BUCKET}/{archive}")
    runs = [_compact_words("expiring", "store"), _compact_words("example", "denied")]
    with s3_proxy(port, decide) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url, "PYTHONPATH": str(ROOT)}):
        command = [sys.executable, "-c", ONE_SESSION, json.dumps(runs)]
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert expired
    reports = [json.loads(text.rpartition("\n")[0]) for text in completed.stdout.split("\0")[:-1]]
    errors = [(report["error"]["kind"], report["error"]["exit_code"]) for report in reports]
    assert errors == [("ExpiredCredentialsError", 5), ("DeniedError", 5)], completed.stderr
    where = "(s3://logs|S3)"  # the words of a read name no bucket, those of other requests do
    message = f"error: {where} at {re.escape(proxy.url)}: the credentials have expired: ExpiredToken; log in again"
    assert re.search(message, completed.stderr)
    assert "access is denied" in completed.stderr
    assert (
        "AccessError" not in completed.stderr and "/udfs/" not in completed.stderr
    )  # beside the daemon's BrokenPipeError


def test_refused_writes_of_a_bucket_are_not_a_partition_problem(port, capsys):
    put(ROOT / "examples" / "archive", f"{BUCKET}/example")
    fault = Fault(status=404, code="NoSuchUpload")
    refused = lambda method, path: fault if method in ("PUT", "POST") and "/segments/" in path else None  # noqa: E731
    with s3_proxy(port, refused) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        words = _compact_words("example", "refused", "--engine", "threads")
        words[words.index("examples/topics.toml")] = str(ROOT / "examples" / "topics.toml")
        assert main(words) == 5
    assert proxy.happened
    assert "is not available: NoSuchUpload" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["/double", "a//b"])
def test_key_with_an_empty_part_is_a_one_line_error(port, key, capsys):
    assert main(["vacuum", "--store", f"{BUCKET}/{key}"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Fault(status=403, code="AccessDenied"), "DeniedError"), (SLOW_DOWN, "UnavailableError"),
     (CUT, "UnavailableError")],
    ids=str,
)  # fmt: skip
def test_refused_commit_is_an_error(port, fault, kind):
    """Everything else is writable, but the job leaves no partial output and keeps the old files."""
    uri = f"{BUCKET}/refused-{fault.status}"
    change(uri, a=1)
    refused = lambda method, path: fault if COMMITS.match(f"{method} {path}") else None  # noqa: E731
    with s3_proxy(port, refused) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        started = time.monotonic()
        with pytest.raises(AccessError, match="s3://logs at") as raised:
            change(uri, b=2)
        assert time.monotonic() - started < 2 * SECONDS
        assert job_error(raised.value).kind.name == kind
        assert len(proxy.happened) >= 4
    assert content(uri) == {"a": 1}
    assert change(uri, b=2) == 1
