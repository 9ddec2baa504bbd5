"""aiokafka."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from drawn import Drawn, Topic, print_versions, work, write

bootstrap, topics, group = work()
OPEN_MS = 900_000
loop = asyncio.new_event_loop()
run = loop.run_until_complete


class AioKafka:
    def __init__(self, mode: str, topic: Topic) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap, "compression_type": None if topic.codec == "none" else topic.codec,
            "linger_ms": 20, "max_batch_size": 4000, "enable_idempotence": mode != "plain",
        }  # fmt: skip
        if mode == "transactional":
            settings |= {"transactional_id": f"aiokafka-{topic.name}", "transaction_timeout_ms": OPEN_MS}
        self.producer = run(made(settings))
        self.sent: list[Any] = []

    def send(self, topic: str, record: Drawn) -> None:
        self.sent.append(
            run(self.producer.send(topic, record.value, record.key, 0, record.timestamp_ms, record.headers))
        )

    def flush(self) -> None:
        for future in self.sent:
            run(future)
        self.sent.clear()

    def begin(self) -> None:
        run(self.producer.begin_transaction())

    def commit(self) -> None:
        self.flush()
        run(self.producer.commit_transaction())

    def abort(self) -> None:
        run(self.producer.abort_transaction())

    def close(self) -> None:
        self.flush()
        run(self.producer.stop())


async def made(settings: dict[str, Any]) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    return producer


async def consume(name: str) -> None:
    consumer = AIOKafkaConsumer(
        group["topic"], bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    await consumer.start()
    await asyncio.wait_for(consumer.getone(), 60)
    place = TopicPartition(group["topic"], 0)
    for i in range(group["commits"]):
        await consumer.commit({place: OffsetAndMetadata(i, f"round {i}")})
    producer = await made({"bootstrap_servers": bootstrap, "transactional_id": f"of-{name}"})
    for i in range(group["commits"] // 4):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({place: OffsetAndMetadata(i, "")}, name)
        await producer.send(group["out"], b"%d" % i, b"k", 0)
        if i % 3:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
    await producer.stop()
    await consumer.stop()


for one in topics:
    write(one, AioKafka)
run(consume("aiokafka"))
print_versions({"aiokafka": aiokafka.__version__})
os._exit(0)
