"""Records of logs as files for other programs: Parquet, and lines of JSON."""
