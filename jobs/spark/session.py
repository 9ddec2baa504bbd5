"""The Spark session: the only place where one is made.

Most of a short run's cost is the JVM loading and compiling classes that it needs once. Processor seconds, measured
on 2 cores with 64 partitions of 10 segments:
                                                      as Spark and Delta come    here
  session, first commit to a new store                                     36    13.5
  session, checkpoints and manifests read, a commit                        50      21
So, in local mode:
- Delta's jars straight from Spark's cache of downloads onto the class path once they are there (the resolver, copies);
- an archive of the JVM's loaded classes (CDS), where `python -m jobs.prepare` has made one;
- the JVM's quick compiler alone, and its simplest collector, for runs that give the JVM little to do (`brief`).
On a cluster nothing of this is set, and Spark's resolver or the cached jars bring Delta to every node.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from jobs.errors import ForeignJarError, JarsError, JavaError, SparkStartError
from jobs.installation import CONF
from jobs.spark.submit import UserOptions, from_environment, launch_arguments, read_properties
from logformat.control_characters import visible

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
# Of what the resolver brings, all that Spark's own jars do not hold already (in the same or a newer version), and its
# SHA-256: the resolver checks what it fetches against sums from the same place, and what lies in its cache not at all
JARS = {
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NOISE = re.compile(
    r"^(WARNING: Using incubator modules|Setting default log level|To adjust logging level|Picked up )"
    r"|^Deleted \d+ files and directories in a total of "  # VACUUM
    r"|^\s*(confs: \[|\d+ artifacts copied)"
    r"|^(Ivy Default Cache|The jars for the packages|\S+ added as a dependency)"
)
# A worker of PySpark's own daemon, which plans a data source's reads, when the JVM has closed its socket before it ends
_LEFT = re.compile(
    r'Traceback [^\n]*(\n +File "[^"]*pyspark/daemon\.py"[^\n]*(\n    [^\n]*)?)+\n(BrokenPipe|ConnectionReset)Error.*'
)
_KEPT_LINES = 400
_NO_LOCAL_FOLDER = 53  # ExecutorExitCode.DISK_STORE_FAILED_TO_CREATE_DIR


def start(
    name: str = "lastkey",
    *,
    options: UserOptions | None = None,
    conf: Mapping[str, str] | None = None,
    brief: bool = True,
) -> SparkSession:
    """A session, made or joined.

    `options`: the user's (default: PYSPARK_SUBMIT_ARGS), which win. `conf`: a caller's, which win over the files.
    `brief`: the JVM has little to do (no shuffle of many rows); only looked at in local mode.
    """
    running = SparkContext._active_spark_context
    if running is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # made by a notebook, by tests, or by spark-submit
        return SparkSession.builder.appName(name).getOrCreate()
    user = options or from_environment()
    java = find_java()
    settings = {"spark.app.name": name, **settings_for(user, java, brief=brief), **(conf or {})}
    os.environ["PYSPARK_SUBMIT_ARGS"] = launch_arguments(settings, user)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _BRIEF)
    if _is_local(user):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    output = _Output()
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            popen_kwargs={"stdout": output.descriptor, "stderr": output.descriptor}
        )
        context = SparkContext(gateway=gateway)
    except PySparkException as error:
        raise _start_error(output.text(), error) from error
    finally:
        output.launched()
    return SparkSession(context)


def local_cores() -> int | None:
    """How many of Spark's tasks run, or would run, at once on this machine; None: they do not run on it, and the driver
    may be a small one.
    """
    running = SparkContext._active_spark_context
    if running is not None:
        return running.defaultParallelism if str(running.master).startswith("local") else None
    user = from_environment()
    if "PYSPARK_GATEWAY_PORT" in os.environ or not _is_local(user):  # spark-submit knows where
        return None
    named = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", user.master or "local[*]")
    if named is None:  # local-cluster: processes of their own
        return None
    return os.cpu_count() or 1 if named[1] == "*" else max(int(named[1] or 1), 1)


def local_folders() -> list[str]:
    """Where Spark's processes on this machine write what they shuffle, if the user has said so."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or from_environment().conf.get("spark.local.dir", "")
    return [folder for folder in named.split(",") if folder]


def cancel_jobs() -> None:
    """End what Spark is doing for us, so that who waits for it gets an answer; without a session nothing."""
    context = SparkContext._active_spark_context
    if context is not None:
        context.cancelAllJobs()


def how_the_jvm_ended(patience_seconds: float = 0.0) -> str | None:
    """What became of the JVM that we launched, within that time; None: it runs, or is not ours."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        return None
    if code == _NO_LOCAL_FOLDER:
        return f"exit code {code}: it could not make a folder in spark.local.dir"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code} ({signal.Signals(-code).name})"


def settings_for(user: UserOptions, java: Path, *, brief: bool = True) -> dict[str, str]:
    """What we ask of Spark, before the user's own options."""
    settings = read_properties(CONF / "spark-defaults.conf")
    local = _is_local(user)
    java_options = [f"-Dlog4j2.configurationFile={(CONF / 'log4j2.properties').as_uri()}"]
    ivy = Path(user.conf.get("spark.jars.ivy") or "~/.ivy2.5.2").expanduser()
    jars = cached_jars(ivy)
    if not jars:
        settings["spark.jars.packages"] = PACKAGE
        settings["spark.jars.ivy"] = str(ivy)  # Java's idea of a home may be another one
    elif local:
        settings["spark.driver.extraClassPath"] = ":".join(jars)
    else:
        settings["spark.jars"] = ",".join(jars)
    if local:
        settings["spark.master"] = "local[*]"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.python.daemon.module"] = "jobs.spark.daemon"
        java_options += _BRIEF.split() if brief else []
        archive = class_archive(java)
        if archive is not None and archive.is_file():
            java_options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    settings["spark.driver.defaultJavaOptions"] = " ".join(java_options)
    return settings


