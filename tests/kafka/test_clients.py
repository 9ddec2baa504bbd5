"""Logs that other clients wrote, and a broker's own topics (tests/golden/make_clients.py), against Kafka's own classes.

Three passes, 25 hours apart, by Kafka's cleaner and by us in one task and in blocks: every record and every batch
header is equal. `reindex` of the bare logs gives the files of Kafka's recovery. Every record of the broker's own
topics is read, as its dump tool reads it.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lastkey.logformat.dump.files import DumpOptions
from lastkey.logformat.dump.files import dump as dump_ours
from lastkey.logformat.dump.log import LogOptions
from lastkey.logformat.messages.coordinator_records import decode_records
from tests.builders.bare_logs import BareLog, copy_logs, differences, reindexed
from tests.builders.folders import Archived, archived_at, compact, golden_plan
from tests.builders.plans import changed
from tests.builders.splits import compact_in_blocks
from tests.builders.trees import files_in
from tests.golden import PASSES, Case, client_names, clients, digest_of_logs
from tests.kafka_lab import (
    CleanSpec,
    RecoverSpec,
    clean,
    dump,
    dump_log_segments,
    index_check,
    recover,
    without_segments,
)
from tests.kafka_lab.jars import NEW
from tests.kafka_lab.own_topics import DECODERS, TOPICS, as_4_3_prints

pytestmark = pytest.mark.kafka

INTERNAL = [name for name in client_names() if name in TOPICS]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict[str, Case]:
    return clients(tmp_path_factory)


def lines(folder: Path) -> list[str]:
    return without_segments(dump([folder])[folder])


def kafkas(case: Case, partition: str, work: Path, ends_with_range: bool = True) -> list[list[str]]:
    """Return the records that Kafka's cleaner leaves in each pass."""
    folder, out = work / partition, []
    shutil.copytree(case.input(partition), folder)
    for number in PASSES:
        start = case.log_start(partition)
        spec = CleanSpec(
            folder, case.now_ms(number, partition), case.settings["segment.bytes"], start, start,
            ends_with_range=ends_with_range,
        )  # fmt: skip
        clean([spec])
        out.append(lines(folder))
    return out


def ours(case: Case, partition: str, work: Path, run) -> list[list[str]]:
    archived: Archived = archived_at(case.folder / "input", partition)
    out = []
    for number in PASSES:
        done = run(golden_plan(case, partition, number, archived, work / str(number)))
        assert done.result.problem is None
        archived = done.as_archive(work / f"{number}.archive", snapshots=True)
        folder = archived.root / "t-0"
        out.append(lines(folder))
        checked = index_check([folder])[folder]
        assert checked.failures == []
    return out


@pytest.mark.parametrize("name", client_names())
def test_three_passes_equal_those_of_kafkas_cleaner(theirs, name, tmp_path):
    case = theirs[name]
    [partition] = case.partitions
    expected = kafkas(case, partition, tmp_path / "kafka")
    assert ours(case, partition, tmp_path / "task", compact) == expected
    assert ours(case, partition, tmp_path / "blocks", compact_in_blocks) == expected


def test_emptied_last_batch_below_the_high_watermark_is_kept(theirs, tmp_path):
    """Kafka 4.3 keeps its header and 4.4 does not (KAFKA.md, "Batches"); what 4.4 leaves is no gap for us."""
    case = theirs["kafka-python-gzip-txn"]
    [partition] = case.partitions
    kept = kafkas(case, partition, tmp_path / "range")
    left = kafkas(case, partition, tmp_path / "log", ends_with_range=False)
    assert kept == ours(case, partition, tmp_path / "task", compact)
    removed = [[line for line in one if line not in other] for one, other in zip(kept, left, strict=True)]
    assert [[line.split("\t")[:4] for line in lines] for lines in removed] == (
        [[], [], []] if NEW == "4.3.0" else [[["B", "313", "314", "0"]]] * 3
    )
    plan = golden_plan(case, partition, 3, archived_at(tmp_path / "log", partition), tmp_path / "again")
    for checkpoint in (plan.input.first_dirty_offset, None):
        done = compact(
            changed(plan, first_dirty_offset=checkpoint, settings=replace(plan.policy.settings, gaps="fail"))
        )
        assert done.result.problem is None


def test_client_logs_have_their_described_features(theirs):
    """A log without removable records would prove nothing."""
    about = {name: case.meta["partitions"][case.partitions[0]] for name, case in theirs.items()}
    for client in ("confluent", "kafka-python", "aiokafka"):
        mine = {name: features for name, features in about.items() if name.startswith(client)}
        assert len(mine) == 13
        assert {name for name, features in mine.items() if features["markers"]} > {
            name for name in mine if "txn" in name
        }
        assert {c for name in mine for c in list_codecs(theirs[name])} == {"none", "gzip", "snappy", "lz4", "zstd"}
    inside = [features for features in about.values() if features["log_start"]]
    assert len(inside) == 2  # DeleteRecords of a repartition topic
    for name, case in theirs.items():
        bases = [int(path.stem) for path in files_in(case.input(case.partitions[0]))]
        assert len(bases) > 1, name
        assert about[name]["log_start"] < bases[-1]
        before = digest_of_logs(path.read_bytes() for path in files_in(case.input(case.partitions[0])))
        assert before != about[name]["expected"][0], f"{name}: nothing was cleaned"


def list_codecs(case: Case) -> set[str]:
    folder = case.input(case.partitions[0])
    return {line.split("\t")[5] for line in dump([folder], "B")[folder]}


def test_reindex_equals_kafkas_recovery_of_client_logs(theirs, tmp_path):
    logs = [BareLog(p, case.input(p), log_start=case.log_start(p)) for case in theirs.values() for p in case.partitions]
    copy_logs(logs, tmp_path / "archive")
    shutil.copytree(tmp_path / "archive", tmp_path / "kafka")
    recover(RecoverSpec(tmp_path / "kafka" / log.name, log.interval, log.log_start) for log in logs)
    reindexed(tmp_path / "archive", tmp_path / "ours")
    different = [d for log in logs for d in differences(tmp_path / "kafka" / log.name, tmp_path / "ours" / log.name)]
    assert different == []


@pytest.mark.parametrize("name", INTERNAL)
def test_every_record_of_internal_topics_is_decoded(theirs, name):
    case = theirs[name]
    folder, decoder = case.input(case.partitions[0]), TOPICS[name]
    kinds: Counter[str] = Counter()
    for log in files_in(folder):
        text = as_4_3_prints(dump_log_segments(DECODERS[decoder][1], "--files", log))
        got: list[bytes] = []
        dump_ours([str(log)], DumpOptions(LogOptions(True, partial(decode_records, decoder))), got.append)
        assert b"".join(got).decode().splitlines() == text.splitlines()
        assert not re.search("unknown|skipping|error", text, re.IGNORECASE)
        kinds.update(re.findall(r'key: \{"type":"(\w+)"', text))
        kinds["tombstones"] += text.count("payload: <DELETE>")
    assert kinds.pop("tombstones") > 0
    names = DECODERS[decoder][2]
    assert {names[int(kind)] for kind in kinds} >= WRITTEN[decoder]


WRITTEN = {
    "offsets": {
        "OffsetCommit", "GroupMetadata", "ConsumerGroupMetadata", "ConsumerGroupMemberMetadata",
        "ConsumerGroupCurrentMemberAssignment", "ConsumerGroupRegularExpression", "ShareGroupMemberMetadata",
    },
    "transaction-log": {"TransactionLog"},
    "share-group-state": {"ShareSnapshot", "ShareUpdate"},
}  # fmt: skip
