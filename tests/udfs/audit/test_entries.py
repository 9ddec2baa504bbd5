"""Entries of drawn logs against plain code; full disks, and a process that ends while a thread writes."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.jobs.audit.sources import archive_source
from lastkey.jobs.command.kinds import EVERY_TOPIC
from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.audit import entries, entry_kernels
from lastkey.udfs.audit.entries import Cuts, Group, ReadTask, as_bytes, bins, read_task
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, Wanted, listed_logs
from tests.builders.logs import write_partition
from tests.builders.mirrored import added_up
from tests.reference.audit import visible_records

SECRET = (1, 2)

_WRITE = """
import os, resource, sys, threading
from lastkey.jobs.audit.sources import archive_source
from lastkey.jobs.command.kinds import EVERY_TOPIC
from lastkey.udfs.audit import entries
from lastkey.udfs.data_source.find_pieces import find_pieces
from lastkey.udfs.data_source.pieces import Range, Wanted, listed_logs

archive, store, limit = sys.argv[1:]
entries._MOST_ENTRIES = entries._SLACK = 64
(partition,) = archive_source(archive, EVERY_TOPIC).partitions
pieces = find_pieces(partition, Range(wanted=Wanted(committed=True)))
groups = tuple(entries.Group(n, 1, 0, None, [(n, piece)]) for n, piece in enumerate(pieces))
task = entries.ReadTask(groups, store, "state/audit_entries", (1, 2), False)
written = threading.Event()

def work():
    while True:
        entries.read_task([listed_logs(partition)], task)
        written.set()

if limit == "none":
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    written.wait()
    sys.exit(5)  # as an error of another task ends a run
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    entries.read_task([listed_logs(partition)], task)
except OSError as error:
    print(error)
    sys.exit(4)
