"""The cluster's process, what a client needs to reach it, and what its containers wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from lastkey.jobs.spark.jvm import find_java
from tests.cheap_java import CHEAP
from tests.kafka_lab.errors import LabError
from tests.kafka_lab.jars import YARN, lab_jars
from tests.kafka_lab.waiting import wait_until

SPARK = Path(pyspark.__file__).parent
_START_SECONDS, _STOP_SECONDS = 120, 60

# Settings of an administrator beside yarn-site.xml: the nodes have Spark's jars, containers are small
_DEFAULTS = """
spark.yarn.jars                      local:{spark}/jars/*
spark.yarn.stagingDir                viewfs://shared{staging}
spark.driver.memory                  512m
spark.yarn.am.memory                 512m
spark.executor.memory                512m
spark.executor.instances             2
spark.executor.cores                 1
spark.driver.extraJavaOptions        {cheap}
spark.executor.defaultJavaOptions    {cheap}
spark.yarn.am.extraJavaOptions       {cheap}
spark.executor.maxNumFailures        2
spark.yarn.appMasterEnv.SPARK_LOCAL_IP  127.0.0.1
spark.yarn.report.interval           200ms
spark.yarn.scheduler.heartbeat.interval-ms  500
"""
# Settings on the nodes' class path for Hadoop's code. viewfs://shared is this machine's file system under a name
# that is not file://, as a cluster's shared storage has one: YARN uploads a file:// again for each application, and
# each node then unpacks it again
_SHARED = {"fs.viewfs.mounttable.shared.linkMergeSlash": "file:///"}
_OF_NODES = _SHARED | {"fs.AbstractFileSystem.file.impl": "MiniYarn$NodeFiles"}


class Yarn:
    """A cluster of two nodes; each has memory for two containers of the size in `conf/spark-defaults.conf`.

    Containers get nothing of this process's environment. `environment` is a client's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder.resolve(), folder.resolve() / "conf"
        java_home = find_java().parent.parent
        self._own = {
            "PATH": f"{sys.base_prefix}/bin:{os.defpath}",
            "HOME": str(self.folder),
            "JAVA_HOME": str(java_home),
        }
        self.environment = {**self._own, "HOME": str(Path.home()), "SPARK_LOCAL_IP": "127.0.0.1",
                            "HADOOP_CONF_DIR": str(self.conf), "SPARK_CONF_DIR": str(self.conf),
                            "SPARK_SUBMIT_OPTS": CHEAP, "SPARK_LAUNCHER_OPTS": CHEAP}  # fmt: skip

    def __enter__(self) -> Self:
        for name in ("conf", "nodes", "tmp", "staging"):
            (self.folder / name).mkdir(parents=True)
        (self.conf / "spark-defaults.conf").write_text(
            _DEFAULTS.format(spark=SPARK, staging=self.folder / "staging", cheap=CHEAP)
        )
        for name, settings in (("conf", _SHARED), ("nodes", _OF_NODES)):
            (self.folder / name / "core-site.xml").write_text(_site(settings))
        command = [
            str(find_java()), "-Xmx512m", *CHEAP.split(),
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            "-cp", f"{self.folder / 'nodes'}:{lab_jars(YARN)}/*:{SPARK}/jars/*",
            str(Path(__file__).with_name("MiniYarn.java")), str(self.conf),
        ]  # fmt: skip
        with (self.folder / "yarn.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=self._own,
                start_new_session=True,  # a Ctrl-C is for Python, which then stops the cluster
            )  # fmt: skip
        try:
            wait_until(self._is_up, f"YARN in {self.folder} to start", seconds=_START_SECONDS)
        except LabError:
            self._process.kill()
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def container_logs(self) -> dict[str, str]:
        """Return what containers wrote, by application/container/file."""
        files = self.folder.glob("target/test/data/*/*/*-logDir-nm-*/application_*/container_*/std*")
        logs = {"/".join(file.parts[-3:]): file.read_text(errors="replace") for file in files}
        return dict(sorted(logs.items()))  # the last application last, whichever nodes it had

    def executors(self) -> list[list[int]]:
        """Return the processes of each container that runs an executor."""
        stacks: dict[Path, dict[int, bytes]] = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                folder = (process / "cwd").readlink()
                if folder.is_relative_to(self.folder / "target"):
                    stacks.setdefault(folder, {})[int(process.name)] = (process / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
        return [
            list(stack) for stack in stacks.values() if any(b"ExecutorBackend" in outputs for outputs in stack.values())
        ]

    def application(self) -> tuple[str, dict[str, Any]]:
        """Return the address and the properties of the one application that runs, as the ResourceManager tells them."""
        site = (self.conf / "yarn-site.xml").read_text()
        address = re.search(r"<name>yarn.resourcemanager.webapp.address</name>\s*<value>([^<]+)", site)
        assert address is not None
        applications = f"http://{address[1]}/ws/v1/cluster/apps"
        with urllib.request.urlopen(f"{applications}?states=RUNNING") as answer:
            [application] = json.load(answer)["apps"]["app"]
        return f"{applications}/{application['id']}", application

    def kill_application(self) -> None:
        """Kill the one application that runs, as `yarn application -kill` does."""
        address, application = self.application()
        request = urllib.request.Request(
            f"{address}/state?user.name={application['user']}", b'{"state": "KILLED"}',
            {"Content-Type": "application/json"}, method="PUT",
        )  # fmt: skip
        with urllib.request.urlopen(request):
            pass

    def _is_up(self) -> bool:
        log = (self.folder / "yarn.log").read_text()
        if self._process.poll() is not None:
            raise LabError(f"YARN in {self.folder} ended with {self._process.returncode}:\n{log[-3000:]}")
        return "STARTED" in log

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise LabError(f"YARN in {self.folder} did not stop in {_STOP_SECONDS} s; killed") from error


def _site(settings: dict[str, str]) -> str:
    """Return a file of Hadoop's settings."""
    rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(rows)}</configuration>\n"
