"""`replay` into a real broker: the real consumer reads what a plain reader finds in the archive, also after kills."""

from __future__ import annotations

import base64
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.command_examples import NOT_RUN
from lastkey.jobs import replay
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReplayOptions
from lastkey.jobs.errors import NO_CLUSTER, UsageError
from lastkey.jobs.replay import ReplayReport
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.decode.partitioner import default_partitions
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.logs import Row, arrow_records, write_partition
from tests.builders.trees import files_in
from tests.kafka_lab import Broker, consume, create_topics
from tests.reference.log import ZSTD, decode_log
from tests.reference.read_committed import committed_offsets

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).resolve().parents[2]
Fields = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
BASE64 = r"(?:[\w+/]{4})*(?:[\w+/]{2}==|[\w+/]{3}=)?"
HEADER = re.compile(f"({BASE64})=(-|{BASE64})")
# Ends a replay at the step-th of these calls, before or after it
KILLED = """
import os, signal, sys
from lastkey.udfs import replay
from lastkey.jobs.command.cli import main

STEPS = ("begin_transaction", "send_offsets_to_transaction", "commit_transaction")
replay._TRANSACTION_RECORDS = replay._BATCH_ROWS = 7
step, after, arguments = int(sys.argv[1]), sys.argv[2] == "after", sys.argv[3:]
seen = 0

def dying(call):
    def called(*given, **named):
        global seen
        seen += 1
        if seen == step and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*given, **named)
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return called

class Producer:
    def __init__(self, *given):
        self.real = real.Producer(*given)
    def __getattr__(self, name):
        call = getattr(self.real, name)
        return dying(call) if name in STEPS else call

class Client:
    def __getattr__(self, name):
        return Producer if name == "Producer" else getattr(real, name)

real = replay.client()
whole = replay.client
replay.client = lambda module="confluent_kafka": Client() if module == "confluent_kafka" else whole(module)
main(arguments)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("replay")) as made:
        yield made


def text(data: str) -> bytes | None:
    return None if data == "-" else base64.b64decode(data)


def consumed(broker: Broker, partition: str) -> list[Fields]:
    """Return (timestamp, key, value, headers) of what the real consumer of committed data reads."""
    out = []
    for line in consume(broker.bootstrap, partition, "read_committed", lines=True).lines:
        _, _, timestamp, key, value, headers_text = line.split("\t")
        pairs = [HEADER.fullmatch(pair).groups() for pair in headers_text.split(",") if pair]
        headers = tuple((text(name).decode(), text(content)) for name, content in pairs)
        out.append((int(timestamp), text(key), text(value), headers))
    return out


def archived(folder: Path) -> list[Fields]:
    """Return what a plain reader finds in a partition's files."""
    batches = [batch for log in files_in(folder) for batch in decode_log(log.read_bytes())]
    shown = set(committed_offsets(batches))
    records = [r for batch in batches if not batch.control for r in batch.records if r.offset in shown]
    return [(r.timestamp, r.key, r.value, tuple((k.decode(), v) for k, v in r.headers)) for r in records]


def options(broker: Broker, archive: Path, **given) -> ReplayOptions:
    return ReplayOptions(str(archive), bootstrap_server=broker.bootstrap, engine="threads", **given)


def run(broker: Broker, archive: Path, code: int = 0, **given) -> ReplayReport:
    report = replay.run(options(broker, archive, **given), Silent())
    assert report.exit_code == code, report.to_text()
    return report


