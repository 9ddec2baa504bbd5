"""Kafka's lock on a log directory, held while files in it are replaced.

A running broker holds a POSIX record lock on `<log directory>/.lock`. If that file exists, we take the same lock, so
that no broker starts in the middle; we never create it. POSIX releases a process's lock as soon as the process closes
*any* descriptor of the file: no code of the process may open `.lock` while the lock is held. So an archive is listed
before it is locked, and afterwards only its partitions' folders again, to which a broker may have written meanwhile. An
flock on the folder itself, which needs no file, keeps two of our own runs apart.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lastkey.jobs.errors import LOG_DIRECTORY_IN_USE
from lastkey.logformat import names


@contextmanager
def locked(directories: Iterable[Path]) -> Iterator[None]:
    """Hold every one of these log directories, or raise LOG_DIRECTORY_IN_USE with none held."""
    with ExitStack() as stack:
        for directory in sorted(directories):
            _lock_folder(directory, stack)
            _lock_as_kafka(directory / names.LOCK, stack)
        yield


def _lock_folder(directory: Path, stack: ExitStack) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LOG_DIRECTORY_IN_USE(path=directory, found="another run that replaces files in it") from None
    except OSError:
        return  # this file system has no flock; Kafka's own lock still counts


def _lock_as_kafka(path: Path, stack: ExitStack) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LOG_DIRECTORY_IN_USE(path=path, found=f"a lock that cannot be taken: {error.strerror}") from error
    stack.callback(os.close, descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise LOG_DIRECTORY_IN_USE(path=path, found="a running broker that holds it") from None


def is_locked(path: str) -> bool:
    """Return whether another process holds Kafka's lock (a POSIX record lock). The question never takes the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, request.ljust(32, b"\0"))
        return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
