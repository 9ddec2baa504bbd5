"""All of the data sources through Spark Connect: nothing of them needs a JVM beside the client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.logs import write_partition
from tests.builders.sources import read

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]


def test_the_data_source_works_through_spark_connect(tmp_path):
    archive = tmp_path / "archive"
    write_partition(archive / "t-0", "a=1 b=2 | {codec=zstd} b=3 || a=4")
    write_partition(archive / "u-0", "c=5")
    completed = subprocess.run(
        [sys.executable, "-m", "tests.jobs.data_source.through_connect", str(archive)], cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-3000:]
    output = json.loads(completed.stdout.splitlines()[-1])
    assert output["rows"] == [["t", 0, 0, "1"], ["t", 0, 1, "2"], ["t", 0, 2, "3"], ["t", 0, 3, "4"], ["u", 0, 0, "5"]]
    assert output["schema"].endswith("headers:array<struct<key:string,value:binary>>>")
    assert output["batches"] == 4
    assert output["entries"] == read("kafka_log_index", archive).num_rows > 0
    assert output["filtered"] == 2
    assert output["sql"] == [["a", 3], ["b", 2]]
    assert "unknown option topcis; did you mean topics" in output["error"]
    assert output["streamed"] == output["registered"] == 5
