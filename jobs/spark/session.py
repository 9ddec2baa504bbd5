"""The Spark session: the only place that makes one.

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
from typing import IO, TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lastkey.jobs.command.progress import TALKS
from lastkey.jobs.errors import ConnectorError, ForeignJarError, JarsError, JavaError, SparkStartError
from lastkey.jobs.installation import CONF
from lastkey.jobs.spark.master import check_master, is_local, public_address
from lastkey.jobs.spark.running import context_of, running_spark
from lastkey.jobs.spark.submit import UserOptions, from_environment, launch_arguments, read_properties
from lastkey.logformat.control_characters import visible

if TYPE_CHECKING:
    from lastkey.jobs.spark.running import Spark

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
# The resolver's jars that Spark's own do not hold already (in the same or a newer version), each with its
# SHA-256: the resolver checks downloads only against sums from the same place, and its cache not at all
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
# Traceback of a PySpark worker, which plans a data source's reads, if the JVM closes its socket before the worker ends
_LEFT = re.compile(
    r'Traceback [^\n]*(\n +File "[^"]*pyspark/daemon\.py"[^\n]*(\n    [^\n]*)?)+\n(BrokenPipe|ConnectionReset)Error.*'
)
_KEPT_LINES = 400
# Packages with the classes that Spark lacks for a file system, in the version of Spark's Hadoop
_CONNECTORS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
}
_DAEMON = "lastkey.jobs.spark.daemon"
_NO_LOCAL_FOLDER = 53  # ExecutorExitCode.DISK_STORE_FAILED_TO_CREATE_DIR


def start(
    name: str = "lastkey",
    *,
    options: UserOptions | None = None,
    conf: Mapping[str, str] | None = None,
    brief: bool = True,
) -> SparkSession:
    """Make a session, or join the running one: as `start_context`, which is enough for those who have only tasks."""
    return session_on(start_context(name, options=options, conf=conf, brief=brief))


def session_on(spark: Spark) -> SparkSession:
    """Make the session of a running context, or join it. Spark needs a second for the first one, for Delta's classes
    above all.
    """
    if context_of(spark) is None:
        return cast(SparkSession, spark)
    try:
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        raise _start_error("", error) from error


def start_context(
    name: str = "lastkey",
    *,
    options: UserOptions | None = None,
    conf: Mapping[str, str] | None = None,
    brief: bool = True,
) -> Spark:
    """Start Spark, or join the running one.

    options: the user's (default: PYSPARK_SUBMIT_ARGS), which win. conf: the caller's, which wins over the files.
    brief: the JVM has little to do (no shuffle of many rows); only used in local mode.
    """
    running = running_spark()
    if running is not None:  # a notebook's, or that of tests
        return running
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _start_in_submitted(name)
    user = options or from_environment()
    check_master(user)
    if user.remote is not None:
        return _connected(user, user.remote)
    java = find_java()
    settings = {"spark.app.name": name, **settings_for(user, java, brief=brief), **(conf or {})}
    os.environ["PYSPARK_SUBMIT_ARGS"] = launch_arguments(settings, user)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # else the JVM looks for data sources with PATH's python3
    os.environ["PYSPARK_PYTHON"] = _executors_python(user) or sys.executable
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _BRIEF)
    if is_local(user):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        _hide_checkout()
    output = _Output(shown=bool({"--verbose", "-v"} & set(user.arguments)))
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            popen_kwargs={"stdout": output.descriptor, "stderr": output.descriptor}
        )
        context = SparkContext(gateway=gateway)
    except (PySparkException, Py4JJavaError) as error:
        raise _start_error(output.text(), error, user.master) from error
    except (Py4JError, ConnectionError):  # the JVM has ended; the handler asks how
        raise
    except BaseException:
        output.show()
        raise
    finally:
        output.launched()
    output.show()
    return context


def _start_in_submitted(name: str) -> SparkContext:
    """Start Spark in the JVM of Spark's own spark-submit, which has started this process; its settings win."""
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    settings = SparkConf()
    if settings.get("spark.app.name", "").endswith(".py"):  # nobody named it
        settings.setAppName(name)
    named = dict(settings.getAll())
    if "spark.yarn.dist.archives" in named:  # as spark-submit calls YARN's --archives
        named["spark.archives"] = named["spark.yarn.dist.archives"]
    user = UserOptions(conf=named)
    python = _executors_python(user)
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    ours = read_properties(CONF / "spark-defaults.conf") | _of_pack(user)
    has_delta = jvm.org.apache.spark.util.Utils.classIsLoadable(ours["spark.sql.extensions"])
    for key, value in ours.items():
        if has_delta or not key.startswith(("spark.sql.extensions", "spark.sql.catalog.")):
            settings.setIfMissing(key, value)
    return SparkContext(conf=settings)


