"""Policies from a live cluster of three brokers that have settings of their own, and one of which goes."""

from __future__ import annotations

import contextlib
import io
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, USAGE
from tests.kafka_lab import Broker
from tests.kafka_lab.oracle import alter_configs, create_topics, describe_configs
from tests.kafka_lab.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
STATIC = {1: 11, 2: 22, 3: 33}  # log.cleaner.delete.retention.ms
OWN = {"cleanup.policy": "compact", "delete.retention.ms": 5, "segment.bytes": 8_000_000}


class Node(Broker):
    """A broker of a cluster; the first one is its controller too."""

    def __init__(self, directory: Path, number: int, first: Node | None) -> None:
        options = {"log.cleaner.delete.retention.ms": STATIC[number], "default.replication.factor": 3}
        super().__init__(directory, options)
        self.number, self.first = number, first

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        self.voters = settings["controller.quorum.voters"]
        if self.first is None:
            return settings
        return settings | {
            "process.roles": "broker", "node.id": self.number, "controller.quorum.voters": self.first.voters,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
        }  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[list[Node]]:
    folder = tmp_path_factory.mktemp("several")
    with contextlib.ExitStack() as stack:
        made: list[Node] = []
        for number in STATIC:
            made.append(stack.enter_context(Node(folder / str(number), number, made[0] if made else None)))
        at = made[0].bootstrap
        wait_until(lambda: list_brokers(at) == set(STATIC), "three brokers", seconds=60)
        create_topics(at, {"own": 3}, OWN)
        create_topics(at, {"plain": 1}, {})
        yield made


def list_brokers(at: str) -> set[int]:
    return set(AdminClient({"bootstrap.servers": at}).list_topics(timeout=30).brokers)


def policies(at: str, *words: str) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main(["policies", "--bootstrap-server", at, *words])
    return code, out.getvalue(), err.getvalue()


def test_setting_is_that_of_the_topic_or_the_common_value_of_all_brokers(nodes):
    """Step by step, as the state of the cluster changes."""
    at = nodes[0].bootstrap
    alter_configs(at, "BROKER", "", {"log.cleaner.min.compaction.lag.ms": 7})
    alter_configs(at, "BROKER", "2", {"log.segment.bytes": 9_000_000})
    wait_until(lambda: describe_configs(at, "BROKER", ["2"])["2"]["log.segment.bytes"] == "9000000", "it", seconds=60)
    for node in nodes:  # whichever is asked
        code, text, _ = policies(node.bootstrap, "--topics", "own")
        assert code == DONE and "not running" not in text
        assert tomllib.loads(text)["topics"] == {"own": OWN | {"min.compaction.lag.ms": 7}}
        code, text, report = policies(node.bootstrap)
        assert (code, text) == (USAGE, "")
        assert (
            "delete.retention.ms: expected one value of all brokers, because topic plain has none of its own" in report
        )
        assert all(f"{value} (broker {number}" in report for number, value in STATIC.items())
    alter_configs(at, "BROKER", "", {"log.cleaner.delete.retention.ms": 44})  # wins over the files
    code, _, report = policies(at)
    assert code == USAGE
    assert "segment.bytes: " in report and "9000000 (broker 2" in report and "1073741824 (broker 1, broker 3" in report
    alter_configs(at, "BROKER", "2", {"log.segment.bytes": None})
    code, text, _ = policies(at)
    expected = {"cleanup.policy": "delete", "delete.retention.ms": 44, "min.compaction.lag.ms": 7}
    assert code == DONE and tomllib.loads(text)["topics"]["plain"] == expected
    of_brokers = describe_configs(at, "BROKER", [str(number) for number in STATIC])
    assert {settings["log.cleaner.delete.retention.ms"] for settings in of_brokers.values()} == {"44"}
    nodes[2].stop()
    wait_until(lambda: list_brokers(at) == {1, 2}, "the others to know", seconds=60)
    code, text, _ = policies(at)
    assert code == DONE and tomllib.loads(text)["topics"]["plain"] == expected
    assert "# note: not running: brokers 3; settings that only they have are missing" in text
