"""Report of a restore: the last visible record, topic ids, and partitions that an old broker cannot load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.restored import ENDS, restore_logs


def test_report_has_the_last_visible_record_of_each_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions, output = restore_logs(tmp_path, capsys, ENDS)
    assert {p["topic"]: (p["next_offset"], p["last_visible_offset"]) for p in partitions["partitions"]} == {
        "aborted": (3, 0), "emptied": (6, 1), "marker": (2, 0), "nothing": (6, -1), "plain": (3, 2), "sparse": (10, 4),
    }  # fmt: skip
    rows = {line.split()[0]: line.split()[3] for line in output.splitlines() if "-0 " in line}
    assert rows == {"aborted-0": "0", "emptied-0": "1", "marker-0": "0", "nothing-0": "none", "plain-0": "1",
                    "sparse-0": "4"}  # fmt: skip
    assert "\nlast record: the last that a consumer gets (read_uncommitted), if it is not at log end - 1\n" in output
    assert "\nformat the target with kafka-storage of the version that will run on it\n" in output
    assert partitions["notes"] == []


def test_log_that_ends_with_a_record_has_no_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "last record:" not in restore_logs(tmp_path, capsys, {"plain-0": ENDS["plain-0"]})[1]


def test_partitions_without_a_topic_id_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partitions, output = restore_logs(
        tmp_path, capsys, {f"{kind}-{n}": "a=1" for kind in ("bare", "whole") for n in range(2)}
    )
    assert {f"{p['topic']}-{p['partition']}": p["topic_id"] is not None for p in partitions["partitions"]} == {
        "bare-0": False, "bare-1": False, "whole-0": True, "whole-1": True,
    }  # fmt: skip
    [note] = partitions["notes"]
    assert note.startswith("2 partitions without a topic id: bare-0, bare-1: a KRaft broker renames the folder ")
    assert "with --topic-ids FILE" in note
    assert "\ntopic ids are those of the archive: a KRaft broker treats partitions as stray if " in output
    assert f"note: {note}\n" in output


@pytest.mark.parametrize(
    ("name", "text", "how", "is_named"),
    [
        ("__transaction_state-0", "a=1 | {last=3}", "--sealed", True),
        (
            "__transaction_state-0",
            "a=1 | {last=3} || b=1 | c=2",
            "--set=gaps=fail",
            True,
        ),  # the last segment stays as it is
        ("__transaction_state-0", "{last=3} | a=1", "--sealed", False),
        ("__consumer_offsets-0", "a=1 | {last=3}", "--sealed", False),
    ],
)
def test_transaction_state_unreadable_for_old_brokers_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, how: str, is_named: bool
) -> None:
    """A coordinator reads one segment at a time, so each of them counts. By KAFKA.md other topics are not concerned."""
    partitions, _ = restore_logs(tmp_path, capsys, {name: text}, how)
    [partition] = partitions["partitions"]
    assert partition["ends_in_empty_batch"] == is_named
    assert [note.split(":")[0] for note in partitions["notes"]] == [name] * is_named
