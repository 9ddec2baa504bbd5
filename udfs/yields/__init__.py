"""Yields: how much of each segment newer records have superseded, and the segments that pay for their rewrite."""
