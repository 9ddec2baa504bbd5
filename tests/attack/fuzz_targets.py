"""The targets of the fuzzer: bytes of any origin -> problems and output. The corpus is in `corpus/<target>/`; it grew
from files of undamaged specimens.

The first bytes choose options (a codec, whether to make checksums fit), so that any change of any byte is a case.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zstandard

from lastkey.jobs.command import parse as typed
from lastkey.jobs.command.options import ReindexOptions
from lastkey.jobs.command.read_options import InspectOptions
from lastkey.jobs.errors import JobError
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.messages.coordinator_records import decode_records, decoder_names
from lastkey.logformat.primitives.codec import BatchPlace, Scratch, decompress_into
from lastkey.logformat.writing.encode import BatchOptions, encode_batches
from lastkey.udfs.decode.decoders import DECODERS, find_problems
from tests.attack.forked import Failed
from tests.attack.judge import decoded
from tests.attack.parsers import Parsed, parse
from tests.attack.specimens import crc32c, pack, signed
from tests.builders.damage import BOMB_LIMIT
from tests.builders.logs import Row, arrow_records
from tests.reference import v3
from tests.reference.log import GZIP, LZ4, NONE, SNAPPY, ZSTD, Batch, Record, decompress, encode_batch

CORPUS: Final = Path(__file__).parent / "corpus"
MOST_BYTES: Final = 1 << 11  # maximum size of an input
Target = Callable[[bytes], Parsed]
_LOG: Final = "t-0/00000000000000000000.log"
_FIELD_BYTES: Final = 50


def _log(data: bytes) -> Parsed:
    """Parse a `.log`; make its checksums fit if the first byte is odd."""
    if not data:
        return parse(data, _LOG)
    return parse(_with_checksums(data[1:]) if data[0] & 1 else data[1:], _LOG)


def _with_checksums(data: bytes) -> bytes:
    at = 0
    while at + 17 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if (
            size < 26
            or at + size > len(data)
            or (data[at + 16] == 2 and size < 61)
            or (data[at + 16] == 3 and size < 45)
        ):
            break
        data = signed(data, at, size)
        at += size
    return data


def _body(data: bytes) -> Parsed:
    """Parse records in a valid batch. The first bytes hold codec and flags, their number, the last one's offset."""
    flags, count, last = data[:3].ljust(3, b"\0")
    codec = (flags & 7) % 5
    batch = Batch(
        0, last, codec=NONE, append_time=bool(flags & 8), control=bool(flags & 16), transactional=bool(flags & 32),
        delete_horizon=5 if flags & 64 else None, base_timestamp=5, max_timestamp=9,
        producer_id=7 if flags & 128 else -1,
    )  # fmt: skip
    head = bytearray(encode_batch(batch)[:61])
    content = data[3:]
    content = pack(codec, 2, content) if codec else content
    head[22] |= codec
    struct.pack_into(">i", head, 8, 49 + len(content))
    struct.pack_into(">i", head, 57, count)
    return parse(signed(bytes(head) + content), _LOG)


def _sections(data: bytes) -> Parsed:
    """Parse sections in a valid batch of magic 3. The first bytes hold codec and flags, the number of records, the last
    one's offset, and the bytes of the first section.
    """
    flags, count, last, size = data[:4].ljust(4, b"\0")
    codec = (flags & 7) % 5
    batch = Batch(
        0, last, codec=NONE, append_time=bool(flags & 8), transactional=bool(flags & 32),
        delete_horizon=5 if flags & 64 else None, base_timestamp=5, max_timestamp=9,
        producer_id=7 if flags & 128 else -1,
    )  # fmt: skip
    headers, payloads = (
        pack(codec, 2, part) if codec and part else part for part in (data[4 : 4 + size], data[4 + size :])
    )
    made = bytearray(v3.with_headers(v3.to_v3(encode_batch(batch)), headers) + payloads)
    made[22] = codec | made[22] & (0x7F if flags & 16 else 0xFF)  # without bit 7 records have attributes
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">i", made, 37, count)
    return parse(signed(bytes(made)), _LOG)


