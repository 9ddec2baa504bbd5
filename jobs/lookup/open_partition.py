"""Partition of an archive for a Python program: its records, and searches by offset and by time."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import get_args

from lastkey.jobs.archive.listing import list_folder
from lastkey.jobs.command.config import Gaps
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.parse import check_location
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.jobs.lookup.plans import archived_plan
from lastkey.logformat.names import parse_partition_folder
from lastkey.udfs.lookup.queries import Partition, open_whole
from lastkey.udfs.storage import exists, normal_uri, open_root


@raises_job_errors
def open_partition(path_or_uri: str | os.PathLike[str], *, gaps: Gaps = "fail") -> Partition:
    """Open a partition's folder, `<topic>-<partition>`, and look for gaps in it.

        with lastkey.open_partition("archive/orders-0") as log:
            for batch in log.records(["offset", "key"], start_offset=4711): ...  # pyarrow.RecordBatch
            log.lookup_offset(4711)
            log.offsets_for_times([1_700_000_000_000])

    gaps: "fail" raises LogFormatError "gap", with path and offsets, for missing offsets that no cleaner removed; it
    reads the end of each segment. "accept" reads on, and opens by file names alone. The log ends at the high watermark
    if a running broker holds it. MissingPathError: the folder is missing, or has no log. UsageError: the folder's name
    is not a partition's. LogFormatError: the log is damaged.
    """
    if gaps not in get_args(Gaps):
        raise UsageError(message=f"gaps: expected {' or '.join(get_args(Gaps))}, found {gaps!r}")
    uri = normal_uri(check_location("path_or_uri", path_or_uri))
    parent, _, folder = uri.rstrip("/").rpartition("/")
    name = parse_partition_folder(folder)
    if name is None or name.mark:
        raise UsageError(message=f"{uri}: expected a partition's folder, <topic>-<partition>")
    root = open_root(parent or "/")
    if not exists(root, folder):
        raise MissingPathError(path=uri, expected="a partition's folder", found="none")
    partitions = list(list_folder(root, folder).partitions.values())
    if not partitions:
        raise MissingPathError(path=uri, expected="a partition's folder with a log", found="none")
    plan = archived_plan(partitions[0], root)
    return open_whole(replace(plan, traces=None) if gaps == "accept" else plan)
