"""The data source against what reads a live topic: the real consumer, and Spark's own Kafka source, from a real broker
that holds the same files.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders.sources import read
from tests.builders.trees import files_in
from tests.golden import Case, case_names
from tests.kafka_lab import Broker, make_logs, served_by_broker
from tests.kafka_lab.jvm import lab
from tests.kafka_lab.spark_source import spark_kafka_jars
from tests.kafka_lab.waiting import wait_until

pytestmark = pytest.mark.kafka

LEVELS = ("read_uncommitted", "read_committed")
ROOT = Path(__file__).resolve().parents[2]
FIELDS = "topic,partition,offset,timestamp_ms,timestampType,leader_epoch,key,value,headers"


def groups(cases: dict[str, Case]) -> list[dict[str, Path]]:
    """Return partitions by name, in groups without two of the same name; before and after the cleaner."""
    plain: dict[str, Path] = {}
    more: dict[str, Path] = {}
    cleaned: dict[str, Path] = {}
    for name in case_names():
        case = cases[name]
        for partition in case.partitions:
            (more if name.endswith("-more") else plain)[partition] = case.input(partition)
            if not name.endswith("-more"):
                cleaned[partition] = case.expected(2, partition)
    return [plain, more, cleaned]


def text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def ours(folder: Path, isolation: str) -> list[str]:
    rows = read("kafka_log", folder, columns=FIELDS, isolationLevel=isolation).to_pylist()
    lines = []
    for row in rows:
        headers = ",".join(f"{text(h['key'].encode())}={text(h['value'])}" for h in row["headers"] or ())
        epoch = "-" if row["leader_epoch"] < 0 else row["leader_epoch"]
        names = FIELDS.split(",")[:5]
        lines.append(
            "\t".join([*(str(row[n]) for n in names), str(epoch), text(row["key"]), text(row["value"]), headers])
        )
    return lines


@pytest.mark.parametrize("number", range(3), ids=["as-written", "more", "cleaned"])
def test_every_record_equals_that_of_a_kafka_consumer(cases, tmp_path, number):
    """All golden cases, both isolation levels: every codec and magic, transactions, headers, compacted logs."""
    parts = groups(cases)[number]
    n = 0
    with served_by_broker(parts) as broker:
        for name, folder in parts.items():
            for isolation in LEVELS:
                request: dict[str, Any] = {"bootstrap": broker.bootstrap, "partition": name, "isolation": isolation}
                n += lab().call("consume_fields", **request, output=tmp_path / "lines")
                theirs = (tmp_path / "lines").read_text("latin-1").splitlines()
                assert ours(folder, isolation) == theirs, f"{name}: {isolation}"
    assert n > 1000


def test_missing_side_files_do_not_change_committed_records(cases, tmp_path):
    """An archive of `.log` files alone gives what a consumer of the whole topic got."""
    parts = {p: cases[n].input(p) for n in ("txn-zstd", "txn-none", "txn-hang", "txn-old") for p in cases[n].partitions}
    with served_by_broker(parts) as broker:
        for name, folder in parts.items():
            bare = tmp_path / "bare" / name
            bare.mkdir(parents=True)
            for log in files_in(folder):
                (bare / log.name).symlink_to(log)
            lab().call(
                "consume_fields", bootstrap=broker.bootstrap, partition=name, isolation="read_committed",
                output=tmp_path / "lines",
            )  # fmt: skip
            assert ours(bare, "read_committed") == (tmp_path / "lines").read_text("latin-1").splitlines(), name


def test_folder_of_a_running_broker_is_read_up_to_its_high_watermark(tmp_path):
    """A query reads up to the checkpoint of that moment; all records once it is written, and after a stop."""
    with Broker(tmp_path, {"replica.high.watermark.checkpoint.interval.ms": 100}) as broker:
        make_logs(broker.bootstrap, ["topic=live records=500 keys=40 seed=3"])
        request = {"bootstrap": broker.bootstrap, "partition": "live-0", "isolation": "read_uncommitted"}
        lab().call("consume_fields", **request, output=tmp_path / "lines")
        theirs = (tmp_path / "lines").read_text("latin-1").splitlines()
        running = ours(broker.data / "live-0", "read_uncommitted")
        assert len(theirs) == 501  # and the marker that rolls the segment
        assert running == theirs[: len(running)]
        wait_until(lambda: ours(broker.data / "live-0", "read_uncommitted") == theirs, "the checkpoint", seconds=30)
    assert ours(broker.data / "live-0", "read_uncommitted") == theirs


QUERIES: list[dict[str, str]] = [
    {},
    {"includeHeaders": "true"},
    {"kafka.isolation.level": "read_committed"},
    {"startingTimestamp": "MIDDLE"},
    {"startingTimestamp": "EARLY", "endingTimestamp": "MIDDLE"},
    {"endingOffsetsByTimestamp": '{"ts-disorder":{"0":MIDDLE}}', "subscribe": "ts-disorder"},
    {"startingOffsets": '{"two-parts":{"0":17,"1":-2}}', "endingOffsets": '{"two-parts":{"0":-1,"1":40}}',
     "subscribe": "two-parts"},
    {"assign": '{"two-parts":[1]}'},
    {"subscribePattern": "z|^lz4.*"},
]  # fmt: skip
TOPICS = ("ts-disorder", "two-parts", "zstd-headers", "txn-zstd", "lz4-append")


@pytest.mark.slow
def test_every_row_equals_that_of_the_kafka_source_of_spark(cases, tmp_path):
    """The same options, the same schema, the same rows: a query moves over with its format's name and a path."""
    parts = {partition: cases[name].input(partition) for name in TOPICS for partition in cases[name].partitions}
    for name, folder in parts.items():
        (tmp_path / "archive").mkdir(exist_ok=True)
        (tmp_path / "archive" / name).symlink_to(folder)
    ordered = sorted(
        read("kafka_log", tmp_path / "archive/ts-disorder-0", columns="timestamp_ms").to_pydict()["timestamp_ms"]
    )
    words = {"MIDDLE": ordered[len(ordered) // 2], "EARLY": ordered[len(ordered) // 10]}
    queries = []
    for query in QUERIES:
        filled = dict(query)
        for word, time in words.items():
            filled = {name: value.replace(word, str(time)) for name, value in filled.items()}
        if not {"subscribe", "assign", "subscribePattern"} & set(filled):
            filled["subscribe"] = ",".join(TOPICS)
        queries.append({"startingOffsetsByTimestampStrategy": "latest", **filled})
    with served_by_broker(parts) as broker:
        options = {
            "jars": ",".join(map(str, spark_kafka_jars())), "bootstrap": broker.bootstrap,
            "archive": str(tmp_path / "archive"), "queries": queries,
        }  # fmt: skip
        completed = subprocess.run(
            [sys.executable, "-m", "tests.kafka.compare_spark_sources", json.dumps(options)], cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-3000:].replace("\n\n", "\n")
    counts = json.loads(completed.stdout.splitlines()[-1])
    assert len(counts) == len(queries)
    assert all(count > 0 for count in counts), counts
