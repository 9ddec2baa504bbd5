"""Announcements of other runs, as files in a store."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lastkey.jobs.store.announcements import announced, standing
from lastkey.jobs.store.paths import RUNNING
from lastkey.udfs.storage import open_root, write_file

KEYS = {("a", 0), ("a", 1), ("b", 0)}
A = "a" * 32


def put(root, other, age_seconds=0.0):
    """Write the announcement of another run, of this age by the store's clock."""
    name = f"{RUNNING}/{other.run_id}.json"
    path = Path(root.full(name))
    if root.is_local:
        path.parent.mkdir(parents=True, exist_ok=True)
    fields = {name: value for name, value in asdict(other).items() if name != "mtime_ns"}
    write_file(root, name, json.dumps(fields).encode())
    if age_seconds:
        at = path.stat().st_mtime - age_seconds
        os.utime(path, (at, at))
    return path


def own(run_id=A, keys=KEYS):
    """Return what a run of this process announces."""
    with TemporaryDirectory() as folder:
        root = open_root(folder)
        with announced(root, run_id, keys, []):
            [found], _ = standing(root)
            return replace(found, decided=True)


def elsewhere(run_id=A, **changes):
    """Return the announcement of a run on another host."""
    return replace(own(run_id), host="far", machine="another", pid=7, **changes)
