"""The numbers for decisions about batches and records: kernels write them, Python reads them."""

from __future__ import annotations

from typing import Final

# The least that the rules leave of a batch: Kafka's RecordFilter.BatchRetention
DELETE: Final = 0
RETAIN_EMPTY: Final = 1
DELETE_EMPTY: Final = 2

# The verdict on a batch's records before a task reads its body
UNKNOWN: Final = 0
ALL_STAY: Final = 1
ALL_GO: Final = 2

# The outcome for a batch
DROPPED: Final = 0
COPIED: Final = 1  # all its bytes, as they are
REBUILT: Final = 2  # encoded again from the kept records
EMPTIED: Final = 3  # its header alone

# Values of a smallest timestamp of kept records that are no time
NO_TIMESTAMP: Final = 2**63 - 1  # no kept data record has a timestamp
UNKNOWN_TIMESTAMP: Final = -1  # the records were not examined

# Columns of the counters, and their names
N_COUNTERS: Final = 16
(
    RECORDS_READ, RECORDS_KEPT, DROPPED_SUPERSEDED, DROPPED_TOMBSTONES, DROPPED_ABORTED, DROPPED_NULL_KEY,
    DROPPED_MARKERS, NULL_KEYS, BATCHES_READ, BATCHES_COPIED, BATCHES_REBUILT, BATCHES_EMPTIED, BATCHES_DROPPED,
    TOMBSTONES_KEPT, DROPPED_EXPIRED, DROPPED_ERASED,
) = range(N_COUNTERS)  # fmt: skip
COUNTER_NAMES: Final = (
    "records_read", "records_kept", "dropped_superseded", "dropped_tombstones", "dropped_aborted", "dropped_null_key",
    "dropped_markers", "null_keys", "batches_read", "batches_copied", "batches_rebuilt", "batches_emptied",
    "batches_dropped", "tombstones_kept", "dropped_expired", "dropped_erased",
)  # fmt: skip
