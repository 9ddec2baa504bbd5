"""confluent-kafka, that is librdkafka."""

from __future__ import annotations

import os
import time
from typing import Any

import confluent_kafka
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from drawn import Drawn, Topic, print_versions, work, write

bootstrap, topics, group = work()
OPEN_MS = 900_000  # a transaction that is not ended outlives the broker


class Confluent:
    def __init__(self, mode: str, topic: Topic) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "compression.type": topic.codec, "linger.ms": 20, "batch.num.messages": 50,
            "batch.size": 8000,
        }  # fmt: skip
        if mode != "plain":
            settings["enable.idempotence"] = True
        if mode == "transactional":
            settings |= {"transactional.id": f"confluent-{topic.name}", "transaction.timeout.ms": OPEN_MS}
        self.producer = Producer(settings)
        if mode == "transactional":
            self.producer.init_transactions(30)

    def send(self, topic: str, record: Drawn) -> None:
        self.producer.produce(
            topic, record.value, record.key, partition=0, headers=record.headers, timestamp=record.timestamp_ms or 0,
            on_delivery=delivered,
        )  # fmt: skip
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0

    def begin(self) -> None:
        self.producer.begin_transaction()

    def commit(self) -> None:
        self.producer.commit_transaction(30)

    def abort(self) -> None:
        self.producer.abort_transaction(30)

    def close(self) -> None:
        self.flush()


def delivered(error: object, message: object) -> None:
    if error is not None:
        raise RuntimeError(error)


def consume(name: str, protocol: str) -> None:
    """Run a group that commits again and again, then commits offsets in transactions, then leaves."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": name, "group.protocol": protocol, "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([group["topic"]])
    deadline = time.monotonic() + 60
    while consumer.poll(1) is None:
        assert time.monotonic() < deadline, f"{name} reads nothing"
    for i in range(group["commits"]):
        place = TopicPartition(group["topic"], 0, i, metadata=f"round {i}")
        consumer.commit(offsets=[place], asynchronous=False)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{name}"})
    producer.init_transactions(30)
    for i in range(group["commits"] // 4):
        producer.begin_transaction()
        place = TopicPartition(group["topic"], 0, i)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
        producer.produce(group["out"], b"%d" % i, b"k", partition=0)
        if i % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    consumer.close()


def share(name: str) -> None:
    """Run a share group that takes, gives back and refuses, in many small steps."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    settings = {
        "bootstrap.servers": bootstrap, "group.id": name, "share.acknowledgement.mode": "explicit",
        "max.poll.records": 5,
    }  # fmt: skip
    consumer = ShareConsumer(settings)
    consumer.subscribe([group["topic"]])
    deadline, n = time.monotonic() + 60, 0
    while n < 3 * group["commits"]:
        assert time.monotonic() < deadline, f"{name} reads nothing: {n}"
        for message in consumer.poll(1):
            n += 1
            kind = (AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.ACCEPT)[min(n % 7, 2)]
            consumer.acknowledge(message, kind)
            consumer.commit_sync(10)
    consumer.close()


for one in topics:
    write(one, Confluent)
for name, protocol in (("classic", "classic"), ("consumer", "consumer"), ("deleted", "classic"), ("gone", "consumer")):
    consume(f"confluent-{name}", protocol)
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.delete_topics([group["delete"]])[group["delete"]].result()  # groups lose their offsets of it
share("confluent-share")
for future in admin.delete_consumer_groups(["confluent-deleted", "confluent-gone"]).values():
    future.result()
print_versions({"confluent-kafka": confluent_kafka.__version__, "librdkafka": confluent_kafka.libversion()[0]})
os._exit(0)  # an open transaction stays open: its producer gets no chance to end it
