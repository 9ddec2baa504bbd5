"""Batches with unreadable bodies, in any number and at any position: each is reported once, every other batch is read
completely, and every walk ends.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.batches.bodies import BadBatch, BodyLoader
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions
from lastkey.logformat.errors import LogFormatError
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, Partition, batch_at, build
from tests.builders.limits import within
from tests.builders.sources import read
from tests.reference.log import GZIP, NONE, ZSTD, Batch

INNER = SEGMENT_OFFSETS


def sparse(base: int, *, holds: int, says: int, codec: int = NONE) -> Batch:
    """Return a batch of RECORDS offsets, as compaction leaves it, that holds `holds` records and says `says`."""
    batch = batch_at(base, holds, codec=codec)
    data = bytearray(batch.data)
    struct.pack_into(">i", data, 23, RECORDS - 1)
    struct.pack_into(">i", data, 57, says)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return replace(batch, last_offset=base + RECORDS - 1, data=bytes(data))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read a whole partition in each way, so that the times measured below do not include compilation."""
    part = build(tmp_path_factory.mktemp("whole") / "archive")
    assert read("kafka_log", part.root).num_rows == 4 * SEGMENT_OFFSETS
    assert part.compact().problem is None
    assert not part.verify().problems
    dump([part.log(INNER)], DumpOptions(LogOptions(deep=True)), lambda _: None)


@pytest.fixture(params=[(2, 3), (2, 1), (3, 4), (1, 4)], ids=lambda p: f"holds {p[0]}, says {p[1]}")
def counted(request, compiled, tmp_path: Path) -> Partition:
    """Write a partition in which an inner segment's middle batch states another number of records than it holds."""
    holds, says = request.param
    part = build(tmp_path / "archive")
    bases = [INNER, INNER + RECORDS, INNER + 2 * RECORDS]
    part.write(INNER, [batch_at(bases[0]), sparse(bases[1], holds=holds, says=says), batch_at(bases[2])])
    return part


def test_batch_with_a_wrong_count_is_reported(counted):
    position = counted.positions(INNER)[1]
    lost = range(INNER + RECORDS, INNER + 2 * RECORDS)
    with within(20):
        rows = read("kafka_log", counted.root, badRecords="quarantine").to_pylist()
    assert [(r["problem"]["kind"], r["problem"]["position"]) for r in rows if r["problem"]] == [("count", position)]
    assert [r["offset"] for r in rows if not r["problem"]] == [o for o in range(4 * SEGMENT_OFFSETS) if o not in lost]
    with pytest.raises(LogFormatError, match="count") as caught:
        read("kafka_log", counted.root)
    assert caught.value.position == position
    with within(20):
        result, checked = counted.compact(), counted.verify()
    assert result.problem is not None and (result.problem.kind, result.problem.position) == ("count", position)
    assert [(p.kind, p.position) for p in checked.problems] == [("count", position)]


def test_inspect_reports_the_batch_with_a_wrong_count(counted):
    out: list[bytes] = []
    with within(20):
        findings = dump([counted.log(INNER)], DumpOptions(LogOptions(deep=True)), lambda text: out.append(bytes(text)))
    position = counted.positions(INNER)[1]
    (problem,) = findings.all_problems
    assert (problem.kind, problem.position) == ("count", position)
    shown = [int(line.split()[2]) for line in b"".join(out).decode().splitlines() if line.startswith("| offset:")]
    assert shown == [o for o in range(INNER, 2 * INNER) if not INNER + RECORDS <= o < INNER + 2 * RECORDS]


KINDS = {
    "fewer": lambda base, codec: sparse(base, holds=2, says=3, codec=codec),
    "more": lambda base, codec: sparse(base, holds=3, says=1, codec=codec),
    "none": lambda base, codec: sparse(base, holds=4, says=0, codec=codec),
    "varint": lambda base, codec: with_body(base, b"\xff" * 9, NONE),
    "record": lambda base, codec: with_body(base, b"\x50" + bytes(40), NONE),
    "stream": lambda base, codec: with_body(base, b"\x28\xb5\x2f\xfd no more", ZSTD),
}


def with_body(base: int, body: bytes, codec: int) -> Batch:
    data = bytearray(batch_at(base, codec=codec).data[:61] + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return Batch(base, base + RECORDS - 1, data=bytes(data))


def loaded(batches: list[Batch], wanted: np.ndarray, loader: BodyLoader) -> tuple[list[int], list[int]]:
    """Return the bad rows, and the offsets of all records that came."""
    bad, offsets, at = [], [], 0
    data = pa.BufferReader(b"".join(b.data for b in batches))
    for chunk in read_chunks(data, "a.log", LogRange(0, data.size()), ChunkBuffer(1 << 20), Tail()):
        first, want = at, wanted[at : at + len(chunk.batches)]
        for run in loader.runs_around_damage(chunk, want):
            if isinstance(run, BadBatch):
                bad.append(first + run.row)
                start = int(chunk.batches["position"][run.row])
                assert start <= run.error.position < start + int(chunk.batches["size"][run.row])
            else:
                assert first + run.first == at
                at += len(run.batches)
                base = np.repeat(run.bodies["base_offset"], run.bodies["n_records"])
                offsets += (base + run.spans["offset_delta"]).tolist()
    assert at == len(batches)
    return bad, offsets


class Counting(BodyLoader):
    """Counts how many batches it was given, repeated or new."""

    given = 0

    def runs(self, chunk, wanted=None, **how):
        self.given += len(chunk.batches)
        return super().runs(chunk, wanted, **how)


@pytest.mark.long
@settings(max_examples=150)
@given(
    st.lists(st.sampled_from((None, None, None, *KINDS)), min_size=1, max_size=60),
    st.sampled_from((NONE, GZIP, ZSTD)),
    st.sampled_from((1, 200, 1 << 20)),
    st.integers(0, 2**60 - 1),
)
def test_every_damaged_batch_is_reported_once_and_every_other_is_read(kinds, codec, soft_bytes, bits):
    batches = [
        batch_at(i * RECORDS, codec=codec) if kind is None else KINDS[kind](i * RECORDS, codec)
        for i, kind in enumerate(kinds)
    ]
    wanted = np.array([bits >> i & 7 != 0 for i in range(len(kinds))])
    loader = BodyLoader(max_batch_bytes=1 << 20, soft_bytes=soft_bytes)
    bad, offsets = loaded(batches, wanted, loader)
    assert bad == [i for i, kind in enumerate(kinds) if kind is not None and wanted[i]]
    good = [i for i, kind in enumerate(kinds) if kind is None and wanted[i]]
    assert offsets == [i * RECORDS + j for i in good for j in range(RECORDS)]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
def test_cost_of_many_damaged_batches_is_linear(share):
    """The cost is linear: each batch is read a few times."""
    rng = random.Random(1)
    n = 4000
    is_bad = [rng.random() < share for _ in range(n)]
    one, other = batch_at(0), sparse(0, holds=2, says=3)
    batches = []
    for i, bad in enumerate(is_bad):
        data = bytearray((other if bad else one).data)
        struct.pack_into(">q", data, 0, i * RECORDS)
        batches.append(Batch(i * RECORDS, i * RECORDS + RECORDS - 1, data=bytes(data)))
    loader = Counting(max_batch_bytes=1 << 20)
    bad, _ = loaded(batches, np.ones(n, np.bool_), loader)
    assert bad == [i for i, b in enumerate(is_bad) if b]
    assert loader.given < 8 * n
