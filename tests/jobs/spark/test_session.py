from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError

from lastkey.jobs import prepare
from lastkey.jobs.errors import ENVIRONMENT, NO_JARS, NO_JAVA, SPARK_NOT_STARTED
from lastkey.jobs.spark import engine, jvm, session
from lastkey.jobs.spark.submit import UserOptions
from tests.builders.errors import raises_kind
from tests.builders.stopping import descendants, start, tracebacks
from tests.kafka_lab.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
DELTA = jvm._DELTA_FILES[0]


def _jars(folder):
    """Write empty jars in place of the real ones."""
    (folder / "jars").mkdir(parents=True)
    for name in jvm._DELTA_FILES:
        with zipfile.ZipFile(folder / "jars" / name, "w") as jar:
            jar.writestr("x", name)
    return folder


def test_cached_jars_are_used_only_if_complete(tmp_path):
    assert jvm.cached_delta(tmp_path) == []
    _jars(tmp_path)
    assert len(jvm.cached_delta(tmp_path)) == len(jvm._DELTA_FILES)
    (tmp_path / "jars" / DELTA).write_bytes(b"PK\x03\x04 cut")
    assert jvm.cached_delta(tmp_path) == []


@pytest.mark.spark
def test_resolver_downloads_the_jars_of_the_class_path(spark, tmp_path):
    """With an empty cache, as on a new machine, Ivy fetches exactly these files."""
    code = "from lastkey.jobs.spark import session; session.start().stop()"
    options = f"--master local[1] --conf spark.jars.ivy={tmp_path} pyspark-shell"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": options}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == sorted(jvm._DELTA_FILES)


