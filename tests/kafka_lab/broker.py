"""Real brokers on the loopback: `with Broker(folder) as b:`. Each is a process of its own, stopped with its block.

A broker runs under java/UntilStdinCloses.java: it stops cleanly when this process closes its input, and also when this
process dies.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from .errors import LabError
from .jars import NEW, OLD, lab_jars
from .jvm import JAVA_SOURCES, class_archive, java_command, lab
from .waiting import wait_until

_START_SECONDS, _STOP_SECONDS = 120, 60
_START_ATTEMPTS = 3  # a port that was free may be taken before the broker binds it
_ALERT = re.compile(r"\[[^\]]*\] (WARN|ERROR|FATAL) ")

_COMMON = {
    "num.partitions": 1,
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.ms": -1,
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
    "num.network.threads": 2,
    "num.io.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
}


class BaseBroker:
    """Base of both kinds of broker: a folder, ports, one process, and a log.

    `directory/data` is log.dirs, `directory/logs/server.log` the log of the last start. `options` are broker settings.
    """

    version: ClassVar[str]
    started_line: ClassVar[str]
    heap: ClassVar[str] = "512m"

    def __init__(self, directory: Path, options: Mapping[str, object] | None = None) -> None:
        self.directory = Path(directory).resolve()
        self.options = dict(options or {})
        self.data, self.logs = self.directory / "data", self.directory / "logs"
        self.server_log, self.cleaner_log = self.logs / "server.log", self.logs / "log-cleaner.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._until_end = ExitStack()
        for folder in (self.data, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker on free ports, and wait until it serves."""
        if self._process:
            raise LabError(f"the broker in {self.directory} runs already")
        for attempt in range(_START_ATTEMPTS):
            self._launch()
            try:
                wait_until(self._is_up, f"{self.version} broker in {self.directory} to start", seconds=_START_SECONDS)
                return
            except LabError:
                self._kill()
                if attempt + 1 == _START_ATTEMPTS or "Address already in use" not in self.log_text():
                    raise

    def stop(self) -> None:
        """Stop the broker as SIGTERM would, and wait for its end."""
        if not self._process:
            return
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired as e:
            self._kill()
            raise LabError(f"the broker in {self.directory} did not stop in {_STOP_SECONDS} s; killed") from e
        if code:
            self._kill()
        self._process = None
        self._until_end.close()

    def log_text(self) -> str:
        """Return the log since the last start."""
        return self.server_log.read_text() if self.server_log.exists() else ""

    def alerts(self) -> list[str]:
        """Return the WARN, ERROR and FATAL lines since the last start."""
        return [line for line in self.log_text().splitlines() if _ALERT.match(line)]

    def _launch(self) -> None:
        for log in self.logs.iterdir():
            log.unlink()
        self.port, self._second_port = free_ports(2)
        settings = {**_COMMON, **self._settings(), **self.options}
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._prepare(properties)
        archive = self._until_end.enter_context(class_archive(f"broker-{self.version}"))
        jvm_options = (f"-Xms{self.heap}", f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                       f"-Dlab.logs={self.logs}", *archive, *self._jvm_options())  # fmt: skip
        command = java_command(
            "UntilStdinCloses", *self._mains(properties), jars=lab_jars(self.version), options=jvm_options
        )
        with (self.logs / "out.log").open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=self.directory,
                start_new_session=True,  # a Ctrl-C is for Python, which then stops the broker
            )  # fmt: skip

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            tail = self.log_text()[-10_000:] + (self.logs / "out.log").read_text()[-10_000:]
            raise LabError(f"the broker in {self.directory} ended with {self._process.returncode}:\n{tail}")
        return self.started_line in self.log_text()

    def _kill(self) -> None:
        if self._process:
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
            self._process = None
            self._until_end.__exit__(LabError, LabError("killed"), None)

    def _settings(self) -> dict[str, object]:
        raise NotImplementedError

    def _jvm_options(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _mains(self, properties: Path) -> list[str]:
        raise NotImplementedError

    def _prepare(self, properties: Path) -> None:
        """Prepare the start, once the settings are written."""


class KraftBroker(BaseBroker):
    """A node of a KRaft cluster."""

    version = NEW
    started_line = "Kafka Server started"
    cluster_id = "bGFzdGtleS1sYWItMDAwMA"

    def _jvm_options(self) -> tuple[str, ...]:
        return (f"-Dlog4j2.configurationFile={JAVA_SOURCES}/log4j2-broker.xml",)

    def _mains(self, properties: Path) -> list[str]:
        return ["kafka.Kafka", str(properties)]

    def _prepare(self, properties: Path) -> None:
        if not (self.directory / "meta" / "meta.properties").exists():
            lab().call("format_storage", argv=["format", "-t", self.cluster_id, "-c", properties, "--ignore-formatted"])


class Broker(KraftBroker):
    """The reference Kafka: one KRaft node that is controller and broker; `directory/meta` holds its metadata log."""

    def _settings(self) -> dict[str, object]:
        controller = f"127.0.0.1:{self._second_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data,
            "metadata.log.dir": self.directory / "meta",
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "log.segment.delete.delay.ms": 0,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 3000,  # a restart waits until the session of the last start is over
        }


class OldBroker(BaseBroker):
    """Kafka 2.8.2 with its ZooKeeper, in one process.

    It still writes magic 0 and 1, by the topic setting message.format.version=0.9.0 and 0.10.2.
    """

    version = OLD
    started_line = "started (kafka.server.KafkaServer)"

    def _settings(self) -> dict[str, object]:
        return {
            "broker.id": 1,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "zookeeper.connect": f"127.0.0.1:{self._second_port}",
            "zookeeper.connection.timeout.ms": 60_000,
            "log.dirs": self.data,
        }

    def _jvm_options(self) -> tuple[str, ...]:
        log4j = f"-Dlog4j.configuration=file:{JAVA_SOURCES}/log4j-old-broker.properties"
        return (log4j, "-Dzookeeper.admin.enableServer=false")

    def _mains(self, properties: Path) -> list[str]:
        zookeeper = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [zookeeper, str(self._second_port), str(self.directory / "zk"), "--", "kafka.Kafka", str(properties)]


def free_ports(count: int) -> list[int]:
    """Return different free ports of the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
