from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError

from lastkey.jobs import prepare
from lastkey.jobs.errors import ENVIRONMENT, ForeignJarError, JarsError, JavaError, SparkStartError
from lastkey.jobs.spark import engine, jars, jvm, session
from lastkey.jobs.spark.submit import UserOptions

ROOT = Path(__file__).resolve().parents[3]
DELTA = next(iter(jars.DELTA))


def _jars(folder, monkeypatch):
    """Write empty jars in place of the real ones."""
    (folder / "jars").mkdir(parents=True)
    for name in jars.DELTA:
        path = folder / "jars" / name
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr("x", name)
        monkeypatch.setitem(jars.DELTA, name, hashlib.sha256(path.read_bytes()).hexdigest())
    return folder


def test_cached_jars_count_only_when_all_are_there_and_whole(tmp_path, monkeypatch):
    assert jars.cached(tmp_path) == []
    _jars(tmp_path, monkeypatch)
    assert len(jars.cached(tmp_path)) == len(jars.DELTA)
    (tmp_path / "jars" / DELTA).write_bytes(b"PK\x03\x04 cut")
    assert jars.cached(tmp_path) == []


def test_a_jar_that_is_another_one_is_not_loaded(tmp_path, monkeypatch):
    _jars(tmp_path, monkeypatch)
    path = tmp_path / "jars" / DELTA
    with zipfile.ZipFile(path, "a") as jar:
        jar.writestr("Evil.class", "")
    with pytest.raises(ForeignJarError, match=rf"{DELTA}: expected SHA-256 {jars.DELTA[DELTA]}, found [0-9a-f]{{64}}"):
        jars.cached(tmp_path)


@pytest.mark.spark
def test_the_jars_of_this_session_are_those_that_are_published(spark):
    """The hashes stand for what the resolver brings."""
    assert len(jars.cached(jars.cache({}))) == len(jars.DELTA)


def test_settings_by_master(tmp_path, monkeypatch):
    monkeypatch.setenv("LASTKEY_CLASS_ARCHIVE", "off")
    _jars(tmp_path, monkeypatch)
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
    assert fresh["spark.jars.packages"] == jars.PACKAGE
    assert fresh["spark.jars.excludes"] == jars.NOT_NEEDED
    packages = {"spark.jars.ivy": str(tmp_path / "none"), "spark.jars.packages": "org.example:jar:1"}
    assert "spark.jars.excludes" not in jvm.settings_for(UserOptions(conf=packages), java)  # theirs need more
    assert "TieredStopAtLevel" not in jvm.settings_for(
        UserOptions(conf={"spark.jars.ivy": str(tmp_path)}), java, brief=False
    ).get("spark.driver.defaultJavaOptions")


def test_yarn_does_not_give_this_checkout_to_executors(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:/opt/shared:{ROOT}/")
    session._hide_checkout()
    assert os.environ["PYTHONPATH"] == "/opt/shared"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    session._hide_checkout()
    assert "PYTHONPATH" not in os.environ


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
        assert engine.local_cores() == cores, options
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # spark-submit started the JVM, and knows the master
    assert engine.local_cores() is None


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
        assert jvm.find_java() == tmp_path / "bin" / "java"
    else:
        with pytest.raises(JavaError, match="found Java"):
            jvm.find_java()


def test_failed_downloads_say_what_to_do(tmp_path, monkeypatch):
    error = PySparkRuntimeError("JAVA_GATEWAY_EXITED")
    text = "Exception: [download failed: org.slf4j#slf4j-api;2.0.13!slf4j-api.jar, download failed: x]"
    monkeypatch.setenv("HOME", str(tmp_path))
    found = session._start_error(text, error)
    assert isinstance(found, JarsError)
    assert "network" in found.advice
    (tmp_path / ".m2" / "repository").mkdir(parents=True)
    found = session._start_error(text, error)
    assert "poms without jars" in found.advice
    assert "slf4j-api" in str(found)
    assert isinstance(session._start_error("unresolved dependency: io.delta#x: not found", error), JarsError)


_TRACE = "\n\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala:1180)"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "Picked up X\nError: Could not create the Java Virtual Machine.",
            "Could not create the Java Virtual Machine",
        ),
        (
            "Picked up X\nInvalid maximum heap size: -Xmx12xyz\nError: Could not create the Java Virtual Machine.\n"
            "Error: A fatal exception has occurred. Program will exit.",
            "Invalid maximum heap size: -Xmx12xyz",
        ),
        (
            f'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be positive{_TRACE}',
            "Executor memory must be positive",
        ),
        (
            'Exception in thread "main" java.lang.IllegalArgumentException: requirement failed: Provided Maven x',
            "Provided Maven x",
        ),
        ("Error: Invalid argument to --conf: spark.x\n\nUsage: spark-submit", "Invalid argument to --conf: spark.x"),
        ("Error occurred during initialization of VM\nCould not allocate x: 1 bytes", "Could not allocate x: 1 bytes"),
        (
            "Error: A JNI error has occurred, please check your installation\n"
            'Exception in thread "main" java.lang.InternalError: Error loading java.security file',
            "InternalError: Error loading java.security file",
        ),
        ("", "[JAVA_GATEWAY_EXITED]"),
    ],
)
def test_a_jvm_that_ended_is_told_in_its_own_words_and_in_one_line(text, found):
    said = session._start_error(text, PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}))
    assert isinstance(said, SparkStartError)
    assert str(said).startswith(f"Spark did not start: {found}")
    assert "\n" not in str(said)
    assert "--verbose" in said.advice


