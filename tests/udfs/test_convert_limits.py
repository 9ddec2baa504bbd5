"""No conversion writes a log that is too large to be read: batches stay as they are, or the log is named."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import google_crc32c
import pytest
import zstandard

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.udfs.convert_log import ConvertedLog, ConvertSettings, convert_log
from lastkey.udfs.storage import open_root
from tests.builders.formats import converted
from tests.reference import log
from tests.reference.log import decode_log


def well_packed(data: bytes) -> bytes:
    """Return an uncompressed batch as a producer writes it that compresses better than we do."""
    out = bytearray(data[:61] + zstandard.ZstdCompressor(level=19).compress(data[61:]))
    out[22] |= log.ZSTD
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, google_crc32c.value(bytes(out[21:])))
    return bytes(out)


@pytest.fixture(scope="module")
def data() -> bytes:
    draw, out = random.Random(5), b""
    words = [draw.randbytes(draw.randint(2, 9)) for _ in range(200)]
    for base in range(0, 400, 20):
        values = [(1_700_000_000_000, b"k%d" % i, b"".join(draw.choices(words, k=60))) for i in range(20)]
        out += well_packed(log.data_batch(base, values).data)
    return out


def run(data: bytes, magic: int, limit: int, work: Path) -> tuple[ConvertedLog, bytes]:
    (work / "from").write_bytes(data)
    settings = ConvertSettings(magic=magic, chunk_bytes=1 << 14)  # type: ignore[arg-type]
    root = open_root(str(work))
    result = convert_log(Segment(str(work), "from", 0, len(data), 0), root, root, "to", settings, limit)
    return result, (work / "to").read_bytes()


def test_batches_are_kept_in_magic_2_if_the_log_would_exceed_its_limit(data: bytes, tmp_path: Path) -> None:
    free, larger = run(data, 3, 2**31 - 1, tmp_path)
    assert free.changed == free.batches == 20
    assert len(larger) > len(data)
    for limit in (len(data), len(data) * 8 // 7 + 100, len(larger) * 8 // 7 - 100):
        result, written = run(data, 3, limit, tmp_path)
        assert result.size == len(written) <= limit
        assert result.changed < result.batches
        assert decode_log(converted(written, 2)) == decode_log(converted(larger, 2))
        assert run(written, 2, limit, tmp_path)[0].size <= limit  # and there is a way back
    assert result.changed > 0
    assert run(data, 3, len(larger) * 8 // 7 + 100, tmp_path)[1] == larger


def test_log_that_would_exceed_its_limit_in_magic_2_is_reported(tmp_path: Path) -> None:
    plain = b"".join(log.data_batch(i, [(1_700_000_000_000, b"k", b"v")]).data for i in range(300))
    smaller = converted(plain, 3)
    assert len(smaller) < len(plain)
    assert run(smaller, 2, len(plain), tmp_path)[1] == plain
    with pytest.raises(LogFormatError, match=f"at most {len(plain) - 1} bytes in magic 2"):
        run(smaller, 2, len(plain) - 1, tmp_path)
