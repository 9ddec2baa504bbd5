"""Every damage of a specimen, by kind; each is a case with a name, from which it can be made again.

flip        one bit                                     flip+crc        ... and the batch's checksum right again
cut         a prefix is left                            field           a field at an extreme
field+crc   ... and the checksum right again            body            of a record, inside a batch, checksum right
body+crc    as body, and the record's length right too  bodyflip+crc    a bit inside a compressed body
bomb        a body of 16 MiB, or 2^31 - 1 records       number          a number in a text file
"""

from __future__ import annotations

import random
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Final

import numpy as np

from lastkey.logformat.layout import (
    BATCH_HEADER,
    BATCH_HEADER_V3,
    MESSAGE_V0,
    MESSAGE_V1,
    OFFSET_INDEX_ENTRY,
    PREFIX,
    SNAPSHOT_CRC_START,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)  # fmt: skip
from tests.attack.specimens import Specimen, batch_spans, crc32c, pack, signed, unpack
from tests.reference import v3, varint

BOMB_BYTES: Final = 16 << 20
TEXTS: Final = ("checkpoint", "metadata", "properties")
NUMBERS: Final = (
    b"0", b"1", b"-1", b"2147483647", b"2147483648", b"-2147483648", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775808", b"1" * 40, b"", b"x", b" ", b"\xff", b"0x10", b"1.5", b"\xd9\xa3", b"+1", b"01",
    b"<script>alert(1)</script>",
)  # fmt: skip
OVERLONG: Final = (
    b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f",
    b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 11 + b"\x00",
)  # fmt: skip
OF_VARINT: Final = (0, 1, -1, 2, 63, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))


@dataclass(frozen=True, slots=True)
class Case:
    """One damage of one file; `at` holds its place and value, as its kind defines them."""

    specimen: str
    path: str
    kind: str
    at: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.specimen}/{self.path}/{self.kind}/{'.'.join(map(str, self.at))}"


def case_named(name: str) -> Case:
    specimen, *path, kind, at = name.split("/")
    return Case(specimen, "/".join(path), kind, tuple(map(int, at.split("."))))


@dataclass(frozen=True)
class Stream:
    """Cases of one kind in one file: their number, and the n-th case."""

    specimen: str
    path: str
    kind: str
    n: int
    nth: Callable[[int], tuple[int, ...]]

    def case(self, i: int) -> Case:
        return Case(self.specimen, self.path, self.kind, self.nth(i))


def streams(specimen: Specimen, *, logs: bool = True, sides: bool = True) -> Iterator[Stream]:
    """Yield the streams of all damages of a specimen."""
    for path, data in specimen.files.items():
        is_log = path.endswith(".log")
        if not (logs if is_log else sides) or not data:
            continue

        def stream(kind: str, n: int, nth: Callable[[int], tuple[int, ...]], path: str = path) -> Stream:
            return Stream(specimen.name, path, kind, n, nth)

        def listed(kind: str, cases: list[tuple[int, ...]], path: str = path) -> Stream:
            return Stream(specimen.name, path, kind, len(cases), cases.__getitem__)

        yield stream("flip", 8 * len(data), lambda i: (i >> 3, i & 7))
        yield stream("cut", len(data), lambda i: (i,))
        if is_log:
            covered = [(p, bit) for at, size in batch_spans(data) for p in _covered(data, at, size) for bit in range(8)]
            yield listed("flip+crc", covered)
            fields = [(b, f, v) for b in range(len(list(batch_spans(data)))) for f, v in _field_cases(_header(data, b))]
            yield listed("field", fields)
            yield listed("field+crc", fields)
            bodies = [(b, *case) for b in range(len(list(batch_spans(data)))) for case in _body_cases(data, b)]
            yield listed("body", bodies)
            yield listed("body+crc", bodies)
            yield listed(
                "bodyflip+crc",
                [
                    (b, p, bit)
                    for b in range(len(list(batch_spans(data))))
                    if _codec(data, b)
                    for p in range(len(_body(data, b)))
                    for bit in range(8)
                ],
            )
            yield listed("bomb", list(_bomb_cases(data)))
        elif path.endswith(TEXTS):
            n = len(_numbers(data))
            yield listed("number", [(i, v) for i in range(n) for v in range(len(NUMBERS))])
        else:
            fields = list(_field_cases(_entries(path, data)))
            yield listed("field", fields)
            if path.endswith(".snapshot"):
                yield listed("field+crc", fields)
                yield stream("flip+crc", 8 * (len(data) - SNAPSHOT_CRC_START), lambda i: (6 + (i >> 3), i & 7))


