"""The cleaner's decision for every record and batch, as a kernel (COMPACTION.md, "Rules"). What it follows: KAFKA.md,
"Batches", "Records", "Tombstones" and "What is written".
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logformat.jit import kernel
from logformat.layout import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from udfs.compact.block_kernels import ALL_STAY, UNKNOWN
from udfs.compact.rebuild_kernels import COPIED, DROPPED, EMPTIED, NO_TIMESTAMP, REBUILT, UNKNOWN_TIMESTAMP

# batch retention, as Kafka's RecordFilter.BatchRetention
DELETE: Final = 0
RETAIN_EMPTY: Final = 1
DELETE_EMPTY: Final = 2

# columns of the counters
RECORDS_READ: Final = 0
RECORDS_KEPT: Final = 1
DROPPED_SUPERSEDED: Final = 2
DROPPED_TOMBSTONES: Final = 3
DROPPED_ABORTED: Final = 4
DROPPED_NULL_KEY: Final = 5
DROPPED_MARKERS: Final = 6
NULL_KEYS: Final = 7
BATCHES_READ: Final = 8
BATCHES_COPIED: Final = 9
BATCHES_REBUILT: Final = 10
BATCHES_EMPTIED: Final = 11
BATCHES_DROPPED: Final = 12
TOMBSTONES_KEPT: Final = 13
DROPPED_EXPIRED: Final = 14
N_COUNTERS: Final = 15
COUNTER_NAMES: Final = (
    "records_read", "records_kept", "dropped_superseded", "dropped_tombstones", "dropped_aborted", "dropped_null_key",
    "dropped_markers", "null_keys", "batches_read", "batches_copied", "batches_rebuilt", "batches_emptied",
    "batches_dropped", "tombstones_kept", "dropped_expired",
)  # fmt: skip


@kernel
def decide(
    batches: np.ndarray,
    bodies: np.ndarray,
    spans: np.ndarray,
    is_last: np.ndarray,
    retention: np.ndarray,
    drop_records: np.ndarray,
    discardable: np.ndarray,
    fates: np.ndarray,
    now_ms: int,
    new_horizon_ms: int,
    oldest_ms: int,
    compacts: bool,
    keep_legacy_tombstones: bool,
    keep_null_keys: bool,
    keeps_end: bool,
    kept: np.ndarray,
    cleaned: np.ndarray,
    counters: np.ndarray,
) -> None:
    """Decide for every record (kept: bool[len(spans)]) and batch (cleaned: CLEANED[n]); add up counters: int64[].

    batches: BATCH[n]; bodies: BODY[n]; is_last: bool[len(spans)]; retention: int8[n]; drop_records, discardable:
    bool[n]; fates: int8[n]: where one is not UNKNOWN the batch has no spans, for all its records are known to stay, or
    to be superseded (`block_kernels.fates_of_batches`). new_horizon_ms: now + delete.retention.ms, negative where that
    overflows (then no horizon is set). oldest_ms: data records with an earlier timestamp go, those without one stay;
    negative: times do not matter, and nobody looks for the smallest.
    compacts: else records go for nothing but their time. keeps_end: no segment behind says where the last batch ended.
    """
    for i in range(batches.shape[0]):
        batch = batches[i]
        body = bodies[i]
        result = cleaned[i]
        control = batch.attributes & CONTROL_MASK != 0
        current = batch.magic == 2
        has_horizon = current and batch.attributes & DELETE_HORIZON_MASK != 0
        append_time = batch.magic > 0 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
        known = fates[i] != UNKNOWN
        n_records = np.int64(batch.records_count) if drop_records[i] or known else body.n_records
        n_kept = np.int64(0)
        tombstones = 0
        first_kept = np.int64(-1)
        last_kept = np.int64(-1)
        max_timestamp = np.int64(-1)
        min_timestamp = np.int64(UNKNOWN_TIMESTAMP if oldest_ms < 0 else NO_TIMESTAMP)
        if drop_records[i]:
            counters[DROPPED_MARKERS if control else DROPPED_ABORTED] += n_records
        elif known:
            if fates[i] == ALL_STAY:
                n_kept = n_records
            else:
                counters[DROPPED_SUPERSEDED] += n_records
        else:
            for row in range(body.first_span, body.first_span + n_records):
                span = spans[row]
                timestamp = batch.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
                keep = True
                if compacts and not control:
                    if span.null_key:
                        counters[NULL_KEYS] += 1
                        if not keep_null_keys:
                            keep = False
                            counters[DROPPED_NULL_KEY] += 1
                    elif not is_last[row]:
                        keep = False
                        counters[DROPPED_SUPERSEDED] += 1
                    elif span.null_value:
                        if current:
                            keep = not has_horizon or now_ms < batch.base_timestamp
                        else:
                            keep = keep_legacy_tombstones
                        if not keep:
                            counters[DROPPED_TOMBSTONES] += 1
                if keep and not control and 0 <= timestamp < oldest_ms:
                    keep = False
                    counters[DROPPED_EXPIRED] += 1
                kept[row] = keep
                if keep:
                    if n_kept == 0:
                        first_kept = np.int64(row)
                        max_timestamp = body.base_timestamp + span.timestamp_delta
                    last_kept = np.int64(row)
                    n_kept += 1
                    if span.null_value:
                        tombstones += 1
                    max_timestamp = max(max_timestamp, body.base_timestamp + span.timestamp_delta)
                    if timestamp >= 0 and not control:
                        min_timestamp = min(min_timestamp, timestamp)
        set_horizon = compacts and (tombstones > 0 or (control and discardable[i])) and not has_horizon
        result.n_kept = n_kept
        result.min_timestamp = min_timestamp
        result.tombstones = tombstones if not control else 0
        untouched = n_kept == n_records and (n_kept > 0 or not compacts)
        if untouched and current and not set_horizon:
            result.outcome = COPIED
            result.base_offset = batch.base_offset
            result.last_offset = batch.last_offset
            result.base_timestamp = batch.base_timestamp
            result.max_timestamp = batch.max_timestamp
            result.attributes = batch.attributes
            counters[BATCHES_COPIED] += 1
        elif n_kept > 0:
            result.outcome = REBUILT
            if append_time:
                max_timestamp = batch.max_timestamp
            result.max_timestamp = max_timestamp
            attributes = batch.attributes & ~(DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK)
            if not current:
                attributes = batch.attributes & CODEC_MASK
            if append_time:
                attributes |= TIMESTAMP_TYPE_MASK
                result.base_timestamp = max_timestamp
            else:
                result.base_timestamp = body.base_timestamp + spans[first_kept].timestamp_delta
            if has_horizon:
                attributes |= DELETE_HORIZON_MASK
                result.base_timestamp = batch.base_timestamp
            elif set_horizon and new_horizon_ms >= 0:
                attributes |= DELETE_HORIZON_MASK
                result.base_timestamp = new_horizon_ms
            result.attributes = attributes
            if current:
                result.base_offset = batch.base_offset
                result.last_offset = batch.last_offset
            else:
                result.base_offset = body.base_offset + spans[first_kept].offset_delta
                result.last_offset = body.base_offset + spans[last_kept].offset_delta
                if keeps_end and retention[i] == RETAIN_EMPTY:
                    result.last_offset = batch.last_offset
            counters[BATCHES_REBUILT] += 1
        elif retention[i] == RETAIN_EMPTY:
            result.outcome = EMPTIED
            result.base_offset = batch.base_offset if current else batch.last_offset
            result.last_offset = batch.last_offset
            result.base_timestamp = -1
            result.max_timestamp = batch.max_timestamp
            result.attributes = batch.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
            if append_time:
                result.attributes |= TIMESTAMP_TYPE_MASK
            counters[BATCHES_EMPTIED] += 1
        else:
            result.outcome = DROPPED
            result.base_offset = batch.base_offset
            result.last_offset = batch.last_offset
            result.max_timestamp = batch.max_timestamp
            counters[BATCHES_DROPPED] += 1
        counters[BATCHES_READ] += 1
        counters[RECORDS_READ] += n_records
        counters[RECORDS_KEPT] += n_kept
        if not control:
            counters[TOMBSTONES_KEPT] += tombstones
