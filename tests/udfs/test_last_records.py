"""The last data record of a segment, found from the end of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.storage import io_counts
from lastkey.udfs.last_records import SegmentEnd, segment_end
from lastkey.udfs.storage import open_root
from tests.builders.logs import write_partition

MARKERS = " | {pid=1 abort}" * 300


def find_end(folder: Path, text: str, base: int = 0, interval: int = 4096) -> SegmentEnd:
    [log] = write_partition(folder, text, base_offset=base, index_interval_bytes=interval).logs
    index = log.with_suffix(".index").read_bytes()
    return segment_end(open_root(str(folder)), log.name, log.stat().st_size, base, index, MAX_BATCH_BYTES)


@pytest.mark.parametrize("interval", [1, 4096])
@pytest.mark.parametrize(
    ("text", "last", "is_empty"),
    [
        ("a=1 b=2 | c=3", 2, False),
        ("a=1 | {last=5}", 0, True),
        ("{last=5}", -1, True),
        ("{last=5} | {last=7} a=1", 6, False),
        ("{pid=1 txn} a=1 | {pid=1 commit}", 0, False),
        ("{pid=1 txn} a=1 b=1" + MARKERS, 1, False),
        ("{pid=1 txn last=3}" + MARKERS, -1, False),
        ("a=1 | {codec=zstd last=9} b=2@3 c=3@5", 5, False),
        ("a=1 | {codec=gzip last=9} b=2@3 c=3@5 | {last=12}", 5, True),
        ("{pid=1 txn} a=1 b=2", 1, False),
        ("", -1, False),
    ],
)
def test_last_record_of_a_segment_is_found(tmp_path: Path, text: str, last: int, is_empty: bool, interval: int) -> None:
    assert find_end(tmp_path / "t-0", text, interval=interval) == (last, is_empty)
    above = 700 + last if last >= 0 else -1
    if "@" not in text and "last" not in text:
        assert find_end(tmp_path / "u-0", text, 700, interval) == (above, is_empty)


def test_read_is_limited_to_the_end_of_the_log(tmp_path: Path) -> None:
    text = " | ".join(f"k{i}={'x' * 500}" for i in range(4000))
    with io_counts.counted() as counts:
        assert find_end(tmp_path / "t-0", text) == (3999, False)
    assert counts.get(io_counts.READ, 0) < 200_000 < (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