def test_records_are_replayed_unchanged_and_once(broker, tmp_path):
    archive = tmp_path / "archive"
    write_partition(archive / "plain-0", "a=1 b=- -=3 | {codec=zstd} = a=4 | {pid=1 txn} x=1 | {pid=1 abort} || c=5")
    write_partition(archive / "plain-1", "d=6 | {pid=2 txn} e=7 | {pid=2 commit} || f=8 | {pid=3 txn} open=1")
    (archive / "plain-2").mkdir()
    with SegmentWriter(archive / "plain-2", 0) as writer:
        headers = (("h", b"1"), ("h", None), ("", b""))
        writer.append_records(arrow_records([Row(b"k", b"v", headers=headers), Row(b"", b"\xff\0", timestamp=1)]))
    create_topics(broker.bootstrap, {"dr.plain": 3}, {"retention.ms": -1})
    renamed = {"renames": (r"(.*)=dr.\1",)}
    report = run(broker, archive, **renamed)
    assert [(p.target, p.records, p.next_offset) for p in report.partitions] == [("dr.plain", 6, 8), ("dr.plain", 3, 4),
        ("dr.plain", 2, 2)]  # fmt: skip
    for n in range(3):
        assert consumed(broker, f"dr.plain-{n}") == archived(archive / f"plain-{n}")
    assert [p.records for p in run(broker, archive, **renamed).partitions] == [0, 0, 0]
    with (files_in(archive / "plain-0")[-1]).open("ab") as log:  # the archive grows
        more = tmp_path / "more"
        write_partition(more / "plain-0", "g=9", base_offset=8)
        log.write(files_in(more / "plain-0")[0].read_bytes())
    assert [p.records for p in run(broker, archive, **renamed).partitions] == [1, 0, 0]
    assert consumed(broker, "dr.plain-0") == archived(archive / "plain-0")


def test_record_without_a_timestamp_gets_the_time_of_the_run(broker, tmp_path):
    folder = tmp_path / "archive" / "timeless-0"
    folder.mkdir(parents=True)
    with SegmentWriter(folder, 0) as writer:
        rows = [Row(b"a", b"1", timestamp=0), Row(b"b", None, timestamp=5), Row(None, b"", headers=(("h", b""),))]
        writer.append_records(arrow_records(rows))
    create_topics(broker.bootstrap, {"timeless": 1}, {"retention.ms": -1})
    before = time.time() * 1000
    report = run(broker, tmp_path / "archive")
    first, *others = consumed(broker, "timeless-0")
    assert others == archived(folder)[1:] and first[1:] == archived(folder)[0][1:]
    assert before - 1000 < first[0] < time.time() * 1000 + 1000
    assert report.notes == ["1 record had no timestamp, or 0, and got the time of this run"]


def test_replay_accepts_the_option_names_of_kafkas_tools(broker, tmp_path):
    write_partition(tmp_path / "archive" / "packed-0", " ".join(f"k{n}=value" for n in range(100)))
    (tmp_path / "client").write_text("security.protocol=PLAINTEXT\ncompression.type=zstd\nlinger.ms=50\n")
    create_topics(broker.bootstrap, {"packed": 1}, {})
    run(broker, tmp_path / "archive", command_config=str(tmp_path / "client"))
    assert len(consumed(broker, "packed-0")) == 100
    batches = [batch for log in files_in(broker.data / "packed-0") for batch in decode_log(log.read_bytes())]
    assert {batch.codec for batch in batches if not batch.control} == {ZSTD}


def test_example_of_the_reference_page_runs(broker, capsys):
    """Run the command's example against this broker."""
    words = (
        NOT_RUN["replay"][0]
        .replace("localhost:9092", broker.bootstrap)
        .replace("examples/", f"{ROOT}/examples/")
        .split()
    )
    archive = ROOT / "examples" / "archive"
    folders = [path for path in archive.iterdir() if path.is_dir() and not path.name.startswith("__")]
    counts = Counter(path.name.rpartition("-")[0] for path in folders)
    create_topics(broker.bootstrap, counts, {"retention.ms": -1})
    assert main([*words, "--engine", "threads"]) == 0, capsys.readouterr()
    for path in folders:
        assert consumed(broker, path.name) == archived(path)


