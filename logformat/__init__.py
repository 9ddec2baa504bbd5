"""Reader of Kafka's log files as columns, and writer of logs with their indexes; independent of Spark, jobs and policy.

logformat.open_segment("archive/orders-0/00000000000000000000.log").to_arrow(["offset", "key"])
with logformat.SegmentWriter("test/orders-0", 0) as writer:
    writer.append_records(pyarrow.record_batch({"key": [b"a"], "value": [b"1"], "offset": [0], "timestamp_ms": [0]}))
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastkey.logformat.batches.segment import open_segment
    from lastkey.logformat.writing.segment_writer import SegmentWriter

__all__ = ["SegmentWriter", "open_segment"]

# Else numba wraps stdout where colorama is installed, which strips escapes in a pipe and writes one at the end
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

_HOMES = {
    "open_segment": "lastkey.logformat.batches.segment",
    "SegmentWriter": "lastkey.logformat.writing.segment_writer",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because the rest of the package does not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
