"""The Spark session: the only place that makes one. `jobs.spark.jvm` defines how its JVM is launched."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lastkey.jobs.command.stopping import in_a_thread
from lastkey.jobs.errors import SPARK_NOT_STARTED
from lastkey.jobs.installation import CONF, HOME
from lastkey.jobs.spark import jvm
from lastkey.jobs.spark.master import check_master, is_local, public_address
from lastkey.jobs.spark.running import classes, running_context, running_spark
from lastkey.jobs.spark.submit import UserOptions, from_environment, launch_arguments, read_properties

VERSION: Final = "4.2.0"  # Spark's version: delta-spark 4.4 is made for it, and needs no newer pyspark
_LOOK_SECONDS: Final = 0.1


def start(
    name: str = "lastkey",
    *,
    options: UserOptions | None = None,
    conf: Mapping[str, str] | None = None,
    brief: bool = True,
    tables: Iterable[str] = (),
) -> SparkSession:
    """Make a session, or join the running one. SPARK_NOT_STARTED: Spark cannot start, or is of another version.

    options: the user's (default: PYSPARK_SUBMIT_ARGS), which win. conf: the caller's, which wins over the files.
    brief: the JVM has little to do (no shuffle of many rows); only used in local mode. tables: URIs, in Hadoop's
    spelling, of tables that Spark itself reads or writes: a new session gets the connectors that these need.
    """
    spark = running_spark()  # a notebook's, or that of tests
    if spark is None:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            spark = _start_in_submitted(name)
        else:
            spark = _launched(name, options or from_environment(), conf or {}, brief, tables)
    if re.match(rf"{re.escape(VERSION)}\b", spark.version) is None:
        raise SPARK_NOT_STARTED(
            found=f"this is Spark {spark.version}, expected {VERSION} (SPARK_HOME, or the server's)"
        )
    return spark


def _launched(
    name: str, user: UserOptions, conf: Mapping[str, str], brief: bool, tables: Iterable[str]
) -> SparkSession:
    """Make a session in a JVM of its own, or of a server of Spark Connect."""
    check_master(user)
    if user.remote is not None:
        return _connected(user, user.remote)
    if not is_local(user):
        _hide_checkout()
    os.environ.update(jvm.environment_for(user))  # pyspark reads it too
    settings = jvm.settings_for(user, jvm.find_java(), brief=brief, tables=tables)
    settings = {"spark.app.name": name, **settings, **conf}
    # Memory, class path and packages count only before the JVM starts: PySpark takes them from this variable
    launch = {"PYSPARK_SUBMIT_ARGS": launch_arguments(settings, user), **jvm.path_of_workers(user)}
    try:
        with _environment(launch):
            return _make_session(SparkSession.builder)
    except (FileNotFoundError, PermissionError) as error:  # spark-submit is missing
        raise SPARK_NOT_STARTED(found=f"{error.filename}: {error.strerror}") from error
    except (PySparkException, Py4JJavaError) as error:
        raise _start_error(error, settings, user.master) from error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the `with` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _make_session(builder: SparkSession.Builder) -> SparkSession:
    """Make the session, in a thread that no signal interrupts. PySpark would remove the folder to which the JVM that it
    launches writes its address, and that JVM would never end. Nor does PySpark take over Ctrl-C there.
    """
    return in_a_thread(builder.getOrCreate, "session")


def _start_in_submitted(name: str) -> SparkSession:
    """Start Spark in the JVM of Spark's own spark-submit, which has started this process; its settings win."""
    SparkContext._ensure_initialized()  # else SparkConf does not read them
    settings = SparkConf()
    named = dict(settings.getAll())
    if "spark.yarn.dist.archives" in named:  # as spark-submit calls YARN's --archives
        named["spark.archives"] = named["spark.yarn.dist.archives"]
    python = jvm.executors_python(UserOptions(conf=named))
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    ours = read_properties(CONF / "spark-defaults.conf")
    has_delta = classes(SparkContext).org.apache.spark.util.Utils.classIsLoadable(ours["spark.sql.extensions"])
    builder = SparkSession.builder
    for key, value in ours.items():
        if key not in named and (has_delta or not key.startswith(("spark.sql.extensions", "spark.sql.catalog."))):
            builder = builder.config(key, value)
    if named.get("spark.app.name", "").endswith(".py"):  # the default of spark-submit
        builder = builder.appName(name)
    return _make_session(builder)


