"""Lines of JSON against Python's json."""

from __future__ import annotations

import base64
import json
import math
import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lastkey.logformat.schemas import HEADERS, TIMESTAMP
from lastkey.udfs.export.write_files import json_lines

TEXTS = ["", "plain", '"', "\\", '\\"\\', "".join(map(chr, range(33))), "\x7f\u2028 ü ☃ 𝄞", "a\nb\tc\rd\be\f", None]
HEADER_LISTS = [None, [], [{"key": "h", "value": b"\x00"}], [{"key": '"', "value": None}, {"key": None, "value": b""}]]
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("headers", HEADERS),
        pa.field("double", pa.float64()),
        pa.field("float", pa.float32()),
    ]
)


def drawn(rng: random.Random) -> dict[str, object]:
    row = {
        "number": rng.choice([0, -1, 2**63 - 1, -(2**63)]),
        "flag": rng.choice([True, False]),
        "text": rng.choice(TEXTS),
        "bytes": rng.choice([b"", b"\x00", b"\xff\xfe", b"123", b"x" * 100]),
        "timestamp": datetime.fromtimestamp(rng.randrange(-(10**9), 4 * 10**9) + rng.randrange(1000) / 1000, UTC),
        "headers": rng.choice(HEADER_LISTS),
        "double": rng.choice([0.0, -1.5, 1e300, 1 / 3]),
        "float": rng.choice([0.0, 0.5, -2.0]),
    }
    return {name: None if rng.random() < 0.1 else value for name, value in row.items()}


def as_json(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
    if isinstance(value, list):
        return [{name: as_json(one) for name, one in each.items()} for each in value]
    return value


@pytest.mark.parametrize("seed", range(5))
def test_json_lines_equal_those_of_python(seed: int) -> None:
    rng = random.Random(seed)
    rows = [drawn(rng) for _ in range(200)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    for part in (batch, batch.slice(50, 100), batch.slice(7, 0)):
        lines = bytes(json_lines(part)).decode().split("\n")
        wanted = [{name: as_json(value) for name, value in row.items()} for row in part.to_pylist()]
        assert lines.pop() == ""
        assert [json.loads(line) for line in lines] == wanted
        assert [list(json.loads(line)) for line in lines] == [SCHEMA.names] * len(wanted)


def test_non_finite_numbers_are_text_and_late_years_have_a_sign() -> None:
    moments = pa.array([253402300800000, 253402300799999, None], pa.timestamp("ms", "UTC")).cast(TIMESTAMP)
    batch = pa.record_batch({"n": [math.nan, math.inf, -math.inf], "t": moments})
    assert bytes(json_lines(batch)).decode().splitlines() == [
        '{"n":"NaN","t":"+10000-01-01T00:00:00.000Z"}',
        '{"n":"Infinity","t":"9999-12-31T23:59:59.999Z"}',
        '{"n":"-Infinity","t":null}',
    ]


def test_escapes_conform_to_rfc_8259() -> None:
    batch = pa.record_batch({"t": ['"\\/\x00\x1f\x7f\u2028é']})
    assert bytes(json_lines(batch)) == '{"t":"\\"\\\\/\\u0000\\u001F\x7f\u2028é"}\n'.encode()
