"""The jars of Spark's own Kafka source, for the installed pyspark, fetched once into the lab's cache.

spark-token-provider-kafka (delegation tokens, which no test uses) has version 4.0.0, the one that every copy of Maven
Central holds.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark

from .errors import LabError
from .jars import _SETTINGS, _ivy_jar, cache_dir, exclusive, java_tool, replace_folder, temporary_folder

_MODULES = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def spark_kafka_jars() -> list[Path]:
    """Return what `spark.jars` needs for spark.read.format("kafka"). Raises LabError if the jars cannot be fetched."""
    folder = cache_dir() / f"spark-kafka-{pyspark.__version__}"
    if not folder.is_dir():
        with exclusive("fetch"), temporary_folder("spark-kafka-") as work:
            _fetch(work)
            replace_folder(work / "libs", folder)
    return sorted(folder.glob("*.jar"))


def _fetch(work: Path) -> None:
    wanted = "".join(
        f'<dependency org="{org}" name="{name}" rev="{revision}" transitive="false"/>'
        for org, name, revision in _MODULES
    )
    ivy = f'<dependencies defaultconf="default->master">{wanted}</dependencies>'
    info = '<info organisation="lastkey" module="spark-kafka"/><configurations><conf name="default"/></configurations>'
    (work / "ivy.xml").write_text(f'<ivy-module version="2.0">{info}{ivy}</ivy-module>')
    (work / "settings.xml").write_text(_SETTINGS)
    command = [
        java_tool("java"), "-cp", str(_ivy_jar()), "org.apache.ivy.Main",
        "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"),
        "-confs", "default", "-types", "jar",
        "-retrieve", str(work / "libs" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip
    completed = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if completed.returncode or len(list((work / "libs").glob("*.jar"))) < len(_MODULES):
        raise LabError(f"Spark's Kafka source could not be fetched:\n{(completed.stdout + completed.stderr)[-3000:]}")
