"""index_builder and index_kernels against their twin, against what a broker wrote, and at their limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import offset_index, time_index
from lastkey.logformat.side_files.index_builder import IndexBuilder
from tests.reference.index_entries import index_entries, lawful_offset_index, lawful_time_index

# (last offset, size, max timestamp) of each batch of a segment that a 4.3.0 broker cleaned, and its index files.
REAL_BASE = 531
REAL_BATCHES = [
    (536, 219, 1795218115406), (537, 78, 1795221710971), (550, 78, 1795221710997), (562, 408, 1795218115666),
    (567, 325, 1795218115706), (568, 78, 1795221711002), (593, 201, 1795218115986), (595, 78, 1795221711035),
    (604, 541, 1795218116086), (614, 558, 1795218116176), (624, 349, 1795218116216), (632, 343, 1795218116366),
    (633, 78, 1795221711058), (645, 347, 1795218116436), (655, 299, 1795218116586), (665, 835, 1795218116676),
    (666, 78, 1795221711067), (675, 191, 1795218116736), (676, 78, 1795221711070), (687, 449, 1795218116866),
    (697, 697, 1795218116966), (699, 78, 1795221711097), (708, 530, 1795218117076), (718, 445, 1795218117166),
    (721, 292, 1795218117206), (722, 78, 1795221711123), (755, 449, 1795218117546), (756, 78, 1795221711131),
    (760, 450, 1795218117586), (768, 78, 1795221711157), (771, 201, 1795218117666), (772, 78, 1795221711182),
    (780, 575, 1795218117756), (781, 78, 1795221711205), (783, 314, 1795218117786), (792, 659, 1795218117876),
    (793, 78, 1795221711209), (814, 894, 1795218118086), (836, 78, 1795221711237), (865, 817, 1795218118586),
    (875, 78, 1795221711243), (881, 210, 1795218118696), (882, 78, 1795221711249), (887, 459, 1795218118786),
    (897, 894, 1795218118886), (904, 605, 1795218118946), (905, 78, 1795221711278), (924, 653, 1795218119146),
    (925, 78, 1795221711304), (965, 78, 1795221711336), (970, 687, 1795218119586), (979, 78, 1795221711342),
    (981, 330, 1795218119686), (982, 183, 1795218119696), (983, 78, 1795221711368), (992, 951, 1795218119786),
    (996, 440, 1795218119826), (997, 78, 1795221711392), (1003, 460, 1795218119876), (1013, 736, 1795218119986),
    (1019, 718, 1795218120046), (1020, 78, 1795221711418), (1024, 548, 1795218120086), (1034, 1119, 1795218120176),
    (1044, 1023, 1795218120286), (1054, 1233, 1795218120386),
]  # fmt: skip
REAL_INDEX = bytes.fromhex("00000087000012cf000000f10000231b0000016e00003447000001d10000469c00000201000056ed")
REAL_TIME_INDEX = bytes.fromhex(
    "000001a1fb8d68db00000087000001a1fb8d694e000000f1000001a1fb8d"
    "69910000015f000001a1fb8d6a08000001c4000001a1fb8d6a3a000001e9"
)

BATCHES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(61, 3000), st.integers(-1, 60)), max_size=60
)  # offsets in the batch, size, timestamp


def with_offsets(base, batches):
    """Return batches that begin at the base: the first may end there."""
    last = base - 1
    out = []
    for n, size, timestamp in batches:
        last += n
        out.append((last, size, timestamp))
    return out


def build(builder, batches, chunk):
    table = np.array(batches, np.int64).reshape(-1, 3)
    for begin in range(0, len(table), chunk):
        builder.append(*table[begin : begin + chunk].T)
    return builder.finish()


@settings(deadline=None)  # the first call compiles
@given(
    st.integers(0, 2**60), BATCHES, st.sampled_from([0, 61, 500, 4096]), st.integers(1, 20), st.integers(1, 20),
    st.sampled_from([0, 1, 7, 60]),
)  # fmt: skip
def test_indexes_built_in_chunks_equal_the_twin(base, batches, interval, chunk, max_entries, interval_ms):
    batches = with_offsets(base, batches)
    builder = IndexBuilder(base, interval, max_index_bytes=12 * max_entries, time_index_interval_ms=interval_ms)
    index, times = build(builder, batches, chunk)
    offset_entries, time_entries = index_entries(
        batches, base, interval, 12 * max_entries // 8, max_entries, max(interval_ms, 1)
    )
    assert offset_index.read(index, base, "p").tolist() == offset_entries
    assert len(index) == 8 * len(offset_entries)
    assert len(times) == 12 * len(time_entries)
    assert times == time_index.write(np.array(time_entries, time_index.ENTRY), base, "p")
    assert builder.size == sum(size for _, size, _ in batches)
    assert builder.finish() == (index, times)


@settings(deadline=None)
@given(BATCHES)
def test_built_indexes_pass_kafkas_sanity_check(batches):
    batches = with_offsets(1000, batches)
    index, times = build(IndexBuilder(1000, 100), batches, 7)
    assert lawful_offset_index(offset_index.read(index, 1000, "p"), 1000, sum(b[1] for b in batches))
    assert lawful_time_index(time_index.read(times, 1000, "p"), 1000)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_indexes_are_built_byte_for_byte_as_a_broker_wrote_them(chunk):
    assert build(IndexBuilder(REAL_BASE), REAL_BATCHES, chunk) == (REAL_INDEX, REAL_TIME_INDEX)


def test_index_interval_is_exclusive_and_the_first_batch_is_not_indexed():
    batches = [(0, 100, 5), (1, 100, 6), (2, 100, 7)]
    assert build(IndexBuilder(0, 100), batches, 9)[0] == bytes.fromhex("00000002000000c8")
    assert build(IndexBuilder(0, 99), batches, 9)[0] == bytes.fromhex("0000000100000064 00000002000000c8")


def test_time_entries_have_distinct_minutes_and_include_the_last():
    minutes = [(0, 100, 0), (1, 100, 59_999), (2, 100, 60_000), (3, 100, 119_999), (4, 100, 240_000), (5, 100, 250_000)]
    times = build(IndexBuilder(0, 0, time_index_interval_ms=60_000), minutes, 2)[1]
    assert time_index.read(times, 0, "p").tolist() == [(59_999, 1), (60_000, 2), (240_000, 4), (250_000, 5)]


def test_records_without_timestamps_have_no_time_entries():
    assert build(IndexBuilder(0, 0), [(i, 100, -1) for i in range(5)], 2)[1] == b""


def test_one_batch_gives_one_forced_time_entry():
    assert build(IndexBuilder(40), [(40, 100, 0)], 1) == (b"", bytes(12))


def test_indexes_of_an_empty_log_are_empty():
    builder = IndexBuilder(3)
    builder.append([], [], [])
    assert builder.finish() == (b"", b"")


@pytest.mark.parametrize("wrong", [10 + 2**31, 9])
def test_relative_offset_out_of_range_is_an_error(wrong):
    builder = IndexBuilder(10, path="some.log")
    builder.append([10 + 2**31 - 1], [100], [5])
    before = builder.finish()
    with pytest.raises(LogFormatError) as caught:
        builder.append([10, wrong], [100, 100], [5, 5])
    assert (caught.value.kind, caught.value.position, caught.value.path) == ("relative_offset", 200, "some.log")
    assert builder.finish() == before


def test_log_longer_than_the_range_of_positions_is_refused():
    builder = IndexBuilder(0)
    builder.append([1], [2**31 - 101], [0])
    builder.append([2], [100], [0])
    assert builder.size == 2**31 - 1
    with pytest.raises(LogFormatError) as caught:
        builder.append([3], [1], [0])
    assert caught.value.kind == "length"


def test_a_full_index_gets_no_more_entries():
    builder = IndexBuilder(0, 0, max_index_bytes=24)  # 3 offset entries, 1 time entry and the final one
    builder.append([0, 1], [100, 100], [-1, -1])
    builder.append([2], [100], [5])
    builder.append([3, 4, 5], [100] * 3, [6, 7, 8])
    index, times = builder.finish()
    assert [len(index), len(times)] == [24, 24]
    assert times[12:] == bytes.fromhex("000000000000000800000005")


def test_invalid_limits_are_refused():
    for wrong in ((-1, 100), (0, 11)):
        with pytest.raises(ValueError):
            IndexBuilder(0, *wrong)