def _executors_python(user: UserOptions) -> str | None:
    """Return the Python that executors run: the one that the user names, else that of the pack; None: neither."""
    named = user.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return named or (None if is_local(user) else user.packs_python)


def _of_pack(user: UserOptions) -> dict[str, str]:
    """Return the settings of a cluster whose executors get a pack: their daemon imports Lastkey, and their logs say
    what they work on.
    """
    if is_local(user) or user.packs_python is None:
        return {}
    return {"spark.python.daemon.module": _DAEMON, f"spark.executorEnv.{TALKS}": "INFO"}


def _hide_checkout() -> None:
    """Take this checkout out of PYTHONPATH: YARN gives a client's to executors, before the Lastkey that they are meant
    to run, and their nodes may hold another version at the same path.
    """
    folders = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    others = [folder for folder in folders if folder and Path(folder).resolve() != CONF.parent]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)


def _connected(user: UserOptions, remote: str) -> SparkSession:
    """Return a session of Spark Connect, with our settings and the user's as far as a client may set them. No error
    repeats the connection string, which may hold a token.
    """
    settings = {**read_properties(CONF / "spark-defaults.conf"), **user.conf}
    try:
        made: Any = SparkSession.builder.remote(remote).getOrCreate()
        retries = made.client.get_retry_policies()
        made.client.set_retry_policies([])  # else a server of another kind is asked for ten minutes
        for key, value in settings.items():
            if key.startswith("spark.sql.") and made.conf.isModifiable(key):
                made.conf.set(key, value)
        made.client.set_retry_policies(retries)
    except ImportError as error:
        found = f"{public_address(remote)}: pyspark's packages for Spark Connect are missing ({error}); "
        raise SparkStartError(found=f"{found}install pyspark[connect]") from None
    except PySparkException as error:
        found = "" if remote in str(error) or "INVALID_CONNECT_URL" in str(error) else f": {_plain(str(error))}"
        raise SparkStartError(found=f"{public_address(remote)}{found}") from None
    return cast(SparkSession, made)


def check_connector(spark: SparkSession, uri: str) -> None:
    """Raise ConnectorError if Spark's own code has no file system for a URI. Of a server nobody knows."""
    if "://" not in uri or context_of(spark) is None:
        return
    scheme = uri.partition("://")[0]
    context: Any = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        package = _CONNECTORS.get(scheme)
        version = hadoop.util.VersionInfo.getVersion()
        given = f"--packages {package}:{version}" if package else "the jar of its connector (--jars)"
        raise ConnectorError(
            path=uri, expected=f"a connector for {scheme}://", found=_of_java(error), give=given
        ) from error


def local_folders() -> list[str]:
    """Return the folders in which Spark's processes on this machine write shuffle files, if the user named any."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or from_environment().conf.get("spark.local.dir", "")
    return [folder for folder in named.split(",") if folder]


def how_the_jvm_ended(patience_seconds: float = 0.0) -> str | None:
    """Return how the JVM that we launched ended, waiting up to `patience_seconds`; None if it runs, or is not ours."""
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
    """Return the settings that we ask of Spark; the user's own options come after them."""
    settings = read_properties(CONF / "spark-defaults.conf")
    local = is_local(user)
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
        settings["spark.python.daemon.module"] = _DAEMON
        # To workers: 20 ms less a task than TCP, which waits for acknowledgements; and nobody else's. Not on a cluster:
        # such a socket's path has 107 bytes at most, and the folder of a YARN container has more
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        java_options += _BRIEF.split() if brief else []
        archive = class_archive(java)
        if archive is not None and archive.is_file():
            java_options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    settings["spark.driver.defaultJavaOptions"] = " ".join(java_options)
    return settings | _of_pack(user)


