"""Yields: the superseded share of each segment, and the selection of segments to rewrite."""