def _java(text, cause=None):
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(toString=lambda: text, getCause=lambda: cause and cause.java_exception)
    return error


def test_of_an_error_of_the_jvms_the_cause_is_told():
    cause = _java("java.net.ConnectException: Connection refused\n\tat x")
    error = _java("org.apache.spark.SparkException: External scheduler cannot be instantiated", cause)
    assert str(session._start_error("", error, "k8s://a:1")).endswith(
        "start: ConnectException: Connection refused (--master k8s://a:1)"
    )
    error = _java("org.apache.spark.SparkException: Asked to run with 0 threads.")
    assert str(session._start_error("", error)).endswith("start: Asked to run with 0 threads")


def test_a_session_that_spark_stopped_by_itself_says_why():
    """Something else than a master may answer at its address."""
    text = (
        "10:00:24 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters gave up.\n10:00 x"
    )
    error = _java("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped ...")
    said = str(session._start_error(text, error, "spark://a:1"))
    assert said.endswith("start: Application has been killed. Reason: All masters gave up (--master spark://a:1)")
    assert "stopped SparkContext" in str(session._start_error("", error))


def test_a_spark_of_another_version_is_not_launched(tmp_path, monkeypatch):
    """Its workers speak another protocol: a task would fail with a traceback of Spark's."""
    submit, jar = tmp_path / "bin" / "spark-submit", tmp_path / "jars" / "spark-core_2.13-4.1.1.jar"
    for path in (submit, jar):
        path.parent.mkdir()
        path.touch(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkStartError, match=rf"{tmp_path}, whose Spark is 4\.1; pyspark is {pyspark.__version__}"):
        jvm.Jvm("", {})
    jar.rename(jar.with_name(f"spark-core_2.13-{pyspark.__version__}-vendors-1.jar"))
    assert jvm._spark_home() == str(tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        ("--conf spark.task.cpus=zz", {}, "spark.task.cpus"),
        ("--driver-memory 100m", {}, "must be at least"),
        ("--conf spark.local.dir=/proc/x", {}, "exit code 53: it could not make a folder in spark.local.dir"),
        ("", {"SPARK_HOME": "/nonexistent"}, "SPARK_HOME names /nonexistent, which has no bin/spark-submit"),
        ("", {"PYSPARK_PYTHON": "/nonexistent/python"}, 'Cannot run program "/nonexistent/python"'),
    ],
)
def test_what_the_user_asked_of_spark_and_cannot_be_is_one_line(tmp_path, options, environment, said):
    config = tmp_path / "t.toml"
    config.write_text('[topics.prices]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "spark"\n')
    words = ("compact", "examples/archive", "--store", str(tmp_path / "store"), "--config", str(config))
    done = subprocess.run(
        [sys.executable, "-m", "lastkey", *options.split(), *words], env={**os.environ, **environment}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    [line] = done.stderr.splitlines()
    assert said in line and "please report" not in line
    assert done.returncode == ENVIRONMENT


@pytest.mark.slow
@pytest.mark.spark
def test_our_session_finds_the_data_sources_whatever_python_the_path_has():
    """And its workers are those of --conf spark.pyspark.python, which pyspark itself would pass over. A process that
    ignores Ctrl-C, as in the background of a script, goes on ignoring it.
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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000


@pytest.mark.slow
@pytest.mark.spark
def test_workers_find_lastkey_where_a_script_put_it_on_its_path(tmp_path):
    """The job ended, and blamed a lack of memory. The script's own environment stays as it was."""
    script = tmp_path / "script"
    script.write_text(
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import lastkey\n"
        f"report = lastkey.reindex({str(ROOT / 'examples' / 'archive')!r}, check=True, topics='orders')\n"
        "print(report.work.spark, report.exit_code, os.environ.get('PYTHONPATH'))\n"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=bare | {"JAVA_HOME": str(jvm.find_java().parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (f"{pyspark.__version__} 0 None\n", 0), done.stderr


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
def test_the_path_of_workers(master, known, found, monkeypatch, tmp_path):
    monkeypatch.setattr(jvm, "HOME", tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if known is not None:
        monkeypatch.setenv("PYTHONPATH", known.replace("HOME", str(tmp_path)))
    user = UserOptions(conf={"spark.master": master})
    expected = {} if found is None else {"PYTHONPATH": found.replace("HOME", str(tmp_path))}
    assert jvm.path_of_workers(user) == expected
    monkeypatch.setattr(jvm, "HOME", Path(pyspark.__file__).resolve().parents[1])  # as pip installs
    assert jvm.path_of_workers(user) == {}


def test_the_jvm_is_heard_once_the_session_stands(capsys):
    output = jvm.Output()
    os.write(output.descriptor, b"before\n")
    output.launched()
    output.hear()
    output._thread.join()
    assert capsys.readouterr().err == ""
    assert output.text() == "before"
    output.show()
    output._take(["after"])
    assert capsys.readouterr().err == "before\nafter\n"


@pytest.mark.parametrize("printed", [True, False])
def test_a_jvm_that_can_start_no_thread_is_ended(printed, monkeypatch):
    """By its own lines, or by an error that it passed on: it would wait for the thread for ever, even to end."""
    said = "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory"
    line = f'Exception in thread "dispatcher-event-loop-0" {said}\n'
    with subprocess.Popen(["sleep", "100"]) as process:
        output = jvm.Output()
        output.of = process
        os.write(output.descriptor, line.encode() if printed else b"")
        output.launched()
        output.hear()
        monkeypatch.setattr(session.SparkContext, "_gateway", SimpleNamespace(proc=process, output=output))
        if not printed:
            elsewhere = f"WARN TaskSetManager: Lost task 0.0 in stage 1.0 (TID 1) (10.0.0.2 executor 1): {said}\n"
            assert session.how_the_jvm_ended(0, elsewhere) is None
        assert session.how_the_jvm_ended(60, "" if printed else f"An error occurred\n: {said}\n\tat x") == said


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
    output = jvm.Output(shown=True)
    os.write(output.descriptor, given.encode())
    output.launched()
    output.hear()
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


@pytest.mark.parametrize("code", [0, 1])
def test_classes_of_a_jvm_that_did_not_end_well_are_not_kept(code, tmp_path, monkeypatch):
    """The archive may be cut off: of such a one every later JVM dies."""
    archive = tmp_path / "lastkey" / "spark.jsa"

    def run(command, **options):
        Path(re.findall(r"'(/.*)'", command[-1])[0]).write_bytes(b"classes")
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(jars, "cached", lambda ivy: ["delta.jar"])
    monkeypatch.setattr(jvm, "class_archive", lambda java: archive)
    monkeypatch.setattr(prepare.subprocess, "run", run)
    prepare._prepare_spark(Path("java"))
    assert list(archive.parent.iterdir()) == ([] if code else [archive])


@pytest.mark.spark
@pytest.mark.slow
def test_a_jvm_that_nobody_waits_for_any_more_ends(monkeypatch):
    """It found no folder for its address, and stayed for ever: a signal had ended the run while Spark started."""
    user = UserOptions()
    made = jvm.Jvm(jvm.arguments_for(user), jvm.environment_for(user))

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(jvm.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.address()
    monkeypatch.undo()
    made.process.stdin.close()  # as at our end
    made.output.hear()
    made.process.wait(30)
