"""The named steps of a run: points where a crash leaves other files than a crash before them.

A step is an audit event (PEP 578). Without a hook it costs less than a microsecond. Tests stop, kill or fail a run at a
step (`tests/builders/steps.py`), so that they need not know which function does the work.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

EVENT: Final = "lastkey.step"

# The tasks of a large partition, at their ends: the driver does not know yet
Stage = Literal["walk", "resolve", "rewrite"]
Step = Literal[
    Stage,
    # compact, one task
    "segments scanned",  # all decisions are made, no file is written
    "log written",  # a new .log is there, without indexes
    "read back",  # a new segment is complete
    "generation written",  # all its files are there, none of the small ones is flushed
    "partition done",  # the driver does not know yet
    # compact, driver
    "partitions planned",  # the run has no lease yet
    "wave planned",  # no task has begun
    "run stopped",  # early; its unfinished output is not removed
    # every commit
    "manifests written",  # manifests of generations that no table names yet
    "history appended",  # to cleaner_runs
    "rows written",  # rows of any table; no commit names their file
    "table committed",  # any table; the commit has not been reported yet
    "states set",  # in compaction_checkpoints, not yet in cleaner_state
    # convert
    "partition converted",  # its folder has the name of one that is not whole
    "archive converted",  # the mark of an unfinished conversion is there
    # export
    "files exported",  # by all tasks; no table names them, and the mark has the state "unfinished"
    "last rows written",  # rows of a table of --latest; no rows are merged
    # vacuum
    "folders listed",
    "folders chosen",  # a run may still commit one of them
    "deletions announced",  # no run can
    "folder deleted",  # or only the files that no generation needs
    # rebuild-state
    "generations chosen",
    # erase
    "erasure written",  # its file of digests
    "keys erased",  # the places are not searched yet
    "places searched",  # the run has no row yet
    # reindex
    "side file written",  # not flushed
    "side file flushed",  # not read back
    "side file checked",  # not renamed
    "side file replaced",  # its folder is not flushed
    "segments reindexed",  # the partition's own files are not
    "partition reindexed",
]


def step(name: Step) -> None:
    """Notify the listener that this process has reached a step."""
    sys.audit(EVENT, name)
