"""Three real brokers, killed and elected uncleanly, their disks damaged: `merge`, and a real broker on the result."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.attack.summary import n_cases
from tests.builders import replicas
from tests.builders.replicas import FOLDER, Original, intact, judge, read_batches, run_merge
from tests.kafka_lab import check_served, start_restored
from tests.kafka_lab.cluster import Cluster
from tests.kafka_lab.loading import load_under_broker, partition_dirs
from tests.kafka_lab.oracle import consume, digest_lines, dump, list_offsets, make_logs, visible_lines
from tests.kafka_lab.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FEW = 8
CLEANS = {
    "log.cleaner.enable": "true", "log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": 0,
    "log.cleaner.min.compaction.lag.ms": 0,
}  # fmt: skip
_SPEC = (
    "topic=t records={n} seed={seed} keys=40 tombstones=0.1 codec=lz4 batch=600 linger=2 flush=7 roll=false "
    "vmin=20 vmax=60 segment=12000 producers=2 txn={txn} txnmin=3 txnmax=12 turn=9 create={create}"
)


def _write(bootstrap: str, n: int, seed: int, *, create: bool = False, txn: bool = False) -> None:
    make_logs(bootstrap, [_SPEC.format(n=n, seed=seed, create=str(create).lower(), txn=str(txn).lower())])


def _end(cluster: Cluster, number: int) -> int:
    """Return the log end of a broker that is down."""
    return max(last for _, last in read_batches(cluster.data(number))) + 1


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """Return the folder of three brokers' log directories, where the uncleanly elected leader began, and the digest of
    what a consumer read from it.

    Broker 3 is killed first, then 2, then 1, which wrote on alone. Then broker 3 is elected without the last records;
    broker 2 follows it, broker 1 never comes back. (Transactions end with the brokers that coordinate them.)
    """
    root = tmp_path_factory.mktemp("cluster")
    with Cluster(root, {1: CLEANS, 2: CLEANS}) as cluster:
        _write(cluster.bootstrap(1, 2, 3), 500, 1, create=True, txn=True)
        cluster.kill([3])
        _write(cluster.bootstrap(1, 2), 200, 2, txn=True)
        cluster.kill([2])
        _write(cluster.bootstrap(1), 150, 3)
        cluster.kill([1])
        fork = _end(cluster, 3)
        cluster.start(3)
        _write(cluster.bootstrap(3), 150, 4)
        cluster.start(2)
        _write(cluster.bootstrap(3), 150, 5)
        end = list_offsets(cluster.bootstrap(3), {FOLDER: [-1]})[FOLDER][0][0]
        wait_until(lambda: _end(cluster, 2) >= end, "broker 2 to follow", seconds=60)
        read = consume(cluster.bootstrap(3), FOLDER)
    copies = root / "copies"
    for number in (1, 2, 3):
        shutil.copytree(root / f"broker-{number}" / "data", copies / f"broker-{number}")
    return copies, fork, read.data_sha256


def test_disks_of_a_cluster_after_an_unclean_election_are_merged(disks: tuple[Path, int, str], tmp_path: Path) -> None:
    """The result is the log of the broker that was elected, and the records that only broker 1 had are listed."""
    copies, fork, read = disks
    report = run_merge(copies, tmp_path / "out", layout="replicas")
    assert report.exit_code == 0, report.to_text()
    partition = next(p for p in report.partitions if p.topic == "t")
    lost = {c.copy: c.losing for c in partition.copies}
    assert lost["broker-1"][0].first >= fork  # its cleaner may have removed the batch there
    assert not lost["broker-2"]
    assert not lost["broker-3"]
    whole, batches = read_batches(copies / "broker-3"), read_batches(tmp_path / "out")
    assert {key: b.data for key, b in batches.items()} == {key: b.data for key, b in whole.items()}
    lines = dump([tmp_path / "out" / FOLDER], "R")[tmp_path / "out" / FOLDER]
    assert digest_lines(visible_lines(lines, "read_uncommitted")) == read
    with start_restored(tmp_path / "out") as broker:
        assert check_served(broker.bootstrap, partition_dirs([tmp_path / "out"]))[0] == []


def test_randomly_damaged_disks_are_merged_without_loss(
    disks: tuple[Path, int, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, fork, _ = disks
    whole, tally, results = read_batches(source / "broker-3"), Counter[str](), []
    for run in range(n_cases(request, FEW)):
        rng = random.Random(f"disks {run}")
        copies = [tmp_path / f"run-{run}" / f"broker-{n}" for n in (1, 2, 3)]
        for copy in copies:
            shutil.copytree(source / copy.name, copy)
        originals = [read_batches(copy) for copy in copies]
        originals[0] = {key: b for key, b in originals[0].items() if key[0] < fork}  # also on the elected leader
        done = [f"{copy.name}: {replicas.damage(copy, rng)}" for copy in rng.sample(copies, 2)]
        kept = [intact(copy, batches) for copy, batches in zip(copies, originals, strict=True)]
        report = run_merge(copies, tmp_path / f"out-{run}", topics="t")
        assert judge(whole, Original(originals, kept), report, tmp_path / f"out-{run}", tally) == "", done
        results.append((tmp_path / f"out-{run}" / FOLDER).rename(tmp_path / f"run{run}-0"))
    assert tally["complete logs"] > 0  # above the fork only brokers 2 and 3 have the log
    load_under_broker(results)
