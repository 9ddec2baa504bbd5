"""Checks of a compaction's guarantees, with code of their own: nothing here comes from `udfs.compact`."""
