"""Indexes, transaction indexes and snapshots built from a broker's logs are the broker's own, byte for byte.

Where they are not, the reason is named: a broker that decided index entries by the append, or was restarted while
the segment was active; and segments compacted before, whose records had another producers' state.
"""

from __future__ import annotations

import io
from functools import reduce

import numpy as np
import pytest

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.side_files import checkpoints, offset_index, producer_snapshot, time_index, transaction_index
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import (
    ProducerState,
    aborted_transactions,
    merge,
    no_producers,
    summarize,
)
from tests.golden import PASSES, case_names
from tests.reference.index_entries import lawful_offset_index, lawful_time_index, lawful_txn_index

INDEXED_BY_THE_APPEND = {"v0-none", "v1-none"}  # a 2.8.2 broker, and several messages an append


class Folder:
    """A partition's folder, resolved; batches and bytes of its files."""

    def __init__(self, path):
        self.path = path
        files = [(file.name, file.stat().st_size) for file in path.iterdir()]
        self.found = names.resolve_leftovers(files, {})
        self.bases = list(self.found.segments)

    def data(self, base, kind):
        file = self.found.segments[base].get(kind)
        return b"" if file is None else (self.path / file.name).read_bytes()

    def snapshot(self, offset):
        if offset not in self.found.snapshots:
            return None
        return producer_snapshot.read((self.path / self.found.snapshots[offset].name).read_bytes(), "p")

    def batches(self, base):
        """Return copies of the rows, in small chunks."""
        data = self.data(base, names.LOG)
        chunks = read_chunks(io.BytesIO(data), "p", LogRange(0, len(data)), ChunkBuffer(3000), Tail())
        return [chunk.batches.copy() for chunk in chunks]


def folders(case):
    for partition in case.partitions:
        yield "input", Folder(case.input(partition))
        for number in PASSES:
            yield f"expected{number}", Folder(case.expected(number, partition))


@pytest.mark.parametrize("name", case_names())
def test_built_indexes_equal_those_of_brokers(name, cases):
    for kind, folder in folders(cases[name]):
        others = []
        assert not folder.found.ignored
        assert not folder.found.notes
        for base in folder.bases:
            index, times = folder.data(base, names.INDEX), folder.data(base, names.TIME_INDEX)
            entries = offset_index.read(index, base, "p")
            assert lawful_offset_index(entries, base, len(folder.data(base, names.LOG)))
            assert offset_index.write(entries, base, "p") == index
            entries = time_index.read(times, base, "p")
            assert lawful_time_index(entries, base)
            assert time_index.write(entries, base, "p") == times
            builder = IndexBuilder(base, cases[name].settings["index.interval.bytes"])
            for batches in folder.batches(base):
                builder.append(batches["last_offset"], batches["size"], batches["max_timestamp"])
            if builder.finish() != (index, times):
                others.append(base)
        assert bool(others) == (kind == "input" and name in INDEXED_BY_THE_APPEND), (kind, others)


@pytest.mark.parametrize("name", [name for name in case_names() if not name.endswith("-more")])
def test_snapshots_and_transaction_indexes_equal_those_of_brokers(name, cases):
    for partition in cases[name].partitions:
        folder = Folder(cases[name].input(partition))
        state, summaries, end = ProducerState(), [], 0
        for base in folder.bases:
            expected = folder.snapshot(base)
            assert (expected is None) == (base == folder.bases[0])
            if expected is not None:
                assert producer_snapshot.same_entries(state.entries(), expected)
            chunks = folder.batches(base)
            completed = [state.append(batches) for batches in chunks]
            entries = [aborted_transactions(rows) for rows in completed]
            assert b"".join(map(transaction_index.write, entries)) == folder.data(base, names.TXN_INDEX)
            summaries.append(reduce(merge, map(summarize, chunks), no_producers()))
            end = max([end, *(int(batches["last_offset"][-1]) + 1 for batches in chunks)])
            if expected is not None:
                at_base = ProducerState.from_snapshot(expected, 0, 1)
                at_base.apply(summaries[-1])
                assert np.array_equal(at_base.entries(), state.entries())
        assert producer_snapshot.same_entries(state.entries(), folder.snapshot(end))
        assert any(folder.data(base, names.TXN_INDEX) for base in folder.bases) == name.startswith("txn")
        parallel = ProducerState()
        parallel.apply(reduce(merge, summaries))
        assert np.array_equal(parallel.entries(), state.entries())


@pytest.mark.parametrize("name", case_names())
def test_text_files_and_transaction_indexes_are_written_unchanged(name, cases):
    for _, folder in folders(cases[name]):
        for base in folder.bases:
            data = folder.data(base, names.TXN_INDEX)
            entries = transaction_index.read(data, "p")
            assert lawful_txn_index(entries, base)
            assert transaction_index.write(entries) == data
        if names.LEADER_EPOCH_CHECKPOINT in folder.found.side_files:  # not in a log of magic 0 or 1 only
            data = (folder.path / names.LEADER_EPOCH_CHECKPOINT).read_bytes()
            assert checkpoints.write_leader_epochs(checkpoints.read_leader_epochs(data, "p")) == data
        if names.PARTITION_METADATA in folder.found.side_files:
            data = (folder.path / names.PARTITION_METADATA).read_bytes()
            assert checkpoints.write_partition_metadata(checkpoints.read_partition_metadata(data, "p")) == data
