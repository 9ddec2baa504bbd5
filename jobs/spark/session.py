"""The Spark session: the only place that makes one. `jobs.spark.jvm` launches the process that it lives in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lastkey.jobs.errors import SparkStartError
from lastkey.jobs.installation import CONF
from lastkey.jobs.spark import jars, jvm
from lastkey.jobs.spark.master import check_master, is_local, public_address
from lastkey.jobs.spark.running import context_of, running_spark
from lastkey.jobs.spark.submit import UserOptions, from_environment, read_properties

if TYPE_CHECKING:
    from lastkey.jobs.spark.running import Spark

_NEXT_LINE_SAYS_WHY = ("Error occurred during initialization of VM", "Error: A JNI error has occurred")
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
    if not is_local(user):
        _hide_checkout()
    environment = jvm.environment_for(user)
    arguments = jvm.arguments_for(user, brief=brief, conf={"spark.app.name": name, **(conf or {})})
    os.environ.update(environment)  # pyspark reads it too
    launched = jvm.launched(arguments, environment | jvm.path_of_workers(user), verbose=jvm.is_verbose(user))
    output = launched.output
    try:
        context = _context(gateway=_called(launched))
    except (PySparkException, Py4JJavaError) as error:
        output.end_without_threads(str(error))
        raise _start_error(output.text(), error, user.master) from error
    except (Py4JError, ConnectionError):  # the JVM has ended; the handler asks how
        raise
    except BaseException:
        output.show()
        raise
    output.show()
    return context


def _context(**given: Any) -> SparkContext:
    """Make the context, and go on ignoring Ctrl-C where the process does, as in the background of a script: PySpark
    takes its handler in any case.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    context = SparkContext(**given)
    if ignored and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return context


def _called(launched: jvm.Jvm) -> JavaGateway:
    """Return a JVM's gateway, as pyspark makes it for a JVM that somebody else has launched."""
    found = launched.address()
    if found is None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    address = dict(zip(("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"), map(str, found), strict=True))
    os.environ.update(address)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in address:
            del os.environ[name]
    gateway.proc, gateway.output = launched.process, launched.output
    return gateway


def _start_in_submitted(name: str) -> SparkContext:
    """Start Spark in the JVM of Spark's own spark-submit, which has started this process; its settings win."""
    SparkContext._ensure_initialized()
    classes: Any = SparkContext._jvm
    settings = SparkConf()
    if settings.get("spark.app.name", "").endswith(".py"):  # nobody named it
        settings.setAppName(name)
    named = dict(settings.getAll())
    if "spark.yarn.dist.archives" in named:  # as spark-submit calls YARN's --archives
        named["spark.archives"] = named["spark.yarn.dist.archives"]
    user = UserOptions(conf=named)
    python = jvm.executors_python(user)
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    ours = read_properties(CONF / "spark-defaults.conf") | jvm.of_pack(user)
    has_delta = classes.org.apache.spark.util.Utils.classIsLoadable(ours["spark.sql.extensions"])
    for key, value in ours.items():
        if has_delta or not key.startswith(("spark.sql.extensions", "spark.sql.catalog.")):
            settings.setIfMissing(key, value)
    return _context(conf=settings)


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


def local_folders() -> list[str]:
    """Return the folders in which Spark's processes on this machine write shuffle files, if the user named any."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or from_environment().conf.get("spark.local.dir", "")
    return [folder for folder in named.split(",") if folder]


def how_the_jvm_ended(patience_seconds: float = 0.0, said: str = "") -> str | None:
    """Return how the JVM that we launched ended, waiting up to `patience_seconds`; None if it runs, or is not ours.

    said: text of an error, by which the JVM may be past working, and then ends here.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    output: jvm.Output | None = getattr(SparkContext._gateway, "output", None)
    if output is not None:
        output.end_without_threads(said)
    try:
        code = process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        return None
    if output is not None and output.no_thread:
        return output.no_thread
    if code == _NO_LOCAL_FOLDER:
        return f"exit code {code}: it could not make a folder in spark.local.dir"
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code} ({signal.Signals(-code).name})"


def _start_error(text: str, error: Exception, master: str | None = None) -> Exception:
    if (unfetched := jars.failure_in(text)) is not None:
        return jars.unfetched(f"Delta's jars ({jars.PACKAGE})", unfetched)
    if isinstance(error, Py4JJavaError):
        found = of_java(error)
        if "stopped SparkContext" in found and (reason := re.search(r"^[\d:]+ ERROR \S+ (.*)", text, re.MULTILINE)):
            found = _plain(reason[1])
        return SparkStartError(found=found + (f" (--master {master})" if master else ""))
    said = jvm.without_noise(text)
    first = next((i for i, line in enumerate(said) if "rror" in line or "xception" in line), 0)
    if first and said[first].startswith("Error: Could not create the Java Virtual Machine"):
        first -= 1  # the line before says why
    elif said and first + 1 < len(said) and said[first].startswith(_NEXT_LINE_SAYS_WHY):
        first += 1
    return SparkStartError(found=_plain(said[first] if said else str(error)))


def of_java(error: Py4JJavaError) -> str:
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
