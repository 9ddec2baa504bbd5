"""Announcements of runs on other hosts, as files in a store."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from lastkey.jobs.store import announcements
from lastkey.jobs.store.paths import RUNNING

KEYS = {("a", 0), ("a", 1), ("b", 0)}
A = "a" * 32


def put(root, other, age_seconds=0.0):
    """Write the announcement of another run, of this age by the store's clock."""
    folder = Path(root.full(RUNNING))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{other.run_id}.json"
    path.write_text(json.dumps({name: value for name, value in asdict(other).items() if name != "mtime_ns"}))
    if age_seconds:
        at = path.stat().st_mtime - age_seconds
        os.utime(path, (at, at))
    return path


def elsewhere(run_id=A, **changes):
    """Return the announcement of a run on another host."""
    own = announcements._own(run_id, KEYS)
    return replace(own, host="far", machine="another", pid=7, decided=True, **changes)
