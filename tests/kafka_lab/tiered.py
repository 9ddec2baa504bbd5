"""Tiered storage of a real broker: Kafka's own LocalTieredStorage, which copies closed segments into a folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .broker import Broker
from .jars import TIERED, lab_jars
from .oracle import make_logs
from .waiting import wait_until

_UPLOAD_SECONDS = 60
# the snapshot is the last object of a segment, so that a segment that has one is whole
_LAST = ".snapshot"


class TieredBroker(Broker):
    """A broker that uploads every closed segment of topics with remote.storage.enable=true."""

    @property
    def remote(self) -> Path:
        """The folder that LocalTieredStorage makes."""
        return self.directory / "remote" / "kafka-tiered-storage"

    def _settings(self) -> dict[str, object]:
        (self.directory / "remote").mkdir(exist_ok=True)
        return super()._settings() | {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
            "remote.log.storage.manager.class.path": f"{lab_jars(TIERED)}/*",
            "rsm.config.dir": self.directory / "remote",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
            "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
            "remote.log.manager.task.interval.ms": 200,
        }

    def upload(self, specs: Sequence[str]) -> None:
        """Make topics as `make_logs` does, and wait until all segments but the active ones are uploaded."""
        make_logs(self.bootstrap, [f"{spec} policy=delete config.remote.storage.enable=true" for spec in specs])
        self.wait_for_uploads()

    def wait_for_uploads(self, copies: int = 1) -> None:
        """Wait until there are so many copies of all segments but the active ones."""
        wait_until(lambda: self._is_uploaded(copies), f"{copies} copies of all segments", seconds=_UPLOAD_SECONDS)

    def forget_uploads(self) -> None:
        """Remove what the stopped broker knows of its remote segments: it uploads all of them again."""
        for folder in self.data.glob("__remote_log_metadata-*"):
            shutil.rmtree(folder)
        for path in (self.data / "remote-log-index-cache", self.data / "_rlmm_committed_offsets"):
            shutil.rmtree(path, ignore_errors=True)

    def _is_uploaded(self, copies: int) -> bool:
        remote = {folder.name[:-23]: folder for folder in self.remote.glob("*")}
        local = [folder for folder in self.data.glob("*-[0-9]*") if not folder.name.startswith("__")]
        return all(
            folder.name in remote
            and len(list(remote[folder.name].glob(f"*{_LAST}"))) == copies * (len(list(folder.glob("*.log"))) - 1)
            for folder in local
        )
