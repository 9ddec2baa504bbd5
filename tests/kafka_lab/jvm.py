"""The lab's Java programs: compiled once, and run as one process that answers one command after the other.

Starting a JVM takes about a second, and a test run asks for dozens of dumps and cleanings: hence one that stays.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import LabError
from .jars import NEW, cache_dir, exclusive, java_tool, lab_jars, replace_folder, temporary_folder

JAVA_SOURCES = Path(__file__).parent / "java"
_HEAP = "2g"
_OPTIONS = "LASTKEY_LAB_OPTIONS"  # variable with options of the one process, which tests.cheap_java sets


def classes() -> Path:
    """Return the folder of `lab.jar`, the compiled programs; its name is the hash of the sources, so a change compiles
    again. A jar, because archives of classes know no folders on the class path.
    """
    sources = sorted([*JAVA_SOURCES.glob("*.java"), *(JAVA_SOURCES / f"kafka-{NEW}").glob("*.java")])
    digest = hashlib.sha256(NEW.encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    target = cache_dir() / f"lab-{digest.hexdigest()[:16]}"
    if target.is_dir():
        return target
    jars = lab_jars()
    with exclusive("compile"):
        if not target.is_dir():
            with temporary_folder("compile-") as work:
                _compile(sources, jars, work / "classes")
                shutil.make_archive(str(work / "jar" / "lab"), "zip", work / "classes")
                (work / "jar" / "lab.zip").rename(work / "jar" / "lab.jar")
                replace_folder(work / "jar", target)
    return target


def java_command(main: str, *args: str, jars: Path | None = None, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that runs a class of the lab, or of Kafka, with `jars` (the new Kafka's) on its path."""
    path = f"{classes() / 'lab.jar'}:{jars or lab_jars()}/*"
    return [java_tool("java"), "-Duser.timezone=UTC", *options, "-cp", path, main, *args]


@contextmanager
def class_archive(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the options for a JVM that loads its classes from an archive: a broker starts in half the time. The first
    JVM of that name writes one at its end, which is the block's. After an error none is kept: a JVM dies of one that is
    cut off.
    """
    quiet = ("-Xlog:disable", "-Xlog:all=error:stderr")  # else it tells which classes have no place there
    java = hashlib.sha256(os.path.realpath(java_tool("java")).encode()).hexdigest()[:8]
    archive = classes() / f"{name}-{java}.jsa"
    if archive.is_file():
        yield (f"-XX:SharedArchiveFile={archive}", *quiet)
        return
    with temporary_folder("archive-") as work:
        yield (f"-XX:ArchiveClassesAtExit={work / archive.name}", *quiet)
        (work / archive.name).replace(archive)


def _compile(sources: list[Path], jars: Path, target: Path) -> None:
    command = [java_tool("javac"), "-nowarn", "-proc:none", "--release", "17", "-cp", f"{jars}/*", "-d", str(target)]
    completed = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    if completed.returncode:
        raise LabError(f"the lab's Java sources do not compile:\n{completed.stdout}{completed.stderr}")


class LabJvm:
    """A running `Lab` (java/Lab.java). It ends when its input closes, so also when this process dies.

    more: the JVM's options, beside ours.
    """

    def __init__(self, *more: str) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile(prefix="kafka-lab-")  # noqa: SIM115 - what Kafka's classes print
        logs = f"-Dlog4j2.configurationFile={JAVA_SOURCES}/log4j2-tool.xml"
        options = (f"-Xmx{_HEAP}", "-XX:+UseSerialGC", *more, logs)
        self._process = subprocess.Popen(
            java_command("Lab", options=options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def call(self, command: str, **args: object) -> Any:
        """Return the result of a command. Raises LabError with Java's stack trace if it fails."""
        request = json.dumps({"command": command, "args": args}, default=str)
        with self._lock:
            try:
                self._process.stdin.write(request.encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            self.kill()
            self._process.wait()  # so that is_alive() is False from now on
            raise LabError(f"the lab's JVM died in {command}:\n{self._printed()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise LabError(f"{command}: {answer['error']}")
        return answer["result"]

    def kill(self) -> None:
        """End the process at once, from any thread: a `call` that waits for its answer raises LabError."""
        self._process.kill()

    def close(self) -> None:
        """End the process; a forked child leaves it to its parent."""
        if self.pid != os.getpid():
            return
        with contextlib.suppress(BrokenPipeError):  # input that a dead process did not read
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def is_alive(self) -> bool:
        """Return whether this process can send commands to it."""
        return self.pid == os.getpid() and self._process.poll() is None

    def _printed(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


_running: list[LabJvm] = []  # the one of this process, once it was asked for


def lab() -> LabJvm:
    """Return this process's JVM, started at the first call and ended with the process."""
    if not (_running and _running[0].is_alive()):
        if _running and _running[0].pid == os.getpid():
            _running[0].close()
        jvm = LabJvm(*os.environ.get(_OPTIONS, "").split())
        _running[:] = [jvm]
        atexit.register(jvm.close)
    return _running[0]
