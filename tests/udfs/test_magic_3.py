"""Everything above the bytes: partitions in magic 3 give what the same partitions in magic 2 give."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.config import Config
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions, as_strings
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.partition import check_partition
from tests.builders.folders import Outcome, archived_at, compact, golden_plan
from tests.builders.formats import as_v3, converted
from tests.builders.opened import open_partition
from tests.builders.plans import changed
from tests.builders.sources import read
from tests.builders.splits import compact_in_blocks
from tests.builders.trees import files_in
from tests.golden import Case, case_names
from tests.reference.any_magic import decode_any

NAMES = ("txn-zstd", "gzip-headers", "lz4-append", "v1-gzip-append", "zstd-headers", "none-tomb")


def decode_segments(outcome: Outcome) -> list[tuple[int, list[object], bytes]]:
    """Return base, batches and transaction index of each segment, in magic 2."""
    assert outcome.result.problem is None
    out = []
    for i, segment in enumerate(outcome.result.log.segments):
        data = outcome.path(i).read_bytes()
        assert len(data) == segment.size_bytes
        txns = outcome.side_file(i, "txnindex")
        batches = decode_any(converted(data, 2))
        out.append((segment.base_offset, batches, txns.read_bytes() if txns.exists() else b""))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_compaction_result_is_independent_of_formats(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """The archive in either format, in one task and in several; the store is in magic 2."""
    case = cases[name]
    for partition in case.partitions:
        as_v3(case.folder / "input" / partition, tmp_path / "archive" / partition)
        sides = {2: archived_at(case.folder / "input", partition), 3: archived_at(tmp_path / "archive", partition)}
        usual = golden_plan(case, partition, 1, sides[2], tmp_path / "usual")
        compacted = compact(usual)
        expected = decode_segments(compacted)
        assert expected
        for magic, side in sides.items():
            plan = golden_plan(case, partition, 1, side, tmp_path / f"{partition}-{magic}")
            ours = compact(plan)
            assert decode_segments(ours) == expected
            assert {batch[16] for batch in written(ours)} <= {2}
            blocks = compact_in_blocks(changed(plan, store_uri=f"{plan.run.store_uri}-blocks"), split_bytes=3000)
            assert blocks.files().keys() == ours.files().keys()
            assert decode_segments(blocks) == expected


def written(outcome: Outcome) -> list[bytes]:
    """Return the batches of the segments that the run wrote."""
    out = []
    for i, segment in enumerate(outcome.result.log.segments):
        if segment.root != "store":
            continue
        data, at = outcome.path(i).read_bytes(), 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            out.append(data[at : at + size])
            at += size
    return out


def found_in(folder: Path) -> list[list[object]]:
    """Return what searches find for every offset and for times, but for positions and sizes."""
    with open_partition(folder) as log:
        table = pa.Table.from_batches(log.records(["timestamp_ms"]))
        times = np.unique(table.column("timestamp_ms").to_numpy())[::7]
        offsets = np.arange(log.earliest, log.log_end_offset)
        answers = log.lookup_offsets(offsets), log.offsets_for_times(np.concatenate([times, times + 1, [-1, -2, -3]]))
        return [
            answer[name].tolist()
            for answer in answers
            for name in answer.dtype.names
            if name not in ("position", "size")
        ]


def dumped(folder: Path) -> list[str]:
    """Return the lines of all logs, without what says how a batch is stored."""
    stored = re.compile(r" position: \d+| size: \d+ magic: [23]| crc: \d+")
    out: list[bytes] = []
    dump(files_in(folder), DumpOptions(LogOptions(deep=True, decode=as_strings)), lambda data: out.append(bytes(data)))
    text = stored.sub("", b"".join(out).decode()).splitlines()
    return [line for line in text if not line.startswith("Dumping")]


@pytest.mark.parametrize("name", case_names())
def test_readers_and_verify_give_the_same_in_both_formats(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    source = cases[name].folder / "input"
    for partition in cases[name].partitions:
        as_v3(source / partition, tmp_path / "archive" / partition)
        roots = (source, tmp_path / "archive")
        for options in (
            {},
            {"columns": "key,offset,timestamp"},
            {"isolationLevel": "read_committed", "columns": "key"},
        ):
            theirs, ours = (read("kafka_log", root / partition, **options) for root in roots)
            assert ours == theirs
        theirs, ours = (found_in(root / partition) for root in roots)
        assert ours == theirs
        theirs, ours = (dumped(root / partition) for root in roots)
        assert ours == theirs
    root = open_root(str(tmp_path / "archive"))
    for archived in list_archive(root, lambda _: True).partitions.values():
        result = check_partition(plan_archived(archived, Config(), sealed=False))
        assert not result.problems
        assert result.batches
        assert result.records
