"""`spark.read.format("kafka_log")`, batch and streaming."""
