"""Text side files, and the rules of leader epochs."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import checkpoints
from lastkey.logformat.side_files.checkpoints import MetaProperties

OFFSETS = st.dictionaries(
    st.tuples(st.text("abc._-", min_size=1, max_size=9), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    max_size=9,
)
EPOCHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), max_size=9).map(
    lambda steps: [(int(e) - 1, int(o) - 1) for e, o in np.cumsum(np.array(steps, int).reshape(-1, 2), axis=0)]
)


def rising(epochs):
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))


@given(OFFSETS)
def test_offset_checkpoint_is_read_as_written(offsets):
    assert checkpoints.read_offset_checkpoint(checkpoints.write_offset_checkpoint(offsets), "p") == offsets


@given(EPOCHS)
def test_leader_epochs_are_read_as_written(epochs):
    assert checkpoints.read_leader_epochs(checkpoints.write_leader_epochs(epochs), "p") == epochs


def test_checkpoints_are_written_as_kafka_writes_them():
    assert checkpoints.write_offset_checkpoint({("b-c", 1): 7, ("a", 12): 0}) == b"0\n2\na 12 0\nb-c 1 7\n"
    assert checkpoints.write_offset_checkpoint({}) == b"0\n0\n"
    assert checkpoints.write_leader_epochs([(0, 0), (3, 99)]) == b"0\n2\n0 0\n3 99\n"


@pytest.mark.parametrize("data", [b"", b"0\n", b"0", b"0\n0\n"])
def test_a_checkpoint_without_entries_is_empty(data):
    assert checkpoints.read_offset_checkpoint(data, "p") == {}
    assert checkpoints.read_leader_epochs(data, "p") == []


def test_any_white_space_separates_fields():
    assert checkpoints.read_offset_checkpoint(b"0\r\n1\r\na \t 1  5\r\n", "p") == {("a", 1): 5}
    assert checkpoints.read_offset_checkpoint(b"0\n1\na 1 5", "p") == {("a", 1): 5}


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"1\n0\n", 0), (b"x", 0), (b"0\nx\n", 2), (b"0\n1\na 1\n", 4), (b"0\n1\na 1 2 3\n", 4), (b"0\n2\na 1 2\n", 10),
        (b"0\n0\na 1 2\n", 10), (b"0\n1\na b 2\n", 4), (b"0\n1\na 1 2.5\n", 4), (b"0\n2\na 1 2\n\n", 10),
        (b"0\n1\n\xff 1 2\n", 4), (b"0\n1\na 1 9223372036854775808\n", 4),
        (b"0\n1\x1f\na 1 2\n", 2), (b"0\n1\na\x1c1 2\n", 4),  # a space of Python's, none of Java's
        (b"0\n1\na 1 -9223372036854775809\n", 4), (b"0\n1\na 2147483648 2\n", 4),
    ],
)  # fmt: skip
def test_invalid_offset_checkpoint_is_refused(data, position):
    with pytest.raises(LogFormatError) as caught:
        checkpoints.read_offset_checkpoint(data, "some-checkpoint")
    assert (caught.value.kind, caught.value.path, caught.value.position) == ("side_file", "some-checkpoint", position)


def test_unsorted_leader_epochs_are_read_as_by_a_broker():
    assert checkpoints.read_leader_epochs(b"0\n2\n1 5\n1 6\n", "p") == [(1, 5)]
    assert checkpoints.read_leader_epochs(b"0\n2\n1 5\n2 5\n", "p") == [(2, 5)]


@pytest.mark.parametrize(
    "data",
    [b"0\n1\n1 5 6\n", b"0\n1\n-1 6\n", b"0\n1\n1 -6\n", b"0\n1\n2147483648 6\n", b"0\n1\n1 9223372036854775808\n"],
)
def test_negative_leader_epochs_are_refused(data):
    with pytest.raises(LogFormatError) as caught:
        checkpoints.read_leader_epochs(data, "p")
    assert (caught.value.kind, caught.value.position) == ("side_file", 4)


def test_an_epoch_is_assigned_once_at_its_first_offset():
    assert checkpoints.assign([], 0, 0) == [(0, 0)]
    assert checkpoints.assign([(0, 0)], 2, 10) == [(0, 0), (2, 10)]
    assert checkpoints.assign([(0, 0), (2, 10)], 2, 15) == [(0, 0), (2, 10)]
    assert checkpoints.assign([(0, 0), (2, 10)], 2, 5) == [(0, 0), (2, 5)]
    assert checkpoints.assign([(0, 0), (2, 10)], 3, 10) == [(0, 0), (3, 10)]
    assert checkpoints.assign([(0, 0), (2, 10)], 3, 0) == [(3, 0)]
    assert checkpoints.assign([(0, 0), (2, 10), (4, 20)], 1, 30) == [(0, 0), (1, 30)]
    for wrong in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError):
            checkpoints.assign([], *wrong)


@given(EPOCHS, st.integers(0, 60), st.integers(0, 300))
def test_assigning_an_epoch_keeps_the_order(epochs, epoch, start):
    result = checkpoints.assign(epochs, epoch, start)
    assert rising(result)
    assert result[-1][0] == epoch
    assert set(result[:-1]) <= set(epochs)


def test_epochs_below_the_log_start_are_cut_off():
    epochs = [(0, 0), (2, 10), (4, 20)]
    assert checkpoints.truncate_from_start(epochs, 0) == epochs
    assert checkpoints.truncate_from_start(epochs, 9) == [(0, 9), (2, 10), (4, 20)]
    assert checkpoints.truncate_from_start(epochs, 10) == [(2, 10), (4, 20)]
    assert checkpoints.truncate_from_start(epochs, 99) == [(4, 99)]
    assert checkpoints.truncate_from_start([(2, 10)], 5) == [(2, 10)]
    assert checkpoints.truncate_from_start([], 5) == []
    assert checkpoints.truncate_from_end(epochs, 21) == epochs
    assert checkpoints.truncate_from_end(epochs, 20) == [(0, 0), (2, 10)]
    assert checkpoints.truncate_from_end(epochs, 0) == []


@given(EPOCHS, st.lists(st.tuples(st.integers(-1, 60), st.integers(1, 9)), max_size=20))
def test_assigning_batches_equals_assigning_each_batch(epochs, batches):
    leader_epochs = np.array([epoch for epoch, _ in batches], np.int32)
    base_offsets = np.cumsum([0, *(n for _, n in batches)])[:-1] + 200
    expected = list(epochs)
    for epoch, base in zip(leader_epochs.tolist(), base_offsets.tolist(), strict=True):
        if epoch >= 0 and (not expected or epoch > expected[-1][0]):
            expected = checkpoints.assign(expected, epoch, base)
    assert checkpoints.assign_batches(epochs, leader_epochs, base_offsets) == expected


@pytest.mark.parametrize("text", ["", "x", "a6e4EJ2tEdGAtADAT9QwyA=", "a6e4EJ2tEdGAtADAT9Qwy\u0663", "%" * 22])
def test_invalid_topic_id_is_refused(text):
    """An id that is not ASCII, too: a partition's folder is listed with a note, and stops no job."""
    with pytest.raises(LogFormatError, match="side_file: expected an id of 22 characters"):
        checkpoints.read_partition_metadata(f"version: 0\ntopic_id: {text}".encode(), "p")


