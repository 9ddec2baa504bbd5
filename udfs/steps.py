"""The named steps of a run: points where a crash leaves other files behind than a crash before them.

A step is an audit event (PEP 578). Without a hook it costs less than a microsecond. Tests stop, kill or fail a run at a
step (`tests/builders/steps.py`), so that they need not know which function does the work.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

EVENT: Final = "lastkey.step"

# The tasks of a large partition: the files of a task are there, and the driver does not know yet
Stage = Literal["walk", "settle", "rewrite", "join"]
Step = Literal[
    Stage,
    # compact, one task
    "segments scanned",  # everything is decided, nothing is written
    "log written",  # a new .log is there, without indexes
    "read back",  # a new segment is complete
    "generation written",  # all its files are there, none of the small ones is flushed
    "partition done",  # the driver does not know yet
    "last split cleaned",  # in its walk
    # compact, driver
    "wave planned",  # no task has begun
    "manifests written",  # of a wave whose tasks have ended; no table names its generations
    "history appended",  # to log_segments or cleaner_runs
    "rows written",  # of any table; no commit names their file
    "table committed",  # any table; nobody was told
    "states set",  # in compaction_checkpoints, not yet in cleaner_state
    # erase
    "erasure written",  # its file of digests
    "keys erased",  # the places are not searched yet
    "places searched",  # the table erasures has no row yet
    # reindex
    "side file written",  # not flushed
    "side file flushed",  # not read back
    "side file checked",  # not renamed
    "side file replaced",  # its folder is not flushed
    "segments reindexed",  # the partition's own files are not
    "partition reindexed",
]


def step(name: Step) -> None:
    """Tell whoever listens that this process has reached a step."""
    sys.audit(EVENT, name)
