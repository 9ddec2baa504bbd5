"""The JVM that Spark runs in: its settings and jars, its process, what it says. No pyspark here: a command line may
launch it while pyspark is imported.

Most of a short run's cost is the JVM loading and compiling classes that it needs once. Processor seconds, measured on 2
cores with 64 partitions of 10 segments:
                                                      as Spark and Delta come    here
  session, first commit to a new store                                     36    13.5
  session, checkpoints and manifests read, a commit                        50      21
So, in local mode:
- Delta's jars go onto the class path straight from Spark's cache of downloads, if they are there (the resolver copies);
- the JVM uses an archive of loaded classes (CDS), if `python -m lastkey.jobs.prepare` has made one;
- runs that give the JVM little to do (`brief`) use only its quick compiler and its simplest collector.
On a cluster none of this is set, and Spark's resolver or the cached jars bring Delta to every node.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from lastkey.jobs.command.progress import TALKS
from lastkey.jobs.errors import JavaError, SparkStartError
from lastkey.jobs.installation import CONF, HOME
from lastkey.jobs.spark import forked, jars
from lastkey.jobs.spark.master import is_local
from lastkey.jobs.spark.submit import OF_PACK, UserOptions, launch_arguments, read_properties
from lastkey.logformat.control_characters import visible

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NOISE = re.compile(
    r"^(WARNING: Using incubator modules|Setting default log level|To adjust logging level|Picked up )"
    r"|^Deleted \d+ files and directories in a total of "  # VACUUM
    r"|^\s*(confs: \[|\d+ artifacts copied)"
    r"|^(Ivy Default Cache|The jars for the packages|\S+ added as a dependency)"
)
# Traceback of a PySpark worker, which plans a data source's reads, if the JVM closes its socket before the worker ends
_LEFT = re.compile(
    r'Traceback [^\n]*(\n +File "[^"]*pyspark/daemon\.py"[^\n]*(\n    [^\n]*)?)+\n(BrokenPipe|ConnectionReset)Error.*'
)
# In the JVM's own words, or in py4j's of a call; not in the middle of a line about a task on another machine
_NO_THREAD: Final = re.compile(
    r'^(?:Exception in thread ".*" |: )?(java\.lang\.OutOfMemoryError: unable to create native thread.*)', re.MULTILINE
)
_DAEMON: Final = "lastkey.jobs.spark.daemon"
_KEPT_LINES: Final = 400
_SOON: Final = 0.01  # seconds between looks for the JVM's address


class Jvm:
    """Process of a JVM that starts Spark, by the arguments of spark-submit. It ends with our end of its stdin."""

    def __init__(self, arguments: str, environment: Mapping[str, str], *, verbose: bool = False) -> None:
        self.arguments = arguments
        self.output = Output(shown=verbose)
        self._folder = Path(tempfile.mkdtemp(prefix="lastkey-jvm-"))  # where it says how to reach it
        try:
            self.process = subprocess.Popen(
                [f"{_spark_home()}/bin/spark-submit", *shlex.split(arguments)],
                stdin=subprocess.PIPE, stdout=self.output.descriptor, stderr=self.output.descriptor,
                env={
                    **os.environ, **environment, "SPARK_CONNECT_MODE": "0",
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._folder / "address"),
                },
                process_group=0,  # a terminal's Ctrl-C is for us alone: we tell the JVM what to do
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        finally:
            self.output.launched()
        self.output.of = self.process
        forked.begin()

    def address(self) -> tuple[int, str] | None:
        """Wait until it can be called; return its port and secret. None: it has ended."""
        path = self._folder / "address"  # appears as a whole
        try:
            while not path.is_file():
                if self.process.poll() is not None:
                    return None
                time.sleep(_SOON)
            said = path.read_bytes()
        except BaseException:
            self.end()  # where it finds no folder to write to, it never ends by itself
            raise
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        length = int.from_bytes(said[4:8], "big")
        return int.from_bytes(said[:4], "big"), said[8 : 8 + length].decode()

    def pipes(self) -> list[int]:
        """Return our ends of its pipes: whoever holds a copy of them keeps it alive."""
        return [self.output.read_from, *([] if self.process.stdin is None else [self.process.stdin.fileno()])]

    def end(self) -> None:
        """End it without waiting: nobody has called it yet."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)


