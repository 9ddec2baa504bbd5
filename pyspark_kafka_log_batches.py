"""Spark looks for modules of such names and registers their DefaultSource: `spark.read.format("kafka_log_batches")`."""

from lastkey.jobs.data_source.source import KafkaLogBatches as DefaultSource

__all__ = ["DefaultSource"]
