"""Launch of the JVM that Spark runs in: settings, options of Java, environment. No pyspark here.

In local mode a run needs the JVM for seconds, mostly to load and compile classes. So there
- Delta's jars are on the class path, if they are in Spark's cache of downloads: its resolver would read and copy them;
- the JVM uses an archive of loaded classes (CDS), if `python -m lastkey.jobs.prepare` has made one;
- runs that give the JVM little to do (`brief`) use only its quick compiler and its simplest collector.
On a cluster none of this is set, and Spark's resolver or the cached jars bring Delta to every node.

Jars beside Spark's own (Delta's, and connectors for tables in object stores) have pinned coordinates. Spark's resolver
(`spark.jars.packages`) fetches them, and keeps them in `~/.ivy2.5.2`. hadoop-aws asks for `bundle`, all of Amazon's SDK
in one jar of 640 MiB. S3 needs the modules below and theirs, 12 MiB, in the version that Hadoop's own pom names
(`aws-java-sdk-v2.version` of hadoop-project). Google's connector that can reach other servers than Google's has all
that it needs only under a classifier, which Spark's resolver does not know.
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
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import NO_JARS, NO_JAVA, MachineError
from lastkey.jobs.installation import CONF, HOME
from lastkey.jobs.spark.master import is_local
from lastkey.jobs.spark.submit import UserOptions, read_properties

DELTA: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
# Delta's dependencies that Spark lacks, by the file names of Spark's resolver
_DELTA_FILES: Final = (
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar",
    "io.delta_delta-storage-4.4.0.jar",
    "io.delta_delta-kernel-api-4.4.0.jar",
    "io.delta_delta-kernel-defaults-4.4.0.jar",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)
HADOOP: Final = "3.5.0"  # the version that the connectors fit
_SDK: Final = "2.35.4"
# Scheme of a URI as Hadoop spells it -> packages of its connector
_S3: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    *(f"software.amazon.awssdk:{module}:{_SDK}" for module in ("s3", "s3-transfer-manager", "sts", "apache-client")),
)
_AZURE: Final = (f"org.apache.hadoop:hadoop-azure:{HADOOP}",)
CONNECTORS: Final = {"s3a": _S3, "abfs": _AZURE, "abfss": _AZURE}
BUNDLE: Final = "software.amazon.awssdk:bundle"  # all of the SDK
# Dependencies of these poms that Spark already has, in the same or a newer version, or that S3 does not need
NOT_NEEDED: Final = ",".join(
    (
        "com.*:*", "commons-*:*", "io.airlift:*", "io.netty:*", "javax.*:*", "org.apache.hadoop:hadoop-client*",
        "org.apache.hadoop.thirdparty:*", "org.apache.httpcomponents:*", "org.apache.logging.log4j:*",
        "org.apache.parquet:*", "org.codehaus.*:*", "org.eclipse.jetty:*", "org.hdrhistogram:*",
        "org.locationtech.jts:*", "org.roaringbitmap:*", "org.slf4j:*", "org.wildfly.openssl:*", "org.xerial.snappy:*",
        BUNDLE,
    )
)  # fmt: skip


def downloads_folder(conf: Mapping[str, str]) -> Path:
    """Return the folder of Spark's downloads."""
    return Path(conf.get("spark.jars.ivy") or "~/.ivy2.5.2").expanduser()


def cached_delta(ivy: Path) -> list[str]:
    """Return Delta's jars in Spark's cache of downloads if all are there and whole, else none."""
    paths = [ivy / "jars" / name for name in _DELTA_FILES]
    return [str(path) for path in paths] if all(zipfile.is_zipfile(path) for path in paths) else []


def connectors_for(uris: Iterable[str], conf: Mapping[str, str]) -> list[str]:
    """Return the packages by which Spark reaches tables at these URIs, in Hadoop's spelling, without those of a
    connector that the user gives.
    """
    given = f"{conf.get('spark.jars.packages', '')},{conf.get('spark.jars', '')}"
    wanted = dict.fromkeys(CONNECTORS.get(uri.partition("://")[0], ()) for uri in uris)
    return [
        package for packages in wanted if packages and packages[0].split(":")[1] not in given for package in packages
    ]


def unfetched(packages: str) -> MachineError:
    """Return the error of packages that the resolver could not fetch, with what to do."""
    local = Path("~/.m2/repository").expanduser()
    advice = (
        "check the network, or a proxy (--conf spark.driver.extraJavaOptions=-Dhttps.proxyHost=...); without network "
        "copy the folder ~/.ivy2.5.2 from a machine that has run this job"
    )
    if local.is_dir():
        advice += f"; if {local} holds poms without jars, on which Spark's resolver fails, rename it meanwhile"
    return NO_JARS(what=packages, found="its lines are above, or those of a JVM that did not start", advice=advice)


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
    ivy = downloads_folder(user.conf)
    delta, packages = cached_delta(ivy), connectors_for(tables, user.conf)
    if not delta:
        packages = [DELTA, *packages]
    elif local:
        settings["spark.driver.extraClassPath"] = ":".join(delta)
    else:
        settings["spark.jars"] = ",".join(delta)
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
        # The user's own packages may need what ours do without
        settings["spark.jars.excludes"] = BUNDLE if "spark.jars.packages" in user.conf else NOT_NEEDED
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
    if release.is_file():  # this file shows the version 50 ms faster than the JVM
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
    key = hashlib.sha256(f"{java} {stat.st_size} {stat.st_mtime_ns} {spark} {DELTA}".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "lastkey" / f"spark-{key}.jsa"
