"""`python -m lastkey.jobs.warm_up`: runs jobs on a small log, for which numba compiles their kernels and keeps them.

All jobs but the last one need no pyspark: spark-submit.sh runs this while pip installs it, and `prepare` runs it again.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from io import BytesIO, TextIOWrapper
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.jobs.api import compact
from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.progress import CountedBytes, PartOf, Silent
from lastkey.jobs.compact.large import compact_large
from lastkey.jobs.compact.plan_inputs import input_from_archive, run_context, whole_plan
from lastkey.jobs.spark.workers import Threads
from lastkey.logformat.cache_folder import folders, processor
from lastkey.logformat.jit import state_of_sources
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.writing.segment_writer import SegmentWriter
from lastkey.udfs.compact.compact_partition import stages_in_turn
from lastkey.udfs.lookup.minutes import TimedSegment, time_index_rows
from lastkey.udfs.storage import open_root

_RECORDS: Final = 6_000  # records in each kind of batch
_POLICY: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_SETTINGS: Final[dict[str, Any]] = {
    "topics": {
        "by-yield": _POLICY | {"compaction.schedule": "yield"},
        "by-timestamp": _POLICY | {"compaction.strategy": "timestamp"},
    }
}
_MIN_YIELDS: Final = (1.0, 1.0, 0.0)  # the second run keeps the first one's segment, and the third one rewrites it
_THREADS: Final = ("--engine", "threads")
_ERASE: Final = ("erase", "--store", "{folder}/store", "--hmac-key", __file__, *_THREADS)
_OTHER_JOBS: Final = (
    ("reindex", "{folder}/archive", "--check", *_THREADS),
    ("lookup", "{folder}/archive", "--offset", "0", "--time", "0"),
    ("inspect", "{folder}/archive", "--print", "data", "--json"), ("lookup", "{folder}/archive", "--sizing"),
    ("verify", "{folder}/archive"), ("report", "{folder}/archive", "--output", "{folder}/page.html"),
    ("verify", "--store", "{folder}/store"), (*_ERASE, "--key", "10000"),
)  # fmt: skip


def main() -> None:
    """Compile the kernels that are not kept. A mark file beside the kernels of this processor shows that all are
    cached, because checking them takes a dozen CPU seconds.
    """
    mark = f"{state_of_sources()}/prepared-{processor()}"
    caches = folders(os.environ.get("NUMBA_CACHE_DIR", ""))
    if any((cache / mark).is_file() for cache in caches):
        return
    with tempfile.TemporaryDirectory() as folder:
        compact_small_log(folder)
        run_other_jobs(folder)
    for cache in caches:
        if (cache / mark).parent.is_dir() and find_spec("pyspark"):  # without it, erase ends early
            with suppress(OSError):
                (cache / mark).touch()


def compact_small_log(folder: str) -> None:
    """Compact an archive by each kind of rule: in one task as it grows, and in the stages of a large partition."""
    root, store, end = open_root(f"{folder}/archive"), f"{folder}/store", 0
    for min_yield in _MIN_YIELDS:
        share = {"compaction.min.yield": min_yield}
        [end] = {write_segment(root.full(f"{topic}-0"), end) for topic in _SETTINGS["topics"]}
        compact(root.uri, store, config=_SETTINGS, engine="threads", sealed=True, overrides=share)
    config, workers = parse_config(_SETTINGS), Threads(1)
    for archived in list_archive(root, lambda _: True).partitions.values():
        run = run_context(config, open_root(store).uri, 0, folder="split", sealed=True)
        plan = whole_plan(run, input_from_archive(archived), config.topic_settings(archived.topic))
        compact_large(workers, plan, PartOf(CountedBytes(Silent(), [0]), 0), stages_in_turn)
        time_index_rows([TimedSegment(plan.input.topic, 0, segment) for segment in plan.input.segments])  # lookup --at


def run_other_jobs(folder: str) -> list[int]:
    """Run the other jobs on the archive and the store, without what they print; return their exit codes."""
    with redirect_stdout(TextIOWrapper(BytesIO())), redirect_stderr(TextIOWrapper(BytesIO())):  # inspect writes bytes
        return [cli.main([word.replace("{folder}", folder) for word in words]) for words in _OTHER_JOBS]


def write_segment(folder: str, base_offset: int) -> int:
    """Write large and small batches of every codec, and an aborted transaction; return the end of the log. Half of the
    keys are in every segment.
    """
    with SegmentWriter(folder, base_offset) as writer:
        for codec in CODEC_NAMES:
            for most in (10, 1000):
                writer.append_records(_records(writer), codec=codec, max_batch_records=most)
        writer.append_records(_records(writer), producer_id=0, producer_epoch=0, base_sequence=0, transactional=True)
        writer.append_marker(producer_id=0, producer_epoch=0, commit=False, timestamp=0)
    return writer.next_offset


def _records(writer: SegmentWriter) -> pa.RecordBatch:
    offsets = np.arange(writer.next_offset, writer.next_offset + _RECORDS)
    keys = pa.array(offsets - offsets % 2 * writer.base_offset).cast(pa.string()).cast(pa.binary())
    values = pa.array([b'"text"', b"\xff"] * (_RECORDS // 2))  # characters that JSON escapes, and no UTF-8
    return pa.record_batch({"key": keys, "value": values, "timestamp_ms": pa.array(offsets)})


if __name__ == "__main__":
    main()
