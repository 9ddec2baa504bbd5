"""restore --topic-ids: what the file may be, what is written, and which partitions the report calls stray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import UsageError
from lastkey.jobs.restore.topic_ids import is_beyond_topic, read_topic_ids
from lastkey.logformat.side_files.checkpoints import format_uuid, read_partition_metadata
from tests.builders.restored import restore_logs

ONE, TWO = "dDcrp6dMSdqMTmQ0o6sTxg", "AAAAAAAAAAAAAAAAAAAAAg"
DESCRIBED = f"""\
Topic: bare\tTopicId: {ONE}\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: segment.bytes=1048576
\tTopic: bare\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr:
Topic: other.topic\tTopicId: {TWO}\tPartitionCount: 3\tReplicationFactor: 1\tConfigs:
\tTopic: other.topic\tPartition: 0\tLeader: none\tReplicas: 1\tIsr: 1
"""
PROPERTIES = f"# of the new cluster\n\nbare={ONE}\n  other.topic = {TWO}\n"


def write_ids_file(tmp_path: Path, text: str) -> str:
    (tmp_path / "ids").write_text(text)
    return str(tmp_path / "ids")


@pytest.mark.parametrize("text", [DESCRIBED, PROPERTIES, PROPERTIES + DESCRIBED.partition("\n")[2]], ids=len)
def test_topic_ids_are_read_from_both_file_formats(tmp_path: Path, text: str) -> None:
    described = read_topic_ids(write_ids_file(tmp_path, text), {"bare", "whole"})
    assert {topic: format_uuid(description.topic_id) for topic, description in described.items()} == {
        "bare": ONE,
        "other.topic": TWO,
    }
    assert read_topic_ids(None, {"bare"}) == {}


def test_partitions_above_the_described_count_are_reported(tmp_path: Path) -> None:
    described = read_topic_ids(write_ids_file(tmp_path, DESCRIBED), {"bare"})
    assert [is_beyond_topic(described["bare"], n) for n in (0, 1)] == [False, True]
    assert not is_beyond_topic(read_topic_ids(write_ids_file(tmp_path, PROPERTIES), {"bare"})["bare"], 7)
    assert not is_beyond_topic(None, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bare\n", "line 1: expected text of kafka-topics --describe, or lines topic=id, found 'bare'"),
        (f"\nbare={ONE}x\n", "line 2: expected an id of 22 characters"),
        (f"bare={ONE}\nbare={TWO}\n", "line 2: expected one id of topic bare, found another one"),
        ("bare=AAAAAAAAAAAAAAAAAAAAAA\n", "line 1: expected the id of a topic, found AAAAAAAAAAAAAAAAAAAAAA"),
        (f"other={ONE}\n", "expected topics that are restored, found none of them"),
        ("", "expected topics that are restored, found none of them"),
        (f"a/b={ONE}\n", "line 1: expected text of kafka-topics --describe"),
        ("Error while executing topic command : Timed out\n", "line 1: expected text of kafka-topics --describe"),
    ],
)
def test_file_of_another_format_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_topic_ids(write_ids_file(tmp_path, text), {"bare"})
    assert message in str(error.value) and "kafka-topics --describe" in str(error.value)


def test_known_topic_ids_are_written_and_missing_ones_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bare` has no id in the archive, `whole` one that the file does not name; bare-1 is no partition of its topic."""
    restore_logs(tmp_path, capsys, dict.fromkeys(("bare-0", "bare-1", "whole-0"), "a=1"))
    before = (tmp_path / "text" / "whole-0" / "partition.metadata").read_bytes()
    words = [
        "restore",
        "--store",
        str(tmp_path / "store"),
        "--topic-ids",
        write_ids_file(tmp_path, DESCRIBED),
        "--json",
    ]
    code = cli.main([*words, "--output", str(tmp_path / "again"), "--no-progress"])
    report: dict[str, Any] = json.loads("".join(capsys.readouterr()))
    assert code == 0
    assert {p["topic"]: (p["topic_id_is_given"], p["is_beyond_topic"]) for p in report["partitions"]} == {
        "bare": (True, True), "whole": (False, False),
    }  # fmt: skip
    for name in ("bare-0", "bare-1"):
        path = tmp_path / "again" / name / "partition.metadata"
        assert format_uuid(read_partition_metadata(path.read_bytes(), str(path))) == ONE
    assert (tmp_path / "again" / "whole-0" / "partition.metadata").read_bytes() == before
    unnamed, beyond = report["notes"]
    assert unnamed.startswith("1 partition of topics that ") and ": whole-0: the topic id is the archive's" in unnamed
    assert beyond.startswith("1 partition that the topic does not have by ") and ": bare-1: " in beyond
    files = {p.name for p in (tmp_path / "again" / "bare-0").iterdir()}
    assert files == {p.name for p in (tmp_path / "text" / "bare-0").iterdir()} | {"partition.metadata"}
