"""Tables that Spark itself reads and writes in a bucket: its connector, and the way there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import ENVIRONMENT, NO_CONNECTOR
from lastkey.jobs.spark import connector
from lastkey.jobs.spark.running import classes, java_context
from lastkey.logformat.storage.hadoop import hadoop_settings
from tests.builders.cloud_servers import KEY, azure_server, gcs_server
from tests.builders.errors import raises_kind
from tests.builders.s3_proxy import S3Proxy, s3_proxy
from tests.builders.s3_server import BUCKET, environment, put, s3_server

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "archive"
PROVIDER = "fs.s3a.aws.credentials.provider"
SECRET = "4nobodyMaySeeThis"
UNSET = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"))
PLACES = ("archive", "store", "audits", "sources", "queries", "output")
VARIES = ("seconds", "io", "engine", "bytes_read", "peak_memory_bytes", "run_id")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}), ({"AWS_REGION": "eu-west-3"}, {"endpoint.region": "eu-west-3"}),
        (
            {"AWS_ENDPOINT_URL": "http://a:9"},
            {"endpoint": "http://a:9", "endpoint.region": "us-east-1", "path.style.access": "true"},
        ),
        (
            {"AWS_ENDPOINT_URL_S3": "b", "AWS_REGION": "x", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            {"endpoint": "https://b", "endpoint.region": "x", "path.style.access": "false"},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_hadoop_gets_the_endpoint_without_credentials(given, expected, tmp_path):
    nowhere = {name: str(tmp_path / "none") for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")}
    cleared = {**UNSET, "AWS_PROFILE": None, "AWS_DEFAULT_REGION": None, "AWS_ENDPOINT_URL_S3": None}
    with environment({**cleared, **nowhere, **given, "AWS_SECRET_ACCESS_KEY": SECRET}):
        settings = hadoop_settings(f"{BUCKET}/x")
    assert settings.pop(PROVIDER).endswith("DefaultCredentialsProvider")
    assert settings == {f"fs.s3a.{name}": value for name, value in expected.items()}
    assert hadoop_settings("/a/path") == {}


@pytest.mark.parametrize(
    ("uri", "server", "expected"),
    [
        ("gs://b/x", None, {"auth.type": "APPLICATION_DEFAULT"}),
        ("gs://anonymous@b/x", None, {"auth.type": "UNAUTHENTICATED"}),
        ("gs://b/x", "a:9", {"auth.type": "UNAUTHENTICATED", "storage.root.url": "http://a:9/"}),
    ],
)
def test_google_connector_gets_the_server_without_credentials(uri, server, expected, tmp_path):
    key = str(tmp_path / SECRET)
    with environment({"STORAGE_EMULATOR_HOST": server, "GOOGLE_APPLICATION_CREDENTIALS": key}):
        settings = hadoop_settings(uri)
    assert settings.pop("fs.gs.block.size").isdigit()
    assert settings == {f"fs.gs.{name}": value for name, value in expected.items()}


@pytest.mark.spark
def test_hadoop_settings_of_the_user_override_defaults(spark):
    hadoop = classes(spark.sparkContext).org.apache.hadoop
    conf, endpoint, region, style = (
        hadoop.conf.Configuration(),
        *(f"fs.s3a.{name}" for name in ("endpoint", "endpoint.region", "path.style.access")),
    )
    conf.set(endpoint, "http://mine", "spark")
    conf.set(style, conf.get(style), "spark")  # a default, but of the user's choice
    conf.set(PROVIDER, conf.getRaw(PROVIDER), "yarn-site.xml")  # a cluster's file that repeats all defaults
    for ours in ("one", "two"):  # ours may change
        connector.configure(hadoop, conf, {endpoint: "http://ours", region: ours, style: "true", PROVIDER: "P"})
    assert [conf.get(name) for name in (endpoint, region, style, PROVIDER)] == ["http://mine", "two", "false", "P"]


@pytest.mark.spark
def test_connector_of_the_user_is_preferred(spark):
    conf, own = java_context(spark.sparkContext).hadoopConfiguration(), "org.apache.hadoop.fs.RawLocalFileSystem"
    before = conf.get("fs.gs.impl")
    conf.set("fs.gs.impl", own, "spark")
    connector.connect(spark, "gs://b/t")
    assert conf.get("fs.gs.impl") == own
    conf.set("fs.gs.impl", before, "core-default.xml")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("uri", "option"),
    [
        ("s3a://b/t", "--packages org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3:"),
        ("abfs://c@a.dfs.core.windows.net/t", "--packages org.apache.hadoop:hadoop-azure:3.5.0 --exclude-packages"),
        ("gs://b/t", f"--jars {connector.GOOGLES_JAR}"),
        ("x://b/t", "(--jars)"),
    ],
)
def test_session_without_the_connector_is_a_one_line_error_with_a_remedy(spark, uri, option):
    """As a notebook's, or one that Spark's own spark-submit made."""
    for here in ("/a/path", "file:///a/path"):
        connector.connect(spark, here)
    scheme = uri.partition(":")[0]
    with raises_kind(NO_CONNECTOR, match=rf"^{uri}: .* a connector for {scheme}://: ") as raised:
        connector.connect(spark, uri)
    assert option in raised.value.advice
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_failed_download_of_a_connector_is_a_one_line_error(tmp_path):
    settings = "<ivysettings><settings defaultResolver='none'/><resolvers></resolvers></ivysettings>"
    (tmp_path / "nowhere.xml").write_text(settings)
    options = f"--conf spark.jars.ivy={tmp_path} --conf spark.jars.ivySettings={tmp_path}/nowhere.xml --master local[1]"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}
    words = ["lookup", str(EXAMPLE), "--store", str(tmp_path / "store"), "--at", "2026-11-21T02:30Z"]
    completed = subprocess.run(
        [sys.executable, "-m", "lastkey", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == ENVIRONMENT
    *_, line = completed.stderr.splitlines()
    assert re.match(r"error: io\.delta:delta-spark\S+ could not be fetched: .*check the network", line), (
        completed.stderr
    )


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Proxy]:
    """Serve the example archive as s3://logs/archive, behind a proxy that notes who signs."""
    with s3_server() as port, s3_proxy(port) as proxy:
        put(EXAMPLE, f"{BUCKET}/archive")
        yield proxy


