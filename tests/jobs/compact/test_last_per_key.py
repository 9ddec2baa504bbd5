"""Spark's window finds the same last record of each key as the Spark job of a large partition."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from lastkey.jobs.functions import last_per_key
from tests.builders.archives import COMPACT, Lab
from tests.builders.logs import START_MS, write_partition
from tests.reference.log import ZSTD, data_batch

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_compaction_keeps_the_last_record_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", "a=1 b=2 -=3 | {pid=1 txn} b=6 | {pid=1 abort} || a=7 d=- | {codec=zstd} e=8 e=9")
    write_partition(tmp_path / "t-1", "a=1 | b=2")
    write_partition(tmp_path / "u-0", "a=1")

    def found(**options: str) -> set[tuple[Any, ...]]:
        records = spark.read.format("kafka_log").options(**options).load(str(tmp_path))
        rows = last_per_key(records).collect()
        assert last_per_key(records).columns == records.columns
        return {(r.topic, r.partition, bytes(r.key).decode(), r.value and bytes(r.value).decode()) for r in rows}

    others = {("t", 0, "a", "7"), ("t", 0, "d", None), ("t", 0, "e", "9"), ("t", 1, "a", "1"), ("t", 1, "b", "2"),
              ("u", 0, "a", "1")}  # fmt: skip
    assert found(isolationLevel="read_committed") == others | {("t", 0, "b", "2")}
    assert found() == others | {("t", 0, "b", "6")}


@pytest.mark.slow
def test_compaction_of_a_large_partition_equals_a_sql_window(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    for partition in range(2):
        folder = tmp_path / "archive" / f"t-{partition}"
        folder.mkdir(parents=True)
        offset = 0
        for _ in range(3):
            batches, base = [], offset
            for _ in range(150):
                records = [(START_MS, b"%d" % rng.randrange(3000), rng.choice([None, b"v" * 40])) for _ in range(20)]
                batches.append(data_batch(offset, records, codec=rng.choice([0, ZSTD])))
                offset += 20
            (folder / f"{base:020d}.log").write_bytes(b"".join(batch.data for batch in batches))
    # splits of 64 KiB, in segments of about 200
    job = {"split.by": "always", "split.bytes": 1, "chunk.bytes": 1 << 16}
    lab = Lab(spark, tmp_path, {"defaults": COMPACT, "job": job})
    report = lab.run(START_MS + 1000, sealed=True)
    assert [(r.status, r.work.splits > 4) for r in report.results] == [("cleaned", True)] * 2
    expected = last_per_key(spark.read.format("kafka_log").load(str(lab.archive)))
    kept = spark.read.format("kafka_log").option("store", str(lab.store)).load()
    assert expected.count() > 5600
    assert_df_equality(kept, expected, ignore_row_order=True, ignore_nullable=True)
