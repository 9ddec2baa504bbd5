"""Spark looks for modules of such names and registers their DefaultSource: `spark.read.format("kafka_log")`."""

from lastkey.jobs.data_source.source import KafkaLog as DefaultSource

__all__ = ["DefaultSource"]