def _messages(data: bytes) -> Parsed:
    """Parse messages in a valid wrapper of magic 0 or 1, with checksums that fit. The first bytes hold magic and codec,
    its offset.
    """
    flags, offset = data[:2].ljust(2, b"\0")
    magic, codec = flags & 1, (GZIP, SNAPPY, LZ4, GZIP)[flags >> 1 & 3]
    content, at = bytearray(data[2:]), 0
    while at + 26 <= len(content):
        size = struct.unpack_from(">i", content, at + 8)[0]
        if not 14 <= size <= len(content) - at - 12:
            break
        struct.pack_into(">I", content, at + 12, zlib.crc32(content[at + 16 : at + 12 + size]))
        at += 12 + size
    value = pack(codec, magic, bytes(content))
    rest = bytes([magic, codec | flags & 8]) + (struct.pack(">q", 5) if magic else b"")
    rest += struct.pack(">ii", -1, len(value)) + value
    return parse(signed(struct.pack(">qiI", offset, len(rest) + 4, 0) + rest), _LOG)


def _side_file(name: str) -> Target:
    return lambda data: parse(data, name)


def _snapshot(data: bytes) -> Parsed:
    """Parse a `.snapshot`; make its checksum fit if the first byte is odd."""
    content = data[1:]
    if data and data[0] & 1 and len(content) > 6:
        content = content[:2] + struct.pack(">I", crc32c(content[6:])) + content[6:]
    return parse(content, "t-0/00000000000000000000.snapshot")


def _codec(codec: int) -> Target:
    def target(data: bytes) -> Parsed:
        """Decompress a stream: the output must equal that of the library alone, and survive compression."""
        out = Scratch(1 << 6)
        try:
            n = decompress_into(codec, data, out, 0, BOMB_LIMIT, BatchPlace(_LOG, 0))
        except LogFormatError as error:
            return Parsed([error])
        content = bytes(out.view[:n])
        try:
            expected = _by_the_library(codec, data)
        except Exception:  # the library is stricter than Kafka
            expected = content
        if content != expected:
            raise Failed(f"{CODEC_NAMES[codec]}: {content[:40]!r}, expected {expected[:40]!r}")
        again = Scratch(1 << 6)
        n = decompress_into(codec, pack(codec, 2, content), again, 0, BOMB_LIMIT, BatchPlace(_LOG, 0))
        if bytes(again.view[:n]) != content:
            raise Failed(f"{CODEC_NAMES[codec]}: packed and unpacked it is not the same")
        return Parsed([], content)

    return target


def _by_the_library(codec: int, data: bytes) -> bytes:
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    if codec == SNAPPY and not data.startswith(b"\x82SNAPPY\0"):
        raise ValueError("another framing")
    return decompress(codec, data)


def _topics(data: bytes) -> Parsed:
    """Decode a key and a value of an internal topic: the result is text for any bytes."""
    which, size = data[:2].ljust(2, b"\0")
    name = decoder_names()[which % len(decoder_names())]
    key = None if size == 255 else data[2 : 2 + size]
    value = data[2 + len(key or b"") :]
    columns = decode_records(name, pa.array([key], pa.binary()), pa.array([value], pa.binary()), np.array([7]))
    for column in columns:
        column.validate(full=True)
    return Parsed([], [column.to_pylist() for column in columns])


def _decoders(data: bytes) -> Parsed:
    """Decode a value by each decoder of columns: into a value, or a reason why not."""
    values = pa.array([data, None, b""], pa.binary())
    out = {}
    for name, one in DECODERS.items():
        column, reasons = one.read(values)
        column.validate(full=True)
        if len(column) != 3 or not reasons.equals(find_problems(values, name)):
            raise Failed(f"{name}: {column}, {reasons}")
        if column[0].is_valid and reasons[0].is_valid and name != "string":
            raise Failed(f"{name}: both a value and what is wrong with it: {column[0]}, {reasons[0]}")
        out[name] = f"{column} {reasons}"
    return Parsed([], out)