def _hide_checkout() -> None:
    """Remove this checkout from PYTHONPATH. YARN gives a client's PYTHONPATH to executors, before the Lastkey that they
    are meant to run. Their nodes may hold another version at the same path.
    """
    folders = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    others = [folder for folder in folders if folder and Path(folder).resolve() != HOME]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)


def _connected(user: UserOptions, remote: str) -> SparkSession:
    """Return a session of Spark Connect, with our settings and the user's as far as a client may set them. No error
    repeats the connection string, which may hold a token.
    """
    settings = {**read_properties(CONF / "spark-defaults.conf"), **user.conf}
    try:
        spark: Any = SparkSession.builder.remote(remote).getOrCreate()
        retries = spark.client.get_retry_policies()
        spark.client.set_retry_policies([])  # else pyspark retries a server of another kind for ten minutes
        for key, value in settings.items():
            if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
                spark.conf.set(key, value)
        spark.client.set_retry_policies(retries)
    except ImportError as error:
        found = f"{public_address(remote)}: pyspark's packages for Spark Connect are missing ({error}); "
        raise SPARK_NOT_STARTED(found=f"{found}install pyspark[connect]") from None
    except PySparkException as error:
        found = "" if remote in str(error) or "INVALID_CONNECT_URL" in str(error) else f": {_plain(str(error))}"
        raise SPARK_NOT_STARTED(found=f"{public_address(remote)}{found}") from None
    return cast(SparkSession, spark)


def local_folders() -> list[str]:
    """Return the folders in which Spark's processes on this machine write shuffle files, if the user named any."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or from_environment().conf.get("spark.local.dir", "")
    return [folder for folder in named.split(",") if folder]


def has_lost_jvm(error: BaseException, patience_seconds: float) -> bool:
    """Return whether an error means that the connection to the JVM broke, or the JVM ends within `patience_seconds`."""
    if _is_broken_connection(error):
        return True
    context = running_context()
    patience = time.monotonic() + patience_seconds
    while context is not None and time.monotonic() < patience:
        try:
            context.statusTracker().getActiveStageIds()
        except Exception as asked:
            if _is_broken_connection(asked):
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def _is_broken_connection(error: BaseException | None) -> bool:
    """Return whether this error, or a cause of it, is that of a connection to the JVM which broke."""
    while error is not None:
        if isinstance(error, Py4JNetworkError):
            return True
        if isinstance(error, ConnectionError | EOFError):
            frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
            if any(name.partition(".")[0] in ("py4j", "pyspark") for name in frames):
                return True
        error = error.__cause__ or error.__context__
    return False


def _start_error(error: Exception, settings: Mapping[str, str], master: str | None) -> Exception:
    """Return the error for a session that could not be made. The JVM has written details to our stderr."""
    if isinstance(error, Py4JJavaError):
        return SPARK_NOT_STARTED(found=java_message(error) + (f" (--master {master})" if master else ""))
    if "JAVA_GATEWAY_EXITED" not in str(error):
        return SPARK_NOT_STARTED(found=_plain(str(error)))
    if "spark.jars.packages" in settings:
        return jvm.unfetched(settings["spark.jars.packages"])
    return SPARK_NOT_STARTED(found="its JVM ended; the lines above say why")


def java_message(error: Py4JJavaError) -> str:
    """Return the cause of an error of the JVM's, in its words and in one line."""
    cause = error.java_exception
    while (before := cause.getCause()) is not None:
        cause = before
    return _plain(str(cause.toString()))


def _plain(message: str) -> str:
    """Return the first line of Java's text, without packages, and without class names that add no information."""
    first = re.sub(r'^Exception in thread "[^"]*" |^Error: ', "", message.strip().partition("\n")[0])
    first = re.sub(r"^(?:[a-z]\w*\.)+(?=[A-Z])", "", first)
    first = re.sub(r"^(?:Spark\w*|IllegalArgument)Exception: (?:requirement failed: )?", "", first)
    return first[:300].removesuffix(".")
