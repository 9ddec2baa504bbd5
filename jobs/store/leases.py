"""Leases of running runs: one file for each run, `state/running/RUN_ID.json`, which the run renews until it ends.

A lease saves work: a second run learns of the first one before it works, not at its commit. Correctness never depends
on a lease. If two runs work on one partition, the compare-and-swap of the commit lets only one of them commit. Errors
of reading and writing leases are therefore notes.

  write own lease -> list the others -> end if another run has a held lease on one of the partitions, or a lease and a
  smaller run id; list again while another run has a lease that is not held yet -> write own lease again, as held

So one of two runs that start together continues, without any clock (the one-bit algorithm of Burns and Lamport): the
run with the greater id ends if it lists the other lease. If it does not, the other run lists its lease.

A lease expires EXPIRY_SECONDS after it was last renewed. Age is a difference of file times in the same store: a run
compares with its own lease. A command that writes no lease compares with its host's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyarrow import fs as pafs

from lastkey.jobs.errors import RunningError
from lastkey.jobs.store.paths import RUNNING
from lastkey.jobs.topics import Key
from lastkey.logformat.names import partition_folder
from lastkey.udfs.storage import Root, make_folders

EXPIRY_SECONDS: Final = 90
_RENEWAL_SECONDS: Final = EXPIRY_SECONDS / 3
_POLL_SECONDS: Final = 2.0  # polling interval of wait_until_released
_CLAIM_POLLS: Final = 100  # for a lease that is written and not held yet; its run may have been killed
_CLAIM_POLL_SECONDS: Final = 0.1
_END_SECONDS: Final = 5.0  # for a renewal in progress when the run ends
_MAX_EXPIRY_SECONDS: Final = 3600  # a damaged lease must not block its partitions for ever


@dataclass(frozen=True)
class Lease:
    """Lease of a run on partitions. Host, process id and start are for people."""

    run_id: str
    host: str
    pid: int
    since_ms: int
    expiry_seconds: int
    partitions: tuple[str, ...]  # names of their folders
    held: int = 0  # 1: the run works. Not a bool: a rewrite must not change the file's size under a reader
    mtime_ns: int = 0  # modification time of the lease file

    def label(self) -> str:
        """Return the run's name in messages: host, process id and start."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"a run on {self.host} (pid {self.pid}, since {since} UTC)"

    def common(self, keys: Iterable[Key]) -> list[Key]:
        """Return the given partitions that the lease covers."""
        return [key for key in sorted(keys) if partition_folder(*key) in self.partitions]

    def is_valid(self, now_ns: int) -> bool:
        """Return whether the lease is not expired. A time far in the future comes from a clock that was set back."""
        return abs(now_ns - self.mtime_ns) < self.expiry_seconds * 1_000_000_000


@contextlib.contextmanager
def hold_lease(root: Root, run_id: str, keys: Collection[Key], notes: list[str]) -> Iterator[list[Lease]]:
    """Hold a lease inside the `with` block; yield the expired leases of other runs, which were deleted.

    Raise RunningError if another run has a valid lease on one of the partitions.
    """
    since_ms, folders = time.time_ns() // 1_000_000, tuple(partition_folder(*key) for key in sorted(keys))
    own = Lease(run_id, socket.gethostname(), os.getpid(), since_ms, EXPIRY_SECONDS, folders)
    held, ended = replace(own, held=1), threading.Event()
    renewal = threading.Thread(target=_renew, args=(root, held, ended, notes), daemon=True, name="lease")
    try:
        now_ns = _write(root, own, notes)
        leases = list_leases(root, notes)
        expired = delete_expired_leases(root, leases, now_ns)
        _claim(root, run_id, keys, leases, now_ns)
        _write(root, held, notes)
        renewal.start()
        yield expired
    finally:
        ended.set()
        if renewal.ident is not None:
            renewal.join(_END_SECONDS)
        _delete(root, run_id)


def describe_conflicting_runs(root: Root, keys: Collection[Key], notes: list[str]) -> list[str]:
    """Return a sentence for each run with a valid lease on one of these partitions, for a run that takes no lease."""
    leases = [lease for lease in list_leases(root, notes) if lease.common(keys) and lease.is_valid(time.time_ns())]
    return [f"{lease.label()} works on {_named(lease.common(keys))}" for lease in leases]


def list_leases(root: Root, notes: list[str]) -> list[Lease]:
    """Return the readable leases, valid and expired. Change no file."""
    try:
        files = root.filesystem.get_file_info(pafs.FileSelector(root.full(RUNNING), allow_not_found=True))
    except OSError as error:
        notes.append(f"{root.uri}/{RUNNING}: cannot list the leases of other runs: {error}")
        return []
    run_ids = [file.base_name.removesuffix(".json") for file in files if file.base_name.endswith(".json")]
    return [lease for run_id in run_ids if (lease := _read(root, run_id, notes)) is not None]