_ahead: list[Jvm] = []  # what was launched before anybody knew whether it is needed


def launch_ahead(jvm: Jvm) -> None:
    """Keep a JVM for the session that may come."""
    _ahead.append(jvm)


def launched(arguments: str, environment: Mapping[str, str], *, verbose: bool) -> Jvm:
    """Return a JVM with these arguments: the one that was launched ahead, or a new one."""
    found = _ahead.pop() if _ahead and _ahead[0].arguments == arguments else None
    end_ahead()
    if found is None:
        found = Jvm(arguments, environment, verbose=verbose)
        found.output.hear()
    return found


def end_ahead() -> None:
    """End what was launched ahead and nobody needs."""
    while _ahead:
        _ahead.pop().end()


def _pyspark() -> Path:
    """Return pyspark's folder, without importing pyspark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    return Path(found.origin).parent


def _spark_home() -> str:
    """Return Spark's folder, as pyspark finds it. SparkStartError: SPARK_HOME names a folder without Spark, or with
    another version, whose workers speak another protocol.
    """
    home = str(runpy.run_path(str((_pyspark() / "find_spark_home").with_suffix(".py")))["_find_spark_home"]())
    if not os.access(f"{home}/bin/spark-submit", os.X_OK):
        raise SparkStartError(found=f"SPARK_HOME names {home}, which has no bin/spark-submit; unset it")
    jar = next(Path(home, "jars").glob("spark-core_*.jar"), None)
    found = None if jar is None else re.search(r"-(\d+\.\d+)", jar.name)
    ours = runpy.run_path(str((_pyspark() / "version").with_suffix(".py")))["__version__"]
    if found is not None and not ours.startswith(f"{found[1]}."):
        raise SparkStartError(found=f"SPARK_HOME names {home}, whose Spark is {found[1]}; pyspark is {ours}; unset it")
    return home


def is_verbose(user: UserOptions) -> bool:
    """Return whether the user wants to read all that Spark says."""
    return bool({"--verbose", "-v"} & set(user.arguments))


def arguments_for(user: UserOptions, *, brief: bool = True, conf: Mapping[str, str] | None = None) -> str:
    """Return the arguments of spark-submit: our settings, then those of the caller, then the user's, which win."""
    return launch_arguments(
        {"spark.app.name": "lastkey", **settings_for(user, find_java(), brief=brief), **(conf or {})}, user
    )


def environment_for(user: UserOptions) -> dict[str, str]:
    """Return what Spark finds in its environment beside what is there."""
    out = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,  # else the JVM looks for data sources with PATH's python3
        "PYSPARK_PYTHON": executors_python(user) or sys.executable,
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", _BRIEF),
    }
    if is_local(user):
        out["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return out | forked.address()


def path_of_workers(user: UserOptions) -> dict[str, str]:
    """Return the PYTHONPATH by which Python workers on this machine find Lastkey where this process did: a program may
    have put a checkout on `sys.path` alone. Installed packages need none, and must not come before Python's own.
    """
    known = os.environ.get("PYTHONPATH", "")
    found = (*site.getsitepackages(), site.getusersitepackages(), *filter(None, known.split(os.pathsep)))
    if not is_local(user) or HOME in map(Path.resolve, map(Path, found)):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (known, str(HOME))))}


def settings_for(user: UserOptions, java: Path, *, brief: bool = True) -> dict[str, str]:
    """Return the settings that we ask of Spark; the user's own options come after them."""
    settings = read_properties(CONF / "spark-defaults.conf")
    local = is_local(user)
    java_options = [f"-Dlog4j2.configurationFile={(CONF / 'log4j2.properties').as_uri()}"]
    ivy = jars.cache(user.conf)
    of_delta = jars.cached(ivy)
    if not of_delta:
        settings["spark.jars.packages"] = jars.PACKAGE
        if "spark.jars.packages" not in user.conf:  # else the user's would lack what they need
            settings["spark.jars.excludes"] = jars.NOT_NEEDED
        settings["spark.jars.ivy"] = str(ivy)  # Java's idea of a home may be another one
    elif local:
        settings["spark.driver.extraClassPath"] = ":".join(of_delta)
    else:
        settings["spark.jars"] = ",".join(of_delta)
    if local:
        settings["spark.master"] = "local[*]"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.python.daemon.module"] = _DAEMON
        # To workers: 20 ms less a task than TCP, which waits for acknowledgements; and nobody else's. Not on a cluster:
        # such a socket's path has 107 bytes at most, and the folder of a YARN container has more
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        java_options += _BRIEF.split() if brief else []
        archive = class_archive(java)
        if archive is not None and archive.is_file():
            java_options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    settings["spark.driver.defaultJavaOptions"] = " ".join(java_options)
    return settings | of_pack(user)


