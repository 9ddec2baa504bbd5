"""Everything above the bytes: partitions in magic 3 give what the same partitions in magic 2 give."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.config import Config
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log_options import LogOptions, as_strings
from lastkey.logformat.search.partition_log import open_partition
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.partition import check_partition
from tests.builders.damage import Partition
from tests.builders.folders import Outcome, archived_at, compact, golden_plan
from tests.builders.formats import as_v3, converted
from tests.builders.sources import read
from tests.builders.splits import compact_in_blocks
from tests.builders.trees import files_in
from tests.golden import Case, case_names
from tests.reference.any_magic import decode_any
from tests.reference.log import data_batch

NAMES = ("txn-zstd", "gzip-headers", "lz4-append", "v1-gzip-append", "zstd-headers", "none-tomb")


def segments_of(outcome: Outcome) -> list[tuple[int, list[object], bytes]]:
    """Return base, batches and transaction index of each segment, in magic 2."""
    assert outcome.result.problem is None
    out = []
    for i, segment in enumerate(outcome.result.segments):
        data = outcome.path(i).read_bytes()
        assert len(data) == segment.size_bytes
        txns = outcome.side_file(i, "txnindex")
        batches = decode_any(converted(data, 2))
        out.append((segment.base_offset, batches, txns.read_bytes() if txns.exists() else b""))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_compaction_leaves_the_same_whatever_the_formats(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    """The archive in either format, the store in either, in one task and in several."""
    case = cases[name]
    for partition in case.partitions:
        as_v3(case.folder / "input" / partition, tmp_path / "archive" / partition)
        sides = {2: archived_at(case.folder / "input", partition), 3: archived_at(tmp_path / "archive", partition)}
        usual = golden_plan(case, partition, 1, sides[2], tmp_path / "usual")
        compacted = compact(usual)
        expected = segments_of(compacted)
        assert expected
        for magic, side in sides.items():
            for form in ("v2", "v3"):
                plan = golden_plan(case, partition, 1, side, tmp_path / f"{partition}-{magic}{form}")
                plan = replace(plan, settings=replace(plan.settings, store_format=form))
                ours = compact(plan)
                assert segments_of(ours) == expected
                magics = {batch[16] for batch in written(ours)}
                assert (3 in magics) == (form == "v3")
                if form == "v3":
                    for i, segment in enumerate(ours.result.segments):
                        if segment.root == "store":  # as if magic 2 had been written and then converted
                            assert ours.path(i).read_bytes() == converted(compacted.path(i).read_bytes(), 3)
                    blocks = compact_in_blocks(replace(plan, store_uri=f"{plan.store_uri}-blocks"), split_bytes=3000)
                    assert blocks.files().keys() == ours.files().keys()
                    assert segments_of(blocks) == expected


def test_a_rebuilt_record_whose_lengths_are_longer_than_needed_stays_magic_2(tmp_path: Path) -> None:
    """Magic 3 keeps a length, not its form: the batch is the one that a store in magic 2 holds, byte for byte."""

    def record(offset: int, key: bytes) -> bytes:
        fields = bytes([0, 0, 2 * offset]) + key + b"\x02v\x00"
        return bytes([2 * len(fields)]) + fields

    part = Partition(tmp_path / "archive", tmp_path / "store")
    part.folder.mkdir(parents=True)
    made = data_batch(0, [(1, b"a", b"v"), (1, b"b", b"v")])
    data = bytearray(made.data[:61] + record(0, b"\x02a") + record(1, b"\x82\x00b"))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    part.write(0, [replace(made, data=bytes(data)), data_batch(2, [(2, b"a", b"w")])])
    part.write(3, [data_batch(3, [(3, b"c", b"v")])], active=True)
    plan, logs = part.plan(sealed=True), {}
    for form in ("v2", "v3"):
        result = part.compact(plan=replace(plan, settings=replace(plan.settings, store_format=form)))
        assert result.problem is None
        logs[form] = b"".join(path.read_bytes() for path in files_in(part.store, "**/*.log"))
    size = 12 + int.from_bytes(logs["v2"][8:12], "big")
    assert b"\x82\x00b" in logs["v2"][:size]
    assert logs["v3"][:size] == logs["v2"][:size]
    assert logs["v3"] == converted(logs["v2"], 3)
    assert logs["v3"][size + 16] == 3


def written(outcome: Outcome) -> list[bytes]:
    """Return the batches of the segments that the run wrote."""
    out = []
    for i, segment in enumerate(outcome.result.segments):
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
            found[name].tolist() for found in answers for name in found.dtype.names if name not in ("position", "size")
        ]


def dumped(folder: Path) -> list[str]:
    """Return the lines of all logs, without what says how a batch is stored."""
    stored = re.compile(r" position: \d+| size: \d+ magic: [23]| crc: \d+")
    out: list[bytes] = []
    dump(files_in(folder), DumpOptions(LogOptions(deep=True, decode=as_strings)), lambda data: out.append(bytes(data)))
    text = stored.sub("", b"".join(out).decode()).splitlines()
    return [line for line in text if not line.startswith("Dumping")]


@pytest.mark.parametrize("name", case_names())
def test_readers_and_the_checker_see_the_same(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    source = cases[name].folder / "input"
    for partition in cases[name].partitions:
        as_v3(source / partition, tmp_path / "archive" / partition)
        roots = (source, tmp_path / "archive")
        for given in ({}, {"columns": "key,offset,timestamp"}, {"isolationLevel": "read_committed", "columns": "key"}):
            theirs, ours = (read("kafka_log", root / partition, **given) for root in roots)
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
