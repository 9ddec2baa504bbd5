"""Batch headers of several producers, from lists of events, and drawn ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from lastkey.logformat.layout import BATCH, CONTROL_MASK, TRANSACTIONAL_MASK


def log(events):
    """Return BATCH[n] of (producer, kind, epoch, offsets, base sequence, timestamp).

    Kinds: "t" transactional data, "d" other data, "a" and "c" markers, "e" an empty marker, "x" an unknown one, "l" a
    legacy batch.
    """
    batches = np.zeros(len(events), BATCH)
    offset = position = 0
    for row, (producer, kind, epoch, offsets, sequence, timestamp) in zip(batches, events, strict=True):
        control = kind in "acex"
        n = 1 if control else offsets
        row["base_offset"], row["last_offset"] = offset, offset + n - 1
        row["position"], row["size"] = position, 100
        row["producer_id"] = -1 if kind == "l" else producer
        row["producer_epoch"] = epoch
        row["base_sequence"] = -1 if control or kind == "l" else sequence
        row["max_timestamp"] = timestamp
        row["attributes"] = {"d": 0, "l": 0, "t": TRANSACTIONAL_MASK}.get(kind, TRANSACTIONAL_MASK | CONTROL_MASK)
        row["records_count"] = 0 if kind == "e" else 1
        row["control_type"] = {"a": 0, "c": 1, "x": 5}.get(kind, -1)
        row["coordinator_epoch"] = epoch + 100 if kind in "acx" else -1
        row["magic"] = 1 if kind == "l" else 2
        offset += n + timestamp % 2  # gaps, as compaction leaves them
        position += 100
    return batches


def logs(kinds, max_size=40, producers=5):
    event = st.tuples(
        st.integers(0, producers - 1), st.sampled_from(kinds), st.sampled_from([0, 0, 0, 1]), st.integers(1, 9),
        st.sampled_from([0, 5, -1, -(2**31), 2**31 - 3]), st.integers(0, 99),
    )  # fmt: skip
    return st.lists(event, max_size=max_size).map(log)
