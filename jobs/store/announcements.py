"""Announcements of running runs, in the store: a second run hears of the first before it works, not at its commit.

  state/running/<run id>.json    host, pid, since when, which partitions; written again every minute, gone with its run

No result depends on this: of two runs that do not hear of each other, only one can commit, and a run whose files a
vacuum took cannot. So an announcement that cannot be written or read is a note, not an error.

  announce -> list the others -> if one of them is at a partition of ours, and has decided to go on or announced before
  us, take ours back; else write that we have decided

A run died if its announcement was not renewed for its time, or if it ran on this machine and its process is gone. Ages
are differences of file times in the same store, and so by one clock: ours is the time of our own announcement, written
just before. The clocks of the hosts decide nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyarrow import fs as pafs

from lastkey.jobs.errors import RunningError
from lastkey.jobs.store.paths import RUNNING
from lastkey.jobs.topics import Key
from lastkey.logformat import names
from lastkey.udfs.storage import Root, make_folders

_EXPIRES_SECONDS: Final = 300
_EXPIRES_AT_MOST: Final = 3600  # even if another version writes more
_RENEW_SECONDS: Final = 60
_POLL_SECONDS: Final = 2.0  # of wait_until_gone
_PATIENCE: Final = 5.0  # seconds for a renewal that is under way when the run ends

_ours: Final[set[str]] = set()  # runs of this process that have not ended


@dataclass(frozen=True)
class Announcement:
    """Announcement that a run writes about itself."""

    run_id: str
    host: str
    pid: int
    machine: str  # with its processes' namespace; "": unknown
    started: str  # start of the process, in the kernel's ticks: a reused pid has another
    since_ms: int  # by the host's clock, for people
    expires_seconds: int
    partitions: dict[str, list[int]]  # by topic
    decided: bool = False
    mtime_ns: int = field(default=0, compare=False)  # by the store's clock, of the file

    def label(self) -> str:
        """Return the run's name in messages: host, pid, and since when."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"a run on {self.host} (pid {self.pid}, since {since} UTC)"

    def common(self, keys: Collection[Key]) -> list[Key]:
        """Return those of these partitions that the run works on."""
        theirs = {(topic, n) for topic, numbers in self.partitions.items() for n in numbers}
        return sorted(theirs.intersection(keys))


@contextlib.contextmanager
def announced(root: Root, run_id: str, keys: Collection[Key], notes: list[str]) -> Iterator[None]:
    """Announce a run inside the `with` block. Raise RunningError, with nothing done, if another run is at a partition
    of it.
    """
    own = _own(run_id, keys)
    _ours.add(run_id)
    seen = _written(root, own, notes)
    ended, renewing = threading.Event(), None
    try:
        others = [a for a in live(root, notes, own, seen) if a.run_id != run_id and a.common(keys)]
        first = [a for a in others if a.decided or (a.mtime_ns, a.run_id) < (seen, run_id)]
        if first:
            raise _refused(root, first[0], keys)
        own = replace(own, decided=True)
        renewing = threading.Thread(target=_renew, args=(root, own, ended, notes), daemon=True, name="announcement")
        renewing.start()
        yield
    finally:
        ended.set()
        if renewing is not None:
            renewing.join(_PATIENCE)
        _ours.discard(run_id)
        _delete(root, _path(run_id))


def at_work(root: Root, keys: Collection[Key], notes: list[str]) -> list[str]:
    """Return a sentence for each run that works on one of these partitions now, for a run that announces nothing."""
    others = live(root, notes, None, time.time_ns())
    return [f"{a.label()} works on {_named(a.common(keys))}" for a in others if a.common(keys)]


def standing(root: Root) -> tuple[list[Announcement], list[Announcement]]:
    """Return the announcements of runs that may still work, and of those that died. Change nothing."""
    alive: list[Announcement] = []
    dead: list[Announcement] = []
    now_ns = time.time_ns()
    for _, found in _listed(root, []):
        (alive if _is_live(found, now_ns) else dead).append(found)
    return alive, dead


def forget_dead(root: Root) -> None:
    """Delete the announcements of runs that died, for a run that has nothing to announce."""
    for _ in live(root, [], _own("", ()), time.time_ns()):
        pass


def wait_until_gone(root: Root, run_id: str, ends_at: float | None = None) -> None:
    """Wait until a run has taken its announcement back, or died; or until this time of the monotonic clock. A run that
    does not renew it for its time has died; the clock is that of this process.
    """
    rest, seen, since = threading.Event(), -1, time.monotonic()
    while (found := _read(root, _path(run_id), [])) is not None and _may_live(found):
        if found.mtime_ns != seen:
            seen, since = found.mtime_ns, time.monotonic()
        elif time.monotonic() - since > found.expires_seconds:
            return
        now = time.monotonic()
        if ends_at is not None and now >= ends_at:
            return
        rest.wait(_POLL_SECONDS if ends_at is None else min(ends_at - now, _POLL_SECONDS))


def _path(run_id: str) -> str:
    return f"{RUNNING}/{run_id}.json"


def _own(run_id: str, keys: Iterable[Key]) -> Announcement:
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(keys):
        partitions.setdefault(topic, []).append(partition)
    now_ms, pid = time.time_ns() // 1_000_000, os.getpid()
    return Announcement(
        run_id, socket.gethostname(), pid, _machine(), _started(pid) or "", now_ms, _EXPIRES_SECONDS, partitions
    )


