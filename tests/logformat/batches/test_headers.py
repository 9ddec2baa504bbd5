"""Headers without bodies: the same rows, tails and errors as of a walk that reads every byte, and fewer bytes read."""

from __future__ import annotations

import os

import numpy as np
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.batches.chunks import NO_END, ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.batches.reader import read_headers
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from tests.builders.logs import write_segment
from tests.builders.trees import files_in
from tests.golden import case_names, golden
from tests.reference.log import Batch, Record, encode_batch

MIXED = (
    "a=1 b=2 | {codec=zstd} a=- =3 -= | {pid=7 txn} c=4 | {pid=7 abort} | {base=9 last=12} | {codec=none} d="
    + "x" * 30_000 + " | e=1 | f=" + "y" * 5_000 + " | {pid=8 txn} g=1 | {pid=8 commit}"
)  # fmt: skip


def whole(path, start=0, end=None, **options):
    """Return (rows, tail or the error) of a walk over every byte."""
    tail, rows, buffer = Tail(start), [np.empty(0, BATCH)], ChunkBuffer(1 << 20)
    with pafs.LocalFileSystem().open_input_file(str(path)) as file:
        try:
            wanted = LogRange(start, end or file.size(), **options)
            for chunk in read_chunks(file, "p", wanted, buffer, tail, check_crc=False):
                rows.append(chunk.batches.copy())
        except LogFormatError as error:
            return np.concatenate(rows), error
    return np.concatenate(rows), tail


def sparse(path, start=0, end=None, buffer=None, read=None, check_markers=False, **options):
    tail, rows = Tail(start), [np.empty(0, BATCH)]
    position = start
    with path.open("rb", buffering=0) as file:
        size = end or os.fstat(file.fileno()).st_size
        try:
            wanted, buffer = LogRange(start, size, **options), buffer or ChunkBuffer(1 << 20)
            for headers in read_headers(file, "p", wanted, buffer, tail, check_markers=check_markers):
                assert headers.position == position == headers.batches["position"][0]
                position += headers.size
                rows.append(headers.batches.copy())
                if read is not None:
                    read.append(headers.bytes_read)
        except LogFormatError as error:
            return np.concatenate(rows), error
    return np.concatenate(rows), tail


def assert_same(path, **options):
    expected, how = whole(path, **options)
    rows, headers = sparse(path, **options)
    assert rows.tolist() == expected.tolist()
    assert str(headers) == str(how)


@pytest.mark.long
@pytest.mark.parametrize("name", case_names())
def test_headers_of_golden_logs_are_read_as_by_the_twin(name, tmp_path_factory):
    case = golden(tmp_path_factory)[name]
    for partition in case.partitions:
        for folder in (case.input(partition), case.expected(1, partition)):
            for log in files_in(folder):
                assert_same(log)


def test_log_cut_at_any_byte_is_read_as_by_the_twin(tmp_path):
    log = write_segment(tmp_path, MIXED)
    data = log.read_bytes()
    borders = whole(log)[0]["position"]
    near = {int(b) + d for b in [*borders, len(data)] for d in range(-140, 140)}
    for end in sorted(cut for cut in near if 0 < cut <= len(data)):
        assert_same(log, end=end)


def test_zeros_at_the_end_are_a_tail_of_headers(tmp_path):
    log = write_segment(tmp_path, MIXED)
    data = log.read_bytes()
    for tail in (b"\0" * 5, b"\0" * 16, b"\0" * 17, b"\0" * 200_000, b"\0" * 70_000 + b"\1"):
        log.write_bytes(data + tail)
        assert_same(log)


@pytest.mark.long
def test_header_with_a_changed_byte_is_read_as_by_the_twin(tmp_path):
    log = write_segment(tmp_path, MIXED)
    data = log.read_bytes()
    for start in whole(log)[0]["position"].tolist():
        for i in range(start, min(start + 80, len(data))):
            for bit in (0x01, 0x80):
                changed = bytearray(data)
                changed[i] ^= bit
                log.write_bytes(changed)
                assert_same(log)


def test_headers_of_a_range_of_offsets_are_read(tmp_path):
    log = write_segment(tmp_path, MIXED)
    for end_offset in range(20):
        assert_same(log, end_offset=end_offset)
    assert_same(log, previous_last_offset=5)
    second = int(whole(log)[0]["position"][1])
    assert_same(log, start=second, previous_last_offset=1, end_offset=NO_END)


def test_small_header_buffers_give_the_same(tmp_path):
    log = write_segment(tmp_path, MIXED)
    buffer = ChunkBuffer(100)
    buffer.rows = np.empty(2, BATCH)
    assert sparse(log, buffer=buffer)[0].tolist() == whole(log)[0].tolist()


def test_reading_headers_skips_bodies(tmp_path):
    batches = [
        Batch(i, i, records=(Record(offset=i, timestamp=i, key=b"k", value=bytes(20_000)),), base_timestamp=i)
        for i in range(50)
    ]
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(b"".join(encode_batch(batch) for batch in batches))
    read: list[int] = []
    assert len(sparse(log, read=read)[0]) == 50
    assert sum(read) < 100_000 < log.stat().st_size / 10


def test_file_that_shrank_is_an_error(tmp_path):
    log = write_segment(tmp_path, MIXED)
    size = log.stat().st_size
    error = sparse(log, end=size + 1)[1]
    assert isinstance(error, LogFormatError)
    assert error.kind == "changed"


@pytest.mark.parametrize(("at", "bit"), [(69, 0), (22, 5), (50, 1)])
def test_checksums_of_markers_are_verified(tmp_path, at, bit):
    log = write_segment(tmp_path, MIXED)
    marker = next(row for row in whole(log)[0] if row["control_type"] == 0)
    data = bytearray(log.read_bytes())
    data[int(marker["position"]) + at] ^= 1 << bit
    log.write_bytes(data)
    assert isinstance(sparse(log)[1], Tail)
    error = sparse(log, check_markers=True)[1]
    assert (error.kind, error.position) == ("crc", marker["position"])
    with pafs.LocalFileSystem().open_input_file(str(log)) as file, pytest.raises(LogFormatError) as other:
        list(read_headers(file, "p", LogRange(0, file.size()), ChunkBuffer(), Tail(), check_markers=True))
    assert str(other.value) == str(error)


def test_files_of_other_file_systems_are_read_completely(tmp_path):
    log = write_segment(tmp_path, MIXED)
    tail, rows = Tail(), []
    with pafs.LocalFileSystem().open_input_file(str(log)) as file:
        for headers in read_headers(file, "p", LogRange(0, file.size()), ChunkBuffer(), tail):
            rows += headers.batches.tolist()
            assert headers.bytes_read == headers.size
    assert rows == whole(log)[0].tolist()
