"""Decoders and the partitioner against Kafka's own classes, and against what real clients and a broker wrote."""

from __future__ import annotations

import base64
import random

import pyarrow as pa
import pytest

from tests.kafka_lab import Broker, create_topics
from tests.kafka_lab.jvm import lab
from udfs.partitioner import murmur2, partition_of

pytestmark = pytest.mark.kafka


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def random_keys() -> list[bytes]:
    """Bytes of every length from 0 to 64, and text of many scripts."""
    drawn = random.Random(5)
    keys = [drawn.randbytes(length) for length in range(65) for _ in range(30)]
    return keys + ["".join(chr(drawn.randrange(0x20, 0xD7FF)) for _ in range(n)).encode() for n in range(40)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 12, 50, 1000, 2**31 - 1])
def test_partitioner_as_the_producers(partitions):
    keys = random_keys()
    theirs = lab().call("partition_for_keys", keys=[base64_of(key) for key in keys], partitions=partitions)
    assert murmur2(pa.array(keys)).to_pylist() == theirs["hashes"]
    assert partition_of(pa.array(keys), partitions).to_pylist() == theirs["partitions"]


def test_partitions_that_a_producer_chose(tmp_path):
    keys = random_keys()
    with Broker(tmp_path) as broker:
        create_topics(broker.bootstrap, {"twelve": 12}, {})
        sent = lab().call(
            "send_keys", bootstrap=broker.bootstrap, topic="twelve", keys=[base64_of(key) for key in keys]
        )
    assert partition_of(pa.array(keys), 12).to_pylist() == sent
    assert set(sent) == set(range(12))
