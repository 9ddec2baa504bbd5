"""Records of erased keys, as a plain loop over them says: each key below its offset, of several erasures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lastkey.logformat.batches.bodies import BodyLoader
from lastkey.logformat.batches.chunks import NO_END, Chunk
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.batches.walk_kernels import walk_batches
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH
from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.compact.clean.deciders import ErasedKeys
from lastkey.udfs.compact.clean.key_kernels import KEY_OFFSET, SLOT, enter_offsets
from lastkey.udfs.compact.plan import Erasing
from lastkey.udfs.erased_keys import content_id, read_erased
from lastkey.udfs.storage import open_root
from tests.builders.logs import write_segment
from tests.reference.log import decode_log

SECRET = (3, 5)


def write_key_file(store: Path, keys: list[bytes]) -> str:
    """Write the file of an erasure; return its path below the store."""
    data = bytes(8) + np.sort(keyed_hashes(pa.array(keys, pa.binary()), SECRET).view(SLOT)[:, 0]).tobytes()
    (store / "erasures").mkdir(parents=True, exist_ok=True)
    (store / "erasures" / content_id(data)).write_bytes(data)
    return f"erasures/{content_id(data)}"


def read_runs(folder: Path, text: str) -> Iterator[tuple[Run, list[tuple[int, bytes | None]]]]:
    """Yield the runs of a log, each with (offset, key) of its records by a plain decoder."""
    raw = np.fromfile(write_segment(folder, text), np.uint8)
    batches = decode_log(raw.tobytes())
    rows = np.empty(len(batches), BATCH)
    walk_batches(raw, len(raw), 0, -1, NO_END, True, rows)
    loader = BodyLoader(max_batch_bytes=1 << 20, soft_bytes=200, secret=SECRET)
    for run in loader.runs(Chunk(0, raw, rows, path="0.log"), backwards=True):
        of = batches[run.first : run.first + len(run.batches)]
        yield run, [(r.offset, r.key) for batch in of for r in batch.records]


@pytest.mark.parametrize("seed", range(4))
def test_erase_kernel_equals_a_plain_loop(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    keys = [f"k{n}" for n in range(9)]
    text = " | ".join(
        f"{{codec={draw.choice(['none', 'zstd'])}}} " + " ".join(f"{draw.choice([*keys, '-', ''])}=v" for _ in range(5))
        for _ in range(30)
    )
    erasures = [(draw.sample(keys, 3), draw.randint(0, 150)) for _ in range(3)]
    until: dict[bytes, int] = {}
    files = []
    for of, bound in erasures:
        files.append((write_key_file(tmp_path, [key.encode() for key in of]), bound))
        until |= {key.encode(): max(bound, until.get(key.encode(), 0)) for key in of}
    plan: Any = SimpleNamespace(run=SimpleNamespace(store_uri=str(tmp_path)))
    table = ErasedKeys(plan, Erasing(SECRET, tuple(files)))
    seen, removed = 0, set[int]()
    for run, records in read_runs(tmp_path / "log", text):
        stays = np.empty(len(run.spans), np.bool_)
        table.mark(run, stays)
        expected = [not (key is not None and offset < until.get(key, 0)) for offset, key in records]
        assert stays.tolist() == expected
        seen += len(records)
        removed |= {offset for (offset, _), stay in zip(records, expected, strict=True) if not stay}
    assert seen == 150
    ranges = table.ranges().tolist()
    assert [offset for first, last in ranges for offset in range(first, last + 1)] == sorted(removed)
    assert all(later > last + 1 for (_, last), (later, _) in itertools.pairwise(ranges))


def test_zero_hash_is_a_valid_key() -> None:
    table = np.zeros(16, KEY_OFFSET)
    used, _ = enter_offsets(np.zeros(2, SLOT), np.array([7, 5]), table, 0, 0)
    assert used == 1
    (row,) = table[table["offset"] > 0]
    assert (row["low"], row["high"], row["offset"]) == (0, 1, 7)


def test_damaged_digest_file_is_an_error(tmp_path: Path) -> None:
    path, store = write_key_file(tmp_path, [b"a"]), open_root(str(tmp_path))
    assert len(read_erased(store, path)) == 24
    (tmp_path / path).write_bytes(bytes(24))
    with pytest.raises(LogFormatError, match="bytes whose SHA-256 begins"):
        read_erased(store, path)
    with pytest.raises(LogFormatError, match="no such file"):
        read_erased(store, "erasures/none")
