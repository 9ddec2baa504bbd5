"""Queries on a live topic by Spark's own Kafka source, and on its files by ours: `python -m ... JSON`.

JSON: {jars, bootstrap, archive, queries: [options]}. Fails at the first difference; prints the numbers of rows.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


def main(given: dict) -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", given["jars"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    counts = []
    for options in given["queries"]:
        live = spark.read.format("kafka").options(**options, **{"kafka.bootstrap.servers": given["bootstrap"]}).load()
        files = spark.read.format("kafka_log").options(**options).load(given["archive"])
        assert live.schema == files.schema, f"{options}: {live.schema} {files.schema}"
        theirs, ours = (frame.toArrow().sort_by(ORDER) for frame in (live, files))
        assert theirs.num_rows == ours.num_rows, f"{options}: {theirs.num_rows} rows of the topic, {ours.num_rows} ours"
        assert theirs.equals(ours), f"{options}: rows differ"
        counts.append(ours.num_rows)
    spark.stop()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
