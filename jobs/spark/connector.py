"""The way of Spark's own code to tables in a bucket: a connector, and the bucket's place.

Spark has none. Those for S3, Azure and Google are fetched once, from where Delta's jars come, and join the classes of
the running JVM: a job learns late whether Spark itself will touch a bucket, and then tells executors too. A user's own
connector (--packages, --jars) and settings (spark.hadoop.fs...) win.

No setting holds credentials, which Spark would show in its logs and pages. The connectors find them where pyarrow does,
in the environment of their own process and, for S3, in profiles.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError

from lastkey.jobs.command.whole_file import whole_file
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
# Settings that name Google's own connector; Hadoop's defaults name hadoop-gcp
_GOOGLES: Final = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
}
# Scheme -> what it is the connector for, its file system, its jars
_FETCHED: Final = {
    "s3a": ("S3", "org.apache.hadoop.fs.s3a.S3AFileSystem", jars.S3),
    "abfs": ("Azure", "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem", jars.AZURE),
    "abfss": ("Azure", "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem", jars.AZURE),
    "gs": ("Google", _GOOGLES["fs.gs.impl"], jars.GOOGLE),
}
_OURS: Final = "lastkey"  # source of the settings that are ours, in Hadoop's words


def connect(spark: SparkSession, uri: str) -> None:
    """Let Spark's own code reach a URI, in Hadoop's spelling. ConnectorError: it has no file system for it. Of a server
    (Spark Connect) nobody knows.
    """
    context: Any = context_of(spark)
    if "://" not in uri or context is None:
        return
    scheme = uri.partition("://")[0]
    hadoop, conf = context._jvm.org.apache.hadoop, context._jsc.hadoopConfiguration()
    version, loader = hadoop.util.VersionInfo.getVersion(), conf.getClassLoader()
    settings = hadoop_settings(canonical(uri))
    if scheme in _FETCHED and version == jars.HADOOP and not _has(loader, conf.get(f"fs.{scheme}.impl")):
        _add_jars(context, loader, *_FETCHED[scheme])
        settings = settings | (_GOOGLES if scheme == "gs" else {})
    tell(hadoop, conf, settings)
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError as error:
        package = _PACKAGES.get(scheme)
        given = f"--packages {package}:{version}" if package else "the jar of its connector (--jars)"
        raise ConnectorError(
            path=uri, expected=f"a connector for {scheme}://", found=of_java(error), give=given
        ) from error


def tell(hadoop: Any, conf: Any, settings: Mapping[str, str]) -> None:
    """Set what the user has not set in Hadoop's configuration `conf`. A cluster's files may repeat the defaults."""
    defaults = hadoop.conf.Configuration(False)
    defaults.addResource("core-default.xml")
    for key, value in settings.items():
        source = [_OURS, *(conf.getPropertySources(key) or ())][-1]
        if source == _OURS or (source.endswith(".xml") and conf.getRaw(key) == defaults.getRaw(key)):
            conf.set(key, value, _OURS)


def _has(loader: Any, name: str) -> bool:
    try:
        loader.loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _add_jars(context: SparkContext, loader: Any, store: str, name: str, wanted: Mapping[str, str]) -> None:
    """Add the connector for an object store to the classes of driver and executors, unless they have the class."""
    jvm: Any = context._jvm
    if _has(loader, name) or not is_instance_of(
        context._gateway, loader, "org.apache.spark.util.MutableURLClassLoader"
    ):
        return
    for path in fetched(context, store, wanted):
        loader.addURL(jvm.java.io.File(path).toURI().toURL())
        if not jvm.org.apache.spark.util.Utils.isLocalMaster(context._conf._jconf):  # else executors have our loader
            context._jsc.addJar(path)


def fetched(context: SparkContext, store: str, wanted: Mapping[str, str]) -> list[str]:
    """Return the jars of a connector, fetched from Spark's repositories if they are not in its cache. JarsError: they
    could not be.
    """
    conf = dict(context.getConf().getAll())
    ivy = jars.cache(conf)
    if found := jars.cached(ivy, wanted):
        return found
    jvm: Any = context._jvm
    said = jvm.java.lang.System.err
    said.println(":: loading settings")  # as Spark's resolver does: `jvm.Output` tells the user, and hides the rest
    try:
        missed = _download(jvm, conf, ivy, wanted)
    except Py4JJavaError as error:
        missed = of_java(error)
    except OSError as error:
        missed = str(error)
    finally:
        said.println(":: retrieving")
    if missed is not None:
        raise jars.unfetched(f"Spark's connector for {store}", missed)
    return jars.cached(ivy, wanted)


def _download(jvm: Any, conf: Mapping[str, str], ivy: Path, wanted: Mapping[str, str]) -> str | None:
    """Fetch jars into Spark's cache; return what could not be found. Spark's own resolver knows no classifiers, so its
    Ivy is asked, with the settings that Spark makes for it.
    """
    some, maven = jvm.scala.Option.apply, jvm.org.apache.spark.util.MavenUtils
    given, said = (some(conf.get("spark.jars.repositories", "")), some(str(ivy))), jvm.java.lang.System.err
    settings = conf.get("spark.jars.ivySettings")
    made = (
        maven.buildIvySettings(*given, True, said)
        if settings is None
        else maven.loadIvySettings(settings, *given, said)
    )
    engine, core = jvm.org.apache.ivy.Ivy.newInstance(made), jvm.org.apache.ivy.core
    engine.getLoggerEngine().setDefaultLogger(jvm.org.apache.ivy.util.DefaultMessageLogger(0))  # errors
    engine.getLoggerEngine().setShowProgress(False)
    cached = ivy / "jars"
    cached.mkdir(parents=True, exist_ok=True)
    engine.pushContext()
    try:
        for name in wanted:
            group, artifact, version, classifier = jars.coordinates(name)
            module = core.module.id.ModuleRevisionId.newInstance(group, artifact, version)
            extra = {"classifier": classifier} if classifier else {}
            jar = core.module.descriptor.DefaultArtifact(module, None, artifact, "jar", "jar", extra)
            report = engine.getResolveEngine().download(jar, core.resolve.DownloadOptions())
            if (local := report.getLocalFile()) is None:
                return f"not found: {group}#{artifact};{version}"
            with Path(local.getPath()).open("rb") as found, whole_file(cached / name) as out:
                shutil.copyfileobj(found, out)
    finally:
        engine.popContext()
    return None
