"""The output of every client: records and borders of batches and transactions, drawn from a seed.

Runs in the clients' environment; imports nothing of the project. A writer's script reads its work from standard input:
{bootstrap, topics: [Topic...], group: {topic, name, commits}}.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

WORDS = [
    f"{a}{b}" for a in ("red", "oak", "sea", "sun", "ice", "fog") for b in ("wood", "fall", "stone", "mark", "way")
]
OLD_MS = 1_700_000_000_000  # CreateTime in the past, which increases in steps
Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Topic:
    """A topic and the way it is written: by a producer for each of `modes`, one after the other."""

    name: str
    codec: str
    modes: list[str]  # plain, idempotent, transactional; open: a transaction that never ends
    seed: int
    records: int = 200  # number of records in each mode
    keys: int = 50
    null_keys: bool = False
    old: bool = True  # timestamps of long ago, else the client's own


@dataclass(frozen=True)
class Drawn:
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int | None


class Writer(Protocol):
    """A client's producer."""

    def send(self, topic: str, record: Drawn) -> None: ...
    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def records(topic: Topic, rng: random.Random, first: int) -> Iterator[Drawn]:
    for i in range(topic.records):
        key = f"{topic.name}-{rng.randrange(topic.keys)}".encode()
        if topic.null_keys and rng.random() < 0.25:
            key = None
        drawn = rng.random()
        value: bytes | None = " ".join(rng.choices(WORDS, k=rng.randrange(1, 12))).encode()
        if drawn < 0.1 and key is not None:  # kafka-python sends no record without both
            value = None
        elif drawn < 0.13:
            value = b""
        elif i == topic.records // 2:
            value = " ".join(rng.choices(WORDS, k=900)).encode()  # 6 KB: half a segment
        headers: list[Header] = []
        if rng.random() < 0.3:
            headers = [
                (rng.choice(("trace", "ä", "")), rng.choice((b"", b"\0\xff", b"x" * 9)))
                for _ in range(rng.randrange(1, 4))
            ]
        jitter = rng.randrange(-3000, 3000)
        yield Drawn(key, value, headers, OLD_MS + 100 * (first + i) + jitter if topic.old else None)


def write(topic: Topic, make: Callable[[str, Topic], Writer]) -> None:
    """Send all records of a topic."""
    rng = random.Random(topic.seed)
    for number, mode in enumerate(topic.modes):
        writer = make("transactional" if mode == "open" else mode, topic)
        transactional = mode in ("transactional", "open")
        if transactional:
            writer.begin()
        left = rng.randrange(1, 40)
        for record in records(topic, rng, number * topic.records):
            writer.send(topic.name, record)
            left -= 1
            if left == 0:  # batches, or transactions, of many sizes
                left = rng.choice((1, 2, 5, 20, 40, 90))
                if not transactional or rng.random() < 0.3:
                    writer.flush()
                    continue
                if rng.random() < 0.35:
                    writer.flush()
                    writer.abort()
                else:
                    writer.commit()
                writer.begin()
        writer.flush()
        if mode == "transactional":
            writer.commit()
        if mode != "open":
            writer.close()


def work() -> tuple[str, list[Topic], dict[str, Any]]:
    """Return (bootstrap, topics, group) from standard input."""
    request = json.load(sys.stdin)
    return request["bootstrap"], [Topic(**topic) for topic in request["topics"]], request["group"]


def print_versions(versions: dict[str, str]) -> None:
    """Print the versions of the writers."""
    print(json.dumps(versions), flush=True)
