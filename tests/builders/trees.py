"""Folders as they are: to be compared before and after."""

from __future__ import annotations

import hashlib
from pathlib import Path


def files_in(folder: Path, pattern: str = "*.log") -> list[Path]:
    """Files that match, in order of their names. There must be some: a loop over none would hold nothing to account."""
    found = sorted(folder.glob(pattern))
    assert found, f"{folder}: no {pattern}"
    return found


def files_of(root: Path) -> dict[str, bytes]:
    """Every file below: its bytes."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Every file and folder below: SHA-256 and mtime."""
    out = {}
    for path in sorted(root.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        out[str(path.relative_to(root))] = (digest, path.stat().st_mtime_ns)
    return out
