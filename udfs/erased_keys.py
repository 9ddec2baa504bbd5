"""File of an erasure's keys, below a store.

It holds 8 bytes that identify the key of the digests, then the 16 bytes of each digest, rising, without repeats. Its
name is the beginning of its SHA-256, so a name that fits shows that the file is whole. A digest is a key's 128-bit
SipHash-2-4 under a secret that follows from a key which the user holds: without that key, guesses of keys cannot be
tested against the file.
"""

from __future__ import annotations

import hashlib
from typing import Final

from lastkey.logformat.errors import LogFormatError, unreadable
from lastkey.udfs.storage import Root

KEY_ID_BYTES: Final = 8
_ID_DIGITS: Final = 32  # digits in a file's name
_LOST: Final = "bring the file back from a copy: without it the erased keys are unknown"


def content_id(data: bytes) -> str:
    """Return the name of the file with this content."""
    return hashlib.sha256(data).hexdigest()[:_ID_DIGITS]


def read_erased(store: Root, path: str) -> bytes:
    """Return the content of an erasure's file. Raise LogFormatError if it is lost or damaged."""
    try:
        with store.filesystem.open_input_stream(store.full(path), compression=None) as stream:
            data = bytes(stream.read())
    except FileNotFoundError as error:
        raise LogFormatError("side_file", path, 0, "the keys of an erasure", "no such file", hint=_LOST) from error
    except OSError as error:
        raise unreadable(path, error) from error
    name, found = path.rpartition("/")[2], content_id(data)
    if found != name:
        raise LogFormatError("side_file", path, 0, f"bytes whose SHA-256 begins {name}", found, hint=_LOST)
    return data
