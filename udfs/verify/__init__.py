"""The guarantees of a compaction checked, with code of its own: nothing here comes from `udfs.compact`."""
