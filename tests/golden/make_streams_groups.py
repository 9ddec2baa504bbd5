"""The script that makes streams_groups.tar.xz: `python -m tests.golden.make_streams_groups`, half a minute.

The file has partitions of a broker's `__consumer_offsets` with groups of all types, streams groups (KIP-1071) among
them. Its `committed.json` has the offsets that each group has committed, as the broker's own AdminClient reports them.
CI has no jars of Kafka Streams.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.golden import STREAMS_GROUPS
from tests.golden.make_clients import WRITERS
from tests.golden.make_golden import pack
from tests.kafka_lab import Broker, make_logs
from tests.kafka_lab.jars import STREAMS, java_tool, lab_jars
from tests.kafka_lab.jvm import lab

HEARTBEATS = [
    f"group.{kind}.{least}heartbeat.interval.ms" for kind in ("consumer", "share", "streams") for least in ("", "min.")
]
SETTINGS = {"offsets.topic.num.partitions": 2, "auto.create.topics.enable": "true", **dict.fromkeys(HEARTBEATS, 200)}
# application, records after which it stops, guarantee; the first continues later
APPLICATIONS = (
    ("streams-lagging", 100, "at_least_once"),
    ("streams-done", 600, "at_least_once"),
    ("streams-exactly", 300, "exactly_once_v2"),
    ("streams-lagging", 100, "at_least_once"),
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="streams-") as name:
        work, out = Path(name), Path(name) / "out"
        jars = f"{lab_jars(STREAMS)}/*"
        javac = [java_tool("javac"), "-nowarn", "-d", work / "classes", "-cp", jars, WRITERS / "StreamsGroup.java"]
        subprocess.run(javac, check=True)
        out.mkdir()
        with Broker(work / "broker", SETTINGS) as broker:
            make_logs(broker.bootstrap, ["topic=orders partitions=3 records=600 keys=50 roll=false"])
            lab().call("deliver", bootstrap=broker.bootstrap, topic="orders")
            for group, stop, guarantee in APPLICATIONS:
                argv = [broker.bootstrap, group, "orders", work / "state", str(stop), guarantee]
                java = [java_tool("java"), "-cp", f"{work / 'classes'}:{jars}", "StreamsGroup", *argv]
                subprocess.run(java, check=True, capture_output=True, timeout=120)
            answers = lab().call("committed_offsets", bootstrap=broker.bootstrap)
        (out / "committed.json").write_text(json.dumps(answers, indent=1, sort_keys=True))
        for folder in sorted(broker.data.glob("__consumer_offsets-*")):
            (out / folder.name).mkdir()
            for log in sorted(folder.glob("*.log")):
                (out / folder.name / log.name).write_bytes(log.read_bytes())
        pack(out, STREAMS_GROUPS)


if __name__ == "__main__":
    main()
