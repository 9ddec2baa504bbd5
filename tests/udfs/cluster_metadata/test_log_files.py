"""States that records of __cluster_metadata lead to; tests/kafka/test_policies.py has real snapshots and logs."""

from __future__ import annotations

import pytest
from pyarrow import fs as pafs

from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.cluster_metadata.image import TOPIC
from lastkey.udfs.cluster_metadata.log_files import FOLDER, list_metadata, newer_changes, read_metadata
from tests.builders.metadata import (
    ABORT,
    BEGIN,
    END,
    NO_OP,
    config,
    record,
    record_time_ms,
    removed,
    topic,
    unregistered,
    write_log,
)

LOCAL = pafs.LocalFileSystem()


def read(folder):
    return read_metadata(list_metadata(LOCAL, str(folder)))


def settings(metadata):
    return {name: metadata.image.get_settings(TOPIC, name) for name in metadata.image.topics}


def test_newest_value_of_a_setting_is_used_and_null_removes_it(tmp_path):
    write_log(tmp_path / FOLDER, [
        topic("a", 1), config("a", "retention.ms", "1"), config("a", "retention.ms", "2"), config("a", "x", "y"),
        config("a", "x", None), topic("b", 2), config("b", "retention.ms", ""), config("b", "gone", None), NO_OP,
    ])  # fmt: skip
    metadata = read(tmp_path)
    assert settings(metadata) == {"a": {"retention.ms": "2"}, "b": {"retention.ms": ""}}
    assert (metadata.end_offset, metadata.time_ms, metadata.notes) == (9, record_time_ms(8), [])


def test_recreated_topic_has_no_setting_of_the_old_topic(tmp_path):
    write_log(tmp_path, [topic("a", 1), config("a", "x", "y"), removed(1), topic("a", 2), topic("b", 3), removed(3)])
    assert settings(read(tmp_path)) == {"a": {}}


def test_open_metadata_transactions_are_ignored(tmp_path):
    ended = [BEGIN, config("a", "x", "1"), topic("b", 2), END]
    aborted = [BEGIN, config("a", "x", "2"), removed(1), ABORT]
    still_open = [BEGIN, config("a", "x", "3")]
    write_log(tmp_path, [topic("a", 1), *ended, *aborted, *still_open])
    metadata = read(tmp_path)
    assert settings(metadata) == {"a": {"x": "1"}, "b": {}}
    assert metadata.notes == ["1 records of a transaction that has not ended do not count"]


def test_metadata_segments_are_read_in_order_without_gaps(tmp_path):
    write_log(tmp_path, [topic("a", 1), NO_OP])
    second = write_log(tmp_path, [config("a", "x", "1")], 2)
    write_log(tmp_path, [config("a", "x", "2")], 3)
    assert settings(read(tmp_path)) == {"a": {"x": "2"}}
    second.unlink()
    with pytest.raises(LogFormatError, match="expected offsets up to 2, found up to 1"):
        read(tmp_path)
    (tmp_path / f"{0:020}.log").unlink()
    with pytest.raises(LogFormatError, match=r"expected offsets from 0 on, or a snapshot up to 3 or later, found 3"):
        read(tmp_path)


def test_record_types_of_a_newer_kafka_are_noted(tmp_path):
    write_log(tmp_path / "types", [record(99), topic("a", 1), record(99)])
    assert read(tmp_path / "types").notes == ["2 records of type 99, which Kafka 4.4 does not have, were passed over"]
    write_log(tmp_path / "versions", [topic("a", 1), record(4, version=1)])
    with pytest.raises(LogFormatError, match=r"record at offset 1"):
        read(tmp_path / "versions")
    newer = topic("a", 1)[:2] + b"\1" + topic("a", 1)[3:]
    write_log(tmp_path / "read as before", [newer])
    with pytest.raises(LogFormatError, match=r"expected a TopicRecord of version 0 to 0, found version 1, of a newer"):
        read(tmp_path / "read as before")


@pytest.mark.parametrize(
    "values",
    [
        [None], [b""], [b"hello"], [b"\2\2\0"], [topic("a", 1)[:-3]], [topic("a", 1) + b"x"], [topic("a", 1)] * 2,
        [removed(1)], [END], [BEGIN, BEGIN],
    ],
)  # fmt: skip
def test_malformed_metadata_records_are_errors(tmp_path, values):
    write_log(tmp_path, [NO_OP, *values])
    with pytest.raises(LogFormatError, match="record at offset"):
        read(tmp_path)


def test_truncation_is_an_error_or_gives_an_earlier_state(tmp_path):
    path = write_log(tmp_path / "whole", [topic("a", 1), *(config("a", "x", str(n)) for n in range(5))])
    data, states = path.read_bytes(), set()
    for size in range(len(data)):
        (tmp_path / path.name).write_bytes(data[:size])
        try:
            states.add(settings(read(tmp_path)).get("a", {}).get("x"))
        except LogFormatError as error:
            assert error.kind == "torn_tail"
    assert states == {None, "0", "1", "2", "3"}


def test_later_changes_are_counted(tmp_path):
    write_log(
        tmp_path / FOLDER, [topic("a", 1), config("a", "x", "1"), NO_OP, config("", "y", "1", 4), unregistered(1)]
    )

    def newer(offset, time_ms=-1):
        note = newer_changes(LOCAL, [str(tmp_path / "none"), str(tmp_path)], offset, time_ms)
        return None if note is None else note.partition(f"{FOLDER} ")[2]

    assert newer(1) == "has 2 later changes of topics or settings, from offset 1 on"
    assert newer(2) == "has 1 later change of topics or settings, from offset 3 on"
    assert newer(4) is None
    assert newer(400) is None
    assert newer(-1, record_time_ms(1)) == "has 1 later change of topics or settings, from offset 3 on"
    assert newer(-1, record_time_ms(3)) is None


def test_changes_before_the_start_of_the_log_are_unknown(tmp_path):
    write_log(tmp_path / FOLDER, [NO_OP], 10)
    assert "begins at offset 10: what changed between 5 and there" in newer_changes(LOCAL, [str(tmp_path)], 5, -1)
    assert newer_changes(LOCAL, [str(tmp_path)], 10, -1) is None
    (tmp_path / FOLDER / f"{10:020}.log").write_bytes(b"torn")
    assert "it is not known whether they are up to date" in newer_changes(LOCAL, [str(tmp_path)], 10, -1)
