"""Size of indexes: the tables of the proposals to the byte, and counts against decoded headers."""

from __future__ import annotations

import numpy as np
import pytest

from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from lastkey.logformat.batches.segment import open_segment
from lastkey.udfs.lookup.index_sizes import IndexSizesPlan, index_sizes, offset_index_bytes, time_index_bytes_per_day
from tests.builders.logs import write_partition
from tests.builders.trees import files_in
from tests.golden import golden


def test_index_sizes_equal_the_tables_of_the_proposals():
    # KIP-33, draft: 3,500 partitions, entries a day 86400 and 1440, "3.4 GB" and "57 MB"
    assert time_index_bytes_per_day(1) == 86_400 * 12
    assert time_index_bytes_per_day(60) == 1_440 * 12
    assert round(time_index_bytes_per_day(1, 3500) / 2**30, 1) == 3.4
    assert int(time_index_bytes_per_day(60, 3500) / 2**20) == 57
    # the offset index: segments of 512 MB, an entry each 4 KiB: 1 MB; 1000 partitions: about 1 GB
    assert offset_index_bytes(512 << 20) == 1 << 20
    assert round(offset_index_bytes(512 << 20, partitions=1000) / 2**30) == 1


@pytest.mark.parametrize("name", ["txn-none", "ts-disorder", "v1-gzip-append", "zstd-headers"])
def test_sizing_counts_equal_those_of_the_headers(name, tmp_path_factory):
    case = golden(tmp_path_factory)[name]
    folder = case.input(case.partitions[0])
    [plan] = archived_partitions(str(folder.parent), TopicFilter((case.partitions[0].rpartition("-")[0],)), [])
    sizes = index_sizes(IndexSizesPlan(plan, 4096, 10 << 20))
    headers = {log: open_segment(log).headers() for log in files_in(folder)}
    assert sizes.segments == len(headers)
    assert sizes.batches == sum(map(len, headers.values()))
    assert sizes.log_bytes == sum(log.stat().st_size for log in headers)
    now = [path.stat().st_size for kind in ("*.index", "*.timeindex") for path in folder.glob(kind)]
    assert sizes.now_bytes == sum(now)
    for ms, size in ((60_000, sizes.minute_bytes), (1000, sizes.second_bytes)):
        entries = [len(set((h["max_timestamp"][h["max_timestamp"] >= 0] // ms).tolist())) for h in headers.values()]
        assert size == 12 * sum(entries)
    assert sizes.batch_bytes == 20 * sizes.batches
    if name != "v1-gzip-append":  # written by 2.8.2, an entry for each append
        assert abs(sizes.interval_bytes - sizes.now_bytes) <= 24
    days = {int(t) // 86_400_000 for h in headers.values() for t in h["max_timestamp"] if t >= 0}
    assert sizes.days == len(days)


def test_damaged_log_is_counted_up_to_the_damage(tmp_path):
    folder = write_partition(tmp_path / "t-0", "a=1 | b=2 | c=3").folder
    log = folder / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 3 * 2 + 16] = 9
    log.write_bytes(data)
    [plan] = archived_partitions(str(tmp_path), EVERY_TOPIC, [])
    sizes = index_sizes(IndexSizesPlan(plan, 4096, 10 << 20))
    assert sizes.problem is not None
    assert sizes.problem.kind == "magic"
    assert sizes.batches in (0, 2)
    assert np.isscalar(sizes.second_bytes)
