"""Search of a partition by offset and by time."""
