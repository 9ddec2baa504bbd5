"""Reader of Kafka's generated messages: from bytes straight to the JSON text of Kafka's JsonConverters.

Kafka describes the records of its own topics in JSON files. It generates classes from these files that read, write and
convert the records (its generator module: MessageDataGenerator, JsonConverterGenerator). One reader here serves all of
them, driven by the table kafka_messages.txt. It is made once for a message and version, as one closure a field, and
returns text without objects in between.

    text, end = reader("OffsetCommitValue", 3)(data, 2)

The text is that of Jackson's JsonNode.toString: no blanks, bytes as base64, UUIDs as Kafka's base64, nulls written. As
in Kafka's classes, a version above the highest known one is read as the highest; a caller that accepts none checks
before (table.known_versions). Invalid bytes raise MessageError with Kafka's own words. Measured on one core: 180,000
distinct committed offsets a second.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from lastkey.logformat.messages.table import Field, messages
from lastkey.logformat.primitives.text_kernels import replace_malformed

Read = Callable[[bytes, int], tuple[str, int]]

_MAX_STRING: Final = 0x7FFF
_NULL: Final = "null"
_NUMBERS: Final = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}
_CONTROL: Final = re.compile(r"(\\\\)|\\u00([0-9a-f]{2})")
_LEAST_PLAIN, _LEAST_SCIENTIFIC = 1e-3, 1e7  # between these Java writes a double without an exponent


class MessageError(ValueError):
    """Bytes that are no such message; the text is that of Kafka's exception ("null" if it has none)."""


@lru_cache(maxsize=1024)
def reader(name: str, version: int, embedded: tuple[tuple[str, str], ...] = ()) -> Read:
    """Return the reader of a message of this version: (data, at) -> (JSON text, end). The reader raises MessageError.

    embedded: (field, message) for bytes fields that hold a message after its version. The text shows the message
    instead of the bytes if it can be read.
    """
    message = messages()[name]
    known = min(max(version, message.versions[0]), message.versions[-1])
    flexible = message.flexible is not None and known in message.flexible
    read = _struct(message.fields, _Read(known, flexible, version != known, dict(embedded)))

    def checked(data: bytes, at: int) -> tuple[str, int]:
        try:
            return read(data, at)
        except (struct.error, IndexError):  # BufferUnderflowException has no text
            raise MessageError(_NULL) from None

    return checked