def cached_jars(ivy: Path) -> list[str]:
    """Return Delta's jars in Spark's cache of downloads if all are whole, else none. ForeignJarError: altered ones."""
    paths = [ivy / "jars" / name for name in JARS]
    if not all(zipfile.is_zipfile(path) for path in paths):
        return []
    for path, expected in zip(paths, JARS.values(), strict=True):
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise ForeignJarError(path=path, expected=f"SHA-256 {expected}", found=found)
    return [str(path) for path in paths]


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
    spark = Path(sys.modules["pyspark"].__path__[0])
    stat = java.stat()
    key = hashlib.sha256(f"{java} {stat.st_size} {stat.st_mtime_ns} {spark} {JARS} 1".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "lastkey" / f"spark-{key}.jsa"


class _Output:
    """Pipe from the JVM's stdout and stderr to our stderr, without the noise of a start; stdout is for reports.

    Lines from before the session stands are held back: if it fails, one line says why.
    """

    def __init__(self, *, shown: bool = False) -> None:
        read, self.descriptor = os.pipe()
        self._lines: list[str] = []
        self._kept: list[str] | None = None if shown else []
        self._saying = threading.Lock()
        self._thread = threading.Thread(
            target=self._pump, args=(os.fdopen(read, "rb"),), daemon=True, name="jvm-output"
        )
        self._thread.start()

    def launched(self) -> None:
        """Close our end, so that the pump ends with the JVM."""
        os.close(self.descriptor)

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


def _start_error(text: str, error: Exception, master: str | None = None) -> Exception:
    failed = re.search(r"(download failed|unresolved dependency|not found): .*", text)
    if failed or "UNRESOLVED DEPENDENCIES" in text:
        local = Path("~/.m2/repository").expanduser()
        advice = "check the network, or a proxy (--conf spark.driver.extraJavaOptions=-Dhttps.proxyHost=...)"
        if "download failed" in text and local.is_dir():
            advice = f"{local} holds poms without jars, and Spark's resolver fails on them: remove or rename it"
        return JarsError(expected=PACKAGE, found=failed[0][:300] if failed else "unresolved", advice=advice)
    if isinstance(error, Py4JJavaError):
        found = _of_java(error)
        if "stopped SparkContext" in found and (reason := re.search(r"^[\d:]+ ERROR \S+ (.*)", text, re.MULTILINE)):
            found = _plain(reason[1])
        return SparkStartError(found=found + (f" (--master {master})" if master else ""))
    said = [line for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    first = next((i for i, line in enumerate(said) if "rror" in line or "xception" in line), 0)
    if first and said[first].startswith("Error: Could not create the Java Virtual Machine"):
        first -= 1  # the line before says why
    return SparkStartError(found=_plain(said[first] if said else str(error)))


def _of_java(error: Py4JJavaError) -> str:
    """Return the cause of an error of the JVM's, in its words and in one line."""
    cause = error.java_exception
    while (before := cause.getCause()) is not None:
        cause = before
    return _plain(str(cause.toString()))


def _plain(said: str) -> str:
    """Return the first line of Java's text, without packages, and without class names that say nothing."""
    first = re.sub(r'^Exception in thread "[^"]*" |^Error: ', "", said.strip().partition("\n")[0])
    first = re.sub(r"^(?:[a-z]\w*\.)+(?=[A-Z])", "", first)
    first = re.sub(r"^(?:Spark\w*|IllegalArgument)Exception: (?:requirement failed: )?", "", first)
    return first[:300].removesuffix(".")
