"""Contents of folders, to be compared before and after."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def files_in(folder: Path, pattern: str = "*.log") -> list[Path]:
    """Return the files that match, by name. There must be some: a loop over none would check nothing."""
    paths = sorted(folder.glob(pattern))
    assert paths, f"{folder}: no {pattern}"
    return paths


def read_tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file below, by path."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Return SHA-256 and mtime of every file and folder below, by path."""
    out = {}
    for path in sorted(root.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        out[str(path.relative_to(root))] = (digest, path.stat(follow_symlinks=path.exists()).st_mtime_ns)
    return out


def tree_without_runs(store: Path) -> dict[str, tuple[str, int]]:
    """Return the tree of a store without `cleaner_runs`, which gets a row for each run."""
    return {path: content for path, content in tree(store).items() if "cleaner_runs" not in path and path != "state"}


def make_older(folder: Path, hours: float) -> None:
    """Set back the time of every file below, as if so much time had passed."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            make_older(Path(entry.path), hours)
        else:
            at = entry.stat().st_mtime_ns - int(hours * 3_600_000_000_000)
            os.utime(entry.path, ns=(at, at))
