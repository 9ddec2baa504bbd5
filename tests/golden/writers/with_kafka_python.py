"""kafka-python."""

from __future__ import annotations

import os
import time
from typing import Any

import kafka
from drawn import Drawn, Topic, print_versions, work, write
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

bootstrap, topics, group = work()
OPEN_MS = 900_000


class KafkaPython:
    def __init__(self, mode: str, topic: Topic) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap, "compression_type": None if topic.codec == "none" else topic.codec,
            "linger_ms": 20, "batch_size": 4000, "enable_idempotence": mode != "plain",
        }  # fmt: skip
        if mode == "transactional":
            settings |= {"transactional_id": f"kafka-python-{topic.name}", "transaction_timeout_ms": OPEN_MS}
        self.producer = KafkaProducer(**settings)
        self.sent: list[Any] = []
        if mode == "transactional":
            self.producer.init_transactions()

    def send(self, topic: str, record: Drawn) -> None:
        future = self.producer.send(
            topic, record.value, record.key, record.headers, 0, record.timestamp_ms,
        )  # fmt: skip
        self.sent.append(future)

    def flush(self) -> None:
        self.producer.flush(30)
        for future in self.sent:
            future.get(30)
        self.sent.clear()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def commit(self) -> None:
        self.flush()
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.flush()
        self.producer.close(30)


def consume(name: str) -> None:
    consumer = KafkaConsumer(
        group["topic"], bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not consumer.poll(1000):
        assert time.monotonic() < deadline, f"{name} reads nothing"
    place = TopicPartition(group["topic"], 0)
    for i in range(group["commits"]):
        consumer.commit({place: OffsetAndMetadata(i, f"round {i}", -1)})
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"of-{name}")
    producer.init_transactions()
    for i in range(group["commits"] // 4):
        producer.begin_transaction()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(i, "", -1)}, consumer.group_metadata())
        producer.send(group["out"], b"%d" % i, b"k", partition=0)
        if i % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(30)
    consumer.close()


for one in topics:
    write(one, KafkaPython)
consume("kafka-python")
print_versions({"kafka-python": kafka.__version__})
os._exit(0)