def java_double(value: float) -> str:
    """Return a number as Java's Double.toString writes it, in JSON; NaN and infinities are strings."""
    if not math.isfinite(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    if value == 0 or _LEAST_PLAIN <= abs(value) < _LEAST_SCIENTIFIC:
        text = f"{value!r}"
        return text if "e" not in text else f"{value:f}"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    power = len(whole) - 1 + int(exponent or 0)
    if whole == "0":  # 0.00012: the digits begin after the point
        power -= len(whole + part) - len(digits)
    digits = digits.rstrip("0") or "0"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


# -- readers: (data, at) -> (text, end)


@dataclass(frozen=True)
class _Read:
    """Settings that are the same for all fields of a message."""

    version: int
    flexible: bool
    unknown: bool  # an unknown version, which Kafka's classes notice only in nested structures
    embedded: dict[str, str]


def _inner(of: Field, how: _Read) -> Read:
    """Return the reader of a struct within a message."""
    if not how.unknown:
        return _struct(of.fields, how)

    def refused(data: bytes, at: int) -> tuple[str, int]:
        raise MessageError(f"Can't read this version of {of.name}")

    return refused


def _struct(fields: tuple[Field, ...], how: _Read) -> Read:
    version = how.version
    present = [of for of in fields if version in of.versions]
    heads = ['"' + of.name + '":' for of in present]
    plain = [(i, heads[i], _field(of, how)) for i, of in enumerate(present) if of.tag is None]
    tagged = {of.tag: (i, heads[i], of.default, _field(of, how)) for i, of in enumerate(present) if of.tag is not None}
    later = {of.tag for of in fields if of.tag is not None} - set(tagged)
    readers = [(head, read) for _, head, read in plain]
    places = [i for i, _, _ in plain]

    def read_plain(data: bytes, at: int) -> tuple[str, int]:
        parts = []
        for head, read in readers:
            text, at = read(data, at)
            parts.append(head + text)
        return "{" + ",".join(parts) + "}", at

    def read_flexible(data: bytes, at: int) -> tuple[str, int]:
        parts = []
        for head, read in readers:
            text, at = read(data, at)
            parts.append(head + text)
        n, at = varint(data, at)
        if n <= 0:
            return "{" + ",".join(parts) + "}", at
        text_by_place = dict(zip(places, parts, strict=True))
        for _ in range(n):
            tag, at = varint(data, at)
            size, at = varint(data, at)
            if tag in tagged:
                place, head, default, read = tagged[tag]
                text, at = read(data, at)
                text_by_place.pop(place, None)
                if text != default:
                    text_by_place[place] = head + text
            elif tag in later:
                raise MessageError(f"Tag {tag} is not valid for version {version}")
            else:
                at = checked_end(data, at, size)
        return "{" + ",".join(text_by_place[place] for place in sorted(text_by_place)) + "}", at

    return read_flexible if how.flexible else read_plain


def _field(of: Field, how: _Read) -> Read:
    null = of.null is not None and how.version in of.null
    flexible = how.flexible
    if not of.array:
        if of.kind == "struct":
            return _nullable_struct(_inner(of, how), tagged=of.tag is not None) if null else _inner(of, how)
        if of.name in how.embedded:
            return _message_in(_sized(of.name, "bytes", null, flexible, _raw), how.embedded[of.name])
        return _item(of.name, of.kind, null, flexible)
    item = _inner(of, how) if of.kind == "struct" else _item(f"{of.name} element", of.kind, False, flexible)
    length = compact_length if flexible else int32_at

    def read_array(data: bytes, at: int) -> tuple[str, int]:
        n, at = length(data, at)
        if n < 0:
            if null:
                return _NULL, at
            raise MessageError(f"non-nullable field {of.name} was serialized as null")
        if n > len(data) - at:
            left = len(data) - at
            raise MessageError(
                f"Tried to allocate a collection of size {n}, but there are only {left} bytes remaining."
            )
        parts = []
        for _ in range(n):
            text, at = item(data, at)
            parts.append(text)
        return "[" + ",".join(parts) + "]", at

    return read_array


def _item(name: str, kind: str, null: bool, flexible: bool) -> Read:
    if kind == "string":
        return _sized(name, kind, null, flexible, _text)
    if kind == "bytes":
        return _sized(name, kind, null, flexible, _base64)
    if kind == "uuid":
        return _uuid
    if kind == "boolean":
        return lambda data, at: ("true" if data[at] else "false", at + 1)
    if kind == "float64":
        unpack_double = struct.Struct(">d").unpack_from
        return lambda data, at: (java_double(unpack_double(data, at)[0]), at + 8)
    number = struct.Struct(_NUMBERS[kind])
    unpack, size = number.unpack_from, number.size
    return lambda data, at: (str(unpack(data, at)[0]), at + size)


def _sized(name: str, kind: str, null: bool, flexible: bool, show: Callable[[bytes], str]) -> Read:
    """Return the reader of a string or bytes after its length."""
    is_string = kind == "string"
    length = compact_length if flexible else int16_at if is_string else int32_at

    def read(data: bytes, at: int) -> tuple[str, int]:
        n, at = length(data, at)
        if n < 0:
            if null:
                return _NULL, at
            raise MessageError(f"non-nullable field {name} was serialized as null")
        if is_string and n > _MAX_STRING:
            raise MessageError(f"string field {name} had invalid length {n}")
        end = checked_end(data, at, n)
        return show(data[at:end]), end

    return read


def _nullable_struct(read: Read, *, tagged: bool) -> Read:
    def read_nullable(data: bytes, at: int) -> tuple[str, int]:
        if tagged:
            marker, at = varint(data, at)
            marker -= 1
        else:
            marker, at = struct.unpack_from(">b", data, at)[0], at + 1
        return read(data, at) if marker >= 0 else (_NULL, at)

    return read_nullable


def _message_in(read: Read, name: str) -> Read:
    """Return the reader of bytes that hold a message after its version; bytes that do not are shown as they are."""

    def read_message(data: bytes, at: int) -> tuple[str, int]:
        raw, end = read(data, at)
        inner = raw.encode("latin-1")
        try:
            version = struct.unpack_from(">h", inner)[0]
            return reader(name, version)(inner, 2)[0], end
        except (MessageError, struct.error):
            return _base64(inner), end

    return read_message


def _text(data: bytes) -> str:
    try:
        text = json.encoder.encode_basestring(data.decode())
    except UnicodeDecodeError:
        text = json.encoder.encode_basestring(_as_java_decodes(data))
    if "\\u00" in text:  # Jackson writes control characters with upper case digits
        text = _CONTROL.sub(lambda m: m[0] if m[1] else "\\u00" + m[2].upper(), text)
    return str(text)


def _as_java_decodes(data: bytes) -> str:
    """Decode bytes that are not UTF-8."""
    out, ends = np.empty(3 * len(data), np.uint8), np.empty(2, np.int32)
    size = replace_malformed(np.frombuffer(data, np.uint8), np.array([0, len(data)]), out, ends)
    return out[:size].tobytes().decode()


def _raw(data: bytes) -> str:
    return data.decode("latin-1")


def _base64(data: bytes) -> str:
    return '"' + base64.b64encode(data).decode() + '"'


def _uuid(data: bytes, at: int) -> tuple[str, int]:
    if at + 16 > len(data):
        raise MessageError(_NULL)
    return '"' + base64.urlsafe_b64encode(data[at : at + 16]).decode()[:22] + '"', at + 16


# -- numbers and lengths, as ByteUtils reads them


def int16_at(data: bytes, at: int) -> tuple[int, int]:
    """Read an int16; return it and the position of the next field."""
    return struct.unpack_from(">h", data, at)[0], at + 2


def int32_at(data: bytes, at: int) -> tuple[int, int]:
    """Read an int32; return it and the position of the next field."""
    return struct.unpack_from(">i", data, at)[0], at + 4


def compact_length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of the flexible versions, which is stored as one more; return -1 for null."""
    n, at = varint(data, at)
    return _signed(n - 1), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint as ByteUtils.readUnsignedVarint does; its result is a Java int."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    result = byte & 0x7F
    for shift in (7, 14, 21):
        byte = data[at]
        at += 1
        if byte < 0x80:
            return result | byte << shift, at
        result |= (byte & 0x7F) << shift
    byte = data[at]
    result = _signed(result | (byte - 256 if byte >= 0x80 else byte) << 28)
    if byte >= 0x80:
        converted = f"converted value: {result & 2**32 - 1:x}"
        raise MessageError(f"Varint is too long, the most significant bit in the 5th byte is set, {converted}")
    return result, at + 1


def _signed(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def checked_end(data: bytes, at: int, size: int) -> int:
    """Return the end of `size` bytes from `at` on. Raise MessageError if they are not all there."""
    left = len(data) - at
    if size > left:
        raise MessageError(f"Error reading byte array of {size} byte(s): only {left} byte(s) available")
    if size < 0:  # NegativeArraySizeException
        raise MessageError(str(size))
    return at + size
