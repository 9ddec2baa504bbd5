"""The way of Spark's own code to tables in a bucket: a connector, and the bucket's place.

Spark has none. Those for S3 and Azure are fetched once, as Delta's jars are, and join the classes of the running JVM: a
job learns late whether Spark itself will touch a bucket, and then tells executors too. Google's is named in the error.
A user's own connector (--packages, --jars) and settings (spark.hadoop.fs...) win.

No setting holds credentials, which Spark would show in its logs and pages. The connectors find them where pyarrow does,
in the environment of their own process and, for S3, in profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from lastkey.jobs.errors import ConnectorError
from lastkey.jobs.spark import jars
from lastkey.jobs.spark.running import context_of
from lastkey.jobs.spark.session import of_java
from lastkey.logformat.locations import canonical, hadoop_settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Packages with the classes that Spark lacks for a file system, in the version of Spark's Hadoop
_PACKAGES: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "org.apache.hadoop:hadoop-gcp",
}
# Scheme -> what it is the connector for, a class of it, its jars
_FETCHED: Final = {
    "s3a": ("S3", "org.apache.hadoop.fs.s3a.S3AFileSystem", jars.S3),
    "abfs": ("Azure", "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem", jars.AZURE),
    "abfss": ("Azure", "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem", jars.AZURE),
}
_OURS: Final = "lastkey"  # source of the settings that are ours, in Hadoop's words
_DEFAULTS: Final = "core-default.xml"


def connect(spark: SparkSession, uri: str) -> None:
    """Let Spark's own code reach a URI, in Hadoop's spelling. ConnectorError: it has no file system for it. Of a server
    (Spark Connect) nobody knows.
    """
    context: Any = context_of(spark)
    if "://" not in uri or context is None:
        return
    scheme = uri.partition("://")[0]
    hadoop, conf = context._jvm.org.apache.hadoop, context._jsc.hadoopConfiguration()
    version = hadoop.util.VersionInfo.getVersion()
    if scheme in _FETCHED and version == jars.HADOOP:
        _add_jars(context, conf.getClassLoader(), *_FETCHED[scheme])
    tell(conf, hadoop_settings(canonical(uri)))
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError as error:
        package = _PACKAGES.get(scheme)
        given = f"--packages {package}:{version}" if package else "the jar of its connector (--jars)"
        raise ConnectorError(
            path=uri, expected=f"a connector for {scheme}://", found=of_java(error), give=given
        ) from error


def tell(conf: Any, settings: Mapping[str, str]) -> None:
    """Set what the user has not set in Hadoop's configuration."""
    for key, value in settings.items():
        sources = conf.getPropertySources(key)
        if sources is None or list(sources)[-1] in (_OURS, _DEFAULTS):
            conf.set(key, value, _OURS)


def _add_jars(context: SparkContext, loader: Any, store: str, name: str, wanted: Mapping[str, str]) -> None:
    """Add the connector for an object store to the classes of driver and executors, unless they have the class."""
    jvm: Any = context._jvm
    try:
        loader.loadClass(name)
        return
    except Py4JJavaError:
        if not is_instance_of(context._gateway, loader, "org.apache.spark.util.MutableURLClassLoader"):
            return
    for path in fetched(context, store, wanted):
        loader.addURL(jvm.java.io.File(path).toURI().toURL())
        if not jvm.org.apache.spark.util.Utils.isLocalMaster(context._conf._jconf):  # else executors have our loader
            context._jsc.addJar(path)


def fetched(context: SparkContext, store: str, wanted: Mapping[str, str]) -> list[str]:
    """Return the jars of a connector, fetched by Spark's resolver if they are not in its cache. JarsError: they could
    not be.
    """
    conf = dict(context.getConf().getAll())
    ivy = jars.cache(conf)
    if found := jars.cached(ivy, wanted):
        return found
    jvm: Any = context._jvm
    settings = jvm.scala.Option.apply(conf.get("spark.jars.ivySettings"))
    where = (conf.get("spark.jars.repositories", ""), str(ivy), settings)
    try:
        jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(False, "", jars.coordinates(wanted), *where)
    except Py4JJavaError as error:
        said = of_java(error)
        raise jars.unfetched(f"Spark's connector for {store}", jars.failure_in(said) or said) from error
    return jars.cached(ivy, wanted)
