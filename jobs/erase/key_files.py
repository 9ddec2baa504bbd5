"""Keys as users give them: a file with one a line, or options."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from lastkey.jobs.command.option_groups import KeyFormat
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.udfs.key_search.key_set import KeySet

_MOST_BYTES: Final = 4 << 30  # limit for a file: hex takes two bytes a byte
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def key_set(path: str | None, given: Sequence[str], form: KeyFormat) -> KeySet:
    """Return the keys of a file and of options. Raises UsageError, never with a key in it."""
    parse = _PARSERS[form]
    keys = [*_option_keys(given, parse, form), *(() if path is None else _file_keys(path, parse, form))]
    if not keys:
        raise UsageError(message="expected keys to look for, found none: give --keys FILE or --key KEY")
    try:
        return KeySet.of(keys)
    except ValueError as error:
        raise UsageError(message=f"{path or '--key'}: {error}") from None


def _option_keys(given: Iterable[str], parse: Callable[[bytes], bytes], form: KeyFormat) -> Iterator[bytes]:
    for number, key in enumerate(given, 1):
        try:
            yield parse(key.encode())
        except ValueError:
            raise UsageError(message=f"--key, the {number}th one: expected {form}, found other characters") from None


def _file_keys(path: str, parse: Callable[[bytes], bytes], form: KeyFormat) -> Iterator[bytes]:
    """Yield the key of each line. An empty line is an error: it may be a slip, and the empty key is a key."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MissingPathError(path=path, expected="a file of keys", found=error.strerror or str(error)) from None
    if len(data) > _MOST_BYTES:
        raise UsageError(message=f"{path}: expected at most {_MOST_BYTES:,} bytes of keys, found more")
    if data.startswith(_MARKS):  # else the first key is one that nothing holds, and would be called absent
        raise UsageError(
            message=f"{path}, line 1: expected a key, found a byte order mark: save the file as UTF-8 without one, or"
            " give its keys as hex if it is part of the first"
        )
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), 1):
        text = line.removesuffix(b"\r")
        if not text:
            raise UsageError(
                message=f"{path}, line {number}: expected a key, found an empty line; --key '' names the empty key"
            )
        try:
            yield parse(text)
        except ValueError:
            raise UsageError(message=f"{path}, line {number}: expected {form}, found other characters") from None


def _hex(text: bytes) -> bytes:
    return binascii.unhexlify(text)


def _base64(text: bytes) -> bytes:
    return base64.b64decode(text, validate=True)


_PARSERS: Final[dict[KeyFormat, Callable[[bytes], bytes]]] = {"text": bytes, "hex": _hex, "base64": _base64}
