"""Seconds of full reads by our data source and by Spark's own Kafka source on one core: `python -m ... JSON`.

Rows go into Spark's noop sink, so every one reaches the JVM. The last line printed is JSON: task -> seconds, the best
of some runs after one that does not count.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]


def main(given: dict) -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", given["jars"])
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    live = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"]}
    archive = given["archive"]
    frames = {
        "kafka_log": spark.read.format("kafka_log").load(archive),
        "kafka_log, no value": spark.read.format("kafka_log").option("includeValue", "false").load(archive),
        "spark kafka": spark.read.format("kafka").options(**live).load(),
        "spark kafka, no value": spark.read.format("kafka").options(**live).load().drop("value"),
    }
    best = {what: min(seconds(frame) for _ in range(given["repeats"] + 1)) for what, frame in frames.items()}
    counted = spark.read.format("kafka_log").option("columns", "offset").load(archive)
    best["kafka_log, count"] = min(count_seconds(counted) for _ in range(given["repeats"] + 1))
    best["spark kafka, count"] = min(count_seconds(frames["spark kafka"]) for _ in range(given["repeats"] + 1))
    nothing = spark.read.format("kafka_log").option("endingOffsets", "earliest").load(archive)
    best["kafka_log, no record"] = min(seconds(nothing) for _ in range(given["repeats"] + 1))
    spark.stop()
    print(json.dumps(best))


def seconds(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def count_seconds(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.count()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
