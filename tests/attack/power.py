"""The possible contents of a disk after a power cut: a model of flushed data, from the noted operations.

A file keeps the bytes that it had at its last flush, a folder its names. Unflushed data may exist or be lost:
`lose_power` removes all of it, or only the bytes of files whose names are there (as a journal does that orders names,
not data). Everything from the beginning stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.attack.preload import Noted

ALL, BYTES = "all that was not flushed", "bytes that were not flushed"
LOSSES: Final = (ALL, BYTES)


@dataclass
class Names:
    """Names of files and folders. A path identifies a folder, because none is ever moved."""

    of: dict[str, dict[str, int]] = field(default_factory=dict)  # folder -> name -> inode, 0: a folder


def before(root: Path) -> tuple[Names, dict[int, int]]:
    """Return the names below a root, and sizes by inode."""
    names, sizes = Names(), {}
    for folder, folders, files in os.walk(root):
        below = os.path.relpath(folder, root).removeprefix(".").removeprefix("/")
        existing = names.of[below] = dict.fromkeys(folders, 0)
        for file in files:
            status = (Path(folder) / file).stat()
            existing[file] = status.st_ino
            sizes[status.st_ino] = status.st_size
    return names, sizes


def lose_power(
    root: Path, at_first: tuple[Names, dict[int, int]], noted: Sequence[Noted], trash: Path, loss: str
) -> None:
    """Reduce the files below a root to those that a power cut leaves.

    trash: every file that lost a name, by inode.
    """
    names, sizes = at_first
    durable = {folder: dict(existing) for folder, existing in names.of.items()}
    now = {folder: dict(existing) for folder, existing in names.of.items()}
    for operation in noted:
        folder, _, name = operation.path.rpartition("/")
        if operation.kind == "create":
            now.setdefault(folder, {})[name] = operation.inode
            if operation.made or operation.size == 0:
                sizes[operation.inode] = 0
        elif operation.kind == "mkdir":
            now.setdefault(folder, {})[name] = 0
            now.setdefault(operation.path, {})
        elif operation.kind == "delete":
            now[folder].pop(name, None)
        elif operation.kind in ("rename", "link"):
            to, _, new = operation.other.rpartition("/")
            now.setdefault(to, {})[new] = operation.inode
            if operation.kind == "rename":
                now[folder].pop(name, None)
        elif operation.kind == "fsync":
            if operation.path in now:
                durable[operation.path] = dict(now[operation.path])
            else:
                sizes[operation.inode] = operation.size
    left = now if loss == BYTES else durable
    held = {path.stat().st_ino: path for path in (*root.rglob("*"), *trash.iterdir()) if path.is_file()}
    made = root.with_name(f"{root.name}.left")
    _lay(left, "", made, held, sizes)
    for folder in (path for path in made.rglob("*") if path.is_dir()):
        if (was := root / folder.relative_to(made)).exists():
            shutil.copystat(was, folder)
    shutil.rmtree(root)
    made.rename(root)


def _lay(names: dict[str, dict[str, int]], folder: str, to: Path, held: dict[int, Path], sizes: dict[int, int]) -> None:
    to.mkdir()
    for name, inode in names.get(folder, {}).items():
        if inode == 0:
            _lay(names, f"{folder}/{name}".lstrip("/"), to / name, held, sizes)
            continue
        shutil.copy2(held[inode], to / name)
        status = (to / name).stat()
        if status.st_size > sizes[inode]:
            os.truncate(to / name, sizes[inode])
            os.utime(to / name, ns=(status.st_atime_ns, status.st_mtime_ns))
