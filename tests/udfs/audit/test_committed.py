"""Committed offsets from the files of coordinators, against a plain replay. With a real broker: tests/kafka."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import Selection
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.audit import last_records
from lastkey.udfs.audit.committed import Committed, OffsetCommit, gather, partition_for, read_commits
from lastkey.udfs.audit.share_state import BATCH, ShareStateRecord, delivered_ranges, start_offset
from tests.builders.damage import edit
from tests.builders.groups import (
    CONSUMER_GROUP,
    GROUP_METADATA,
    SHARE_GROUP,
    commit,
    commit_key,
    commit_value,
    end,
    group_record,
    in_transaction,
    share_record,
    share_topics,
    write_log,
)
from tests.builders.logs import BatchText, Row, TextWriter
from tests.golden import STREAMS_GROUPS
from tests.reference.committed import GroupCoordinator, SharePartition

ID = bytes(range(16))


def read(root: Path) -> Committed:
    return gather([read_commits(partition) for partition in find_partitions([str(root)], Selection())])


def offsets(commits: Committed) -> dict[tuple[str, str, int], Any]:
    return {(row.group, row.topic, row.partition): row.offset for row in commits.rows}


def certain(commits: Committed) -> list[bool]:
    return [row.certain for row in commits.rows]


def test_last_commit_of_each_key_and_the_type_of_its_group_are_read(tmp_path):
    log = [
        group_record("g", GROUP_METADATA),
        commit("g", "t", 0, 5, metadata="first"),
        commit("g", "t", 1, 6, version=1),
        commit("g", "t", 2, 7, record_type=0, version=0),
        commit("h", "t", 0, 1),
        commit("g", "t", 0, 9, version=4, metadata="ü", topic_id=ID),
        commit("g", "t", 2, 3),  # the same key as of type 0, with a later word
        commit("h", "t", 0, None),
        group_record("g", GROUP_METADATA, is_tombstone=True),
        group_record("g", CONSUMER_GROUP),
        commit("alone", "t", 0, 0),
    ]
    write_log(tmp_path / "__consumer_offsets-0", [log[:4], log[4:]])
    commits = read(tmp_path)
    assert commits.notes == () and commits.problems == ()
    assert next(row for row in commits.rows if row.group == "g") == OffsetCommit(
        "g", "t", "AAECAwQFBgcICQoLDA0ODw", 0, 9, record_offset=5, group_type="consumer", coordinator_partition=0
    )
    assert offsets(commits) == {("alone", "t", 0): 0, ("g", "t", 0): 9, ("g", "t", 1): 6, ("g", "t", 2): 3}
    assert [row.group_type for row in commits.rows] == ["classic", *["consumer"] * 3]
    assert commits.unknown_because("absent") is None


def test_streams_groups_of_a_broker_are_read(tmp_path):
    with tarfile.open(STREAMS_GROUPS) as packed:
        packed.extractall(tmp_path, filter="data")
    answer = json.loads((tmp_path / "committed.json").read_text())
    expected = {name: one for name, one in answer.items() if one["type"] != "share"}  # whose offsets lie elsewhere
    assert len([name for name, one in expected.items() if one["type"] == "streams"]) == 3
    commits: dict[str, Any] = {}
    for row in read(tmp_path).rows:
        if row.group_type != "share":
            of = commits.setdefault(row.group, {"type": row.group_type, "offsets": {}})["offsets"]
            of[f"{row.topic}-{row.partition}"] = row.offset
    for one in expected.values():
        one["offsets"] = {name: values[0] for name, values in one["offsets"].items()}
    assert commits == expected


def test_commits_after_an_open_transaction_are_used_and_its_own_are_not(tmp_path):
    """A consumer of committed data would see nothing from the open transaction on; a coordinator does."""
    log = [
        in_transaction(1, commit("g", "t", 0, 10), commit("g", "t", 1, 11)),
        commit("h", "t", 0, 3),
        in_transaction(2, commit("g", "t", 2, 12)),
        end(2, commit=False),
        in_transaction(2, commit("g", "t", 3, 13)),
        end(2, commit=True),
    ]
    commits = read(write_log(tmp_path / "__consumer_offsets-0", [log]).parent)
    assert offsets(commits) == {("h", "t", 0): 3, ("g", "t", 3): 13}
    assert commits.notes == ("__consumer_offsets-0: 2 records of transactions without an end do not count",)


Event = tuple[Any, ...]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from([-1, -1, 1, 2]), st.sampled_from("gh"), st.integers(0, 1)),
        st.tuples(st.just("tombstone"), st.just(-1), st.sampled_from("gh"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["end", "end", "roll"]), st.sampled_from([1, 2]), st.booleans(), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.long
@settings(max_examples=60)
@given(EVENTS, st.booleans())
def test_committed_offsets_equal_the_replay_of_a_coordinator(tmp_path_factory, events, tiny):
    folder, coordinator = tmp_path_factory.mktemp("replay") / "__consumer_offsets-0", GroupCoordinator()
    segments: list[list[Any]] = [[]]
    for offset, (kind, producer, group, partition) in enumerate(event for event in events if event[0] != "roll"):
        if kind == "end":
            coordinator.end(producer, commit=group)
        else:
            value = None if kind == "tombstone" else offset
            coordinator.replay(offset, producer, (group, "t", partition), value)
    offset = 0
    for kind, producer, group, partition in events:
        if kind == "roll":
            if segments[-1]:
                segments.append([])
            continue
        if kind == "end":
            segments[-1].append(end(producer, commit=group))
        else:
            row = commit(group, "t", partition, None if kind == "tombstone" else offset)
            segments[-1].append(in_transaction(producer, row) if producer >= 0 else row)
        offset += 1
    if not segments[-1]:
        segments.pop()
    write_log(folder, segments or [[]])
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(last_records, "_FLUSH_BYTES", 0)
        assert offsets(read(folder.parent)) == {key: value for key, (_, value) in coordinator.offsets.items()}


# -- what cannot be read


def test_damaged_partition_makes_only_its_groups_unknown(tmp_path):
    groups = {partition_for(name, 2): name for name in ("a", "b", "c", "d")}
    for number, name in groups.items():
        write_log(tmp_path / f"__consumer_offsets-{number}", [[commit(name, "t", 0, 5), commit(name, "t", 1, 6)]])
    log = tmp_path / "__consumer_offsets-0" / "00000000000000000000.log"
    edit(log, log.stat().st_size - 3, b"\xff\xff")
    commits = read(tmp_path)
    assert [problem.kind for problem in commits.problems] == ["crc"]
    assert offsets(commits) == {(groups[0], "t", 0): 5, (groups[1], "t", 0): 5, (groups[1], "t", 1): 6}
    assert {row.group: row.certain for row in commits.rows} == {groups[0]: False, groups[1]: True}
    elsewhere = next(f"new{i}" for i in range(9) if partition_for(f"new{i}", 2) == 0)
    assert commits.unknown_because(elsewhere) == "__consumer_offsets-0 could not be read whole"
    assert commits.unknown_because(groups[1]) is None


def test_transaction_with_a_damaged_marker_does_not_use_the_next_marker(tmp_path):
    log = [
        in_transaction(1, commit("g", "t", 0, 10)),
        end(1, commit=False),
        in_transaction(1, commit("g", "t", 1, 11)),
        end(1, commit=True),
    ]
    path = write_log(tmp_path / "__consumer_offsets-0", [log]) / "00000000000000000000.log"
    first = 12 + int.from_bytes(path.read_bytes()[8:12])
    edit(path, first + 70, b"\xff")
    commits = read(tmp_path)
    assert offsets(commits) == {("g", "t", 1): 11}
    assert not commits.rows[0].certain and len(commits.problems) == 1


def test_missing_partition_makes_its_groups_unknown(tmp_path):
    write_log(tmp_path / "__consumer_offsets-1", [[commit(next(g for g in "abc" if partition_for(g, 2)), "t", 0, 5)]])
    commits = read(tmp_path)
    missing = next(f"new{i}" for i in range(9) if partition_for(f"new{i}", 2) == 0)
    assert commits.unknown_because(missing) == "__consumer_offsets-0 is not in the archive"
    assert gather([]).unknown_because("any") == "there is no __consumer_offsets"


def test_missing_segment_makes_its_groups_unknown_unless_gaps_are_accepted(tmp_path):
    folder = write_log(tmp_path / "__consumer_offsets-0", [[commit("g", "t", i, 5)] for i in range(3)])
    (folder / "00000000000000000001.log").unlink()
    commits = read(tmp_path)
    assert [problem.kind for problem in commits.problems] == ["gap"]
    assert certain(commits) == [False, False]
    (partition,) = find_partitions([str(tmp_path)], Selection())
    assert certain(gather([read_commits(partition, accept_gaps=True)])) == [True, True]


def test_unknown_records_are_noted(tmp_path):
    log = [
        commit("g", "t", 0, 5),
        Row(b"\0\x63new", b"\0\0"),
        Row(b"\0", b"\0\0"),
        Row(None, b"\0\0"),
        Row(commit_key("g", "t", 1), b"\0\x09" + commit_value(5)[2:]),
        Row(commit_key("g", "t", 2), commit_value(5)[:-3]),
    ]
    name = "__consumer_offsets-0"
    commits = read(write_log(tmp_path / name, [log]).parent)
    assert commits.notes == (
        f"{name}: 1 records without a key are left out",
        f"{name}: 1 records with a key shorter than its type are left out",
        f"{name}: 1 records of the unknown type 99 are left out",
        f"{name}, offset 4: the value of group 'g', topic 't', partition 1 cannot be read: unknown version 9; known"
        " are 0 to 4",
        f"{name}, offset 5: the value of group 'g', topic 't', partition 2 cannot be read: null",
    )
    assert certain(commits) == [True, False, False]
    assert offsets(commits) == {("g", "t", 0): 5, ("g", "t", 1): None, ("g", "t", 2): None}


def test_commit_with_an_unreadable_group_makes_the_partition_unknown(tmp_path):
    log = [commit("g", "t", 0, 5), Row(commit_key("other", "t", 0)[:-2], commit_value(1))]
    commits = read(write_log(tmp_path / "__consumer_offsets-0", [log]).parent)
    assert certain(commits) == [False]
    assert commits.unknown_because("other") == "__consumer_offsets-0 could not be read whole"


def test_group_in_a_wrong_partition_is_noted_and_ignored(tmp_path):
    home = partition_for("g", 2)
    write_log(tmp_path / f"__consumer_offsets-{home}", [[commit("g", "t", 0, 5)]])
    write_log(tmp_path / f"__consumer_offsets-{1 - home}", [[commit("g", "t", 0, 99), commit("g", "t", 1, 7)]])
    commits = read(tmp_path)
    assert offsets(commits) == {("g", "t", 0): 5, ("g", "t", 1): 7}
    assert commits.notes == (
        f"group 'g' has records in __consumer_offsets-{1 - home}, and of 2 partitions {home} is its own: their number"
        " was changed, or they come from several clusters",
    )


# -- share groups


def test_share_group_state_is_built_from_its_snapshot_and_updates(tmp_path):
    acknowledged, archived, released = 2, 4, 0
    of = "s", ID, 0
    log = [
        share_record(*of, 3, [(3, 9, acknowledged, 1)]),
        share_record(*of, 10, [(10, 12, acknowledged, 1), (13, 14, released, 1), (20, 29, released, 1)]),
        share_record(*of, -1, [(13, 13, archived, 2)], update=True),
        share_record(*of, 11, [(22, 24, acknowledged, 1), (25, 25, 1, 2)], update=True),
        share_record("gone", ID, 0, 5, []),
        share_record("gone", ID, 0, 0, None),
        share_record("new", ID, 1, -1, []),
    ]
    write_log(tmp_path / "__share_group_state-0", [log[:2], log[2:]])
    groups = [share_topics("s", "t", ID, [0, 1]), group_record("s", SHARE_GROUP)]
    write_log(tmp_path / "__consumer_offsets-0", [groups])
    commits = read(tmp_path)
    new, row = commits.rows
    assert (row.group, row.group_type, row.topic, row.offset) == ("s", "share", "t", 11)
    assert row.delivered == ((11, 13), (22, 24))
    assert (new.group, new.offset, new.certain) == ("new", None, True)
    assert commits.notes == ()


def test_share_partitions_whose_state_could_not_be_read_are_unknown(tmp_path):
    write_log(tmp_path / "__consumer_offsets-0", [[share_topics("s", "t", ID, [0, 1])]])
    commits = read(tmp_path)
    assert [(row.topic, row.partition, row.certain) for row in commits.rows] == [
        ("t", 0, False), ("t", 1, False)
    ]  # fmt: skip
    assert [row.group_type for row in commits.rows] == ["share", "share"]


BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: (first, first + size, state, count),
        st.integers(0, 40), st.integers(0, 20), st.sampled_from([0, 2, 4]), st.integers(1, 3),
    ),
    max_size=6,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([-1, -1, 5, 17, 30]), BATCHES), min_size=1, max_size=6))
def test_merged_state_batches_equal_a_merge_by_offset(drawn):
    partition = SharePartition()
    for number, (start, batches) in enumerate(drawn):
        (partition.update if number else partition.snapshot)(start, batches)
    changes = [ShareStateRecord(start, np.array(batches, BATCH)) for start, batches in drawn]
    assert start_offset(changes) == partition.start
    assert [o for first, last in delivered_ranges(changes) for o in range(first, last + 1)] == partition.delivered()


def test_merging_many_overlapping_batches_is_fast():
    n = 100_000
    batches = np.zeros(n, BATCH)
    batches["first"], batches["last"], batches["count"] = np.arange(n), 10**15 - np.arange(n), 1
    batches["state"] = np.where(np.arange(n) % 2, 2, 0)
    assert delivered_ranges([ShareStateRecord(0, batches)]) == [(1, 10**15 - 1)]
    longest = np.array([(5, 2**63 - 1, 2, 1)], BATCH)  # no offset comes after its last
    assert delivered_ranges([ShareStateRecord(0, longest)]) == [(5, 2**63 - 2)]


@pytest.mark.parametrize(
    ("name", "partition"), [("", 0), ("g", 3), ("ü\U0001f600", 21), ("polygenelubricants", 0), ("my-group", 12)]
)
def test_partition_of_a_group_equals_that_of_kafka(name, partition):
    assert partition_for(name, 50) == partition


def test_offsets_removed_by_a_cleaner_make_no_group_unknown(tmp_path):
    """Segments far behind the hole show that a cleaner was there, and nothing else does."""
    folder = write_log(tmp_path / "__consumer_offsets-0", [[commit("g", "t", i, 5)] for i in range(12)])
    for name in ("log", "index", "timeindex"):
        (folder / f"{1:020d}.{name}").unlink()
    assert [problem.kind for problem in read(tmp_path).problems] == ["gap"]
    with SegmentWriter(folder, 12) as log:
        for offset in (12, 20):
            TextWriter().append(log, BatchText((replace(commit("g", "t", offset, 5), offset=offset),)))
    commits = read(tmp_path)
    assert not commits.problems and certain(commits) == [True] * 13