def _written(root: Root, own: Announcement, notes: list[str]) -> int:
    """Write our announcement, and return its time by the store's clock; by ours if it has none, or writing failed."""
    try:
        _write(root, own)
        info = root.filesystem.get_file_info(root.full(_path(own.run_id)))
    except OSError as error:
        notes.append(f"{root.uri}/{RUNNING}: other runs cannot see this one: {error}")
        return time.time_ns()
    return int(info.mtime_ns or time.time_ns())


def _write(root: Root, own: Announcement) -> None:
    """Replace the file at once, for readers meanwhile: by as many bytes, because a reader in a bucket asks for the size
    first. No flush: a power cut that takes the announcement ends its run too.
    """
    fields = asdict(own)
    del fields["mtime_ns"]
    data, path = (json.dumps(fields) + " " * own.decided).encode(), root.full(_path(own.run_id))  # true, false
    if not root.is_local:
        with root.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)
        return
    make_folders(Path(path).parent)
    part = Path(f"{path}.tmp")
    part.write_bytes(data)
    part.replace(path)


def _renew(root: Root, own: Announcement, ended: threading.Event, notes: list[str]) -> None:
    while True:
        try:
            _write(root, own)
        except OSError as error:
            if not any(note.startswith(f"{root.uri}/{RUNNING}") for note in notes):
                notes.append(f"{root.uri}/{RUNNING}: other runs may no longer see this one: {error}")
        if ended.wait(_RENEW_SECONDS):
            return


def live(root: Root, notes: list[str], own: Announcement | None, now_ns: int) -> Iterator[Announcement]:
    """Yield the announcements of runs that may still work. A run that announces itself deletes those of dead runs.

    now_ns: the store's time.
    """
    for path, found in _listed(root, notes):
        if _is_live(found, now_ns):
            yield found
        elif own is not None and found.run_id != own.run_id:
            _delete(root, path)


def _listed(root: Root, notes: list[str]) -> Iterator[tuple[str, Announcement]]:
    """Yield every announcement that can be read, after its path."""
    try:
        listed = root.filesystem.get_file_info(pafs.FileSelector(root.full(RUNNING), allow_not_found=True))
    except OSError as error:
        notes.append(f"{root.uri}/{RUNNING}: other runs at work cannot be seen: {error}")
        return
    for info in listed:
        path = f"{RUNNING}/{info.base_name}"
        if path.endswith(".json") and (found := _read(root, path, notes)) is not None:
            yield path, found


def _is_live(found: Announcement, now_ns: int) -> bool:
    """Return whether a run may still work. An announcement from far in the future has the time of a clock that was set
    back since.
    """
    return _may_live(found) and abs(now_ns - found.mtime_ns) < found.expires_seconds * 1_000_000_000


def _delete(root: Root, path: str) -> None:
    """Delete an announcement; if that fails, it expires."""
    with contextlib.suppress(OSError):
        root.filesystem.delete_file(root.full(path))


def _read(root: Root, path: str, notes: list[str]) -> Announcement | None:
    """Read an announcement; return None if it is gone, or unreadable, with a note."""
    try:
        info = root.filesystem.get_file_info(root.full(path))
        if info.type != pafs.FileType.File:
            return None
        with root.filesystem.open_input_stream(root.full(path), compression=None) as stream:
            return _parsed(stream.read(), int(info.mtime_ns or 0))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        notes.append(f"{root.uri}/{path}: an announcement of a run that cannot be read: {error}")
        return None


def _parsed(data: bytes, mtime_ns: int) -> Announcement:
    """Parse an announcement, which a newer version may have written with more fields."""
    fields = json.loads(data)
    found = Announcement(
        run_id=str(fields["run_id"]),
        host=str(fields["host"]),
        pid=int(fields["pid"]),
        machine=str(fields["machine"]),
        started=str(fields["started"]),
        since_ms=int(fields["since_ms"]),
        expires_seconds=min(int(fields["expires_seconds"]), _EXPIRES_AT_MOST),
        partitions={str(topic): [int(n) for n in numbers] for topic, numbers in fields["partitions"].items()},
        decided=bool(fields["decided"]),
        mtime_ns=mtime_ns,
    )
    found.label()  # raises if its time is none
    return found


def _may_live(found: Announcement) -> bool:
    """Return whether a run's process is there, as far as this machine can know; this process knows its own runs."""
    here = found.machine != "" and found.machine == _machine()
    if here and found.pid == os.getpid():
        return found.run_id in _ours
    return not here or _started(found.pid) == found.started


def _machine() -> str:
    """Return the boot of this machine's kernel, and its namespace of processes: containers may share a host's name."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _started(pid: int) -> str | None:
    """Return the start of a process of this machine, in the kernel's ticks; None if it is gone, or is a zombie."""
    with contextlib.suppress(OSError):
        status, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if status in (b"Z", b"X") else fields[18].decode()
    return None


def _refused(root: Root, other: Announcement, keys: Collection[Key]) -> RunningError:
    return RunningError(
        path=root.uri,
        expected=f"no other run at {_named(other.common(keys))}",
        found=other.label(),
        run_id=other.run_id,
        reason=f"{-(-other.expires_seconds // 60)} minutes",
    )


def _named(keys: list[Key]) -> str:
    first = names.partition_folder(*keys[0])
    return first if len(keys) == 1 else f"{first} and {len(keys) - 1:,} more"
