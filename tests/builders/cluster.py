"""A standalone cluster of pyspark's own jars on the loopback: a master and workers, as a user of their own.

A node has its own Spark, Python and folder: links to those of the tests, or copies. So the user of the node needs no
access to the originals. Where the tests run as root, the user is `nobody`; a driver is `nobody` too, as on a cluster
whose files belong to one user, but may read everything (CAP_DAC_OVERRIDE). Where they run as somebody else, that is the
user of all, and only the paths differ.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from lastkey.jobs.spark.jvm import find_java
from tests.cheap_java import CHEAP

SPARK = Path(pyspark.__file__).parent
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LOOPBACK = ("--port", "0", "--webui-port", "0", "--host")
IS_ROOT = os.geteuid() == 0
_NOT_ON_NODES = shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages", "test", "idlelib", "config-*")


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: a folder that its user can read and write."""

    folder: Path

    @property
    def spark(self) -> Path:
        """SPARK_HOME."""
        return self.folder / "spark"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of Spark's processes: nothing of the tests' own."""
        return {
            "PATH": f"{self.folder}/python/bin:{os.defpath}",
            "LD_LIBRARY_PATH": f"{self.folder}/python/lib",
            "HOME": str(self.folder),
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_HOME": str(self.spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def as_user(self, *words: object, reads_all: bool = False) -> list[str]:
        """Return a command that runs as the node's user; reads_all: and may read and write what only root could."""
        if not IS_ROOT:
            return [str(word) for word in words]
        user = pwd.getpwnam("nobody")
        caps = ("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override") if reads_all else ()
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        return ["setpriv", *ids, *caps, *(str(word) for word in words)]

    def own(self, folder: Path) -> Path:
        """Make a folder that belongs to the node's user."""
        folder.mkdir(parents=True)
        if IS_ROOT:
            shutil.chown(folder, "nobody")
        return folder


def make_node() -> Node:
    """Install Spark and Python in a new folder, which others than the tests' user can enter; pytest's are closed."""
    folder = Path(tempfile.mkdtemp(prefix="lastkey-node-"))
    folder.chmod(0o755)
    if IS_ROOT:
        shutil.chown(folder, "nobody")
    node = Node(folder)
    for name in ("bin", "jars", "python/lib"):
        shutil.copytree(SPARK / name, node.spark / name, copy_function=link)
    base, library = Path(sys.base_prefix), folder / "python" / "lib"
    shutil.copytree(base / "lib" / PYTHON, library / PYTHON, copy_function=link, ignore=_NOT_ON_NODES)
    for shared in base.glob("lib/libpython3*.so*"):
        link(shared, library / shared.name)
    (folder / "python" / "bin").mkdir()
    link(Path(os.path.realpath(sys.executable)), folder / "python" / "bin" / PYTHON)
    return node


def link(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it to another disk."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # on another disk
        shutil.copy2(source, target)


@contextmanager
def daemon(command: Sequence[str], folder: Path, environment: dict[str, str], ready: str) -> Iterator[tuple[str, int]]:
    """Start a process of Spark; yield its ready message and its id."""
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            matches = (re.search(ready, line) for line in process.stderr)
            address = next(filter(None, matches), None)
            assert address is not None, f"{command} ended"
            yield address[1], process.pid
        finally:
            process.terminate()


@contextmanager
def cluster(node: Node, workers: int = 2) -> Iterator[str]:
    """Start a master, and workers of one core; yield the master's URL. Their work lies in the node's work-0, work-1.

    Each worker has an address of its own: Spark starts no second try of a task on the host of the first.
    """
    spark_class = node.as_user(node.spark / "bin" / "spark-class")
    with ExitStack() as stack:

        def start(kind: str, ready: str, host: str, *words: str) -> str:
            command = [*spark_class, f"org.apache.spark.deploy.{kind}", *LOOPBACK, host, *words]
            environment = node.environment | {"SPARK_LOCAL_IP": host, "JDK_JAVA_OPTIONS": CHEAP}
            return stack.enter_context(daemon(command, node.folder, environment, ready))[0]

        master = start("master.Master", r"Starting Spark master at (\S+)", "127.0.0.1")
        for number in range(workers):
            work = node.own(node.folder / f"work-{number}")
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), master)
            start("worker.Worker", r"Successfully registered with master (\S+)", f"127.0.0.{number + 2}", *words)
        yield master
