"""A proxy in front of an S3 server that injects faults: delayed, refused, truncated or lost responses.

    with s3_proxy(port, every(3, LOSE, on=COMMITS)) as proxy:  # one thread a connection, on the loopback
        os.environ["AWS_ENDPOINT_URL"] = proxy.url

A function of (method, path) decides on the fault of each request; None lets it through. `LOSE` carries the request out
and closes the connection without an answer, so the client cannot know. `CUT` closes it before anything was done, `HALF`
in the middle of the request's body.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote

from tests.builders.http_bodies import KeptAlive, read_body


@dataclass(frozen=True)
class Fault:
    """Fault of one request; its parts happen in this order."""

    delay_seconds: float = 0
    status: int = 0  # answered in place of the server
    code: str = ""  # error code of S3, in the answer's body
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False  # closed before the server sees it
    half: bool = False  # closed when the server has the first half of the body
    late: bool = False  # with `cut`: the server sees it when `deliver` is called
    continued: bool = False  # with `status`: in one piece with "100 Continue", to a request that expects one in vain
    twice: bool = False  # the server does it twice; the second answer counts
    lose: bool = False  # closed after the server has done it
    without: str = ""  # a header, in small letters, that the server does not see


CUT: Final = Fault(cut=True)
HALF: Final = Fault(half=True)
LOSE: Final = Fault(lose=True)
UNCONDITIONAL: Final = Fault(without="if-none-match")
SLOW_DOWN: Final = Fault(status=503, code="SlowDown")
COMMITS: Final = re.compile(r"PUT .*/_delta_log/\d{20}\.json")
ANYTHING: Final = re.compile("")
Decide = Callable[[str, str], Fault | None]
_SIGNED: Final = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/")
_HOP: Final = {"connection", "transfer-encoding", "keep-alive", "expect", "content-length"}


def every(n: int, fault: Fault, on: re.Pattern[str] = ANYTHING) -> Decide:
    """Return a decision for the n-th, 2n-th, ... of the requests `METHOD path` that match, of all clients together."""
    lock, seen = threading.Lock(), 0

    def decide(method: str, path: str) -> Fault | None:
        nonlocal seen
        if on.match(f"{method} {unquote(path)}") is None:  # delta-rs writes Google's paths with %2F
            return None
        with lock:
            seen += 1
            return fault if seen % n == 0 else None

    return decide


def each(*given: Decide) -> Decide:
    """Return a decision that takes the first fault of those given; each of them sees every request."""
    return lambda method, path: next((f for f in [decide(method, path) for decide in given] if f is not None), None)


def at_most(most: int, decide: Decide) -> Decide:
    """Return a decision that lets a request through which has met `most` faults in a row. An upload to Google meets no
    more in all: the questions how far it is, which are answered in between, have the path of its data.
    """
    lock, in_a_row = threading.Lock(), dict[str, int]()

    def limited(method: str, path: str) -> Fault | None:
        fault = decide(method, path)
        with lock:
            met = in_a_row.get(f"{method} {path}", 0)
            fault = None if met == most else fault
            passed = met if "upload_id=" in path else 0
            in_a_row[f"{method} {path}"] = passed if fault is None else met + 1
        return fault

    return limited


@dataclass
class S3Proxy:
    """A running proxy; `decide` may be replaced at any time."""

    url: str
    decide: Decide
    happened: list[str] = field(default_factory=list)  # METHOD path of every request that met a fault
    signed: list[tuple[str, str]] = field(default_factory=list)  # access key and region of every signed request
    late: list[Callable[[], None]] = field(default_factory=list)

    def deliver(self) -> None:
        """Send the server the requests that were held back."""
        while self.late:
            self.late.pop(0)()


@contextmanager
def s3_proxy(upstream: int, decide: Decide = lambda method, path: None) -> Iterator[S3Proxy]:
    """Run a proxy on a free port of the loopback before the server on port `upstream` there, while the block runs."""

    class Handler(KeptAlive):
        timeout = 60
        server_side: http.client.HTTPConnection | None = None

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has gone
                self.close_connection = True

        def finish(self) -> None:
            if self.server_side is not None:
                self.server_side.close()
            super().finish()

        def do(self) -> None:
            body = read_body(self.headers, self.rfile)
            if by := _SIGNED.search(self.headers.get("Authorization", "")):
                proxy.signed.append((by[1], by[2]))
            fault = proxy.decide(self.command, self.path)
            if fault is not None:
                proxy.happened.append(f"{self.command} {self.path}")
                time.sleep(fault.delay_seconds)
                if fault.late:
                    proxy.late.append(partial(ask, self.command, self.path, dict(self.headers.items()), body))
                if fault.half:
                    send_half(self.command, self.path, dict(self.headers.items()), body)
                if fault.cut or fault.half:
                    return self._close()
                if fault.status:
                    return self._refuse(fault, is_empty=not body)
            without = fault.without if fault is not None else ""
            if fault is not None and fault.twice:
                self._asked(body, without)
            status, headers, answer = self._asked(body, without)
            if fault is not None and fault.lose:
                return self._close()
            self.send_response_only(status)
            length = len(answer)
            for name, value in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = int(value)  # the size of a body that is not sent
                elif name.lower() == "location":  # Google's uploads pass through this proxy too
                    self.send_header(name, value.replace(f":{upstream}/", f":{self.server.server_address[1]}/"))
                elif name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer)
            return None

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

        def _asked(self, body: bytes, without: str) -> tuple[int, list[tuple[str, str]], bytes]:
            headers = _to_server(self.headers.items(), body, without)
            if self.server_side is None:
                self.server_side = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
                self.server_side.connect()
                self.server_side.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.server_side.request(self.command, self.path, body, headers)
            answer = self.server_side.getresponse()
            return answer.status, answer.getheaders(), answer.read()

        def _refuse(self, fault: Fault, *, is_empty: bool) -> None:
            if fault.continued and is_empty and "Expect" in self.headers:
                self.send_response_only(100)
                self.end_headers()
            body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>{fault.code}</Message></Error>"
            text = b"" if self.command == "HEAD" or not fault.code else body.encode()
            self.send_response_only(fault.status)
            for name, value in fault.headers:
                self.send_header(name, value)
            if text:
                self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _close(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def ask(method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        server_side = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
        server_side.request(method, path, body, _to_server(headers.items(), body))
        server_side.getresponse().read()
        server_side.close()

    def send_half(method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        server_side = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
        server_side.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in _to_server(headers.items(), body).items():
            server_side.putheader(name, value)
        server_side.endheaders(body[: len(body) // 2])
        server_side.sock.shutdown(socket.SHUT_WR)
        while server_side.sock.recv(1 << 16):  # until the server is done with it
            pass
        server_side.close()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    proxy = S3Proxy(f"http://127.0.0.1:{server.server_address[1]}", decide)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _to_server(given: Iterable[tuple[str, str]], body: bytes, without: str = "") -> dict[str, str]:
    headers = {name: value for name, value in given if name.lower() not in {*_HOP, without}}
    return {**headers, "Content-Length": str(len(body))}