def shuffled(of: list[Stream], rng: random.Random) -> Iterator[Case]:
    """Yield the cases of some streams in random order, each once. The first of millions of cases are cheap: the
    Fisher-Yates shuffle runs lazily, and stores only moved numbers.
    """
    ends = [*accumulate(s.n for s in of)]
    moved: dict[int, int] = {}
    for i in range(ends[-1]):
        j = rng.randrange(i, ends[-1])
        at = moved.pop(j, j)
        if j != i:
            moved[j] = moved.pop(i, i)
        stream_index = bisect_right(ends, at)
        yield of[stream_index].case(at - ends[stream_index] + of[stream_index].n)


def damaged(specimen: Specimen, case: Case) -> dict[str, bytes | None]:
    """Return the files that a case changes; None: the file is gone."""
    data = specimen.files[case.path]
    kind, at = case.kind, case.at
    if kind in ("flip", "flip+crc"):
        out = bytearray(data)
        out[at[0]] ^= 1 << at[1]
        return {case.path: _resigned(case.path, data, bytes(out), at[0]) if "+" in kind else bytes(out)}
    if kind == "cut":
        return {case.path: data[: at[0]]}
    if kind == "number":
        start, end = _numbers(data)[at[0]]
        return {case.path: data[:start] + NUMBERS[at[1]] + data[end:]}
    if kind in ("field", "field+crc"):
        of_log = case.path.endswith(".log")
        fields = _header(data, at[0]) if of_log else _entries(case.path, data)
        number, value = at[1:] if of_log else at
        start, dtype = fields[number]
        changed = data[:start] + _extremes(data, start, dtype)[value] + data[start + dtype.itemsize :]
        return {case.path: _resigned(case.path, data, changed, start) if "+" in kind else changed}
    return dict.fromkeys(_indexes(specimen, case.path)) | {case.path: _other_body(data, kind, at)}


def is_noticed(specimen: Specimen, case: Case) -> bool:
    """Return whether a checksum reveals the damage: it covers the damaged bytes, and was not made right again."""
    if not case.path.endswith(".log") or case.kind not in ("flip", "field"):
        return False
    data = specimen.files[case.path]
    if case.kind == "field":
        position, dtype = _header(data, case.at[0])[case.at[1]]
        if _extremes(data, position, dtype)[case.at[2]] == data[position : position + dtype.itemsize]:
            return False
    else:
        position = case.at[0]
    at, size = next((at, size) for at, size in batch_spans(data) if at <= position < at + size)
    of_crc = range(at + 17, at + 21) if data[at + 16] >= 2 else range(at + 12, at + 16)
    return position in of_crc or position in _covered(data, at, size)


def _indexes(specimen: Specimen, path: str) -> list[str]:
    """Return the indexes of a log whose positions moved."""
    names = [f"{path.removesuffix('.log')}.{kind}" for kind in ("index", "timeindex")]
    return [name for name in names if name in specimen.files]


def _covered(data: bytes, at: int, size: int) -> range:
    """Return the positions that the batch's checksum covers."""
    return range(at + (21 if data[at + 16] >= 2 else 16), at + size)


def _resigned(path: str, before: bytes, data: bytes, position: int) -> bytes:
    if path.endswith(".snapshot"):
        return data[:2] + struct.pack(">I", crc32c(data[SNAPSHOT_CRC_START:])) + data[SNAPSHOT_CRC_START:]
    at, size = next((at, size) for at, size in batch_spans(before) if at <= position < at + size)
    end = 12 + struct.unpack_from(">i", data, at + 8)[0]
    if 61 <= end <= len(data) - at:  # a changed length: sign the bytes that it covers now
        size = end
    return signed(data, at, size)


Fields = list[tuple[int, np.dtype[Any]]]


def _fields(dtype: np.dtype[Any], at: int) -> Fields:
    assert dtype.fields is not None and dtype.names is not None
    return [(at + int(dtype.fields[name][1]), dtype.fields[name][0]) for name in dtype.names]


