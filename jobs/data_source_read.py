"""What one task of a data source gives, in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition

from jobs.data_source_options import ReadOptions


def read_task(options: ReadOptions, schema: Any, partition: InputPartition) -> Iterator[Any]:
    """What one task gives, in a worker."""
    from udfs.read_batches import read_batches  # noqa: PLC0415 - kernels are loaded where they are used
    from udfs.read_index import read_index  # noqa: PLC0415
    from udfs.read_plan import ReadSpec  # noqa: PLC0415
    from udfs.read_records import read_records  # noqa: PLC0415

    if partition.value is None:  # Spark's way to say that there is no partition
        return iter(())
    spec = ReadSpec(schema, options.wanted(), options.set_aside, max_rows=options.max_rows)
    reads = {"kafka_log": read_records, "kafka_log_batches": read_batches, "kafka_log_index": read_index}
    return reads[options.source](spec, partition.value)
