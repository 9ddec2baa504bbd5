"""Audits of a real mirror: MirrorMaker 2 copies topics from one broker to another, as `A.orders` or by their own names.

The audit finds exactly the effects of a removed, a changed and a late record on the copy. A consumer continues in the
copy at the offsets of `audit failover`. It reads each record that its group had not read, and as many again as the
audit reports.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.trees import files_in
from tests.kafka_lab import Broker, consume, make_logs, read_group
from tests.kafka_lab.jvm import java_command, lab
from tests.kafka_lab.mirror import IDENTITY, Flow, MirrorMaker
from tests.reference.log import Batch, Record, decode_log, with_timestamps

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

SPECS = [
    "topic=orders partitions=2 records=500 keys=60 tombstones=0.1 headers=1 txn=true producers=2 turn=7 abort=0.3"
    " roll=false flush=20",
    "topic=moves records=300 keys=30 nullkeys=0.1 policy=delete codec=zstd roll=false flush=20",
    "topic=same.users records=300 keys=40 tombstones=0.1 codec=lz4 roll=false flush=20",
]
COPIES = {"orders-0": "A.orders-0", "orders-1": "A.orders-1", "moves-0": "A.moves-0", "same.users-0": "same.users-0"}
OTHERS = 40  # records that somebody else writes into the copy, between two records of the mirror
OTHERS_SPEC = f"topic=A.moves create=false records={OTHERS} keys=30 seed=9 roll=false policy=delete"
RENAMES = ("--rename", r"A\.(.*)=\1", "--rename", r"(same\..*)=\1")
GROUP = "readers"


def more(seed: int) -> list[str]:
    """Return specs of more records for the topics that the group reads."""
    orders = (
        f"topic=orders create=false records=150 partitions=2 keys=30 seed={seed} txn=true abort=0.3 roll=false flush=20"
    )
    moves = f"topic=moves create=false records=150 keys=30 seed={seed} nullkeys=0.1 policy=delete roll=false flush=20"
    return [orders, moves]


@dataclass(frozen=True)
class Mirrored:
    """Two log directories, what was read of A, and where its group stood."""

    a: Path
    b: Path
    b_broker: Broker
    lines: dict[str, tuple[str, ...]]  # lines of A, by partition
    committed: dict[str, int]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    folder = tmp_path_factory.mktemp("mirrors")
    with Broker(folder / "a") as a, Broker(folder / "b") as b:
        make_logs(a.bootstrap, SPECS)
        clusters = {"A": a.bootstrap, "S": a.bootstrap, "B": b.bootstrap}  # S: A again, for the other policy
        flows = [Flow("A", "B", ["orders", "moves"]), Flow("S", "B", [r"same\..*"], IDENTITY)]
        with MirrorMaker(folder / "mirror", clusters, flows) as mirror:
            mirror.wait_for_records("B", ends(consume_copies(a)))
            make_logs(b.bootstrap, [OTHERS_SPEC])
            make_logs(a.bootstrap, more(seed=2))
            lines = consume_copies(a)
            mirror.wait_for_records("B", ends(lines, OTHERS))
            n_read = sum(len(of) for name, of in lines.items() if name != "same.users-0")
            committed = read_group(a.bootstrap, GROUP, ["orders", "moves"], n_read)
            mirror.wait_for_records("B", {"A.checkpoints.internal-0": len(committed)})
            make_logs(a.bootstrap, more(seed=3))
            lines = consume_copies(a)
            mirror.wait_for_records("B", ends(lines, OTHERS))
    return Mirrored(a.data, b.data, b, lines, committed)


def consume_copies(broker: Broker) -> dict[str, tuple[str, ...]]:
    return {name: consume(broker.bootstrap, name, "read_committed", lines=True).lines for name in COPIES}


def ends(lines: dict[str, tuple[str, ...]], others: int = 0) -> dict[str, int]:
    """Return where the copies end when all is there."""
    return {copy: len(lines[name]) + (others if name == "moves-0" else 0) for name, copy in COPIES.items()}


def audit(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict]:
    code = main(["audit", *map(str, words), "--json", "--quiet"])
    out, err = capsys.readouterr()
    assert out, err
    return code, json.loads(out)


def test_mirror_has_findings_only_for_records_of_other_writers(mirrored, tmp_path, capsys):
    words = ("--audits", tmp_path / "audits", "--every-version", *RENAMES)
    code, report = audit(capsys, "mirror", mirrored.a, mirrored.b, "--exclude", "moves", *words)
    assert (code, report["findings"]) == (0, 0), report
    records = sum(len(lines) for name, lines in mirrored.lines.items() if name != "moves-0")
    assert (report["summary"]["a_versions"], report["summary"]["b_versions"]) == (records, records)
    _, report = audit(capsys, "mirror", mirrored.a, mirrored.b, "--topics", "moves", *words)
    assert {kind for kind, n in report["summary"]["keys"].items() if n} <= {"equal", "extra", "extra_version"}
    assert report["summary"]["extra_versions"] == OTHERS
    assert report["summary"]["missing_versions"] == 0
    assert report["findings"] > 0


def test_removed_changed_and_late_records_are_reported(mirrored, tmp_path, capsys):
    copy = tmp_path / "b"
    for name in COPIES.values():
        shutil.copytree(mirrored.b / name, copy / name)
    removed = last_of_a_key(copy / "A.orders-0", least_versions=2)
    rewrite(copy / "A.orders-0", {removed.offset: None})
    changed = last_of_a_key(copy / "A.orders-1")
    rewrite(copy / "A.orders-1", {changed.offset: replace(changed, value=b"changed")})
    older, newer = last_two_of_a_key(copy / "same.users-0")
    rewrite(
        copy / "same.users-0",
        {older.offset: replace(newer, offset=older.offset), newer.offset: replace(older, offset=newer.offset)},
    )
    code, report = audit(
        capsys, "mirror", mirrored.a, copy, "--audits", tmp_path / "audits", "--exclude", "moves", *RENAMES
    )
    assert code == 3
    shown = {(f"{r['topic']}-{r['partition']}", r["kind"]): r for r in report["first"]}
    assert set(shown) == {("orders-0", "stale"), ("orders-1", "different"), ("same.users-0", "order")}
    assert report["findings"] == 3
    assert shown["orders-0", "stale"]["missing_versions"] == 1
    assert shown["orders-1", "different"]["b_offset"] == changed.offset
    assert shown["same.users-0", "order"]["b_offset"] == older.offset


def test_consumer_continues_at_the_translated_offset_without_loss(mirrored, tmp_path, capsys):
    plan = tmp_path / "plan.csv"
    words = ("--audits", tmp_path / "audits", "--group", GROUP, "--output", plan, *RENAMES)
    code, report = audit(capsys, "failover", mirrored.a, mirrored.b, *words)
    assert code == 0, report
    answers = {f"{one['topic']}-{one['partition']}": one for one in report["partitions"]}
    assert {name: one["committed"] for name, one in answers.items()} == mirrored.committed
    assert {one["way"] for one in answers.values()} == {"identity"}
    theirs = checkpoints(mirrored.b / "A.checkpoints.internal-0")
    opinions = {f"{one['topic']}-{one['partition']}": one for one in report["mirror_maker"]}
    assert {name: one["offset"] for name, one in opinions.items()} == theirs
    assert {name: one["committed"] for name, one in opinions.items()} == mirrored.committed
    assert {name: one["skipped"] for name, one in opinions.items()} == {
        name: max(at - answers[name]["offset"], 0) for name, at in theirs.items()
    }
    # others' records of moves-0 are between the answer and MirrorMaker's offset
    assert {name: one["answer"] for name, one in opinions.items()} == {
        "orders-0": "confirms", "orders-1": "confirms", "moves-0": "skips",
    }  # fmt: skip
    with mirrored.b_broker as b:
        read = {
            name: consume(b.bootstrap, COPIES[name], lines=True, start=one["offset"]).lines
            for name, one in answers.items()
        }
        reset_offsets(b, plan)
        set_by_kafka = lab().call("committed_offsets", bootstrap=b.bootstrap)[GROUP]["offsets"]
    assert {name: set_by_kafka[COPIES[name]][0] for name in answers} == {n: one["offset"] for n, one in answers.items()}
    for name, one in answers.items():
        delivered, wanted = split(mirrored.lines[name], mirrored.committed[name])
        got = Counter(map(content, read[name]))
        assert not wanted - got, name
        assert (got & delivered).total() == one["again"], name
        assert len(read[name]) == one["read"]
        others = OTHERS if name == "moves-0" else 0
        assert one["not_of_a"] == others
        assert got.total() == wanted.total() + one["again"] + others
        first = next(int(line.split("\t")[1]) for line in read[name] if content(line) in wanted)
        # MirrorMaker's own translation is a second opinion; it knows nothing of others' records, and skips them
        assert max(theirs[name], one["offset"]) <= first, name
        assert one["offset"] == (first if not others else first - others - one["again"]), name
    # Others' records must be read, and what was delivered after them is behind them; else the mirror is exact
    assert {name: one["again"] for name, one in answers.items()} == {"orders-0": 0, "orders-1": 0, "moves-0": 150}


def test_inspect_decodes_records_of_mirrormaker(mirrored, capsys):
    """The group's last checkpoint has the committed offset, and each offset sync one of a topic that is mirrored."""
    b_topic = {copy.rpartition("-")[0]: name.rpartition("-")[0] for name, copy in COPIES.items()}
    upstream = {}
    for record in decoded(mirrored.b / "A.checkpoints.internal-0", "mirror-checkpoints", capsys):
        key, value = json.loads(record["key"]), json.loads(record["payload"])
        assert (value["version"], value["metadata"]) == (0, "")
        if key["group"] == GROUP:
            upstream[f"{b_topic[key['topic']]}-{key['partition']}"] = value["upstreamOffset"], value["offset"]
    assert {name: offset for name, (offset, _) in upstream.items()} == mirrored.committed
    assert {name: at for name, (_, at) in upstream.items()} == checkpoints(mirrored.b / "A.checkpoints.internal-0")
    syncs = decoded(mirrored.a / "mm2-offset-syncs.B.internal-0", "mirror-offset-syncs", capsys)
    keys = {(key["topic"], key["partition"]) for key in (json.loads(sync["key"]) for sync in syncs)}
    assert {("orders", 0), ("orders", 1), ("moves", 0)} <= keys
    for sync in syncs:
        value = json.loads(sync["payload"])
        assert value.keys() == {"upstreamOffset", "offset"} and min(value.values()) >= 0


