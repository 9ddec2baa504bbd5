"""Lastkey: compaction, indexing, search and audit of archived Apache Kafka logs.

`__all__` is the Python API; docs/reference/api.md explains it. A name is imported when it is first used, since
most of them bring Spark or compiled kernels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastkey.jobs.api import (
        compact,
        convert,
        export,
        inspect,
        lookup,
        merge,
        pack,
        policies,
        reindex,
        replay,
        report,
        verify,
    )
    from lastkey.jobs.api_store import archive_needed, audit, erase, rebuild_state, restore, rollback, runs, vacuum
    from lastkey.jobs.audit.report import AuditReport
    from lastkey.jobs.compact.report import CompactReport
    from lastkey.jobs.convert.job import ConvertReport
    from lastkey.jobs.data_source.source import register
    from lastkey.jobs.erase.report import EraseReport
    from lastkey.jobs.errors import JobError
    from lastkey.jobs.lookup.partitions import open_partition
    from lastkey.jobs.notebook import open_archive
    from lastkey.jobs.reindex.job import ReindexReport
    from lastkey.jobs.restore.report import RestoreReport
    from lastkey.jobs.verify.job import VerifyReport
    from lastkey.logformat.batches.segment import open_segment
    from lastkey.logformat.errors import LogFormatError
    from lastkey.logformat.writing.segment_writer import SegmentWriter

__all__ = [
    "AuditReport", "CompactReport", "ConvertReport", "EraseReport", "JobError", "LogFormatError", "ReindexReport",
    "RestoreReport", "SegmentWriter", "VerifyReport", "archive_needed", "audit", "compact", "convert", "erase",
    "export", "inspect", "lookup", "merge", "open_archive", "open_partition", "open_segment", "pack", "policies",
    "rebuild_state", "register", "reindex", "replay", "report", "restore", "rollback", "runs", "vacuum", "verify",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys((name for name in __all__ if name.islower()), "lastkey.jobs.api"),
    **dict.fromkeys(
        ("archive_needed", "audit", "erase", "rebuild_state", "restore", "rollback", "runs", "vacuum"),
        "lastkey.jobs.api_store",
    ),
    "AuditReport": "lastkey.jobs.audit.report",
    "CompactReport": "lastkey.jobs.compact.report",
    "ConvertReport": "lastkey.jobs.convert.job",
    "EraseReport": "lastkey.jobs.erase.report",
    "ReindexReport": "lastkey.jobs.reindex.job",
    "RestoreReport": "lastkey.jobs.restore.report",
    "VerifyReport": "lastkey.jobs.verify.job",
    "JobError": "lastkey.jobs.errors",
    "register": "lastkey.jobs.data_source.source",
    "open_archive": "lastkey.jobs.notebook",
    "open_partition": "lastkey.jobs.lookup.partitions",
    "open_segment": "lastkey.logformat.batches.segment",
    "SegmentWriter": "lastkey.logformat.writing.segment_writer",
    "LogFormatError": "lastkey.logformat.errors",
}

if not TYPE_CHECKING:  # else every name would be one

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, for completion, and the rest."""
    return sorted({*globals(), *__all__})
