from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

from jobs.errors import ForeignJarError, JarsError, JavaError, SparkStartError
from jobs.spark import session
from jobs.spark.submit import UserOptions

DELTA = next(iter(session.JARS))


def _jars(folder, monkeypatch):
    """Jars of nothing, in place of the real ones."""
    (folder / "jars").mkdir(parents=True)
    for name in session.JARS:
        path = folder / "jars" / name
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr("x", name)
        monkeypatch.setitem(session.JARS, name, hashlib.sha256(path.read_bytes()).hexdigest())
    return folder


def test_cached_jars_count_only_when_all_are_there_and_whole(tmp_path, monkeypatch):
    assert session.cached_jars(tmp_path) == []
    _jars(tmp_path, monkeypatch)
    assert len(session.cached_jars(tmp_path)) == len(session.JARS)
    (tmp_path / "jars" / DELTA).write_bytes(b"PK\x03\x04 cut")
    assert session.cached_jars(tmp_path) == []


def test_a_jar_that_is_another_one_is_not_loaded(tmp_path, monkeypatch):
    _jars(tmp_path, monkeypatch)
    path = tmp_path / "jars" / DELTA
    with zipfile.ZipFile(path, "a") as jar:
        jar.writestr("Evil.class", "")
    with pytest.raises(
        ForeignJarError, match=rf"{DELTA}: expected SHA-256 {session.JARS[DELTA]}, found [0-9a-f]{{64}}"
    ):
        session.cached_jars(tmp_path)


@pytest.mark.spark
def test_the_jars_of_this_session_are_those_that_are_published(spark):
    """The hashes stand for what the resolver brings."""
    assert len(session.cached_jars(Path("~/.ivy2.5.2").expanduser())) == len(session.JARS)


def test_settings_by_master(tmp_path, monkeypatch):
    monkeypatch.setenv("LASTKEY_CLASS_ARCHIVE", "off")
    _jars(tmp_path, monkeypatch)
    java = Path("/usr/bin/java")
    local = session.settings_for(UserOptions(conf={"spark.jars.ivy": str(tmp_path)}), java)
    assert local["spark.master"] == "local[*]"
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert DELTA in local["spark.driver.extraClassPath"]
    assert "TieredStopAtLevel" in local["spark.driver.defaultJavaOptions"]
    assert "spark.jars.packages" not in local

    user = UserOptions(conf={"spark.master": "yarn", "spark.jars.ivy": str(tmp_path)})
    cluster = session.settings_for(user, java)
    assert "spark.master" not in cluster
    assert "spark.driver.host" not in cluster
    assert DELTA in cluster["spark.jars"]
    assert "TieredStopAtLevel" not in cluster["spark.driver.defaultJavaOptions"]

    fresh = session.settings_for(UserOptions(conf={"spark.jars.ivy": str(tmp_path / "none")}), java)
    assert fresh["spark.jars.packages"] == session.PACKAGE
    assert "TieredStopAtLevel" not in session.settings_for(
        UserOptions(conf={"spark.jars.ivy": str(tmp_path)}), java, brief=False
    ).get("spark.driver.defaultJavaOptions")


def test_where_tasks_run(monkeypatch):
    monkeypatch.setattr(session.SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    all_cores = os.cpu_count()
    for options, cores in (
        ("", all_cores), ("--master local[*]", all_cores), ("--master local[*,2]", all_cores), ("--master local", 1),
        ("--master local[5]", 5), ("--master local[5,2]", 5), ("--master yarn", None), ("--master spark://a:1", None),
        ("--master local-cluster[2,1,1024]", None),
    ):  # fmt: skip
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{options} pyspark-shell".strip())
        assert session.local_cores() == cores, options
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # spark-submit started the JVM, and knows the master
    assert session.local_cores() is None


@pytest.mark.parametrize(
    ("version", "good"),
    [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True), ("25.0.1", True)],
)
def test_java_versions(tmp_path, monkeypatch, version, good):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if good:
        assert session.find_java() == tmp_path / "bin" / "java"
    else:
        with pytest.raises(JavaError, match="found Java"):
            session.find_java()


def test_failed_downloads_say_what_to_do(tmp_path, monkeypatch):
    error = PySparkRuntimeError("JAVA_GATEWAY_EXITED")
    text = "Exception: [download failed: org.slf4j#slf4j-api;2.0.13!slf4j-api.jar, download failed: x]"
    monkeypatch.setenv("HOME", str(tmp_path))
    found = session._start_error(text, error)
    assert isinstance(found, JarsError)
    assert "network" in found.advice
    (tmp_path / ".m2" / "repository").mkdir(parents=True)
    found = session._start_error(text, error)
    assert "poms without their jars" in found.advice
    assert "slf4j-api" in str(found)
    assert isinstance(session._start_error("unresolved dependency: io.delta#x: not found", error), JarsError)
    other = session._start_error("noise\nError: Could not create the Java Virtual Machine.", error)
    assert isinstance(other, SparkStartError)
    assert "Could not create" in str(other)


_DAEMON = '  File "/venv/pyspark.zip/pyspark/daemon.py", line 262, in manager\n'
_OURS = '  File "/venv/numpy/f", line 3, in f\n    g(x)\n'
_PIPE = "BrokenPipeError: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"a\nTraceback (most recent call last):\n{_DAEMON}{_DAEMON}{_PIPE}b\n", "a\nb\n"),
        (trace := f"Traceback (most recent call last):\n{_DAEMON}    code = worker()\n{_OURS}{_PIPE}b\n", trace),
        (other := f"Traceback (most recent call last):\n{_DAEMON}OSError: disk\n", other),
        ("Traceback (most recent call last):\n  cut off", "Traceback (most recent call last):\n  cut off\n"),
    ],
)
def test_a_worker_that_the_jvm_has_left_says_nothing_and_all_others_do(given, said, capsys):
    output = session._Output()
    os.write(output.descriptor, given.encode())
    output.launched()
    output._thread.join()
    assert capsys.readouterr().err == said


@pytest.mark.spark
def test_the_session_has_delta_and_arrow_and_no_web_pages(spark, tmp_path):
    assert spark.conf.get("spark.sql.extensions") == "io.delta.sql.DeltaSparkSessionExtension"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert session.start() is not None  # joins the running one
    workers = spark.range(4, numPartitions=2).mapInArrow(_shared_modules(), "name string").collect()
    assert {row.name for row in workers} == {"numba"}


def _shared_modules():
    def modules(batches):  # a closure travels by value: workers cannot import a test
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": ["numba" if "numba" in sys.modules else "none"]})

    return modules
