"""Names: made, parsed, and what start-up makes of a folder in which a broker was stopped."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lastkey.logformat import names
from lastkey.logformat.names import PartitionFolder, SegmentFile, resolve_leftovers, segment_file

ID = "0f" * 16
TOPICS = st.text("abzAZ09._-", min_size=1, max_size=names.MAX_TOPIC).filter(names.is_topic)


@given(TOPICS, st.integers(0, 2**31 - 1))
def test_partition_folder_names_are_parsed_as_made(topic, partition):
    name = names.partition_folder(topic, partition)
    assert names.parse_partition_folder(name) == PartitionFolder(topic, partition)
    assert names.parse_partition_folder(names.partition_folder(topic, partition, "future", ID)) == PartitionFolder(
        topic, partition, "future", ID
    )


@given(TOPICS, st.integers(0, 2**31 - 1), st.sampled_from(["delete", "stray"]))
@example("t" * names.MAX_TOPIC, 2**31 - 1, "stray")
def test_folder_name_with_a_suffix_is_limited_to_255(topic, partition, mark):
    name = names.partition_folder(topic, partition, mark, ID)
    assert len(name) <= 255
    parsed = names.parse_partition_folder(name)
    assert (parsed.partition, parsed.mark, parsed.mark_id) == (partition, mark, ID)
    assert parsed.topic == topic[: 255 - len(f"-{partition}.{ID}-{mark}")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-b-12", PartitionFolder("a-b", 12)),
        ("a--0", PartitionFolder("a-", 0)),
        ("a.b-7", PartitionFolder("a.b", 7)),
        ("__cluster_metadata-0", PartitionFolder("__cluster_metadata", 0)),
        (f"t-3.{ID}-delete", PartitionFolder("t", 3, "delete", ID)),
        (f"x.y-3.{ID}-stray", PartitionFolder("x.y", 3, "stray", ID)),
        (f"t-3.{ID}-future", PartitionFolder("t", 3, "future", ID)),
        ("orders", None),
        ("-5", None),
        ("orders-", None),
        ("orders-x", None),
        ("orders-2147483648", None),
        ("orders-99999999999", None),
        ("my backup-3", None),
        ("..-0", None),
        ("t-3.-delete", None),
        (f"t.{ID}-delete", None),
        ("remote-log-index-cache", None),
    ],
)
def test_partition_folders_are_recognized_by_name(name, expected):
    assert names.parse_partition_folder(name) == expected


@pytest.mark.parametrize("wrong", [("", 0), ("a b", 0), (".", 0), ("a" * 250, 0), ("a", -1), ("a", 2**31)])
def test_invalid_folder_names_are_refused(wrong):
    with pytest.raises(ValueError):
        names.partition_folder(*wrong)
    with pytest.raises(ValueError):
        names.partition_folder("a", 0, "gone", ID)


@given(st.integers(0, 2**63 - 1), st.sampled_from(names.KINDS), st.sampled_from(("", *names.SUFFIXES)))
def test_segment_file_names_are_parsed_as_made(base, kind, suffix):
    name = segment_file(base, kind, suffix)
    assert name.split(".")[0] == f"{base:020d}"
    assert names.parse_segment_file(name) == SegmentFile(base, kind, suffix)


@pytest.mark.parametrize(
    "name",
    ["0.log", "00000000000000000000.Log", "00000000000000000000.log.tmp", "99999999999999999999.log", "x.log",
     "00000000000000000000.log ", "00000000000000000000.log.swap.swap", "00000000000000000000.checkpoint"],
)  # fmt: skip
def test_other_names_are_no_segment_files(name):
    assert names.parse_segment_file(name) is None


def test_invalid_segment_file_names_are_refused():
    for wrong in ((-1, "log"), (2**63, "log"), (0, "txt"), (0, "log", ".old")):
        with pytest.raises(ValueError):
            segment_file(*wrong)


def test_other_files_of_a_log_directory_are_recognized():
    for name in (".lock", ".kafka_cleanshutdown", "meta.properties", "replication-offset-checkpoint",
                 "recovery-point-offset-checkpoint.tmp"):  # fmt: skip
        assert names.is_directory_file(name)
    for name in ("u-0.tar", "a.tmp", "bootstrap.checkpoint", "quorum-state", "00000000000000000000.log"):
        assert not names.is_directory_file(name)
    assert names.is_unfinished_side_file("leader-epoch-checkpoint.tmp")
    assert not names.is_unfinished_side_file("00000000000000000000.log.tmp")
    assert names.is_cached_index("42_Qd7GwFDrRBGUyu3sYnGIVQ.timeindex")
    assert not names.is_cached_index("42_Qd7GwFDrRBGUyu3sYnGIVQ.log")


# A folder as lines: "<base>.<kind>[.suffix] ..." with the base unpadded; the result in the same words.


def folder(text):
    out = []
    for word in text.split():
        base, _, rest = word.partition(".")
        out.append((f"{int(base):020d}.{rest}" if base.isdigit() else word, 100))
    return out


def resolve(text, next_offset=()):
    resolved = resolve_leftovers(folder(text), dict(next_offset))
    files = {(base, kind): file.name for base, segment in resolved.segments.items() for kind, file in segment.items()}
    files |= {(offset, names.SNAPSHOT): file.name for offset, file in resolved.snapshots.items()}
    chosen = set(files.values())
    assert chosen | set(resolved.ignored) | set(resolved.side_files) == {name for name, _ in folder(text)}
    assert not chosen & set(resolved.ignored)
    assert list(resolved.segments) == sorted(resolved.segments) and list(resolved.snapshots) == sorted(
        resolved.snapshots
    )
    for place, name in files.items():
        parsed = names.parse_segment_file(name)
        assert (parsed.base, parsed.kind) == place
    return " ".join(sorted(f"{int(name.split('.')[0])}.{name.split('.', 1)[1]}" for name in chosen)), resolved


FULL = "0.log 0.index 0.timeindex 10.log 10.index 10.timeindex 20.log 20.index 20.timeindex 10.snapshot 20.snapshot"


def words(text):
    return " ".join(sorted(text.split()))


def test_folder_without_a_swap_lists_all_files():
    taken, resolved = resolve(FULL + " leader-epoch-checkpoint partition.metadata .lock readme.txt")
    assert taken == words(FULL)
    assert resolved.side_files == {"leader-epoch-checkpoint": 100, "partition.metadata": 100}
    assert set(resolved.ignored) == {".lock", "readme.txt"}
    assert resolved.notes == []


def test_cleaned_files_alone_give_the_old_data():
    resolved, _ = resolve(FULL + " 0.log.cleaned 0.index.cleaned")
    assert resolved == words(FULL)


def test_partial_rename_to_swap_gives_the_old_data():
    resolved, _ = resolve(FULL + " 0.log.swap 0.index.swap 0.timeindex.cleaned", {0: 20})
    assert resolved == words(FULL)


def test_swap_is_valid_only_below_the_lowest_cleaned_file():
    resolved, _ = resolve(FULL + " 0.log.swap 0.index.swap 10.log.swap 20.log.cleaned", {0: 10, 10: 15})
    assert resolved == words("0.log.swap 0.index.swap 10.log.swap 20.log 20.index 20.timeindex 20.snapshot")
    resolved, _ = resolve(FULL + " 0.log.swap 10.log.cleaned 10.log.swap", {0: 10})
    assert "0.log.swap" in resolved and "10.log.swap" not in resolved and "10.log" in resolved


def test_swap_before_deletion_gives_the_cleaned_data():
    taken, resolved = resolve(FULL + " 0.log.swap 0.index.swap 0.timeindex.swap", {0: 20})
    assert taken == words("0.log.swap 0.index.swap 0.timeindex.swap 20.log 20.index 20.timeindex 20.snapshot")
    assert ".swap" in resolved.notes[0]
    assert resolved.segments[0]["log"].name == segment_file(0, "log", ".swap")


def test_swap_replaces_segments_by_base_offset_only():
    resolved, _ = resolve(FULL + " 0.log.swap", {0: 11})
    assert resolved == words("0.log.swap 20.log 20.index 20.timeindex 20.snapshot")
    resolved, _ = resolve(FULL + " 0.log.swap", {0: 10})
    assert "10.log" in resolved and "10.snapshot" in resolved


def test_swap_after_deletion_gives_the_cleaned_data():
    resolved, _ = resolve("0.log.deleted 10.log.deleted 0.log.swap 0.index.swap 20.log 20.index", {0: 20})
    assert resolved == words("0.log.swap 0.index.swap 20.log 20.index")


def test_one_remaining_swap_file_is_used():
    resolved, _ = resolve("0.log 0.index 0.timeindex.swap 20.log 20.index 20.timeindex")
    assert resolved == words("0.log 0.index 0.timeindex.swap 20.log 20.index 20.timeindex")


def test_swap_of_an_index_replaces_the_index_of_that_name():
    taken, resolved = resolve("0.log 0.index 0.index.swap")
    assert taken == "0.index.swap 0.log"
    assert segment_file(0, "index") in resolved.ignored


def test_single_deleted_file_gives_the_cleaned_data():
    resolved, _ = resolve("0.log 0.index 0.timeindex 10.log.deleted 10.index.deleted 10.snapshot.deleted")
    assert resolved == words("0.log 0.index 0.timeindex")


def test_interrupted_split_gives_the_swap_files():
    text = "0.log 0.index 0.timeindex 0.log.swap 0.index.swap 7.log.swap 7.index.swap 20.log 20.index"
    resolved, _ = resolve(text, {0: 7, 7: 20})
    assert resolved == words("0.log.swap 0.index.swap 7.log.swap 7.index.swap 20.log 20.index")


def test_empty_swap_replaces_only_the_segment_of_that_name():
    resolved, _ = resolve(FULL + " 0.log.swap", {0: 0})
    assert resolved == words(FULL.replace("0.log ", "0.log.swap ", 1))


def test_index_without_a_log_and_log_without_an_index_are_listed():
    taken, resolved = resolve("0.log 0.timeindex 5.index 5.txnindex 9.log 9.index")
    assert taken == words("0.log 0.timeindex 9.log 9.index")
    assert [note.split(": ")[1] for note in resolved.notes] == [segment_file(0, "index"), segment_file(9, "timeindex")]


def test_next_offset_is_read_only_for_segments_with_a_swap():
    read_names = []

    def next_offset(name):
        read_names.append(name)
        return 20

    resolve_leftovers(folder(FULL + " 0.log.swap 0.index.swap 10.log.swap 10.log.cleaned"), next_offset)
    assert read_names == [segment_file(0, "log", ".swap")]


def test_listed_files_have_their_sizes():
    resolved = resolve_leftovers([(segment_file(3, "log"), 77)], {})
    assert resolved.segments[3]["log"].size == 77
