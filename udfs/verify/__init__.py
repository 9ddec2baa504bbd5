"""Checks of a compaction's guarantees, with code of their own: they use no part of `udfs.compact`."""