def delete_expired_leases(root: Root, leases: Iterable[Lease], now_ns: int) -> list[Lease]:
    """Delete and return those of the leases that are expired."""
    expired = [lease for lease in leases if not lease.is_valid(now_ns)]
    for lease in expired:
        _delete(root, lease.run_id)
    return expired


def wait_until_released(root: Root, run_id: str, ends_at: float | None = None) -> None:
    """Wait until a run has deleted its lease, or has not renewed it for the expiry by this process's monotonic clock;
    at most until `ends_at` on that clock.
    """
    pause, seen, since = threading.Event(), -1, time.monotonic()
    while (lease := _read(root, run_id, [])) is not None:
        now = time.monotonic()
        if lease.mtime_ns != seen:
            seen, since = lease.mtime_ns, now
        ends = min(since + lease.expiry_seconds, ends_at if ends_at is not None else float("inf"))
        if now >= ends:
            return
        pause.wait(min(ends - now, _POLL_SECONDS))


def _claim(root: Root, run_id: str, keys: Collection[Key], leases: list[Lease], now_ns: int) -> None:
    """Raise RunningError if another run takes precedence. Wait while the leases do not decide that yet."""
    pause = threading.Event()
    for poll in range(_CLAIM_POLLS):
        others = [a for a in leases if a.run_id != run_id and a.is_valid(now_ns) and a.common(keys)]
        if not others:
            return
        winners = [a for a in others if a.held or a.run_id < run_id]
        if winners or poll == _CLAIM_POLLS - 1:
            raise _refused(root, (winners or others)[0], keys)
        pause.wait(_CLAIM_POLL_SECONDS)
        leases = list_leases(root, [])


def _refused(root: Root, other: Lease, keys: Collection[Key]) -> RunningError:
    expected, expiry = f"no other run at {_named(other.common(keys))}", f"{other.expiry_seconds} seconds"
    return RunningError(path=root.uri, expected=expected, found=other.label(), run_id=other.run_id, expiry=expiry)


def _write(root: Root, lease: Lease, notes: list[str]) -> int:
    """Write a lease; readers see the old file or the new one. Return the file's time. An error is a note.

    Without flush: a power cut that takes the lease ends its run too.
    """
    data, path = json.dumps(asdict(lease)).encode(), root.full(_path(lease.run_id))
    try:
        if root.is_local:
            make_folders(Path(path).parent)
            part = Path(f"{path}.tmp")
            part.write_bytes(data)
            part.replace(path)
        else:
            with root.filesystem.open_output_stream(path, compression=None) as stream:
                stream.write(data)
        return int(root.filesystem.get_file_info(path).mtime_ns or time.time_ns())
    except OSError as error:
        note = f"{root.uri}/{RUNNING}: cannot write the lease of this run, so that others may not see it: {error}"
        if note not in notes:
            notes.append(note)
        return time.time_ns()


def _renew(root: Root, lease: Lease, ended: threading.Event, notes: list[str]) -> None:
    while not ended.wait(_RENEWAL_SECONDS):
        _write(root, lease, notes)


def _delete(root: Root, run_id: str) -> None:
    with contextlib.suppress(OSError):  # then it expires
        root.filesystem.delete_file(root.full(_path(run_id)))


def _read(root: Root, run_id: str, notes: list[str]) -> Lease | None:
    """Read a lease; return None if missing, or, with a note, if it is unreadable. Its name is its run id."""
    path = root.full(_path(run_id))
    try:
        info = root.filesystem.get_file_info(path)
        if info.type != pafs.FileType.File:
            return None
        with root.filesystem.open_input_stream(path, compression=None) as stream:
            fields = json.loads(stream.read()) | {"run_id": run_id, "mtime_ns": int(info.mtime_ns or 0)}
        fields["partitions"] = tuple(map(str, fields["partitions"]))
        fields["expiry_seconds"] = min(int(fields["expiry_seconds"]), _MAX_EXPIRY_SECONDS)
        lease = Lease(**fields)
        lease.label()  # raises if the time is out of range
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        notes.append(f"{root.uri}/{_path(run_id)}: cannot read the lease of a run: {error}")
        return None
    return lease


def _path(run_id: str) -> str:
    return f"{RUNNING}/{run_id}.json"


def _named(keys: list[Key]) -> str:
    first = partition_folder(*keys[0])
    return first if len(keys) == 1 else f"{first} and {len(keys) - 1:,} more"