def cached_jars(ivy: Path) -> list[str]:
    """Delta's jars in Spark's cache of downloads: all of them and whole, else none. ForeignJarError."""
    paths = [ivy / "jars" / name for name in JARS]
    if not all(zipfile.is_zipfile(path) for path in paths):
        return []
    for path, expected in zip(paths, JARS.values(), strict=True):
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise ForeignJarError(path=path, expected=f"SHA-256 {expected}", found=found)
    return [str(path) for path in paths]


def find_java() -> Path:
    """The java that Spark will take, if it is 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if not found.is_file():
        raise JavaError(found=f"no {found}" if home else "no java on PATH and no JAVA_HOME")
    found = found.resolve()
    release = found.parent.parent / "release"
    if release.is_file():  # a file beside the JVM says its version: 50 ms less than asking it
        text = release.read_text(encoding="utf-8", errors="replace")
    else:
        text = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'(?:JAVA_VERSION="|version ")(\d+)(?:\.(\d+))?', text)
    if version is None:
        raise JavaError(found=f"{found}, which does not say its version")
    major = int(version[2] or 8) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < 17:
        raise JavaError(found=f"Java {major} at {found}")
    return found


def class_archive(java: Path) -> Path | None:
    """Where the JVM's class archive for this Java, these jars and this environment is, or would be; None: nowhere."""
    if os.environ.get("LASTKEY_CLASS_ARCHIVE") == "off" or sys.prefix == sys.base_prefix:
        return None
    spark = Path(sys.modules["pyspark"].__path__[0])
    stat = java.stat()
    key = hashlib.sha256(f"{java} {stat.st_size} {stat.st_mtime_ns} {spark} {JARS} 1".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "lastkey" / f"spark-{key}.jsa"


def _is_local(user: UserOptions) -> bool:
    return (user.master or "local").startswith("local") and not user.conf.get("spark.remote")


class _Output:
    """The JVM's stdout and stderr, both to our stderr and without the noise of a start; stdout is for reports."""

    def __init__(self) -> None:
        read, self.descriptor = os.pipe()
        self._lines: list[str] = []
        self._thread = threading.Thread(
            target=self._pump, args=(os.fdopen(read, "rb"),), daemon=True, name="jvm-output"
        )
        self._thread.start()

    def launched(self) -> None:
        """Our end is closed: the pump ends with the JVM."""
        os.close(self.descriptor)

    def text(self) -> str:
        """What was said so far, noise included."""
        self._thread.join(timeout=0.5)
        return "\n".join(self._lines)

    def _pump(self, stream: IO[bytes]) -> None:
        resolving = False
        with stream:
            for line in _with_tracebacks_whole(raw.decode("utf-8", "replace").rstrip() for raw in stream):
                if len(self._lines) < _KEPT_LINES:
                    self._lines.append(line)
                if line.startswith(":: loading settings"):
                    resolving = True
                    _say("fetching Delta's jars (once)")
                elif not resolving and line and not _NOISE.search(line) and not _LEFT.fullmatch(line):
                    for one in line.split("\n"):
                        _say(one)
                resolving = resolving and not line.startswith(":: retrieving")


def _with_tracebacks_whole(lines: Iterable[str]) -> Iterator[str]:
    """The lines; those of a traceback together."""
    trace: list[str] = []
    for line in lines:
        if line.startswith("Traceback (") or (trace and line.startswith(" ")):
            trace.append(line)
        else:
            yield "\n".join([*trace, line])
            trace = []
    if trace:
        yield "\n".join(trace)


def _say(line: str) -> None:
    sys.stderr.write((visible(line) if sys.stderr.isatty() else line) + "\n")
    sys.stderr.flush()


def _start_error(text: str, error: PySparkException) -> Exception:
    failed = re.search(r"(download failed|unresolved dependency|not found): .*", text)
    if failed or "UNRESOLVED DEPENDENCIES" in text:
        local = Path("~/.m2/repository").expanduser()
        advice = "check the network, or a proxy (--conf spark.driver.extraJavaOptions=-Dhttps.proxyHost=...)"
        if "download failed" in text and local.is_dir():
            advice = f"{local} holds poms without their jars, which Spark's resolver trips over: remove or rename it"
        return JarsError(expected=PACKAGE, found=failed[0][:300] if failed else "unresolved", advice=advice)
    said = [line for line in text.splitlines() if "rror" in line or "xception" in line]
    return SparkStartError(found=(said or [str(error)])[0].strip()[:300])
