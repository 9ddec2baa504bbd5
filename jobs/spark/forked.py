"""Fork of a command, from which Spark's workers are forked in turn: they share what the command has imported anyway.

  command    takes an address, imports, forks; launches the JVM with the address in its environment
  fork       waits until then, loads the kernels while Spark starts, and waits for one call
  Spark      starts `lastkey.jobs.spark.daemon`, as it always does; this calls the fork, hands over its pipes, its
             environment and its path, and waits for the fork's end
Where nobody answers, the daemon does the work itself. The fork ends with the command while it waits, and with the JVM's
end of the pipe afterwards. The address is one of Linux's abstract ones, which leave no file behind; each side checks
that the other one belongs to its user.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

_ADDRESS: Final = "LASTKEY_FORK"
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


_listener: socket.socket | None = None
_address = ""
_pipe = -1  # our end of the pipe to the fork; open as long as this process


def listen() -> None:
    """Take an address for the one call. Do nothing where there are no abstract ones."""
    global _listener, _address
    if sys.platform == "linux":
        _listener, _address = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), f"lastkey-{secrets.token_hex(16)}"
        _listener.bind(f"\0{_address}")
        _listener.listen(1)


def address() -> dict[str, str]:
    """Return the variable that tells a JVM's daemon the address, if there is one."""
    return {_ADDRESS: _address} if _address else {}


def begin() -> None:
    """Tell the fork, if there is one, that Spark starts."""
    if _pipe >= 0:
        with suppress(OSError):  # it has ended: the daemon does the work itself
            os.write(_pipe, b"\n")


def fork(pipes: Iterable[int], prepare: Callable[[], None], work: Callable[[], None]) -> None:
    """Fork, if there is an address. The fork waits until Spark starts, calls `prepare`, waits for the call, and calls
    `work` in place of the caller.

    pipes: what the fork must not keep open.
    """
    global _pipe
    if _listener is None:
        return
    if threading.active_count() > 1:  # a fork copies no threads, but what they have locked
        _listener.close()
        return
    told, _pipe = os.pipe()
    if os.fork():
        os.close(told)
        _listener.close()  # so that whoever calls a fork that has ended hears of it
        return
    try:  # in the fork, from here on
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (_pipe, *pipes):
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDWR)
        _become([nothing] * 3)
        os.close(nothing)
        if os.read(told, 1):
            prepare()
            _take_over(_listener, told)
            work()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)  # the JVM asks for no exit code


def handed_over() -> bool:
    """Hand this process's work to the fork and wait for its end. False: there is none, and nothing was handed over."""
    address = os.environ.get(_ADDRESS)
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.connect(f"\0{address}")
        except OSError:
            return False  # it has ended, or works already: then this is a second daemon
        if not _is_ours(link):
            return False
        told = {"environment": dict(os.environ), "arguments": sys.argv, "path": sys.path}
        try:
            socket.send_fds(link, [b"\n"], [0, 1, 2])
            link.sendall(json.dumps(told).encode())
            link.shutdown(socket.SHUT_WR)
            if not link.recv(1):
                return False
        except ConnectionError:
            return False
        for descriptor in range(3):  # so that only the fork holds the JVM's pipes
            os.close(descriptor)
        with suppress(ConnectionError):
            link.recv(1)
    return True


def _take_over(listener: socket.socket, told: int) -> None:
    """Wait for the call, and become the process that calls."""
    ready: list[int] = []
    while listener.fileno() not in ready:
        ready, _, _ = select.select([listener.fileno(), told], [], [])
        if told in ready and not os.read(told, 1):
            os._exit(0)  # the command has ended
    link, _ = listener.accept()
    listener.close()
    os.close(told)
    if not _is_ours(link):
        os._exit(1)
    _, descriptors, _, _ = socket.recv_fds(link, 1, 3)
    with link.makefile("rb") as stream:
        caller = json.load(stream)
    _become(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(caller["environment"])
    sys.argv, sys.path[:] = caller["arguments"], caller["path"]
    link.sendall(b"\n")
    link.detach()  # open until this process and its workers have ended


def _become(descriptors: list[int]) -> None:
    """Take these for stdin, stdout and stderr."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)


def _is_ours(link: socket.socket) -> bool:
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.getuid()
