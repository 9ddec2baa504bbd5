"""judge_index: an index that is called right misleads no look-up, by brute force; and each word by an example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.layout import BATCH
from lastkey.logformat.side_files import offset_index, time_index
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.reindex.judge import IndexJudge, SideBytes, read_bounded
from lastkey.udfs.storage import open_root

BASE = 1000
LIMIT = 1 << 16


def batch_rows(batches):
    """Return BATCH[n] of (offsets, size, timestamp) of each."""
    rows = np.zeros(len(batches), BATCH)
    last, position = BASE - 1, 0
    for row, (n, size, timestamp) in zip(rows, batches, strict=True):
        row["base_offset"], row["last_offset"] = last + 1, last + n
        row["position"], row["size"], row["max_timestamp"] = position, size, timestamp
        last, position = last + n, position + size
    return rows


def rebuild_index(rows, interval=0):
    builder = IndexBuilder(BASE, interval)
    builder.append(rows["last_offset"], rows["size"], rows["max_timestamp"])
    return builder.finish()


def side(data, path="p"):
    return None if data is None else SideBytes(path, len(data), data[:LIMIT], data[LIMIT:].strip(b"\0") == b"")


def judged(rows, offset_data, time_data, interval=0, parts=2, limit=LIMIT):
    judge = IndexJudge(BASE, side(offset_data), side(time_data))
    for part in np.array_split(rows, parts):
        if len(part):
            judge.feed(part, int(part["position"][0]), int(part["size"].sum()))
    index, times = rebuild_index(rows, interval)
    return judge.offset_index(index, limit), judge.time_index(times, limit)


BATCHES = st.lists(st.tuples(st.integers(1, 4), st.integers(61, 64), st.integers(-1, 6)), max_size=8)
OFFSETS = st.lists(st.tuples(st.integers(-2, 20), st.integers(-1, 500)), max_size=4)
NEAR = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.sampled_from([0, 0, 0, 1])), max_size=4)
TIMES = st.lists(st.tuples(st.integers(-1, 7), st.integers(-1, 20)), max_size=4)


@pytest.mark.long
@given(BATCHES, OFFSETS, NEAR)
def test_accepted_offset_index_finds_every_batch(batches, wild, near):
    rows = batch_rows(batches)
    drawn = [(BASE + offset, position) for offset, position in wild]
    for more, number, off in near:  # entries that are often right
        if number < len(rows):
            drawn.append((int(rows["last_offset"][number]) + more, int(rows["position"][number]) + off))
    entries = np.array(sorted(drawn), offset_index.ENTRY)
    stored = np.zeros(len(entries), ">i4,>i4")
    stored["f0"], stored["f1"] = entries["offset"] - BASE, entries["position"]
    verdict, _ = judged(rows, stored.tobytes(), b"")
    if verdict.reason in ("wrong", "foreign", "torn"):
        return
    used = offset_index.read(stored.tobytes(), BASE, "p")
    last = int(rows["last_offset"][-1]) if len(rows) else BASE - 1
    if verdict.reason == "stale":
        used = used[used["position"] < int(rows["size"].sum())]  # a broker truncates the rest with the log
    for target in range(BASE, last + 1):
        row = np.searchsorted(used["offset"], target, "right") - 1  # as a broker looks it up
        position = int(used["position"][row]) if row >= 0 else 0
        after = rows[rows["position"] >= position]
        assert position == 0 or position in rows["position"]
        assert (
            after[after["last_offset"] >= target]["position"][0]
            == rows["position"][np.searchsorted(rows["last_offset"], target)]
        )


@given(BATCHES, TIMES, NEAR)
def test_accepted_time_index_finds_every_time(batches, wild, near):
    rows = batch_rows(batches)
    drawn = [(timestamp, BASE + offset) for timestamp, offset in wild]
    highest = np.maximum.accumulate(rows["max_timestamp"]) if len(rows) else np.empty(0)
    drawn += [
        (int(highest[number]) + off, int(rows["last_offset"][number])) for _, number, off in near if number < len(rows)
    ]
    entries = np.array(sorted(drawn), time_index.ENTRY)
    stored = np.zeros(len(entries), ">i8,>i4")
    stored["f0"], stored["f1"] = entries["timestamp"], entries["offset"] - BASE
    _, verdict = judged(rows, b"", stored.tobytes())
    if verdict.reason not in ("", "other_entries", "stale"):
        return
    used = time_index.read(stored.tobytes(), BASE, "p")
    if verdict.reason in ("", "other_entries"):
        largest = int(rows["max_timestamp"].max()) if len(rows) else -1
        assert (int(used["timestamp"][-1]) if len(used) else -1) == max(largest, -1)
    elif len(rows):
        used = used[used["offset"] <= rows["last_offset"][-1]]
    for target in range(9):
        row = np.searchsorted(used["timestamp"], target, "right") - 1
        offset = int(used["offset"][row]) if row >= 0 else BASE
        at_or_after = rows[rows["last_offset"] >= offset]
        position = at_or_after[at_or_after["max_timestamp"] >= target]["position"][:1]
        assert position.tolist() == rows[rows["max_timestamp"] >= target]["position"][:1].tolist()


LOG = batch_rows([(2, 70, 10), (1, 80, 20), (3, 75, 15), (2, 90, 30), (1, 61, 40), (4, 100, 40)])
INDEX, TIMES_OF = rebuild_index(LOG)


def entry(offset, position):
    return offset_index.write(np.array([(BASE + offset, position)], offset_index.ENTRY), BASE, "p")


def time_entry(timestamp, offset):
    return time_index.write(np.array([(timestamp, BASE + offset)], time_index.ENTRY), BASE, "p")


FIVE = [entry(*pair) for pair in ((2, 70), (5, 150), (7, 225), (8, 315), (12, 376))]
assert b"".join(FIVE) == INDEX


@pytest.mark.parametrize(
    ("data", "reason", "number"),
    [
        (INDEX, "", -1),
        (None, "missing", -1),
        (b"", "stale", 0),
        (INDEX[:-3], "torn", 4),
        (INDEX + b"\0\0\0", "torn", 5),
        (INDEX + bytes(80), "padded", 5),
        (INDEX[:16] + bytes(80), "padded", 2),
        (bytes(80), "padded", 0),
        (INDEX + bytes(2 * LIMIT), "padded", 5),
        (INDEX + bytes(2 * LIMIT) + b"\1" * 8, "huge", LIMIT // 8),
        (INDEX * 2000, "huge", LIMIT // 8),
        (INDEX[:-8], "stale", 4),
        (INDEX + entry(20, 600), "stale", 5),
        (FIVE[0] + FIVE[2] + FIVE[3], "other_entries", 1),
        (FIVE[0] + entry(6, 150) + b"".join(FIVE[2:]), "other_entries", 1),  # the largest offset of an append
        (FIVE[0] + entry(5, 151) + b"".join(FIVE[2:]), "wrong", 1),
        (FIVE[0] + entry(2, 150) + b"".join(FIVE[2:]), "wrong", 1),
        (FIVE[0] + entry(5, 9999) + b"".join(FIVE[2:]), "wrong", 1),
        (FIVE[0] + entry(500, 150) + b"".join(FIVE[2:]), "wrong", 1),
        (FIVE[1] + FIVE[0] + b"".join(FIVE[2:]), "wrong", 1),
        (INDEX[:16] + bytes(16) + INDEX[16:], "wrong", 4),
        (b"\xff" * 8 + INDEX[8:], "wrong", 0),
        (entry(3, 71) + entry(4, 151) + entry(9, 377), "foreign", 0),
        (entry(400, 20_000) + entry(500, 30_000), "foreign", 0),
    ],
)
def test_offset_index_problems_have_reason_and_position(data, reason, number):
    verdict, _ = judged(LOG, data, TIMES_OF)
    assert (verdict.reason, verdict.entry) == (reason, number)
    assert verdict.position == (number * 8 if number >= 0 else -1)
    assert bool(verdict.expected and verdict.found) == bool(reason)


THREE = [time_entry(*pair) for pair in ((20, 2), (30, 7), (40, 8))]
assert b"".join(THREE) == TIMES_OF


@pytest.mark.parametrize(
    ("data", "reason", "number"),
    [
        (TIMES_OF, "", -1),
        (None, "missing", -1),
        (b"", "stale", 0),
        (TIMES_OF[:-3], "torn", 2),
        (TIMES_OF + bytes(120), "padded", 3),
        (TIMES_OF[:-12] + bytes(120), "padded", 2),  # as a running broker has it
        (bytes(120), "padded", 0),
        (TIMES_OF + bytes(12 * LIMIT), "padded", 3),
        (TIMES_OF * 2000, "huge", LIMIT // 12),
        (TIMES_OF[:-12], "stale", 2),
        (TIMES_OF + time_entry(90, 30), "stale", 3),
        (THREE[0] + THREE[2], "other_entries", 1),
        (time_entry(10, 1) + TIMES_OF, "other_entries", 0),
        (THREE[0] + time_entry(15, 7) + THREE[2], "wrong", 1),
        (THREE[0] + time_entry(30, 8) + THREE[2], "wrong", 1),  # passes over the batch with 30
        (THREE[0] + time_entry(31, 8) + THREE[2], "other_entries", 1),
        (THREE[0] + time_entry(30, 12) + THREE[2], "wrong", 1),  # passes over the first batch with 40
        (THREE[0] + THREE[1] + time_entry(41, 8), "wrong", 2),
        (THREE[0] + THREE[1] + time_entry(2**40, 8), "wrong", 2),
        (THREE[1] + THREE[0] + THREE[2], "wrong", 1),
        (time_entry(5, 200) + time_entry(6, 300), "foreign", 0),
    ],
)
def test_time_index_problems_have_reason_and_position(data, reason, number):
    _, verdict = judged(LOG, INDEX, data)
    assert (verdict.reason, verdict.entry) == (reason, number)
    assert bool(verdict.expected and verdict.found) == bool(reason)


def test_indexes_of_an_empty_log_are_accepted():
    rows = batch_rows([])
    assert [v.reason for v in judged(rows, b"", b"")] == ["", ""]
    assert [v.reason for v in judged(rows, bytes(800), bytes(1200))] == ["padded", "padded"]
    assert [v.reason for v in judged(rows, INDEX, TIMES_OF)] == ["stale", "stale"]


def test_memory_is_limited_to_the_required_part_of_a_file(tmp_path):
    root = open_root(str(tmp_path))
    (tmp_path / "zeros").write_bytes(b"\7" + bytes(5 << 20))
    (tmp_path / "more").write_bytes(bytes(5 << 20) + b"\7")
    zeros, more = read_bounded(root, "zeros", 100), read_bounded(root, "more", 100)
    assert (zeros.size, len(zeros.head), zeros.only_zeros_behind) == ((5 << 20) + 1, 100, True)
    assert (len(more.head), more.only_zeros_behind) == (100, False)
    assert read_bounded(root, "more", 10 << 20).only_zeros_behind
