"""Way of Spark's own code to tables in a bucket: a connector, and the bucket's place.

Spark has no connectors. A session that Lastkey starts for such a table gets those for S3 and Azure by coordinates
(`jobs.spark.jvm`); others bring theirs. Settings of the user (spark.hadoop.fs..., files of a cluster) win.

No setting holds credentials, which Spark would show in its logs and pages. The connectors find them where pyarrow does,
in the environment of their own process and, for S3, in profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from lastkey.jobs.errors import NO_CONNECTOR
from lastkey.jobs.spark import jvm
from lastkey.jobs.spark.running import classes, get_spark_context, java_context
from lastkey.jobs.spark.session import java_message
from lastkey.logformat.storage.hadoop import hadoop_settings
from lastkey.logformat.storage.locations import canonical

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings that name Google's own connector; Hadoop's defaults name hadoop-gcp, which reaches no other server
_GOOGLES: Final = {
    "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
}
GOOGLES_JAR: Final = (
    "https://repo1.maven.org/maven2/com/google/cloud/bigdataoss/gcs-connector/4.0.4/gcs-connector-4.0.4-shaded.jar"
)
_OURS: Final = "lastkey"  # source of the settings that are ours, in Hadoop's words


def connect(spark: SparkSession, uri: str) -> None:
    """Let Spark's own code reach a URI, in Hadoop's spelling. NO_CONNECTOR: it has no file system for it. Of a server
    (Spark Connect) this is unknown.
    """
    context = get_spark_context(spark)
    if "://" not in uri or context is None:
        return
    scheme = uri.partition("://")[0]
    hadoop, conf = classes(context).org.apache.hadoop, java_context(context).hadoopConfiguration()
    settings, loader = hadoop_settings(canonical(uri)), conf.getClassLoader()
    if scheme == "gs" and not _has(loader, conf.get("fs.gs.impl")) and _has(loader, _GOOGLES["fs.gs.impl"]):
        settings = settings | _GOOGLES
    configure(hadoop, conf, settings)
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError as error:
        raise NO_CONNECTOR(
            path=uri, expected=f"a connector for {scheme}://", found=java_message(error), give=_options_for(scheme)
        ) from error


def _options_for(scheme: str) -> str:
    """Return Spark's options that bring the connector for a scheme."""
    if scheme == "gs":
        return f"--jars {GOOGLES_JAR}"
    if scheme not in jvm.CONNECTORS:
        return "the jar of its connector (--jars)"
    return f"--packages {','.join(jvm.CONNECTORS[scheme])} --exclude-packages '{jvm.NOT_NEEDED}'"


def configure(hadoop: Any, conf: Any, settings: Mapping[str, str]) -> None:
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
