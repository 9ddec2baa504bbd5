"""Decoders and the partitioner against Kafka's own classes, and against what real clients and a broker wrote."""

from __future__ import annotations

import base64
import random
import uuid

import pyarrow as pa
import pytest

from lastkey.udfs.decode.decoders import decode
from lastkey.udfs.decode.partitioner import default_partitions, murmur2
from tests.kafka_lab import Broker, create_topics
from tests.kafka_lab.jvm import lab

pytestmark = pytest.mark.kafka


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def random_keys() -> list[bytes]:
    """Return bytes of every length from 0 to 64, and text of many scripts."""
    drawn = random.Random(5)
    keys = [drawn.randbytes(length) for length in range(65) for _ in range(30)]
    return keys + ["".join(chr(drawn.randrange(0x20, 0xD7FF)) for _ in range(n)).encode() for n in range(40)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 12, 50, 1000, 2**31 - 1])
def test_partitioner_equals_that_of_the_producer(partitions):
    keys = random_keys()
    theirs = lab().call("partition_for_keys", keys=[encode_base64(key) for key in keys], partitions=partitions)
    assert murmur2(pa.array(keys)).to_pylist() == theirs["hashes"]
    assert default_partitions(pa.array(keys), partitions).to_pylist() == theirs["partitions"]


def test_partitioner_gives_the_partitions_of_a_producer(tmp_path):
    keys = random_keys()
    with Broker(tmp_path) as broker:
        create_topics(broker.bootstrap, {"twelve": 12}, {})
        sent = lab().call(
            "send_keys", bootstrap=broker.bootstrap, topic="twelve", keys=[encode_base64(key) for key in keys]
        )
    assert default_partitions(pa.array(keys), 12).to_pylist() == sent
    assert set(sent) == set(range(12))


def random_values(kind: str) -> list[bytes]:
    drawn = random.Random(kind)
    values = [drawn.randbytes(drawn.randrange(20)) for _ in range(300)]
    width = {"boolean": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}.get(kind, 16)
    values += [drawn.randbytes(width) for _ in range(300)] + [bytes([i]) for i in range(256)]
    if kind == "uuid":  # Kafka's is text; 16 bytes are ours
        values = [value for value in values if len(value) != 16]
        # and Java takes texts that its serializer never writes, with digits left out
        texts = [str(uuid.UUID(bytes=drawn.randbytes(16))) for _ in range(100)]
        values += [text.encode() for text in (*texts, texts[0].upper(), texts[2][:-1] + "g")]
    if kind == "string":  # bytes that begin a character, continue it, or do neither
        pieces = [
            b"a",
            b"\x80",
            b"\xbf",
            b"\xc3",
            b"\xe2\x82",
            b"\xed\xa0",
            b"\xf0\x9f\x98",
            b"\xf4\x90",
            b"\xff",
            "é€😀".encode(),
        ]
        values += [b"".join(drawn.choices(pieces, k=drawn.randrange(9))) for _ in range(5000)]
    return values


@pytest.mark.parametrize("kind", ["string", "boolean", "short", "int", "long", "float", "double", "uuid"])
def test_decoders_equal_the_deserializers_of_kafka(kind):
    values = random_values(kind)
    theirs = lab().call("deserialize", kind=kind, values=list(map(encode_base64, values)))
    read = decode(pa.array(values), kind)
    if kind in ("float", "double"):
        read = read.view(pa.int32() if kind == "float" else pa.int64())
    ours = [None if value is None else str(value) for value in read.to_pylist()]
    if kind == "boolean":
        ours = [value and value.lower() for value in ours]
    assert ours == theirs
