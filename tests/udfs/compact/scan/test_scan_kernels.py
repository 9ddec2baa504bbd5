"""Facts of a chunk's batches against slow twins that take them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from lastkey.logformat.layout import BATCH, CODEC_MASK, CONTROL_MASK, DELETE_HORIZON_MASK, TRANSACTIONAL_MASK
from lastkey.udfs.compact.scan import scan_kernels as k
from lastkey.udfs.holes import NOT_KNOWN, thinned_offset


def _batches(seed: int) -> np.ndarray:
    """Return batches of all magics, with gaps between them and in them."""
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 40))
    out = np.zeros(n, BATCH)
    out["last_offset"] = np.cumsum(random.integers(1, 9, n))
    before = np.concatenate([[0], out["last_offset"][:-1]])
    out["base_offset"] = before + np.minimum(random.integers(1, 3, n), out["last_offset"] - before)
    out["records_count"] = np.maximum(out["last_offset"] - out["base_offset"] + 1 - random.integers(0, 2, n), 0)
    out["size"] = random.integers(61, 2000, n)
    out["magic"] = random.integers(0, 4, n)
    out["attributes"] = random.integers(0, 64, n)
    out["max_timestamp"] = random.integers(-1, 1000, n)
    out["producer_id"] = random.integers(-1, 2, n)
    out["partition_leader_epoch"] = random.integers(-1, 5, n)
    wrapped = (out["magic"] < 2) & (out["attributes"] & CODEC_MASK != 0)
    out["base_offset"][wrapped] = out["records_count"][wrapped] = -1
    return out


@pytest.mark.parametrize("seed", range(25))
def test_segment_facts_equal_those_of_each_batch(seed: int) -> None:
    batches = _batches(seed)
    facts = np.empty(len(k.FACTS), np.int64)
    k.collect_facts(batches, 0, facts)
    n_records = most = codecs = magics = producing = transactional = previous = 0
    for row in batches:
        offsets, expected = int(row["last_offset"]) - previous, int(row["records_count"])
        n_records += expected if expected >= 0 else 1
        most += expected if expected >= 0 else max(min(offsets, int(row["size"]) * 1032 // k.SMALLEST_BATCH), 1)
        codecs |= 1 << int(row["attributes"] & CODEC_MASK)
        magics |= 1 << int(row["magic"])
        control = bool(row["attributes"] & CONTROL_MASK)
        producing += int(control or row["producer_id"] >= 0)
        transactional += int(control or bool(row["attributes"] & TRANSACTIONAL_MASK))
        previous = int(row["last_offset"])
    highest = [int(batches[name].max()) for name in ("max_timestamp", "partition_leader_epoch")]
    assert facts.tolist() == [n_records, most, highest[0], codecs, magics, highest[1], producing, transactional]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("before", [0, -7, NOT_KNOWN])
def test_last_cleaned_batch_is_found(seed: int, before: int) -> None:
    batches, expected, previous = _batches(seed), -1, before
    batches["attributes"][seed :: seed + 9] |= DELETE_HORIZON_MASK
    for row in batches:
        base, last = int(row["base_offset"]), int(row["last_offset"])
        gap = previous != NOT_KNOWN and base != previous + 1
        horizon = row["magic"] >= 2 and row["attributes"] & DELETE_HORIZON_MASK
        if base >= 0 and (gap or row["records_count"] < last - base + 1 or horizon):
            expected = last
        previous = last
    assert thinned_offset(batches, before) == expected
