"""What Spark runs on Arrow batches: plain functions over columns and files. Never imports pyspark."""