def test_connectors_for_tables_in_buckets_are_resolved(tmp_path):
    java = Path("/usr/bin/java")
    _jars(tmp_path)
    ours = {"spark.jars.ivy": str(tmp_path)}
    tables = ("s3a://b/x", "s3a://b/y", "abfs://c@a/x", "gs://b/x", "/a/path")
    settings = jvm.settings_for(UserOptions(conf=ours), java, tables=tables)
    names = [package.split(":")[1] for package in settings["spark.jars.packages"].split(",")]
    assert names == ["hadoop-aws", "s3", "s3-transfer-manager", "sts", "apache-client", "hadoop-azure"]
    assert settings["spark.jars.excludes"] == jvm.NOT_NEEDED
    assert "spark.driver.extraClassPath" in settings
    user = UserOptions(conf=ours | {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1"})
    theirs = jvm.settings_for(user, java, tables=tables)
    assert theirs["spark.jars.packages"] == "org.apache.hadoop:hadoop-azure:3.5.0"
    assert theirs["spark.jars.excludes"] == jvm.BUNDLE


def test_session_settings_depend_on_the_master(tmp_path, monkeypatch):
    monkeypatch.setenv("LASTKEY_CLASS_ARCHIVE", "off")
    _jars(tmp_path)
    java = Path("/usr/bin/java")
    local = jvm.settings_for(UserOptions(conf={"spark.jars.ivy": str(tmp_path)}), java)
    assert local["spark.master"] == "local[*]"
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert DELTA in local["spark.driver.extraClassPath"]
    assert "TieredStopAtLevel" in local["spark.driver.defaultJavaOptions"]
    assert "spark.jars.packages" not in local

    user = UserOptions(conf={"spark.master": "yarn", "spark.jars.ivy": str(tmp_path)})
    cluster = jvm.settings_for(user, java)
    assert "spark.master" not in cluster
    assert "spark.driver.host" not in cluster
    assert "spark.python.unix.domain.socket.enabled" not in cluster  # the path would be too long in YARN's folders
    assert DELTA in cluster["spark.jars"]
    assert "TieredStopAtLevel" not in cluster["spark.driver.defaultJavaOptions"]

    fresh = jvm.settings_for(UserOptions(conf={"spark.jars.ivy": str(tmp_path / "none")}), java)
    assert fresh["spark.jars.packages"] == jvm.DELTA
    assert fresh["spark.jars.excludes"] == jvm.NOT_NEEDED
    packages = {"spark.jars.ivy": str(tmp_path / "none"), "spark.jars.packages": "org.example:jar:1"}
    assert jvm.settings_for(UserOptions(conf=packages), java)["spark.jars.excludes"] == jvm.BUNDLE  # theirs need more
    assert "TieredStopAtLevel" not in jvm.settings_for(
        UserOptions(conf={"spark.jars.ivy": str(tmp_path)}), java, brief=False
    ).get("spark.driver.defaultJavaOptions")


def test_yarn_executors_do_not_import_the_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:/opt/shared:{ROOT}/")
    session._hide_checkout()
    assert os.environ["PYTHONPATH"] == "/opt/shared"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    session._hide_checkout()
    assert "PYTHONPATH" not in os.environ


def test_local_master_selects_the_number_of_cores(monkeypatch):
    monkeypatch.setattr(session.SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    all_cores = os.cpu_count()
    for options, cores in (
        ("", all_cores), ("--master local[*]", all_cores), ("--master local[*,2]", all_cores), ("--master local", 1),
        ("--master local[5]", 5), ("--master local[5,2]", 5), ("--master yarn", None), ("--master spark://a:1", None),
        ("--master local-cluster[2,1,1024]", None),
    ):  # fmt: skip
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{options} pyspark-shell".strip())
        assert engine.local_cores() == cores, options
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # spark-submit started the JVM, and knows the master
    assert engine.local_cores() is None


@pytest.mark.parametrize(
    ("version", "good"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True), ("25.0.1", True)]
)
def test_supported_java_versions_are_accepted(tmp_path, monkeypatch, version, good):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if good:
        assert jvm.find_java() == tmp_path / "bin" / "java"
    else:
        with raises_kind(NO_JAVA, match="found Java"):
            jvm.find_java()


_GATEWAY = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_error_for_a_failed_download_names_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    packages = {"spark.jars.packages": "io.delta:delta"}
    error = session._start_error(_GATEWAY, packages, None)
    assert error.kind is NO_JARS
    assert "io.delta:delta" in str(error)
    assert "network" in error.advice
    (tmp_path / ".m2" / "repository").mkdir(parents=True)
    error = session._start_error(_GATEWAY, packages, None)
    assert "poms without jars" in error.advice


def test_error_for_a_terminated_jvm_refers_to_its_output():
    error = session._start_error(_GATEWAY, {}, None)
    assert error.kind is SPARK_NOT_STARTED
    assert str(error) == "Spark did not start: its JVM ended; the lines above say why"


def _java(text, cause=None):
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(toString=lambda: text, getCause=lambda: cause and cause.java_exception)
    return error


def test_the_cause_of_a_jvm_error_is_reported():
    cause = _java("java.net.ConnectException: Connection refused\n\tat x")
    error = _java("org.apache.spark.SparkException: External scheduler cannot be instantiated", cause)
    assert str(session._start_error(error, {}, "k8s://a:1")).endswith(
        "start: ConnectException: Connection refused (--master k8s://a:1)"
    )
    error = _java("org.apache.spark.SparkException: Asked to run with 0 threads.")
    assert str(session._start_error(error, {}, None)).endswith("start: Asked to run with 0 threads")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ("--conf spark.task.cpus=zz", {}, "spark.task.cpus"),
        ("--driver-memory 100m", {}, "must be at least"),
        ("--driver-memory 12xyz", {}, "its JVM ended; the lines above say why"),
        ("--conf spark.local.dir=/proc/x", {}, "--conf spark.local.dir=DIR"),
        ("", {"SPARK_HOME": "/nonexistent"}, "/nonexistent/./bin/spark-submit: No such file"),
        ("", {"PYSPARK_PYTHON": "/nonexistent/python"}, 'Cannot run program "/nonexistent/python"'),
    ],
)
def test_impossible_spark_settings_are_reported_in_one_line(tmp_path, options, environment, message):
    config = tmp_path / "t.toml"
    config.write_text('[topics.prices]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "spark"\n')
    words = ("compact", "examples/archive", "--store", str(tmp_path / "store"), "--config", str(config))
    completed = subprocess.run(
        [sys.executable, "-m", "lastkey", *options.split(), *words], env={**os.environ, **environment}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    *of_spark, line = completed.stderr.splitlines()
    assert line.startswith("error: ") and message in line and "please report" not in line
    assert not any(other.startswith(("error: ", "Traceback")) for other in of_spark), completed.stderr
    assert completed.returncode == ENVIRONMENT


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_ends_while_spark_starts_leaves_no_jvm(tmp_path, number):
    """The JVM must end if the folder for its address is missing. It would otherwise run forever and keep the run's
    stdout open.
    """
    run = start(tmp_path, ["reindex", str(ROOT / "examples" / "archive"), "--check", "--engine", "spark"])
    wait_until(lambda: "java" in map(_program, descendants(run.process.pid)), "a JVM", seconds=60)
    run.process.send_signal(number)
    code, _, err = run.finish()
    assert code == 128 + number, err
    assert tracebacks(err) == []


def _program(pid: int) -> str:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


@pytest.mark.slow
@pytest.mark.spark
def test_session_finds_the_data_sources_with_any_python_path():
    """And its workers are those of --conf spark.pyspark.python, which pyspark itself would pass over. A process that
    ignores Ctrl-C, as in the background of a script, still ignores it.
    """
    code = (
        "import signal; from lastkey.jobs.spark.session import start; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(start().read.format('kafka_log').load('examples').count())\n"
        "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN"
    )
    environment = {
        "PATH": os.defpath, "PYSPARK_DRIVER_PYTHON": "/nonexistent/jupyter", "PYSPARK_PYTHON": "/nonexistent/python",
        "PYSPARK_SUBMIT_ARGS": f"--master local[1] --conf spark.pyspark.python={sys.executable} pyspark-shell",
        "JAVA_HOME": str(jvm.find_java().parent.parent), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert int(completed.stdout) > 10_000


@pytest.mark.slow
@pytest.mark.spark
def test_workers_import_lastkey_from_the_path_of_a_script(tmp_path):
    """An ended job must not be reported as a lack of memory. The script's environment stays unchanged."""
    script = tmp_path / "script"
    script.write_text(
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import lastkey\n"
        f"report = lastkey.reindex({str(ROOT / 'examples' / 'archive')!r}, check=True, topics='orders')\n"
        "print(report.work.spark, report.exit_code, os.environ.get('PYTHONPATH'))\n"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    completed = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=bare | {"JAVA_HOME": str(jvm.find_java().parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (completed.stdout, completed.returncode) == (f"{pyspark.__version__} 0 None\n", 0), completed.stderr


@pytest.mark.parametrize(
    ("master", "known", "found"),
    [
        ("local[2]", None, "HOME"),
        ("local[2]", "/other", "/other:HOME"),
        ("local[2]", "/other:HOME/", None),  # in the user's order
        ("yarn", None, None),
        ("spark://a:1", "/other", None),
    ],
)
def test_python_path_of_workers_has_lastkey(master, known, found, monkeypatch, tmp_path):
    monkeypatch.setattr(jvm, "HOME", tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if known is not None:
        monkeypatch.setenv("PYTHONPATH", known.replace("HOME", str(tmp_path)))
    user = UserOptions(conf={"spark.master": master})
    expected = {} if found is None else {"PYTHONPATH": found.replace("HOME", str(tmp_path))}
    assert jvm.path_of_workers(user) == expected
    monkeypatch.setattr(jvm, "HOME", Path(pyspark.__file__).resolve().parents[1])  # as pip installs
    assert jvm.path_of_workers(user) == {}


@pytest.mark.spark
def test_session_has_delta_and_arrow_and_no_web_ui(spark, tmp_path):
    assert spark.conf.get("spark.sql.extensions") == "io.delta.sql.DeltaSparkSessionExtension"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert session.start() is not None  # joins the running one


@pytest.mark.spark
@pytest.mark.parametrize(("version", "good"), [("4.2.0", True), ("4.2.0-vendors-1", True), ("4.2.1", False)])
def test_incompatible_spark_version_is_a_one_line_error(spark, monkeypatch, version, good):
    """A notebook, a server or SPARK_HOME may bring one that delta-spark excludes."""
    monkeypatch.setitem(spark.__dict__, "version", version)  # a cached property
    if good:
        assert session.start() is spark
    else:
        with raises_kind(SPARK_NOT_STARTED, match=r"this is Spark 4\.2\.1, expected 4\.2\.0") as raised:
            session.start()
        assert raised.value.exit_code == ENVIRONMENT


@pytest.mark.parametrize("code", [0, 1])
def test_class_archive_of_a_crashed_jvm_is_discarded(code, tmp_path, monkeypatch):
    """The archive may be cut off: of such a one every later JVM dies."""
    archive = tmp_path / "lastkey" / "spark.jsa"

    def run(command, **options):
        Path(re.findall(r"ArchiveClassesAtExit=(\S+)", " ".join(command))[0]).write_bytes(b"classes")
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(jvm, "cached_delta", lambda ivy: ["delta.jar"])
    monkeypatch.setattr(jvm, "class_archive", lambda java: archive)
    monkeypatch.setattr(prepare.subprocess, "run", run)
    prepare._prepare_spark(Path("java"))
    assert list(archive.parent.iterdir()) == ([] if code else [archive])