_TYPED: Final[tuple[tuple[Callable[[str], Any], type[Exception]], ...]] = (  # parser -> error for a mistake
    (typed.parse_time, JobError), (typed.parse_numbers, ValueError), (typed.parse_key, JobError),
    (lambda text: ReindexOptions("archive", partitions=text).partitions, JobError),
    (lambda text: InspectOptions(times=text).times, JobError),
)  # fmt: skip


def _words(data: bytes) -> Parsed:
    """Parse words as a user types them: into a value, or an error."""
    parse_text, mistake = _TYPED[(data or b"\0")[0] % len(_TYPED)]
    try:
        return Parsed([], str(parse_text(data[1:].decode(errors="replace"))))
    except mistake as error:
        return Parsed([], str(error))


def _written(data: bytes) -> Parsed:
    """Write records made of bytes; read them by a slow reader and by ours."""
    codec, flags, *rest = data.ljust(2, b"\0")
    rows, at, offset = [], 0, 0
    while at + 4 <= len(rest) and len(rows) < 40:
        gap, time, key, value = rest[at : at + 4]
        at += 4
        fields = []
        for size in (key, value):
            fields.append(None if size == 255 else bytes(rest[at : at + size % _FIELD_BYTES]))
            at += len(fields[-1] or b"")
        headers = ((chr(gap), fields[0]),) * (time % 3)
        rows.append(Row(fields[0], fields[1], offset + gap, time * (1 << time % 50), headers))
        offset = rows[-1].offset + 1 if rows[-1].offset is not None else 0
    name = CODEC_NAMES[codec % len(CODEC_NAMES)]
    options = BatchOptions(
        codec=name, append_time_ms=17 if flags & 1 else None, delete_horizon_ms=19 if flags & 2 else None,
        producer_id=5 if flags & 4 else -1, base_sequence=2**31 - 3 if flags & 4 else -1,
        max_batch_records=1 + flags // 16, last_offset=None if rows else 3,
    )  # fmt: skip
    log = encode_batches(arrow_records(rows), 0, options).tobytes()
    expected = [
        Record(row.offset or 0, 17 if flags & 1 else row.timestamp or 0, row.key, row.value,
               tuple((k.encode(), v) for k, v in row.headers))
        for row in rows
    ]  # fmt: skip
    if (records := [record for batch in decoded(log) for record in batch.records]) != expected:
        raise Failed(f"written {expected}, a slow reader finds {records}")
    seen = parse(log, _LOG)
    if seen.problems:
        raise Failed(f"written, and found wrong: {seen.problems[0]}")
    return seen


TARGETS: Final[dict[str, Target]] = {
    "log": _log, "body": _body, "sections": _sections, "messages": _messages,
    "index": _side_file("t-0/00000000000000000007.index"),
    "timeindex": _side_file("t-0/00000000000000000007.timeindex"),
    "txnindex": _side_file("t-0/00000000000000000007.txnindex"), "snapshot": _snapshot,
    "checkpoint": _side_file("recovery-point-offset-checkpoint"),
    "epochs": _side_file("t-0/leader-epoch-checkpoint"), "metadata": _side_file("t-0/partition.metadata"),
    "properties": _side_file("meta.properties"),
    "gzip": _codec(GZIP), "snappy": _codec(SNAPPY), "lz4": _codec(LZ4), "zstd": _codec(ZSTD),
    "topics": _topics, "decoders": _decoders, "words": _words, "written": _written,
}  # fmt: skip


def digest(seen: Parsed) -> str:
    """Return a digest of problems and output: the same for compiled kernels and for plain ones."""
    return hashlib.sha256(repr(([str(p) for p in seen.problems], seen.output)).encode()).hexdigest()[:16]


def corpus(target: str) -> dict[str, bytes]:
    """Return the kept inputs of a target by name."""
    return {f"{target}/{path.name}": path.read_bytes() for path in sorted((CORPUS / target).iterdir())}