def list_commands(archive: str, store: str, folder: str) -> list[list[str]]:
    """Return commands that keep tables in the store's place, by Spark or its tasks, each with a report in JSON."""
    return [
        [
            "compact",
            archive,
            "--store",
            store,
            "--config",
            str(ROOT / "examples/topics.toml"),
            "--now",
            "1795300000000",
        ],
        ["lookup", archive, "--store", store, "--at", "2026-11-21T02:30Z"],
        ["lookup", archive, "--queries", f"{folder}/q.csv", "--output", f"{folder}/answers.parquet"],
        ["audit", "keys", archive, "--audits", store],
        ["audit", "keys", "--store", store],
    ]


def in_processes(commands: list[list[str]]) -> tuple[list[tuple[int, object]], str]:
    """Run each command in a process of its own; return their exit codes and reports, `alike`, and all that was said."""
    outputs, text = [], ""
    for words in commands:
        command = [sys.executable, "-m", "lastkey", *words, "--json"]
        with environment({"PYTHONPATH": str(ROOT)}):
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
        text += completed.stdout + completed.stderr
        outputs.append((completed.returncode, alike(json.loads(completed.stdout))))
    return outputs, text


def alike(text: object) -> object:
    """Return a report without what a second run, or another folder, makes different."""
    if isinstance(text, dict):
        return {name: alike(value) for name, value in text.items() if name not in (*PLACES, *VARIES)}
    return [alike(value) for value in text] if isinstance(text, list) else text


@pytest.mark.spark
@pytest.mark.slow
def test_tables_in_a_bucket_equal_those_on_a_disk(spark, bucket, tmp_path, capsys):
    """By commands without an option of Spark's; place and keys come from a profile alone, and no log shows a key."""
    (tmp_path / "q.csv").write_text("topic,partition,offset\norders,0,1\nusers,1,7\n")
    put(tmp_path, f"{BUCKET}/asked")
    expected = []
    for words in list_commands(str(EXAMPLE), str(tmp_path / "store"), str(tmp_path)):
        code = cli.main([*words, "--json"])
        expected.append((code, json.loads(capsys.readouterr().out)))

    (tmp_path / "config").write_text(f"[profile p]\nregion = eu-north-1\nendpoint_url = {bucket.url}\n")
    (tmp_path / "keys").write_text(f"[p]\naws_access_key_id = PKEY\naws_secret_access_key = {SECRET}\n")
    (tmp_path / "conf").mkdir()
    events = f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir file://{tmp_path}/conf\n"
    (tmp_path / "conf/spark-defaults.conf").write_text(events)
    profile = {"AWS_PROFILE": "p", "AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "keys"}
    profile |= {name: str(tmp_path / profile[name]) for name in profile if name != "AWS_PROFILE"}
    bucket.signed.clear()
    with environment({**UNSET, **profile, "SPARK_CONF_DIR": str(tmp_path / "conf")}):
        outputs, shown = in_processes(list_commands(f"{BUCKET}/archive", f"{BUCKET}/tables", f"{BUCKET}/asked"))
    assert outputs == [(code, alike(report)) for code, report in expected], shown
    assert {*bucket.signed} == {("PKEY", "eu-north-1")}
    logs = [path.read_text() for path in (tmp_path / "conf").rglob("*") if path.is_file()]
    assert sum("fs.s3a" in text for text in logs) > 0
    assert SECRET not in "".join((*logs, shown))


@pytest.mark.slow
@pytest.mark.clouds
@pytest.mark.parametrize(
    ("server", "place", "seen"), [(azure_server, "az://logs", "abfs://"), (gcs_server, "gs://logs", "gs://")]
)
def test_tables_in_a_cloud_equal_those_on_a_disk(server, place, seen, tmp_path):
    """Azure's key comes from the environment, and no log shows it."""
    for name in ("asked", "conf"):
        (tmp_path / name).mkdir()
    (tmp_path / "asked/q.csv").write_text("topic,partition,offset\norders,0,1\nusers,1,7\n")
    events = f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir file://{tmp_path}/conf\n"
    jar = f"spark.jars {connector.GOOGLES_JAR}\n" if seen == "gs://" else ""
    (tmp_path / "conf/spark-defaults.conf").write_text(events + jar)
    with server(), environment({"SPARK_CONF_DIR": str(tmp_path / "conf")}):
        put(EXAMPLE, f"{place}/archive")
        put(tmp_path / "asked", f"{place}/asked")
        outputs, shown = in_processes(list_commands(f"{place}/archive", f"{place}/tables", f"{place}/asked"))
    assert [code for code, _ in outputs] == [0] * 5, shown
    expected, _ = in_processes(list_commands(str(EXAMPLE), str(tmp_path / "store"), str(tmp_path / "asked")))
    assert outputs == expected, shown
    logs = [path.read_text() for path in (tmp_path / "conf").rglob("*") if path.is_file()]
    assert sum(seen in text for text in logs) > 0
    assert KEY not in "".join((*logs, shown))
