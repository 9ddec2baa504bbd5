"""A partition searched by offset and by time."""
