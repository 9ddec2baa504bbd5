"""Jars beside Spark's own: Delta's, and connectors for tables in object stores, by pinned coordinates.

Spark's resolver (`spark.jars.packages`) fetches them, and keeps them in `~/.ivy2.5.2`. Delta's go onto the class path
from there in later runs, so that the resolver does not run.

hadoop-aws asks for `bundle`, all of Amazon's SDK in one jar of 640 MiB. S3 needs the modules below and theirs, 12 MiB,
in the version that Hadoop's own pom names (`aws-java-sdk-v2.version` of hadoop-project). Google's connector that can
reach other servers than Google's has all that it needs only under a classifier, which Spark's resolver does not know.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import NO_JARS, MachineError

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


def cache(conf: Mapping[str, str]) -> Path:
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