@given(st.uuids())
def test_partition_metadata_is_read_as_written(topic_id):
    data = checkpoints.write_partition_metadata(topic_id)
    assert len(data) == 43
    assert checkpoints.read_partition_metadata(data, "p") == topic_id
    assert checkpoints.read_partition_metadata(data + b"\n", "p") == topic_id


def test_partition_metadata_of_a_broker_is_read():
    data = b"version: 0\ntopic_id: aglhGg16Qsm0sAO3jj1hzA"
    topic_id = checkpoints.read_partition_metadata(data, "p")
    assert topic_id == UUID("6a09611a-0d7a-42c9-b4b0-03b78e3d61cc")
    assert checkpoints.write_partition_metadata(topic_id) == data


@pytest.mark.parametrize(
    "data",
    [b"", b"version: 1\ntopic_id: aglhGg16Qsm0sAO3jj1hzA", b"version: 0\ntopic_id: aglhGg16Qsm0sAO3jj1hz",
     b"version: 0", b"version: 0\ntopic_id: aglhGg16Qsm0sAO3jj1h!A", b"\xff"],
)  # fmt: skip
def test_invalid_partition_metadata_is_refused(data):
    with pytest.raises(LogFormatError) as caught:
        checkpoints.read_partition_metadata(data, "p")
    assert caught.value.kind == "side_file"


def test_meta_properties_are_read():
    text = (
        b"#\n#Tue Nov 14 10:00:00 UTC 2023\nnode.id=3\ndirectory.id=k1nVsIyzTgmYVlDHQ6JWSw\nversion=1\n"
        b"cluster.id=4L6g3nShT-eMCtK--X86sw\n"
    )
    expected = MetaProperties(1, 3, "4L6g3nShT-eMCtK--X86sw", "k1nVsIyzTgmYVlDHQ6JWSw")
    assert checkpoints.read_meta_properties(text, "p") == expected
    old = b"# c\nbroker.id = 7\nversion: 0\n"
    assert checkpoints.read_meta_properties(old, "p") == MetaProperties(0, 7, "")
    escaped = b"version=1\r\ncluster.id=a\\:b\\=c\\u0041\r\n"
    assert checkpoints.read_meta_properties(escaped, "p") == MetaProperties(1, -1, "a:b=cA")
    for wrong in (b"", b"version", b"version=2\n", b"version=1\nnode.id=x\n", b"\xff"):
        with pytest.raises(LogFormatError) as caught:
            checkpoints.read_meta_properties(wrong, "p")
        assert caught.value.kind == "side_file"
        assert caught.value.found


def test_clean_shutdown_file_is_read_and_written():
    assert checkpoints.write_clean_shutdown() == b'{"version":0,"brokerEpoch":-1}'


def test_position_of_a_problem_is_within_the_file():
    """Also where its last line has no end."""
    for data in (b"0\n1", b"0\n2\nt 0 1"):
        with pytest.raises(LogFormatError) as caught:
            checkpoints.read_offset_checkpoint(data, "p")
        assert caught.value.position == len(data)
