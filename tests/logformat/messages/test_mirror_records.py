"""Records of MirrorMaker 2's topics, whole and damaged. tests/kafka/test_mirrors.py reads those of a real one."""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest

from lastkey.logformat.messages.coordinator_records import decode_records

CHECKPOINT_KEY = struct.pack(">h7sh8si", 7, b"readers", 8, b"A.orders", 3)
CHECKPOINT = struct.pack(">hqqh4s", 0, 42, 17, 4, "né ".encode())
SYNC_KEY = struct.pack(">h6si", 6, b"orders", 1)
SYNC = struct.pack(">qq", 2**40, 5)
HEARTBEAT_KEY = struct.pack(">h1sh2s", 1, b"A", 2, b"B2")
HEARTBEAT = struct.pack(">hq", 0, 1_700_000_000_000)


def shown(decoder: str, *records: tuple[bytes | None, bytes | None]) -> list[tuple[str | None, str | None]]:
    keys, values = zip(*records, strict=True)
    texts = decode_records(decoder, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), range(len(records)))
    return list(zip(*(column.to_pylist() for column in texts), strict=True))


@pytest.mark.parametrize(
    ("decoder", "key", "value", "expected"),
    [
        (
            "mirror-checkpoints", CHECKPOINT_KEY, CHECKPOINT,
            ({"group": "readers", "topic": "A.orders", "partition": 3},
             {"version": 0, "upstreamOffset": 42, "offset": 17, "metadata": "né "}),
        ),
        ("mirror-offset-syncs", SYNC_KEY, SYNC,
         ({"topic": "orders", "partition": 1}, {"upstreamOffset": 2**40, "offset": 5})),
        ("mirror-heartbeats", HEARTBEAT_KEY, HEARTBEAT,
         ({"sourceClusterAlias": "A", "targetClusterAlias": "B2"}, {"version": 0, "timestamp": 1_700_000_000_000})),
    ],
)  # fmt: skip
def test_each_kind_of_mirror_record_is_decoded(
    decoder: str, key: bytes, value: bytes, expected: tuple[dict[str, object], ...]
) -> None:
    [texts, tombstone] = shown(decoder, (key, value), (key, None))
    assert tuple(map(json.loads, filter(None, texts))) == expected
    assert tombstone == (texts[0], "<DELETE>")


@pytest.mark.parametrize(
    ("decoder", "key", "value"),
    [
        ("mirror-checkpoints", CHECKPOINT_KEY, CHECKPOINT),
        ("mirror-offset-syncs", SYNC_KEY, SYNC),
        ("mirror-heartbeats", HEARTBEAT_KEY, HEARTBEAT),
    ],
)
def test_every_truncation_and_extra_byte_is_an_error(decoder: str, key: bytes, value: bytes) -> None:
    rows = [(key[:n], value) for n in range(len(key))] + [(key, value[:n]) for n in range(len(value))]
    rows += [(key + b"\0", value + b"\0")]
    for i, (of_key, of_value) in enumerate(shown(decoder, *rows)):
        text = of_key if i < len(key) else of_value
        assert text is not None and text.startswith(f"Error at offset {i}, skipping. "), rows[i]


def test_unknown_versions_are_reported() -> None:
    newer = b"\0\1" + CHECKPOINT[2:]
    odd = struct.pack(">h2si", 2, b"\xff\xfe", 1)
    negative = struct.pack(">h", -1) + SYNC_KEY[2:]
    assert "version 1, of which the fields are not known" in str(shown("mirror-checkpoints", (CHECKPOINT_KEY, newer)))
    assert "topic that is not UTF-8" in str(shown("mirror-offset-syncs", (odd, SYNC)))
    assert "topic of -1 bytes" in str(shown("mirror-offset-syncs", (negative, SYNC)))
    assert shown("mirror-offset-syncs", (None, SYNC))[0][0] is None
