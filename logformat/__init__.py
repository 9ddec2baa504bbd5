"""Kafka's log files as columns, and back: reader, writer and indexes. Knows nothing of Spark, jobs or policy."""
