"""A job on a small file system, which is mounted in a separate namespace.

`mishaps` has a full disk too, from any operation on, which `preload.c` simulates. Here the kernel decides when the disk
is full, and how much a write leaves of a file that has no room.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.attack.forked import Failed
from tests.attack.histories import KINDS, History, Output, shown
from tests.attack.preload import Control

FULL, ROOM = "said that the disk is full", "had room"
VERDICTS: Final = (FULL, ROOM)
# these fill the store, a task's temporary folder, the archive itself, the output
JOBS: Final = ("compact", "first compact", "compact that spills", "reindex", "restore", "merge", "vacuum",
               "rollback")  # fmt: skip
PAGE_BYTES: Final = 4096  # tmpfs allots room in pages
_LARGE: Final = {"bytes": 1 << 30, "files": 1 << 20}
_KINDS: Final = {"DiskFullError", "LogDirectoryFullError", "OutputFullError"}


@cache
def own_mounts() -> tuple[tuple[str, ...], str]:
    """Return (a command whose child can mount for itself alone, ""), or ((), the reason why the kernel refuses)."""
    errors = []
    for options in ("--mount", "--map-root-user --mount"):
        command = ("unshare", *options.split())
        if shutil.which("unshare") is None:
            return (), "no unshare (util-linux)"
        mount = [*command, "mount", "-t", "tmpfs", "-o", "size=1m", "none", tempfile.gettempdir()]
        completed = subprocess.run(mount, capture_output=True, text=True, check=False)
        if completed.returncode == 0:
            return command, ""
        errors.append(f"{' '.join(command)}: {completed.stderr.strip()}")
    return (), "; ".join(errors)


@dataclass(frozen=True)
class Left:
    """The room that is left when the job begins. of: "bytes", in pages, or "files"."""

    of: str
    room: int

    def __str__(self) -> str:
        return f"{self.of}/{self.room}"

    @staticmethod
    def named(name: str) -> Left:
        of, room = name.split("/")
        return Left(of, int(room))


class Disk:
    """A file system that grows and shrinks."""

    def __init__(self, at: Path) -> None:
        self.at = at
        if not at.is_mount():
            at.mkdir()
            _run("mount", "-t", "tmpfs", "-o", _options(_LARGE), "none", str(at))

    def leave(self, left: Left | None) -> None:
        """Limit the free space; None: no limit."""
        sizes = dict(_LARGE)
        if left is not None:
            status = os.statvfs(self.at)
            used = {
                "bytes": (status.f_blocks - status.f_bfree) * status.f_frsize,
                "files": status.f_files - status.f_ffree,
            }
            sizes[left.of] = used[left.of] + left.room * (PAGE_BYTES if left.of == "bytes" else 1)
        _run("mount", "-o", f"remount,{_options(sizes)}", str(self.at))


def _options(sizes: dict[str, int]) -> str:
    return f"size={sizes['bytes']},nr_inodes={sizes['files']}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class Filled:
    """One kind of job, on such a disk."""

    def __init__(self, job: str, work: Path, control: Control) -> None:
        self.disk = Disk(work / "disk")
        self.disk.leave(None)
        control.root = str(self.disk.at / "root").encode()
        self.history = History(KINDS[job], work, control, self.disk.at / "root")

    def cases(self, seed: int) -> list[Left]:
        """Return every room up to one that is enough, spread, of bytes and of files in turn."""
        rng = random.Random(seed)
        of = {kind: _spread(self._enough(kind), rng) for kind in _LARGE}
        return [
            Left(kind, room) for i in range(max(map(len, of.values()))) for kind in of for room in of[kind][i : i + 1]
        ]

    def _enough(self, of: str) -> int:
        """Return a power of two as room: the job succeeds with it, and fails with half of it."""
        enough = 1
        while self._run_attacked(Left(of, enough)).code:
            enough *= 2
        return enough

    def _run_attacked(self, left: Left) -> Output:
        self.disk.leave(None)
        self.history.reset()
        self.disk.leave(left)
        try:
            output, _ = self.history.attacked(None)
        finally:
            self.disk.leave(None)
        return output

    def verdict(self, left: Left) -> str:
        """Run a case; return one of VERDICTS. Raises Failed."""
        output = self._run_attacked(left)
        self.history.check(output)
        if output.code == 0:
            return ROOM
        error = output.report.get("error", {})
        if output.code != 5 or error.get("kind") not in _KINDS or "no space left" not in error["message"]:
            raise Failed(f"a full disk is said as: {shown(output)}")
        return FULL


def _spread(n: int, rng: random.Random) -> list[int]:
    """Return 0 to n; halves first, quarters next, so that any first few lie far apart."""
    sizes: dict[int, None] = dict.fromkeys((n // 2, 0, n))
    parts = 4
    while parts <= 2 * n:
        these = [n * i // parts for i in range(1, parts, 2)]
        rng.shuffle(these)
        sizes |= dict.fromkeys(these)
        parts *= 2
    return list(sizes)
