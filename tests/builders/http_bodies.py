"""Bodies of HTTP requests, as the servers of tests read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO


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