@cache
def _header(data: bytes, batch: int) -> Fields:
    """Return position and type of each field of a batch's header, or of a message's."""
    at, _ = list(batch_spans(data))[batch]
    magic = data[at + 16]
    if magic == 2:
        return _fields(BATCH_HEADER, at)
    if magic == 3:
        return _fields(BATCH_HEADER_V3, at)
    of_message = MESSAGE_V1 if magic else MESSAGE_V0
    key = at + 12 + of_message.itemsize
    value = key + 4 + max(0, struct.unpack_from(">i", data, key)[0])
    size = np.dtype(">i4")
    return [*_fields(PREFIX, at), *_fields(of_message, at + 12), (key, size), (value, size)]


def _entries(path: str, data: bytes) -> Fields:
    """Return position and type of each field in all entries of a binary side file."""
    kind = path.rpartition(".")[2]
    head = _fields(SNAPSHOT_HEADER, 0) if kind == "snapshot" else []
    dtype = {
        "index": OFFSET_INDEX_ENTRY, "timeindex": TIME_INDEX_ENTRY, "txnindex": TXN_INDEX_ENTRY,
        "snapshot": SNAPSHOT_ENTRY,
    }[kind]  # fmt: skip
    first = SNAPSHOT_HEADER.itemsize if head else 0
    return head + [f for at in range(first, len(data), dtype.itemsize) for f in _fields(dtype, at)]


def _extremes(data: bytes, start: int, dtype: np.dtype[Any]) -> list[bytes]:
    limits = np.iinfo(dtype)
    now = int(np.frombuffer(data, dtype, 1, start)[0])
    low, high = int(limits.min), int(limits.max)
    values = (0, 1, high if low == 0 else -1, low, high, now + 1, now - 1, low + 1, high - 1)
    return [np.array([min(max(v, low), high)], dtype).tobytes() for v in values]


def _field_cases(fields: Fields) -> Iterator[tuple[int, int]]:
    return ((number, value) for number in range(len(fields)) for value in range(9))


def _numbers(data: bytes) -> list[tuple[int, int]]:
    """Return the places of the numbers in a text file: (start, end)."""
    return [m.span() for m in re.finditer(rb"-?\d+", data)]


# -- bodies


def _codec(data: bytes, batch: int) -> int:
    at, _ = list(batch_spans(data))[batch]
    return data[at + 22] & 7 if data[at + 16] >= 2 else data[at + 17] & 7


def _body_start(data: bytes, at: int) -> int:
    return v3.header_end(data[at:]) + at if data[at + 16] == 3 else at + {2: 61, 1: 34, 0: 26}[data[at + 16]]


@cache
def _body(data: bytes, batch: int) -> bytes:
    """Return a batch's records, or a wrapper's messages, decompressed; nothing for a plain message. Of magic 3 the
    headers of its records.
    """
    at, size = list(batch_spans(data))[batch]
    codec, magic = _codec(data, batch), data[at + 16]
    if magic < 2 and not codec:
        return b""
    if magic == 3:
        return v3.headers_in(data[at : at + size])
    body = data[_body_start(data, at) : at + size]
    return unpack(codec, magic, body) if codec and body else body


@cache
def _spans(data: bytes, batch: int) -> list[tuple[int, int, int, int]]:
    """Return for each field of each record: start, end, position of the record's length, value. Fields are varints, and
    the byte of attributes; in messages their big-endian fields.
    """
    at, _ = list(batch_spans(data))[batch]
    body, magic, out = _body(data, batch), data[at + 16], []
    pos = 0
    if magic == 3:
        return v3.numbers_in(data[at:])
    if magic < 2:
        while pos < len(body):
            size = 12 + struct.unpack_from(">i", body, pos + 8)[0]
            fields = _header(body[pos : pos + size], 0)
            out += [(pos + p, pos + p + dtype.itemsize, pos, -1) for p, dtype in fields]
            pos += size
        return out
    while pos < len(body):
        start = pos
        length, pos = varint.read(body, pos, len(body), bits=32)
        out.append((start, pos, start, length))
        out.append((pos, pos + 1, start, body[pos]))
        end, pos = pos + length, pos + 1
        for _ in range(2):  # timestamp, offset
            value, after = varint.read(body, pos, end, bits=64)
            out.append((pos, after, start, value))
            pos = after
        left = 2
        while left:  # key, value; then the number of headers, and two fields of each
            value, after = varint.read(body, pos, end, bits=32)
            out.append((pos, after, start, value))
            pos, left = after + max(value, 0), left - 1
        n, after = varint.read(body, pos, end, bits=32)
        out.append((pos, after, start, n))
        pos = after
        for _ in range(2 * n):
            value, after = varint.read(body, pos, end, bits=32)
            out.append((pos, after, start, value))
            pos = after + max(value, 0)
        assert pos == end
    return out


