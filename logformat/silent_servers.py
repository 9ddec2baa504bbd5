"""Servers that fall silent: connections on which nothing moves are closed, so that whoever waits there gets an error.

pyarrow sets no limit to the time of a request to Azure's or Google's stores: a server that keeps its connections open
and says nothing would stop a run for ever. So a thread looks at this process's own connections to a server, and closes
each on which for SILENT_SECONDS no byte came, none was sent and none was acknowledged. The library that waits there
tries again some times and then raises its usual error. A connection that nobody uses is closed too: libraries open a
new one then, as they do when a server closes it.

A slow answer is not cut off, however long it takes: the kernel counts each byte. It does so on Linux alone; elsewhere
nothing is watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import ssl
import stat
import struct
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

SILENT_SECONDS: Final = 15
_EVERY_SECONDS: Final = 3
_ASKED_SECONDS: Final = 5
_MOVED: Final = struct.Struct("=4I")  # in Linux's tcp_info: ms since data sent, acknowledgement sent, data and one got
_MOVED_AT: Final = 44


class _Watched:
    """Servers of this process whose connections are watched."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.servers: dict[tuple[str, int], set[str]] = {}  # (host, port) -> its addresses, as far as they were needed
        threading.Thread(target=self._run, daemon=True, name="silent-servers").start()

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_SECONDS)
            close_silent(self.servers)


_now: list[_Watched] = []  # a fork inherits no thread


def why_no_answer(url: str) -> str:
    """Ask a server for anything. Return why it does not answer; empty if it does, or is behind a proxy."""
    at = urlsplit(url)
    if _proxy(url):
        return ""
    any_certificate = ssl.create_default_context()  # nothing secret is sent; the libraries check it
    any_certificate.check_hostname, any_certificate.verify_mode = False, ssl.CERT_NONE
    if at.scheme == "https":
        asked: HTTPConnection = HTTPSConnection(at.netloc, timeout=_ASKED_SECONDS, context=any_certificate)
    else:
        asked = HTTPConnection(at.netloc, timeout=_ASKED_SECONDS)
    with contextlib.closing(asked):
        try:
            asked.request("HEAD", at.path or "/")
            asked.getresponse()
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__
    return ""


def watch(url: str) -> None:
    """Close this process's connections to a server whenever they are silent, from now on."""
    at = urlsplit(_proxy(url) or url)
    server = (at.hostname or "", at.port or (443 if at.scheme == "https" else 80))
    if not sys.platform.startswith("linux") or (
        _now and _now[-1].process == os.getpid() and server in _now[-1].servers
    ):
        return
    if not _now or _now[-1].process != os.getpid():
        _now[:] = [_Watched()]
    _now[-1].servers = {**_now[-1].servers, server: set()}


def _proxy(url: str) -> str:
    """Return the URL of the HTTP proxy before a server; empty: there is none."""
    at = urlsplit(url)
    by = getproxies().get(at.scheme, "") if not proxy_bypass(at.hostname or "") else ""
    return by if "://" in by or not by else f"http://{by}"


def close_silent(servers: dict[tuple[str, int], set[str]]) -> int:
    """Close the silent connections to these servers, and return their number."""
    closed = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # of others: closed meanwhile, or no connection
            descriptor = os.dup(int(name))  # whoever owns it may close it now
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            with socket.socket(fileno=descriptor) as connection:
                if connection.type == socket.SOCK_STREAM and _leads_to(connection, servers) and _is_silent(connection):
                    _reset(connection)
                    closed += 1
    return closed


def _reset(connection: socket.socket) -> None:
    """Break a connection, as if the server had: Azure's library takes a proper end for its cue to ask again, and does
    so up to 60 times.
    """
    unspecified = bytes(16)  # family AF_UNSPEC: connect(2) dissolves the connection; Python's own cannot say it
    ctypes.CDLL(None).connect(connection.fileno(), unspecified, len(unspecified))


def _leads_to(connection: socket.socket, servers: dict[tuple[str, int], set[str]]) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    address, port = connection.getpeername()[:2]
    for (host, wanted), known in servers.items():
        if port == wanted and address.removeprefix("::ffff:") not in known:  # names of clouds lead to ever new ones
            known.update(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        if port == wanted and address.removeprefix("::ffff:") in known:
            return True
    return False


def _is_silent(connection: socket.socket) -> bool:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MOVED_AT + _MOVED.size)
    sent, _, received, acknowledged = _MOVED.unpack_from(told, _MOVED_AT)
    return bool(min(sent, received, acknowledged) >= SILENT_SECONDS * 1000)
