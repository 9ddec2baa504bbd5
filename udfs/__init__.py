"""Plain functions over columns and files, which Spark runs on Arrow batches. Never imports pyspark."""
