"""Resumable uploads to Google's store, as its documentation tells them, before a server that keeps none of it.

fake-gcs-server stores the object as soon as it is asked how far an upload is, mostly an empty one; it appends what it
has got already; and it forgets an upload that is complete, so that nobody whose last answer was lost can ask for it.
Google's store (https://cloud.google.com/storage/docs/performing-resumable-uploads, "Check the status of a resumable
upload" and "Resume an interrupted upload"):

- An empty PUT with `Content-Range: bytes */N`, or `*/*`, asks. 308 with `Range: bytes=0-M` says what is kept, 308
  without `Range` that nothing is. 200 with the object's metadata says that the upload is complete; so does the answer
  to any later PUT, for a week.
- Bytes sent for a second time are ignored.
- Of a request that breaks off whole pieces of 256 KiB are kept, or none.

So the front keeps the bytes, and sends them to the server in one piece once all are there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

Answer = tuple[int, list[tuple[str, str]], bytes]
_RANGE: Final = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
_PIECE: Final = 256 << 10


@dataclass
class Upload:
    """An upload that has begun; `answer`: of the server, once it is complete."""

    data: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def put(upload: Upload, said: str | None, body: bytes, store: Callable[[bytes], Answer], *, is_whole: bool) -> Answer:
    """Answer a PUT. said: its Content-Range; without one the body is the object. is_whole: the body did not break off.
    store: sends the server the object.
    """
    found = _RANGE.fullmatch(said or f"bytes 0-0/{len(body)}")
    if found is None:
        return 400, [], b""
    with upload.lock:
        if upload.answer is not None:
            return upload.answer
        have, start = len(upload.data), int(found[1] or 0)
        new = body[have - start :] if start <= have else b""
        upload.data += new if is_whole else new[: len(new) // _PIECE * _PIECE]
        if found[2] == "*" or len(upload.data) != int(found[2]):
            return 308, [("Range", f"bytes=0-{len(upload.data) - 1}")] if upload.data else [], b""
        upload.answer = store(bytes(upload.data))
        upload.data.clear()
        return upload.answer
