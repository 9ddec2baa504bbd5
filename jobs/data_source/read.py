"""Reading in a worker: the part of a data source that one task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pyspark.sql.datasource import InputPartition

from lastkey.jobs.data_source.options import ReadOptions
from lastkey.udfs.data_source.pieces import listed_logs, logs_behind
from lastkey.udfs.segments import ListedLog


def read_task(options: ReadOptions, schema: Any, partition: InputPartition) -> Iterator[Any]:
    """Return the Arrow batches of one task, read in a worker."""
    from lastkey.udfs.data_source.index_entries import read_index  # noqa: PLC0415
    from lastkey.udfs.data_source.pieces import ReadSpec  # noqa: PLC0415
    from lastkey.udfs.data_source.records import read_batches, read_records  # noqa: PLC0415 - kernels load where used

    if partition.value is None:  # Spark's sign that there is no partition
        return iter(())
    behind = _listed_again(options)
    asked = options.asked
    spec = ReadSpec(schema, asked.wanted, asked.quarantine, max_rows=options.max_rows, logs_behind=behind)
    if options.max_batch_bytes is not None:
        spec = replace(spec, max_batch_bytes=options.max_batch_bytes)
    reads = {"kafka_log": read_records, "kafka_log_batches": read_batches, "kafka_log_index": read_index}
    return reads[options.source](spec, partition.value)


def _listed_again(options: ReadOptions) -> Callable[[ListedLog], Sequence[ListedLog]]:
    """Return a function that lists the logs after a given one, for a rare transaction that spans more than a task's."""
    from lastkey.jobs.data_source.plan_tasks import source_partitions  # noqa: PLC0415 - most tasks need none of it

    @cache
    def logs() -> list[list[ListedLog]]:
        return [listed_logs(partition) for partition in source_partitions(options, may_be_none=True)]

    return lambda log: logs_behind(logs(), log)
