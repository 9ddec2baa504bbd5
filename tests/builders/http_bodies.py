"""Bodies of HTTP requests, as the servers of tests read them."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO


class KeptAlive(BaseHTTPRequestHandler):
    """Requests of a connection that stays, each answered in one piece; nothing is logged.

    "100 Continue" comes only before a body, which the client then sends first: so never in one piece with the answer.
    A server may send it to other clients too (RFC 9110, 10.1.1). But pyarrow's library for Azure sends every PUT so,
    and then ends the process if the response is an error: it reads the body from the wrong byte on.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_expect_100(self) -> bool:
        """Ask for the body, if there is one."""
        if self.headers.get("Transfer-Encoding") or int(self.headers.get("Content-Length") or 0):
            super().handle_expect_100()
            self.wfile.flush()
        return True

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def read_body(headers: Mapping[str, str], stream: BinaryIO) -> bytes:
    """Return the body of a request, which has a length or comes in chunks."""
    if (headers.get("Transfer-Encoding") or "").lower() != "chunked":
        return stream.read(int(headers.get("Content-Length") or 0))
    out = b""
    while size := int(stream.readline().partition(b";")[0], 16):
        out += stream.read(size)
        stream.readline()
    while stream.readline().strip():  # trailers, and the empty line
        pass
    return out