def _varints(value: int) -> list[bytes]:
    return [*(varint.write(v) for v in (*OF_VARINT, value + 1, value - 1)), *OVERLONG]


def _body_cases(data: bytes, batch: int) -> Iterator[tuple[int, int]]:
    at, _ = list(batch_spans(data))[batch]
    n = len(_varints(0)) if data[at + 16] >= 2 else 9
    return ((span, value) for span in range(len(_spans(data, batch))) for value in range(n))


def _other_body(data: bytes, kind: str, at: tuple[int, ...]) -> bytes:
    """Return the log with another body in a batch, whose length and checksum fit."""
    start, size = list(batch_spans(data))[at[0]]
    codec, magic = _codec(data, at[0]), data[start + 16]
    if kind == "bomb":
        return _bomb(data, at[0], at[1])
    body = bytearray(_body(data, at[0]))
    if kind == "bodyflip+crc":
        body[at[1]] ^= 1 << at[2]
    else:
        body = _changed(data, body, at, keep=kind == "body", magic=magic)
    packed = pack(codec, magic, bytes(body)) if codec else bytes(body)
    return _with_body(data, start, size, packed)


def _changed(data: bytes, body: bytearray, at: tuple[int, ...], *, keep: bool, magic: int) -> bytearray:
    begin, end, record, value = _spans(data, at[0])[at[1]]
    if magic < 2:
        size = np.dtype(f">i{end - begin}") if end - begin > 1 else np.dtype("i1")
        body[begin:end] = _extremes(bytes(body), begin, size)[at[2]]
        if not keep:
            stop = record + 12 + struct.unpack_from(">i", _body(data, at[0]), record + 8)[0]
            struct.pack_into(">I", body, record + 12, zlib.crc32(bytes(body[record + 16 : stop])))
        return body
    new = _varints(value)[at[2]]
    if begin == record or keep or magic == 3:
        return body[:begin] + new + body[end:]
    length, first = varint.read(bytes(body), record, len(body), bits=32)
    fitting = varint.write(length + len(new) - (end - begin))
    return body[:record] + fitting + body[first:begin] + new + body[end:]


def _with_body(data: bytes, start: int, size: int, body: bytes) -> bytes:
    if data[start + 16] == 3:
        return data[:start] + signed(v3.with_headers(data[start : start + size], body)) + data[start + size :]
    begin = _body_start(data, start)
    head = bytearray(data[start:begin])
    if head[16] < 2:
        struct.pack_into(">i", head, len(head) - 4, len(body))
    struct.pack_into(">i", head, 8, len(head) + len(body) - 12)
    return data[:start] + signed(bytes(head) + body) + data[start + size :]


@cache
def _zeros(codec: int, magic: int) -> bytes:
    return pack(codec, magic, bytes(BOMB_BYTES))


def _bomb_cases(data: bytes) -> Iterator[tuple[int, int]]:
    for batch, (at, _) in enumerate(batch_spans(data)):
        if _codec(data, batch):
            yield batch, 0
        if data[at + 16] >= 2:
            yield batch, 1
        if data[at + 16] == 2:
            yield batch, 2


def _bomb(data: bytes, batch: int, what: int) -> bytes:
    """Return the log with a bomb. what: 0: a body that expands to 16 MiB; 1: the highest possible count of records; 2:
    both, and offsets for them.
    """
    start, size = list(batch_spans(data))[batch]
    codec, magic = _codec(data, batch), data[start + 16]
    if codec and what != 1:
        data = _with_body(data, start, size, _zeros(codec, magic))
        size = 12 + struct.unpack_from(">i", data, start + 8)[0]
    out = bytearray(data)
    if magic >= 2 and what:
        struct.pack_into(">i", out, start + (57 if magic == 2 else 37), 2**31 - 1)
        if what == 2:
            struct.pack_into(">i", out, start + 23, 2**31 - 1)
    return signed(bytes(out), start, size)
