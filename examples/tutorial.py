#!/usr/bin/env python3
"""Helper of docs/tutorial.md: a growing archive, and a real broker that starts on restored files.

    python3 examples/tutorial.py day 1 work/archive     # the example archive as it was before its newest segments
    python3 examples/tutorial.py day 2 work/archive     # the rest
    .venv/bin/python examples/tutorial.py broker work/restored work/broker

`broker` fetches Kafka from Maven Central (with the Ivy of pyspark's jars), makes a new cluster of one node in the
second folder, puts the restored partitions into it under the topic ids of that cluster, starts it, and reads each
partition with Kafka's console consumer. It needs Java 17. Only the standard library and pyspark's folder are used.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHIVE = HERE / "archive"
KAFKA = "4.3.0"
MODULES = (f"kafka_2.13;{KAFKA}", f"kafka-tools;{KAFKA}")
START_SECONDS = 120
COMPACTED = ("--config", "cleanup.policy=compact")  # else a broker deletes records that are older than seven days
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
metadata.log.dir={folder}/metadata
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.enable=false
"""


def copy_day(day: int, target: Path) -> None:
    """Copy the example archive: on day 1 without the newest segment of each partition, on day 2 all of it."""
    for folder in (path for path in ARCHIVE.iterdir() if path.is_dir()):
        newest = max(int(path.stem) for path in folder.glob("*.log"))
        (target / folder.name).mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if day > 1 or not (path.stem.isdecimal() and int(path.stem) >= newest > 0):
                shutil.copy2(path, target / folder.name)
    for path in (path for path in ARCHIVE.iterdir() if path.is_file() and day > 1):
        shutil.copy2(path, target)


class Node:
    """Kafka cluster of one node in a folder."""

    def __init__(self, folder: Path, jars: Path) -> None:
        self.folder, self.jars = folder.resolve(), jars.resolve()
        self.data = self.folder / "data"
        self.port, controller = _free_ports(2)
        self.data.mkdir(parents=True)
        self.properties = self.folder / "server.properties"
        self.properties.write_text(PROPERTIES.format(folder=self.folder, port=self.port, controller=controller))
        self.tool("kafka.tools.StorageTool", "format", "-t", "bGFzdGtleS10dXRvcmlhbA", "-c", str(self.properties))

    def tool(self, main: str, *words: str) -> str:
        """Run a tool of Kafka, and return its stdout."""
        done = subprocess.run(self._java(main, *words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{main} {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the node, and stop it at the end."""
        log = self.folder / "server.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                self._java("kafka.Kafka", str(self.properties)), stdout=out, stderr=subprocess.STDOUT, cwd=self.folder
            )
        try:
            self.tool("org.apache.kafka.tools.TopicCommand", *self._server, "--list")  # the client waits for the node
            yield
        finally:
            process.terminate()
            process.wait(START_SECONDS)

    @property
    def _server(self) -> tuple[str, str]:
        return "--bootstrap-server", f"127.0.0.1:{self.port}"

    def create_topic(self, topic: str, partitions: int) -> str:
        """Create a topic, and return its id."""
        command = "org.apache.kafka.tools.TopicCommand"
        self.tool(command, *self._server, "--create", "--topic", topic, "--partitions", str(partitions), *COMPACTED)
        found = re.search(r"TopicId: (\S+)", self.tool(command, *self._server, "--describe", "--topic", topic))
        return found[1] if found else sys.exit(f"{topic}: no topic id")

    def read_partition(self, name: str) -> list[str]:
        """Return every record of a partition as a consumer prints it."""
        topic, _, number = name.rpartition("-")
        words = ("--topic", topic, "--partition", number, "--offset", "earliest", "--timeout-ms", "20000")
        consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        shown = self.tool(consumer, *self._server, *words, "--formatter-property", "print.key=true")
        return [line for line in shown.splitlines() if "\t" in line]  # key and value; others are log lines

    def _java(self, main: str, *words: str) -> list[str]:
        return ["java", "-Xmx512m", "-cp", f"{self.jars}/*", main, *words]


def try_broker(restored: Path, folder: Path, jars: Path) -> None:
    """Start a new cluster on restored partitions, and print what a consumer reads."""
    if not any(jars.glob("kafka_2.13-*.jar")):
        fetch(jars)
    names = sorted(path.name for path in restored.iterdir() if path.is_dir())
    topics = {name.rpartition("-")[0]: 0 for name in names}
    for name in names:
        topics[name.rpartition("-")[0]] += 1
    node = Node(folder, jars)
    with node.running():
        ids = {topic: node.create_topic(topic, count) for topic, count in topics.items()}
    for name in names:  # a broker takes a folder with another topic id for a stray one
        shutil.rmtree(node.data / name)
        shutil.copytree(restored / name, node.data / name)
        topic_id = ids[name.rpartition("-")[0]]
        (node.data / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    for path in (path for path in restored.iterdir() if path.is_file()):
        shutil.copy2(path, node.data)
    with node.running(), ThreadPoolExecutor() as pool:  # each consumer waits 20 seconds for another record
        for name, records in zip(names, pool.map(node.read_partition, names), strict=True):
            print(f"{name}: a consumer reads {len(records):,} records")


def fetch(jars: Path) -> None:
    """Fetch Kafka's jars from Maven Central."""
    import pyspark  # noqa: PLC0415 - day needs no pyspark

    ivy = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))[-1]
    jars.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        name, _, version = module.partition(";")
        pattern = str(jars / "[artifact]-[revision].[ext]")
        words = ["-dependency", "org.apache.kafka", name, version, "-confs", "default", "-types", "jar", "bundle"]
        subprocess.run(["java", "-jar", str(ivy), *words, "-retrieve", pattern], stdout=subprocess.DEVNULL, check=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    day = commands.add_parser("day")
    day.add_argument("day", type=int, choices=(1, 2))
    day.add_argument("target", type=Path)
    broker = commands.add_parser("broker")
    broker.add_argument("restored", type=Path)
    broker.add_argument("folder", type=Path)
    broker.add_argument("--jars", type=Path, default=Path("work/kafka"), help="where Kafka's jars are or will be")
    args = parser.parse_args()
    if args.command == "day":
        copy_day(args.day, args.target)
    else:
        try_broker(args.restored, args.folder, args.jars)


if __name__ == "__main__":
    main()
