"""Corruption is a suite: `verify` finds each damage at its place, and the partition is uncleanable or the compaction
notes it.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.config import Config
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.names import segment_file
from lastkey.logformat.primitives.codec import compress
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.partition import check_partition
from tests.builders.damage import (
    RECORDS,
    SEGMENT_OFFSETS,
    SEGMENTS,
    START_MS,
    Partition,
    batch_at,
    build,
    edit,
    flip,
    replace_body,
    resign,
)
from tests.builders.limits import as_nobody, open_to_all
from tests.builders.plans import changed
from tests.builders.sources import read
from tests.reference.log import GZIP, LZ4, NONE, SNAPPY, ZSTD, Batch, Record, data_batch, marker_batch

CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
COMPRESSED = {name: codec for name, codec in CODECS.items() if codec}
INNER = SEGMENT_OFFSETS  # base of the segment that is damaged
ACTIVE = (SEGMENTS - 1) * SEGMENT_OFFSETS
OF_A_BATCH = ("length", "crc", "magic", "codec", "compressed", "count", "varint", "record", "offsets")


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def with_codec(codec: int) -> Callable[[int], Batch]:
    """Return a function that makes a batch of a codec; the reference does not write lz4."""

    def make(base: int) -> Batch:
        batch = batch_at(base, codec=NONE)
        body = compress(codec, batch.data[61:])
        raw = bytearray(batch.data[:61] + body)
        struct.pack_into(">i", raw, 8, 49 + len(body))
        struct.pack_into(">h", raw, 21, codec)
        return replace(batch, data=bytes(raw))

    return make


def coded(tmp_path: Path, codec: int) -> Partition:
    part = build(tmp_path / "archive")
    for number in range(SEGMENTS):
        base = number * SEGMENT_OFFSETS
        part.write(base, [with_codec(codec)(base + i * RECORDS) for i in range(3)], active=number == SEGMENTS - 1)
        for position in part.positions(base):
            resign(part.log(base), position)
    return part


def expect(part: Partition, kind: str, position: int, *, base: int = INNER, sealed: bool = False) -> Problem:
    """Check that verify finds a problem, and that the partition is uncleanable for the same one. The data source must
    quarantine a bad batch, and read the other segments.
    """
    path = f"t-0/{segment_file(base, 'log')}"
    checked = part.verify(sealed=sealed)
    problems = [(p.kind, p.path, p.position) for p in checked.problems]
    assert (kind, path, position) in problems
    result = part.compact(sealed=sealed)
    assert result.status == "uncleanable"
    problem = result.problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.position) == (kind, path, position)
    assert problem.expected and problem.found and problem.expected != problem.found
    if kind in OF_A_BATCH:
        rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
        bad = [row["problem"] for row in rows if row["problem"]]
        assert (kind, f"{part.root}/{path}", position) in [(p["kind"], p["path"], p["position"]) for p in bad]
        others = [o for o in range(SEGMENTS * SEGMENT_OFFSETS) if not INNER <= o < 2 * INNER and o < ACTIVE]
        assert set(others) <= {row["offset"] for row in rows}
    return problem


def works(part: Partition, *, sealed: bool = False) -> bytes:
    """Check that the partition is compacted all the same; return the bytes of its cleaned segments."""
    result = part.compact(sealed=sealed)
    assert result.status == "cleaned", result.problem
    return part.cleaned_bytes(result)


def with_checkpoint(part: Partition, offset: int) -> None:
    """Write a cleaner checkpoint: a broker cleaned everything below the offset."""
    (part.root / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def test_undamaged_partition_has_no_problem(part: Partition) -> None:
    checked = part.verify()
    assert not checked.problems and not checked.notes and not checked.not_checked
    assert (checked.segments, checked.batches, checked.records) == (4, 12, 48)
    assert works(part)


# -- bits


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("at", [23, 30, 40, 45, 52, 55, 60, 61, 70])
def test_flipped_bit_is_a_checksum_problem(tmp_path: Path, codec: str, at: int) -> None:
    part = coded(tmp_path, CODECS[codec])
    position = part.positions(INNER)[1]
    flip(part.log(INNER), position + at, 3)
    expect(part, "crc", position)


def test_damaged_batch_does_not_hide_the_next_one(part: Partition) -> None:
    positions = part.positions(INNER)
    for position in positions:
        flip(part.log(INNER), position + 50)
    flip(part.log(0), 30)
    problems = [(p.kind, p.path, p.position) for p in part.verify().problems if p.kind == "crc"]
    assert problems == [("crc", f"t-0/{segment_file(0, 'log')}", 0)] + [
        ("crc", f"t-0/{segment_file(INNER, 'log')}", p) for p in positions
    ]


def test_damaged_bodies_are_each_reported(part: Partition) -> None:
    log, positions = part.log(INNER), part.positions(INNER)
    for position in (positions[0], positions[2]):
        edit(log, position + 61, b"\xff" * 6)
        resign(log, position)
    problems = part.verify().problems
    assert [(p.kind, p.position) for p in problems] == [("varint", positions[0] + 61), ("varint", positions[2] + 61)]


# -- length


def test_length_field_too_large_by_one_is_a_problem(part: Partition) -> None:
    position = part.positions(INNER)[1]
    flip(part.log(INNER), position + 11)
    expect(part, "crc", position)
    assert len(part.verify().problems) == 1  # the index tells where the next batch begins


@pytest.mark.parametrize("length", [0, 13, -1, 48])
def test_invalid_length_field_is_a_problem(part: Partition, length: int) -> None:
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", length))
    problem = expect(part, "length", position)
    assert problem.base_offset == INNER + RECORDS


def test_length_beyond_the_end_is_a_problem(part: Partition) -> None:
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", 1 << 20))
    checked = part.verify()
    assert [(p.kind, p.position) for p in checked.problems] == [("length", position)]
    result = part.compact()
    assert result.problem is not None
    assert (result.status, result.problem.kind, result.problem.position) == ("uncleanable", "torn_tail", position)


def test_length_beyond_the_end_without_an_index_is_a_problem(part: Partition) -> None:
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", 1 << 20))
    (part.folder / segment_file(INNER, "index")).unlink()
    expect(part, "torn_tail", position)


def test_unread_bytes_after_damage_without_an_index_are_reported(part: Partition) -> None:
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 8, struct.pack(">i", -1))
    (part.folder / segment_file(INNER, "index")).unlink()
    checked = part.verify()
    left = part.log(INNER).stat().st_size - position
    assert [(p.kind, p.position) for p in checked.problems] == [("length", position)]
    assert str(left) in checked.problems[0].hint
    assert checked.not_checked == (
        f"t-0/{segment_file(INNER, 'log')}: {left} bytes after damage, where no batch could be found",
    )


# -- offsets at the end of all numbers: the base offset lies outside of the checksum


@pytest.mark.parametrize(
    "past", [1, RECORDS], ids=["the log would end behind 2^63 - 1", "the last offset wraps around"]
)
@pytest.mark.parametrize(("base", "number"), [(INNER, 1), (ACTIVE, 1), (ACTIVE, 2)])
def test_last_offset_out_of_range_is_a_problem(part: Partition, base: int, number: int, past: int) -> None:
    position = part.positions(base)[number]
    last_offset = 2**63 - 1 - RECORDS + past
    edit(part.log(base), position, struct.pack(">q", last_offset))
    problem = expect(part, "offsets", position, base=base)
    assert problem.expected.startswith(f"a base offset up to {2**63 - 1 - RECORDS}")
    assert problem.found == str(last_offset)


def test_largest_last_offset_is_compacted(tmp_path: Path) -> None:
    part = Partition(tmp_path / "archive", tmp_path / "store")
    part.folder.mkdir(parents=True)
    end = 2**63 - 1  # log end offset

    def ending(n: int) -> Batch:
        return data_batch(end - n, [(START_MS - i, b"key-%d" % (i % 10), b"value") for i in range(n, n - RECORDS, -1)])

    part.write(end - 3 * RECORDS, [ending(3 * RECORDS)])
    part.write(end - 2 * RECORDS, [ending(2 * RECORDS), ending(RECORDS)])
    assert not part.verify(sealed=True).problems
    result = part.compact(sealed=True)
    assert result.status == "cleaned", result.problem
    assert (result.log.next_offset, result.log.first_dirty_offset) == (end, end)
    assert max(s.last_offset for s in result.log.segments) == end - 1
    assert sum(s.records for s in result.log.segments) == 10  # 12 records with 10 keys were read


@pytest.mark.parametrize("high_watermark", [INNER + RECORDS + 1, 2 * INNER, 3 * INNER])
def test_damaged_offset_above_the_high_watermark_is_a_problem(part: Partition, high_watermark: int) -> None:
    """No checksum covers a base offset. A batch that ends in a later segment hides all that is behind it."""
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position, struct.pack(">q", INNER + RECORDS + (1 << 40)))
    result = part.compact(plan=changed(part.plan(), high_watermark=high_watermark))
    assert result.status == "uncleanable"
    problem = result.problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.position) == ("overlap", f"t-0/{segment_file(INNER, 'log')}", position)
    assert ("overlap", position) in [(p.kind, p.position) for p in part.verify().problems]


@pytest.mark.parametrize("bit", [4, 20, 40])
@pytest.mark.parametrize("index", [True, False])
def test_damaged_batch_in_the_last_segment_is_not_a_torn_tail(part: Partition, index: bool, bit: int) -> None:
    """Damage its last batch: only the index, or the high watermark, shows that another batch was there."""
    position = part.positions(ACTIVE)[-1]
    base = ACTIVE + 2 * RECORDS
    flip(part.log(ACTIVE), position + 7 - bit // 8, bit % 8)
    if not index:
        for path in part.folder.glob(f"{ACTIVE:020d}.*index"):
            path.unlink()
    plan = changed(part.plan(), high_watermark=base + RECORDS)
    problem = part.compact(plan=plan).problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.position) == ("gap", f"t-0/{segment_file(ACTIVE, 'log')}", position)
    assert problem.found.startswith(f"one at {base ^ 1 << bit}")
    assert ("as its index says" in problem.expected) == index
    if index:
        expected = (("index", f"t-0/{segment_file(ACTIVE, 'index')}"), ("relative_offset", problem.path))[bit > 31]
        assert expected in [(p.kind, p.path) for p in part.verify().problems]
    accepted = part.compact(plan=changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    assert accepted.status == "cleaned"
    assert any(problem.expected in note for note in accepted.notes)


@pytest.mark.parametrize("bit", [3, 20, 40])
def test_damaged_batch_before_an_intact_one_is_not_a_torn_tail(part: Partition, bit: int) -> None:
    position = part.positions(ACTIVE)[1]
    flip(part.log(ACTIVE), position + 7 - bit // 8, bit % 8)
    problem = part.compact(plan=changed(part.plan(), high_watermark=ACTIVE + RECORDS + 1)).problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.position) == ("offsets", f"t-0/{segment_file(ACTIVE, 'log')}", position)


@pytest.mark.parametrize("mtime_s", [0, -5, 1])
def test_legacy_tombstone_is_kept_while_nothing_is_clean(part: Partition, mtime_s: int) -> None:
    part.write(0, [data_batch(0, [(START_MS, b"only here", None)], magic=1)])
    os.utime(part.log(0), (mtime_s, mtime_s))
    plan = part.plan()
    result = part.compact(plan=changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    assert result.status == "cleaned", result.problem
    assert (result.work.counters["tombstones_kept"], result.work.counters["dropped_tombstones"]) == (1, 0)


# -- counts, records, codecs


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, -4, 1, 1000])
def test_wrong_record_count_is_a_problem(tmp_path: Path, codec: str, change: int) -> None:
    part = coded(tmp_path, CODECS[codec])
    log, position = part.log(INNER), part.positions(INNER)[1]
    edit(log, position + 57, struct.pack(">i", RECORDS + change))
    resign(log, position)
    result = part.compact()
    assert result.status == "uncleanable"
    assert result.problem is not None and result.problem.kind == "count"
    assert result.problem.base_offset == INNER + RECORDS
    assert [(p.kind, p.position) for p in part.verify().problems] == [("count", result.problem.position)]


def test_record_count_above_the_possible_maximum_is_a_problem(part: Partition) -> None:
    """The offsets leave room for the false count, the bytes do not: the reader allocates no array of that size."""
    base = INNER + 2 * RECORDS
    batch = batch_at(base)
    raw = bytearray(batch.data)
    struct.pack_into(">i", raw, 23, 2**31 - 100)
    struct.pack_into(">i", raw, 57, 2**31 - 100)
    last = (SEGMENTS - 1) * SEGMENT_OFFSETS + RECORDS
    part.write(ACTIVE, [batch_at(ACTIVE), replace(batch_at(last), data=batch.data)], active=True)
    log, position = part.log(ACTIVE), part.positions(ACTIVE)[1]
    edit(log, position, struct.pack(">q", last))
    edit(log, position + 23, bytes(raw[23:27]))
    edit(log, position + 57, bytes(raw[57:61]))
    resign(log, position)
    assert ("count", position) in [(p.kind, p.position) for p in part.verify().problems]
    assert part.compact(sealed=True).problem.kind == "count"  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_body_is_a_problem(tmp_path: Path, codec: str) -> None:
    part = coded(tmp_path, CODECS[codec])
    log, position = part.log(INNER), part.positions(INNER)[1]
    body = log.read_bytes()[position + 61 : part.positions(INNER)[2]]
    replace_body(log, position, body[:-3])
    expect(part, "compressed", position)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_body_is_a_problem(tmp_path: Path, codec: str) -> None:
    part = coded(tmp_path, CODECS[codec])
    log, position = part.log(INNER), part.positions(INNER)[1]
    replace_body(log, position, random.Random(1).randbytes(200))
    expect(part, "compressed", position)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_decompression_bomb_is_a_problem(tmp_path: Path, codec: str) -> None:
    part = coded(tmp_path, CODECS[codec])
    log, position = part.log(INNER), part.positions(INNER)[1]
    replace_body(log, position, compress(CODECS[codec], bytes(16 << 20)))
    expect(part, "bomb", position)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_a_problem(part: Partition, codec: int) -> None:
    log, position = part.log(INNER), part.positions(INNER)[1]
    edit(log, position + 22, bytes([codec]))
    resign(log, position)
    expect(part, "codec", position)


@pytest.mark.parametrize("magic", [4, 127, 255])
def test_unknown_magic_is_a_problem(part: Partition, magic: int) -> None:
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 16, bytes([magic]))
    expect(part, "magic", position)


def test_zstd_in_magic_1_is_a_problem(part: Partition) -> None:
    record = Record(INNER, START_MS, b"k", b"v")
    message = Batch(INNER, INNER, (record,), magic=1, max_timestamp=START_MS).encoded()
    raw = bytearray(message.data)
    raw[17] = ZSTD
    import zlib

    struct.pack_into(">I", raw, 12, zlib.crc32(bytes(raw[16:])))
    part.write(INNER, [replace(message, data=bytes(raw))])
    expect(part, "codec", 0)


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (0, b"\xff" * 6, "varint"),  # varint of the length
        (0, b"\x02", "record"),  # too short to be one
        (0, b"\xfe\xff\x7f", "record"),  # longer than the batch
        (2, b"\xff" * 11, "varint"),  # varint of the timestamp
    ],
)
def test_invalid_record_is_a_problem(part: Partition, at: int, data: bytes, kind: str) -> None:
    log, position = part.log(INNER), part.positions(INNER)[1]
    edit(log, position + 61 + at, data)
    resign(log, position)
    expect(part, kind, position + 61)


def test_decreasing_record_offsets_are_a_problem(part: Partition) -> None:
    batch = batch_at(INNER)
    wrong = replace(batch, records=(batch.records[1], batch.records[0], *batch.records[2:])).encoded()
    part.write(INNER, [wrong, batch_at(INNER + 4), batch_at(INNER + 8)])
    problem = part.compact().problem
    assert problem is not None and problem.kind == "offsets" and problem.base_offset == INNER
    assert [(p.kind, p.position) for p in part.verify().problems] == [("offsets", problem.position)]


# -- control batches


def marker(kind: int, **fields: object) -> Batch:
    return marker_batch(INNER + 4, 7, kind, timestamp=START_MS, **fields)


@pytest.mark.parametrize("kind", [2, 6, 77])
def test_marker_of_unknown_type_is_a_problem(part: Partition, kind: int) -> None:
    part.write(INNER, [batch_at(INNER), marker(kind), batch_at(INNER + 8)])
    expect(part, "transaction", part.positions(INNER)[1])


def test_malformed_control_batch_is_a_problem(part: Partition) -> None:
    part.write(INNER, [batch_at(INNER), marker(0), batch_at(INNER + 8)])
    position = part.positions(INNER)[1]
    edit(part.log(INNER), position + 61, bytes(range(17)))
    resign(part.log(INNER), position)
    expect(part, "transaction", position)


def test_batch_that_interrupts_a_transaction_is_a_problem(part: Partition) -> None:
    open_one = batch_at(INNER, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    plain = batch_at(INNER + 4, producer_id=7, producer_epoch=0, base_sequence=4)
    part.write(INNER, [open_one, plain, batch_at(INNER + 8)])
    expect(part, "transaction", part.positions(INNER)[1])


# -- offsets, names, overlaps


def test_batches_out_of_order_are_a_problem(part: Partition) -> None:
    part.write(INNER, [batch_at(INNER), batch_at(INNER + 8), batch_at(INNER + 4)])
    expect(part, "offsets", part.positions(INNER)[2])


def test_duplicate_batch_is_a_problem(part: Partition) -> None:
    part.write(INNER, [batch_at(INNER), batch_at(INNER), batch_at(INNER + 4)])
    expect(part, "offsets", part.positions(INNER)[1])


def test_file_name_above_the_first_offset_is_a_problem(part: Partition) -> None:
    for kind in ("log", "index", "timeindex"):
        (part.folder / segment_file(INNER, kind)).rename(part.folder / segment_file(INNER + 2, kind))
    expect(part, "name", 0, base=INNER + 2)


def test_file_name_below_the_previous_end_is_a_problem(part: Partition) -> None:
    """The segment before it then seems to reach into it."""
    for kind in ("log", "index", "timeindex"):
        (part.folder / segment_file(INNER, kind)).rename(part.folder / segment_file(INNER - 3, kind))
    expect(part, "overlap", part.positions(0)[2], base=0)


def test_overlapping_segments_are_a_problem(part: Partition) -> None:
    batches = [batch_at(INNER + i * RECORDS) for i in range(4)]
    part.write(INNER, batches)
    expect(part, "overlap", part.positions(INNER)[3])


def test_offset_too_far_from_the_base_is_a_problem(part: Partition) -> None:
    far = INNER + 2**31
    for base in (2 * INNER, ACTIVE):
        for kind in ("log", "index", "timeindex"):
            (part.folder / segment_file(base, kind)).unlink()
    part.log(INNER).write_bytes(batch_at(INNER).data + batch_at(far).data)
    (part.folder / segment_file(INNER, "index")).unlink()
    (part.folder / segment_file(INNER, "timeindex")).unlink()
    part.log(far + RECORDS).write_bytes(batch_at(far + RECORDS).data)
    expect(part, "relative_offset", part.positions(INNER)[1])


# -- tails


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_truncated_last_segment_ends_the_log(part: Partition, cut: int) -> None:
    log = part.log(ACTIVE)
    whole = works(part)
    last = part.positions(ACTIVE)[2]
    log.write_bytes(log.read_bytes()[:-cut])
    index = part.folder / segment_file(ACTIVE, "index")
    index.write_bytes(index.read_bytes()[:-8])
    checked = part.verify()
    assert not checked.problems
    torn = log.stat().st_size - last
    assert any(f"the last {torn} bytes are not a whole batch" in note for note in checked.notes)
    result = part.compact()
    assert result.status == "cleaned" and result.log.next_offset == ACTIVE + 2 * RECORDS
    assert any(f"{torn} bytes are not a whole batch" in note for note in result.notes)
    assert part.cleaned_bytes(result) == whole


def test_truncated_last_segment_of_a_sealed_archive_is_a_problem(part: Partition) -> None:
    log, last = part.log(ACTIVE), part.positions(ACTIVE)[2]
    log.write_bytes(log.read_bytes()[:-5])
    index = part.folder / segment_file(ACTIVE, "index")
    index.write_bytes(index.read_bytes()[:-8])
    expect(part, "torn_tail", last, base=ACTIVE, sealed=True)


def test_truncated_inner_segment_is_a_problem(part: Partition) -> None:
    log, last = part.log(INNER), part.positions(INNER)[2]
    log.write_bytes(log.read_bytes()[: last + 10])
    (part.folder / segment_file(INNER, "index")).unlink()
    expect(part, "torn_tail", last)


def test_zeros_of_a_preallocated_log_are_noted(part: Partition) -> None:
    whole = works(part)
    log = part.log(ACTIVE)
    log.write_bytes(log.read_bytes() + bytes(10_000))
    checked = part.verify()
    assert not checked.problems
    assert any("10000 bytes are zeros of a preallocated file" in note for note in checked.notes)
    assert works(part) == whole
    expect(part, "torn_tail", log.stat().st_size - 10_000, base=ACTIVE, sealed=True)


def test_zeros_in_an_inner_segment_are_a_problem(part: Partition) -> None:
    log = part.log(INNER)
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(500))
    expect(part, "torn_tail", size)


def test_zeros_before_other_bytes_are_a_problem(part: Partition) -> None:
    log = part.log(ACTIVE)
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(500) + b"x")
    expect(part, "length", size, base=ACTIVE)


# -- indexes: worked through


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("base", [INNER, ACTIVE])
def test_missing_index_is_noted(part: Partition, kind: str, base: int) -> None:
    whole = works(part)
    (part.folder / segment_file(base, kind)).unlink()
    checked = part.verify()
    assert not checked.problems
    assert checked.notes == (f"t-0/{segment_file(base, kind)}: missing; a broker would rebuild it",)
    assert works(part) == whole


@pytest.mark.parametrize(("kind", "entry"), [("index", 8), ("timeindex", 12)])
def test_torn_index_is_reported_and_ignored(part: Partition, kind: str, entry: int) -> None:
    whole = works(part)
    path = part.folder / segment_file(INNER, kind)
    path.write_bytes(path.read_bytes()[:-3])
    problems = part.verify().problems
    assert ("index", f"t-0/{path.name}", path.stat().st_size // entry * entry) in [
        (p.kind, p.path, p.position) for p in problems
    ]
    assert works(part) == whole


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_padded_index_is_accepted_in_the_last_segment_only(part: Partition, kind: str) -> None:
    whole = works(part)
    for base in (INNER, ACTIVE):
        path = part.folder / segment_file(base, kind)
        path.write_bytes(path.read_bytes() + bytes(240))
    checked = part.verify()
    inner = part.folder / segment_file(INNER, kind)
    assert [(p.kind, p.path, p.position) for p in checked.problems] == [
        ("index", f"t-0/{inner.name}", inner.stat().st_size - 240)
    ]
    assert [n for n in checked.notes if "240 bytes of zeros" in n]
    assert works(part) == whole


@pytest.mark.parametrize(
    ("kind", "position", "data"),
    [
        ("index", 4, struct.pack(">i", 5)),  # no batch begins there
        ("index", 0, struct.pack(">i", 1)),  # a look-up of offset 1 would begin behind it
        ("index", 8, struct.pack(">i", 400)),  # an offset that the segment does not have
        ("timeindex", 0, struct.pack(">q", START_MS + SEGMENT_OFFSETS + 11)),  # timestamps that fall
        ("timeindex", 8, struct.pack(">i", 11)),  # larger timestamps lie before it
        ("timeindex", 12, struct.pack(">q", START_MS + 900)),  # not the segment's largest
    ],
)
def test_misleading_index_is_reported_and_ignored(part: Partition, kind: str, position: int, data: bytes) -> None:
    whole = works(part)
    path = part.folder / segment_file(INNER, kind)
    edit(path, position, data)
    problems = part.verify().problems
    assert problems and {(p.kind, p.path) for p in problems} == {("index", f"t-0/{path.name}")}
    assert works(part) == whole


@pytest.mark.parametrize("name", ["index", "timeindex", "txnindex"])
def test_random_index_is_reported_and_ignored(part: Partition, name: str) -> None:
    whole = works(part)
    path = part.folder / segment_file(INNER, name)
    path.write_bytes(random.Random(2).randbytes(34 * 24))
    assert {(p.kind, p.path) for p in part.verify().problems} == {("index", f"t-0/{path.name}")}
    assert works(part) == whole


def test_unreadable_snapshot_is_reported_and_ignored(part: Partition) -> None:
    whole = works(part)
    path = part.folder / segment_file(INNER, "snapshot")
    path.write_bytes(b"\0\1garbage of a snapshot")
    assert [(p.kind, p.path) for p in part.verify().problems] == [("side_file", f"t-0/{path.name}")]
    result = part.compact()
    assert part.cleaned_bytes(result) == whole


def test_unreadable_text_files_are_reported(part: Partition) -> None:
    whole = works(part)
    (part.folder / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n")
    (part.folder / "partition.metadata").write_text("version: 9")
    problems = {(p.kind, p.path) for p in part.verify().problems}
    assert problems == {("side_file", "t-0/leader-epoch-checkpoint"), ("side_file", "t-0/partition.metadata")}
    assert works(part) == whole


# -- empty segments: worked through


@pytest.mark.parametrize("base", [0, INNER])
def test_empty_inner_segment_is_accepted(tmp_path: Path, base: int) -> None:
    part = build(tmp_path / "archive")
    part.write(base, [])
    after = base + SEGMENT_OFFSETS
    expect(part, "gap", 0, base=after)
    with_checkpoint(part, after)
    assert not part.verify().problems
    result = part.compact()
    assert result.status == "cleaned"
    assert [s for s in result.log.segments if not s.size_bytes] == []
    assert result.log.segments[0].base_offset == 0


def test_empty_last_segment_is_accepted(part: Partition) -> None:
    end = SEGMENTS * SEGMENT_OFFSETS
    part.write(ACTIVE, [batch_at(ACTIVE + i * RECORDS) for i in range(3)])
    part.write(end, [])
    assert not part.verify().problems
    result = part.compact()
    assert result.status == "cleaned"
    assert (result.log.next_offset, result.log.segments[-1].base_offset) == (end, end)


def test_log_of_empty_segments_is_accepted(tmp_path: Path) -> None:
    part = build(tmp_path / "archive")
    for number in range(SEGMENTS):
        part.write(number * SEGMENT_OFFSETS, [])
    with_checkpoint(part, ACTIVE)
    assert not part.verify().problems
    result = part.compact()
    assert (result.status, result.log.next_offset) == ("cleaned", ACTIVE)
    assert [(s.base_offset, s.size_bytes) for s in result.log.segments] == [
        (number * SEGMENT_OFFSETS, 0) for number in range(SEGMENTS)
    ]


# -- files


def test_files_of_every_crash_point_are_resolved_as_by_a_broker(tmp_path: Path) -> None:
    """Follow the table of a broker's start: files that it replaced, and files that it was about to replace (KAFKA.md,
    "Broker start").
    """
    old = build(tmp_path / "old" / "archive")
    before = works(old)
    new = [
        batch_at(0, 2),
        data_batch(INNER + 6, [(START_MS, b"of the cleaned", b"segment")]),
    ]  # a cleaner's output for the first two segments

    def state(name: str) -> Partition:
        return old.copy_to(tmp_path / name / "archive")

    def put(part: Partition, suffix: str, kinds: tuple[str, ...] = ("log", "index", "timeindex")) -> None:
        made = Partition(tmp_path / f"{part.root.parent.name}-new" / "archive", tmp_path / "unused")
        made.folder.mkdir(parents=True, exist_ok=True)
        made.write(0, new)
        for kind in kinds:
            shutil.copy(made.folder / segment_file(0, kind), part.folder / (segment_file(0, kind) + suffix))

    def mark_deleted(part: Partition, bases: tuple[int, ...]) -> None:
        for base in bases:
            for kind in ("log", "index", "timeindex"):
                (part.folder / segment_file(base, kind)).rename(part.folder / (segment_file(base, kind) + ".deleted"))

    cleaned_only = state("cleaned")
    put(cleaned_only, ".cleaned")
    half_renamed = state("half")
    put(half_renamed, ".cleaned", ("index", "timeindex"))
    put(half_renamed, ".swap", ("log",))
    for part in (cleaned_only, half_renamed):
        assert not part.verify().problems
        assert works(part) == before

    swap = state("swap")
    put(swap, ".swap")
    some_deleted = state("some-deleted")
    put(some_deleted, ".swap")
    mark_deleted(some_deleted, (0,))
    all_deleted = state("all-deleted")
    put(all_deleted, ".swap")
    mark_deleted(all_deleted, (0, INNER))
    one_left = state("one-left")
    mark_deleted(one_left, (0, INNER))
    put(one_left, "", ("index", "timeindex"))
    put(one_left, ".swap", ("log",))
    finished = state("finished")
    mark_deleted(finished, (0, INNER))
    put(finished, "")
    after = [works(part) for part in (swap, some_deleted, all_deleted, one_left, finished)]
    assert len(set(after)) == 1 and after[0] != before
    for part in (swap, some_deleted, all_deleted, one_left, finished):
        assert not part.verify().problems


def test_unreadable_swap_file_is_a_problem(part: Partition) -> None:
    """Its last offset decides which files it replaces; without it nothing is certain."""
    (part.folder / (segment_file(0, "log") + ".swap")).write_bytes(b"\0" * 8 + b"\xff" * 40)
    problem = part.listed().problem
    assert problem is not None
    assert (problem.kind, problem.path, problem.position) == ("length", f"t-0/{segment_file(0, 'log')}.swap", 0)


def test_folders_that_are_not_partitions_are_noted(part: Partition) -> None:
    mark = "0123456789abcdef0123456789abcdef"
    for name in (f"t-1.{mark}-delete", f"t-2.{mark}-stray", f"t-3.{mark}-future", "lost+found", "t", "t-x"):
        (part.root / name).mkdir()
        shutil.copy(part.log(0), part.root / name / segment_file(0, "log"))
    archive = list_archive(open_root(str(part.root)), lambda _: True)
    assert list(archive.partitions) == [("t", 0)]
    for kind in ("delete", "stray", "future"):
        assert any(f"-{kind}" in note for note in archive.notes)


@pytest.mark.parametrize("kind", ["folder", "link"])
@pytest.mark.parametrize("base", [0, INNER, ACTIVE])
def test_log_that_is_not_a_regular_file_is_a_problem(part: Partition, kind: str, base: int) -> None:
    """Reject it: if the reader skipped the first or last segment, a missing one would not be noticed."""
    log = part.log(base)
    log.unlink()
    if kind == "folder":
        log.mkdir()
    else:
        log.symlink_to(part.root / "gone")
    problem = part.listed().problem
    assert problem is not None
    assert (problem.kind, problem.path) == ("unreadable", f"t-0/{log.name}")


def test_log_without_read_permission_is_a_problem() -> None:
    with open_to_all() as folder:
        part = build(folder / "archive")
        plan = part.plan()
        side = plan_archived(part.listed(), Config(), sealed=False)
        assert compact_partition(changed(plan, folder="before")).status == "cleaned"  # all is imported and compiled
        shutil.rmtree(part.store)
        with as_nobody():
            assert not check_partition(side).problems
        part.log(INNER).chmod(0)
        with as_nobody():
            checked, result = check_partition(side), compact_partition(plan)
    assert ("unreadable", f"t-0/{segment_file(INNER, 'log')}") in [(p.kind, p.path) for p in checked.problems]
    assert checked.batches == 9  # batches of the other segments
    assert result.problem is not None
    assert (result.problem.kind, result.problem.path) == ("unreadable", f"t-0/{segment_file(INNER, 'log')}")


@pytest.mark.parametrize("gone", [True, False])
def test_log_shortened_or_deleted_after_the_listing_is_a_problem(part: Partition, gone: bool) -> None:
    plan = part.plan()
    log = part.log(INNER)
    if gone:
        log.unlink()
    else:
        log.write_bytes(log.read_bytes()[:-50])
    problem = part.compact(plan=plan).problem
    assert problem is not None
    assert (problem.kind, problem.path) == ("unreadable" if gone else "changed", f"t-0/{log.name}")


def test_log_that_grew_after_the_listing_is_read_as_listed(part: Partition) -> None:
    plan = part.plan()
    whole = works(part)
    part.log(ACTIVE).write_bytes(part.log(ACTIVE).read_bytes() + batch_at(SEGMENTS * SEGMENT_OFFSETS).data)
    result = part.compact(plan=plan)
    assert (result.status, result.log.next_offset) == ("cleaned", SEGMENTS * SEGMENT_OFFSETS)
    assert part.cleaned_bytes(result) == whole


def test_duplicate_partition_is_a_problem(part: Partition) -> None:
    (part.root / "disk2").mkdir()
    shutil.copytree(part.folder, part.root / "disk2" / "t-0")
    problem = part.listed().problem
    assert problem is not None
    assert problem.kind == "duplicate"
    assert {problem.path, problem.found.rpartition(" ")[2]} == {"t-0", "disk2/t-0"}


# -- one bit anywhere


def masked(data: bytes) -> bytes:
    """Return a log's bytes without the leader epochs, which no checksum covers."""
    out, at = bytearray(data), 0
    while at < len(data):
        out[at + 12 : at + 16] = b"\0\0\0\0"
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return bytes(out)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_any_flipped_bit_is_reported_or_without_effect(tmp_path: Path, codec: str) -> None:
    """No flipped bit yields a wrong record. The checksum leaves out the prefix of a batch; a bit there has these
    effects:

    - offset: offsets of a dense log leave no room; only the very last batch can move up unseen, in the active segment;
    - length: the checksum fails; in the active segment it may look like a torn tail, and the log ends there;
    - leader epoch: copied bytes keep it as it is; verify says that epochs fall;
    - magic: another format, whose checksum fails.
    """
    part = coded(tmp_path, CODECS[codec])
    whole = works(part)
    random_ = random.Random(codec)
    logs = [
        (n * SEGMENT_OFFSETS, i) for n in range(SEGMENTS) for i in range(part.log(n * SEGMENT_OFFSETS).stat().st_size)
    ]
    prefixes = [
        (base, position + i)
        for base in range(0, ACTIVE + 1, INNER)
        for position in part.positions(base)
        for i in range(17)
    ]
    n = 40 if codec == "none" else 12  # each costs two runs
    for base, at in random_.sample(logs, n) + random_.sample(prefixes, n):
        log = part.log(base)
        healthy, positions = log.read_bytes(), part.positions(base)
        start = max(p for p in positions if p <= at)
        bit = random_.randrange(8)
        flip(log, at, bit)
        result, checked = part.compact(), part.verify()
        where = (base, at, at - start, bit, result.problem)
        if result.status == "uncleanable":
            assert checked.problems, where
        else:
            assert at - start < 16, where
            assert result.status == "cleaned", where
            same = part.cleaned_bytes(result)
            assert masked(same) == masked(whole), where
            if at - start >= 12:
                assert checked.notes, where
            else:
                assert base == ACTIVE, where
                assert same == whole, where
                last_moved_up = start == positions[-1] and at - start < 8
                assert checked.problems or checked.notes or last_moved_up, where
        log.write_bytes(healthy)


def test_offset_moved_into_a_gap_is_detected_by_the_index(part: Partition) -> None:
    """Compaction left gaps, so no checksum and no neighbour betrays a changed base offset, and Kafka would not see it
    either. The batch's index entry does, if there is one.
    """
    part.write(INNER, [batch_at(INNER), batch_at(INNER + 6, 2)])
    log, position = part.log(INNER), part.positions(INNER)[1]
    flip(log, position + 7)
    assert part.compact().status == "cleaned"
    notes = part.verify().notes
    assert any("not the entries that Kafka 4.3 and 4.4 would make" in note for note in notes)


def test_text_of_a_problem_has_its_fields(part: Partition) -> None:
    flip(part.log(0), 30)
    (problem,) = part.verify().problems
    text = str(problem)
    assert all(word in text for word in (problem.path, problem.kind, problem.expected, problem.found))
    assert "at byte 0 (batch at offset 0)" in text
