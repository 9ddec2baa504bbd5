"""The Python side of `preload.c`: it compiles the library, and orders a mishap for an operation of a process.

An operation is identified by its kind, its path below one root, and its number among operations of this kind and path.
The path is a pattern, because names of runs are drawn. This number is the same in each run; the number among all
operations is not, because threads take turns.

If the machine has no compiler, the test run fetches one as a package (ziglang, 100 MB, by its hash).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

KINDS: Final = (
    "open", "create", "read", "stat", "list", "readdir", "map", "write", "truncate", "fsync", "rename", "link",
    "delete", "mkdir", "times", "chmod", "lock", "close",
)  # fmt: skip
WAYS: Final = (
    "pass", "error", "answer lost", "torn", "short", "torn, killed", "killed before", "killed after", "lost", "doubled",
    "delayed", "full", "clock", "flipped",
)  # fmt: skip
VARIABLE: Final = "LASTKEY_PRELOAD"
_PATH_BYTES, _PATH_MAX, _ROWS = 400, 4096, 8192
_HERE: Final = Path(__file__).parent
_DRAWN: Final = re.compile(
    "|".join(
        (
            r"(?<=[0-9a-f]{32}-)[0-9a-f]{8}(?=\.parquet)",  # a checksum of drawn names
            r"(?<=[0-9a-f]{32}\.)\d{1,19}(?=/|$)",  # a try of a task
            r"[0-9a-f]{32}",
            r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            r"(?<=-)[0-9a-f]{16}(?=-|$)",  # key files
            r"[0-9a-f]{12}(?=\.reindex)",
            r"(?<=tmp/)(?:#\d+|lastkey-\w{8})",
        )
    )
)


class _Row(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("made", ctypes.c_int32), ("inode", ctypes.c_int64), ("size", ctypes.c_int64),
        ("path", ctypes.c_char * _PATH_BYTES), ("other", ctypes.c_char * _PATH_BYTES),
    ]  # fmt: skip


class _Control(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("pid", "kind", "nth", "times", "way", "error", "noting", "full")),
        *((name, ctypes.c_int32) for name in ("seen", "done", "reached", "go", "rows", "unused")),
        ("clock_ns", ctypes.c_int64), ("clock_off_ns", ctypes.c_int64),
        ("root", ctypes.c_char * _PATH_MAX), ("pattern", ctypes.c_char * _PATH_BYTES),
        ("trash", ctypes.c_char * _PATH_MAX),
        ("log", _Row * _ROWS),
    ]  # fmt: skip


@dataclass(frozen=True)
class Noted:
    """One noted operation. path, other: below the root; inode, size: of creates, renames, links and flushes."""

    kind: str
    path: str
    other: str
    made: bool
    inode: int
    size: int


@dataclass(frozen=True)
class Order:
    """An order for a mishap: to the nth operation of a kind on paths of a pattern, and to `times` operations from there
    (-1: all).

    nth 0: to no operation, but the clock is off from the beginning.
    """

    kind: str
    pattern: str
    nth: int
    way: str
    error: int = 0
    times: int = 1
    clock_ns: int = 0


class Control:
    """The block that all processes of a test share with the library."""

    def __init__(self, file: Path, root: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), ctypes.sizeof(_Control))
        self._block = _Control.from_buffer(self._map)
        self.root = str(root).encode()

    @staticmethod
    def environment(library: Path, file: Path) -> dict[str, str]:
        """Return the environment of a process that loads the library and shares one block with its children."""
        file.write_bytes(bytes(ctypes.sizeof(_Control)))
        return {**os.environ, "LD_PRELOAD": str(library), VARIABLE: str(file)}

    def begin(
        self, order: Order | None = None, *, noting: bool = False, trash: Path | None = None, everyone: bool = False
    ) -> None:
        """Begin to affect this process only; everyone: all processes of this environment, and their children."""
        block = self._block
        ctypes.memset(ctypes.byref(block), 0, _Control.log.offset)
        block.root = self.root
        if noting:
            ctypes.memset(ctypes.byref(block, _Control.log.offset), 0, ctypes.sizeof(block) - _Control.log.offset)
            block.noting = 1
        block.trash = b"" if trash is None else str(trash).encode()
        if order is not None:
            block.kind, block.pattern, block.nth = KINDS.index(order.kind), order.pattern.encode(), order.nth
            block.times, block.way, block.error = order.times, WAYS.index(order.way), order.error
            block.clock_ns = order.clock_ns
            block.clock_off_ns = 0 if order.nth else order.clock_ns
        block.pid = -1 if everyone else os.getpid()

    def end(self) -> None:
        """Stop affecting any process."""
        self._block.pid = 0

    @property
    def done(self) -> int:
        """Number of operations that the mishap happened to."""
        return int(self._block.done)

    @property
    def reached(self) -> bool:
        """True while a delayed operation waits."""
        return bool(self._block.reached)

    def go(self) -> None:
        """Let the delayed operation continue."""
        self._block.go = 1

    def noted(self) -> list[Noted]:
        """Return the operations in order."""
        n = int(self._block.rows)
        assert n <= _ROWS, f"{n} operations: more than there is room for"
        return [
            Noted(KINDS[row.kind - 1], row.path.decode(), row.other.decode(), bool(row.made), row.inode, row.size)
            for row in self._block.log[:n]
            if row.kind
        ]


def path_pattern(path: str) -> str:
    """Return a path without the parts that are drawn in each run."""
    return _DRAWN.sub("*", path)


@contextmanager
def library(folder: Path) -> Iterator[Path]:
    """Compile the library and yield its path."""
    made = folder / "preload.so"
    command = [*_compiler(folder), "-O1", "-fPIC", "-shared", "-o", str(made), str(_HERE / "preload.c"), "-ldl"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{command}: {completed.stderr}"
    yield made


def _compiler(folder: Path) -> list[str]:
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if compiler := shutil.which(name):
            return [compiler]
    packages = folder / "packages"
    install: list[Any] = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary", ":all:", "--require-hashes", "--target", packages, "-r", _HERE / "ziglang.txt",
    ]  # fmt: skip
    completed = subprocess.run(install, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"no C compiler here (cc, gcc, clang), and none could be had: {completed.stderr}"
    return [str(packages / "ziglang" / "zig"), "cc"]
