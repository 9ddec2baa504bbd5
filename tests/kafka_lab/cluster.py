"""Three brokers and a controller of their own on the loopback, which tests kill and start again.

`with Cluster(folder) as cluster:` starts all; `cluster.kill([n])` ends broker n as SIGKILL does, `cluster.start(n)`
starts it on its files. Each broker has a replica of a topic, and any replica may lead (unclean.leader.election.enable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .broker import KraftBroker

_CONTROLLER = 100
_REPLICATED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 1,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "unclean.leader.election.enable": "true",
    "unclean.leader.election.interval.ms": 1000,
    "replica.lag.time.max.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "log.segment.delete.delay.ms": 0,
}


class _Node(KraftBroker):
    heap = "256m"
    node_id = _CONTROLLER
    controller = ""  # host:port

    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""
        self._kill()

    def _settings(self) -> dict[str, object]:
        return {
            **_REPLICATED,
            "node.id": self.node_id,
            "controller.quorum.voters": f"{_CONTROLLER}@{self.controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data,
            "metadata.log.dir": self.directory / "meta",
        }


class _Controller(_Node):
    def _settings(self) -> dict[str, object]:
        self.controller = f"127.0.0.1:{self.port}"
        listener = f"CONTROLLER://{self.controller}"
        return {**super()._settings(), "process.roles": "controller", "listeners": listener}


class _Replica(_Node):
    def __init__(self, directory: Path, node_id: int, controller: str, options: Mapping[str, object]) -> None:
        super().__init__(directory, options)
        self.node_id, self.controller = node_id, controller

    def _settings(self) -> dict[str, object]:
        listener = f"PLAINTEXT://{self.bootstrap}"
        return {
            **super()._settings(), "process.roles": "broker", "listeners": listener, "advertised.listeners": listener,
        }  # fmt: skip


class Cluster:
    """Brokers 1, 2 and 3. options: settings of single brokers."""

    def __init__(self, directory: Path, options: Mapping[int, Mapping[str, object]] | None = None) -> None:
        self.directory, self.options = directory, options or {}
        self.brokers: dict[int, _Replica] = {}
        self._controller = _Controller(directory / "controller")

    def __enter__(self) -> Self:
        self._controller.start()
        for n in (1, 2, 3):
            self.start(n)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in (*self.brokers.values(), self._controller):
            node.kill()

    def bootstrap(self, *numbers: int) -> str:
        """host:port of these brokers, for clients."""
        return ",".join(self.brokers[n].bootstrap for n in numbers)

    def start(self, number: int) -> None:
        """Start a broker on its files."""
        if number not in self.brokers:
            folder = self.directory / f"broker-{number}"
            self.brokers[number] = _Replica(folder, number, self._controller.controller, self.options.get(number, {}))
        self.brokers[number].start()

    def kill(self, numbers: Sequence[int]) -> None:
        """End brokers at once."""
        for number in numbers:
            self.brokers[number].kill()

    def data(self, number: int) -> Path:
        """Log directory of a broker."""
        return self.brokers[number].data
