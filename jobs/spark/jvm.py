"""Launch of the JVM that Spark runs in: settings, options of Java, environment. No pyspark here.

In local mode a run needs the JVM for seconds, most of which it spends on loading and compiling classes. So there
- Delta's jars are on the class path, if they are in Spark's cache of downloads: its resolver would read and copy them;
- the JVM uses an archive of loaded classes (CDS), if `python -m lastkey.jobs.prepare` has made one;
- runs that give the JVM little to do (`brief`) use only its quick compiler and its simplest collector.
On a cluster none of this is set, and Spark's resolver or the cached jars bring Delta to every node.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lastkey.jobs.errors import NO_JAVA
from lastkey.jobs.installation import CONF, HOME
from lastkey.jobs.spark import jars
from lastkey.jobs.spark.master import is_local
from lastkey.jobs.spark.submit import UserOptions, read_properties

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment_for(user: UserOptions) -> dict[str, str]:
    """Return the environment variables to add for Spark."""
    out = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,  # else the JVM looks for data sources with PATH's python3
        "PYSPARK_PYTHON": executors_python(user) or sys.executable,
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", _BRIEF),
    }
    if is_local(user):
        out["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return out


def path_of_workers(user: UserOptions) -> dict[str, str]:
    """Return the PYTHONPATH by which Python workers on this machine find Lastkey where this process did: a program may
    have put a checkout on `sys.path` alone. Installed packages need none, and must not come before Python's own.
    """
    python_path = os.environ.get("PYTHONPATH", "")
    found = (*site.getsitepackages(), site.getusersitepackages(), *filter(None, python_path.split(os.pathsep)))
    if not is_local(user) or HOME in map(Path.resolve, map(Path, found)):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (python_path, str(HOME))))}


def settings_for(user: UserOptions, java: Path, *, brief: bool = True, tables: Iterable[str] = ()) -> dict[str, str]:
    """Return the settings that we ask of Spark; the user's own options come after them.

    tables: as in `session.start`.
    """
    settings = read_properties(CONF / "spark-defaults.conf")
    local = is_local(user)
    java_options = [f"-Dlog4j2.configurationFile={(CONF / 'log4j2.properties').as_uri()}"]
    ivy = jars.cache(user.conf)
    delta, packages = jars.cached_delta(ivy), jars.connectors_for(tables, user.conf)
    if not delta:
        packages = [jars.DELTA, *packages]
    elif local:
        settings["spark.driver.extraClassPath"] = ":".join(delta)
    else:
        settings["spark.jars"] = ",".join(delta)
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
        # The user's own packages may need what ours do without
        settings["spark.jars.excludes"] = jars.BUNDLE if "spark.jars.packages" in user.conf else jars.NOT_NEEDED
        settings["spark.jars.ivy"] = str(ivy)  # Java's idea of a home may be another one
    if local:
        settings["spark.master"] = "local[*]"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        # To workers: 20 ms less a task than TCP, which waits for acknowledgements; and private to the user. Not on a
        # cluster: such a socket's path has 107 bytes at most, and the folder of a YARN container has more
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        java_options += _BRIEF.split() if brief else []
        archive = class_archive(java)
        if archive is not None and archive.is_file():
            java_options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    settings["spark.driver.defaultJavaOptions"] = " ".join(java_options)
    return settings


def executors_python(user: UserOptions) -> str | None:
    """Return the Python that executors run: the one that the user names, else that of the pack; None: neither."""
    named = user.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return named or (None if is_local(user) else user.packs_python)


def find_java() -> Path:
    """Return the java that Spark will take. NO_JAVA if there is none, or it is older than 17."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    if not java.is_file():
        raise NO_JAVA(found=f"no {java}" if home else "no java on PATH and no JAVA_HOME")
    java = java.resolve()
    release = java.parent.parent / "release"
    if release.is_file():  # this file tells the version 50 ms faster than the JVM
        text = release.read_text(encoding="utf-8", errors="replace")
    else:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'(?:JAVA_VERSION="|version ")(\d+)(?:\.(\d+))?', text)
    if version is None:
        raise NO_JAVA(found=f"{java}, which does not say its version")
    major = int(version[2] or 8) if version[1] == "1" else int(version[1])  # Java 8 calls itself 1.8
    if major < 17:
        raise NO_JAVA(found=f"Java {major} at {java}")
    return java


def class_archive(java: Path) -> Path | None:
    """Return the path for the JVM's class archive of this Java, these jars and this environment; None: there
    is none.
    """
    if os.environ.get("LASTKEY_CLASS_ARCHIVE") == "off" or sys.prefix == sys.base_prefix:
        return None
    found = importlib.util.find_spec("pyspark")
    spark = None if found is None else found.origin
    stat = java.stat()
    key = hashlib.sha256(f"{java} {stat.st_size} {stat.st_mtime_ns} {spark} {jars.DELTA}".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "lastkey" / f"spark-{key}.jsa"
