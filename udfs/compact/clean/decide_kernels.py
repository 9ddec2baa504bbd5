"""The cleaner's decision for every record and batch, as a kernel (COMPACTION.md, "Rules"). Sources of the rules:
KAFKA.md, "Batches", "Records", "Tombstones" and "Written bytes".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from lastkey.udfs.compact import verdicts as v


class BatchDecisions(NamedTuple):
    """Decisions about n batches before their records are read."""

    discardable: np.ndarray  # bool[n], transactional and control batches that may go
    retention: np.ndarray  # int8[n]
    drop_records: np.ndarray  # bool[n]
    undecided: np.ndarray  # bool[n], their records stay, and supersede no record
    # int8[n]: a batch with a verdict other than UNKNOWN has no spans, because all its records are known to stay, or to
    # be superseded
    verdicts: np.ndarray


class RecordRules(NamedTuple):
    """Rules about records."""

    now_ms: int
    new_horizon_ms: int  # now + delete.retention.ms; if negative, the sum overflowed and no horizon is set
    oldest_ms: int  # drop data records with an earlier timestamp; if negative, the smallest one is not computed either
    by_key: bool  # if False, only their time, and the decider, remove records
    tombstones_from: int  # first offset from which all tombstones stay
    keep_legacy_tombstones: bool
    keep_null_keys: bool
    keeps_end: bool  # no later segment shows the end of the last batch
    codec: int  # codec of rewritten data batches; negative: their own
    change_codec: bool  # rewrite data batches of another codec; none of them has a verdict ALL_STAY


@kernel
def decide(
    run: Run, kept: np.ndarray, decided: BatchDecisions, rules: RecordRules, cleaned: np.ndarray, counters: np.ndarray
) -> None:
    """Decide for every record (kept: bool[len(spans)]; given: whether it may stay; written: whether it does) and batch
    (cleaned: CLEANED[n], written); add to the counters: int64[].
    """
    batches, bodies, spans = run.batches, run.bodies, run.spans
    discardable, retention, drop_records, _, verdicts = decided
    now_ms, oldest_ms, by_key, tombstones_from = rules.now_ms, rules.oldest_ms, rules.by_key, rules.tombstones_from
    for i in range(batches.shape[0]):
        batch = batches[i]
        body = bodies[i]
        result = cleaned[i]
        control = batch.attributes & CONTROL_MASK != 0
        current = batch.magic >= 2
        has_horizon = current and batch.attributes & DELETE_HORIZON_MASK != 0
        append_time = batch.magic > 0 and batch.attributes & TIMESTAMP_TYPE_MASK != 0
        is_known = verdicts[i] != v.UNKNOWN
        codec = batch.attributes & CODEC_MASK
        other_codec = not control and rules.codec >= 0 and codec != rules.codec
        if other_codec:
            codec = rules.codec
        n_records = np.int64(batch.records_count) if drop_records[i] or current else body.n_records
        n_kept = np.int64(0)
        tombstones = 0
        first_kept = np.int64(-1)
        last_kept = np.int64(-1)
        max_timestamp = np.int64(-1)
        min_timestamp = np.int64(v.UNKNOWN_TIMESTAMP if oldest_ms < 0 else v.NO_TIMESTAMP)
        if drop_records[i]:
            counters[v.DROPPED_MARKERS if control else v.DROPPED_ABORTED] += n_records
        elif is_known:
            if verdicts[i] == v.ALL_STAY:
                n_kept = n_records
            else:
                counters[v.DROPPED_SUPERSEDED] += n_records
        else:
            for row in range(body.first_span, body.first_span + body.n_records):
                span = spans[row]
                timestamp = batch.max_timestamp if append_time else body.base_timestamp + span.timestamp_delta
                keep = True
                if control:
                    pass
                elif not by_key:
                    if not kept[row]:
                        keep = False
                        counters[v.DROPPED_ERASED] += 1
                elif span.null_key:
                    counters[v.NULL_KEYS] += 1
                    if not rules.keep_null_keys:
                        keep = False
                        counters[v.DROPPED_NULL_KEY] += 1
                elif not kept[row]:
                    keep = False
                    counters[v.DROPPED_SUPERSEDED] += 1
                elif span.null_value and body.base_offset + span.offset_delta < tombstones_from:
                    if current:
                        keep = not has_horizon or now_ms < batch.base_timestamp
                    else:
                        keep = rules.keep_legacy_tombstones
                    if not keep:
                        counters[v.DROPPED_TOMBSTONES] += 1
                if keep and not control and 0 <= timestamp < oldest_ms:
                    keep = False
                    counters[v.DROPPED_EXPIRED] += 1
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
        set_horizon = by_key and (tombstones > 0 or (control and discardable[i])) and not has_horizon
        result.n_kept = n_kept
        result.min_timestamp = min_timestamp
        result.tombstones = tombstones if not control else 0
        untouched = n_kept == n_records and (n_kept > 0 or not by_key)
        if other_codec and rules.change_codec and n_kept > 0:
            untouched = False
        # a batch of magic 3, which no broker reads, becomes magic 2
        if untouched and current and not set_horizon and (batch.magic == 2 or n_kept == 0):
            result.outcome = v.COPIED
            result.base_offset = batch.base_offset
            result.last_offset = batch.last_offset
            result.base_timestamp = batch.base_timestamp
            result.max_timestamp = batch.max_timestamp
            result.attributes = batch.attributes
            counters[v.BATCHES_COPIED] += 1
        elif n_kept > 0:
            result.outcome = v.REBUILT
            if append_time:
                max_timestamp = batch.max_timestamp
            result.max_timestamp = max_timestamp
            attributes = batch.attributes & ~(DELETE_HORIZON_MASK | TIMESTAMP_TYPE_MASK)
            if not current:
                attributes = batch.attributes & CODEC_MASK
            attributes = attributes & ~CODEC_MASK | codec
            if append_time:
                attributes |= TIMESTAMP_TYPE_MASK
                result.base_timestamp = max_timestamp
            else:
                result.base_timestamp = body.base_timestamp + spans[first_kept].timestamp_delta
            if has_horizon:
                attributes |= DELETE_HORIZON_MASK
                result.base_timestamp = batch.base_timestamp
            elif set_horizon and rules.new_horizon_ms >= 0:
                attributes |= DELETE_HORIZON_MASK
                result.base_timestamp = rules.new_horizon_ms
            result.attributes = attributes
            if current:
                result.base_offset = batch.base_offset
                result.last_offset = batch.last_offset
            else:
                result.base_offset = body.base_offset + spans[first_kept].offset_delta
                result.last_offset = body.base_offset + spans[last_kept].offset_delta
                if rules.keeps_end and retention[i] == v.RETAIN_EMPTY:
                    result.last_offset = batch.last_offset
            counters[v.BATCHES_REBUILT] += 1
        elif retention[i] == v.RETAIN_EMPTY:
            result.outcome = v.EMPTIED
            result.base_offset = batch.base_offset if current else batch.last_offset
            result.last_offset = batch.last_offset
            result.base_timestamp = -1
            result.max_timestamp = batch.max_timestamp
            result.attributes = batch.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
            if append_time:
                result.attributes |= TIMESTAMP_TYPE_MASK
            counters[v.BATCHES_EMPTIED] += 1
        else:
            result.outcome = v.DROPPED
            result.base_offset = batch.base_offset
            result.last_offset = batch.last_offset
            result.max_timestamp = batch.max_timestamp
            counters[v.BATCHES_DROPPED] += 1
        counters[v.BATCHES_READ] += 1
        counters[v.RECORDS_READ] += n_records
        counters[v.RECORDS_KEPT] += n_kept
        if not control:
            counters[v.TOMBSTONES_KEPT] += tombstones