def decoded(folder: Path, decoder: str, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    """Return the records of a partition's logs as `inspect` decodes them."""
    logs = map(str, files_in(folder))
    assert main(["inspect", *logs, "--decoder", decoder, "--json", "--quiet"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    records = [line for line in lines if line.get("key") is not None and line.get("payload") is not None]
    assert records
    return records


def reset_offsets(broker: Broker, plan: Path) -> None:
    """Let Kafka's own tool set the group's offsets to those of a plan."""
    main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    words = ("--bootstrap-server", broker.bootstrap, "--group", GROUP, "--reset-offsets", "--from-file", plan)
    command = java_command(main, *map(str, words), "--execute")
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 0 and "Error" not in completed.stdout + completed.stderr, (
        completed.stdout + completed.stderr
    )


def content(line: str) -> str:
    """Return a record's line without its offset."""
    kind, _, rest = line.split("\t", 2)
    return f"{kind}\t{rest}"


def split(lines: tuple[str, ...], committed: int) -> tuple[Counter[str], Counter[str]]:
    """Return what a group has been delivered, and what not."""
    delivered = [int(line.split("\t")[1]) < committed for line in lines]
    had = Counter(content(line) for line, before in zip(lines, delivered, strict=True) if before)
    return had, Counter(map(content, lines)) - had


def checkpoints(folder: Path) -> dict[str, int]:
    """Return the offsets at which the group continues by MirrorMaker, by partition of A: Checkpoint.java, version 0."""
    offsets = {}
    for record in (r for log in files_in(folder) for batch in decode_log(log.read_bytes()) for r in batch.records):
        at, names = 0, []
        for _ in range(2):
            (size,) = struct.unpack_from(">h", record.key, at)
            names.append(record.key[at + 2 : at + 2 + size].decode())
            at += 2 + size
        (partition,) = struct.unpack_from(">i", record.key, at)
        _, _, offset = struct.unpack_from(">hqq", record.value)
        if names[0] == GROUP:
            offsets[f"{names[1].removeprefix('A.')}-{partition}"] = offset
    return offsets


# -- rewriting a log


def data_records(folder: Path) -> list[Record]:
    [log] = files_in(folder)
    return [r for batch in decode_log(log.read_bytes()) for r in batch.records if not batch.control]


def versions(folder: Path) -> dict[bytes, list[Record]]:
    of_key: dict[bytes, list[Record]] = {}
    for record in data_records(folder):
        of_key.setdefault(record.key, []).append(record)
    return of_key


def last_of_a_key(folder: Path, least_versions: int = 1) -> Record:
    return next(of[-1] for of in versions(folder).values() if len(of) >= least_versions and of[-1].value is not None)


def last_two_of_a_key(folder: Path) -> tuple[Record, Record]:
    return next((of[-2], of[-1]) for of in versions(folder).values() if len(of) > 2)


def rewrite(folder: Path, changes: dict[int, Record | None]) -> None:
    """Write a copied log again, with other records at some offsets, or none."""
    [log] = files_in(folder)
    batches = [with_changes(batch, changes) for batch in decode_log(log.read_bytes())]
    for path in folder.iterdir():
        path.unlink()
    with SegmentWriter(folder, 0) as writer:
        for batch in batches:
            writer.append_raw(batch.encoded().data)


def with_changes(batch: Batch, changes: dict[int, Record | None]) -> Batch:
    records = [changes.get(record.offset, record) for record in batch.records]
    kept = tuple(record for record in records if record is not None)
    return batch if kept == batch.records else with_timestamps(replace(batch, records=kept))
