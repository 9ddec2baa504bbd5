"""Any combination of limits on any log gives what the same limits give on a whole reading of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.listing import Segment
from lastkey.udfs.data_source.log_end import last_stable_offset as ours_of
from lastkey.udfs.data_source.pieces import SourcePartition
from tests.builders.logs import START_MS, write_partition
from tests.builders.sources import read
from tests.reference.log import decode_log
from tests.reference.read_committed import committed_offsets, last_stable_offset

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COLUMNS = "offset,key,timestamp_ms"


@st.composite
def logs(draw: Any) -> str:
    """Draw a partition as text: open, ended and hanging transactions; codecs; times out of order; several segments."""
    opened: set[int] = set()
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(1, 7))):
            kind = draw(st.sampled_from(["plain", "txn", "txn", "end"]))
            if kind == "end" and opened:
                pid = draw(st.sampled_from(sorted(opened)))
                opened.discard(pid)
                batches.append(f"{{pid={pid} {draw(st.sampled_from(['commit', 'abort']))}}}")
                continue
            records = " ".join(
                f"{draw(st.sampled_from('abc-'))}=v~{START_MS + draw(st.integers(-50, 50))}"
                for _ in range(draw(st.integers(1, 4)))
            )
            codec = f"codec={draw(st.sampled_from(CODECS))}"
            if kind == "txn":
                pid = draw(st.integers(1, 3))
                opened.add(pid)
                batches.append(f"{{pid={pid} txn {codec}}} {records}")
            else:
                batches.append(f"{{{codec}}} {records}")
        segments.append(" | ".join(batches))
    return " || ".join(segments)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=60)
@given(logs(), st.data())
def test_combined_limits_select_the_intersection(tmp_path_factory, text, data):
    folder = tmp_path_factory.mktemp("properties") / "t-0"
    files = write_partition(folder, text)
    whole = read("kafka_log", folder, columns=COLUMNS)
    offsets, times = (np.asarray(whole[name]) for name in ("offset", "timestamp_ms"))
    start = data.draw(st.integers(0, files.end_offset))
    end = data.draw(st.integers(start, files.end_offset))
    start_ms, end_ms = (START_MS + data.draw(st.integers(-60, 60)) for _ in range(2))
    committed = data.draw(st.booleans())
    pushed: dict[str, Any] = {}
    mask = (offsets >= start) & (offsets < end)
    given_options = {"startingOffsets": f'{{"t":{{"0":{start}}}}}', "endingOffsets": f'{{"t":{{"0":{end}}}}}'}
    if data.draw(st.booleans()):
        pushed |= {"start_ms": start_ms}
        mask &= times >= start_ms
    if data.draw(st.booleans()):
        pushed |= {"end_ms": end_ms}
        mask &= times < end_ms
    if data.draw(st.booleans()):
        given_options["key"] = "a"
        mask &= np.asarray(pc.fill_null(pc.equal(whole["key"], pa.scalar(b"a")), False))
    if committed:
        batches = [batch for log in files.logs for batch in decode_log(log.read_bytes())]
        given_options["isolationLevel"] = "read_committed"
        given_options["failOnDataLoss"] = "false"  # the end may lie behind the last stable offset
        mask &= np.isin(offsets, committed_offsets(batches))
    given_options["splitBytes"] = str(data.draw(st.sampled_from([1, 200, 100_000])))
    given_options["maxRecordsPerBatch"] = str(data.draw(st.sampled_from([1, 3, 1000])))
    table = read("kafka_log", folder, columns=COLUMNS, pushed=pushed, **given_options)
    assert table["offset"].to_pylist() == offsets[mask].tolist()
    shutil.rmtree(folder.parent)


@pytest.mark.long
@settings(max_examples=60)
@given(logs(), st.integers(0, 9), st.integers(0, 60) | st.none())
def test_last_stable_offset_is_found_from_any_snapshot(tmp_path_factory, text, lost, high_watermark):
    folder = tmp_path_factory.mktemp("stable") / "t-0"
    files = write_partition(folder, text)
    batches = [batch for log in files.logs for batch in decode_log(log.read_bytes())]
    segments = [
        Segment(str(folder), log.name, base, log.stat().st_size, 0)
        for log, base in zip(files.logs, files.bases, strict=True)
    ]
    snapshots = sorted((int(path.stem), path.name) for path in folder.glob("*.snapshot"))[: lost or None]
    first = files.bases[0]
    stable_offset = ours_of(SourcePartition("t", 0, segments, first, high_watermark, str(folder), tuple(snapshots)))
    assert stable_offset == last_stable_offset(batches, high_watermark)
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("text", ["", "{last=5}", "{pid=1 txn} a=1", "{pid=1 abort}"])
def test_nearly_empty_logs_are_read(tmp_path, text):
    write_partition(Path(tmp_path) / "t-0", text)
    n = 1 if "a=1" in text else 0
    assert read("kafka_log", tmp_path).num_rows == n
    assert read("kafka_log", tmp_path, isolationLevel="read_committed").num_rows == 0
    assert read("kafka_log", tmp_path, startingTimestamp="5").num_rows == n
