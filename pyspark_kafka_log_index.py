"""Spark looks for modules of such names and registers their DefaultSource: `spark.read.format("kafka_log_index")`."""

from lastkey.jobs.data_source.source import KafkaLogIndex as DefaultSource

__all__ = ["DefaultSource"]
