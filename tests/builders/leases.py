"""Leases of other runs, as files in a store."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

from lastkey.jobs.store.leases import EXPIRY_SECONDS, Lease
from lastkey.jobs.store.paths import RUNNING
from lastkey.udfs.storage import Root, open_root, write_file

KEYS = {("a", 0), ("a", 1), ("b", 0)}
A = "a" * 32
LEASE = Lease(A, "far", 7, 1_700_000_000_000, EXPIRY_SECONDS, ("a-0", "a-1", "b-0"), held=1)


def put_lease(root: Root, age_seconds: float = 0.0, **fields: object) -> Path:
    """Write the lease of another run, of this age by the store's clock; return the file's path."""
    lease = replace(LEASE, since_ms=time.time_ns() // 1_000_000)
    lease = replace(lease, **fields)  # type: ignore[arg-type]
    name = f"{RUNNING}/{lease.run_id}.json"
    path = Path(root.full(name))
    if root.is_local:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(root, name, json.dumps(asdict(lease)).encode())
    if age_seconds:
        _age(path, age_seconds)
    return path


def expire_leases(store: Path) -> None:
    """Age all leases of a store beyond their expiry, as time does after a kill."""
    for path in Path(open_root(str(store)).full(RUNNING)).glob("*.json"):
        _age(path, EXPIRY_SECONDS + 1)


def _age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))