def test_killed_replay_loses_and_duplicates_no_record(broker, tmp_path, request):
    archive = tmp_path / "archive"
    write_partition(archive / "killed-0", " | ".join(f"k{n % 5}={n} k{n % 3}=x" for n in range(40)))
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    cases = request.config.getoption("--attack-cases") or 1
    rng = random.Random(request.config.getoption("--attack-seed"))
    for case in range(cases):
        target = f"killed-to-{case}"
        create_topics(broker.bootstrap, {target: 1}, {})
        arguments = ["replay", str(archive), "--bootstrap-server", broker.bootstrap, "--rename", f"killed={target}"]
        arguments += ["--engine", "threads", "--group", target]
        for _ in range(3):
            step, when = str(rng.randrange(1, 9)), rng.choice(["before", "after"])
            command = [sys.executable, "-c", KILLED, step, when, *arguments]
            completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
            assert completed.returncode == -signal.SIGKILL, (completed.stdout + completed.stderr).decode()[-2000:]
        run(broker, archive, renames=(f"killed={target}",), group=target)
        assert consumed(broker, f"{target}-0") == archived(archive / "killed-0"), (case, step, when)


def test_damage_stops_a_partition_until_its_repair(broker, tmp_path):
    archive = tmp_path / "archive"
    write_partition(archive / "damaged-0", "a=1 b=2 || c=3 | d=4 || e=5")
    log = files_in(archive / "damaged-0")[1]
    whole = log.read_bytes()
    flip(log, 65)
    create_topics(broker.bootstrap, {"damaged": 1}, {})
    report = run(broker, archive, 3)
    assert [(Path(p.path).name, p.kind) for p in report.problems] == [(log.name, "crc")]
    assert len(consumed(broker, "damaged-0")) == 2
    log.write_bytes(whole)
    run(broker, archive)
    assert consumed(broker, "damaged-0") == archived(archive / "damaged-0")


def test_partition_is_chosen_by_the_key_on_request(broker, tmp_path):
    import pyarrow as pa

    archive = tmp_path / "archive"
    write_partition(archive / "spread-0", " ".join(f"key{n}={n}" for n in range(30)))
    create_topics(broker.bootstrap, {"spread": 4}, {})
    run(broker, archive, repartition=True)
    for n in range(4):
        keys = [key for _, key, _, _ in consumed(broker, f"spread-{n}")]
        assert keys == [r[1] for r in archived(archive / "spread-0") if r[1] in keys]
        assert set(
            default_partitions(pa.array(keys, pa.binary()), pa.array([4] * len(keys), pa.int32())).to_pylist()
        ) <= {n}


def test_requests_refused_before_the_first_write(broker, tmp_path, monkeypatch):
    archive = tmp_path / "archive"
    write_partition(archive / "refused-1", "a=1")
    with pytest.raises(UsageError, match="at least 2 partitions, found no such topic"):
        run(broker, archive)
    create_topics(broker.bootstrap, {"refused": 1}, {})
    with pytest.raises(UsageError, match="at least 2 partitions, found 1"):
        run(broker, archive)
    create_topics(broker.bootstrap, {"appended": 2}, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(UsageError, match="would lose their timestamps"):
        run(broker, archive, renames=("refused=appended",))
    create_topics(broker.bootstrap, {"full": 2}, {})
    run(broker, archive, renames=("refused=full",))
    report = run(broker, archive, 3, renames=("refused=full",), group="another")
    assert "expected an empty partition" in str(report.problems[0])
    run(broker, archive, renames=("refused=full",), group="another", append=True)
    assert [value for _, _, value, _ in consumed(broker, "full-1")] == [b"1", b"1"]
    write_partition(archive / "other-0", "a=1")
    with pytest.raises(UsageError, match="both become one"):
        run(broker, archive, renames=(".*=one",))
    monkeypatch.setattr(replay, "_SECONDS", 1.0)
    with raises_kind(NO_CLUSTER):
        replay.run(ReplayOptions(str(archive), bootstrap_server="127.0.0.1:1", engine="threads"), Silent())
