"""The script that makes clients.tar.xz and clients.json: `python -m tests.golden.make_clients`, about three minutes.

Logs that other clients wrote, and a broker's own topics: librdkafka, kafka-python, aiokafka, a Kafka Streams
application that died twice in mid-transaction, groups of all kinds, of which some expired or were deleted. Nothing has
cleaned them: Kafka's cleaner goes over them here, in-process, three times, and digests of what it left are kept. The
clients live in an environment of their own (writers/requirements.txt), made where Kafka's jars are. Contents follow
from the seeds; clocks, and where batches end, do not.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.builders.trees import files_in
from tests.golden import CLIENTS, CLIENTS_ABOUT, PASSES, digest_of_logs
from tests.golden.make_golden import GAP_MS, SETTINGS, pack, partitions
from tests.kafka_lab import Broker, CleanSpec, clean, create_topics, digest, dump, make_logs
from tests.kafka_lab.jars import STREAMS, cache_dir, java_tool, lab_jars
from tests.kafka_lab.jvm import lab
from tests.kafka_lab.waiting import wait_until

WRITERS = Path(__file__).parent / "writers"
CLIENTS_OF = {"confluent": "with_confluent.py", "kafka-python": "with_kafka_python.py", "aiokafka": "with_aiokafka.py"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INTERNAL_BYTES = 8192  # size of segments
LEAST_EXPIRED = 20  # keys of each of the broker's topics
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
DIED = 9  # exit code of Counts.java
STREAMED = ("totals", "windows")
HELPERS = ("orders", "orders-in", *(f"{client}-in" for client in CLIENTS_OF))  # written by Kafka's own producer
FIGURES = ("segments", "batches", "records", "tombstones", "markers", "log_start")
COMMITS = 60
DIES_AFTER = (700, 600)  # records, of 1500; the application never reaches the others
BROKER = {
    "log.cleaner.enable": "false",
    "offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 5000,
    "transactional.id.expiration.ms": 60_000, "transaction.remove.expired.transaction.cleanup.interval.ms": 5000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "transaction.max.timeout.ms": 1_000_000,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.snapshot.update.records.per.snapshot": 10,
    "group.share.record.lock.duration.ms": 15_000, "group.share.min.record.lock.duration.ms": 1000,
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clients-") as name:
        work = Path(name)
        broker, versions = write(work)
        starts, out = log_starts(broker.data), work / "out"
        for path in sorted(partitions(broker.data, set(list_topics(broker.data)))):
            if (topic := path.rpartition("-")[0]) not in HELPERS:
                shutil.copytree(broker.data / path, out / topic / "input" / path)
        now_ms = max(p.stat().st_mtime_ns for p in out.rglob("*.log")) // 1_000_000 + 1000
        cases = {}
        for folder in sorted(out.iterdir()):
            [partition] = (folder / "input").iterdir()
            meta = partition_facts(folder.name, out, starts.get(partition.name, 0), now_ms, work)
            (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
            figures = meta["partitions"][partition.name]
            cases[folder.name] = {name: figures[name] for name in FIGURES}
        pack(out, CLIENTS)
        about = {"written_by": versions, "bytes": CLIENTS.stat().st_size, "cases": cases}
        CLIENTS_ABOUT.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    print(f"{len(cases)} partitions, {CLIENTS.stat().st_size:,} bytes")


def environment() -> Path:
    """Return the clients' Python; rebuilt when its requirements change."""
    wanted = WRITERS / "requirements.txt"
    target = cache_dir() / f"clients-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:16]}"
    if not target.exists():
        subprocess.run([sys.executable, "-m", "venv", target], check=True)
        try:
            subprocess.run([target / "bin" / "pip", "install", "-q", "-r", wanted], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(target)
            raise
    return target / "bin" / "python"


def write(work: Path) -> tuple[Broker, dict[str, str]]:
    """Write all topics; return the stopped broker, and the versions of their writers."""
    python, versions = environment(), {"broker": Broker.version, "kafka-streams": Broker.version}
    with Broker(work / "broker", BROKER) as broker:
        delete = "config.cleanup.policy=delete"
        make_logs(broker.bootstrap, [f"topic=orders partitions=2 records=300 keys=50 roll=false {delete}"])
        lab().call("run_groups", bootstrap=broker.bootstrap, topic="orders")
        small = f"records=0 roll=false create=false config.internal.segment.bytes={INTERNAL_BYTES}"
        make_logs(broker.bootstrap, [f"topic={topic} {small}" for topic in INTERNAL])
        for number, (client, script) in enumerate(CLIENTS_OF.items()):
            topics = topics_for(client, 100 * number)
            group = {"topic": f"{client}-in", "out": f"{client}-out", "delete": "orders", "commits": COMMITS}
            for topic in [*(one["name"] for one in topics), group["topic"], group["out"]]:
                create_topics(broker.bootstrap, {topic: 1}, configs(topic))
            line = f"topic={group['topic']} create=false records=400 keys=30 roll=false batch=4000"
            make_logs(broker.bootstrap, [line])
            request = {"bootstrap": broker.bootstrap, "topics": topics, "group": group}
            versions |= run_writer(python, script, request)
        wait_until(lambda: expired(broker), "offsets and transactions to expire", seconds=200)
        stream(broker, work)
    return broker, versions


def configs(topic: str) -> dict[str, object]:
    """Return the settings of a topic, by its name."""
    return {
        "cleanup.policy": "delete" if topic.endswith("-nokeys") else "compact",
        "message.timestamp.type": "LogAppendTime" if topic.endswith("-append") else "CreateTime",
        "internal.segment.bytes": segment_bytes(topic),
        "segment.ms": 2**63 - 1,
    }


def segment_bytes(topic: str) -> int:
    """Return a size so small that a topic has several segments."""
    if topic.endswith("-out"):
        return 1024
    if topic.startswith(tuple(f"{client}-{plain}" for client in CLIENTS_OF for plain in ("none", "in"))):
        return 12_288
    return 6144 if topic.startswith(tuple(CLIENTS_OF)) else INTERNAL_BYTES


def run_writer(python: Path, script: str, given: dict[str, Any]) -> dict[str, str]:
    began = time.monotonic()
    completed = subprocess.run(
        [python, script], cwd=WRITERS, input=json.dumps(given), capture_output=True, text=True, timeout=300, check=False
    )
    if completed.returncode:
        raise RuntimeError(f"{script}:\n{completed.stderr[-4000:]}")
    print(f"{script}: {time.monotonic() - began:.0f} s", flush=True)
    return json.loads(completed.stdout.splitlines()[-1])


def topics_for(client: str, seed: int) -> list[dict[str, Any]]:
    """Return a client's topics: each codec alone and in transactions; log append time; records without keys."""
    out = []
    for number, codec in enumerate(CODECS):
        one = {"codec": codec, "seed": seed + number, "null_keys": False}
        out.append({**one, "name": f"{client}-{codec}", "modes": ["plain", "idempotent"]})
        modes = ["transactional", "transactional", *(["open"] if codec in ("lz4", "none") else [])]
        out.append({**one, "name": f"{client}-{codec}-txn", "modes": modes, "old": codec != "zstd"})
    last = {"seed": seed + 50, "old": False}
    out.append(
        {
            **last,
            "name": f"{client}-append",
            "codec": "lz4",
            "modes": ["plain", "transactional", "idempotent"],
            "null_keys": False,
        }
    )
    out.append(
        {
            **last,
            "name": f"{client}-nokeys",
            "codec": "snappy",
            "modes": ["plain", "transactional", "idempotent"],
            "null_keys": True,
        }
    )
    return out


def stream(broker: Broker, work: Path) -> None:
    """Run the application, which dies twice: its last transaction stays open."""
    for topic in STREAMED:
        create_topics(broker.bootstrap, {topic: 1}, configs(topic))
    line = "topic=orders-in records=1500 keys=300 t0=now tsstep=700 roll=false vmin=10 vmax=30"
    make_logs(broker.bootstrap, [line])
    jars = f"{lab_jars(STREAMS)}/*"
    javac = [java_tool("javac"), "-nowarn", "-d", work / "counts", "-cp", jars, WRITERS / "Counts.java"]
    subprocess.run(javac, check=True)
    java = [java_tool("java"), "-cp", f"{work / 'counts'}:{jars}", "Counts"]
    for dies in map(str, DIES_AFTER):
        began = time.monotonic()
        argv = [broker.bootstrap, "orders-in", work / "state", str(INTERNAL_BYTES), dies]
        completed = subprocess.run([*java, *argv], capture_output=True, text=True, timeout=200, check=False)
        if completed.returncode != DIED:
            raise RuntimeError(f"Counts ended with {completed.returncode}:\n{completed.stderr[-4000:]}")
        print(f"Counts: {time.monotonic() - began:.0f} s", flush=True)


def expired(broker: Broker) -> bool:
    """Return whether the broker has put tombstones into both topics."""
    return all(tombstones(broker.data / f"{topic}-0") >= LEAST_EXPIRED for topic in INTERNAL[:2])


def tombstones(folder: Path) -> int:
    """Return the number of keys of which only a tombstone is left, because they expired or were deleted."""
    records = [line.split("\t") for line in dump([folder], "D")[folder]]
    last = {line[3]: line[4] for line in records}
    return sum(value == "-" for value in last.values())


def log_starts(data: Path) -> dict[str, int]:
    lines = (data / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    return {f"{topic}-{number}": int(offset) for topic, number, offset in map(str.split, lines)}


def list_topics(data: Path) -> list[str]:
    return [path.name.rpartition("-")[0] for path in data.iterdir() if path.is_dir() and any(path.glob("*.log"))]


def partition_facts(case: str, out: Path, start: int, now_ms: int, work: Path) -> dict[str, Any]:
    """Return the facts of a partition, with digests of what Kafka's cleaner leaves of it in each pass."""
    [source] = (out / case / "input").iterdir()
    size = segment_bytes(case)
    figures = digest([source])[source]
    partition = {
        "now_ms": [now_ms + n * GAP_MS for n in range(len(PASSES))],
        "first_dirty_offset": [start, start, start],
        "log_start": start,
        "segments": figures.segments, "batches": figures.batches, "records": figures.data,
        "tombstones": figures.tombstones, "markers": figures.control,
        "expected": [],
    }  # fmt: skip
    cleaned = work / "cleaned" / source.name
    shutil.copytree(source, cleaned)
    for clock in partition["now_ms"]:
        clean([CleanSpec(cleaned, clock, segment_bytes=size, first_dirty_offset=start, log_start=start)])
        partition["expected"].append(digest_of_logs(p.read_bytes() for p in files_in(cleaned)))
    return {"name": case, "settings": {"segment.bytes": size, **SETTINGS}, "partitions": {source.name: partition}}


if __name__ == "__main__":
    main()
