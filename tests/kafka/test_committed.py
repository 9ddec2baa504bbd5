"""Committed offsets from a broker's files, against the broker's own answers, and share states against Kafka's class."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import Selection
from lastkey.udfs.audit.committed import TOPICS, Committed, gather, read_commits
from lastkey.udfs.audit.share_state import BATCH, ShareStateRecord, delivered_ranges
from tests.kafka_lab import Broker, list_offsets, make_logs
from tests.kafka_lab.jvm import lab

pytestmark = pytest.mark.kafka

QUICK = {
    "offsets.topic.num.partitions": 5,
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.snapshot.update.records.per.snapshot": 2,
    **{
        f"group.{kind}.{setting}.ms": 200
        for kind in ("consumer", "share")
        for setting in ("heartbeat.interval", "min.heartbeat.interval")
    },
}
Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def delivered(tmp_path_factory) -> tuple[Path, Answers, dict[str, int]]:
    """Return a stopped broker's log directory, its answers on what groups committed, and the ends of the topic."""
    with Broker(tmp_path_factory.mktemp("broker"), QUICK) as broker:
        make_logs(broker.bootstrap, ["topic=orders partitions=3 records=600 keys=50 roll=false"])
        lab().call("deliver", bootstrap=broker.bootstrap, topic="orders")
        answers = lab().call("committed_offsets", bootstrap=broker.bootstrap)
        ends = list_offsets(broker.bootstrap, {f"orders-{n}": [-1] for n in range(3)})
        return broker.data, answers, {name: offset[0][0] for name, offset in ends.items()}


def read(folder: Path) -> Committed:
    partitions = find_partitions([str(folder)], Selection())
    return gather([read_commits(partition) for partition in partitions if partition.topic in TOPICS])


def test_committed_offsets_equal_those_of_the_broker(delivered):
    folder, answers, ends = delivered
    commits = read(folder)
    ours: Answers = {}
    for row in commits.rows:
        assert row.certain
        name = f"{row.topic}-{row.partition}"
        values = [row.offset]
        if row.group_type == "share":
            done = sum(last + 1 - first for first, last in row.delivered)
            values = [row.offset, ends[name] - row.offset - done]  # start and lag
        ours.setdefault(row.group, {"type": row.group_type, "offsets": {}})["offsets"][name] = values
    for one in answers.values():
        n_values = 2 if one["type"] == "share" else 1  # the broker adds leader epoch and metadata to others
        one["offsets"] = {name: values[:n_values] for name, values in one["offsets"].items()}
    assert ours == answers
    assert commits.problems == ()
    assert commits.notes == ("__consumer_offsets-0: 2 records of transactions without an end do not count",)
    assert {"classic-lagging", "consumer-lagging", "share-explicit", "transactional"} <= set(ours)
    assert not {"classic-deleted", "consumer-deleted", "share-deleted"} & set(ours)
    assert len(ours["simple ü"]["offsets"]) == 2
    rows = [row for row in commits.rows if row.group == "share-explicit"]
    assert sum(len(row.delivered) for row in rows) > 3  # else the lags prove little


def test_share_states_are_merged_as_by_kafka():
    drawn, folds = random.Random(30), []
    for _ in range(400):
        fold = []
        for _ in range(drawn.randrange(1, 7)):
            firsts = sorted(drawn.sample(range(60), drawn.randrange(6)))
            batches = [
                (first, following - 1, drawn.choice([0, 2, 4]), drawn.randrange(1, 4))
                for first, following in itertools.pairwise([*firsts, 70])
            ]
            fold.append((drawn.choice([-1, -1, drawn.randrange(40)]), drawn.sample(batches, len(batches))))
        folds.append(fold)
    theirs = lab().call("combine_share_batches", folds=folds)
    for fold, expected in zip(folds, theirs, strict=True):
        ranges = delivered_ranges([ShareStateRecord(start, np.array(batches, BATCH)) for start, batches in fold])
        ours = [offset for first, last in ranges for offset in range(first, last + 1)]
        delivered = sorted(o for first, last, state, _ in expected if state in (2, 4) for o in range(first, last + 1))
        assert ours == delivered, fold
