"""LogReader: what all walks over a log share: a file that shrank, the end of a walk, batches at borders of chunks."""

from __future__ import annotations

import numpy as np
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.codec import compress
from lastkey.logformat.storage.regular_files import LogFile, open_regular
from tests.builders.logs import write_segment
from tests.reference.legacy import message

GZIP = 1


def log_file(path, size=None):
    return LogFile(lambda: open_regular(pafs.LocalFileSystem(), str(path)), "t-0/0.log", size)


@pytest.mark.parametrize("walk", [LogReader.chunks, LogReader.headers])
def test_log_shorter_than_listed_is_refused_before_reading(tmp_path, walk):
    path = write_segment(tmp_path, "a=1 | b=2 | c=3")
    size = path.stat().st_size
    walked = walk(LogReader(), log_file(path, size + 1))
    with pytest.raises(LogFormatError) as refused:
        next(walked)
    error = refused.value
    assert (error.kind, error.path, error.position) == ("changed", "t-0/0.log", size)
    assert (error.expected, error.found) == (f"{size + 1} bytes, as listed", f"{size}")


@pytest.mark.parametrize("walk", [LogReader.chunks, LogReader.headers])
def test_walk_begins_at_a_batch_and_returns_its_end(tmp_path, walk):
    path = write_segment(tmp_path, "a=1 | b=2 | c=3 | d=4")
    size, reader = path.stat().st_size, LogReader(1 << 16)
    borders = [int(start) for chunk in walk(reader, log_file(path)) for start in chunk.batches["position"]]
    assert (reader.tail.position, reader.tail.torn_bytes) == (size, 0)
    seen = [
        (chunk.position, chunk.end, chunk.last_offset, chunk.path)
        for chunk in walk(reader, log_file(path, size - 1), borders[2], previous_last_offset=1)
    ]
    assert seen == [(borders[2], borders[3], 2, "t-0/0.log")]
    assert (reader.tail.position, reader.tail.torn_bytes) == (borders[3], size - 1 - borders[3])


def test_walks_with_shared_buffers_do_not_interfere(tmp_path):
    path = write_segment(tmp_path, "a=1 b=2 | {codec=zstd} c=3 d=4 | e=5")
    reader = LogReader(64)
    for wanted in (None, np.ones(1, np.bool_)):
        runs = [run for chunk in reader.chunks(log_file(path)) for run in reader.runs(chunk, wanted)]
        assert [len(run.spans) for run in runs] == [2, 2, 1]


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20], ids=["a-batch-each", "one-chunk"])
def test_base_offset_of_compressed_magic_1_is_independent_of_chunks(tmp_path, chunk_bytes):
    """Its header contains only its end, so the error appears during decompression."""
    inner = b"".join(message(1, i, b"k", b"v", timestamp=9) for i in range(3))  # offsets 3 to 5
    path = tmp_path / "0.log"
    path.write_bytes(message(1, 3, b"k", b"v") + message(1, 5, None, compress(GZIP, inner), attributes=GZIP))
    reader = LogReader(chunk_bytes)
    with pytest.raises(LogFormatError, match="a first record at offset 4 or more, found one at 3") as refused:
        for chunk in reader.chunks(log_file(path)):
            list(reader.runs(chunk))
    assert refused.value.position == len(message(1, 3, b"k", b"v"))