def executors_python(user: UserOptions) -> str | None:
    """Return the Python that executors run: the one that the user names, else that of the pack; None: neither."""
    named = user.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return named or (None if is_local(user) else user.packs_python)


def of_pack(user: UserOptions) -> dict[str, str]:
    """Return the settings of a cluster whose executors run by a pack, sent along or unpacked on a path that they see:
    their daemon imports Lastkey, and their logs say what they work on.
    """
    if is_local(user) or not (executors_python(user) or "").endswith(OF_PACK):
        return {}
    return {"spark.python.daemon.module": _DAEMON, f"spark.executorEnv.{TALKS}": "INFO"}


def find_java() -> Path:
    """Return the java that Spark will take. JavaError if there is none, or it is older than 17."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if not found.is_file():
        raise JavaError(found=f"no {found}" if home else "no java on PATH and no JAVA_HOME")
    found = found.resolve()
    release = found.parent.parent / "release"
    if release.is_file():  # this file tells the version 50 ms faster than the JVM
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
    """Return the path for the JVM's class archive of this Java, these jars and this environment; None: there
    is none.
    """
    if os.environ.get("LASTKEY_CLASS_ARCHIVE") == "off" or sys.prefix == sys.base_prefix:
        return None
    spark = _pyspark()
    stat = java.stat()
    key = hashlib.sha256(f"{java} {stat.st_size} {stat.st_mtime_ns} {spark} {jars.DELTA} 1".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "lastkey" / f"spark-{key}.jsa"


class Output:
    """Pipe from the JVM's stdout and stderr to our stderr, without the noise of a start; stdout is for reports.

    Lines from before the session stands are held back: if it fails, one line says why.
    """

    def __init__(self, *, shown: bool = False) -> None:
        read, self.descriptor = os.pipe()
        self._lines: list[str] = []
        self._kept: list[str] | None = None if shown else []
        self.of: subprocess.Popen[bytes] | None = None
        self.no_thread = ""  # the JVM's words, if it could start no thread
        self._saying = threading.Lock()
        self.read_from = read
        self._thread = threading.Thread(target=self._pump, daemon=True, name="jvm-output")

    def launched(self) -> None:
        """Close our end, so that the pump ends with the JVM."""
        os.close(self.descriptor)

    def hear(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def show(self) -> None:
        """Write the lines that were held back, and from now on every line at once."""
        with self._saying:
            for line in self._kept or ():
                _say(line)
            self._kept = None

    def text(self) -> str:
        """Return the output so far, noise included."""
        self._thread.join(timeout=0.5)
        return "\n".join(self._lines)

    def end_without_threads(self, said: str) -> None:
        """End the JVM if it says that it could start no thread: what lacks the thread waits for ever, tasks and the
        JVM's own end too.
        """
        if (found := _NO_THREAD.search(said)) and self.of is not None:
            self.no_thread = found[1]
            self.of.kill()

    def _pump(self) -> None:
        resolving = False
        with os.fdopen(self.read_from, "rb") as stream:
            for line in _with_tracebacks_whole(raw.decode("utf-8", "replace").rstrip() for raw in stream):
                if len(self._lines) < _KEPT_LINES:
                    self._lines.append(line)
                self.end_without_threads(line)
                if line.startswith(":: loading settings") and not resolving:
                    resolving = True
                    _say("fetching jars for Spark (once)")
                elif not resolving and line and not _NOISE.search(line) and not _LEFT.fullmatch(line):
                    self._take(line.split("\n"))
                resolving = resolving and not line.startswith(":: retrieving")

    def _take(self, lines: Iterable[str]) -> None:
        with self._saying:
            if self._kept is not None:
                self._kept += lines
                return
            for line in lines:
                _say(line)


def _with_tracebacks_whole(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, those of a traceback as one."""
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


def without_noise(text: str) -> list[str]:
    """Return the lines of Spark's output that say something."""
    return [line for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
