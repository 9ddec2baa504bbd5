"""Queries through Spark Connect, in a process of their own: `python -m ... ARCHIVE`. A server is started for it.

The client registers nothing: the server's Python finds the formats. Prints what was found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]


def main(archive: str) -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.remote("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
    records = spark.read.format("kafka_log").option("includeHeaders", "true").load(archive)
    out = {
        "schema": records.schema.simpleString(),
        "rows": sorted([r.topic, r.partition, r.offset, bytes(r.value or b"").decode()] for r in records.collect()),
        "batches": spark.read.format("kafka_log_batches").load(archive).count(),
        "entries": spark.read.format("kafka_log_index").load(archive).count(),
    }
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushing = spark.read.format("kafka_log").option("pushFilters", "true").load(archive)
    out["filtered"] = pushing.where("topic = 't' AND offset >= 1 AND key = X'62'").count()
    spark.sql(f"CREATE TEMPORARY VIEW log USING kafka_log OPTIONS (path '{archive}', topics 't')")
    out["sql"] = [
        list(row) for row in spark.sql("SELECT string(key), max(offset) FROM log GROUP BY 1 ORDER BY 1").collect()
    ]
    try:
        spark.read.format("kafka_log").option("topcis", "x").load(archive).count()
    except Exception as error:
        out["error"] = str(error)
    stream = spark.readStream.format("kafka_log").option("startingOffsets", "earliest").load(archive)
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    out["streamed"] = spark.table("seen").count()
    from lastkey.jobs.data_source.source import register

    register(spark)
    out["registered"] = spark.read.format("kafka_log").load(archive).count()
    spark.stop()
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])
