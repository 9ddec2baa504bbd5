"""Memory of a process and all that it started: each half second the sum of their shares, shared pages counted once."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_EACH_S = 0.5


def watched(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[bytes], float, int]:
    """Run a command; return how it ended, its seconds, and the largest memory in bytes."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(process, peak))
        watcher.start()
        out, _ = process.communicate()
        watcher.join()
    return subprocess.CompletedProcess(command, process.returncode, out), time.perf_counter() - began, peak[0]


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_pss, _tree(process.pid))))
        time.sleep(_EACH_S)


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    processes = [pid]
    for process in processes:
        processes += parents.get(process, [])
    return processes


def _pss(pid: int) -> int:
    """Return a process's memory in bytes, each shared page divided by its users."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
