"""MirrorMaker 2, one process that mirrors topics from one broker to another: `with MirrorMaker(folder, flows) as m:`.

It runs in its own mode (no Connect cluster, no REST) and reads as a read_committed consumer. It writes offsets and
checkpoints every second, so a test waits for offsets and never for a clock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import LabError
from .jars import MIRROR, lab_jars
from .jvm import JAVA_SOURCES, java_command
from .oracle import list_offsets
from .waiting import wait_until

_STOP_SECONDS, _MIRROR_SECONDS = 60, 120
_LATEST = -1
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"  # topics keep their names

_COMMON = {
    "replication.factor": 1,
    "checkpoints.topic.replication.factor": 1,
    "heartbeats.topic.replication.factor": 1,
    "offset-syncs.topic.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "config.storage.replication.factor": 1,
    "offset.storage.partitions": 1,
    "status.storage.partitions": 1,
    "tasks.max": 1,
    "offset.flush.interval.ms": 1000,
    "offset.lag.max": 0,  # each record's offset is synced: checkpoints as exact as MirrorMaker's can be
    "refresh.topics.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
    "emit.checkpoints.interval.seconds": 1,
    "emit.heartbeats.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "plugin.discovery": "service_load",  # looking at every class of every jar takes seconds
}


@dataclass(frozen=True)
class Flow:
    """Topics (patterns) that go from one broker to another; the names of both are MirrorMaker's aliases.

    The default policy puts the alias of the source before each topic's name: `A.orders`.
    """

    source: str
    target: str
    topics: Sequence[str]
    policy: str | None = None

    @property
    def name(self) -> str:
        """MirrorMaker's name of the flow."""
        return f"{self.source}->{self.target}"


class MirrorMaker:
    """A running MirrorMaker. It ends with its block, and when this process dies. `directory/mirror.log`: its log."""

    def __init__(self, directory: Path, clusters: Mapping[str, str], flows: Sequence[Flow]) -> None:
        """clusters: alias -> bootstrap servers; a broker may have several aliases."""
        self.directory, self.clusters, self.flows = Path(directory).resolve(), dict(clusters), list(flows)
        self.log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        properties = self.directory / "mirror.properties"
        properties.write_text("".join(f"{name} = {value}\n" for name, value in self._settings().items()))
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlab.logs={self.directory}",
                   f"-Dlog4j2.configurationFile={JAVA_SOURCES}/log4j2-broker.xml")  # fmt: skip
        main = ("org.apache.kafka.connect.mirror.MirrorMaker", str(properties))
        with (self.directory / "out.log").open("wb") as out:
            self._process = subprocess.Popen(
                java_command("UntilStdinCloses", *main, jars=lab_jars(MIRROR), options=options),
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=self.directory,
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        process.stdin.close()
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired as e:
            process.kill()
            process.wait()
            raise LabError(f"MirrorMaker in {self.directory} did not stop in {_STOP_SECONDS} s; killed") from e

    def wait_for_records(self, cluster: str, ends: Mapping[str, int]) -> None:
        """Wait until the log of each `<topic>-<n>` on a cluster ends at (or behind) an offset."""

        def mirrored() -> bool:
            self._check_runs()
            try:
                offsets = list_offsets(self.clusters[cluster], {name: [_LATEST] for name in ends})
            except LabError as error:
                if "UnknownTopicOrPartition" in str(error):  # it makes the topics first
                    return False
                raise
            return all(offsets[name][0][0] >= end for name, end in ends.items())

        wait_until(mirrored, f"MirrorMaker to write {dict(ends)} to {cluster}; see {self.log}", seconds=_MIRROR_SECONDS)

    def _check_runs(self) -> None:
        if self._process.poll() is not None:
            text = "".join(path.read_text()[-3000:] for path in (self.log, self.directory / "out.log") if path.exists())
            raise LabError(f"MirrorMaker in {self.directory} ended with {self._process.returncode}:\n{text}")

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {"clusters": ", ".join(self.clusters), **_COMMON}
        for alias, bootstrap in self.clusters.items():
            settings[f"{alias}.bootstrap.servers"] = bootstrap
            settings[f"{alias}.consumer.isolation.level"] = "read_committed"
        for flow in self.flows:
            settings[f"{flow.name}.enabled"] = "true"
            settings[f"{flow.name}.topics"] = ", ".join(flow.topics)
            settings[f"{flow.name}.groups"] = ".*"
            if flow.policy:
                settings[f"{flow.name}.replication.policy.class"] = flow.policy
        return settings