"""


def read(folder: Path, store: Path, cuts: Cuts, apart: bool = False, hide: bool = False) -> list[dict[str, Any]]:
    """Read a log; apart: each stretch is a group."""
    (partition,) = archive_source(str(folder.parent), EVERY_TOPIC).partitions
    pieces = list(enumerate(find_pieces(partition, Range(wanted=Wanted(committed=True)))))
    groups = [pieces] if cuts is not None and not apart else [[piece] for piece in pieces]
    task = ReadTask(tuple(Group(of[0][0], 5, 0, cuts, list(of)) for of in groups), str(store), "entries", SECRET, hide)
    made = read_task([listed_logs(partition)], task)
    assert not any(piece.problems for piece in made.stretches)
    table = pq.read_table(store / "entries" / made.path)
    assert made.entries == len(table) == sum(piece.entries for piece in made.stretches)
    high = [table["high"].to_numpy()[first:stop] for first, stop in row_groups(store / "entries" / made.path)]
    assert all((np.diff(bins(part).astype(int)) >= 0).all() for part in high)
    assert min(piece.first_offset for piece in made.stretches) == 0
    return sorted(table.to_pylist(), key=lambda row: (row["offset"], row["first_offset"] or 0))


def row_groups(path: Path) -> list[tuple[int, int]]:
    metadata = pq.read_metadata(path)
    ends = np.cumsum([0, *(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))]).tolist()
    return list(itertools.pairwise(ends))


@pytest.mark.parametrize("seed", range(4))
def test_keys_whose_hashes_are_partly_equal_have_slots_of_their_own(seed: int) -> None:
    """Also where the lower and the upper half of `low` are equal; of a key the newest entry has the slot."""
    rng = np.random.default_rng(seed)
    n, n_keys = 400, 150
    keys = np.unique(rng.integers(0, [2, 6, 40], (n_keys, 3)), axis=0)
    of_row = rng.integers(0, len(keys), n)
    rows = np.zeros(n, entry_kernels.ENTRY)
    rows["low"], rows["high"] = keys[of_row, 0] << 32 | keys[of_row, 1] << 12, keys[of_row, 2]
    state, slots = np.zeros(entry_kernels.N_STATE, np.int64), np.zeros(1 << 10, np.uint64)
    state[entry_kernels.ENTRIES] = n
    nothing = np.zeros(0, np.uint8)
    entry_kernels.enter_entries(entry_kernels.Entries(rows, nothing, slots, state))
    newest = {int(key): row for row, key in enumerate(of_row)}
    assert sorted((slots[slots > 0] & 0xFFFFFFFF).tolist()) == sorted(row + 1 for row in newest.values())


@pytest.mark.parametrize(("most_entries", "most_key_bytes"), [(1 << 20, 1 << 20), (9, 1 << 20), (1 << 20, 40)])
@pytest.mark.parametrize("seed", range(4))
def test_entries_are_sums_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most_entries: int, most_key_bytes: int
) -> None:
    """The records apart are those of plain code; added up they are its sums, in as many runs as there is memory for."""
    monkeypatch.setattr(entries, "_MOST_ENTRIES", most_entries)
    monkeypatch.setattr(entries, "_LEAST_SLOTS", 4)
    monkeypatch.setattr(entries, "_SLACK", 3)
    monkeypatch.setattr(entries, "_MOST_KEY_BYTES", most_key_bytes)
    rng = random.Random(seed)
    keys = ["-", "", "a", "b", "key" * 30, *(f"k{i}" for i in range(20))]
    batches = [" ".join(f"{rng.choice(keys)}={rng.choice(['-', '1', 'value'])}" for _ in range(8)) for _ in range(30)]
    heads = [rng.choice(["", "{codec=zstd} ", "{codec=lz4} ", "{codec=none} "]) for _ in batches]
    text = "".join(f"{head}{batch}{rng.choice([' | ', ' || '])}" for head, batch in zip(heads, batches, strict=True))
    folder = tmp_path / "archive" / "t-0"
    write_partition(folder, f"{text}a=1")
    plain = visible_records(folder)
    versions = read(folder, tmp_path / "apart", None)
    names = ("offset", "timestamp_ms", "key")
    assert [[row[name] for name in names] for row in versions] == [[r.offset, r.timestamp, r.key] for r in plain]
    assert [row["tombstone"] for row in versions] == [r.value is None for r in plain]
    distinct = {r.key for r in plain} - {None}
    assert len({(row["high"], row["low"]) for row in versions if not row["keyless"]}) == len(distinct)
    contents = {(r.key, r.value): row["digest"] for r, row in zip(plain, versions, strict=True)}
    assert len(set(contents.values())) == len(contents)
    for cuts, apart in (((), False), ((), True), (tuple(sorted(rng.sample(range(1, 240), 3))), False)):
        entry_rows = read(folder, tmp_path / f"together{cuts}{apart}", cuts, apart)
        assert totals(entry_rows) == totals(versions)
        if most_entries > 9 and most_key_bytes > 40 and not apart:
            entry = [row | {"read_id": 0} for row in versions]
            columns = ("offset", "key", "versions", "bytes", "first_offset", "first_timestamp_ms", "size_bytes")
            sums = [tuple(row[name] for name in columns) for row in added_up(entry, cuts)]
            assert [tuple(row[name] for name in columns) for row in entry_rows] == sorted(sums)
        for cut in cuts:
            assert not [row for row in entry_rows if row["first_offset"] < cut <= row["offset"]]
    hidden = read(folder, tmp_path / "hidden", (), hide=True)
    keys = pa.array(distinct, pa.binary())
    hashes = as_bytes(keyed_hashes(keys, SECRET), keys).to_pylist()
    assert {row["key"] for row in hidden} == set(hashes)
    assert {row["expected"] for row in hidden} <= set(range(5))


def totals(rows: list[dict[str, Any]]) -> dict[bytes, tuple[Any, ...]]:
    """Return last offset, time and size, count and bytes of each key."""
    out: dict[bytes, tuple[Any, ...]] = {}
    for row in (row for row in rows if row["key"] is not None):
        n, size = row["versions"] or 1, row["bytes"] or row["size_bytes"]
        sums = out.get(row["key"], (0, 0))
        last = row["offset"], row["timestamp_ms"], row["size_bytes"], row["tombstone"], row["high"], row["low"]
        out[row["key"]] = (sums[0] + n, sums[1] + size, *last)
    return out


def run(tmp_path: Path, limit: str) -> subprocess.CompletedProcess[str]:
    if not (tmp_path / "archive").exists():
        write_partition(tmp_path / "archive" / "t-0", " | ".join(f"key{i}=1 other{i}=2" for i in range(300)))
    command = [sys.executable, "-c", _WRITE, str(tmp_path / "archive"), str(tmp_path / "store"), limit]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.process
def test_process_exit_during_writes_of_threads_does_not_abort(tmp_path: Path) -> None:
    """Arrow's writer must call no stream of Python's: the interpreter may be gone."""
    for _ in range(3):
        done = run(tmp_path, "none")
        assert done.returncode == 5, signal.Signals(-done.returncode) if done.returncode < 0 else done.stderr


@pytest.mark.process
@pytest.mark.parametrize("limit", [0, 10_000])
def test_file_that_cannot_grow_is_an_os_error(tmp_path: Path, limit: int) -> None:
    done = run(tmp_path, str(limit))
    assert done.returncode == 4 and "File too large" in done.stdout, done.stderr
